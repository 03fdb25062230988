"""A wrong argument is a plain error of Python or one of ours, whatever it is and wherever it is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.errors import suggests

WRONG: list[Any] = [
    None, -1, 10**30, 2**63, -(2**63) - 1, 1.5, float("nan"), float("inf"), "x", "", b"x", [], {}, (), object(), 1j,
    [None], {"x": 1}, len, np.zeros((2, 2)), np.float32(1), "a\0b", "\ud800", slice(0, 2), range(3), np.uint64(2**63),
]  # fmt: skip
PLAIN = (wd.WarpError, ValueError, TypeError, KeyError, IndexError)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[Any], Any]]:
    folder = tmp_path_factory.mktemp("calls")
    with wd.record(folder / "root", clock="simulated") as recorder:
        for i in range(6):
            recorder.step({"x": np.zeros(2, np.float32)}, {"a": 1.0}, ts_ns=i * 10)
    catalog = str(folder / "catalog")
    with wd.DatasetBuilder("a/b", catalog=catalog) as builder:
        builder.add_table("main", {"id": [1, 2, 3]}).publish()
    episodes = wd.open(folder / "root")
    dataset = wd.dataset("a/b", catalog=catalog)
    episode, table = episodes[0], dataset.table("main")
    windows = wd.Windows(episodes, {"x": "x"}, anchor="a")
    loader = wd.Loader(windows, batch_size=2)
    signal = episode["x"]
    return {
        "dataset": lambda v: wd.dataset(v, catalog=catalog),
        "catalog": lambda v: wd.dataset("a/b", catalog=v),
        "trusted keys": lambda v: wd.dataset("a/b", catalog=catalog, trusted_keys=v),
        "builder": lambda v: wd.DatasetBuilder(v, catalog=catalog).close(),
        "save": lambda v: wd.save_wshard(v, folder / "out.wshard"),
        "pack": lambda v: wd.pack_episode(v, folder / "packed.wshard"),
        "item": lambda v: episode[v],
        "records": lambda v: signal[v],
        "moments": lambda v: signal.time[v],
        "grid": lambda v: signal.time[0:10:v],
        "times": lambda v: episode.sample(v),
        "align": lambda v: episode.sample([1], align=v),
        "rate": lambda v: episode.steps_at(rate_hz=v),
        "map": lambda v: episodes.map(lambda _: v)[0],
        "seed": lambda v: episodes.split(train=0.5, seed=v),
        "fields": lambda v: wd.Windows(episodes, v, anchor="a"),
        "some fields": windows.only,
        "statistics": windows.statistics,
        "encoding": lambda v: wd.import_episodes(folder / "root", folder / "in", video=v),
        "samples": windows.batch,
        "located": windows.locate,
        "mixture": wd.Mixture,
        "normalize": lambda v: wd.Loader(windows, batch_size=2, normalize=v),
        "state": loader.load_state_dict,
        "rank": lambda v: table.batches(2, rank=v, world=2).close(),
        "world": lambda v: table.batches(2, rank=0, world=v).close(),
        "rows": table.take,
        "bind": table.bind,
        "other version": dataset.diff,
        "extra tables": lambda v: dataset.sql("select 1", extra=v),
        "warmed": dataset.warm,
        "warmed shards": lambda v: dataset.warm(shards=v),
        "planned": lambda v: dataset.plan("main", limit=v),
        "most requests": lambda v: wd.dataset("a/b", catalog=catalog, max_requests=v).close(),
        "most bytes": lambda v: wd.dataset("a/b", catalog=catalog, max_bytes=v).close(),
        "cache size": lambda v: wd.dataset("a/b", catalog=catalog, cache_bytes=v).close(),
        "retries": lambda v: _published(catalog, retries=v),
        "tags": lambda v: _published(catalog, tags=v),
        "message": lambda v: _published(catalog, message=v),
        "workers": lambda v: _published(catalog, workers=v),
        "expected": lambda v: _published(catalog, expect_latest=v),
        "table": lambda v: wd.DatasetBuilder("a/b", catalog=catalog).add_table("main", v).close(),
        "table name": lambda v: wd.DatasetBuilder("a/b", catalog=catalog).add_table(v, {"id": [1]}).close(),
        "artifact": lambda v: wd.DatasetBuilder("a/b", catalog=catalog).add_artifact("raw", v).close(),
        "summary": episodes.stats,
        "jobs": lambda v: wd.check_dataset(folder / "root", jobs=v if v != 10**30 and v != 2**63 else 0),
        "muted": lambda v: wd.check_dataset(folder / "root", mute=v),
        "environment": lambda v: wd.RecordEpisodes(v, folder / "gym"),
        "shards": wd.MmapShardSource,
    }


def _published(catalog: str, **options: Any) -> None:
    with wd.DatasetBuilder("a/c", catalog=catalog) as builder:
        builder.add_table("main", {"id": [1]}).publish(**options)


def test_a_wrong_argument_is_a_plain_error(calls: dict[str, Callable[[Any], Any]]) -> None:
    for name, call in calls.items():
        for value in WRONG:
            try:
                call(value)
            except PLAIN:
                pass
            except Exception as error:
                raise AssertionError(f"{name}({value!r}) raised {error!r}") from error


def test_a_wrong_kind_is_named_at_every_door(tmp_path: Path) -> None:
    builder = wd.DatasetBuilder("a/b", catalog=tmp_path / "catalog")
    doors: list[Callable[[Any], Any]] = [
        wd.open, wd.open_episodes, wd.open_recordings, wd.open_corpus, wd.check_dataset, wd.embed, wd.LocalDataset,
        lambda v: wd.import_episodes(v, tmp_path / "in"), lambda v: wd.export_episodes(v, tmp_path / "out", "mcap"),
        lambda v: wd.chunk_episode(v, tmp_path / "chunks", 4), wd.Episode.of,
        wd.Episodes.of, wd.LocalDataset.of,
        lambda v: wd.ShuffledRows(v, seed=1, batch_size=2),
        lambda v: wd.CorpusWriter(tmp_path / "corpus", 4, columns=v),
        lambda v: wd.Dataset(v, v, v, v), lambda v: wd.FileRef(v, 0), lambda v: wd.VideoRef(v, 0),
        lambda v: wd.read_refs([v]), builder.keep, lambda v: builder.revise(v, v),
        lambda v: builder.add_stored_episodes("stored", [v]),
    ]  # fmt: skip
    for door in doors:
        for value in (None, 3, b"x"):
            with pytest.raises(TypeError, match=f"not (from )?{type(value).__name__}"):
                door(value)
    for value in (3, b"x", {}):
        with pytest.raises(TypeError, match=f"options is a ParquetOptions, not {type(value).__name__}"):
            builder.add_table("main", {"id": [1]}, options=value)
        with pytest.raises(TypeError, match=f"options is a PackOptions, not {type(value).__name__}"):
            builder.add_artifact("raw", tmp_path, options=value)
    for wrong in (None, "4", 1.5):
        for count in (
            lambda v: wd.chunk_episode(wd.WShardEpisode(id="e", length=2), tmp_path, v),
            lambda v: wd.ChunkedEpisodeWriter(tmp_path, "e", v),
            lambda v: wd.ActivationShardWriter(tmp_path / "x.shard", v),
        ):
            with pytest.raises(TypeError, match=f"a whole number.*not {type(wrong).__name__}"):
                count(wrong)


def test_a_list_of_episodes_holds_episodes() -> None:
    episode = wd.Episode.of({"a": wd.ArraySignal([0], [1.0])}, id="a")
    for of in (wd.Episodes.of, wd.LocalDataset.of):
        assert of(iter([episode])).ids == ["a"]
        for wrong in ([episode, 1], [None], {"a": episode}, "a", [wd.WShardEpisode("a")]):
            with pytest.raises(TypeError, match=r"Episode|not (dict|str)"):
                of(wrong)


def test_the_name_of_a_channel_is_a_text() -> None:
    with pytest.raises(TypeError, match="name of a channel"):
        wd.WShardEpisode(id="e", length=2).observations[None] = np.zeros(2)  # type: ignore[index]


@pytest.mark.parametrize("option", ["gop_size", "fps", "threads"])
def test_what_no_encoder_holds_is_refused_before_a_frame_is_recorded(option: str) -> None:
    for value in (-1, 10**30):
        with pytest.raises(ValueError, match=option):
            wd.VideoOptions(**{option: value})


def test_integers_of_numpy_are_integers_and_fractions_are_none(
    calls: dict[str, Callable[[Any], Any]],
) -> None:
    assert [len(each) for each in calls["seed"](np.int64(2))] == [len(each) for each in calls["seed"](2)]
    assert calls["samples"](np.array([1, 0], np.int32)).sample_id.tolist() == [1, 0]
    for name, value in (("samples", [0.5]), ("rank", 0.5), ("world", 2.5), ("rank", "0")):
        with pytest.raises((TypeError, ValueError)):
            calls[name](value)


OTHERS = {
    "Channel", "CorpusWriter", "ShuffledRows", "dataset", "export_episodes", "import_episodes", "load",
    "open_corpus", "open_dataset",
    "Dataset", "Episode", "Episodes", "MmapShardSource", "Signal", "VectorStore", "WarpError", "__version__",
    "keep_decoded",
}  # fmt: skip
"""Public names that look at their keyword arguments themselves, or have none for users to write."""


@pytest.mark.parametrize("name", sorted(set(wd.__all__) - OTHERS))
def test_a_misspelt_option_is_refused_with_the_right_one(name: str) -> None:
    option = max(inspect.signature(getattr(wd, name)).parameters, key=len)
    with pytest.raises(TypeError, match=f"Did you mean '{option}'"):
        getattr(wd, name)(**{f"{option}x": 1})


def test_a_type_error_inside_a_call_is_left_alone() -> None:
    def wrong() -> None:
        wd.Field("x", pastx=1)

    with pytest.raises(TypeError, match="Did you mean 'past'"):
        suggests(wrong)()
    with pytest.raises(TypeError, match="missing 1 required") as raised:
        wd.Field()  # type: ignore[call-arg]
    assert "Did you mean" not in str(raised.value)


def test_a_tensor_with_gradients_is_no_list_of_ids(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with wd.VectorStore.create(tmp_path / "v.rvf", dim=2) as store:
        with pytest.raises((ValueError, TypeError), match="id"):
            store.add(np.ones((2, 2)), ids=torch.tensor([0.5, 1.5], requires_grad=True))
        store.add(np.ones((2, 2)), ids=torch.tensor([4, 7]))
        assert set(store.search(np.ones(2), k=2)[0].tolist()) == {4, 7}


def test_a_cluster_is_named_by_a_text() -> None:
    for value in (-1, 2**63, 1.5, b"x", [], object()):
        with pytest.raises(TypeError, match=f"ray is .*, not {type(value).__name__}"):
            wd.check_dataset("root", ray=value)  # type: ignore[arg-type]


def test_one_name_is_no_list_of_letters(tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as recorder:
        for i in range(3):
            recorder.step({"joint": np.zeros(2, np.float32)}, {"a": 1.0}, ts_ns=i * 10)
    episodes = wd.open(tmp_path / "root")
    assert list(episodes.stats("joint")) == ["joint"]
    with pytest.raises(KeyError, match=r"no signal 'jiont'.*'joint'"):
        episodes.stats("jiont")
    with pytest.raises(ValueError, match="'typo'"):
        wd.check_dataset(tmp_path / "root", mute="typo")


def test_options_of_a_dataset_are_suggested_as_they_are_given(tmp_path: Path) -> None:
    for wrong, right in (("catlog", "catalog"), ("catalogs", "catalog"), ("max_byte", "max_bytes")):
        with pytest.raises(TypeError, match=f"unknown option '{wrong}'. Did you mean '{right}'"):
            wd.dataset("a/b", **{wrong: str(tmp_path)})  # type: ignore[arg-type]


def test_a_path_is_one_catalog_whatever_it_is_called(tmp_path: Path) -> None:
    """Only in a text does a comma separate several."""
    with wd.DatasetBuilder("a/b", catalog=tmp_path / "one, two") as builder:
        builder.add_table("main", {"id": [1]}).publish()
    assert [path.name for path in tmp_path.iterdir()] == ["one, two"]
    assert wd.dataset("a/b", catalog=tmp_path / "one, two").table().row_count == 1


def test_an_open_file_is_no_table(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"\xbc")
    for mode in ("r", "rb"):
        with (
            path.open(mode) as file,
            wd.DatasetBuilder("a/b", catalog=tmp_path) as builder,
            pytest.raises(TypeError, match="is not a table; give files"),
        ):
            builder.add_table("main", file)
