"""Episodes stored by many and published by one: the version depends on what they are and on nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.ray.sets import blobs, latest, made, publish_arm
from tests.sweeps import enough_examples
from warpdata.catalog.build.episodes import EpisodeStore, StoredEpisode, merge_stored, packed_bytes
from warpdata.errors import ConflictError, DatasetError, FormatError


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[str, list[StoredEpisode], str]:
    """A catalog, stored episodes, and the version they make."""
    catalog = str(tmp_path_factory.mktemp("catalog"))
    with EpisodeStore(catalog, "episodes") as store:
        stored = [store.store(made(n).id, made(n)) for n in range(6)]
    return catalog, stored, publish_arm(catalog, 6).version


def committed(catalog: str, stored: list[StoredEpisode], *, name: str = "lab/arm", extend: bool = False):
    with wd.DatasetBuilder(name, catalog=catalog) as builder:
        if extend:
            builder.extend()
        return builder.add_stored_episodes("episodes", stored).publish()


@settings(max_examples=enough_examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_order_and_any_repetition_is_the_same_version(kept, data) -> None:
    catalog, stored, version = kept
    order = data.draw(st.permutations(stored))
    again = data.draw(st.lists(st.sampled_from(stored), max_size=4))
    given_back = pickle.loads(pickle.dumps([*order, *again]))
    assert committed(catalog, given_back).version == version


def test_one_id_with_two_contents_publishes_nothing(tmp_path: Path) -> None:
    catalog = str(tmp_path)
    with EpisodeStore(catalog, "episodes") as store:
        stored = [store.store("a", made(0)), store.store("b", made(1)), store.store("a", made(2))]
    with pytest.raises(ConflictError, match="'a' was made twice"):
        committed(catalog, stored)
    assert latest("lab/arm", catalog) is None


def test_two_ids_with_one_name_are_refused() -> None:
    from warpdata.formats.manifest.model import BlobRef

    blob = BlobRef("0" * 64, 1, name="x.wshard")
    with pytest.raises(ConflictError, match=r"'x\.wshard'"):
        merge_stored([StoredEpisode("a", (blob,), {}), StoredEpisode("b", (blob,), {})])


def test_storing_again_sends_nothing(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, "episodes") as store:
        first, second = store.store("a", made(0)), store.store("a", made(0))
        third = store.store("a", packed_bytes(made(0), "a"))
    assert len(first.sent) == 1
    assert second.sent == third.sent == ()
    assert first.blobs == second.blobs == third.blobs
    assert len(blobs(str(tmp_path))) == 1
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "blobs" not in path.parts]
    assert not left, "nothing stays beside the blobs"


def test_bytes_with_another_id_are_packed_under_the_new_one(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, "episodes") as store:
        stored = store.store("new/name", packed_bytes(made(0), "old"))
    committed(str(tmp_path), [stored])
    with wd.dataset("lab/arm", catalog=tmp_path) as dataset:
        assert dataset.episodes.ids == ["new/name"]
        assert np.array_equal(dataset.episodes[0]["joints"].values(), made(0)["joints"].values())


@pytest.mark.parametrize("name", ["../out", "/out", "a//b", ""])
def test_no_id_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with EpisodeStore(tmp_path / "catalog", "episodes") as store:
        for content in (made(0), packed_bytes(made(0), "a")):
            with pytest.raises(DatasetError, match="invalid id of an episode"):
                store.store(name, content)
    assert not list(tmp_path.rglob("*.wshard"))


def test_damaged_bytes_are_not_stored(tmp_path: Path) -> None:
    whole = packed_bytes(made(0), "a")
    with EpisodeStore(tmp_path, "episodes") as store, pytest.raises(FormatError):
        store.store("a", whole[: len(whole) // 2])
    assert not blobs(str(tmp_path))


def test_long_episodes_are_stored_in_chunks(tmp_path: Path) -> None:
    catalog = str(tmp_path / "one")
    episode = made(0, steps=4000)
    with EpisodeStore(catalog, "episodes", chunk_bytes=30_000) as store:
        stored = store.store("long", episode)
        assert store.store("long", packed_bytes(episode, "long")).blobs == stored.blobs
    assert len(stored.blobs) > 2
    with wd.DatasetBuilder("lab/arm", catalog=tmp_path / "two") as builder:
        expected = wd.Episode.of(episode.signals, episode.static, id="long", steps=episode.source.step_clock)
        builder.add_episodes("episodes", wd.Episodes.of([expected]), chunk_bytes=30_000)
        version = builder.publish().version
    assert committed(catalog, [stored]).version == version
    other = str(tmp_path / "three")
    with wd.dataset("lab/arm", catalog=catalog) as dataset, EpisodeStore(other, "episodes") as store:
        source = dataset.episodes_source("episodes")
        copied = store.store_published("long", source, stored.facts["blob"])
    assert (copied.blobs, len(copied.sent)) == (stored.blobs, len(stored.blobs))
    assert committed(other, [copied]).version == version
    with wd.dataset("lab/arm", catalog=other) as dataset:
        assert np.array_equal(dataset.episodes[0]["joints"].values(), episode["joints"].values())


def test_what_was_collected_meanwhile_is_an_error(tmp_path: Path) -> None:
    with EpisodeStore(tmp_path, "episodes") as store:
        stored = store.store("a", made(0))
    for path in (tmp_path / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(DatasetError, match="missing"):
        committed(str(tmp_path), [stored])
    assert latest("lab/arm", str(tmp_path)) is None


def test_stored_episodes_join_the_newest_version(tmp_path: Path) -> None:
    catalog = str(tmp_path)
    publish_arm(catalog, 3)
    with EpisodeStore(catalog, "episodes") as store:
        stored = [store.store(made(n).id, made(n)) for n in (4, 3)]
    committed(catalog, stored, extend=True)
    with wd.dataset("lab/arm", catalog=catalog) as dataset:
        assert dataset.episodes.ids == [f"ep{n:02d}" for n in range(5)]
        assert dataset.episodes.where("length = 24").ids == ["ep04"]
