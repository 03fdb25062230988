"""Windows against a slow reference: which samples there are, and every value, mask and age of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.conftest import SHARED_GOLDEN
from tests.loading.windows_reference import samples_of
from tests.sweeps import enough_examples
from warpdata.errors import CorruptLayoutError, DatasetError, SchemaMismatchError

MS = 1_000_000


@st.composite
def clocks(draw, least: int = 0):
    count = draw(st.integers(least, 14))
    start = draw(st.integers(-20, 40)) * MS
    pauses = draw(st.lists(st.sampled_from([7, 10, 25, 26, 50, 120, 400]), min_size=count, max_size=count))
    return [start + MS * sum(pauses[:i]) for i in range(count)]


@st.composite
def episode_sets(draw):
    """Episodes as {signal: (times, values)}; a signal may have no records, or be missing."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        episode = {}
        for name in ("a", "b"):
            times = draw(clocks(least=1 if number == 0 else 0))
            if times or draw(st.booleans()):
                episode[name] = (times, list(rng.normal(size=(len(times), 2)).astype(np.float32)))
        found.append(episode)
    return found


def field_options():
    moments = st.sampled_from([-0.3, -0.05, -0.026, -0.01, 0.0, 0.01, 0.02, 0.1])
    rates = st.sampled_from([10, 20.0, 33.3])
    timed = st.one_of(
        st.just({}),
        st.builds(lambda s: {"at_s": s}, moments),
        st.builds(lambda s: {"offsets_s": s}, st.lists(moments, min_size=1, max_size=4)),
        st.builds(lambda s, r: {"past_s": s, "rate_hz": r}, st.sampled_from([0.0, 0.05, 0.2]), rates),
        st.builds(lambda s, r: {"future_s": s, "rate_hz": r}, st.sampled_from([0.05, 0.2]), rates),
        st.just({"past_s": 0.1, "future_s": 0.1, "rate_hz": 20}),
    )  # fmt: skip
    counted = st.one_of(
        st.builds(lambda n: {"past": n}, st.integers(1, 4)),
        st.builds(lambda n: {"horizon": n}, st.integers(1, 4)),
        st.builds(lambda o: {"offsets": o}, st.lists(st.integers(-9, 9), min_size=1, max_size=4)),
        st.just({"offsets": range(-4, 4, 3)}),
    )
    aligned = st.builds(lambda o, a: {**o, "align": a}, timed, st.sampled_from(["hold", "nearest", "linear"]))
    aged = st.builds(lambda o, s: {**o, "max_age_s": s}, timed, st.sampled_from([0.0, 0.01, 0.05]))
    return st.one_of(timed, counted, aligned, aged)


def as_episodes(given_episodes: list[dict]) -> wd.Episodes:
    made = []
    for number, episode in enumerate(given_episodes):
        signals = {
            name: wd.ArraySignal(
                np.array(times, np.int64), np.array(values, np.float32).reshape(len(times), 2)
            )
            for name, (times, values) in episode.items()
        }
        made.append(wd.Episode.of(signals, {"number": number}, id=f"e{number}"))
    return wd.Episodes.of(made)


def check_sample(sample, wanted) -> None:
    for name, (values, mask, age) in wanted.items():
        np.testing.assert_array_equal(np.atleast_1d(sample.mask[name]), mask, err_msg=name)
        np.testing.assert_array_equal(np.atleast_1d(sample.age_ns[name]), age, err_msg=name)
        rows = sample[name].reshape(len(values), 2)
        for given_row, value in zip(rows, values, strict=True):
            if value is None:
                assert np.isnan(given_row).all()
            else:
                np.testing.assert_allclose(given_row, value, rtol=1e-6, atol=1e-6)  # float32 may cancel


