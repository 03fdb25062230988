"""A dataset root: reading, listing, edits with undo, checks, packing, both views of a shard."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.episodes.check.report import RULES
from warpdata.episodes.collection import local as listing
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    FormatError,
    TimeRangeError,
    TimestampOrderError,
)
from warpdata.formats.wshard.reader import ShardReader


def record(root: Path, start: int = 0, count: int = 30, **signals: Any) -> Path:
    with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
        writer.set_static("task", f"from {start}")
        for i in range(count):
            ts_ns = start + i * 10_000_000
            writer.append("state", np.array([i, -i], "f4"), ts_ns)
            writer.append("action/joint", float(i), ts_ns)
            for name, make in signals.items():
                writer.append(name, make(i), ts_ns)
    return writer.path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for e in range(4):
        record(tmp_path / "root", e * 10**9)
    return tmp_path / "root"


def test_reads_like_a_list(root: Path) -> None:
    dataset = wd.LocalDataset(root)
    assert len(dataset) == 4
    assert dataset.ids == [f"{n:012d}" for n in range(4)]
    assert dataset[-1].static["task"] == "from 3000000000"
    assert [e.static["task"] for e in dataset[1:3]] == ["from 1000000000", "from 2000000000"]
    assert len(dataset[[3, 0, 0]]) == len(dataset[np.array([1, 2, 3])]) == 3
    assert len(dataset[np.uint8(2)]["state"]) == 30
    assert dataset["2"].id == dataset["000000000002"].id == "000000000002"
    for bad in (1.0, True, [True, False], None):
        with pytest.raises(TypeError):
            dataset[bad]  # type: ignore[call-overload]
    for far in (4, -5):
        with pytest.raises(IndexError):
            dataset[far]
    again = pickle.loads(pickle.dumps(dataset))
    assert again[2]["state"].values().tolist() == dataset[2]["state"].values().tolist()
    assert pickle.loads(pickle.dumps(dataset[1])).static["task"] == "from 1000000000"
    assert dataset[1]["state"] is dataset[1]["state"]
    with pytest.raises(BlobNotFoundError):
        wd.LocalDataset(root / "absent")
    with pytest.raises(KeyError):
        dataset.open(77)


def test_the_listing_is_cached_and_never_stale(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_SETTLED_NS", 0)
    assert len(wd.LocalDataset(root)) == 4
    assert (root / ".listing.json").exists()
    looked: list[str] = []
    original = listing._state
    monkeypatch.setattr(listing, "_state", lambda folder: looked.append(folder) or original(folder))
    assert len(wd.LocalDataset(root)) == 4
    assert looked == []
    record(root)
    assert len(wd.LocalDataset(root)) == 5
    shutil.rmtree(root / "000000000000" / "000000000001")
    assert wd.LocalDataset(root).ids == [f"{n:012d}" for n in (0, 2, 3, 4)]
    (root / ".listing.json").write_text("garbage")
    assert len(wd.LocalDataset(root)) == 4
    body = json.loads((root / ".listing.json").read_text())
    body["blocks"]["000000000000"]["finished"] = [[0, 900]]
    (root / ".listing.json").write_text(json.dumps(body))
    assert len(wd.LocalDataset(root)) == 4


def test_an_episode_finished_later_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_SETTLED_NS", 0)
    writer = wd.LocalDatasetWriter(tmp_path).new_episode()
    writer.append("x", 1, 0)
    dataset = wd.LocalDataset(tmp_path)
    assert (len(dataset), len(dataset.unfinished)) == (0, 1)
    writer.close()
    dataset.refresh()
    assert (len(dataset), len(dataset.unfinished)) == (1, 0)


def test_edits_change_the_view_and_can_be_undone(root: Path) -> None:
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    dataset = wd.LocalDataset(root)
    edits = dataset.edits
    assert edits.drop(1, dry_run=True).seq is None
    assert not (root / "edits.jsonl").exists()
    edits.drop(1)
    edits.set_static("2", "task", {"new": [1, b"\x01"]})
    edits.trim(0, 50_000_000, 100_000_000)
    edits.split(3, 3_150_000_000)
    dataset.refresh()
    assert dataset.ids == ["000000000000", "000000000002", "000000000003-1", "000000000003-2"]
    assert dataset[0]["state"].timestamps.tolist() == [50_000_000 + i * 10_000_000 for i in range(5)]
    assert dataset[1].static["task"] == {"new": [1, b"\x01"]}
    assert [len(dataset[i]["state"]) for i in (2, 3)] == [15, 15]
    assert "edited" in dataset[2].meta
    edits.undrop(1)
    edits.concat(["000000000003-1", "000000000003-2"])
    edits.concat([1, 0], gap_ns=5)
    dataset.refresh()
    assert dataset.ids == ["000000000001+000000000000", "000000000002", "000000000003-1+000000000003-2"]
    assert len(dataset[2]["state"]) == 30
    joined = dataset[0]["state"]
    assert len(joined) == 35
    assert joined.timestamps[30] - joined.timestamps[29] == 5
    assert pickle.loads(pickle.dumps(dataset[0]))["state"].values().shape == (35, 2)
    assert wd.LocalDataset(root, edited=False).ids == [f"{n:012d}" for n in range(4)]
    while True:
        try:
            edits.undo()
        except ValueError:
            break
    dataset.refresh()
    assert dataset.ids == [f"{n:012d}" for n in range(4)]
    assert dataset[2].static["task"] == "from 2000000000"
    now = {
        p: p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and p.name not in ("edits.jsonl", ".listing.json")
    }
    assert now == {p: data for p, data in before.items() if p.name != ".listing.json"}


def test_processes_may_edit_one_root_at_once(root: Path) -> None:
    def work(number: int) -> None:
        for i in range(20):
            wd.LocalDataset(root).edits.set_static(number, "note", i)

    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                work(number)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    dataset = wd.LocalDataset(root)
    assert [edit["seq"] for edit in dataset.edits.log] == list(range(1, 61))
    assert [episode.static.get("note") for episode in dataset] == [19, 19, 19, None]


def test_impossible_edits_are_refused_and_change_nothing(root: Path) -> None:
    edits = wd.LocalDataset(root).edits
    for call, error in [
        (lambda: edits.drop(9), KeyError), (lambda: edits.drop("000000000003-1"), KeyError),
        (lambda: edits.trim(0, 5, 5), ValueError), (lambda: edits.trim(0, 1.5, None), TypeError),
        (lambda: edits.concat([0]), ValueError), (lambda: edits.concat([0, 0]), ValueError),
        (lambda: edits.concat([1, 0]), TimestampOrderError), (lambda: edits.undo(), ValueError),
        (lambda: edits.set_static(0, "../x", 1), ValueError),
        (lambda: edits.set_static(0, "x", float("nan")), ValueError),
        (lambda: edits.undo(3), ValueError), (lambda: edits.drop(1.5), TypeError),
    ]:  # fmt: skip
        with pytest.raises(error):
            call()
    assert not (root / "edits.jsonl").exists()
    edits.split(0, 100_000_000)
    edits.drop("000000000000-1")
    with pytest.raises(KeyError):
        edits.undo(1)  # the second edit needs the first
    assert wd.LocalDataset(root).ids[0] == "000000000000-2"


def test_a_damaged_edit_is_named_and_recordings_still_open(root: Path) -> None:
    wd.LocalDataset(root).edits.drop(0)
    path = root / "edits.jsonl"
    path.write_bytes(path.read_bytes().replace(b"drop", b"drip"))
    with pytest.raises(FormatError, match="line 1"):
        wd.LocalDataset(root)
    assert len(wd.LocalDataset(root, edited=False)) == 4
    report = wd.check_dataset(root)
    assert [f.rule for f in report.findings] == ["edits"]
    assert report.is_damaged


def rules(path: Path, **options: Any) -> dict[str, str | None]:
    return {finding.rule: finding.signal for finding in wd.check_dataset(path, **options).findings}


def test_a_good_episode_has_no_findings(root: Path) -> None:
    report = wd.check_dataset(root)
    assert report.findings == []
    assert report.episodes == 4
    assert report.to_json()["is_damaged"] is False


def test_every_rule_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as writer:
        for i in range(60):
            ts_ns = i * 10_000_000
            writer.append("gap", float(i), ts_ns + (10**9 if i > 30 else 0))
            writer.append("jitter", float(i), ts_ns + int(rng.integers(0, 9_000_000)))
            writer.append("nan", float("nan") if i == 7 else float(i), ts_ns)
            writer.append("constant", np.array([1.0, i]), ts_ns)
            writer.append("cam", np.full((16, 16, 3), 100 if i > 3 else 4 * i, np.uint8), ts_ns)
    assert rules(writer.path) == {
        "gap": "gap", "jitter": "jitter", "nan": "nan", "constant-channel": "constant",
        "frozen-camera": "cam", "no-actions": None,
    }  # fmt: skip
    assert rules(writer.path, deep=True)["frozen-camera"] == "cam"
    assert set(rules(writer.path)) <= set(RULES)


def test_damage_is_found(tmp_path: Path) -> None:
    folder = record(tmp_path, cam=lambda i: np.full((16, 16, 3), i, np.uint8))
    for file, rule, signal in [
        ("state.parquet", "damaged-file", "state"), ("cam.mp4", "damaged-file", "cam"),
        ("cam.frames.parquet", "damaged-file", "cam"), ("static.json", "damaged-file", None),
        ("meta.json", "damaged-file", None),
    ]:  # fmt: skip
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: len(data) // 2])
        found = wd.check_dataset(tmp_path)
        assert (rule, signal) in {(f.rule, f.signal) for f in found.findings if f.severity == "damaged"}
        assert found.is_damaged
        (folder / file).write_bytes(data)
    assert not wd.check_dataset(tmp_path).is_damaged


def test_wrong_statistics_and_clocks_are_found(tmp_path: Path) -> None:
    from warpdata.formats.episodedir.documents import meta_bytes, read_meta

    folder = record(tmp_path)
    meta = read_meta(folder)
    meta["signals"]["state"]["values"]["mean"][0] += 1
    (folder / "meta.json").write_bytes(meta_bytes(meta))
    assert ("statistics", "state") in rules(tmp_path).items()
    import pyarrow as pa
    import pyarrow.parquet as pq

    foreign = tmp_path / "000000000000" / "000000000001"
    foreign.mkdir()
    (foreign / "meta.json").write_text("{}")
    pq.write_table(pa.table({"timestamp": [1, 3, 2], "value": [1.0, 2.0, 3.0]}), foreign / "action.parquet")
    assert ("clock-order", "action") in rules(foreign).items()


def test_pack_and_unpack_lose_nothing(tmp_path: Path) -> None:
    folder = record(
        tmp_path, cam=lambda i: np.full((17, 23, 3), 8 * i, np.uint8), note=lambda i: f"n{i}",
        blob=lambda i: bytes([i]), flag=lambda i: i % 2 == 0, deep=lambda i: np.full((4, 4), i, np.uint16),
        **{"a/b/c/d/e": lambda i: i, "tensor": lambda i: np.full((2, 2, 2), i, "i4")},
    )  # fmt: skip
    wd.pack_episode(folder, tmp_path / "e.wshard")
    before, packed = wd.open_episode(folder), wd.open_episode(tmp_path / "e.wshard")
    assert list(packed.signals) == list(before.signals)
    assert dict(packed.static) == dict(before.static)
    assert dict(packed.meta) == dict(before.meta)
    for name, signal in before.signals.items():
        assert np.array_equal(packed[name].values(), signal.values()), name
        assert packed[name].timestamps.tolist() == signal.timestamps.tolist()
        assert packed[name].meta == signal.meta
    assert packed.time[50_000_000]["note"] == "n5"
    wd.unpack_episode(tmp_path / "e.wshard", tmp_path / "again")
    files = {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert {
        p.relative_to(tmp_path / "again"): p.read_bytes()
        for p in (tmp_path / "again").rglob("*")
        if p.is_file()
    } == files
    assert wd.load_wshard(tmp_path / "e.wshard").observations["state"].data.shape == (30, 2)


def test_packing_a_long_video_takes_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 800, 1000), np.uint8)
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i, frame in enumerate(noise):
            writer.append("cam", frame, i)
    assert (tmp_path / "ep" / "cam.mkv").stat().st_size > 9_000_000
    asked: list[int] = []
    original = FileRangeReader.read

    def watched(self: FileRangeReader, start: int, end: int) -> memoryview:
        asked.append(end - start)
        return original(self, start, end)

    monkeypatch.setattr(FileRangeReader, "read", watched)
    wd.pack_episode(tmp_path / "ep", tmp_path / "e.wshard")
    wd.unpack_episode(tmp_path / "e.wshard", tmp_path / "again")
    assert max(asked) <= 4 << 20
    assert np.array_equal(wd.open_episode(tmp_path / "again")["cam"].values(), noise)


def test_damage_inside_a_shard_is_not_unpacked(tmp_path: Path) -> None:
    folder = record(tmp_path, cam=lambda i: np.full((16, 16, 3), 8 * i, np.uint8))
    wd.pack_episode(folder, tmp_path / "e.wshard")
    shard = ShardReader.open(tmp_path / "e.wshard")
    data = bytearray((tmp_path / "e.wshard").read_bytes())
    data[shard.block("video/cam.mp4").data_offset + 700] ^= 1
    (tmp_path / "e.wshard").write_bytes(data)
    with pytest.raises(ChecksumError, match="video/cam"):
        wd.unpack_episode(tmp_path / "e.wshard", tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_shard_has_two_views(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("e1", "Env", 5)
    episode.observations["state"] = np.arange(10, dtype="f4").reshape(5, 2)
    episode.actions["ctrl"] = np.arange(5, dtype="f4")
    episode.omens["state/model"] = np.ones((5, 2), "f4")
    episode.rewards = np.ones(5, "f4")
    episode.metadata = {"task": "pick"}
    wd.save_wshard(episode, tmp_path / "e.wshard")
    opened = wd.open_episode(tmp_path / "e.wshard")
    assert isinstance(opened, wd.Episode)
    assert {name: signal.meta.role for name, signal in opened.signals.items()} == {
        "state": "observation", "ctrl": "action", "omen/state/model": "prediction", "reward": "reward"
    }  # fmt: skip
    assert (opened["omen/state/model"].meta.of, opened["omen/state/model"].meta.model) == ("state", "model")
    assert opened["task"] == "pick"
    assert opened.time[70_000_000]["ctrl"] == 2.0
    assert opened["action/ctrl"] is opened["ctrl"]  # a name that carries the role still works
    assert (opened.id, opened.static["env_id"], opened.steps.length) == ("e1", "Env", 5)
    assert opened.steps.observations["state"].shape == (5, 2)
    assert opened.steps.predictions["state/model"].data.tolist() == [[1, 1]] * 5
    assert opened.tensors == wd.load_wshard(tmp_path / "e.wshard")
    in_time = wd.load_wshard(tmp_path / "e.wshard").in_time
    assert in_time["state"].values().tolist() == episode.observations["state"].data.tolist()
    with pytest.raises(TimeRangeError):
        opened.time[-1]
    with pytest.raises(AttributeError):
        opened.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_replay_plays_in_order_and_on_time(root: Path) -> None:
    episode = wd.LocalDataset(root)[0]
    played: list[tuple[str, int]] = []
    slept: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    count = wd.replay(
        episode, lambda name, _, ts: played.append((name, ts)), speed=2.0, sleep=sleep, clock=lambda: now[0]
    )
    assert count == 60
    assert [ts for _, ts in played] == sorted(ts for _, ts in played)
    assert sum(slept) == pytest.approx(0.29 / 2)
    only: list[str] = []
    assert (
        wd.replay(episode, lambda name, *_: only.append(name), speed=None, signals=["state"], sleep=sleep)
        == 30
    )
    assert set(only) == {"state"}
    assert sum(slept) == pytest.approx(0.29 / 2), "as fast as it goes"
    for bad, error in (({"speed": 0}, ValueError), ({"signals": ["nope"]}, KeyError)):
        with pytest.raises(error):
            wd.replay(episode, print, **bad)  # type: ignore[arg-type]


def test_readers_survive_a_fork(root: Path) -> None:
    dataset = wd.LocalDataset(root)
    dataset[0]["state"].values()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if dataset[1]["state"].values()[3].tolist() == [3, -3] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_shard_opens_by_url(tmp_path: Path) -> None:
    from tests.servers import run_http

    folder = record(tmp_path, cam=lambda i: np.full((16, 16, 3), 8 * i, np.uint8))
    wd.pack_episode(folder, tmp_path / "e.wshard")
    with run_http(tmp_path) as server:
        remote = wd.open_episode(f"http://127.0.0.1:{server.server_port}/e.wshard")
        assert remote["state"].values().tolist() == wd.open_episode(folder)["state"].values().tolist()
        assert np.array_equal(remote["cam"][21][0], wd.open_episode(folder)["cam"][21][0])
        with pytest.raises(BlobNotFoundError):
            wd.open_episode(f"http://127.0.0.1:{server.server_port}/absent.wshard")


def test_facts_are_looked_at_without_opening_what_others_use(tmp_path: Path) -> None:
    for number in range(30):
        with wd.record(tmp_path, static={"number": number}) as rec:
            rec.append("joints", np.zeros(3), number)
    dataset = wd.LocalDataset(tmp_path)
    first = dataset[3]
    assert [each.static["number"] for each in dataset.where("number >= 28")] == [28, 29]
    assert dataset[3] is first
    assert dataset.where("number = 3")[0] is not dataset[4]
    again = wd.LocalDataset(tmp_path, edited=False)
    assert again.facts.drop_columns(["bytes"]).equals(dataset.facts.drop_columns(["bytes"]))
    assert dataset.facts.column("bytes").to_pylist() == [
        sum(file.stat().st_size for file in dataset.place(number).rglob("*") if file.is_file())
        for number in range(30)
    ]


def test_a_recording_that_changed_is_looked_at_again(tmp_path: Path) -> None:
    """Facts are kept by the mark of each meta.json, over the border of a block too."""
    for number in (0, 998, 999, 1000, 1001):
        folder = tmp_path / f"{number // 1000 * 1000:012d}" / f"{number:012d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text("{}")
        (folder / "static.json").write_text(json.dumps({"n": number}))
    assert wd.LocalDataset(tmp_path).facts.column("n").to_pylist() == [0, 998, 999, 1000, 1001]
    changed = tmp_path / f"{1000:012d}" / f"{1000:012d}"
    (changed / "static.json").write_text(json.dumps({"n": 5}))
    assert wd.LocalDataset(tmp_path).facts.column("n").to_pylist() == [0, 998, 999, 1000, 1001]
    (changed / "meta.json").write_text("{ }")
    assert wd.LocalDataset(tmp_path).facts.column("n").to_pylist() == [0, 998, 999, 5, 1001]
    (changed / "meta.json").unlink()
    assert wd.LocalDataset(tmp_path).facts.column("n").to_pylist() == [0, 998, 999, 5, 1001]


def test_asking_for_all_facts_leaves_open_episodes_open(root: Path) -> None:
    """Facts of very many episodes must neither push out those in use nor add up what all of them hold."""
    dataset = wd.open_recordings(root)
    first = dataset[0]
    _ = dataset.facts
    assert dataset[0] is first
    assert list(dataset._local._open) == [dataset.ids[0]]
