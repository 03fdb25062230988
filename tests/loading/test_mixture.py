"""Mixtures against a slow reference: every source keeps its own fields, transforms and edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.loading.test_windows import as_episodes, episode_sets, field_options
from tests.loading.windows_reference import samples_of
from tests.sweeps import enough_examples
from warpdata.errors import SchemaMismatchError
from warpdata.loading.source import sample_rng


def add_noise(values, rng):
    return values + rng.normal(size=values.shape).astype(np.float32)


TRANSFORMS = {
    "none": None,
    "times 100": lambda values, rng: values * 100,
    "minus 3": lambda values, rng: values - 3,
    "noise": add_noise,
}


@st.composite
def mixture_sources(draw):
    """For each source: episodes, options of its windows, the name of its transform, its weight."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        options = {
            "anchor": "a",
            "edges": draw(st.sampled_from(["pad", "zero", "skip"])),
            "max_age_s": draw(st.sampled_from([None, 0.02])),
            "max_gap_s": draw(st.sampled_from([None, 0.03])),
        }
        transform = draw(st.sampled_from(sorted(TRANSFORMS)))
        weight = draw(st.sampled_from([0.0, 0.3, 1.0, 1.0000001, 5.0]))
        found.append((draw(episode_sets()), options, transform, weight))
    return found


def reference_sample(sample, field, transform, edges, rng, statistics):
    """One sample of field "x" as the loader delivers it: cut, zeroed, transformed, normalised, zeroed again."""
    rows = [np.full(2, np.nan if value is None else value, np.float32) for value in sample["x"][0]]
    values = np.array(rows, np.float32).reshape(-1, 2)
    mask = np.array(sample["x"][1])
    shaped = values if field.rows.has_axis else values[0]
    if transform is not None:
        shaped = transform(shaped, rng)
    values = shaped.reshape(-1, 2).astype(np.float64)
    if statistics is not None:
        values = (values - statistics.mean) / np.where(statistics.std < 1e-12, 1.0, statistics.std)
    if edges == "zero":
        values[~mask] = 0
    return values


@settings(max_examples=enough_examples(60), deadline=None)
@given(
    sources=mixture_sources(),
    field=field_options(),
    normalize=st.sampled_from([None, "auto"]),
    threads=st.sampled_from([0, 2]),
    batch_size=st.sampled_from([1, 5, 16]),
)
def test_every_source_of_a_mixture_is_what_the_reference_gives(
    sources, field, normalize, threads, batch_size
) -> None:
    parts, wanted, fields = {}, [], []
    for number, (episodes, options, transform, weight) in enumerate(sources):
        fields.append(wd.Field("a", **field, transform=TRANSFORMS[transform]))
        windows = wd.Windows(as_episodes(episodes), {"x": fields[-1]}, **options)
        wanted.append(list(samples_of(episodes, {"x": {"signal": "a", **field}}, **options)))
        parts[f"s{number}"] = (windows, weight if wanted[-1] else 0.0)
    if not any(weight for _, weight in parts.values()):
        return
    mixture = wd.Mixture(parts, length=40)
    loader = wd.Loader(mixture, batch_size, seed=3, normalize=normalize, threads=threads)
    counts = np.zeros(len(sources), int)
    for batch in loader:
        why = loader.why(positions=(batch.position, batch.position + batch.size), epoch=0)
        for row, (source, number) in enumerate(
            zip(batch.source.tolist(), batch.sample_id.tolist(), strict=True)
        ):
            counts[source] += 1
            _, time, sample = wanted[source][number]
            expected = reference_sample(
                sample,
                fields[source],
                TRANSFORMS[sources[source][2]],
                sources[source][1]["edges"],
                sample_rng(3, why[row].epoch, number, source),
                loader.statistics.get("x"),
            )
            assert batch.ts_ns[row] == time
            np.testing.assert_array_equal(np.atleast_1d(batch.mask["x"][row]), sample["x"][1])
            np.testing.assert_allclose(
                batch["x"][row].reshape(-1, 2), expected, rtol=1e-4, atol=1e-4, err_msg=str((source, number))
            )
    assert counts.tolist() == [quota["samples"] for quota in mixture.quotas().values()]


