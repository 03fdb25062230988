"""Ray Data in and out, on a cluster of this machine: exactly once, whatever dies and however it is cut."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import ROOT
from tests.docs.test_snippets import CLUSTER, PRELUDE, program_of
from tests.ray.sets import blobs, latest, made, publish_arm, speed
from tests.sweeps import SOAK
from warpdata.catalog.build.episodes import StoredEpisode
from warpdata.errors import ConflictError, CorruptLayoutError, DatasetError, UnavailableError
from warpdata.ray import planning as rows
from warpdata.ray import verbs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warpdata[ray]'")
    pytest.importorskip("ray.data")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own making
only_in_soak = pytest.mark.skipif(not SOAK, reason="the same task functions run in processes: make soak")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    from ray.data import DataContext

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False,
            logging_level="error",
        )  # fmt: skip
        DataContext.get_current().enable_progress_bars = False
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    publish_arm(str(tmp_path))
    return str(tmp_path)


def test_rows_are_references_that_open(catalog: str) -> None:
    found = wd.ray.read_episodes("lab/arm", catalog=catalog, where="task = 'pick'", columns=["length"])
    publish_arm(catalog, 2)  # a newer version, which nobody asked for
    assert found.count() == 4
    taken = found.take_all()
    assert [row["episode_id"] for row in taken] == ["ep01", "ep03", "ep05", "ep07"]
    for row in taken:
        assert wd.ray.open(row).steps.length == row["length"]
        assert set(row["episode"]) == {"dataset", "catalog", "artifact", "member", "hash", "bytes"}
    lengths = found.map(lambda row: {"n": wd.ray.open(row).steps.length}).take_all()
    assert sorted(row["n"] for row in lengths) == [21, 23, 25, 27]


def test_columns_and_conditions_are_pushed_down(catalog: str, capsys) -> None:
    from ray.data.expressions import col

    found = wd.ray.read_episodes("lab/arm", catalog=catalog, columns=["task", "length"])
    fewer = found.filter(expr=(col("task") == "pick") & (col("length") > 22)).select_columns(["episode_id"])
    assert fewer.take_all() == [{"episode_id": each} for each in ("ep03", "ep05", "ep07")]
    assert fewer.count() == 3
    fewer.explain()
    optimised = capsys.readouterr().out.partition("(Optimized)")[2]
    assert "Filter" not in optimised
    assert "Project" not in optimised


def test_a_plan_is_asked_often_and_made_once(catalog: str) -> None:
    from warpdata.ray.adapter import PlannedDatasource

    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        source = PlannedDatasource(verbs.plan_episodes(dataset, where=None, columns=(), artifact=None))
    first, second = source.get_read_tasks(3), source.get_read_tasks(3)
    assert [task.read_fn.args[0] for task in first] == [task.read_fn.args[0] for task in second]
    assert first[0].metadata == second[0].metadata
    assert all(a.read_fn.args[0] is b.read_fn.args[0] for a, b in zip(first, second, strict=True))
    assert sum(task.metadata.num_rows for task in first) == 8
    fewer = source.apply_projection({"episode_id": "episode_id"})
    assert next(iter(fewer.get_read_tasks(3)[0]())).column_names == ["episode_id"]
    assert next(iter(source.get_read_tasks(3)[0]())).column_names == ["episode_id", "episode"]


def test_windows_are_tensors(catalog: str) -> None:
    options = {"unit": "window", "window": 8, "stride": 4, "catalog": catalog}
    found = wd.ray.read_episodes("lab/arm", tail="pad", **options)
    taken = found.take_all()
    assert found.count() == len(taken) == sum(-(-(n + 20 - 8) // 4) + 1 for n in range(8))
    for row in taken:
        truth = made(int(row["episode_id"][2:]))["joints"].values()[row["start"] : row["start"] + 8]
        assert row["joints"].shape == (8, 3)
        assert np.array_equal(row["joints"][row["joints.valid"]], truth)
    short = wd.ray.read_episodes("lab/arm", tail="short", signals=["action"], **options).take_all()
    assert [len(row["action"]) for row in short] == [row["joints.valid"].sum() for row in taken]
    batch = wd.ray.read_episodes("lab/arm", **options).select_columns(["action"]).take_batch(5)
    assert (batch["action"].shape, batch["action"].dtype) == ((5, 8, 2), np.float32)


@only_in_soak
def test_tables_are_read_by_ray(catalog: str) -> None:
    from ray.data.expressions import col

    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        found = dataset.to_ray("episodes", columns=["id", "length"], where="length > 22")
        assert found.take_all() == [{"id": f"ep{n:02d}", "length": 20 + n} for n in range(3, 8)]
        whole = dataset.to_ray(table="episodes")
        assert whole.count() == 8
        assert whole.filter(expr=col("length") > 26).select_columns(["id"]).take_all() == [{"id": "ep07"}]


def test_every_snippet_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tests/docs` runs the other pages, but on the cluster of these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    exec(PRELUDE + program_of(CLUSTER), {"__name__": "page"})


def test_wrong_words_are_told(catalog: str) -> None:
    with pytest.raises(ValueError, match="Did you mean 'window'"):
        wd.ray.read_episodes("lab/arm", unit="windows", catalog=catalog)
    with pytest.raises(ValueError, match="window="):
        wd.ray.read_episodes("lab/arm", unit="window", catalog=catalog)
    with pytest.raises(wd.DatasetNotFoundError):
        wd.ray.read_episodes("lab/nobody", catalog=catalog)


def test_unchanged_episodes_are_the_same_version(catalog: str) -> None:
    found = wd.ray.read_episodes("lab/arm", catalog=catalog)
    published = wd.ray.publish(found.random_shuffle(), "lab/arm", catalog=catalog)
    assert published.version == latest("lab/arm", catalog)
    assert (published.is_new, published.blobs_sent) == (False, 0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> str:
    """The version without Ray."""
    catalog = str(tmp_path_factory.mktemp("expected"))
    publish_arm(catalog)
    with (
        wd.dataset("lab/arm", catalog=catalog) as dataset,
        wd.DatasetBuilder("lab/fast", catalog=catalog) as builder,
    ):
        builder.add_episodes("episodes", dataset.episodes.map(speed))
        return builder.publish().version


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same_version(catalog: str, expected: str, workers: int) -> None:
    mapped = wd.ray.map_episodes(
        "lab/arm", speed, catalog=catalog, num_cpus=0.5, concurrency=workers, tasks=workers
    )
    published = wd.ray.publish(mapped, "lab/fast", catalog=catalog, expect=8, concurrency=workers)
    assert published.version == expected
    assert published.blobs_sent >= 8
    again = wd.ray.publish(mapped, "lab/fast", catalog=catalog)
    assert (again.version, again.is_new, again.blobs_sent) == (expected, False, 0)
    with wd.dataset("lab/fast", catalog=catalog) as dataset:
        assert dataset.episodes.ids == [f"ep{n:02d}" for n in range(8)]
        assert np.array_equal(dataset.episodes["ep03"]["speed"].values(), speed(made(3))["speed"])


@only_in_soak
def test_a_class_is_made_once_and_called_often(catalog: str) -> None:
    class Faster:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __call__(self, episode: wd.Episode) -> dict[str, np.ndarray]:
            return {"fast": np.asarray(episode.steps["joints"].data) * self.factor}

    chosen = wd.ray.read_episodes("lab/arm", catalog=catalog, where="length < 22")
    mapped = wd.ray.map_episodes(chosen, Faster, fn_constructor_args=(2.0,), concurrency=1)
    wd.ray.publish(mapped, "lab/fast", catalog=catalog, tags=["two"], message="twice as fast")
    with wd.dataset("lab/fast@two", catalog=catalog) as dataset:
        assert dataset.manifest.metadata["message"] == "twice as fast"
        fast = dataset.episodes["ep01"]["fast"].values()
        assert np.array_equal(fast, made(1)["joints"].values() * np.float32(2))


@only_in_soak
def test_new_episodes_join_the_newest_version(catalog: str) -> None:
    made_rows = ray.data.from_items([8, 9]).map(lambda item: wd.ray.row(made(item["item"])))
    wd.ray.publish(made_rows, "lab/arm", catalog=catalog, extend=True, retries=3)
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        assert len(dataset.episodes) == 10
        assert dataset.episodes["ep09"].steps.length == 29


def dying(marker: str, given, **options) -> list[StoredEpisode]:
    """Stores like any worker, but the first one is killed when some of its episodes are stored."""

    def until_killed():
        for number, row in enumerate(given):
            if number == 2 and not os.path.exists(marker):
                Path(marker).touch()
                os._exit(1)
            yield row

    return rows.store_rows(until_killed(), **options)


def test_a_worker_killed_while_it_stores_is_replaced(
    catalog: str, expected: str, tmp_path: Path, monkeypatch
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setattr(verbs, "store_rows", partial(dying, str(marker)))
    mapped = wd.ray.map_episodes("lab/arm", speed, catalog=catalog, tasks=1).materialize()
    published = wd.ray.publish(mapped.repartition(1), "lab/fast", catalog=catalog, expect=8)
    assert marker.exists()
    assert published.version == expected


DRIVER = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
import ray
import warpdata as wd
from tests.ray.sets import speed
ray.init(sys.argv[1], log_to_driver=False, logging_level="error")
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
wd.DatasetBuilder.add_stored_episodes = die
wd.ray.publish(wd.ray.map_episodes("lab/arm", speed, catalog=sys.argv[2]), "lab/fast", catalog=sys.argv[2])
"""


