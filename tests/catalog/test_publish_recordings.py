"""Publishing recordings: every form is recognised, ids and edits are kept, only new ones are sent, long ones cut."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.test_video import number_in, scene
from warpdata.cli.main import main as warp
from warpdata.errors import BadMagicError, DatasetError

STEPS = 24
STEP_NS = 10_000_000


def record(root: Path, number: int, *, camera: bool = False, steps: bool = True) -> None:
    with wd.record(root, static={"number": number, "success": number > 0}, clock="simulated") as rec:
        for k in range(STEPS):
            if steps:
                rec.step({"x": [float(k), number]}, {"u": float(-k)}, reward=1.0, ts_ns=k * STEP_NS)
            else:
                rec.append("x", [float(k), number], k * STEP_NS)
            rec.append("imu", np.arange(3.0) + k, k * STEP_NS + 3_000)
            if camera:
                rec.append("cam", scene(k, 32, 48), k * STEP_NS + 5_000)
            if k % 7 == 0:
                rec.append("note", f"at {k}", k * STEP_NS + 1)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    return tmp_path


def published(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert warp(["publish", *words, "--json"]) == 0, capsys.readouterr()
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def forms(here: Path) -> dict[str, list[str]]:
    """Episode 1 of a root in every form that can be published, and the root itself."""
    episode = wd.open("root#1")
    (here / "shards").mkdir()
    wd.pack_episode(episode, here / "shards" / "one.wshard")
    wd.pack_episode(episode, here / "alone.wshard")
    wd.save_wshard(episode.tensors, here / "by_step.wshard")
    chunks = wd.chunk_episode(episode.tensors, here / "chunks", 10)
    return {
        "root": ["root"],
        "directory": ["root/000000000000/000000000001"],
        "a folder of shards": ["shards"],
        "a packed shard": ["alone.wshard"],
        "a shard by step": ["by_step.wshard"],
        "a folder of chunks": ["chunks"],
        "a chunk list": [str(chunks.path)],
    }


def test_every_form_is_recognised(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        record(here / "root", number)
    for number, (form, sources) in enumerate(forms(here).items()):
        published(capsys, f"lab/x{number}", *sources)
        with wd.dataset(f"lab/x{number}") as ds:
            episodes = ds.episodes
            assert episodes.ids == (["000000000000"] if form == "root" else []) + ["000000000001"], form
            assert episodes[-1].steps.actions["u"].data.tolist() == [-float(k) for k in range(STEPS)], form
            rows = ds.sql("select id, length, success, total_reward, bytes from episodes order by id")
            last = rows.arrow().to_pylist()[-1]
            assert (last["id"], last["length"], last["success"]) == ("000000000001", STEPS, True), form
            assert (last["total_reward"], last["bytes"] > 500) == (STEPS, True)


def test_other_kinds_are_recognised_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(here / "root", 0)
    with wd.CorpusWriter("corpus", 4) as corpus:
        corpus.append(np.ones((10, 4)))
    with wd.VectorStore.create("v.rvf", dim=4) as store:
        store.add(np.ones((2, 4), np.float32))
    (here / "rows.csv").write_text("a,b\n1,2\n")
    published(capsys, "lab/all", "root", "corpus", "v.rvf", "rows.csv")
    with wd.dataset("lab/all") as ds:
        assert (len(ds.episodes), ds.corpus().total_rows, len(ds.vectors())) == (1, 10, 2)
        assert ds.table("main").head(1).to_pylist() == [{"a": 1, "b": 2}]


def test_unknown_kinds_are_an_error_that_names_what_is_known(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "photo.jpeg").write_bytes(b"\xff\xd8 no shard")
    (here / "photos").mkdir()
    (here / "photos" / "a.jpeg").write_bytes(b"1")
    for source in ("photo.jpeg", "photos"):
        assert warp(["publish", "lab/x", source]) == 1
        err = capsys.readouterr().err
        assert "a .wshard, a chunk list" in err
        with wd.DatasetBuilder("lab/x") as builder, pytest.raises(BadMagicError) as caught:
            builder.add_episodes("demo", source)
        assert "a folder of .wshard" in caught.value.hint
    with (
        wd.DatasetBuilder("lab/x") as builder,
        pytest.raises(ValueError, match="Did you mean 'wshard_episodes'"),
    ):
        builder.add_artifact("demo", "photos", kind="wshard_episode")
    assert warp(["publish", "lab/x", "lab/y"]) == 2
    assert "warp copy" in capsys.readouterr().err
    assert warp(["publish", "lab/x"]) == 1
    assert not (here / "catalog" / "datasets").exists()


def test_only_new_episodes_are_sent(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        record(here / "root", number, camera=True)
    first = published(capsys, "lab/x", "root")
    assert first["blobs_sent"] == 3 + 2  # three episodes, the table and its guide
    again = published(capsys, "lab/x", "root")
    assert (again["blobs_sent"], again["is_new"]) == (0, False)
    record(here / "root", 3, camera=True)
    wd.open("root").edits.set_static(1, "judged", "checked")
    more = published(capsys, "lab/x", "root")
    assert more["blobs_sent"] == 2 + 2  # the new one and the edited one
    assert wd.open_episodes("lab/x").ids == [f"{n:012d}" for n in range(4)]


def test_the_edits_of_a_version_can_be_seen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(3):
        record(here / "root", number)
    edits = wd.open("root").edits
    edits.drop(0)
    edits.set_static(1, "task", "place")
    edits.split(2, 5 * STEP_NS)
    published(capsys, "lab/x", "root")
    with wd.dataset("lab/x") as ds:
        rows = {row["id"]: row for row in ds.table("episodes").head(9).to_pylist()}
        assert list(rows) == ["000000000001", "000000000002-1", "000000000002-2"]
        assert json.loads(rows["000000000001"]["edited"])["static"] == {"task": "place"}
        assert json.loads(rows["000000000002-2"]["edited"])["parts"][0]["start_ns"] == 5 * STEP_NS
        assert all(row["flags"] == ["edited"] for row in rows.values())
        ops = [each["op"] for each in ds.manifest.metadata["edits"]["recordings"]]
    assert ops == ["drop", "set_static", "split"]
    assert warp(["inspect", "lab/x"]) == 0
    assert 'edit of recordings: {"episode": "000000000000", "op": "drop"' in capsys.readouterr().out
    assert warp(["list", "lab/x"]) == 0
    assert "edited" in capsys.readouterr().out


def check_same(long: wd.Episode, whole: wd.Episode) -> None:
    assert type(long) is wd.Episode
    assert list(long.signals) == list(whole.signals)
    assert dict(long.static) == dict(whole.static)
    assert (long.id, long.first_ts_ns, long.last_ts_ns) == (whole.id, whole.first_ts_ns, whole.last_ts_ns)
    for name, signal in whole.signals.items():
        assert long[name].meta == signal.meta, name
        assert np.array_equal(long[name].times_ns, signal.times_ns), name
        assert np.array_equal(long[name].values(), signal.values()), name


@pytest.mark.parametrize("camera", [False, True])
def test_long_episodes_are_published_as_chunks_and_open_as_one(here: Path, camera: bool) -> None:
    record(here / "root", 0, camera=camera)
    whole = wd.open("root#0")
    with wd.DatasetBuilder("lab/long") as builder:
        builder.add_episodes("demo", "root", chunk_bytes=600).publish()
    with wd.dataset("lab/long") as ds:
        names = list(ds.artifact("demo").members())
        assert len(names) > 3
        assert ds.episodes.ids == ["000000000000"]
        assert ds.sql("select length from episodes").arrow().to_pylist() == [{"length": STEPS}]
        episode = ds.episodes[0]
        check_same(episode, whole)
        assert episode.steps.length == STEPS
        assert episode.steps.actions["u"][7:19].tolist() == [-float(k) for k in range(7, 19)]
        assert (episode.steps.clock, episode.steps.outcome) == (whole.steps.clock, whole.steps.outcome)
        check_same(pickle.loads(pickle.dumps(episode)), whole)
        if camera:
            assert number_in(episode["cam"][STEPS - 2][0]) == STEPS - 2
    # Each chunk is an episode that every program of the format reads by step.
    with wd.dataset("lab/long") as ds:
        chunks = wd.load_wshard(ds.artifact("demo").member_reader("000000000000_chunk_0001.wshard"))
        assert chunks.chunk_index == 1
        assert set(chunks.actions) == {"u"}
        assert chunks.rewards.data.tolist() == [1.0] * chunks.length


def test_a_long_recording_without_steps_is_cut_in_time(here: Path) -> None:
    record(here / "root", 0, camera=True, steps=False)
    with wd.DatasetBuilder("lab/long") as builder:
        builder.add_episodes("demo", "root", chunk_bytes=800).publish()
    with wd.dataset("lab/long") as ds:
        assert len(list(ds.artifact("demo").members())) > 3
        check_same(ds.episodes[0], wd.open("root#0"))


def test_a_long_shard_is_cut_too(here: Path) -> None:
    record(here / "root", 0, camera=True)
    wd.pack_episode(wd.open("root#0"), "packed.wshard")
    wd.save_wshard(wd.open("root#0").tensors, "by_step.wshard")
    for name in ("packed", "by_step"):
        with wd.DatasetBuilder(f"lab/{name}") as builder:
            builder.add_episodes("demo", f"{name}.wshard", chunk_bytes="1kB").publish()
        with wd.dataset(f"lab/{name}") as ds:
            assert len(list(ds.artifact("demo").members())) > 2
            check_same(ds.episodes[0], wd.open_episode(f"{name}.wshard"))


def test_rewards_that_come_with_the_next_observation_stay_with_their_step(here: Path) -> None:
    with wd.DiskEpisodeWriter(here / "ep") as writer:
        for k in range(12):
            writer.append("action/u", float(k), k * 100)
            writer.append("reward", 10.0 + k, k * 100 + 100)
    whole = wd.open_episode(here / "ep")
    assert whole.steps.outcome == "next"
    with wd.DatasetBuilder("lab/next") as builder:
        builder.add_episodes("demo", "ep", chunk_bytes=40).publish()
    episode = wd.open("lab/next#ep")
    assert episode.steps.outcome == "next"
    assert episode.steps.rewards.data.tolist() == [10.0 + k for k in range(12)]
    check_same(episode, whole)


def test_two_episodes_of_one_name_are_refused(here: Path) -> None:
    for folder in ("a", "b"):
        record(here / folder, 0)
    with (
        wd.DatasetBuilder("lab/x") as builder,
        pytest.raises(DatasetError, match="two recordings are called"),
    ):
        builder.add_episodes("demo", ["a", "b"])
