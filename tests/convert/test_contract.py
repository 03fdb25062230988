"""What every export promises: values, types, times, ids, tasks and marks come back, and the receipt is honest."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

import warpdata as wd
from tests.convert.foreign import copied, sample
from tests.convert.sets import on_steps
from tests.waiting import LIMIT_S
from warpdata.cli.console import Exit
from warpdata.cli.main import main
from warpdata.convert.aligning import grid_times
from warpdata.errors import SchemaMismatchError, WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.source import STEPS, StepClock

START = 1_763_000_000_123_456_789
COUNT = 12
STEP_NS = 20_000_000


def in_folder(target: Path) -> Any:
    return json.loads((target / "warpdata.json").read_bytes())


def in_hdf5(target: Path) -> Any:
    with h5py.File(target) as file:
        return json.loads(file["warpdata"][()])


TARGETS: dict[str, tuple[str, str, dict[str, Any], Callable[[Path], Any] | None]] = {
    "lerobot": ("lerobot", "out", {}, lambda target: in_folder(target / "meta")),
    "lerobot-v2.1": ("lerobot", "out", {"version": "v2.1"}, lambda target: in_folder(target / "meta")),
    "rlds": ("rlds", "out", {}, in_folder),
    "hdf5": ("hdf5", "out.hdf5", {}, in_hdf5),
    "zarr": ("zarr", "out.zarr", {}, in_folder),
    "zarr-zip": ("zarr", "out.zarr.zip", {}, None),
    "minari": ("minari", "out", {}, in_folder),
    "minari-parquet": ("minari", "out", {"data_format": "parquet"}, in_folder),
    "dreamer": ("dreamer", "out", {}, in_folder),
    "webdataset": ("webdataset", "out", {}, in_folder),
    "webdataset-steps": ("webdataset", "out", {"per": "step"}, in_folder),
    "mcap": ("mcap", "out", {}, in_folder),
}
"""Format, name, options, and how the receipt is read from the target."""
STEPPED = [name for name in TARGETS if name != "mcap"]
every_target = pytest.mark.parametrize("target", TARGETS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings at 50 Hz by the clock, with an encoded camera: row k holds k, 2000 + k and 1000 + k."""
    folder = tmp_path_factory.mktemp("contract") / "root"
    for number in range(2):
        static = {"task": f"task {number}", "seed": 7 + number}
        with wd.record(folder, static=static, clock="simulated") as rec:
            for k in range(COUNT + number):
                seen = {
                    "observation/state": np.array([k, -k], np.float32),
                    "observation/ticks": np.int64(k),
                    "observation/front": np.full((32, 48, 3), 15 * k, np.uint8),
                }
                rec.step(
                    seen,
                    {"action": np.array([2000 + k], np.float64)},
                    reward=1000.0 + k,
                    terminated=k == COUNT + number - 1,
                    truncated=False,
                    ts_ns=START + k * STEP_NS,
                )
            rec.mark(success=number == 0)
    return folder


def export(target: str, tmp_path: Path, source: Any, **options: Any) -> tuple[Any, wd.Episodes, Path]:
    format_, name, more, _ = TARGETS[target]
    tmp_path.mkdir(exist_ok=True)
    receipt = wd.export_episodes(source, tmp_path / name, format_, **more, **options)
    return receipt, wd.open_episodes(tmp_path / name), tmp_path / name


def look(episode: Episode) -> dict[str, Any]:
    """What was seen, done and earned in the steps in which something was done, and when."""
    steps = episode.steps
    names = {name.replace(".", "/").rpartition("/")[2]: name for name in episode.signals}
    seen = episode[names["state"]], episode[names["ticks"]]
    (done,) = (signal for signal in episode.signals.values() if signal.meta.role == "action")
    assert steps.rewards is not None
    count = int(episode.static["seed"]) - 7 + COUNT
    return {
        "state": np.asarray(seen[0].values())[:count].tolist(),
        "ticks": np.asarray(seen[1].values())[:count].tolist(),
        "action": np.asarray(done.values())[:count].reshape(-1).tolist(),
        "rewards": steps.rewards.data[:count].tolist(),
        "types": [str(signal.meta.dtype) for signal in (*seen, done)],
        "times": (done.timestamps[:count] - START).tolist(),
        "static": {name: episode.static[name] for name in ("task", "seed", "success")},
    }


def expected(number: int) -> dict[str, Any]:
    rows = range(COUNT + number)
    return {
        "state": [[k, -k] for k in rows],
        "ticks": list(rows),
        "action": [2000 + k for k in rows],
        "rewards": [1000 + k for k in rows],
        "types": ["float32", "int64", "float64"],
        "times": [k * STEP_NS for k in rows],
        "static": {"task": f"task {number}", "seed": 7 + number, "success": number == 0},
    }


