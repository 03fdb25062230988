"""What is read is decided before: references only, of one version, in runs of about a second. Needs no Ray."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from tests.ray.sets import made, publish_arm
from warpdata.errors import ConflictError, DatasetError, NoStepsError, TooLargeError
from warpdata.formats.manifest.model import PartedShards
from warpdata.ray import planning as rows
from warpdata.ray.planning import TASK_BYTES, TablePlan, WindowShape, plan_episodes, plan_windows, runs
from warpdata.timeline.source import StepClock


@pytest.fixture(scope="module")
def catalog(tmp_path_factory) -> str:
    found = str(tmp_path_factory.mktemp("catalog"))
    publish_arm(found)
    return found


@given(st.lists(st.integers(0, 3 * TASK_BYTES), max_size=40), st.integers(1, 50))
def test_runs_hold_everything_once_and_are_about_a_second(sizes: list[int], parallelism: int) -> None:
    found = runs(np.array(sizes, np.int64), parallelism)
    assert [row for run in found for row in run] == list(range(len(sizes)))
    assert len(found) == 1 or all(len(run) for run in found)
    largest = max(sizes, default=0)
    for run in found:
        assert sum(sizes[row] for row in run) <= TASK_BYTES + largest + len(sizes)


def test_small_things_are_spread_over_processors_but_not_thinly() -> None:
    assert len(runs(np.full(100, 10 << 20, np.int64), 40)) == 40
    assert len(runs(np.full(100, 1000, np.int64), 40)) == 1


def test_tasks_carry_references_and_no_bytes(tmp_path) -> None:
    publish_arm(str(tmp_path), steps=5000, width=40)
    with wd.dataset("lab/arm", catalog=tmp_path) as dataset:
        plan = plan_episodes(dataset, where=None, columns=("task",), artifact=None)
        spent = dataset.spent.bytes_read
        assert plan.sizes.min() > 800_000
        for task in plan.tasks(8):
            assert len(pickle.dumps(task)) < 8_000
        windows = plan_windows(dataset, WindowShape(10, 10), where=None, artifact=None)
        for task in windows.tasks(8):
            assert len(pickle.dumps(task)) < 8_000
        assert dataset.spent.bytes_read - spent < 100_000, "no episode was read"
    task = plan.tasks(8)[-1]
    row = pickle.loads(pickle.dumps(task.read))()[0].to_pylist()[-1]
    opened = wd.ray.open(row)
    assert opened.id == row["episode_id"] == "ep07"
    assert np.array_equal(opened["joints"].values(), made(7, steps=5000, width=40)["joints"].values())


def test_a_long_list_is_gone_through_by_the_tasks_not_by_the_plan(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("warpdata.formats.manifest.layout.FLAT_SHARDS", 2)
    publish_arm(str(tmp_path))
    looked_at = []
    whole = PartedShards.entries
    monkeypatch.setattr(
        PartedShards, "entries", lambda self, refs: looked_at.extend(refs) or whole(self, refs)
    )
    with wd.dataset("lab/arm", catalog=tmp_path) as dataset:
        blobs = {
            f"ep{n:02d}": dataset.artifact("episodes").shards_of([f"ep{n:02d}.wshard"])[0] for n in range(8)
        }
        looked_at.clear()
        plan = plan_episodes(dataset, where="task = 'pick'", columns=("task",), artifact=None)
        windows = plan_windows(dataset, WindowShape(10, 10), where=None, artifact=None)
        tasks = plan.where(pc.field("episode_id") > "ep01").tasks(8)
        assert not looked_at
    rows = [row for task in tasks for table in task.read() for row in table.to_pylist()]
    assert looked_at
    assert {row["episode_id"]: row["episode"]["hash"] for row in rows} == {
        name: blobs[name].hash for name in ("ep03", "ep05", "ep07")
    }
    assert [row["episode"]["bytes"] for row in rows] == [blobs[row["episode_id"]].byte_size for row in rows]
    one = plan.where(pc.field("episode", "hash") == blobs["ep05"].hash)
    assert one.rows.column("episode_id").to_pylist() == ["ep05"]
    assert sum(len(block["start"]) for task in windows.tasks(1) for block in task.read()) == int(
        windows.counts.sum()
    )


def test_the_version_is_the_one_of_the_plan(tmp_path) -> None:
    publish_arm(str(tmp_path), 3)
    with wd.dataset("lab/arm", catalog=tmp_path) as dataset:
        plan = plan_episodes(dataset, where=None, columns=(), artifact=None)
    publish_arm(str(tmp_path), 5)
    rows = [row for task in plan.tasks(2) for table in task.read() for row in table.to_pylist()]
    assert [row["episode_id"] for row in rows] == ["ep00", "ep01", "ep02"]
    assert wd.ray.open(rows[2]).steps.length == 22


def test_columns_and_conditions_reach_the_plan(catalog: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        plan = plan_episodes(dataset, where="task = 'pick'", columns=("length",), artifact=None)
        assert plan.rows.column("episode_id").to_pylist() == ["ep01", "ep03", "ep05", "ep07"]
        fewer = plan.where(pc.field("length") > 22).select(["episode_id"])
        assert fewer.schema.names == ["episode_id"]
        (task,) = fewer.tasks(1)
        assert task.rows == 3
        assert task.read()[0].to_pydict() == {"episode_id": ["ep03", "ep05", "ep07"]}
        with pytest.raises(ValueError, match="Did you mean 'task'"):
            plan_episodes(dataset, where=None, columns=("tsk",), artifact=None)
        with pytest.raises(ValueError, match="'episode' is a column of every row"):
            plan_episodes(dataset, where=None, columns=("episode",), artifact=None)
        with pytest.raises(wd.WarpError, match="episodes"):
            plan_episodes(dataset, where=None, columns=(), artifact="nothing")


def test_no_episode_satisfies_the_condition(catalog: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        plan = plan_episodes(dataset, where="length > 1000", columns=("task",), artifact=None)
    (task,) = plan.tasks(4)
    (table,) = task.read()
    assert (task.rows, table.num_rows, table.column_names) == (0, 0, ["episode_id", "episode", "task"])


@given(steps=st.integers(0, 30), length=st.integers(1, 12), stride=st.integers(1, 12), data=st.data())
def test_windows_are_those_of_a_slow_reference(steps: int, length: int, stride: int, data) -> None:
    tail = data.draw(st.sampled_from(["drop", "pad", "short"]))
    windows = WindowShape(length, stride, tail)
    found = windows.starts(steps).tolist()
    expected, start = [], 0
    while start < steps:
        is_whole = start + length <= steps
        if is_whole or (tail != "drop" and not any(s + length >= steps for s in expected)):
            expected.append(start)
        if not is_whole:
            break
        start += stride
    assert found == expected
    if tail != "drop" and stride <= length:
        assert {k for s in found for k in range(s, s + length) if k < steps} == set(range(steps))


@pytest.mark.parametrize("tail", ["drop", "pad", "short"])
def test_windows_hold_the_steps_of_their_episode(catalog: str, tail: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        plan = plan_windows(dataset, WindowShape(8, 5, tail), where=None, artifact=None)
    count = 0
    for task in plan.tasks(3):
        blocks = list(task.read())
        assert sum(len(block["start"]) for block in blocks) == task.rows
        count += task.rows or 0
        for block in blocks:
            for at, start in enumerate(block["start"].tolist()):
                truth = made(int(block["episode_id"][at][2:]))["joints"].values()[start : start + 8]
                valid = block["joints.valid"][at]
                assert np.array_equal(block["joints"][at][valid], truth)
                assert len(truth) == 8 or tail != "drop"
                assert len(block["joints"][at]) == (len(truth) if tail == "short" else 8)
    assert count == plan.counts.sum() > 8


def test_windows_read_only_the_signals_that_are_wanted(catalog: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        plan = plan_windows(dataset, WindowShape(8, 8, signals=("action",)), where=None, artifact=None)
    block = next(iter(plan.tasks(1)[0].read()))
    assert list(block) == ["episode_id", "start", "ts_ns", "action", "action.valid"]
    block = next(iter(plan.select(["start", "action"]).tasks(1)[0].read()))
    assert list(block) == ["start", "action"]


def test_a_signal_that_would_hide_a_column_is_told() -> None:
    times = np.arange(9) * 10**8
    signals = {name: wd.ArraySignal(times, np.arange(9.0)) for name in ("a", "a.valid", "start")}
    episode = wd.Episode.of(signals, id="odd", steps=StepClock("a"))
    assert len(list(WindowShape(3, 3, signals=("a",)).blocks("odd", episode, None))) == 1
    for chosen in (None, ("a", "a.valid"), ("start",)):
        with pytest.raises(ValueError, match=r"a column '(a.valid|start)' already"):
            list(WindowShape(3, 3, signals=chosen).blocks("odd", episode, None))


def test_a_window_of_nothing_but_repeats_is_refused(monkeypatch) -> None:
    monkeypatch.setattr("warpdata.ordering.epochs.MAX_FILLED_BYTES", 100_000)
    signal = wd.ArraySignal(np.arange(5) * 10**8, np.arange(5.0))
    episode = wd.Episode.of({"a": signal}, id="x", steps=StepClock("a"))
    assert [len(b["a"][0]) for b in WindowShape(1000, 8, "pad").blocks("x", episode, None)] == [1000]
    with pytest.raises(TooLargeError, match="fill 1099511627776 rows from 5"):
        list(WindowShape(1 << 40, 8, "pad").blocks("x", episode, None))
    assert list(WindowShape(1 << 40, 8).blocks("x", episode, None)) == []


def test_episodes_without_steps_have_no_windows(tmp_path) -> None:
    episode = wd.Episode.of(
        {"a": wd.ArraySignal([0, 10], [1.0, 2.0]), "b": wd.ArraySignal([0, 7, 9], [1.0, 2.0, 3.0])}, id="odd"
    )
    with wd.DatasetBuilder("lab/odd", catalog=tmp_path) as builder:
        builder.add_episodes("episodes", wd.Episodes.of([episode])).publish()
    with wd.dataset("lab/odd", catalog=tmp_path) as dataset, pytest.raises(NoStepsError, match="odd"):
        plan_windows(dataset, WindowShape(2, 2), where=None, artifact=None)


def test_tables_are_read_in_parts_that_make_the_whole(tmp_path) -> None:
    from tests.published import publish_demo

    pictures = tmp_path / "pictures"
    (pictures / "a").mkdir(parents=True)
    for number in range(40):
        (pictures / "a" / f"{number:03d}.png").write_bytes(bytes([number]))
    publish_demo(str(tmp_path / "catalog"), pictures)
    with wd.dataset("ws/demo", catalog=tmp_path / "catalog") as dataset:
        view = dataset.table("main")
        plan = TablePlan(view)
        tasks = plan.tasks(4)
        assert sum(task.rows or 0 for task in tasks) == 1000
        assert all(len(pickle.dumps(task)) < 4_000 for task in tasks)
        read = [row for task in tasks for table in task.read() for row in table.column("id").to_pylist()]
        assert read == list(range(1000))
        parts = [(0, i, 5) for i in range(5)]  # of three row groups
        split = [
            row
            for part in parts
            for table in view.row_groups([part])
            for row in table.column("id").to_pylist()
        ]
        assert split == list(range(250))
        fewer = plan.where(pc.field("value") > 490).select(["id"])
        assert [t.rows for t in fewer.tasks(1)] == [None]
        found = [row for task in fewer.tasks(2) for table in task.read() for row in table.to_pylist()]
        assert found == [{"id": number} for number in range(981, 1000)]
        both = TablePlan(view.filter("id % 2 = 0").select(["name"]))
        found = [row for task in both.tasks(2) for table in task.read() for row in table.to_pylist()]
        assert found[:2] == [{"name": "row 0"}, {"name": "row 2"}]
        assert len(found) == 500


def test_a_changed_row_is_the_episode_with_what_was_made(catalog: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        row = plan_episodes(dataset, where=None, columns=("task",), artifact=None).rows.to_pylist()[2]
    changed = rows.changed_row(lambda e: {"speed": e.steps["joints"].data.sum(1)}, row)
    assert changed["task"] == "place"
    opened = wd.ray.open(changed)
    assert opened.id == "ep02"
    assert np.array_equal(opened["speed"].values(), made(2)["joints"].values().sum(1))
    assert np.array_equal(opened["joints"].values(), made(2)["joints"].values())
    whole = wd.ray.open(rows.changed_row(lambda _: made(5), row))
    assert (whole.id, whole.steps.length) == ("ep02", 25)
    assert rows.changed_row(lambda _: made(5), row) == rows.changed_row(lambda _: made(5), row)
    with pytest.raises(TypeError, match="episode ep02 there came a NoneType"):
        rows.changed_row(lambda _: None, row)


def test_what_goes_wrong_with_a_row_is_named(catalog: str) -> None:
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        row = plan_episodes(dataset, where=None, columns=(), artifact=None).rows.to_pylist()[2]

    def failing(episode: wd.Episode) -> None:
        raise RuntimeError("no model")

    with pytest.raises(
        DatasetError, match=r"failed for episode 'ep02': RuntimeError: no model \(test_planning"
    ):
        rows.changed_row(failing, row)
    with pytest.raises(DatasetError, match="failed for episode 'ep02': SystemExit: 3") as caught:
        rows.changed_row(lambda _: sys.exit(3), row)  # Ray would start the worker again for ever
    assert caught.value.__cause__ is None
    joints = np.zeros(made(2)["joints"].values().shape)
    with pytest.raises(ValueError, match=r"episode 'ep02': .*expected one row"):
        rows.changed_row(lambda _: {"short": joints[:3]}, row)
    with pytest.raises(ConflictError, match="episode 'ep02' has a signal 'joints' already"):
        rows.changed_row(lambda _: {"joints": joints}, row)
    replaced = wd.ray.open(rows.changed_row(lambda _: {"joints": joints}, row, replace=True))
    assert not replaced["joints"].values().any()


def test_an_episode_without_steps_is_mapped(tmp_path) -> None:
    times = np.arange(5) * 10**8
    episode = wd.Episode.of({"camera_pose": wd.ArraySignal(times, np.ones((5, 3)))}, id="plain")
    with wd.DatasetBuilder("lab/plain", catalog=tmp_path) as builder:
        builder.add_episodes("episodes", wd.Episodes.of([episode])).publish()
    with wd.dataset("lab/plain", catalog=tmp_path) as dataset:
        (row,) = plan_episodes(dataset, where=None, columns=(), artifact=None).rows.to_pylist()
    opened = wd.ray.open(rows.changed_row(lambda _: {"norm": np.arange(5.0)}, row))
    assert opened["norm"].timestamps.tolist() == times.tolist()
    with pytest.raises(ValueError, match=r"no steps for their times|expected one row"):
        rows.changed_row(lambda _: {"norm": np.arange(4.0)}, row)


def recorded(target):
    with wd.record(target) as recorder:
        for step in range(12):
            recorder.append("joints", np.arange(3.0), ts_ns=step * 10**8)
    return recorder


def test_a_recording_is_a_row(tmp_path, catalog: str) -> None:
    recorder, shard = recorded(tmp_path / "root"), recorded(tmp_path / "one.wshard")
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        given = plan_episodes(dataset, where=None, columns=(), artifact=None).rows.to_pylist()[2]
    for form in (recorder, recorder.path, str(tmp_path / "root"), shard, tmp_path / "one.wshard"):
        row = wd.ray.row(form, "one")
        assert wd.ray.open(row).id == "one"
        changed = wd.ray.open(rows.changed_row(lambda _, made=form: made, given))
        assert (changed.id, len(changed["joints"])) == ("ep02", 12)
    changed = wd.ray.open(rows.changed_row(lambda episode: episode.tensors, given))
    assert np.array_equal(changed["joints"].values(), made(2)["joints"].values())
    recorded(tmp_path / "root")
    with pytest.raises(wd.WarpError, match="expected one episode, got 2"):
        wd.ray.row(tmp_path / "root", "one")
    with pytest.raises(wd.WarpError, match="nothing was recorded"):
        wd.ray.row(wd.record(tmp_path / "empty"), "one")
    with pytest.raises(TypeError, match="no episode"):
        wd.ray.open({"episode_id": "x", "episode": 7})