@settings(max_examples=enough_examples(40), deadline=None)
@given(
    weights=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 1.0000001, 0.1, 0.1 + 1e-9, 2]), st.floats(1e-3, 1e3)),
        min_size=1, max_size=6,
    ),
    by_id=st.booleans(),
)  # fmt: skip
@example(weights=[1.0, 1.0000001, 2], by_id=True)
def test_no_episode_with_a_weight_is_lost(weights, by_id) -> None:
    episodes = wd.Episodes.of(
        wd.Episode.of({"a": wd.ArraySignal(np.arange(n + 1), np.full(n + 1, n))}, {"n": n}, id=f"e{n}")
        for n in range(len(weights))
    )
    windows = wd.Windows(episodes, {"x": "a"}, anchor="a")
    given_weights = {f"e{n}": weight for n, weight in enumerate(weights)}
    if not any(weights):
        with pytest.raises(ValueError, match="at least one source"):
            wd.Mixture.by_episode(windows, given_weights)
        return
    mixture = wd.Mixture.by_episode(windows, given_weights if by_id else lambda row: given_weights[row["id"]])
    assert len(set(mixture.names)) == len(mixture.names) == len({w for w in weights if w})
    for source, weight in zip(mixture.sources, mixture.weights, strict=True):
        own = given_weights[source.ids[0]]
        assert weight == own * len(source)
        assert {given_weights[name] for name in source.ids} == {own}
    assert sorted(name for source in mixture.sources for name in source.ids) == sorted(
        name for name, weight in given_weights.items() if weight
    )


def test_a_condition_with_the_name_of_the_rest_keeps_its_samples() -> None:
    episodes = wd.Episodes.of(
        [wd.Episode.of({"rest": wd.ArraySignal(np.arange(6), np.array([1, 0, 1, 0, 0, 0], bool))}, id="e")]
    )
    mixture = wd.Mixture.by_sample(wd.Windows(episodes, {"x": "rest"}, anchor="rest"), {"rest": 2.0})
    assert [len(source) for source in mixture.sources] == [2, 4]
    assert mixture.weights == [4.0, 4.0]


def test_names_that_are_equal_as_text_are_refused() -> None:
    episodes = wd.Episodes.of([wd.Episode.of({"a": wd.ArraySignal([0], [1.0])}, id="e")])
    windows = wd.Windows(episodes, {"x": "a"}, anchor="a")
    with pytest.raises(ValueError, match="duplicate source name: '1'"):
        wd.Mixture({1: (windows, 1.0), "1": (windows, 1.0)})


def test_transforms_of_two_sources_must_give_the_same_type_and_shape() -> None:
    episodes = wd.Episodes.of([wd.Episode.of({"a": wd.ArraySignal(np.arange(9), np.ones((9, 2)))}, id="e")])
    plain = wd.Windows(episodes, {"x": "a"}, anchor="a")
    narrow = wd.Windows(episodes, {"x": wd.Field("a", transform=lambda values, rng: values[:1])}, anchor="a")
    with pytest.raises(
        SchemaMismatchError, match=r"field 'x' is float64\[1\] in source 'b', but float64\[2\] in source 'a'"
    ):
        list(wd.Loader(wd.Mixture({"a": (plain, 1), "b": (narrow, 1)}), 4, threads=0))


def test_a_mixture_of_one_source_names_it_in_batches() -> None:
    episodes = wd.Episodes.of([wd.Episode.of({"a": wd.ArraySignal(np.arange(9), np.ones((9, 2)))}, id="e")])
    windows = wd.Windows(episodes, {"x": "a"}, anchor="a")
    batch = next(iter(wd.Loader(wd.Mixture({"a": (windows, 1)}), 4, threads=0)))
    assert batch.source.tolist() == [0, 0, 0, 0]
    assert next(iter(wd.Loader(windows, 4, threads=0))).source is None