@settings(max_examples=enough_examples(50))
@given(
    episodes=episode_sets(), a=field_options(), b=field_options(),
    anchors=st.sampled_from([
        {"anchor": "a"}, {"anchor": "b"}, {"rate_hz": 20}, {"rate_hz": 7.5}, {"anchor": "a", "stride": 3},
    ]),
    edges=st.sampled_from(["pad", "zero", "skip"]), max_age_s=st.sampled_from([None, None, 0.02]),
    max_gap_s=st.sampled_from([None, None, 0.03, 0.1]),
)  # fmt: skip
def test_every_sample_is_what_the_reference_says(
    episodes, a, b, anchors, edges, max_age_s, max_gap_s
) -> None:
    fields = {"x": {"signal": "a", **a}, "y": {"signal": "b", **b}}
    options = {**anchors, "edges": edges, "max_age_s": max_age_s, "max_gap_s": max_gap_s}
    windows = wd.Windows(as_episodes(episodes), {n: wd.Field(**f) for n, f in fields.items()}, **options)
    wanted = list(samples_of(episodes, fields, **options))
    assert len(windows) == len(wanted)
    for number, (episode, time, sample) in enumerate(wanted):
        found = windows[number]
        assert (found.sample_id, found.ts_ns, found.episode) == (number, time, episode)
        check_sample(found, sample)
    if wanted:
        batch = windows.batch(np.arange(len(wanted))[::-1])
        assert batch.sample_id.tolist() == list(range(len(wanted)))[::-1]
        assert batch.episode.tolist() == [episode for episode, _, _ in wanted][::-1]
        np.testing.assert_array_equal(batch["x"][0], windows[len(wanted) - 1]["x"])
        episode, time, sample = wanted[0]
        at = windows.at(episode, time)
        assert at.sample_id == 0
        check_sample(at, sample)


def one(**signals) -> wd.Episodes:
    made = {n: wd.ArraySignal(np.array(t, np.int64) * MS, np.array(v)) for n, (t, v) in signals.items()}
    return wd.Episodes.of([wd.Episode.of(made, {"task": "pick", "mass": 2.5}, id="only")])


def test_a_time_that_is_no_anchor() -> None:
    windows = wd.Windows(one(a=([0, 10, 20], [1.0, 2.0, 3.0])), {"x": wd.Field("a")}, anchor="a")
    found = windows.at("only", 15 * MS)
    assert (found["x"], found.age_ns["x"], found.sample_id) == (2.0, 5 * MS, -1)
    with pytest.raises(KeyError, match="Did you mean 'only'"):
        windows.at("onli", 0)


def test_static_items_are_fields() -> None:
    windows = wd.Windows(
        one(a=([0, 10], [1.0, 2.0])), {"task": wd.Field("task"), "mass": "mass", "x": "a"}, anchor="a"
    )
    batch = windows.batch([0, 1])
    assert batch["task"].tolist() == ["pick", "pick"]
    assert batch["mass"].tolist() == [2.5, 2.5]
    assert batch.mask["task"].tolist() == [True, True]
    with pytest.raises(ValueError, match="static item"):
        wd.Windows(one(a=([0], [1.0])), {"task": wd.Field("task", past=2)}, anchor="a")


