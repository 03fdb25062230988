"""A file in words, as `wshard-dump --full` of the other languages prints it: what the three must agree on."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.episodes.sources.cameras import VideoSignal
from warpdata.episodes.sources.disk_episode import SimpleSignal
from warpdata.episodes.sources.packed import PackedSource, is_packed
from warpdata.episodes.sources.shard_episode import BlockSignal
from warpdata.errors import WarpError
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader, check_chunk_hash
from warpdata.formats.wshard.episode import Channel, WShardEpisode, load_wshard
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.rows import ChannelRows, TextRows, is_text
from warpdata.timeline.meta import SignalRole, guess_role

FIRST = 8
_FLAGS = {"reward": "rewards", "done": "terminations", "truncated": "truncations"}


def describe(path: Path) -> dict[str, Any]:
    """What a file says and holds, every checksum verified; or the code of the error that refuses it."""
    try:
        return _described(path)
    except WarpError as error:
        return {"error": error.code}


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """A description of any language with its numbers in one form; its lists keep their order, which is compared too."""
    said: dict[str, Any] = json.loads(json.dumps(found))
    said.pop("message", None)
    return said


def _described(path: Path) -> dict[str, Any]:
    shard = ShardReader.open(path)
    episode, fresh = _opened(path), _opened(path)
    packed = PackedSource(shard) if is_packed(shard) else None
    kind = "chunks" if shard.role == layout.ROLE_CHUNK_LIST else "packed" if packed else "episode"
    steps = episode.timestep_range
    chunk = None
    if episode.chunk_index is not None:
        chunk = {
            "index": episode.chunk_index, "total": episode.total_chunks,
            "steps": None if steps is None else list(steps),
        }  # fmt: skip
    again = dict(_channels(fresh))
    found: dict[str, Any] = {
        "kind": kind, "id": episode.id, "env_id": episode.env_id, "length": episode.length,
        "channels": [_channel(name, each, again[name]) for name, each in _channels(episode)],
        "timebase": {"type": episode.timebase.type, "tick_hz": episode.timebase.tick_hz},
        "times": _sha256(episode.times_ns()), "metadata": episode.metadata, "models": episode.models,
        "about": episode.about, "chunk": chunk,
        "blocks": [{"name": name, "sha256": _sha256(data)} for name, data in episode.blocks.items()],
    }  # fmt: skip
    if packed is not None:
        found["signals"] = [_signal(name, each, packed) for name, each in packed.signals.items()]
        about = shard.read_json("meta/directory")
        found |= {"static": about["static"], "meta": about["meta"], "steps": about.get("steps")}
    return found


def _opened(path: Path) -> WShardEpisode:
    shard = ShardReader.open(path)
    if shard.role != layout.ROLE_CHUNK_LIST:
        return load_wshard(shard)
    chunked = ChunkedEpisodeReader(path)
    for entry in chunked.manifest.chunks:
        check_chunk_hash(chunked.manifest, entry)
    return chunked.episode()


def _channels(episode: WShardEpisode) -> list[tuple[str, Channel]]:
    flags = [(name, getattr(episode, field)) for name, field in _FLAGS.items()]
    return [*episode.lanes(), *((name, flag) for name, flag in flags if flag is not None)]


def _channel(name: str, channel: Channel, fresh: Channel) -> dict[str, Any]:
    lane, _, rest = name.partition("/")
    role = SignalRole("observation") if lane == "signal" else guess_role(name, "vector")
    length = channel.length
    start = length // 3
    end = min(length, start + -(-length // 3))
    window = _bytes(fresh.row_source, start, end)  # before anything else of the block is read
    stamps = channel.timestamps_ns
    return {
        "name": name, "id": rest or name, "lane": lane, "role": role.role, "of": role.of, "model": role.model,
        "dtype": str(channel.dtype), "shape": [length, *channel.row_shape],
        "sha256": _sha256(_bytes(channel.row_source, 0, length)),
        "clock": None if stamps is None else {"length": len(stamps), "sha256": _sha256(stamps)},
        "window": {"start": start, "end": end, "sha256": _sha256(window)},
        "first": _first(channel), "about": channel.about,
    }  # fmt: skip


def _first(channel: Channel) -> list[Any]:
    values = channel.data
    if is_text(channel.dtype):
        return values[:FIRST].tolist()
    flat = np.ascontiguousarray(values).reshape(-1)[:FIRST]
    if channel.dtype == "bool":
        flat = flat.view(np.uint8)
    plain = flat.astype(np.float64) if flat.dtype.kind not in "iu" else flat
    return [each if np.isfinite(each) else _name_of(each) for each in plain.tolist()]


def _name_of(value: float) -> str:
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes(rows: ChannelRows, start: int, end: int) -> bytes:
    """Rows as they are stored; text as its bytes, whether it lies in one shard or in chunks."""
    if isinstance(rows, TextRows):
        rows.rows(start, end)
        ends = [0, *rows.ends.rows(0, rows.length).tolist()]
        return rows.data.rows(ends[start], ends[end]).tobytes()
    if is_text(rows.spec.dtype):
        starts, parts = rows.starts, []
        for index, (low, high) in enumerate(itertools.pairwise(starts)):
            if low < end and high > start:
                parts.append(_bytes(rows.open_part(index), max(start, low) - low, min(end, high) - low))
        return b"".join(parts)
    return np.ascontiguousarray(rows.rows(start, end)).tobytes()


def _signal(name: str, signal: Any, packed: PackedSource) -> dict[str, Any]:
    stated = packed.shard.read_json("meta/directory")["signals"][name]
    kind, dtype = (stated["kind"], stated["dtype"]) if isinstance(stated, dict) else (None, None)
    found: dict[str, Any] = {"name": name, "kind": kind, "dtype": dtype}
    if isinstance(signal, BlockSignal):
        is_ragged = signal.meta.rows is not None
        values, offsets = signal.flat() if is_ragged else (np.ascontiguousarray(signal.values()), None)
        found |= {
            "shape": [len(signal), *values.shape[1:]],
            **({"offsets": _sha256(offsets)} if is_ragged else {}),
            "sha256": _sha256(values),
            "times": _sha256(np.array(signal.timestamps)),
        }
    elif isinstance(signal, SimpleSignal):
        found["table"] = _sha256(packed.shard.read(signal.path))
    elif isinstance(signal, VideoSignal):
        found["video"] = _sha256(packed.shard.read(signal.path))
        found["frames"] = _sha256(packed.shard.read(signal.frames_path))
    meta = signal.meta
    return {**found, "role": meta.role, "of": meta.of, "model": meta.model}


def _sha256(data: Any) -> str:
    raw = np.ascontiguousarray(data).tobytes() if isinstance(data, np.ndarray) else bytes(data)
    return hashlib.sha256(raw).hexdigest()
