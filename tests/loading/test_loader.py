"""The loader: one order for any ranks, threads and workers; states that lose nothing; faults that are never silent."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.servers import unique
from tests.sweeps import SOAK, enough_examples
from warpdata.errors import SchemaMismatchError, TooLargeError, WarpError
from warpdata.loading.source import sample_rng

MS = 1_000_000


def memory_episodes(lengths: list[int], seed: int = 0) -> wd.Episodes:
    made = []
    for number, count in enumerate(lengths):
        rng = np.random.default_rng([seed, number])
        times = np.arange(count) * 50 * MS
        signals = {
            "joints": wd.ArraySignal(times, rng.normal(size=(count, 3)).astype(np.float32)),
            "action": wd.ArraySignal(times, rng.normal(3.0, 2.0, size=(count, 2)).astype(np.float32)),
        }
        made.append(wd.Episode.of(signals, {"task": "ab"[number % 2]}, id=f"{number:03d}"))
    return wd.Episodes.of(made)


def windows_of(episodes: wd.Episodes, **options) -> wd.Windows:
    fields = {"state": wd.Field("joints", past=2), "action": wd.Field("action", horizon=4)}
    return wd.Windows(episodes, fields, anchor="action", **options)


def ids(loader: wd.Loader) -> list[list[int]]:
    return [batch.sample_id.tolist() for batch in loader]


def joined(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The global batches of what each rank gave."""
    return [[each for part in step for each in part] for step in zip(*ranks, strict=True)]


SMALL = windows_of(memory_episodes([17, 0, 40, 3, 25]))


@settings(max_examples=enough_examples(20))
@given(
    world=st.sampled_from([1, 2, 3, 5, 8, 64]), batch=st.integers(1, 40), seed=st.integers(0, 5),
    epoch=st.integers(0, 3), threads=st.integers(0, 3), tail=st.sampled_from(["short", "drop", "pad"]),
    shuffle=st.sampled_from([True, "full", False]),
)  # fmt: skip
def test_ranks_together_give_the_order_of_one(world, batch, seed, epoch, threads, tail, shuffle) -> None:
    options = {"seed": seed, "epoch": epoch, "tail": tail, "shuffle": shuffle}
    alone = ids(wd.Loader(SMALL, batch, **options, threads=0))
    ranks = [
        ids(wd.Loader(SMALL, batch, **options, rank=r, world=world, threads=threads)) for r in range(world)
    ]
    assert joined(ranks) == alone
    given_ids = [each for step in alone for each in step]
    if tail == "short":
        assert sorted(given_ids) == list(range(len(SMALL)))
    elif tail == "drop":
        assert len(set(given_ids)) == len(given_ids) == len(SMALL) // batch * batch
    else:
        assert {len(step) for step in alone} <= {batch}
        assert set(given_ids) == set(range(len(SMALL)))
    if shuffle is False and tail == "short":
        assert given_ids == list(range(len(SMALL)))


@settings(max_examples=enough_examples(20))
@given(
    first=st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 30)), steps=st.integers(0, 12),
    then=st.tuples(st.sampled_from([1, 3, 7]), st.integers(1, 30)), mixed=st.booleans(),
    tail=st.sampled_from(["short", "drop"]),
)  # fmt: skip
def test_resuming_loses_and_repeats_nothing(first, steps, then, mixed, tail) -> None:
    """Interrupted anywhere, gone on with another world and another batch size."""
    source = MIXED if mixed else SMALL
    whole = [
        (e, *each) for e in (0, 1) for each in positions(wd.Loader(source, 1, seed=3, epoch=e, threads=0))
    ]
    states, done = [], 0
    for rank in range(first[0]):
        loader = wd.Loader(source, first[1], seed=3, rank=rank, world=first[0], threads=0, tail=tail)
        batches = iter(loader)
        for _ in range(steps):
            if next(batches, None) is None:
                batches = iter(loader)
                next(batches, None)
        states.append(loader.state_dict())
        done = loader.epoch * len(source) + loader.position
    assert all(without_rank(state) == states[0] for state in states)
    assert len(json.dumps(states[0])) < 300
    if states[0]["epoch"] > 1:
        return
    ranks = []
    for rank in range(then[0]):
        loader = wd.Loader(source, then[1], seed=3, rank=rank, world=then[0], threads=0)
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        ranks.append([positions_of(batch) for batch in loader])
    rest = [each for step in zip(*ranks, strict=True) for part in step for each in part]
    at = states[0]["epoch"] * len(source) + states[0]["position"]
    if tail == "short":
        assert at == done
    end = (states[0]["epoch"] + 1) * len(source)
    assert rest == [each[1:] for each in whole[at:end]]


def without_rank(state: dict) -> dict:
    """The part of a state that all ranks share."""
    return {key: value for key, value in state.items() if key not in ("rank", "world", "batch")}


def positions_of(batch) -> list[tuple[int, int]]:
    source = np.zeros(batch.size, int) if batch.source is None else batch.source
    return list(zip(source.tolist(), batch.sample_id.tolist(), strict=True))


def positions(loader: wd.Loader) -> list[tuple[int, int]]:
    return [each for batch in loader for each in positions_of(batch)]


MIXED = wd.Mixture(
    {"a": (windows_of(memory_episodes([30, 9], 1)), 0.7), "b": (windows_of(memory_episodes([12], 2)), 0.3)}
)


@settings(max_examples=enough_examples(20))
@given(
    weights=st.lists(st.sampled_from([0.1, 0.25, 0.3, 0.7, 1.0, 3.0]), min_size=2, max_size=4),
    length=st.integers(10, 400),
)
def test_a_mixture_keeps_its_quotas_everywhere(weights, length) -> None:
    sources = {f"s{i}": (windows_of(memory_episodes([7 + i], i)), w) for i, w in enumerate(weights)}
    mixture = wd.Mixture(sources, length=length)
    shares = np.array(weights) / sum(weights)
    given_sources: list[int] = []
    seen: list[list[int]] = [[] for _ in weights]
    for epoch in range(3):
        for source, sample in positions(wd.Loader(mixture, 16, seed=1, epoch=epoch, threads=0)):
            given_sources.append(source)
            seen[source].append(sample)
    counts = np.zeros(len(weights))
    for n, source in enumerate(given_sources, 1):
        counts[source] += 1
        assert (np.abs(counts - shares * n) < len(weights)).all()
    assert len(given_sources) == 3 * length
    for number, samples in enumerate(seen):  # every pass over a source has each of its samples once
        size = 7 + number
        for start in range(0, len(samples) - size + 1, size):
            assert sorted(samples[start : start + size]) == list(range(size))
    total = mixture.quotas(0)
    assert sum(each["samples"] for each in total.values()) == length