def test_a_static_item_that_an_episode_lacks_is_masked() -> None:
    both = one(a=([0], [1.0])) + wd.Episodes.of([wd.Episode.of({"a": wd.ArraySignal([0], [5.0])}, id="bare")])
    batch = wd.Windows(both, {"mass": "mass", "task": "task"}, anchor="a").batch([0, 1])
    assert batch.mask["mass"].tolist() == batch.mask["task"].tolist() == [True, False]
    assert np.isnan(batch["mass"][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"past": 2, "horizon": 3}, "one way"),
        ({"past_s": 0.1}, "rate_hz"),
        ({"rate_hz": 10}, "rate_hz"),
        ({"past": 0}, "records"),
        ({"align": "holt"}, "Did you mean 'hold'"),
        ({"offsets_s": []}, "moments"),
        ({"offsets": []}, "from 1"),
        ({"offsets": range(2**50)}, "from 1"),
        ({"offsets_s": range(2**50)}, "moments"),
        ({"offsets": [0, 1.0]}, "seconds are offsets_s"),
        ({"offsets": [True]}, "records"),
        ({"offsets": [0], "past": 2}, "one way"),
        ({"offsets": [0], "align": "nearest"}, "not aligned"),
        ({"at_s": float("nan")}, "seconds"),
        ({"past": 2, "align": "linear"}, "not aligned"),
        ({"size": (3,)}, "size"),
    ],
)
def test_a_field_says_when_in_exactly_one_way(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        wd.Field("a", **options)


def test_what_the_mask_hides_is_zero_in_any_type() -> None:
    bare = wd.Episode.of({"a": wd.ArraySignal([0], [5.0])}, id="bare")
    both = one(a=([0, 10], [1.0, 2.0]), b=([10, 20], np.array([[3, 4], [5, 6]], np.int16))) + wd.Episodes.of(
        [bare]
    )
    fields = {"b": wd.Field("b"), "past": wd.Field("b", past=2), "task": "task", "mass": "mass"}
    windows = wd.Windows(both, fields, anchor="a", edges="zero")
    batch = windows.batch([0, 1, 2])
    assert batch["b"].tolist() == [[0, 0], [3, 4], [0, 0]]
    assert batch["past"].tolist() == [[[0, 0]] * 2, [[0, 0], [3, 4]], [[0, 0]] * 2]
    assert batch["task"].tolist() == ["pick", "pick", ""]
    assert batch["mass"].tolist() == [2.5, 2.5, 0.0]
    for number in range(3):
        for name, values in windows[number].items():
            np.testing.assert_array_equal(values, batch[name][number])
    assert len(windows) == len(wd.Windows(both, fields, anchor="a"))


@pytest.mark.parametrize("edges", ["pad", "skip"])
def test_a_batch_is_the_same_before_and_after_all_of_it_was_checked(tmp_path, edges) -> None:
    """Bytes are checked on first use: values, masks, ages and items are the same afterwards."""
    rng = np.random.default_rng(0)
    for number in range(3):
        made = wd.WShardEpisode(id=f"{number}", length=30)
        made.observations["joints"] = rng.normal(size=(30, 3)).astype(np.float32)
        made.actions["torque"] = rng.normal(size=(30, 2)).astype(np.float32)
        wd.save_wshard(made, tmp_path / f"{number}.wshard", durable=False)
    fields = {
        "state": wd.Field("joints", offsets=range(-2, 3)), "action": wd.Field("torque", offsets=range(-2, 3)),
        "now": "torque",
    }  # fmt: skip
    windows = wd.Windows(wd.open_episodes(tmp_path), fields, anchor="torque", edges=edges)
    everything = np.arange(len(windows))
    batches = [windows.batch(everything) for _ in range(3)]
    singles = [windows[int(n)] for n in everything]
    for batch in batches:
        for number, sample in enumerate(singles):
            assert (batch.ts_ns[number], batch.episode[number]) == (sample.ts_ns, sample.episode)
            for name in fields:
                for part, one_part in (
                    (batch, sample),
                    (batch.mask, sample.mask),
                    (batch.age_ns, sample.age_ns),
                ):
                    np.testing.assert_array_equal(part[name][number], one_part[name], err_msg=name)


def test_a_value_that_is_too_old_stays_masked_in_every_batch() -> None:
    episodes = one(fast=(range(0, 100, 10), np.arange(10.0)), slow=([0, 50], [1.0, 2.0]))
    fields = {"slow": wd.Field("slow", max_age_s=0.02), "fast": "fast", "task": "task"}
    windows = wd.Windows(episodes, fields, anchor="fast")
    for _ in range(3):
        batch = windows.batch(np.arange(10))
        assert batch.mask["slow"].tolist() == ([True] * 3 + [False] * 2) * 2
        assert batch.age_ns["slow"].tolist() == [0, 10 * MS, 20 * MS, 30 * MS, 40 * MS] * 2
        assert batch["task"].tolist() == ["pick"] * 10


def test_misspelt_names_suggest_the_right_one() -> None:
    episodes = one(joints=([0, 10], [1.0, 2.0]))
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        wd.Windows(episodes, {"x": wd.Field("joint")}, anchor="joints")
    with pytest.raises(KeyError, match="Did you mean 'joints'"):
        len(wd.Windows(episodes, {"x": wd.Field("joints")}, anchor="joint"))
    batch = wd.Windows(episodes, {"state": wd.Field("joints")}, anchor="joints").batch([0])
    for ask in (
        lambda: batch.mask["states"],
        lambda: batch.mask.get("states"),
        lambda: batch.loss_mask("states"),
    ):
        with pytest.raises(KeyError, match="Did you mean 'state'"):
            ask()


def test_edges_error_names_the_first_sample() -> None:
    episodes = one(a=([0, 10, 20], [1.0, 2.0, 3.0]))
    with pytest.raises(DatasetError, match="'only', time 20000000: field 'x'"):
        len(
            wd.Windows(
                episodes,
                {"x": wd.Field("a", horizon=2), "y": wd.Field("a")},
                anchor="a",
                edges="error",
                stride=2,
            )
        )


def test_where_filters_samples_by_signals_and_static_items() -> None:
    episodes = one(a=([0, 10, 20, 30], [1.0, 2.0, 3.0, 4.0]), b=([5, 25], [[1.0, 7.0], [2.0, 8.0]]))
    fields = {"x": wd.Field("a")}
    chosen = wd.Windows(episodes, fields, anchor="a", where="a > 1 and b[2] = 7 and task = 'pick'")
    assert [chosen[i]["x"] for i in range(len(chosen))] == [2.0, 3.0]
    assert len(wd.Windows(episodes, fields, anchor="a", where="b is null")) == 1
    assert len(wd.Windows(episodes, fields, anchor="a", where="ts_ns >= 20000000")) == 2
    assert len(wd.Windows(episodes, fields, anchor="a", where="a > 9")) == 0
    with pytest.raises(DatasetError, match="tsk") as caught:
        len(wd.Windows(episodes, fields, anchor="a", where="tsk = 'pick'"))
    assert "Did you mean 'task'" in caught.value.hint


def test_an_anchor_can_be_a_role() -> None:
    made = {
        "motor": wd.ArraySignal([0, 10, 20], [1.0, 2.0, 3.0], role="action"),
        "seen": wd.ArraySignal([0, 5], [1.0, 2.0]),
    }
    episodes = wd.Episodes.of([wd.Episode.of(made, id="r")])
    assert len(wd.Windows(episodes, {"x": "seen"}, anchor="action")) == 3


def test_slerp_turns_between_rotations() -> None:
    from warpdata.timeline.meta import SignalMeta

    half = np.sqrt(0.5)
    meta = SignalMeta(np.dtype(np.float32), (4,), "vector", units="quaternion wxyz")
    turn = np.array([[1, 0, 0, 0], [half, half, 0, 0]], np.float32)
    signals = {"q": wd.ArraySignal([0, 100], turn, meta), "t": wd.ArraySignal([50], [0.0])}
    windows = wd.Windows(
        wd.Episodes.of([wd.Episode.of(signals, id="q")]), {"q": wd.Field("q", align="slerp")}, anchor="t"
    )
    np.testing.assert_allclose(windows[0]["q"], [np.cos(np.pi / 8), np.sin(np.pi / 8), 0, 0], atol=1e-6)


def test_episodes_that_do_not_fit_each_other_are_refused() -> None:
    both = one(a=([0], [[1.0, 2.0]])) + one(a=([0], [[1.0, 2.0, 3.0]]))
    windows = wd.Windows(both, {"x": "a"}, anchor="a")
    with pytest.raises(SchemaMismatchError, match="episode 'only'"):
        windows.batch([0, 1])


def test_images_are_cut_and_scaled_the_same_in_any_batch() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), np.uint8)
    episodes = wd.Episodes.of([wd.Episode.of({"cam": wd.ArraySignal(np.arange(6) * 10, images)}, id="i")])
    fields = {
        "small": wd.Field("cam", size=(7, 9)), "box": wd.Field("cam", crop=(2, 3, 8, 10)),
        "middle": wd.Field("cam", crop=(10, 12), size=(5, 6)), "flat": wd.Field("cam", dtype="float32", past=2),
        "same": wd.Field("cam", size=(20, 24)),
    }  # fmt: skip
    windows = wd.Windows(episodes, fields, anchor="cam")
    batch = windows.batch(np.arange(6))
    assert batch["small"].shape == (6, 7, 9, 3)
    assert batch["small"].dtype == np.uint8
    np.testing.assert_array_equal(batch["box"], images[:, 2:10, 3:13])
    np.testing.assert_array_equal(batch["same"], images)
    assert batch["flat"].dtype == np.float32
    assert batch["flat"].shape == (6, 2, 20, 24, 3)
    for i in range(6):
        np.testing.assert_array_equal(windows[i]["small"], batch["small"][i])
    assert abs(float(batch["small"].mean()) - float(images.mean())) < 2
    with pytest.raises(ValueError, match="does not fit"):
        wd.Windows(episodes, {"x": wd.Field("cam", crop=(30, 2))}, anchor="cam")