@every_target
@pytest.mark.parametrize(
    "names", [("observation", "frame"), ("observation", "observation/frame"), ("a", "b")]
)
def test_any_names_of_observations_have_a_place(target: str, names: tuple[str, str], tmp_path: Path) -> None:
    """As a gym recording has them: the name of one may be the folder of another in the target, or be refused."""
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(COUNT):
            seen = {names[0]: np.full(3, k, np.float32), names[1]: np.full((32, 48, 3), 15 * k, np.uint8)}
            last = k == COUNT - 1
            rec.step(
                seen, {"action": np.zeros(2)}, reward=1.0, terminated=last, truncated=False, ts_ns=k * STEP_NS
            )
    episode = None
    is_nested = names[1].startswith(f"{names[0]}/")  # few formats have an array and a folder of one name
    with contextlib.suppress(SchemaMismatchError) if is_nested else contextlib.nullcontext():
        episode = export(target, tmp_path / "set", tmp_path / "root")[1][0]
    if episode is None:
        return
    states = [np.asarray(each.values()) for each in episode.signals.values() if each.meta.dtype == "float32"]
    (state,) = (values for values in states if values.shape[1:] == (3,))
    assert np.array_equal(state[:COUNT, 0], np.arange(COUNT))


@every_target
def test_what_a_receipt_calls_kept_comes_back(target: str, tmp_path: Path) -> None:
    """Flags in the middle, text, and a signal with as many records as steps that lacks one of them."""
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(COUNT):
            seen = {"state": np.float32(k), "said": f"word {k}", **({} if k == 3 else {"odd": np.float64(k)})}
            flags = {"terminated": k in (4, COUNT - 1), "truncated": k == 6}
            rec.step(seen, {"action": np.zeros(2)}, reward=1.0, ts_ns=k * STEP_NS, **flags)
        rec.append("state", np.float32(COUNT), COUNT * STEP_NS)
        rec.append("odd", np.float64(COUNT), COUNT * STEP_NS)
    source = wd.open_episodes(tmp_path / "root")[0]
    receipt, again, _ = export(target, tmp_path / "set", tmp_path / "root")
    read = {name.replace(".", "/").rpartition("/")[2]: signal for name, signal in again[0].signals.items()}
    flags = {name: getattr(again[0].steps, name) for name in ("terminated", "truncated")}
    for name, signal in source.signals.items():
        if receipt.signals[name].how != "kept":
            continue
        values = signal.values().tolist()
        if name in flags:  # after the last step RLDS and Dreamer have a row of what was seen
            found = np.asarray(flags[name].data).reshape(-1).tolist()
            assert values in (found[: len(values)], found[1:]), name
        elif name != "reward":
            found = read[name] if name in read else read[f"{name}s"]
            assert (
                found.values()[: len(values)].reshape(-1).tolist() == np.reshape(signal.values(), -1).tolist()
            )
            assert np.abs(found.timestamps[: len(values)] - signal.timestamps).max() <= 1000


_OWN = """
    episode_index frame_index timestamp index task_index fps robot_type length last_row episode_id
    seed options steps is_first discount env_args meta data data/meta data/meta/k last_row/k
    episode_ends receipt __key__ json split
"""
OWN_NAMES = _OWN.split()
"""Names that a target uses itself, and names that are folders of others."""


@every_target
def test_static_items_keep_their_value_under_any_name(target: str, tmp_path: Path) -> None:
    """An item whose name the target uses itself gets another one, and the receipt states it."""
    static = {name: 1_000 + number if number % 2 else f"mine {name}" for number, name in enumerate(OWN_NAMES)}
    static["task"] = 7
    with wd.record(tmp_path / "root", static=static, clock="simulated") as rec:
        for k in range(COUNT):
            rec.step({"state": np.full(3, k)}, {"action": np.zeros(2)}, reward=1.0, ts_ns=k * STEP_NS)
    receipt, again, _ = export(target, tmp_path / "set", tmp_path / "root")
    episode = again[0]
    assert np.array_equal(episode.steps.times_ns[:COUNT], np.arange(COUNT) * STEP_NS)
    for name, value in static.items():
        if (there := f"source_{name}") in episode.static:
            assert any(f"{name} is called {there} there" in note for note in receipt.notes)
            name = there
        assert episode.static[name] == value, name
        assert type(episode.static[name]) is type(value), name