class Killed(BaseException):
    """As nothing that a program handles."""


def interrupted(catalog: str) -> None:
    """A driver that ends at the place where it would commit."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(wd.DatasetBuilder, "add_stored_episodes", lambda *_: (_ for _ in ()).throw(Killed))
        mapped = wd.ray.map_episodes("lab/arm", speed, catalog=catalog)
        wd.ray.publish(mapped, "lab/fast", catalog=catalog)


def killed(catalog: str, cluster: str) -> None:
    """The same, with nothing of it left."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster, catalog],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=200,
    )
    assert done.returncode == -9, done.stderr.decode()


@pytest.mark.parametrize("how", ["interrupted", pytest.param("killed", marks=only_in_soak)])
def test_a_driver_killed_before_it_commits_publishes_nothing(
    catalog: str, expected: str, cluster: str, how: str
) -> None:
    before = blobs(catalog)
    interrupted(catalog) if how == "interrupted" else killed(catalog, cluster)
    assert latest("lab/fast", catalog) is None
    stored = blobs(catalog) - before
    assert len(stored) == 8
    numbers = {path.name: path.stat().st_ino for path in Path(catalog, "blobs").rglob("*") if path.is_file()}
    published = wd.ray.publish(
        wd.ray.map_episodes("lab/arm", speed, catalog=catalog), "lab/fast", catalog=catalog
    )
    assert published.version == expected
    after = {path.name: path.stat().st_ino for path in Path(catalog, "blobs").rglob("*") if path.is_file()}
    assert numbers.items() <= after.items(), "no blob is written again"
    assert published.blobs_sent == len(after) - len(numbers)