def test_counting_opens_no_episode_where_the_facts_suffice(tmp_path, monkeypatch) -> None:
    for number in range(3):
        with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
            for i in range(5 + number):
                writer.append("joints", np.zeros(2, np.float32) + i, i * 10 * MS)
    episodes = wd.open_episodes(tmp_path / "root")
    windows = wd.Windows(episodes, {"x": wd.Field("joints", past=2)}, anchor="joints")
    from warpdata.loading.windows import Windows

    monkeypatch.setattr(Windows, "open_at", lambda *_: pytest.fail("an episode was opened"))
    assert len(windows) == 18


def test_the_index_is_counted_once_and_kept(monkeypatch) -> None:
    episodes = one(a=([0, 10, 20, 30], [1.0, 2.0, 3.0, 4.0]))
    options = {"anchor": "a", "edges": "skip", "where": "a > 0"}
    make = lambda: wd.Windows(episodes, {"x": wd.Field("a", past=2)}, **options)  # noqa: E731
    assert len(make()) == 3
    from warpdata.loading.windows import Windows

    monkeypatch.setattr(Windows, "open_at", lambda *_: pytest.fail("counted again"))
    assert len(make()) == 3
    changed = wd.Windows(episodes, {"x": wd.Field("a", past=3)}, **options)
    assert changed.id != make().id


