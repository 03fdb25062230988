"""A packed recording of any kind is a good WShard: a validator written from the documents takes it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

import warpdata as wd
from tests.episodes.test_video import foreign_episode, scene
from tests.formats.plain_validator import validate, xxh64

STEPS = 15
STEP_NS = 20_000_000


def by_step(rec: Any) -> None:
    for k in range(STEPS):
        rec.step(
            {"joints": np.arange(3, dtype=np.float32) + k, "gripper": float(k)}, {"torque": -float(k)},
            reward=0.1 * k, terminated=k == STEPS - 1, truncated=False, ts_ns=k * STEP_NS,
        )  # fmt: skip


def in_time(rec: Any) -> None:
    for k in range(STEPS):
        rec.append("imu", np.arange(6.0) + k, k * 7_000_000)
        rec.append("lidar", np.full((4, 2), k, np.uint16), k * 50_000_000 + 3)


def cameras(rec: Any) -> None:
    by_step(rec)
    for k in range(STEPS):
        rec.append("left", scene(k, 16, 32), k * STEP_NS + 11)
        rec.append("depth", np.full((8, 12), k, np.uint16), k * STEP_NS + 13)


def events(rec: Any) -> None:
    by_step(rec)
    rec.append("said", "pick the cube, bitte schön ☕", 5)
    rec.append("raw", b"\x00\xff", 6)


def final_observation(rec: Any) -> None:
    by_step(rec)
    rec.append("joints", np.zeros(3, np.float32), STEPS * STEP_NS)


def odd_types(rec: Any) -> None:
    for k in range(STEPS):
        rec.append("action/u", np.int8(k), k * 10)
        for name, value in {
            "b": np.bool_(k % 2), "h": np.float16(k), "q": np.uint64(k), "d": np.float64(k), "m": np.eye(2, dtype="f4"),
            "reward": np.float64(k) / 3, "terminated": np.uint8(k == STEPS - 1),
        }.items():  # fmt: skip
            rec.append(name, value, k * 10)


def models(rec: Any) -> None:
    rec.declare("guess", role="prediction", of="joints", model="dreamer/v2")
    rec.declare("doubt", role="uncertainty", of="joints", model="dreamer/v2")
    for k in range(STEPS):
        ts_ns = k * STEP_NS
        rec.append("guess", np.zeros(3, np.float32), ts_ns)
        rec.append("doubt", np.ones(3, np.float32), ts_ns)
    by_step(rec)


def long_names(rec: Any) -> None:
    for k in range(STEPS):
        rec.step({"a/" + "n" * 190: float(k)}, {"arm/left/" + "u" * 150: float(k)}, ts_ns=k)


def nothing(rec: Any) -> None:
    rec.append("x", 1.0, 5)


KINDS: dict[str, Callable[[Any], None]] = {
    each.__name__: each
    for each in (
        by_step, in_time, cameras, events, final_observation, odd_types, models, long_names, nothing
    )
}  # fmt: skip


def recorded(folder: Path, kind: str, **static: Any) -> Path:
    with wd.record(folder / "root", static={"task": "räumen", **static}, clock="simulated") as rec:
        KINDS[kind](rec)
    return folder / "root"


@pytest.mark.parametrize(
    ("kind", "compression"), [*((kind, None) for kind in KINDS), ("cameras", "zstd"), ("models", "lz4")]
)
def test_a_packed_recording(tmp_path: Path, kind: str, compression: str | None) -> None:
    root = recorded(tmp_path, kind)
    path = wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "e.wshard", compression)
    found = validate(path.read_bytes())
    has_steps = kind not in ("in_time", "nothing")
    assert found["episode"]["length_T"] == (STEPS if has_steps else 0)
    if kind == "by_step":
        listed = {each["signal_block"] for each in found["channels"]["channels"]}
        assert listed == {"signal/joints", "signal/gripper", "action/torque"}
        rewards = struct.unpack(f"<{STEPS}f", found["blocks"]["reward"])
        assert rewards == pytest.approx([0.1 * k for k in range(STEPS)])
        assert list(found["blocks"]["done"]) == [0] * (STEPS - 1) + [1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_edits_show(tmp_path: Path, kind: str) -> None:
    root = recorded(tmp_path, kind)
    recorded(tmp_path, kind)
    edits = wd.open(root).edits
    edits.set_static(0, "note", "geändert ✓")
    edits.concat([0, 1], gap_ns=1_000_000)
    (joined,) = wd.open(root)
    middle = (joined.first_ts_ns + joined.last_ts_ns) // 2
    edits.split(joined.id, middle)
    for episode in wd.open(root):
        validate(wd.pack_episode(episode, tmp_path / f"{episode.id}.wshard").read_bytes())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "nothing"])
def test_chunks(tmp_path: Path, kind: str) -> None:
    root = recorded(tmp_path, kind)
    with wd.DatasetBuilder("lab/x", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("demo", root, chunk_bytes=100).publish()
    with wd.dataset("lab/x", catalog=tmp_path / "catalog") as ds:
        artifact = ds.artifact("demo")
        names = [name for name in artifact.members() if "_chunk_" in name]
        assert len(names) > 1
        total = 0
        for name in sorted(names):
            reader = artifact.member_reader(name)
            episode = validate(bytes(reader.read(0, reader.size)))["episode"]
            if episode["length_T"]:
                assert episode["timestep_range"][0] == total
            total += episode["length_T"]
        assert total == (0 if kind == "in_time" else STEPS)


@pytest.mark.parametrize("name", ["ep", "e" * 200, "Küche ☕ 7", "日本語"])
def test_ids(tmp_path: Path, name: str) -> None:
    root = recorded(tmp_path, "by_step")
    path = wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "e.wshard", episode_id=name)
    assert validate(path.read_bytes())["episode"]["episode_id"] == name == wd.open(path).id


def test_a_directory_of_the_existing_program(tmp_path: Path) -> None:
    foreign_episode(tmp_path / "ep")
    validate(wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard").read_bytes())


def test_a_recording_into_one_file(tmp_path: Path) -> None:
    with wd.record(tmp_path / "e.wshard", clock="simulated") as rec:
        cameras(rec)
    assert validate((tmp_path / "e.wshard").read_bytes())["episode"]["length_T"] == STEPS


def test_the_validator_is_no_rubber_stamp(tmp_path: Path) -> None:
    root = recorded(tmp_path, "by_step")
    data = wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "e.wshard").read_bytes()
    validate(data)
    for at in (0, 4, 5, 0x0A, 0x0C, 0x28, 64, 64 + 8, 64 + 16, 64 + 24, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 0x55
        with pytest.raises((AssertionError, ValueError, KeyError)):
            validate(bytes(broken))
    for size in range(0, 200, 7):
        text = bytes(range(size % 256)) * (1 + size // 50)
        assert xxh64(text) == xxhash.xxh64_intdigest(text)