def broken(episode: wd.Episode) -> dict[str, np.ndarray]:
    if episode.id == "ep05":
        raise CorruptLayoutError("its rows are gone", path="somewhere")
    return speed(episode)


def test_what_fails_publishes_nothing(catalog: str) -> None:
    mapped = wd.ray.map_episodes("lab/arm", broken, catalog=catalog)
    with pytest.raises(CorruptLayoutError, match="its rows are gone"):
        wd.ray.publish(mapped, "lab/fast", catalog=catalog)
    assert latest("lab/fast", catalog) is None


def test_a_function_that_fails_is_one_line_and_no_rows_are_no_version(
    catalog: str, capfd: pytest.CaptureFixture[str]
) -> None:
    before = latest("lab/arm", catalog)

    def failing(episode: wd.Episode) -> None:
        raise RuntimeError("no model")

    made_rows = wd.ray.map_episodes("lab/arm", failing, catalog=catalog)
    with pytest.raises(DatasetError, match=r"failed for episode 'ep0\d': RuntimeError: no model") as caught:
        wd.ray.publish(made_rows, "lab/arm", catalog=catalog)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.__cause__ is None
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(TypeError, match="there came a int") as wrong:
        wd.ray.publish(
            wd.ray.map_episodes("lab/arm", lambda _: 5, catalog=catalog), "lab/arm", catalog=catalog
        )
    assert len(str(wrong.value).splitlines()) <= 3
    none = wd.ray.read_episodes("lab/arm", catalog=catalog, where="task = 'nothing'")
    with pytest.raises(DatasetError, match="no episodes to publish"):
        wd.ray.publish(none, "lab/arm", catalog=catalog)
    assert latest("lab/arm", catalog) == before