def test_nothing_is_read_to_count_what_counting_is_cheaper_than_naming(monkeypatch) -> None:
    from warpdata.timeline.memory import ArraySignal

    class Unread(ArraySignal):
        def _values_in(self, rows):
            pytest.fail("values were read")

    signal = Unread(np.arange(20) * MS, np.arange(20.0))
    windows = wd.Windows(
        [wd.Episode.of({"a": signal}, id="x")], {"x": wd.Field("a", horizon=4)}, anchor="a", edges="skip"
    )
    assert len(wd.Loader(windows, 4)) == 5


def test_only_damage_makes_an_episode_unreadable() -> None:
    """A connection that fails while samples are counted is an error: with other samples ranks would not agree."""
    from warpdata.errors import UnavailableError

    class Far(type(wd.Episodes.of([]).source)):
        def open(self, position):
            raise UnavailableError("no answer")

    windows = wd.Windows(one(a=([0, 10], [1.0, 2.0])), {"x": wd.Field("a", past=2)}, anchor="a", edges="skip")
    windows.episodes = wd.Episodes(Far(list(windows.episodes)))
    for ask in (lambda: len(windows), lambda: windows.id):
        with pytest.raises(UnavailableError):
            ask()


def test_a_damaged_index_is_counted_again(tmp_path) -> None:
    episodes = one(a=([0, 10, 20, 30], [1.0, 2.0, 3.0, 4.0]))
    options = {"anchor": "a", "edges": "skip", "where": "a > 0"}
    make = lambda: wd.Windows(episodes, {"x": wd.Field("a", past=2)}, **options)  # noqa: E731
    assert len(make()) == 3
    (path,) = (tmp_path / "cache" / "windows").glob("*.npz")
    whole = path.read_bytes()
    for cut in (b"", whole[: len(whole) // 2], whole[:-40] + b"\xff" * 40, b"nonsense"):
        path.write_bytes(cut)
        assert len(make()) == 3


def test_ids_name_everything_a_sample_depends_on() -> None:
    episodes = one(a=([0, 10], [1.0, 2.0]), b=([0, 10], [1.0, 2.0]))
    base = {"anchor": "a"}
    made = [
        wd.Windows(episodes, {"x": wd.Field("a")}, **base),
        wd.Windows(episodes, {"y": wd.Field("a")}, **base),
        wd.Windows(episodes, {"x": wd.Field("b")}, **base),
        wd.Windows(episodes, {"x": wd.Field("a", past=1)}, **base),
        wd.Windows(episodes, {"x": wd.Field("a", dtype="float32")}, **base),
        wd.Windows(episodes, {"x": wd.Field("a", transform=lambda x, _: x)}, **base),
        wd.Windows(episodes, {"x": wd.Field("a", transform=lambda x, _: x + 1)}, **base),
        wd.Windows(episodes, {"x": wd.Field("a")}, anchor="b"),
        wd.Windows(episodes, {"x": wd.Field("a")}, **base, edges="skip"),
        wd.Windows(episodes, {"x": wd.Field("a")}, **base, max_age_s=1),
        wd.Windows(episodes, {"x": wd.Field("a")}, **base, max_gap_s=1),
        wd.Windows(episodes, {"x": wd.Field("a")}, **base, stride=2),
        wd.Windows(episodes, {"x": wd.Field("a")}, **base, where="a > 0"),
        wd.Windows(episodes, {"x": wd.Field("a")}, rate_hz=10),
        wd.Windows(one(a=([0, 10], [1.0, 3.0]), b=([0, 10], [1.0, 2.0])), {"x": wd.Field("a")}, **base),
        wd.Windows(episodes.map(lambda e: {"c": e["a"]}), {"x": wd.Field("a")}, **base),
    ]
    assert len({each.id for each in made}) == len(made)
    assert (
        wd.Windows(one(a=([0, 10], [1.0, 2.0]), b=([0, 10], [1.0, 2.0])), {"x": "a"}, **base).id == made[0].id
    )


def test_facts_read_no_values_for_the_identity(tmp_path) -> None:
    """An episode that nothing identifies gets its identity when windows need it, not when facts are asked for."""
    from warpdata.timeline.memory import ArraySignal

    class Counted(ArraySignal):
        reads = 0

        def _values_in(self, rows):
            Counted.reads += 1
            return super()._values_in(rows)

    signal = Counted(np.arange(5) * MS, np.arange(5.0))
    episodes = wd.Episodes.of([wd.Episode.of({"a": signal}, id="x")])
    assert episodes.facts.column("content").to_pylist() == [None]
    assert Counted.reads == 0
    assert episodes.contents[0].startswith("values:")
    assert Counted.reads > 0


def test_each_frame_is_decoded_once_while_windows_overlap(tmp_path, monkeypatch) -> None:
    from warpdata.formats.episodedir.frame_index import FrameReader

    with wd.LocalDatasetWriter(tmp_path / "root").new_episode() as writer:
        for i in range(40):
            writer.append("cam", np.full((16, 16, 3), i * 5, np.uint8), i * 50 * MS)
    windows = wd.Windows(
        wd.open_recordings(tmp_path / "root"), {"image": wd.Field("cam", past=6)}, anchor="cam"
    )
    decoded: list[int] = []
    original = FrameReader.frames_into
    monkeypatch.setattr(
        FrameReader,
        "frames_into",
        lambda self, numbers, out: decoded.extend(numbers.tolist()) or original(self, numbers, out),
    )
    batch = windows.batch([0, 1, 7, 8, 30, 39, 5, 2])
    needed = {f for n in (0, 1, 7, 8, 30, 39, 5, 2) for f in range(max(0, n - 5), n + 1)}
    assert needed <= set(decoded)
    windows.batch([3, 4, 6, 9, 31, 0])
    assert len(decoded) == len(set(decoded)), "no frame twice, in one batch or in two"
    assert batch["image"].shape == (8, 6, 16, 16, 3)
    assert abs(int(batch["image"][4, -1].mean()) - 150) < 4


A = one(a=([0, 10], [[1.0, 2.0], [3.0, 4.0]]))
TWO_CLOCKS = wd.Episodes.of(
    [
        wd.Episode.of(
            {
                "left": wd.ArraySignal([0, 10], [1.0, 2.0], role="action"),
                "right": wd.ArraySignal([0, 11], [1.0, 2.0], role="action"),
            },
            id="two",
        )
    ]
)


def over(episodes: object = A, field: wd.Field | str = "a", **options: Any) -> wd.Windows:
    return wd.Windows(episodes, {"x": field}, **({"anchor": "a"} | options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: over(edges="skp"), ValueError, "edges is .*, not 'skp'. Did you mean 'skip'"),
        (lambda: over(anchor=None), ValueError, "give either anchor= .* or rate_hz="),
        (lambda: over(rate_hz=3.0), ValueError, "give either anchor= .* or rate_hz="),
        (lambda: over(anchor=3), TypeError, "anchor names a signal or a role, not 3"),
        (lambda: len(over(TWO_CLOCKS, "left", anchor="action", edges="skip")), ValueError,
         "'action' of episode 'two' have clocks of their own: choose one of left, right"),
        (lambda: over(3), TypeError, "over Episodes, a Dataset or a list of episodes, not int"),
        (lambda: over([*A, 3]), TypeError, "over Episodes, a Dataset or a list of episodes, not list"),
        (lambda: over(wd.Episodes.of([])).schema, DatasetError, "there is no episode to make windows of"),
        (lambda: over().refresh(), ValueError, "only windows with follow=True can grow"),
        (lambda: over()[2], IndexError, "sample 2 of 2"),
        (lambda: over()[-3], IndexError, "sample -3 of 2"),
        (lambda: over().at(1, 0), IndexError, "episode 1 of 1"),
        (lambda: over().at(-2, 0), IndexError, "episode -2 of 1"),
        (lambda: over(field=wd.Field("a", size=(2, 2))).schema, ValueError, r"for images, 'a' has shape \[2\]"),
        (lambda: over(field=wd.Field("a", crop=(2, 2))).schema, ValueError, r"for images, 'a' has shape \[2\]"),
        (lambda: over(field=wd.Field("task", dtype="f4")).schema, ValueError, "'task' is no number, and has no dtype"),
        (lambda: wd.Field(3), TypeError, "a field names a signal or a static item, not 3"),
        (lambda: wd.Field("a", transform=3), TypeError, "a transform is a function of .*, not 3"),
        (lambda: wd.Field("a", crop=(1, 2, 3)), ValueError, r"crop is .*, not \(1, 2, 3\)"),
        (lambda: wd.Field("a", crop=(4, 0)), ValueError, r"crop is .*, not \(4, 0\)"),
        (lambda: wd.Field("a", crop=(1.5, 2)), TypeError, r"crop is of whole numbers of pixels, not \(1.5, 2\)"),
        (lambda: wd.Field("a", size=(1.5, 2)), TypeError, r"size is of whole numbers of pixels, not \(1.5, 2\)"),
        (lambda: wd.Field("a", size=3), TypeError, "size is of whole numbers of pixels, not 3"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_had(make: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def test_a_damaged_episode_is_noted_once_and_has_no_samples() -> None:
    class Damaged(type(wd.Episodes.of([]).source)):  # type: ignore[misc]
        def open(self, position: int) -> wd.Episode:
            if position == 1:
                raise CorruptLayoutError("its blocks overlap")
            return super().open(position)

    second = wd.Episode.of(dict(A[0].signals), id="second")
    windows = over(wd.Episodes(Damaged([A[0], second])), wd.Field("a", past=2), edges="skip")
    with pytest.warns(
        UserWarning, match="episode 'second' cannot be read and has no samples: its blocks overlap"
    ):
        assert len(windows) == 1
    assert list(windows.unreadable) == ["second"]
    with pytest.raises(DatasetError, match="episode 'second' cannot be read: its blocks overlap"):
        list(wd.Loader(windows, 1, threads=0))


def test_a_misspelt_anchor_is_refused_at_once() -> None:
    with pytest.raises(KeyError, match=r"no episode has a signal 'actoin'.*Did you mean 'action'"):
        wd.Windows(one(action=([0, 10], [1.0, 2.0])), {"x": "action"}, anchor="actoin")


@pytest.mark.parametrize("condition", ["extra > 3", "extra[1] > 3", "EXTRA > 3", "word = 'go'", "note = 'a'"])
def test_what_one_episode_lacks_is_null_in_conditions(condition) -> None:
    values = np.array([[2.0], [4.0]]) if "[1]" in condition else np.array([2.0, 4.0])
    both = wd.Episodes.of(
        [
            wd.Episode.of({"a": wd.ArraySignal([0, 10], [1.0, 2.0])}, id="bare"),
            wd.Episode.of(
                {"a": wd.ArraySignal([0, 10], [1.0, 2.0]), "extra": wd.ArraySignal([0, 10], values)},
                {"word": "go", "note": "b"},
                id="full",
            ),
        ]
    )
    windows = wd.Windows(both, {"x": "a"}, anchor="a", where=condition)
    expected = {"word = 'go'": [1, 1], "note = 'a'": []}.get(condition, [1])
    assert windows.batch(np.arange(len(windows))).episode.tolist() == expected
    is_null = wd.Windows(both, {"x": "a"}, anchor="a", where="extra is null")
    assert is_null.batch([0, 1]).episode.tolist() == [0, 0]
    mixture = wd.Mixture.by_sample(wd.Windows(both, {"x": "a"}, anchor="a"), {condition: 2.0})
    assert sum(map(len, mixture.sources)) == 4
    with pytest.raises(DatasetError, match="extr"):
        len(wd.Windows(both, {"x": "a"}, anchor="a", where="extr > 3"))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int16"])
@pytest.mark.parametrize("channels", [(), (1,), (3,), (4,)])
def test_scaling_is_near_the_average_of_what_a_pixel_covers(dtype, channels) -> None:
    images = np.random.default_rng(0).integers(0, 200, (2, 12, 18, *channels)).astype(dtype)
    episodes = wd.Episodes.of([wd.Episode.of({"cam": wd.ArraySignal([0, 10], images)}, id="i")])
    batch = wd.Windows(episodes, {"x": wd.Field("cam", size=(4, 6))}, anchor="cam").batch([0, 1])
    assert (batch["x"].dtype, batch["x"].shape) == (np.dtype(dtype), (2, 4, 6, *channels))
    flat = np.full((1, 12, 18, *channels), 77, dtype)
    plain = wd.Episodes.of([wd.Episode.of({"cam": wd.ArraySignal([0], flat)}, id="i")])
    for size in ((4, 6), (30, 40)):
        scaled = wd.Windows(plain, {"x": wd.Field("cam", size=size)}, anchor="cam").batch([0])["x"]
        assert (scaled == 77).all()
    means = images.reshape(2, 4, 3, 6, 3, *channels).mean((2, 4))
    assert np.abs(batch["x"].astype(float) - means).mean() < 25


def test_the_memory_of_scaling_is_that_of_a_frame() -> None:
    import tracemalloc

    images = np.zeros((16, 240, 320, 3), np.uint8)
    episodes = wd.Episodes.of([wd.Episode.of({"cam": wd.ArraySignal(np.arange(16), images)}, id="i")])
    windows = wd.Windows(episodes, {"x": wd.Field("cam", size=(112, 112))}, anchor="cam")
    tracemalloc.start()
    windows.batch(np.arange(16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * images.nbytes


def test_windows_over_numbers_need_no_video(tmp_path) -> None:
    source = SHARED_GOLDEN / "foreign" / "lerobot" / "v30_061_video_h264"
    if not source.is_dir():
        pytest.skip("the foreign golden files are not here")
    shutil.copytree(source, tmp_path / "set")
    fields = {"state": wd.Field("observation.state", past=2), "action": wd.Field("action", horizon=4)}
    grid = {"state": wd.Field("observation.state", past_s=0.1, future_s=0.1, rate_hz=20)}

    def batches():
        episodes = wd.open(tmp_path / "set")
        anchored = wd.Windows(episodes, fields, anchor="action", where="action[1] > 0")
        return [
            b["state"] for w in (anchored, wd.Windows(episodes, grid, rate_hz=10)) for b in wd.Loader(w, 9)
        ]

    wanted = batches()
    shutil.rmtree(tmp_path / "set" / "videos")
    for found, expected in zip(batches(), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)