@every_target
@pytest.mark.parametrize(
    "name", ["timestamp", "frame_index", "index", "task_index", "task", "is_first", "discount"]
)
def test_signals_keep_their_values_under_any_name(target: str, name: str, tmp_path: Path) -> None:
    """A recorded signal whose name the target uses itself comes back, or the export is refused."""
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        for k in range(COUNT):
            rec.step({"state": np.full(3, k)}, {"action": np.zeros(2)}, reward=1.0, ts_ns=k * STEP_NS)
            rec.append(name, np.full(5, 0.5 + k), k * STEP_NS)
    episode = None
    with contextlib.suppress(SchemaMismatchError):
        episode = export(target, tmp_path / "set", tmp_path / "root")[1][0]
    if episode is None:
        assert target == "dreamer"
        return
    rows = [np.asarray(each.values()) for each in episode.signals.values() if each.meta.shape == (5,)]
    assert [values[:COUNT, 0].tolist() for values in rows] == [(0.5 + np.arange(COUNT)).tolist()]


@every_target
def test_everything_comes_back(target: str, root: Path, tmp_path: Path) -> None:
    receipt, again, path = export(target, tmp_path, root)
    assert (len(again), receipt.episodes, receipt.is_complete) == (2, 2, True)
    for number, episode in enumerate(again):
        assert type(episode) is Episode
        assert look(episode) == expected(number)
        assert look(pickle.loads(pickle.dumps(episode))) == expected(number)
        front = next(signal for name, signal in episode.signals.items() if name.endswith("front"))
        levels = front.values()[:COUNT].reshape(COUNT, -1).mean(1)
        assert np.abs(levels - 15 * np.arange(COUNT)).max() < 3
    both = wd.open_episodes(root) + again
    assert [look(episode) for episode in both] == [expected(0), expected(1)] * 2
    changed = {name for name, signal in receipt.signals.items() if signal.how != "kept"}
    assert receipt.is_exact == (not changed)
    assert changed <= {"observation/front", "truncated"} | (
        {"observation/state", "observation/ticks"} & changed
    )
    stored = TARGETS[target][3]
    if stored is not None:
        stated, kept = receipt.to_json(), stored(path)
        assert kept["writer"] == f"warpdata {wd.__version__}"
        assert kept["receipt"] == {key: stated[key] for key in stated if key not in ("continued", "target")}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_every_format(root: Path, tmp_path: Path, method: str) -> None:
    opened = [export(target, tmp_path / target, root)[1][1] for target in STEPPED[::2]]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(look, opened, timeout=LIMIT_S)) == [expected(1)] * len(opened)


# Times.

UNEVEN = np.cumsum([START, *([20_000_000, 35_000_000, 5_000_001] * 4)]).astype(np.int64)


def episode(number: int, times: NDArray[np.int64], *, has_final: bool = False) -> Episode:
    """Actions and rewards at these times; with `has_final` the last time is that of an observation alone."""
    acted = times[:-1] if has_final else times
    rng = np.random.default_rng(number)
    state = rng.normal(size=(len(times), 3)).astype(np.float32)
    meta = SignalMeta(state.dtype, (3,), "vector", role="observation", clock=None if has_final else STEPS)
    signals: dict[str, Any] = {
        "observation.state": ArraySignal(times, state, meta),
        "action": on_steps(acted, rng.normal(size=(len(acted), 2)).astype(np.float32), "action"),
        "next.reward": on_steps(acted, rng.normal(size=len(acted)).astype(np.float32), "reward"),
        "next.done": on_steps(acted, np.arange(len(acted)) == len(acted) - 1, "terminated"),
    }
    return Episode.of(signals, {"task": "stack"}, id=f"{number:012d}", steps=StepClock(STEPS))


CASES: dict[str, Callable[[], list[Episode]]] = {
    "29.97 Hz by the clock": lambda: [episode(0, grid_times(12, 29.97, START))],
    "an observation at the end": lambda: [episode(0, grid_times(13, 50, START), has_final=True)],
    "one step": lambda: [episode(0, grid_times(12, 50, START)), episode(1, grid_times(1, 50, 5 + START))],
    "uneven": lambda: [episode(0, UNEVEN), episode(1, UNEVEN, has_final=True)],
    "two rates": lambda: [episode(0, grid_times(12, 50)), episode(1, grid_times(12, 20, START))],
}


@pytest.mark.parametrize("case", CASES)
@every_target
def test_times_come_back(target: str, case: str, tmp_path: Path) -> None:
    source = wd.Episodes.of(CASES[case]())
    if target.startswith("lerobot") and case in ("uneven", "two rates"):
        with pytest.raises(WarpError, match="the steps are not"):
            export(target, tmp_path, source)
        return
    _, again, _ = export(target, tmp_path, source)
    for first, second in zip(source, again, strict=True):
        wanted = first.steps.times_ns
        times = next(signal for signal in second.signals.values() if signal.meta.role == "action").timestamps
        assert np.abs(times[: len(wanted)] - wanted).max() <= 1000
        assert len(times) - len(wanted) in (0, 1)