@settings(max_examples=enough_examples(20), deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 10), min_size=2, max_size=5),
    length=st.integers(1, 300_000),
    epoch=st.integers(0, 3),
)
def test_quotas_of_an_epoch_are_exact_for_any_weights(weights, length, epoch) -> None:
    mixture = wd.Mixture({f"s{i}": (SMALL, weight) for i, weight in enumerate(weights)}, length=length)
    found = [each["samples"] for each in mixture.quotas(epoch).values()]
    assert sum(found) == length
    for count, weight in zip(found, weights, strict=True):
        # The rounding at both ends of the epoch, as small as the schedule's steps, and no drift.
        assert abs(count - length * weight / sum(weights)) < 2 + len(weights) / 2


def test_a_mixture_follows_its_schedule() -> None:
    a, b = windows_of(memory_episodes([20], 1)), windows_of(memory_episodes([20], 2))
    mixture = wd.Mixture(
        {"a": (a, 1.0), "b": (b, 1.0)}, length=100, schedule={40: {"a": 1.0}, 70: {"b": 1.0}}
    )
    got = [source for source, _ in positions(wd.Loader(mixture, 7, threads=0))]
    assert (sum(got[:40]), sum(got[40:70]), sum(got[70:])) == (20, 0, 30)
    with pytest.raises(KeyError, match="Did you mean 'a'"):
        wd.Mixture({"a": (a, 1.0)}, schedule={3: {"A": 1.0}})


def test_mixtures_by_task_and_by_episode() -> None:
    windows = windows_of(memory_episodes([10, 10, 10, 10]))
    by_task = wd.Mixture.by_static(windows, {"a": 3.0, "b": 1.0})
    assert {n: q["samples"] for n, q in by_task.quotas().items()} == {"a": 30, "b": 10}
    by_episode = wd.Mixture.by_episode(windows, {"000": 3.0, "001": 0.0})
    assert [len(source) for source in by_episode.sources] == [10, 20]
    quotas = [each["samples"] for each in by_episode.quotas().values()]
    assert abs(quotas[0] - 30 * 30 / 50) <= 1
    with pytest.raises(KeyError, match="Did you mean '001'"):
        wd.Mixture.by_episode(windows, {"0001": 2.0})


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -1.0, 0.0])
def test_weights_that_are_none(weight) -> None:
    with pytest.raises(ValueError, match="weights of 0 or more"):
        wd.Mixture({"a": (SMALL, weight)})


def with_fields(**fields: wd.Field | str) -> wd.Windows:
    return wd.Windows(SMALL.episodes, fields, anchor="action")


