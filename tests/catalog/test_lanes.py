"""What models say about published episodes: beside them, never in their place, and never about other bytes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.catalog.test_trust import new_key
from warpdata.catalog.build.parts import publish_files
from warpdata.catalog.publish.publish import PublishOptions
from warpdata.catalog.read.episodes import LanePlace
from warpdata.errors import ConflictError, CorruptLayoutError, DatasetError, WarpError
from warpdata.formats.manifest.model import LANE_KIND

STEP_NS = 20_000_000
LANE = "prediction/joints/dreamer"


def record(root: Path, count: int = 3, length: int = 40, first: int = 0) -> Path:
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        with wd.record(root, static={"task": "reach"}, clock="simulated") as rec:
            for k in range(length):
                rec.append("joints", rng.normal(size=3).astype(np.float32), k * STEP_NS)
                if k % 2 == 0:
                    rec.append("force", np.float64(k), k * STEP_NS + 5)
    return root


def publish(root: Path, catalog: Path, **options) -> None:
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.add_episodes("demos", root)
        builder.publish(**options)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    publish(record(tmp_path / "root"), tmp_path / "catalog")
    return tmp_path / "catalog"


def late(episode: wd.Episode) -> np.ndarray:
    """The record before each."""
    values = episode["joints"].values()
    return np.concatenate([values[:1], values[:-1]])


def opened(catalog: Path, name: str = "lab/arm") -> wd.Dataset:
    return wd.dataset(name, catalog=catalog)


def blobs(catalog: Path) -> set[str]:
    return {path.name for path in (catalog / "blobs").rglob("*") if path.is_file()}


def test_predictions_stand_beside_the_truth(catalog: Path) -> None:
    before = opened(catalog)
    was = blobs(catalog)
    made = before.add_lane("dreamer", late, of="joints", message="first")
    assert (made.computed, made.resumed, made.reused, made.without) == (3, 0, 0, ())
    after = opened(catalog)
    assert after.version == made.version != before.version
    assert {s.hash for s in before.manifest.artifacts["demos"].shards} <= was
    assert after.manifest.artifacts["demos"] == before.manifest.artifacts["demos"]
    assert len(blobs(catalog) - was) == 4, "a shard for each episode, and what the lane says of itself"
    for episode in after.episodes:
        signal = episode[LANE]
        assert (signal.meta.role, signal.meta.of, signal.meta.model) == ("prediction", "joints", "dreamer")
        np.testing.assert_array_equal(signal.values(), late(episode))
        np.testing.assert_array_equal(signal.timestamps, episode["joints"].timestamps)
        assert LANE in episode
        assert LANE in episode.keys
        assert episode["force"].meta.role == "observation"
    assert LANE not in before.episodes[0], "a version is what it was"
    again = pickle.loads(pickle.dumps(after.episodes[1]))
    np.testing.assert_array_equal(again[LANE].values(), late(again))


def test_the_same_predictions_are_the_same_bytes(tmp_path: Path) -> None:
    versions = []
    root = record(tmp_path / "root")
    for name in ("one", "two"):
        publish(root, tmp_path / name)
        versions.append(opened(tmp_path / name).add_lane("dreamer", late, of="joints").version)
    assert versions[0] == versions[1]


def test_running_again_computes_nothing_and_publishes_nothing(catalog: Path) -> None:
    first = opened(catalog).add_lane("dreamer", late, of="joints")
    again = opened(catalog).add_lane("dreamer", late, of="joints")
    assert (again.computed, again.reused, again.version) == (0, 3, first.version)


def test_new_episodes_are_computed_and_old_ones_kept(catalog: Path, tmp_path: Path) -> None:
    opened(catalog).add_lane("dreamer", late, of="joints", revision="w1")
    record(tmp_path / "root", 2, first=3)
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.extend().add_episodes("demos", tmp_path / "root")
        builder.publish()
    grown = opened(catalog)
    status = grown.lane_status("dreamer")
    assert len(status.current) == 3
    assert len(status.missing) == 2
    assert not status.stale
    assert status.is_stale
    assert LANE not in grown.episodes[4]
    made = grown.add_lane("dreamer", late, of="joints", revision="w1")
    assert (made.computed, made.reused) == (2, 3)
    assert not opened(catalog).lane_status("dreamer").is_stale
    assert opened(catalog).add_lane("dreamer", late, of="joints", revision="w2").computed == 5


def test_a_changed_episode_makes_the_lane_stale_and_hides_it(catalog: Path, tmp_path: Path) -> None:
    ds = opened(catalog)
    ds.add_lane("dreamer", late, of="joints", revision="w1")
    edited = wd.open_recordings(tmp_path / "root")
    edited.edits.trim(edited.ids[1], 0, 20 * STEP_NS)
    held = opened(catalog)
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.add_episodes("demos", tmp_path / "root")
        builder.keep(held, tables=[], artifacts=["lane-dreamer"])
        builder.publish()
    now = opened(catalog)
    status = now.lane_status("dreamer")
    assert status.stale == (edited.ids[1],)
    assert len(status.current) == 2
    assert status.left_over == 1
    assert LANE not in now.episodes[1]
    assert LANE in now.episodes[0]
    made = now.add_lane("dreamer", late, of="joints", revision="w1")
    assert (made.computed, made.reused) == (1, 2)
    fixed = opened(catalog)
    assert fixed.lane_status("dreamer").left_over == 0
    assert len(fixed.episodes[1][LANE]) == len(fixed.episodes[1]["joints"]) < 40


def test_a_stopped_run_goes_on(catalog: Path) -> None:
    calls = []

    def fails_late(episode: wd.Episode) -> np.ndarray:
        calls.append(episode.id)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return late(episode)

    with pytest.raises(DatasetError, match="failed for episode"):
        opened(catalog).add_lane("dreamer", fails_late, of="joints", revision="w1")
    made = opened(catalog).add_lane("dreamer", late, of="joints", revision="w1")
    assert (made.computed, made.resumed) == (1, 2)


def test_one_run_of_a_lane_at_a_time(catalog: Path) -> None:
    """A second one would take what the first has finished, and the folder with it."""

    def meanwhile(episode: wd.Episode) -> np.ndarray:
        with pytest.raises(ConflictError, match="computed by another process"):
            opened(catalog).add_lane("late", late, of="joints", revision="1")
        return late(episode)

    made = opened(catalog).add_lane("late", meanwhile, of="joints", revision="1")
    assert made.computed == 3
    again = opened(catalog).add_lane("late", late, of="joints", revision="1")
    assert (again.computed, again.reused) == (0, 3)
    assert not list(Path(opened(catalog).access.options.cache_dir).glob("lanes/*"))


def test_what_a_stopped_run_left_damaged_is_computed_again(catalog: Path) -> None:
    def fails_late(episode: wd.Episode) -> np.ndarray:
        if episode.id == ds.episodes.ids[2]:
            raise RuntimeError
        return late(episode)

    ds = opened(catalog)
    with pytest.raises(DatasetError, match="failed for episode"):
        ds.add_lane("dreamer", fails_late, of="joints", revision="w1")
    left = sorted((Path(ds.access.options.cache_dir) / "lanes").rglob("*.wshard"))
    assert len(left) == 2
    data = bytearray(left[0].read_bytes())
    data[-5] ^= 1
    left[0].write_bytes(data)
    left[1].write_bytes(left[1].read_bytes()[:100])
    assert ds.add_lane("dreamer", late, of="joints", revision="w1").computed == 3
    for episode in opened(catalog).episodes:
        np.testing.assert_array_equal(episode[LANE].values(), late(episode))


def lane_blob(catalog: Path, member: str) -> Path:
    shards = opened(catalog).manifest.artifacts["lane-dreamer"].shards
    found = next(shard for shard in shards if shard.name == member)
    return catalog / found.key


def test_a_damaged_lane_is_an_error_and_never_a_wrong_value(catalog: Path) -> None:
    opened(catalog).add_lane("dreamer", late, of="joints")
    ds = opened(catalog)
    source = ds.episodes_source("demos")
    place = source.places()[0]
    path = lane_blob(catalog, place.lane_member)
    good = path.read_bytes()
    truth = late(ds.episodes[0])
    for at in range(0, len(good), 97):
        bad = bytearray(good)
        bad[at] ^= 0x10
        path.chmod(0o644)
        path.write_bytes(bad)
        try:
            found = opened(catalog).episodes[0][LANE]
            values, times = found.values(), found.timestamps
        except WarpError:
            continue
        np.testing.assert_array_equal(values, truth)
        assert len(times) == len(truth)
    path.write_bytes(good[:50])
    report = opened(catalog).compare_lane("dreamer")
    assert list(report.damaged) == [ds.episodes.ids[0]]
    assert report.episodes == 2
    path.unlink()
    with pytest.raises(WarpError):
        opened(catalog).episodes[0][LANE].values()
    assert len(opened(catalog).episodes[0]["joints"]) == 40, "the truth does not depend on it"


def test_predictions_about_another_episode_are_refused(catalog: Path) -> None:
    opened(catalog).add_lane("dreamer", late, of="joints")
    places = opened(catalog).episodes_source("demos").places()
    one, two = (lane_blob(catalog, place.lane_member) for place in places[:2])
    one.chmod(0o644)
    one.write_bytes(two.read_bytes())
    with pytest.raises(WarpError, match="other predictions"):
        opened(catalog).episodes[0][LANE].values()


def test_a_damaged_description_is_an_error(catalog: Path) -> None:
    opened(catalog).add_lane("dreamer", late, of="joints")
    path = lane_blob(catalog, "lane.json")
    path.chmod(0o644)
    path.write_text(path.read_text().replace("joints", "joinTs"))
    with pytest.raises(WarpError, match="sha256 mismatch"):
        _ = opened(catalog).lanes["dreamer"].of


@pytest.mark.parametrize(
    "said",
    [
        b"", b"{", b"[]", b'"lane"', b" " * (2 << 20), b"{}",
        b'{"version": 9, "name": "x", "signals": {"a": "b"}, "revision": "r"}',
        b'{"version": 1, "name": "x", "signals": [], "revision": "r"}',
        b'{"version": 1, "name": "x", "signals": {}, "revision": "r"}',
        b'{"version": 1, "name": "x", "signals": {"a": 1}, "revision": "r"}',
        b'{"version": 1, "name": "x", "signals": {"a": []}, "revision": "r"}',
        b'{"version": 1, "name": 5, "signals": {"a": "b"}, "revision": "r"}',
    ],
)  # fmt: skip
def test_a_forged_description_is_an_error(catalog: Path, tmp_path: Path, said: bytes) -> None:
    """Published by somebody, with its hash: no damage on the way, and no lane."""
    (tmp_path / "lane.json").write_bytes(said)
    publish_files(
        opened(catalog), "lane-dreamer", LANE_KIND, {"lane.json": tmp_path / "lane.json"}, PublishOptions()
    )
    ds = opened(catalog)
    assert list(ds.lanes) == ["dreamer"]
    with pytest.raises(CorruptLayoutError, match=r"lane\.json"):
        _ = ds.lanes["dreamer"].of


def test_a_lane_takes_no_part_of_another_kind(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    publish_files(opened(catalog), "lane-dreamer", "files", {"a.txt": tmp_path / "a.txt"}, PublishOptions())
    with pytest.raises(DatasetError, match="'lane-dreamer' that is no"):
        opened(catalog).add_lane("dreamer", late, of="joints")


def test_a_lane_of_a_dataset_that_is_gone(catalog: Path) -> None:
    ds = opened(catalog)
    (catalog / "datasets/lab/arm/latest.json").unlink()
    with pytest.raises(DatasetError, match="the dataset is gone"):
        ds.add_lane("dreamer", late, of="joints")


def test_errors_against_an_obvious_reference(catalog: Path) -> None:
    opened(catalog).add_lane("dreamer", late, of="joints")
    ds = opened(catalog)
    found = ds.compare_lane("dreamer", worst=3)
    off = [late(e).astype(np.float64) - e["joints"].values() for e in ds.episodes]
    joined = np.concatenate(off)
    (error,) = found.signals
    assert (error.of, error.moments, error.skipped) == ("joints", 120, 0)
    assert error.mean_abs == pytest.approx(np.abs(joined).mean())
    assert error.rms == pytest.approx(np.sqrt((joined**2).mean()))
    assert error.largest == pytest.approx(np.abs(joined).max())
    each = np.sqrt((joined**2).mean(axis=1))
    assert error.worst[0].error == pytest.approx(each.max())
    where = int(each.argmax())
    assert error.worst[0].episode_id == ds.episodes.ids[where // 40]
    assert error.worst[0].ts_ns == ds.episodes[where // 40]["joints"].timestamps[where % 40]
    assert [w.error for w in error.worst] == sorted((w.error for w in error.worst), reverse=True)
    json.dumps(found.to_json())


def test_predictions_with_times_of_their_own_and_of_several_signals(catalog: Path) -> None:
    def both(episode: wd.Episode) -> dict:
        joints = episode["joints"]
        return {"joints": joints[::4], "force": np.full(len(episode["force"]), np.nan)}

    opened(catalog).add_lane("dreamer", both, of=["joints", "force"])
    ds = opened(catalog)
    assert len(ds.episodes[0][LANE]) == 10
    by_name = {each.of: each for each in ds.compare_lane("dreamer").signals}
    assert by_name["joints"].rms == 0.0
    assert by_name["joints"].moments == 30
    assert by_name["force"].moments == 0
    assert by_name["force"].skipped == 60
    assert ds.compare_lane("dreamer").to_json()["signals"][1]["rms"] is None


def test_wrong_predictions_are_refused_by_name(catalog: Path) -> None:
    ds = opened(catalog)
    for bad, text in (
        (lambda e: np.zeros((3, 3)), "row for each of its 40"),
        (lambda e: np.zeros((40, 2)), "of shape"),
        (lambda e: np.array(["x"] * 40), "numbers"),
        (lambda e: {"joint": np.zeros((40, 3))}, "joint"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            ds.add_lane("dreamer", bad, of="joints")
    with pytest.raises(DatasetError, match="Did you mean 'joints'"):
        ds.add_lane("dreamer", late, of="joint")
    with pytest.raises(ValueError, match="not a name"):
        ds.add_lane("a/b", late, of="joints")
    for wrong in ([], ["joints", "joints"]):
        with pytest.raises(ValueError, match="each once"):
            ds.add_lane("dreamer", late, of=wrong)
    with pytest.raises(ValueError, match="a revision is a word"):
        ds.add_lane("dreamer", late, of="joints", revision="")
    with pytest.raises(TypeError, match="give a dictionary"):
        ds.add_lane("dreamer", late, of=["joints", "force"])
    with pytest.raises(DatasetError, match="no lane"):
        ds.compare_lane("dreamer")


def test_windows_know_the_predictions_they_use(catalog: Path) -> None:
    fields = {"state": wd.Field("joints", past=2)}
    plain = wd.Windows(opened(catalog).episodes, fields, anchor="joints").id
    opened(catalog).add_lane("dreamer", late, of="joints", revision="w1")
    ds = opened(catalog)
    assert wd.Windows(ds.episodes, fields, anchor="joints").id == plain, (
        "a lane that is not used changes nothing"
    )
    with_lane = {**fields, "said": wd.Field(LANE, past=2)}
    first = wd.Windows(ds.episodes, with_lane, anchor="joints")
    batch = next(iter(wd.Loader(first, batch_size=8, shuffle=False)))
    np.testing.assert_array_equal(batch["said"][1:, 1], batch["state"][1:, 0])
    ds.add_lane("dreamer", lambda e: late(e) * 2, of="joints", revision="w2")
    second = wd.Windows(opened(catalog).episodes, with_lane, anchor="joints")
    assert second.id != first.id
    with pytest.raises(ValueError, match="windows"):
        wd.Loader(second, batch_size=8).load_state_dict(wd.Loader(first, batch_size=8).state_dict())
    assert len(wd.Windows(ds.episodes, with_lane, anchor=LANE)) == 120


def test_statistics_of_predictions(catalog: Path) -> None:
    opened(catalog).add_lane("dreamer", lambda e: late(e) * 3, of="joints")
    ds = opened(catalog)
    said = np.concatenate([episode[LANE].values() for episode in ds.episodes]).astype(np.float64)
    windows = wd.Windows(ds.episodes, {"said": LANE}, anchor="joints")
    loader = wd.Loader(windows, batch_size=120, normalize="auto")
    np.testing.assert_allclose(loader.statistics["said"].mean, said.mean(axis=0), rtol=1e-5)
    assert next(iter(loader))["said"].std() == pytest.approx(1.0, rel=0.01)
    np.testing.assert_allclose(ds.episodes.stats([LANE])[LANE].mean, said.mean(axis=0), rtol=1e-5)


def test_a_signed_lane_is_trusted(tmp_path: Path, catalog: Path) -> None:
    key = new_key(tmp_path / "key.pem")
    public = opened(catalog).add_lane("dreamer", late, of="joints", sign_key=key).published.signed_by
    with wd.dataset("lab/arm", catalog=catalog, verify="require", trusted_keys=(public,)) as ds:
        assert LANE in ds.episodes[0]


def test_two_lanes_and_a_version_that_was_overtaken(catalog: Path, tmp_path: Path) -> None:
    """Somebody else published meanwhile: the lane goes on top of it."""
    old = opened(catalog)
    opened(catalog).add_lane("other", late, of="joints")
    record(tmp_path / "root", 1, first=7)
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.extend().add_episodes("demos", tmp_path / "root")
        builder.publish()
    old.add_lane("dreamer", late, of="joints")
    now = opened(catalog)
    assert len(now.episodes) == 4
    assert set(now.lanes) == {"other", "dreamer"}
    assert len(now.lane_status("dreamer").current) == 3
    assert {LANE, "prediction/joints/other"} <= set(now.episodes[0].keys)


def test_names_of_predictions_say_what_they_are_about() -> None:
    place = LanePlace("demos", "a/b.wshard", "0" * 64)
    assert place.lane_member == f"demos/a/b/{'0' * 64}.wshard"


class Later:
    """A model that is made once in each process."""

    def __call__(self, episode: wd.Episode) -> np.ndarray:
        return late(episode)


def test_processes_give_the_version_of_one(tmp_path: Path) -> None:
    root = record(tmp_path / "root", 5)
    versions = set()
    for jobs, function in ((1, late), (3, Later)):
        publish(root, tmp_path / str(jobs))
        steps: list[tuple[int, int]] = []
        made = opened(tmp_path / str(jobs)).add_lane(
            "dreamer", function, of="joints", revision="w1", jobs=jobs,
            progress=lambda *each, steps=steps: steps.append(each),
        )  # fmt: skip
        assert (made.computed, steps[-1]) == (5, (5, 5))
        versions.add(made.version)
    assert len(versions) == 1


def test_a_function_that_cannot_travel_is_told(catalog: Path) -> None:
    with pytest.raises(ValueError, match="other processes"):
        opened(catalog).add_lane("dreamer", lambda episode: late(episode), of="joints", jobs=2)
    with pytest.raises(ValueError, match="choose one"):
        opened(catalog).add_lane("dreamer", late, of="joints", jobs=2, ray=True)


def test_predictions_in_the_file_and_beside_it_read_alike(tmp_path: Path) -> None:
    """They are one idea: packed, those beside an episode lie in its file like the others."""
    made = wd.WShardEpisode(id="e", length=6)
    made.observations["joints"] = np.arange(12, dtype=np.float32).reshape(6, 2)
    made.actions["torque"] = np.zeros((6, 1), np.float32)
    made.omens["joints/inside"] = np.ones((6, 2), np.float32)
    (tmp_path / "shards").mkdir()
    wd.save_wshard(made, tmp_path / "shards" / "e.wshard")
    with wd.DatasetBuilder("lab/e", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("demo", tmp_path / "shards")
        builder.publish()
    with wd.dataset("lab/e", catalog=tmp_path / "catalog") as ds:
        ds.add_lane("beside", lambda episode: episode["joints"].values() * 2, of="joints")
    with wd.dataset("lab/e", catalog=tmp_path / "catalog") as ds:
        wd.pack_episode(ds.episodes[0], tmp_path / "packed.wshard")
        for episode in (ds.episodes[0], wd.open_episode(tmp_path / "packed.wshard")):
            found = episode.steps.predictions
            assert sorted((each.meta.of, each.meta.model) for each in found.values()) == [
                ("joints", "beside"),
                ("joints", "inside"),
            ]
            assert found["joints/inside"][:].tolist() == [[1, 1]] * 6
            np.testing.assert_array_equal(found["joints/beside"][:], made.observations["joints"].data * 2)
    assert sorted(wd.load_wshard(tmp_path / "packed.wshard").predictions) == [
        "joints/beside",
        "joints/inside",
    ]
