"""Episodes for tests: by hand, and drawn by hypothesis."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

import warpdata as wd
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.formats.wshard import ShardReader, layout

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
IDS = st.from_regex(r"[A-Za-z0-9_-]{1,8}(/[A-Za-z0-9_-]{1,5}){0,2}", fullmatch=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def as_others_write_it(source: Path, target: Path, block: str) -> None:
    """A copy of a shard without table checksum and without piece checksums for its last large raw block."""
    data, shard = source.read_bytes(), ShardReader.open(source)
    header, last = shard.table.header, shard.block(layout.PIECES_PREFIX + block)
    assert last.data_offset == max(shard.block(name).data_offset for name in shard.names)
    kept = layout.TABLE_OFFSET + layout.ENTRY_BYTES * (header.entry_count - 1)
    names = data[header.string_table_offset : header.data_section_offset]
    plain = header._replace(
        table_mark=bytes(4), table_crc32c=0, entry_count=header.entry_count - 1, string_table_offset=kept,
        total_file_size=last.data_offset,
    )  # fmt: skip
    room = header.data_section_offset - layout.TABLE_OFFSET
    body = (data[layout.TABLE_OFFSET : kept] + names).ljust(room, b"\0")[:room]
    target.write_bytes(
        layout.HEADER.pack(*plain) + body + data[header.data_section_offset : last.data_offset]
    )


def simple(steps: int = 20, *, seed: int = 0) -> wd.WShardEpisode:
    """A small episode with every kind of channel."""
    rng = np.random.default_rng(seed)
    episode = wd.WShardEpisode(id="ep", env_id="Env-v1", length=steps, timebase=wd.Timebase("ticks", 50.0))
    episode.observations["state"] = wd.Channel(
        "state", rng.normal(size=(steps, 4)).astype(np.float32), unit="rad"
    )
    episode.observations["cam/rgb"] = rng.integers(0, 255, (steps, 6, 5, 3), np.uint8)
    episode.actions["ctrl"] = rng.normal(size=(steps, 2)).astype(np.float32)
    episode.rewards = rng.normal(size=steps).astype(np.float32)
    episode.terminations = np.arange(steps) == steps - 1
    episode.omens["state/dreamer"] = rng.normal(size=(steps, 4)).astype(np.float32)
    episode.uncerts["state/dreamer/std"] = np.ones((steps, 4), np.float32)
    episode.add_residual("state")
    episode.metadata = {"task": "pick", "n": 3}
    return episode


@st.composite
def arrays(draw: st.DrawFn, rows: int, dtype: str | None = None) -> np.ndarray[Any, Any]:
    name = draw(st.sampled_from(DTYPE_NAMES)) if dtype is None else dtype
    shape = (rows, *draw(st.lists(st.integers(0, 4), max_size=3)))
    size = math.prod(shape) * dtype_named(name).itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if name == "bool":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype_named(name).dtype).reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) else array


@st.composite
def episodes(draw: st.DrawFn) -> wd.WShardEpisode:
    """Any episode: all dtypes, ranks, clocks, lanes and metadata."""
    steps = draw(st.integers(0, 12))
    hz = draw(st.floats(0.001, 1e6) | st.integers(1, 1000).map(float))
    episode = wd.WShardEpisode(id=draw(TEXT), length=steps)
    episode.env_id = draw(TEXT)
    episode.timebase = wd.Timebase("ticks", hz)
    for field in ("observations", "actions"):
        for name in draw(st.lists(IDS, max_size=3, unique=True)):
            getattr(episode, field)[name] = draw(channels(name, steps))
    for field in ("omens", "uncerts"):
        for name in draw(st.lists(IDS, max_size=2, unique=True)):
            getattr(episode, field)[name] = draw(arrays(steps))
    for name in draw(st.lists(IDS, max_size=2, unique=True)):
        episode.residuals[name] = draw(arrays(draw(st.integers(1, 20)), "u8").filter(lambda a: a.size > 0))
    if draw(st.booleans()):
        episode.rewards = draw(flat(steps))
    for field in ("terminations", "truncations"):
        if draw(st.booleans()):
            flags = np.array(draw(st.lists(st.booleans(), min_size=steps, max_size=steps)), bool)
            setattr(episode, field, flags if draw(st.booleans()) else flags.astype(np.uint8))
    if draw(st.booleans()):
        stamps = draw(st.lists(st.integers(-(2**62), 2**62), min_size=steps, max_size=steps, unique=True))
        episode.timestamps_ns = np.array(sorted(stamps), np.int64)
        episode.timebase = wd.Timebase(draw(st.sampled_from(["ticks", "timestamps_ns"])), hz)
    episode.metadata = draw(st.dictionaries(TEXT, JSON, max_size=3))
    return episode


@st.composite
def flat(draw: st.DrawFn, steps: int) -> np.ndarray[Any, Any]:
    dtype = dtype_named(draw(st.sampled_from(["f32", "f64", "f16", "bf16", "i64"])))
    raw = draw(st.binary(min_size=steps * dtype.itemsize, max_size=steps * dtype.itemsize))
    return np.frombuffer(raw, dtype.dtype)


@st.composite
def channels(draw: st.DrawFn, name: str, steps: int) -> wd.Channel:
    about = {"unit": "m", "semantics": draw(TEXT)} if draw(st.booleans()) else {}
    if draw(st.booleans()):
        return wd.Channel(name, draw(arrays(steps)), about=about)
    rows = draw(st.integers(0, 8))
    data = draw(arrays(rows).filter(lambda a: math.prod(a.shape[1:]) > 0))
    clock = np.arange(rows, dtype=np.int64) * draw(st.integers(1, 1000))
    return wd.Channel(name, data, timestamps_ns=clock, about=about)