def test_a_dropped_block_is_an_error_and_not_a_smaller_dataset(catalog: str) -> None:
    from ray.data import DataContext

    context = DataContext.get_current()
    context.max_errored_blocks = 1
    try:
        mapped = wd.ray.read_episodes("lab/arm", catalog=catalog).repartition(8)
        mapped = wd.ray.map_episodes(mapped, broken)
        with pytest.raises(DatasetError, match="max_errored_blocks"):
            wd.ray.publish(mapped, "lab/fast", catalog=catalog)
        with pytest.raises(DatasetError, match=r"7 episodes .* 8 were expected"):
            wd.ray.publish(mapped, "lab/fast", catalog=catalog, expect=8)
        with pytest.raises(DatasetError, match="ep05"):
            wd.ray.publish(mapped, "lab/fast", catalog=catalog, expect=[f"ep{n:02d}" for n in range(8)])
        assert latest("lab/fast", catalog) is None
        published = wd.ray.publish(mapped, "lab/fast", catalog=catalog, expect=7)
    finally:
        context.max_errored_blocks = 0
    assert latest("lab/fast", catalog) == published.version


def test_one_key_with_two_contents_is_a_conflict(catalog: str) -> None:
    mapped = wd.ray.map_episodes(
        "lab/arm", lambda e: {"noise": np.random.rand(e.steps.length)}, catalog=catalog
    )
    with pytest.raises(ConflictError, match="made twice"):
        wd.ray.publish(mapped.union(mapped), "lab/fast", catalog=catalog)
    assert latest("lab/fast", catalog) is None
    same = wd.ray.map_episodes("lab/arm", speed, catalog=catalog)
    with pytest.raises(DatasetError, match="8 episodes came to be stored, and 16 were expected"):
        wd.ray.publish(same.union(same), "lab/fast", catalog=catalog, expect=16)
    wd.ray.publish(same.union(same), "lab/fast", catalog=catalog, expect=8)
    with wd.dataset("lab/fast", catalog=catalog) as dataset:
        assert len(dataset.episodes) == 8


@only_in_soak
def test_imports_on_a_cluster_are_those_of_one_process(tmp_path: Path) -> None:
    from tests.convert.sets import made_set, tree

    source, catalog = made_set(tmp_path / "source"), str(tmp_path / "catalog")
    seen: list[tuple[int, int]] = []
    alone = wd.import_episodes(source, tmp_path / "one")
    spread = wd.import_episodes(source, tmp_path / "two", ray=True, progress=lambda *each: seen.append(each))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert {**alone.to_json(), "target": ""} == {**spread.to_json(), "target": ""}
    assert seen == [(number, 4) for number in range(5)]
    alone = wd.import_episodes(source, "lab/alone", catalog=catalog)
    spread = wd.import_episodes(source, "lab/spread", catalog=catalog, ray=True)
    assert {**alone.to_json(), "target": ""} == {**spread.to_json(), "target": ""}
    with wd.dataset("lab/alone", catalog=catalog) as one, wd.dataset("lab/spread", catalog=catalog) as two:
        assert two.manifest.artifacts == one.manifest.artifacts
        assert two.manifest.tables == one.manifest.tables


@only_in_soak
def test_checks_on_a_cluster_find_what_one_process_finds(tmp_path: Path) -> None:
    publish_arm(str(tmp_path), 9, odd=4)
    alone = wd.check_dataset("lab/arm", catalog=tmp_path)
    assert "outlier-length" in {each.rule for each in alone.findings}
    assert wd.check_dataset("lab/arm", catalog=tmp_path, ray=True) == alone