NO_SAMPLES = windows_of(memory_episodes([0]), edges="skip")
NO_WEIGHT = "a weight is a number of 0 or more, not"


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: wd.Mixture.by_static(SMALL, name="tsk"), KeyError, "static item 'tsk'. Did you mean 'task'"),
        (lambda: wd.Mixture.by_static(SMALL, {"aa": 1.0}), KeyError, "no episode has task 'aa'. Did you mean 'a'"),
        (lambda: wd.Mixture.by_static(SMALL, ["a"]), TypeError, "weights is {value: weight}, not list"),
        (lambda: wd.Mixture.by_episode(SMALL, {"000": -1.0}), ValueError, f"{NO_WEIGHT} -1.0"),
        (lambda: wd.Mixture.by_episode(SMALL, {"000": float("nan")}), ValueError, f"{NO_WEIGHT} nan"),
        (lambda: wd.Mixture.by_episode(SMALL, lambda row: -len(row["id"])), ValueError, f"{NO_WEIGHT} -3"),
        (lambda: wd.Mixture.by_sample(SMALL, {"joints[1] > 0": "2"}), ValueError, f"{NO_WEIGHT} '2'"),
        (lambda: wd.Mixture.by_sample(SMALL, {}, rest=-1.0), ValueError, f"{NO_WEIGHT} -1.0"),
        (lambda: wd.Mixture.by_sample(SMALL, ["true"]), TypeError, "weights is {condition: weight}, not list"),
        (lambda: wd.Mixture({"a": (SMALL, 1)}, schedule=[5]), TypeError, "a schedule is .*, not list"),
        (lambda: wd.Mixture({"a": (SMALL, 1)}, schedule={5: ["a"]}), TypeError, "a stage of the .*, not list"),
        (lambda: wd.Mixture({"a": (SMALL, 1)}, schedule={5: {"a": -1}}), ValueError, f"{NO_WEIGHT} -1"),
        (lambda: wd.Mixture({"a": (SMALL, 1)}, schedule={5: {"a": 0}}), ValueError, r"not all 0: \[0.0\]"),
        (lambda: wd.Mixture({"a": (SMALL, 1), "b": (NO_SAMPLES, 1)}), ValueError, "source 'b' has no samples"),
        (
            lambda: wd.Mixture({"a": (SMALL, 1), "b": (NO_SAMPLES, 0)}, schedule={5: {"b": 1}}),
            ValueError, "source 'b' has no samples",
        ),
        (
            lambda: wd.Mixture(
                {"a": (with_fields(x="joints"), 1), "b": (with_fields(x=wd.Field("action", past=4)), 1)}
            ),
            SchemaMismatchError, r"field 'x' is float32\[4, 2\] in source 'b', but float32\[3\] in source 'a'",
        ),
        (
            lambda: wd.Mixture(
                {"a": (with_fields(x="joints"), 1), "b": (with_fields(x=wd.Field("joints", dtype="f8")), 1)}
            ),
            SchemaMismatchError, r"field 'x' is float64\[3\] in source 'b', but float32\[3\] in source 'a'",
        ),
        (lambda: wd.Mixture({"a": (SMALL, 1)}).quotas(-1), ValueError, "epoch is an integer from 0 .*, not -1"),
    ],
)  # fmt: skip
def test_mixtures_that_cannot_be_made(make: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


@pytest.mark.parametrize("positions", [(-1, 3), (0, 10**6), (5, 4)])
def test_positions_that_an_epoch_does_not_have(positions) -> None:
    with pytest.raises(IndexError, match="an epoch has those from 0 to 85"):
        wd.Loader(SMALL, 8).why(positions=positions)


def test_a_mixture_by_task_without_weights_is_balanced() -> None:
    windows = windows_of(memory_episodes([10, 40, 20, 30]))
    found = wd.Mixture.by_static(windows)
    assert {n: q["samples"] for n, q in found.quotas().items()} == {"a": 50, "b": 50}


def test_weights_per_sample() -> None:
    """Every sample comes as often as its weight says, the first condition that holds counts; null is no."""
    late = wd.Episode.of(
        {"action": wd.ArraySignal(np.arange(10) * MS, np.zeros((10, 2), np.float32)),
         "joints": wd.ArraySignal(np.arange(5, 10) * MS, np.zeros((5, 3), np.float32))},
        {"task": "a"}, id="late",
    )  # fmt: skip
    windows = windows_of(memory_episodes([40, 25]) + wd.Episodes.of([late]))
    weights = {"joints[1] > 0": 4.0, "task = 'a'": 2.0, "action[1] > 3": 0.0}
    mixture = wd.Mixture.by_sample(windows, weights, rest=1.0, length=len(windows) * 200)
    seen: dict[tuple[int, int], int] = {}
    for source, sample in positions(wd.Loader(mixture, 500, seed=2, threads=0)):
        origin = mixture.sources[source]
        episode, time = (int(each[0]) for each in origin.locate(sample))
        seen[episode, time] = seen.get((episode, time), 0) + 1
    wanted = {}
    for number in range(len(windows)):
        sample = windows[number]
        state, action = sample["state"][-1], sample["action"][0]
        is_known = bool(sample.mask["state"][-1])
        task = windows.episodes[sample.episode].static["task"]
        weight = 4.0 if is_known and state[0] > 0 else 2.0 if task == "a" else 0.0 if action[0] > 3 else 1.0
        wanted[sample.episode, sample.ts_ns] = weight
    assert set(seen) == {each for each, weight in wanted.items() if weight}
    unit = sum(seen.values()) / sum(wanted.values())
    for each, count in seen.items():
        assert abs(count - unit * wanted[each]) <= 2, each
    with pytest.raises(WarpError, match="joint"):
        wd.Mixture.by_sample(windows, {"joint > 0": 2.0})


def test_a_state_is_refused_by_name() -> None:
    state = wd.Loader(SMALL, 8, seed=1).state_dict()
    other = windows_of(memory_episodes([17, 0, 40, 3, 25], seed=9))
    fields = wd.Windows(SMALL.episodes, {"state": wd.Field("joints")}, anchor="action")
    for windows, options, word in (
        (other, {}, "another version of the data"), (fields, {}, "the same data with other fields"),
        (SMALL, {"shuffle": "full"}, "another shuffle"), (SMALL, {"seed": 2}, "seed is 1"), (MIXED, {}, "windows"),
    ):  # fmt: skip
        loader = wd.Loader(windows, 8, **{"seed": 1, **options})
        with pytest.raises(ValueError, match=word):
            loader.load_state_dict(state)
    loader = wd.Loader(SMALL, 8, seed=1)
    for bad in (
        None, [], {}, {**state, "v": 1}, {**state, "position": -1}, {**state, "position": 10**6},
        {**state, "epoch": 1.5}, {**state, "windows": 3}, {k: v for k, v in state.items() if k != "order"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"state|position|epoch"):
            loader.load_state_dict(bad)
    loader.load_state_dict(state)
    assert len(json.dumps(state)) < 100


@pytest.mark.parametrize(
    ("options", "word"),
    [({"seed": -1}, "seed"), ({"seed": 1.5}, "seed"), ({"epoch": -1}, "epoch"), ({"epoch": "1"}, "epoch")],
)
def test_what_is_no_seed_and_no_epoch(options, word) -> None:
    with pytest.raises(ValueError, match=word):
        wd.Loader(SMALL, 8, **options)
    with pytest.raises(ValueError, match="epoch"):
        wd.Loader(SMALL, 8).set_epoch(-1)


def noisy(values, rng):
    return values + rng.normal(size=values.shape).astype(np.float32)


def test_transforms_depend_on_seed_epoch_and_sample_alone() -> None:
    episodes = memory_episodes([30])
    windows = wd.Windows(episodes, {"x": wd.Field("joints", transform=noisy)}, anchor="joints")
    plain = wd.Windows(episodes, {"x": wd.Field("joints")}, anchor="joints")
    found: dict[int, np.ndarray] = {}
    for batch in wd.Loader(windows, 7, seed=4, threads=2):
        found |= dict(zip(batch.sample_id.tolist(), batch["x"], strict=True))
    for number, value in found.items():
        expected = noisy(plain[number]["x"], sample_rng(4, 0, number))
        np.testing.assert_array_equal(value, expected)
    again = wd.Loader(windows, 11, seed=4, rank=1, world=2, threads=0)
    for batch in again:
        for number, value in zip(batch.sample_id.tolist(), batch["x"], strict=True):
            np.testing.assert_array_equal(value, found[number])
    other = {
        i: v
        for b in wd.Loader(windows, 7, seed=4, epoch=1)
        for i, v in zip(b.sample_id.tolist(), b["x"], strict=True)
    }
    assert not np.array_equal(other[3], found[3])


def test_a_transform_of_the_whole_sample() -> None:
    def halve(sample, rng):
        sample["state"] = sample["state"] / 2
        return {**sample, "draw": rng.random()}

    loader = wd.Loader(SMALL, 5, seed=2, transform=halve)
    batch = next(iter(loader))
    np.testing.assert_array_equal(batch["state"][0], SMALL[int(batch.sample_id[0])]["state"] / 2)
    assert batch["draw"].shape == (5,)


def test_why_names_every_sample_of_any_step() -> None:
    loader = wd.Loader(SMALL, 8, seed=5)
    for step, batch in enumerate(loader):
        why = loader.why(step, epoch=0)
        assert [each.sample_id for each in why] == batch.sample_id.tolist()
        assert [each.ts_ns for each in why] == batch.ts_ns.tolist()
        assert all(each.episode_id in SMALL.ids and each.content for each in why)
    with pytest.raises(IndexError, match="step 99"):
        loader.why(99)
    for tail in ("drop", "pad"):
        loader = wd.Loader(SMALL, 8, seed=5, tail=tail)
        given = [batch.sample_id.tolist() for batch in loader]
        assert [
            [each.sample_id for each in loader.why(step, epoch=0)] for step in range(len(loader))
        ] == given
        with pytest.raises(IndexError, match=f"step {len(loader)} of {len(loader)}"):
            loader.why(len(loader))
    mixed = wd.Loader(MIXED, 8, seed=5)
    assert [each.source for each in mixed.why(0)] == [MIXED.names[s] for s in next(iter(mixed)).source]


# Statistics.


@pytest.mark.parametrize("edges", ["pad", "skip"])
def test_statistics_are_of_exactly_the_valid_values(edges) -> None:
    windows = windows_of(memory_episodes([13, 40]), edges=edges)
    found = windows.statistics()
    values = np.concatenate([windows[i]["action"][windows[i].mask["action"]] for i in range(len(windows))])
    stats = found["action"]
    assert stats.count.tolist() == [len(values)] * 2
    np.testing.assert_allclose(stats.mean, values.astype(np.float64).mean(0))
    np.testing.assert_allclose(stats.std, values.astype(np.float64).std(0))
    np.testing.assert_array_equal(stats.min, values.min(0))
    np.testing.assert_array_equal(stats.max, values.max(0))
    for q, exact in ((stats.q01, 1), (stats.q99, 99)):
        np.testing.assert_allclose(
            q, np.percentile(values, exact, axis=0, method="inverted_cdf"), rtol=0.021, atol=1e-9
        )
    again = windows_of(memory_episodes([13, 40]), edges=edges).statistics()
    np.testing.assert_array_equal(again["action"].mean, stats.mean)


def test_statistics_come_from_the_recording_where_they_can(tmp_path) -> None:
    record_root(tmp_path / "root", 2)
    episodes = wd.open_episodes(tmp_path / "root")
    windows = wd.Windows(
        episodes, {"x": wd.Field("joints"), "y": wd.Field("joints", past=2)}, anchor="joints"
    )
    found = windows.statistics()
    assert (found["x"].was_read, found["y"].was_read) == (False, True)
    values = np.concatenate([episode["joints"].values() for episode in episodes])
    np.testing.assert_allclose(found["x"].mean, values.astype(np.float64).mean(0))


@pytest.mark.parametrize("how", ["mean_std", "min_max", "q01_q99"])
def test_normalising_and_back(how) -> None:
    plain = {
        i: v for b in wd.Loader(SMALL, 16) for i, v in zip(b.sample_id.tolist(), b["action"], strict=True)
    }
    loader = wd.Loader(SMALL, 16, normalize={"action": how, "state": None})
    everything = []
    for batch in loader:
        assert batch["action"].dtype == np.float32
        everything.append(batch["action"][batch.mask["action"]])
        np.testing.assert_array_equal(batch["state"][0], SMALL[int(batch.sample_id[0])]["state"])
        back = loader.denormalize("action", batch["action"])
        for row, number in zip(back, batch.sample_id.tolist(), strict=True):
            np.testing.assert_allclose(row, plain[number], rtol=1e-4, atol=1e-5)
    values = np.concatenate(everything).astype(np.float64)
    if how == "mean_std":
        np.testing.assert_allclose(values.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(values.std(0), 1, atol=1e-5)
    elif how == "min_max":
        np.testing.assert_allclose([values.min(0), values.max(0)], [[-1, -1], [1, 1]], atol=1e-6)
    with pytest.raises(KeyError, match="Did you mean 'action'"):
        loader.denormalize("actions", values)
    with pytest.raises(ValueError, match="mean_std"):
        wd.Loader(SMALL, 4, normalize="mean-std")


def test_auto_leaves_images_alone_and_colours_are_told_apart() -> None:
    images = np.random.default_rng(0).integers(0, 256, (9, 4, 5, 3), np.uint8)
    episodes = wd.Episodes.of([wd.Episode.of({"cam": wd.ArraySignal(np.arange(9) * 10, images)}, id="i")])
    windows = wd.Windows(episodes, {"image": wd.Field("cam")}, anchor="cam")
    assert next(iter(wd.Loader(windows, 4, normalize="auto")))["image"].dtype == np.uint8
    loader = wd.Loader(windows, 9, normalize={"image": "mean_std"})
    assert loader.statistics["image"].mean.shape == (3,)
    np.testing.assert_allclose(next(iter(loader))["image"].mean((0, 1, 2)), 0, atol=1e-5)


def test_normalisation_goes_into_a_checkpoint_and_to_other_data() -> None:
    torch = pytest.importorskip("torch")
    loader = wd.Loader(SMALL, 16, normalize={"action": "q01_q99", "state": "mean_std"})
    kept = wd.loading.Normalization.from_json(json.loads(json.dumps(loader.normalization.to_json())))
    batch = next(iter(loader))
    raw = SMALL.batch(batch.sample_id)
    for name in ("state", "action"):
        np.testing.assert_array_equal(kept.apply(name, raw[name]), batch[name])
        tensor = kept.apply(name, torch.from_numpy(raw[name]))
        np.testing.assert_allclose(tensor.numpy(), batch[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kept.undo(name, tensor).numpy(), raw[name], rtol=1e-4, atol=1e-5)
    assert kept.apply("image", 3) == 3, "what is not normalised stays"
    other = windows_of(memory_episodes([30], seed=5))
    again = next(iter(wd.Loader(other, 8, normalize=kept)))
    plain = other.batch(again.sample_id)
    np.testing.assert_array_equal(again["action"], kept.apply("action", plain["action"]))
    narrow = wd.Windows(memory_episodes([30]), {"state": wd.Field("action")}, anchor="action")
    with pytest.raises(KeyError, match="action"):
        wd.Loader(narrow, 8, normalize=kept)
    swapped = {"state": wd.Field("action"), "action": wd.Field("joints")}
    with pytest.raises(WarpError, match="channels"):
        wd.Loader(wd.Windows(memory_episodes([30]), swapped, anchor="action"), 8, normalize=kept)
    for bad in ([], {"action": 3}, {"action": {"how": "mean_std"}}, {"action": {"how": "no"}}):
        with pytest.raises(ValueError, match="normali"):
            wd.loading.Normalization.from_json(bad)  # type: ignore[arg-type]


def test_statistics_are_of_what_transforms_return() -> None:
    fields = {"x": wd.Field("joints", transform=lambda values, rng: values[..., :2] * 5 + 1)}
    windows = wd.Windows(memory_episodes([40]), fields, anchor="joints")
    loader = wd.Loader(windows, 40, normalize="auto")
    batch = next(iter(loader))
    assert batch["x"].shape == (40, 2)
    np.testing.assert_allclose(batch["x"].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(batch["x"].std(0), 1, atol=1e-5)
    raw = windows.batch(batch.sample_id)["x"][:, :2] * 5 + 1
    np.testing.assert_allclose(loader.denormalize("x", batch["x"]), raw, rtol=1e-4, atol=1e-4)


def test_what_is_hidden_is_zero_after_normalising_too() -> None:
    for batch in wd.Loader(windows_of(memory_episodes([17, 9]), edges="zero"), 8, normalize="auto"):
        assert not batch["action"][~batch.mask["action"]].any()
        assert batch["action"][batch.mask["action"]].any()


def test_statistics_of_a_mixture_go_by_weight() -> None:
    stats = MIXED.statistics(["action"])["action"]
    parts = [source.statistics(["action"])["action"].mean for source in MIXED.sources]
    np.testing.assert_allclose(stats.mean, 0.7 * parts[0] + 0.3 * parts[1], rtol=1e-6)


def test_masks_cannot_be_forgotten() -> None:
    pytest.importorskip("torch")
    batch = next(iter(wd.Loader(SMALL, 60, shuffle=False)))
    loss = np.where(batch.mask["action"][..., None], 1.0, np.nan) * np.ones(batch["action"].shape)
    assert batch.masked_mean("action", loss) == 1.0
    assert wd.masked_mean(loss.mean(-1), batch.mask["action"]) == 1.0
    assert batch.loss_mask("action").shape == (60, 4, 1)
    assert wd.masked_mean(loss, batch.loss_mask("action")) == 1.0
    with pytest.raises(ValueError, match="does not fit"):
        wd.masked_mean(loss, batch.mask["action"][:, :2])
    import torch

    assert batch.masked_mean("action", torch.from_numpy(loss)).item() == 1.0


# Every form the data may be stored in.


def record_root(root: Path, count: int, *, camera: bool = False) -> None:
    for number in range(count):
        rng = np.random.default_rng(number)
        with wd.LocalDatasetWriter(root).new_episode() as writer:
            writer.set_static("task", "ab"[number % 2])
            for i in range(40 + 7 * number):
                writer.append("joints", rng.normal(size=3).astype(np.float32), i * 20 * MS)
                if i % 2 == 0:
                    writer.append("action", rng.normal(size=2).astype(np.float32), i * 20 * MS)
                if camera and i % 3 == 0:
                    writer.append("cam", np.full((16, 24, 3), (i * 5) % 256, np.uint8), i * 20 * MS + MS)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("forms") / "root"
    record_root(root, 3, camera=True)
    return root


def all_batches(episodes) -> tuple[str, list]:
    fields = {
        "image": wd.Field("cam", past_s=0.12, rate_hz=20),
        "small": wd.Field("cam", past=2, size=(9, 10), resize="pad"),
        "state": wd.Field("joints", offsets_s=[-0.05, 0.0], align="linear"),
        "action": wd.Field("action", horizon=5), "task": wd.Field("task"),
    }  # fmt: skip
    windows = wd.Windows(episodes, fields, anchor="action", max_age_s=0.05)
    return windows.id, list(wd.Loader(windows, 8, seed=3))


def test_the_same_batches_from_every_form(recorded, tmp_path, local_catalog, s3_catalog) -> None:
    root = wd.open_recordings(recorded)
    root_id, wanted = all_batches(root)
    (tmp_path / "packed").mkdir()
    for name, episode in zip(root.ids, root, strict=True):
        wd.pack_episode(
            episode, tmp_path / "packed" / f"{name}.wshard", "zstd" if name.endswith("1") else None
        )
    forms = {"packed": wd.open_episodes(tmp_path / "packed")}
    for catalog, name in ((local_catalog, unique("ws/local")), (s3_catalog, unique("ws/s3"))):
        with wd.DatasetBuilder(name, catalog=catalog) as builder:
            builder.add_episodes("episodes", recorded)
            builder.publish()
        forms[name] = wd.dataset(name, catalog=catalog).episodes
    for name, episodes in forms.items():
        found_id, found = all_batches(episodes)
        assert found_id == root_id, name
        assert len(found) == len(wanted)
        for a, b in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(a.sample_id, b.sample_id)
            for field in a:
                np.testing.assert_array_equal(a[field], b[field], err_msg=f"{name} {field}")
                np.testing.assert_array_equal(a.mask[field], b.mask[field])
                np.testing.assert_array_equal(a.age_ns[field], b.age_ns[field])
    why = wd.Loader(wd.Windows(episodes, {"x": "joints"}, anchor="joints"), 4).why(0)[0]
    assert why.dataset == name
    assert len(why.version) == len(why.blob) == 64


def test_the_same_batches_from_a_set_of_lerobot(tmp_path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        with wd.record(tmp_path / "root", static={"task": "t"}, clock="simulated") as rec:
            for i in range(25 + number):
                rec.append("observation.images.cam", film_frame(i + 9 * number), i * 40 * MS)
                rec.append("observation.state", rng.normal(size=4).astype(np.float32), i * 40 * MS)
                rec.append("action", rng.normal(size=4).astype(np.float32), i * 40 * MS)
    wd.export_episodes(wd.open(tmp_path / "root"), tmp_path / "lerobot", "lerobot")

    def batches(place: Path) -> list[wd.loading.Batch]:
        fields = {
            "image": wd.Field("observation.images.cam", past=2),
            "small": wd.Field("observation.images.cam", size=(12, 10)),
            "action": wd.Field("action", horizon=4, relative_to="observation.state"),
        }
        windows = wd.Windows(wd.open(place), fields, anchor="action")
        return list(wd.Loader(windows, 8, seed=3, normalize="auto"))

    for a, b in zip(batches(tmp_path / "root"), batches(tmp_path / "lerobot"), strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
            np.testing.assert_array_equal(a.mask[name], b.mask[name])


def film_frame(step: int) -> np.ndarray:
    y, x = np.mgrid[0:48, 0:64]
    return np.stack([(x * 3 + step * 5) % 256, y * 5, (x + y + step) % 256], -1).astype(np.uint8)


def test_edits_and_selection_are_part_of_the_identity(tmp_path) -> None:
    record_root(tmp_path / "root", 3)
    make = lambda e: wd.Windows(e, {"x": "joints"}, anchor="joints")  # noqa: E731
    root = wd.open_recordings(tmp_path / "root")
    before = make(root)
    assert make(root.where("task = 'a'")).id != before.id
    root.edits.trim(0, 0, 500 * MS)
    after = make(wd.open_recordings(tmp_path / "root"))
    assert after.id != before.id
    assert len(after) == len(before) - (40 - 25)
    wd.pack_episode(wd.open_recordings(tmp_path / "root")[0], tmp_path / "edited.wshard")
    packed = wd.Windows(wd.open_episode(tmp_path / "edited.wshard"), {"x": "joints"}, anchor="joints")
    assert packed.id == make(wd.open_recordings(tmp_path / "root")[:1]).id


def test_step_shards_have_one_identity_in_any_compression(tmp_path) -> None:
    episode = wd.WShardEpisode(id="e", length=30)
    episode.observations["state"] = np.arange(90, dtype=np.float32).reshape(30, 3)
    episode.actions["ctrl"] = np.ones((30, 2), np.float32)
    found = []
    for name, compression in (("raw", None), ("zstd", "zstd")):
        wd.save_wshard(episode, tmp_path / f"{name}.wshard", compression)
        windows = wd.Windows(
            wd.open_episode(tmp_path / f"{name}.wshard"), {"x": wd.Field("state", past=3)}, anchor="ctrl"
        )
        found.append((windows.id, windows.batch(np.arange(30))["x"].tobytes()))
    windows = wd.Windows(episode.in_time, {"x": wd.Field("state", past=3)}, anchor="ctrl")
    found.append((windows.id, windows.batch(np.arange(30))["x"].tobytes()))
    assert len(set(found)) == 1


# Torch.


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_torch_give_the_same_order(start, recorded) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    windows = windows_of(wd.open_recordings(recorded))
    wanted = ids(wd.Loader(windows, 8, seed=3))
    dataset = wd.Loader(windows, 8, seed=3).to_torch()
    # A process that begins anew loads torch anew: one of them says as much as two.
    count = 2 if start == "fork" or SOAK else 1
    loader = DataLoader(dataset, batch_size=None, num_workers=count, multiprocessing_context=start)
    batches = list(loader)
    assert [batch.sample_id.tolist() for batch in batches] == wanted
    assert batches[0]["action"].dtype.is_floating_point
    assert batches[0].mask["action"].shape == batches[0]["action"].shape[:2]
    if start == "fork":
        assert [b.sample_id.tolist() for b in loader] == ids(wd.Loader(windows, 8, seed=3, epoch=1))


@pytest.mark.parametrize("divided", [False, True])
def test_a_dataloader_over_windows_gives_their_batches(recorded, divided) -> None:
    """With masks, ages and ids of every sample: torch by itself keeps those of the first."""
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, Subset

    windows = windows_of(wd.open_recordings(recorded))
    numbers = [len(windows) - 1, 0, 3]
    given = Subset(windows, numbers) if divided else windows
    found = next(iter(DataLoader(given, batch_size=3, sampler=None if divided else numbers)))
    wanted = windows.batch(numbers)
    assert found.sample_id.tolist() == numbers
    assert list(found) == list(wanted)
    for name in wanted:
        for a, b in ((found, wanted), (found.mask, wanted.mask), (found.age_ns, wanted.age_ns)):
            if isinstance(a[name], torch.Tensor):
                np.testing.assert_array_equal(a[name].numpy(), b[name])
            else:
                assert list(a[name]) == list(b[name])
    assert not found.mask["action"].all(), "the last sample has rows beyond the end"


def test_what_is_done_to_a_batch_changes_no_other() -> None:
    wanted = ids(wd.Loader(SMALL, 8, seed=3))
    loader, found = wd.Loader(SMALL, 8, seed=3, threads=2), []
    for batch in loader:
        found.append(batch.sample_id.tolist())
        for each in (batch.sample_id, batch.ts_ns, *batch.values(), *batch.mask.values()):
            each[:] = 0
    assert found == wanted
    assert [each.sample_id for each in loader.why(0, epoch=0)] == wanted[0]


def test_epochs_that_are_none_are_refused() -> None:
    pytest.importorskip("torch")
    for loader in (wd.Loader(SMALL, 8), wd.Loader(SMALL, 8).to_torch()):
        with pytest.raises(ValueError, match="epoch"):
            loader.set_epoch(-1)


def test_a_batch_goes_to_a_device_with_all_that_belongs_to_it() -> None:
    pytest.importorskip("torch")
    import torch

    batch = next(iter(wd.Loader(MIXED, 8, seed=5, tail="pad").to_torch()))
    moved = batch.to("cpu", non_blocking=True)
    half = batch.to(torch.float64)
    assert type(moved) is type(batch)
    assert set(moved.mask) == set(batch.mask) == set(batch)
    for name in batch:
        if not isinstance(batch[name], list):
            assert torch.equal(moved[name], batch[name])
            assert half[name].dtype == torch.float64
        assert torch.equal(moved.mask[name], batch.mask[name])
        assert torch.equal(moved.age_ns[name], batch.age_ns[name])
    assert torch.equal(moved.sample_id, batch.sample_id)
    assert torch.equal(moved.source, batch.source)
    assert torch.equal(moved.repeated, batch.repeated)
    assert moved.position == batch.position


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_torch_loader_goes_on_anywhere(workers) -> None:
    pytest.importorskip("torch")
    wanted = ids(wd.Loader(SMALL, 8, seed=3))
    for steps in (0, 1, 4, len(wanted)):
        loader = wd.Loader(SMALL, 8, seed=3).to_torch().loader(num_workers=workers)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        plain = wd.Loader(SMALL, 8, seed=3)
        plain.load_state_dict(state)
        rest = ids(plain)
        assert rest == (wanted[steps:] or ids(wd.Loader(SMALL, 8, seed=3, epoch=1)))
        again = wd.Loader(SMALL, 8, seed=3).to_torch().loader(num_workers=2)
        again.load_state_dict(state)
        assert [b.sample_id.tolist() for b in again] == rest


def test_states_of_single_workers_go_on_in_their_worker(monkeypatch) -> None:
    """What torchdata's StatefulDataLoader does: a state of each worker, given back to the same worker."""
    pytest.importorskip("torch")
    import torch

    class Info:
        def __init__(self, number: int, seed: int) -> None:
            self.id, self.num_workers, self.seed = number, 2, seed + number

    def worker(number: int, seed: int, passes):
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: Info(number, seed))
        mine = wd.Loader(SMALL, 8, seed=3).to_torch()
        mine._passes = copy.copy(passes)  # the counter is shared, as by processes
        return mine

    epochs = [ids(wd.Loader(SMALL, 8, seed=3, epoch=epoch)) for epoch in range(2)]
    shared = wd.Loader(SMALL, 8, seed=3).to_torch()._passes
    given_ids, states = [], []
    for number, count in ((0, 2), (1, 1)):
        mine = worker(number, 100, shared)
        given_ids.append([b.sample_id.tolist() for b in itertools.islice(mine, count)])
        states.append(json.loads(json.dumps(mine.state_dict())))
    monkeypatch.undo()
    shared = wd.Loader(SMALL, 8, seed=3).to_torch()._passes
    for number in range(2):
        mine = worker(number, 200, shared)
        with pytest.raises(ValueError, match="alone"):
            mine.load_state_dict(states[1 - number])
        mine.load_state_dict(states[number])
        given_ids[number] += [b.sample_id.tolist() for b in mine]
        assert mine.state_dict()["position"] == len(SMALL), "a worker that has ended stays at the end"
    assert given_ids == [epochs[0][0::2], epochs[0][1::2]]
    for number in range(2):
        assert [b.sample_id.tolist() for b in worker(number, 300, shared)] == epochs[1][number::2]


# Faults.


def damaged_folder(folder: Path, count: int = 4) -> wd.Episodes:
    folder.mkdir()
    for number in range(count):
        episode = wd.WShardEpisode(id=f"{number}", length=60)
        episode.observations["joints"] = np.full((60, 3), number, np.float32)
        episode.actions["action"] = np.random.default_rng(number).normal(size=(60, 600)).astype(np.float32)
        wd.save_wshard(episode, folder / f"{number}.wshard")
    return wd.open_episodes(folder)


def damage(folder: Path, name: str, offset: int = -5000) -> None:
    data = bytearray((folder / name).read_bytes())
    data[offset] ^= 1
    (folder / name).write_bytes(data)


def test_damage_is_raised_by_name(tmp_path) -> None:
    windows = windows_of(damaged_folder(tmp_path / "d"))
    len(windows)
    damage(tmp_path / "d", "2.wshard")
    with pytest.raises(WarpError, match=r"episode '2'.*field 'action'"):
        ids(wd.Loader(windows, 16, seed=1))


@pytest.mark.parametrize("kind", ["changed", "missing"])
def test_damaged_episodes_are_skipped_on_every_rank_and_counted(tmp_path, kind) -> None:
    damaged_folder(tmp_path / "d")
    windows = windows_of(wd.open_episodes(tmp_path / "d"))
    clean = [each for step in ids(wd.Loader(windows, 16, seed=1)) for each in step]
    sets = [pickle.loads(pickle.dumps(windows)) for _ in range(3)]  # counted, and nothing of them is open
    if kind == "changed":
        damage(tmp_path / "d", "2.wshard")
    else:
        (tmp_path / "d" / "2.wshard").unlink()
    good = [each for each in clean if not 120 <= each < 180]
    alone = wd.Loader(sets[0], 16, seed=1, on_error="skip")
    batches = ids(alone)
    assert [each for step in batches for each in step] == good
    assert {len(step) for step in batches[:-1]} == {16}
    report = alone.report()
    assert list(report.skipped) == ["2"]
    assert alone.state_dict()["skipped"] == 1
    assert len(json.dumps(alone.state_dict())) < 300
    ranks = [wd.Loader(sets[1 + r], 16, seed=1, on_error="skip", rank=r, world=2) for r in range(2)]
    assert joined([ids(rank) for rank in ranks]) == batches
    fresh = wd.Loader(sets[2], 16, seed=1, on_error="skip")
    for step, batch in enumerate(batches):
        assert [each.sample_id for each in alone.why(step, epoch=0)] == batch
        assert [each.sample_id for each in fresh.why(step)] == batch, "also before anything was read"
    states = []
    resumed = wd.Loader(sets[0], 16, seed=1, on_error="skip")
    for _, _batch in zip(range(4), resumed, strict=False):
        states.append(resumed.state_dict())
    other = wd.Loader(sets[1], 16, seed=1, on_error="skip")
    other.load_state_dict(states[3])
    assert ids(other) == batches[4:]


def test_what_is_skipped_is_counted_when_it_is_handed_over(tmp_path) -> None:
    """Not when it is read ahead, which threads and ranks do differently; and statistics are of what is read."""
    damaged_folder(tmp_path / "d", 8)
    whole = windows_of(wd.open_episodes(tmp_path / "d"))
    len(whole)
    copies = iter([pickle.loads(pickle.dumps(whole)) for _ in range(9)])
    for number in (2, 5):
        damage(tmp_path / "d", f"{number}.wshard")

    def states(threads: int, **options) -> list[dict]:
        loader = wd.Loader(next(copies), 4, seed=1, on_error="skip", threads=threads, **options)
        return [loader.state_dict() for _ in loader]

    slow = states(0)
    assert slow == states(3) == [without_rank(state) for state in states(1, rank=2, world=3)]
    counts = [state.get("skipped", 0) for state in slow]
    assert counts == sorted(counts)
    assert counts[-1] == 2
    ahead = states(2, shuffle=False)
    assert [state.get("skipped", 0) for state in ahead[:28]] == [0] * 28, "episode 2 begins at sample 120"
    assert [ahead[30]["skipped"], ahead[-1]["skipped"]] == [1, 2]
    middle = wd.Loader(next(copies), 4, seed=1, on_error="skip")
    middle.load_state_dict(slow[-2])
    assert middle.state_dict() == slow[-2], "the digest stays while nothing new is met"
    loader = wd.Loader(next(copies), 4, seed=1, on_error="skip", normalize={"action": "min_max"})
    good = [wd.open_episodes(tmp_path / "d")[n]["action"].values() for n in (0, 1, 3, 4, 6, 7)]
    np.testing.assert_array_equal(loader.statistics["action"].max, np.concatenate(good).max())
    with pytest.raises(WarpError, match="field 'action'"):
        wd.Loader(next(copies), 4, normalize={"action": "min_max"})


def test_what_workers_skipped_is_counted_where_they_are_asked(tmp_path) -> None:
    pytest.importorskip("torch")
    damaged_folder(tmp_path / "d")
    windows = windows_of(wd.open_episodes(tmp_path / "d"))
    len(windows)
    copies = [pickle.loads(pickle.dumps(windows)) for _ in range(2)]
    damage(tmp_path / "d", "2.wshard")
    alone = wd.Loader(copies[0], 16, seed=1, on_error="skip")
    wanted = [alone.state_dict() for _ in alone]
    loader = wd.Loader(copies[1], 16, seed=1, on_error="skip")
    stateful = loader.to_torch().loader(num_workers=2)
    assert [stateful.state_dict() for _ in stateful] == wanted
    assert list(loader.report().skipped) == ["2"]


def test_what_was_skipped_before_stays_in_the_state() -> None:
    pytest.importorskip("torch")
    state = {**wd.Loader(SMALL, 8, seed=1, on_error="skip").state_dict(), "skipped": 2, "skip": "ab"}
    for resumed in (wd.Loader(SMALL, 8, seed=1), wd.Loader(SMALL, 8, seed=1).to_torch()):
        resumed.load_state_dict(state)
        next(iter(resumed))
        assert (resumed.state_dict()["skipped"], resumed.state_dict()["skip"]) == (2, "ab")


def test_a_saved_state_answers_why_from_the_shell(recorded, tmp_path, capsys) -> None:
    from warpdata.cli.main import main

    windows = windows_of(wd.open_recordings(recorded).where("task = 'a'"))
    loader = wd.Loader(windows, 8, seed=3)
    batch = next(iter(loader))
    loader.save_state(tmp_path / "state.json")
    assert main(["why", str(tmp_path / "state.json"), "0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["sample_id"] for each in found] == batch.sample_id.tolist()
    assert [each["ts_ns"] for each in found] == batch.ts_ns.tolist()
    assert main(["why", str(tmp_path / "state.json"), "0"]) == 0
    assert found[0]["episode_id"] in capsys.readouterr().out
    assert main(["why", str(tmp_path / "state.json"), "99"]) == 2
    assert "step 99 of" in capsys.readouterr().err
    again = wd.Loader(windows, 8, seed=3)
    again.load_state(tmp_path / "state.json")
    assert again.position == 8
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "text").write_text("no state")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "state.json", tmp_path / "text", tmp_path / "pipe", tmp_path, tmp_path / "none"):
        assert main(["why", str(path), "0"]) == 1
        assert "Errno" not in capsys.readouterr().err
        with pytest.raises((wd.WarpError, ValueError)):
            again.load_state(path)


def test_a_saved_state_knows_what_filled_the_last_batch(recorded, tmp_path) -> None:
    from warpdata._api.state import loader_of_state

    loader = wd.Loader(windows_of(wd.open_recordings(recorded)), 7, seed=3, tail="pad")
    last = list(loader)[-1]
    assert last.repeated.any()
    loader.save_state(tmp_path / "state.json")
    found = loader_of_state(tmp_path / "state.json").why(len(loader) - 1, epoch=0)
    assert [each.sample_id for each in found] == last.sample_id.tolist()


@pytest.mark.parametrize("tail", ["short", "drop"])
def test_a_pass_that_was_taken_to_its_last_batch_is_over(tail) -> None:
    """Whoever counts steps instead of waiting for the end does not get an empty epoch next."""
    loader = wd.Loader(SMALL, 8, seed=1, tail=tail)
    counted = [[b.sample_id.tolist() for b in itertools.islice(loader, len(loader))] for _ in range(3)]
    whole = wd.Loader(SMALL, 8, seed=1, tail=tail)
    assert counted == [ids(whole) for _ in range(3)]


def test_numbers_of_numpy_are_numbers() -> None:
    loader = wd.Loader(SMALL, np.int64(8), seed=np.uint8(1), epoch=np.int32(0), threads=np.int8(1))  # type: ignore[arg-type]
    assert ids(loader) == ids(wd.Loader(SMALL, 8, seed=1))
    json.dumps(loader.plan())
    episodes = memory_episodes([9])
    made = [
        wd.Windows(episodes, {"x": "joints"}, rate_hz=rate, stride=stride)  # type: ignore[arg-type]
        for rate, stride in ((20, 2), (20.0, np.int64(2)), (np.float32(20), 2))
    ]
    assert len({each.id for each in made}) == 1
    for bad in (0, -1, 2.0, True, "8"):
        with pytest.raises(ValueError, match="batch_size"):
            wd.Loader(SMALL, bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("windows", [SMALL, MIXED], ids=["windows", "mixture"])
def test_a_batch_of_nothing_but_repeats_is_refused(
    windows: wd.Windows | wd.Mixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warpdata.ordering.epochs.MAX_FILLED_BYTES", 10_000_000)
    assert next(iter(wd.Loader(windows, 500, tail="pad"))).size == 500
    for options in ({}, {"on_error": "skip"}):
        with pytest.raises(TooLargeError, match="fill 100000000000 rows"):
            next(iter(wd.Loader(windows, 10**11, tail="pad", **options)))
    assert next(iter(wd.Loader(windows, 10**11))).size == wd.Loader(windows, 10**11).total


def test_the_middle_of_a_billion_samples_is_found_at_once() -> None:
    from warpdata.ordering.blocks import BlockOrder, BlockShape

    order = BlockOrder(BlockShape(10**9 + 7, 49, 128), 1, 0)
    found = order.row_ids(5 * 10**8, 5 * 10**8 + 64)
    assert len(set(found.tolist())) == 64
    assert order.rows_at(np.array([5 * 10**8 + 3]))[0] == found[3]


@pytest.mark.parametrize("kind", ["numpy", "torch", "torch with workers"])
@pytest.mark.parametrize("steps", [2, 3, 4, 6])
def test_a_trainer_that_sets_epochs_through_the_sampler_resumes_exactly(kind, steps) -> None:
    """What Lightning does: a state is loaded only within an epoch, `sampler.set_epoch` is called before each."""
    if kind != "numpy":
        pytest.importorskip("torch")

    def make():
        loader = wd.Loader(windows_of(memory_episodes([20])), 8, seed=3, threads=0)
        workers = 2 if kind.endswith("workers") else 0
        return loader if kind == "numpy" else loader.to_torch().loader(num_workers=workers)

    def train(loader, first_epoch: int, first_batch: int, most: int) -> list[list[int]]:
        seen: list[list[int]] = []
        for epoch in range(first_epoch, 3):
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
            for _ in range(first_batch if epoch == first_epoch else 0, 3):
                if len(seen) == most:
                    return seen
                seen.append(next(batches).sample_id.tolist())
        return seen

    whole = train(make(), 0, 0, 9)
    assert len(whole) == 9
    first, second = make(), make()
    seen = train(first, 0, 0, steps)
    epoch, batch = divmod(steps, 3)
    if batch:
        second.load_state_dict(first.state_dict())
    assert seen + train(second, epoch, batch, 9) == whole


def test_a_worker_that_starts_after_the_next_epoch_was_set_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from copy import copy
    from types import SimpleNamespace

    from warpdata.ordering import torch as adapter

    passes = adapter.Passes((0, 0))
    late = copy(passes)  # what a forked worker has: the same shared memory
    passes.restart((1, 0))
    monkeypatch.setattr(adapter, "worker_info", lambda: SimpleNamespace(id=1, num_workers=2, seed=8))
    late.begin()
    monkeypatch.setattr(adapter, "worker_info", lambda: SimpleNamespace(id=0, num_workers=2, seed=20))
    assert copy(passes).begin() == 0