@pytest.mark.parametrize("target", STEPPED)
def test_a_chosen_rate_moves_numbers_and_frames(target: str, root: Path, tmp_path: Path) -> None:
    receipt, again, _ = export(target, tmp_path, root, rate=25)
    assert receipt.supplied["rate"] == 25
    assert {signal.how for signal in receipt.signals.values()} <= {"resampled", "reencoded", "dropped"}
    for second in again:
        assert second.steps.times_ns[0] == START
        assert np.all(np.diff(second.steps.times_ns) == 2 * STEP_NS)
        for ending, scale in (("ticks", 1), ("front", 15)):
            signal = next(signal for name, signal in second.signals.items() if name.endswith(ending))
            rows = np.asarray(signal.values())[: COUNT // 2].reshape(COUNT // 2, -1).mean(1)
            assert np.abs(rows - 2 * scale * np.arange(COUNT // 2)).max() < 3, ending


@pytest.mark.parametrize("target", STEPPED)
def test_an_assumed_rate_stays_assumed(target: str, tmp_path: Path) -> None:
    _, _, path = export("zarr", tmp_path / "first", wd.Episodes.of([episode(0, grid_times(5, 10))]))
    (path / "warpdata.json").unlink()
    unknown = wd.open_episodes(path)
    assert unknown[0].meta["fps_from"] == "assumed"
    receipt, again, _ = export(target, tmp_path, unknown)
    assert any("rate" in note for note in receipt.notes)
    assert np.array_equal(again[0].steps.times_ns[:5], unknown[0].steps.times_ns)
    assert "lerobot" in target or again[0].meta["fps_from"] == "assumed"


# Several processes.


def files(place: Path) -> dict[str, str]:
    """The hash of every file below a place, or of the file."""
    listed = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in listed}


class Pickling:
    """Runs tasks as other processes do, backwards: the task and its results are copied."""

    def run(self, task: Callable[[int], Any], positions: Sequence[int]) -> Iterator[tuple[int, Any]]:
        for position in reversed(positions):
            yield position, pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task))(position)))


@every_target
def test_the_same_bytes_wherever_episodes_are_prepared(
    target: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts, paths = [], []
    for jobs in (1, 2):
        receipt, _, path = export(target, tmp_path / str(jobs), root, jobs=jobs)
        receipts.append({**receipt.to_json(), "target": ""})
        paths.append(path)
        monkeypatch.setattr("warpdata.convert.exporting.runner_of", lambda _jobs: Pickling())
    assert receipts[0] == receipts[1]
    assert files(paths[0]) == files(paths[1]) != {}


def test_processes_encode_raw_frames_alike(tmp_path: Path) -> None:
    source = sample("robomimic", "gen_lift_image.hdf5")
    write = functools.partial(wd.export_episodes, source, format="lerobot", task="x")
    paths = [Path(write(target=tmp_path / str(jobs), jobs=jobs).target) for jobs in (1, 2)]
    assert files(paths[0]) == files(paths[1])


def test_the_command(root: Path, tmp_path: Path) -> None:
    out, more = str(tmp_path / "out"), str(tmp_path / "more")
    assert main(["export", "mcap", str(root), out, "--jobs", "2"]) == Exit.OK
    assert main(["convert", str(root), more, "--to", "mcap"]) == Exit.OK
    assert files(tmp_path / "out") == files(tmp_path / "more")
    with pytest.raises(ValueError, match="rrd is written by one process"):
        wd.export_episodes(root, tmp_path / "x.rrd", "rrd", jobs=2)


@pytest.mark.parametrize(("format_", "broken"), [("lerobot", 0), ("webdataset", 2)])
def test_what_cannot_be_read_is_skipped(tmp_path: Path, format_: str, broken: int) -> None:
    source = copied(sample("lerobot", "v21_video_av1"), tmp_path)
    (source / f"data/chunk-000/episode_{broken:06d}.parquet").write_bytes(b"not a table")
    with pytest.raises(WarpError, match=f"{broken}"):
        wd.export_episodes(source, tmp_path / "no", format_)
    assert not (tmp_path / "no").exists()
    receipt = wd.export_episodes(source, tmp_path / "out", format_, on_error="skip")
    assert [int(entry["id"]) for entry in receipt.skipped] == [broken]
    assert receipt.episodes == len(wd.open_episodes(tmp_path / "out")) == 3