def test_the_command_takes_a_cluster(tmp_path: Path, cluster: str, capsys) -> None:
    import json

    from warpdata.cli.main import main

    publish_arm(str(tmp_path), 9, odd=4)
    assert main(["check", "lab/arm", "--catalog", str(tmp_path), "--json", "--ray", cluster]) == 0
    assert json.loads(capsys.readouterr().out)["by_rule"] == {"outlier-length": 1}


def test_errors_of_a_cluster_are_ours(tmp_path: Path) -> None:
    from tests.convert.sets import made_set

    source = made_set(tmp_path / "source")
    next(source.rglob("*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(wd.WarpError):
        wd.import_episodes(source, tmp_path / "ours", ray=True)
    assert not (tmp_path / "ours").exists()


def test_a_cluster_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cluster of the other tests, which would be found."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **_: (_ for _ in ()).throw(ConnectionError("none runs")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else gets it, and nobody answers
        for address in (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:70000", "auto", None):
            with pytest.raises(wd.WarpError, match="there is no Ray cluster to work on"):
                list(verbs.runner(address).run(str, [1]))


def test_rows_that_are_no_episodes_are_told(catalog: str) -> None:
    with pytest.raises(ValueError, match="no column 'episode_id' but id"):
        wd.ray.publish(ray.data.range(3), "lab/fast", catalog=catalog)
    with pytest.raises(TypeError, match="a list is no Ray dataset"):
        wd.ray.publish([wd.ray.row(made(1))], "lab/fast", catalog=catalog)
    with pytest.raises(TypeError, match="a list is no published dataset"):
        wd.ray.map_episodes([made(1)], speed)
    assert latest("lab/fast", catalog) is None


MODEL = """
import numpy as np
def late(episode):
    values = episode["joints"].values()
    return np.concatenate([values[:1], values[:-1]])
class Vectors:
    def __init__(self):
        self.weights = np.eye(3, dtype=np.float32)[:2]
    def __call__(self, observation):
        return self.weights @ observation["joints"]
"""


@only_in_soak
def test_vectors_and_lanes_of_a_cluster_are_those_of_one_process(
    catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions stand in a file that no worker has on its path."""
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cluster_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path / "mine"))
    model = importlib.import_module("cluster_model")
    alone = publish_arm(str(tmp_path / "other"))
    steps: list[tuple[int, int]] = []
    files = [
        wd.embed("lab/arm", model.Vectors, catalog=place, output=tmp_path / name, ray=spread, progress=told)
        for place, name, spread, told in (
            (str(tmp_path / "other"), "a.rvf", None, None),
            (catalog, "b.rvf", True, lambda *each: steps.append(each)),
        )
    ]
    assert [each.computed for each in files] == [8, 8]
    assert steps[-1] == (8, 8)
    assert Path(files[0].path).read_bytes() == Path(files[1].path).read_bytes()
    versions = set()
    for place, spread in ((str(tmp_path / "other"), None), (catalog, True)):
        with wd.dataset("lab/arm", catalog=place) as dataset:
            assert dataset.version == alone.version
            versions.add(dataset.add_lane("late", model.late, of="joints", ray=spread).version)
    assert len(versions) == 1


def test_a_cluster_in_which_nobody_works_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.ray import adapter

    monkeypatch.setattr(adapter, "_WORKER_S", 0.1)
    monkeypatch.setattr(adapter, "_nothing", ray.remote(resources={"nowhere": 1})(lambda: None))
    with pytest.raises(UnavailableError, match="began to work") as raised:
        list(adapter.RayRunner().run(abs, [1]))
    assert "--jobs" in raised.value.hint


def test_ctrl_c_while_a_cluster_starts_stops_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.ray import adapter

    did: list[str] = []

    def init(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)
        did.append("started")

    monkeypatch.setattr(adapter.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(adapter.ray, "init", init)
    monkeypatch.setattr(adapter.ray, "shutdown", lambda: did.append("stopped"))
    with pytest.raises(KeyboardInterrupt):
        list(adapter.RayRunner().run(abs, [1]))
    assert did == ["started", "stopped"]
