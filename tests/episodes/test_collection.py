"""Sequences of episodes: one type for roots, versions, lists, slices, filters and concatenations."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import DatasetError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal

COUNT = 7


def record_root(root: Path, count: int = COUNT) -> wd.LocalDataset:
    for number in range(count):
        facts = {"task": "pick" if number % 2 else "place", "success": number > 2, "operator": number % 3}
        with wd.record(root, static=facts, clock="simulated") as rec:
            for k in range(5 + number):
                value = np.array([number, k], np.float32)
                rec.step({"state": value}, {"push": float(k)}, reward=0.5 * number, ts_ns=k * 10**8)
    return wd.LocalDataset(root)


@pytest.fixture
def episodes(tmp_path: Path) -> wd.LocalDataset:
    return record_root(tmp_path / "root")


@pytest.fixture(params=["local", "published", "list"])
def any_episodes(request: pytest.FixtureRequest, tmp_path: Path, episodes: wd.LocalDataset):
    if request.param == "local":
        yield episodes
    elif request.param == "list":
        yield Episodes.of(list(episodes))
    else:
        with wd.DatasetBuilder("lab/x", catalog=tmp_path / "catalog") as builder:
            builder.add_episodes("demo", tmp_path / "root").publish()
        with wd.dataset("lab/x", catalog=tmp_path / "catalog") as ds:
            yield ds.episodes


def test_facts_and_filters(any_episodes: Episodes) -> None:
    facts = any_episodes.facts.to_pylist()
    assert [row["id"] for row in facts] == any_episodes.ids == [f"{n:012d}" for n in range(COUNT)]
    assert [row["length"] for row in facts] == [5 + n for n in range(COUNT)]
    assert [row["duration_s"] for row in facts] == pytest.approx([(4 + n) / 10 for n in range(COUNT)])
    assert [row["total_reward"] for row in facts] == [0.5 * n * (5 + n) for n in range(COUNT)]
    chosen = any_episodes.where("task = 'pick' and success")
    assert isinstance(chosen, Episodes)
    assert [episode.static["operator"] for episode in chosen] == [0, 2]
    assert chosen.ids == ["000000000003", "000000000005"]
    assert len(any_episodes.where("length >= 9 and duration_s < 1.0")) == 2
    assert any_episodes.where("rates['state'] > 100").ids == []
    assert len(chosen.where("operator = 2")) == 1
    with pytest.raises(DatasetError, match="succes") as error:
        any_episodes.where("succes")
    assert "Did you mean 'success'?" in error.value.hint
    assert "__warp" not in str(error.value)  # columns of our own are nobody's business
    with pytest.raises(DatasetError):
        any_episodes.where("true; drop table x")


def test_slices_lists_and_ids(any_episodes: Episodes) -> None:
    assert isinstance(any_episodes[1:3], Episodes)
    assert any_episodes[1:3].ids == any_episodes[[1, 2]].ids == ["000000000001", "000000000002"]
    assert any_episodes["000000000004"].id == any_episodes["4"].id == any_episodes[4].id
    assert any_episodes[-1].static["operator"] == 0
    assert any_episodes[::-1].ids == any_episodes.ids[::-1]
    with pytest.raises(KeyError, match="Did you mean"):
        any_episodes["00000000000x"]
    with pytest.raises(IndexError):
        any_episodes[COUNT]
    again = pickle.loads(pickle.dumps(any_episodes[2:5]))
    assert [episode.steps.length for episode in again] == [7, 8, 9]


def test_concatenation_and_map(any_episodes: Episodes, episodes: wd.LocalDataset) -> None:
    joined = any_episodes[:2] + episodes.where("success")
    assert len(joined) == 2 + 4
    assert joined.where("operator = 0").ids == ["000000000000", "000000000003", "000000000006"]
    doubled = joined.map(double)
    assert doubled[1].steps.observations["double"].data[:, 1].tolist() == [2 * k for k in range(6)]
    assert doubled.ids == joined.ids
    assert pickle.loads(pickle.dumps(doubled))[3]["double"].values()[2, 1] == 4
    with pytest.raises(ValueError, match="one row for each of 5 steps"):
        joined.map(lambda episode: {"x": np.zeros(3)})[0]


def test_an_id_that_two_episodes_have_names_none(episodes: wd.Episodes) -> None:
    """Of two sets with the same ids, neither is chosen silently."""
    twice = episodes[:3] + episodes[1:2]
    assert twice["000000000000"].id == twice[0].id
    for name in ("000000000001", "1"):
        with pytest.raises(KeyError, match=r"2 episodes are called '000000000001'.*position"):
            twice.open(name)
    assert [twice[position].id for position in (1, 3)] == ["000000000001"] * 2


def double(episode: Episode) -> dict[str, np.ndarray]:
    return {"double": 2 * episode.steps.observations["state"].data}


def test_statistics_are_those_of_all_values(any_episodes: Episodes) -> None:
    found = any_episodes.stats()["state"]
    everything = np.concatenate([episode["state"].values() for episode in any_episodes]).astype(np.float64)
    assert found.count.tolist() == [len(everything)] * 2
    assert found.mean == pytest.approx(everything.mean(axis=0))
    assert found.std == pytest.approx(everything.std(axis=0))
    assert found.min.tolist() == everything.min(axis=0).tolist()
    assert found.max.tolist() == everything.max(axis=0).tolist()
    for share, values in found.quantiles.items():
        exact = np.quantile(everything, share, axis=0, method="inverted_cdf")
        assert np.all(np.abs(values - exact) <= found.quantile_error * np.abs(exact) + 1e-9)
    assert found.read == 0, "what was recorded suffices"
    assert found.episodes == COUNT
    only = any_episodes.stats(["push"])
    assert list(only) == ["push"]
    with pytest.raises(KeyError, match="Did you mean 'state'"):
        any_episodes.stats(["sate"])


def test_edited_episodes_are_read_for_their_statistics(episodes: wd.LocalDataset) -> None:
    episodes.edits.trim(3, 2 * 10**8, None)
    episodes.edits.set_static(4, "task", "sweep")
    episodes.refresh()
    found = episodes.stats(["push"])["push"]
    assert found.read == 1
    assert found.count.tolist() == [sum(5 + n for n in range(COUNT)) - 2]
    assert episodes.where("task = 'sweep'").ids == ["000000000004"]
    assert episodes.facts.column("length").to_pylist()[3] == 6


def test_facts_are_kept_and_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.episodes.collection import facts

    root = tmp_path / "root"
    episodes = record_root(root, 3)
    assert len(episodes.where("success")) == 0
    looked: list[str] = []
    original = facts.facts_of
    monkeypatch.setattr(facts, "facts_of", lambda episode: looked.append(episode.id) or original(episode))
    assert wd.LocalDataset(root).facts.equals(episodes.facts)
    assert looked == []
    with wd.record(root, static={"success": True}, clock="simulated") as rec:
        rec.append("x", 1.0, 0)
    assert wd.LocalDataset(root).where("success").ids == ["000000000003"]
    assert looked == ["000000000003"]
    (root / ".facts.parquet").write_bytes(b"not parquet")
    assert wd.LocalDataset(root).where("success").ids == ["000000000003"]
    assert len(looked) == 5


ids = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), unique=True, max_size=60)


@given(ids, st.integers(0, 2**32), st.floats(0, 1))
def test_splits_are_stable_and_whole(names: list[str], seed: int, share: float) -> None:
    signal = ArraySignal([0], [1.0])
    whole = Episodes.of([Episode.of({"x": signal}, id=name) for name in names])
    train, *rest = whole.split(train=share, seed=seed)
    assert sorted([*train.ids, *(each for part in rest for each in part.ids)]) == sorted(names)
    assert whole.split(train=share, seed=seed).train.ids == train.ids
    fewer = whole[: len(whole) // 2]
    assert fewer.split(train=share, seed=seed).train.ids == [n for n in fewer.ids if n in set(train.ids)]


def test_shares_of_a_split() -> None:
    signal = ArraySignal([0], [1.0])
    whole = Episodes.of([Episode.of({"x": signal}, id=str(number)) for number in range(4000)])
    parts = whole.split(train=0.8, val=0.1, test=0.1, seed=3)
    assert parts.names == ("train", "val", "test")
    assert abs(len(parts.train) / 4000 - 0.8) < 0.03
    assert abs(len(parts.val) / 4000 - 0.1) < 0.03
    nan = float("nan")
    for wrong in (
        {"train": 1.2},
        {"train": -0.1},
        {},
        {"train": nan},
        {"train": 0.5, "val": nan},
        {"train": "0.5"},
    ):
        with pytest.raises(ValueError, match="shares"):
            whole.split(**wrong)  # type: ignore[arg-type]


def test_an_episode_that_is_damaged_is_named_among_the_others(tmp_path: Path) -> None:
    """One that cannot be opened does not hide the facts of the others."""
    whole = record_root(tmp_path / "root", 3)
    damaged = next(path for path in (tmp_path / "root").rglob("meta.json") if "000000000001" in str(path))
    damaged.write_bytes(b"{")
    facts = wd.LocalDataset(tmp_path / "root").facts.to_pylist()
    assert [row["id"] for row in facts] == whole.ids
    assert [bool(row["problems"]) for row in facts] == [False, True, False]
    assert "JSON" in facts[1]["problems"][0]
    damaged.with_name("static.json").write_bytes(b"{")
    assert "JSON" in wd.LocalDataset(tmp_path / "root")._repr_html_()


def test_episodes_join_only_episodes(episodes: wd.LocalDataset) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        episodes + 5  # type: ignore[operator]
    parts = episodes.split(train=0.5, val=0.5, seed=1)
    assert repr(parts) == f"<Split train: {len(parts.train)}, val: {len(parts.val)}>"
    with pytest.raises(AttributeError, match="test"):
        _ = parts.test
