"""Write the golden files of our own formats: `python tools/make_golden.py [FOLDER]`.

They are made by the library itself from this description and committed; a test compares them with what it
writes today.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from unittest import mock

import ml_dtypes
import numpy as np

import warpdata as wd
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.formats.journal.reader import JournalReader
from warpdata.formats.journal.writer import JournalWriter
from warpdata.formats.wshard import ShardReader

ROOT = Path(__file__).resolve().parent.parent / "tests" / "golden"


def every_dtype() -> wd.WShardEpisode:
    """One channel per element type."""
    episode = wd.WShardEpisode(id="golden_dtypes", env_id="Golden-v1", length=6)
    for name in DTYPE_NAMES:
        values = np.arange(12).reshape(6, 2) % 2 if name == "bool" else np.arange(12).reshape(6, 2)
        episode.observations[name] = values.astype(dtype_named(name).dtype)
    episode.rewards = np.linspace(0, 1, 6)
    episode.terminations = np.arange(6) == 5
    return episode


def every_lane() -> wd.WShardEpisode:
    """Actions, predictions, uncertainties, residuals, clocks, metadata."""
    steps = 10
    episode = wd.WShardEpisode(
        id="golden_lanes", env_id="Golden-v1", length=steps, metadata={"task": "reach", "seed": 7}
    )
    wave = np.sin(np.arange(steps * 3, dtype=np.float32).reshape(steps, 3))
    episode.observations["joint"] = wd.Channel("joint", wave, unit="rad")
    episode.add_modality(
        "cam0", "rgb", (np.arange(steps * 48) % 251).astype(np.uint8).reshape(steps, 4, 4, 3)
    )
    clock = np.arange(4, dtype=np.int64) * 70_000_000
    episode.observations["force"] = wd.Channel("force", np.arange(4.0, dtype=np.float64), timestamps_ns=clock)
    episode.actions["torque"] = (wave * 0.1).astype(ml_dtypes.bfloat16)
    episode.rewards = np.arange(steps, dtype=np.float32)
    episode.terminations = np.arange(steps) == steps - 1
    episode.truncations = np.zeros(steps, np.uint8)
    episode.timestamps_ns = np.arange(steps, dtype=np.int64) * 33_333_333
    episode.timebase = wd.Timebase("timestamps_ns", 30.0)
    episode.omens["joint/dreamer"] = wave + np.float32(0.01)
    episode.uncerts["joint/dreamer/std"] = np.full((steps, 3), 0.05, np.float32)
    episode.add_residual("joint")
    episode.add_residual("joint", model="dreamer")
    episode.set_latent_action("genie", np.ones((steps, 4), np.float32), np.arange(steps, dtype=np.int32))
    return episode


def compressed() -> wd.WShardEpisode:
    """Blocks that shrink."""
    episode = wd.WShardEpisode(id="golden_compressed", length=64)
    for name in ("zstd", "lz4", "seekable", "raw"):
        episode.observations[name] = np.repeat(np.arange(64, dtype=np.float32), 8).reshape(64, 8)
    return episode


def every_word() -> wd.WShardEpisode:
    """Text and JSON, names of other alphabets, rewards and flags of dtypes that need a block beside their own."""
    episode = wd.WShardEpisode(id="golden_words", env_id="Gölden-v1", length=4, about={"source": "sim"})
    episode.observations["said"] = wd.Channel("said", ["pick", "", "place ↓", "stöp"], language="en")
    episode.observations["关节/α β"] = np.arange(8, dtype=np.float32).reshape(4, 2)
    episode.actions["call"] = wd.Channel.json("call", [{"tool": "grip", "force": 0.5}, None, [1, 2], "ok"])
    episode.omens["said/llm"] = wd.Channel(
        "said/llm", ["a", "bc", "", "d"], about={"of": "said", "model": "llm"}
    )
    episode.rewards = wd.Channel("reward", np.array([0.1, 0.2, 0.3, 0.4]), unit="points")
    episode.terminations = np.array([0, 0, 0, 1], np.float32)
    episode.truncations = np.array([0, 0, 1, 0], np.int64)
    return episode


def write_shards(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wd.save_wshard(every_word(), folder / "words.wshard", overwrite=True)
    wd.save_wshard(every_dtype(), folder / "dtypes.wshard", overwrite=True)
    wd.save_wshard(every_lane(), folder / "lanes.wshard", overwrite=True)
    how = {"zstd": "zstd", "lz4": "lz4", "seekable": "zstd-seekable:3"}
    wd.save_wshard(compressed(), folder / "compressed.wshard", how, overwrite=True)
    wd.chunk_episode(every_dtype(), folder / "chunks", 4, overwrite=True)
    expected = {
        path.relative_to(folder).as_posix(): {
            name: hashlib.sha256(ShardReader.open(path).read(name)).hexdigest()
            for name in ShardReader.open(path).names
        }
        for path in sorted(folder.rglob("*.wshard"))
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def write_journals(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "steps.journal"
    path.unlink(missing_ok=True)
    with mock.patch("secrets.token_bytes", lambda size: bytes(range(size))):
        writer = JournalWriter(path, {"kind": "golden", "streams": 2}, max_record_bytes=64)
    for step in range(6):
        writer.append(step % 2, step, 1, step * 1000, bytes(range(step * 5)))
    writer.close()
    (folder / "torn.journal").write_bytes(path.read_bytes()[:-41])
    expected = {}
    for name in ("steps", "torn"):
        journal = JournalReader.open(folder / f"{name}.journal")
        scan = journal.scan()
        expected[name] = {
            "descriptor": journal.descriptor,
            "first_step": scan.records.first_step.tolist(),
            "ts_ns": scan.records.ts_ns.tolist(),
            "stream": scan.records.stream.tolist(),
            "payload_bytes": scan.records.payload_bytes.tolist(),
            "dropped_bytes": scan.dropped_bytes,
        }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    write_shards(root / "wshard")
    write_journals(root / "journal")
    print(f"wrote golden files below {root}")


if __name__ == "__main__":
    main()
