"""Every rule of `warp check` on data that breaks it, and none on data that does not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.cli.main import main
from warpdata.episodes.check.report import RULES, SET_RULES
from warpdata.formats.episodedir.documents import meta_bytes, read_meta
from warpdata.formats.wshard import ShardWriter
from warpdata.formats.wshard.layout import TIMESTAMPS_NS
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import verify_shard

COUNT = 40


def clean(root: Path, *, until: int = COUNT, skip: str = "", **other: Callable[[int], Any]) -> Path:
    """An episode with every kind of signal; `other` replaces or adds signals."""
    made: dict[str, Callable[[int], Any]] = {
        "state": lambda i: np.array([i, -i * 1e12], "f8"),
        "action": lambda i: float(i % 7),
        "count": lambda i: i,
        "flag": lambda i: True,
        "events": lambda i: f"event {i}",
        "blob": lambda i: bytes([i]),
        "cam": lambda i: np.full((16, 16, 3), i * 6, np.uint8),
        "depth": lambda i: np.full((8, 8), i * 100, np.uint16),
        **other,
    }
    with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
        for i in range(until):
            for name, value in made.items():
                if name != skip:
                    writer.append(name, value(i), i * 33_333_333 + i % 3)
    return Path(writer.path)


def of_times(root: Path, times: list[int]) -> Path:
    with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
        for i, ts_ns in enumerate(times):
            writer.append("action", float(i), ts_ns)
    return Path(writer.path)


def uneven(root: Path, gap: int = 0) -> Path:
    pauses = np.tile([10, 25], 20)
    pauses[20] += gap
    return of_times(root, np.cumsum(pauses).tolist())


def truncated(root: Path) -> Path:
    folder = clean(root)
    os.truncate(folder / "state.parquet", 100)
    return folder


def missing(root: Path) -> Path:
    folder = clean(root)
    (folder / "count.parquet").unlink()
    return folder


def disordered(root: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = root / f"{0:012d}" / f"{0:012d}"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text("{}")
    pq.write_table(pa.table({"timestamp": [1, 3, 2], "value": [1.0, 2.0, 3.0]}), folder / "action.parquet")
    return folder


def falling(root: Path) -> Path:
    """A shard of another program whose clock was set back: every byte is as it was stored."""
    path = root / "e.wshard"
    with commit_file(path) as out:
        writer = ShardWriter(out, ["meta/wshard", "meta/episode", "meta/channels", "action/a", TIMESTAMPS_NS])
        writer.add_bytes("meta/wshard", dump_json({"version": 1}))
        timebase = {"type": "timestamps_ns"}
        writer.add_bytes("meta/episode", dump_json({"episode_id": "e", "length_T": 3, "timebase": timebase}))
        channel = {"id": "a", "dtype": "f32", "shape": [], "signal_block": "action/a"}
        writer.add_bytes("meta/channels", dump_json({"channels": [channel]}))
        writer.add_bytes("action/a", np.arange(3, dtype="f4").tobytes())
        writer.add_bytes(TIMESTAMPS_NS, np.array([5, 9, 7], np.int64).tobytes())
        writer.finish()
    assert not any(each.is_damage for each in verify_shard(path))
    return path


def fewer_rows(root: Path) -> Path:
    """An index that lost its last rows: its checksum is wrong too, but the reason is said."""
    import pyarrow.parquet as pq

    folder = clean(root)
    table = pq.read_table(folder / "cam.frames.parquet")
    pq.write_table(table.slice(0, COUNT - 3), folder / "cam.frames.parquet")
    return folder


def wrong_statistics(root: Path) -> Path:
    folder = clean(root)
    meta = read_meta(folder)
    meta["signals"]["state"]["values"]["max"][0] += 1
    (folder / "meta.json").write_bytes(meta_bytes(meta))
    return folder


def bad_edit(root: Path) -> Path:
    folder = clean(root)
    wd.LocalDataset(root).edits.drop(0)
    path = root / "edits.jsonl"
    path.write_bytes(path.read_bytes().replace(b"drop", b"crop"))
    return folder


def unfinished(root: Path) -> Path:
    clean(root)
    pid = os.fork()
    if pid == 0:
        try:
            wd.LocalDatasetWriter(root).new_episode().append("action", 1.0, 1)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return root


def interrupted(root: Path) -> Path:
    with pytest.raises(ZeroDivisionError):
        clean(root, action=lambda i: 1.0 / (20 - i))
    return root


def dropped(root: Path) -> Path:
    folder = clean(root)
    meta = read_meta(folder)
    meta["signals"]["cam"] |= {"dropped_frames": 3, "drops": [[101, 105, 3]]}
    (folder / "meta.json").write_bytes(meta_bytes(meta))
    return folder


def empty(root: Path) -> Path:
    with wd.LocalDatasetWriter(root).new_episode():
        pass
    return root


BROKEN: dict[str, list[Callable[[Path], Path]]] = {
    "damaged-file": [truncated, missing],
    "clock-order": [disordered],
    "falling-times": [falling],
    "video-index": [fewer_rows],
    "statistics": [wrong_statistics],
    "edits": [bad_edit],
    "gap": [lambda root: of_times(root, [i * 10 + (500 if i > 20 else 0) for i in range(40)])],
    "jitter": [uneven, lambda root: uneven(root, gap=4000)],
    "frozen-camera": [lambda root: clean(root, cam=lambda i: np.full((16, 16, 3), min(i, 5) * 6, np.uint8))],
    "repeated-frames": [lambda root: clean(root, cam=lambda i: np.full((16, 16, 3), i // 3 * 6, np.uint8))],
    "nan": [lambda root: clean(root, bad=lambda i: float("nan") if i == 7 else float(i)),
            lambda root: clean(root, bad=lambda i: np.array([i, np.inf if i == 7 else i], "f4"))],
    "constant-channel": [lambda root: clean(root, stuck=lambda i: np.array([i, 3.0]))],
    "no-actions": [lambda root: clean(root, skip="action")],
    "dropped-frames": [dropped],
    "empty-episode": [empty],
    "unfinished": [unfinished],
    "interrupted": [interrupted],
}  # fmt: skip


@pytest.mark.parametrize(("rule", "make"), [(rule, make) for rule in BROKEN for make in BROKEN[rule]])
def test_a_rule_is_found(tmp_path: Path, rule: str, make: Callable[[Path], Path]) -> None:
    make(tmp_path)
    report = wd.check_dataset(tmp_path)
    found = {each.rule for each in report.findings}
    assert rule in found
    assert report.is_damaged == (RULES[rule][0] == "damaged")
    expected = {"video-index": {"damaged-file", "video-index"}, "jitter": found & {"gap", "jitter"}}
    assert found == expected.get(rule, {rule})


def test_every_rule_has_data_that_breaks_it() -> None:
    assert set(BROKEN) == set(RULES) - set(SET_RULES)  # those are in tests/episodes/test_check_set.py


def test_good_data_has_no_findings(tmp_path: Path) -> None:
    for _ in range(2):
        clean(tmp_path)
    for deep in (False, True):
        assert wd.check_dataset(tmp_path, deep=deep).findings == []


def test_a_gap_does_not_hide_jitter(tmp_path: Path) -> None:
    uneven(tmp_path, gap=4000)
    assert {each.rule for each in wd.check_dataset(tmp_path).findings} == {"gap", "jitter"}


def test_one_damaged_episode_does_not_stop_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing(tmp_path)
    clean(tmp_path, skip="action")
    assert main(["check", str(tmp_path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["by_rule"] == {"damaged-file": 1, "no-actions": 1}
    assert {each["severity"] for each in report["findings"]} == {"damaged", "warning"}
    [damaged] = [each for each in report["findings"] if each["rule"] == "damaged-file"]
    assert "count.parquet" in damaged["message"]


def packed(root: Path) -> Path:
    """The episode of a root as one shard in a folder of its own."""
    target = root / "shards" / "e.wshard"
    target.parent.mkdir()
    return wd.pack_episode(next((root / f"{0:012d}").iterdir()), target)


PACKABLE = (
    "gap",
    "jitter",
    "frozen-camera",
    "nan",
    "constant-channel",
    "no-actions",
    "empty-episode",
    "interrupted",
)


@pytest.mark.parametrize("rule", PACKABLE)
def test_rules_hold_in_a_shard_and_over_http(tmp_path: Path, rule: str) -> None:
    make = BROKEN[rule][0]
    make(tmp_path)
    expected = {(each.rule, each.signal) for each in wd.check_dataset(tmp_path).findings}
    shard = packed(tmp_path)
    assert {(each.rule, each.signal) for each in wd.check_dataset(shard).findings} == expected
    assert {(each.rule, each.signal) for each in wd.check_dataset(shard.parent).findings} == expected
    with run_http(tmp_path) as server:
        for place in ("shards/e.wshard", f"{0:012d}/{0:012d}"):
            found = wd.check_dataset(f"{server.url}/{place}").findings
            assert {(each.rule, each.signal) for each in found} == expected


def test_good_data_is_good_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = clean(tmp_path)
    shard = packed(tmp_path)
    episode = wd.load_wshard(shard)
    steps = wd.WShardEpisode("steps", length=30)
    for lane, name, values in (
        (steps.observations, "x", np.arange(30.0)),
        (steps.actions, "y", np.arange(30) % 5),
    ):
        lane[name] = wd.Channel(name, values)
    steps.observations["rgb"] = wd.Channel(
        "rgb", np.arange(30, dtype="u1").repeat(48).reshape(30, 4, 4, 3), about={"kind": "image"}
    )
    listed = wd.chunk_episode(steps, tmp_path / "chunks", 10)
    assert episode.id
    assert listed.path is not None
    with run_http(tmp_path) as server:
        there = [f"{server.url}/{each.relative_to(tmp_path)}" for each in (folder, shard, listed.path)]
        for place in (tmp_path, folder, shard, listed.path, listed.path.parent, f"file://{tmp_path}", *there):
            report = wd.check_dataset(place, deep=True)
            assert (report.episodes, report.findings) == (1, []), place
            if place not in (tmp_path, f"file://{tmp_path}", listed.path.parent):
                assert main(["show", str(place)]) == 0
                assert main(["replay", "--fast", str(place)]) == 0
        assert main(["check", f"{server.url}/absent"]) == 1
    assert "error[not_found]" in capsys.readouterr().err


@pytest.mark.parametrize("block", ["video/cam.mp4", "aux/frames/cam", "aux/table/events", "meta/directory"])
def test_a_damaged_block_of_a_shard_is_found(tmp_path: Path, block: str) -> None:
    clean(tmp_path)
    shard = packed(tmp_path)
    place = ShardReader.open(shard).block(block)
    data = bytearray(shard.read_bytes())
    data[place.data_offset + place.disk_size // 2] ^= 1
    shard.write_bytes(data)
    report = wd.check_dataset(shard)
    assert [each.rule for each in report.findings] == ["damaged-file"]
    assert main(["check", str(shard)]) == 3
    with run_http(shard.parent) as server:
        assert main(["check", f"{server.url}/e.wshard"]) == 3


def test_a_changed_byte_of_a_video_is_found_without_decoding(tmp_path: Path) -> None:
    video = clean(tmp_path) / "cam.mp4"
    data = bytearray(video.read_bytes())
    data[len(data) // 2] ^= 1
    video.write_bytes(data)
    [found] = wd.check_dataset(tmp_path).findings
    assert (found.rule, found.signal) == ("damaged-file", "cam")
