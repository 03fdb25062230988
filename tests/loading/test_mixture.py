"""Mixtures of robots against a slow reference: own fields, widths, rates, transforms, edges and statistics."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.loading.windows_reference import deliver, mixed_schedule, pad_to, samples_of
from tests.sweeps import enough_examples
from warpdata.errors import SchemaMismatchError
from warpdata.loading.source import sample_rng

MS = 1_000_000


def add_noise(values, rng):
    return values + rng.normal(size=values.shape).astype(np.float32)


TRANSFORMS = {
    "none": None,
    "times 100": lambda values, rng: values * 100,
    "narrow": lambda values, rng: values[..., :1],
    "noise": add_noise,
}


@st.composite
def robots(draw):
    """A source: episodes {signal: (times, values)}, fields, options of its windows, transform and weight."""
    width, rate = draw(st.sampled_from([1, 2, 3, 4, 10])), draw(st.sampled_from([10, 25, 40]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    episodes = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 9))
        times = [k * rate * MS for k in range(count)]
        rows = {name: list(rng.normal(size=(count, width)).astype(np.float32)) for name in ("act", "state")}
        episodes.append({name: (times, values) for name, values in rows.items()})
    act: dict = {"signal": "act", "horizon": draw(st.integers(1, 4))}
    kind = draw(st.sampled_from(["absolute", "relative", "delta"]))
    if kind == "relative":
        act |= {"relative_to": "state", "except_dims": draw(st.sampled_from([[], [0]]))}
    elif kind == "delta":
        act |= {"delta": True}
    if kind != "absolute" and width == 10:  # position, rotation and gripper
        act |= {"pose": "6d", "except_dims": [9]}
    fields = {"act": act}
    if draw(st.booleans()):
        fields["state"] = {"signal": "state"}
    options = {
        "anchor": "act",
        "edges": draw(st.sampled_from(["pad", "zero", "skip"])),
        "stride": draw(st.sampled_from([1, 1, 2])),
    }
    transform = draw(st.sampled_from(sorted(TRANSFORMS)))
    return episodes, fields, options, transform, draw(st.sampled_from([0.3, 1.0, 2.0, 5.0]))


def as_episodes(given_episodes: list[dict]) -> wd.Episodes:
    return wd.Episodes.of(
        wd.Episode.of(
            {n: wd.ArraySignal(np.array(t, np.int64), np.array(v, np.float32)) for n, (t, v) in e.items()},
            id=f"e{number}",
        )
        for number, e in enumerate(given_episodes)
    )


def windows_of(robot) -> wd.Windows:
    episodes, fields, options, transform, _ = robot
    made = {
        name: wd.Field(**field, transform=TRANSFORMS[transform] if name == "act" else None)
        for name, field in fields.items()
    }
    return wd.Windows(as_episodes(episodes), made, **options)


NORMALIZE = {
    "none": None,
    "auto": "auto",
    "range of actions": {"act": wd.Normalize("min_max", except_dims=[0])},
}


def reference_statistics(wanted, name, transform, normalize) -> tuple[np.ndarray, np.ndarray] | None:
    """Offset and scale by the valid rows of a field, after its transform as seed 0 draws it in epoch 0."""
    if normalize == "none" or (name != "act" and normalize != "auto"):
        return None
    rows = []
    for number, (_, _, sample) in enumerate(wanted):
        if name in sample:
            values = deliver(sample[name], transform, sample_rng(0, 0, number))
            rows += [row for row, valid in zip(np.atleast_2d(values), sample[name][1], strict=True) if valid]
    if not rows:
        return None
    values = np.array(rows, np.float64)
    if normalize == "auto":
        return values.mean(0), values.std(0)
    offset, scale = (values.min(0) + values.max(0)) / 2, (values.max(0) - values.min(0)) / 2
    offset[0], scale[0] = 0, 1
    return offset, scale


@settings(max_examples=enough_examples(60), deadline=None)
@given(
    sources=st.lists(robots(), min_size=1, max_size=5),
    normalize=st.sampled_from(sorted(NORMALIZE)),
    world=st.integers(1, 16),
    batch_size=st.sampled_from([3, 8, 16]),
    stop=st.integers(0, 4),
    threads=st.sampled_from([0, 2]),
)
def test_random_mixtures_are_what_the_reference_gives(
    sources, normalize, world, batch_size, stop, threads
) -> None:
    """Every sample of every rank, also after an interruption, with padding, masks and own statistics."""
    sources = [robot for robot in sources if list(samples_of(*robot[:2], **robot[2]))]
    if not sources:
        return
    parts = {f"r{number}": (windows_of(robot), robot[4]) for number, robot in enumerate(sources)}
    mixture = wd.Mixture(parts, length=40)

    def loader(rank: int, ranks: int) -> wd.Loader:
        return wd.Loader(
            mixture,
            batch_size,
            seed=3,
            normalize=NORMALIZE[normalize],
            threads=threads,
            rank=rank,
            world=ranks,
        )

    alone = loader(0, 1)
    batches = iter(alone)
    for _ in range(min(stop, len(alone) - 1)):
        next(batches)
    state = json.loads(json.dumps(alone.state_dict()))
    ranks = []
    for rank in range(world):
        part = loader(rank, world)
        part.load_state_dict(state)
        ranks.append(list(part))
    wanted = [list(samples_of(*robot[:2], **robot[2])) for robot in sources]
    order = mixed_schedule([robot[4] for robot in sources], 40)[state["position"] :]
    given_sources = []
    for step in zip(*ranks, strict=True):
        start = step[0].position
        why = iter(alone.why(positions=(start, min(40, start + batch_size)), epoch=0))
        for batch in step:
            for row, (source, number) in enumerate(
                zip(batch.source.tolist(), batch.sample_id.tolist(), strict=True)
            ):
                given_sources.append(source)
                epoch = next(why).epoch
                check_row(batch, row, sources[source], wanted[source], number, epoch, source, normalize)
    assert given_sources == order


def check_row(batch, row, robot, wanted, number, epoch, source, normalize) -> None:
    _, time, sample = wanted[number]
    assert batch.ts_ns[row] == time
    for name in batch:
        if name not in sample:
            assert not batch[name][row].any()
            assert not batch.mask[name][row].any()
            assert not batch.dims[name][row].any()
            continue
        transform = TRANSFORMS[robot[3]] if name == "act" else None
        values = np.atleast_2d(deliver(sample[name], transform, sample_rng(3, epoch, number, source)))
        values = values.astype(np.float64)
        statistics = reference_statistics(wanted, name, transform, normalize)
        if statistics is not None:
            values = (values - statistics[0]) / np.where(statistics[1] < 1e-12, 1.0, statistics[1])
        if robot[2]["edges"] == "zero":
            values[~np.array(sample[name][1])] = 0
        width = values.shape[-1]
        expected = pad_to(values, np.atleast_2d(batch[name][row]).shape)
        np.testing.assert_allclose(np.atleast_2d(batch[name][row]), expected, rtol=1e-3, atol=2e-3)
        rows = len(sample[name][1])
        mask = np.atleast_1d(batch.mask[name][row])
        assert mask.tolist() == [*sample[name][1], *[False] * (len(mask) - rows)]
        assert batch.dims[name][row].tolist() == [k < width for k in range(batch[name].shape[-1])]


def test_statistics_and_inverse_per_source() -> None:
    small, large = robot_windows(2, 1.0, 0), robot_windows(4, 100.0, 1)
    mixture = wd.Mixture({"small": (small, 1), "large": (large, 1)})
    loader = wd.Loader(mixture, 40, normalize={"act": wd.Normalize("min_max", except_dims=[1])})
    batch = next(iter(loader))
    assert batch["act"].shape == (40, 3, 4)
    kept = wd.loading.Normalization.from_json(json.loads(json.dumps(loader.normalization.to_json())))
    for number, (name, windows) in enumerate(zip(mixture.names, mixture.sources, strict=True)):
        here = batch.source == number
        raw = windows.batch(batch.sample_id[here])["act"]
        own = batch["act"][here]
        assert (np.abs(own[..., 0]) <= 1 + 1e-6).all()
        np.testing.assert_array_equal(own[..., 1], raw[..., 1])
        for undo in (loader.denormalize, kept.undo):
            np.testing.assert_allclose(undo("act", own, source=name), raw, rtol=1e-4, atol=1e-4)
        assert own[..., raw.shape[-1] :].any() == False  # noqa: E712
    with pytest.raises(KeyError, match="one of small, large"):
        loader.denormalize("act", batch["act"])
    with pytest.raises(SchemaMismatchError, match="several widths"):
        wd.Loader(mixture, 4, normalize="auto", normalize_by=None)


def robot_windows(width: int, size: float, seed: int, **static) -> wd.Windows:
    rng = np.random.default_rng(seed)
    episodes = wd.Episodes.of(
        wd.Episode.of(
            {
                "act": wd.ArraySignal(
                    np.arange(20) * 50 * MS, (size * rng.normal(size=(20, width))).astype("f4")
                )
            },
            {**static, "tool": "ab"[number % 2]},
            id=f"{seed}-{number}",
        )
        for number in range(4)
    )
    return wd.Windows(episodes, {"act": wd.Field("act", horizon=3)}, anchor="act")


def test_statistics_by_a_static_item_cross_the_sources() -> None:
    first, second = robot_windows(2, 1.0, 0), robot_windows(2, 50.0, 1)
    loader = wd.Loader(
        wd.Mixture({"x": (first, 1), "y": (second, 1)}), 16, normalize="auto", normalize_by="tool"
    )
    assert set(loader.statistics) == {"a", "b"}
    for tool in "ab":
        values = np.concatenate(
            [
                each["act"][each.mask["act"]]
                for windows in (first, second)
                for each in [windows.part_of(tool, "tool").batch(np.arange(40))]
            ]
        )
        np.testing.assert_allclose(loader.statistics[tool]["act"].mean, values.mean(0), rtol=1e-3, atol=1e-2)
    batch = next(iter(loader))
    for row in range(batch.size):
        windows = (first, second)[batch.source[row]]
        tool = windows.episodes[int(batch.episode[row])].static["tool"]
        raw = windows[int(batch.sample_id[row])]["act"]
        found = loader.normalization.undo("act", batch["act"][row], source=tool)
        np.testing.assert_allclose(found, raw, rtol=1e-3, atol=1e-3)


def test_absent_cameras_are_black_and_masked() -> None:
    images = np.full((9, 4, 6, 3), 200, np.uint8)
    times = np.arange(9) * 10
    seeing = wd.Episode.of(
        {"cam": wd.ArraySignal(times, images), "q": wd.ArraySignal(times, np.ones((9, 2)))},
        {"task": "go"},
        id="s",
    )
    blind = wd.Episode.of({"q": wd.ArraySignal(times, np.ones((9, 2)))}, id="b")
    fields = {"image": wd.Field("cam", past=2), "q": "q", "task": "task"}
    mixture = wd.Mixture(
        {
            "seeing": (wd.Windows(seeing, fields, anchor="q"), 1),
            "blind": (wd.Windows(blind, {"q": "q"}, anchor="q"), 1),
        }
    )
    batch = next(iter(wd.Loader(mixture, 8)))
    is_blind = batch.source == 1
    assert batch["image"].shape == (8, 2, 4, 6, 3)
    assert not batch["image"][is_blind].any()
    assert not batch.mask["image"][is_blind].any()
    assert batch["image"][~is_blind].all()
    assert [t for t in batch["task"][is_blind]] == [""] * int(is_blind.sum())
    assert not batch.mask["task"][is_blind].any()
    assert "image" not in batch.dims


@settings(max_examples=enough_examples(40), deadline=None)
@given(
    weights=st.lists(
        st.one_of(st.sampled_from([0.0, 1.0, 1.0000001, 0.1, 0.1 + 1e-9, 2]), st.floats(1e-3, 1e3)),
        min_size=1,
        max_size=6,
    ),
    by_id=st.booleans(),
)
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
    windows = robot_windows(1, 1.0, 0)
    with pytest.raises(ValueError, match="duplicate source name: '1'"):
        wd.Mixture({1: (windows, 1.0), "1": (windows, 1.0)})


def test_a_mixture_of_one_source_names_it_in_batches() -> None:
    windows = robot_windows(2, 1.0, 0)
    batch = next(iter(wd.Loader(wd.Mixture({"a": (windows, 1)}), 4, threads=0)))
    assert batch.source.tolist() == [0, 0, 0, 0]
    assert next(iter(wd.Loader(windows, 4, threads=0))).source is None


@pytest.mark.parametrize("world", [1, 2, 4])
def test_corpora_are_sources_of_a_mixture(tmp_path, world) -> None:
    for index, count in enumerate((200, 90, 33)):
        with wd.CorpusWriter(tmp_path / str(index), 2) as writer:
            writer.append(np.stack([np.full(count, index), np.arange(count)], 1))
    corpora = [wd.open_corpus(tmp_path / str(index)) for index in range(3)]
    weights = {"a": 5.0, "b": 3.0, "c": 0.5}
    mixture = wd.Mixture({n: (c, w) for (n, w), c in zip(weights.items(), corpora, strict=True)}, length=400)
    alone = wd.Loader(mixture, 16, seed=7)
    batches, seen = [], [[] for _ in corpora]
    for batch in alone:
        batches.append((batch.source.tolist(), batch.sample_id.tolist()))
        assert (batch["rows"][:, 0] == batch.source).all()
        assert (batch["rows"][:, 1] == batch.sample_id).all()
        for source, row in zip(*batches[-1], strict=True):
            seen[source].append(row)
    assert [s for step in batches for s in step[0]] == mixed_schedule([5.0, 3.0, 0.5], 400)
    for rows, corpus in zip(seen, corpora, strict=True):
        first = rows[: len(corpus)]
        assert len(set(first)) == len(first)
    part = wd.Loader(mixture, 16, seed=7)
    for _, _batch in zip(range(5), part, strict=False):
        state = json.loads(json.dumps(part.state_dict()))
    ranks = []
    for rank in range(world):
        resumed = wd.Loader(mixture, 16, seed=7, rank=rank, world=world)
        resumed.load_state_dict(state)
        ranks.append([batch.sample_id.tolist() for batch in resumed])
    assert [[row for one in step for row in one] for step in zip(*ranks, strict=True)] == [
        ids for _, ids in batches[5:]
    ]
    assert [each.sample_id for each in alone.why(0, epoch=0)] == batches[0][1]
