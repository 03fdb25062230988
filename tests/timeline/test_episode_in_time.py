from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.errors import TimeRangeError
from warpdata.timeline.episode import Episode, EpisodeView
from warpdata.timeline.memory import ArraySignal


@pytest.fixture
def episode() -> Episode:
    fast = ArraySignal(range(100, 200, 10), np.arange(10, dtype="f4"))
    slow = ArraySignal([120, 170, 250], np.array([[1, 2], [3, 4], [5, 6]]))
    note = ArraySignal([105, 160], ["go", "stop"])
    return Episode.of({"fast": fast, "slow": slow, "note": note}, {"task": "pick"}, {"uid": "u"})


def test_names_and_items(episode: Episode) -> None:
    assert episode.keys == ("fast", "slow", "note", "task")
    assert episode["task"] == "pick"
    assert len(episode["slow"]) == 3
    assert "fast" in episode
    assert "uid" not in episode
    assert episode.meta["uid"] == "u"
    with pytest.raises(KeyError, match="no item 'nope'"):
        episode["nope"]
    with pytest.raises(TypeError):
        episode.static["x"] = 1  # type: ignore[index]


def test_start_is_when_everything_is_defined(episode: Episode) -> None:
    assert (episode.start_ts, episode.last_ts) == (120, 250)
    assert (episode.first_ts_ns, episode.last_ts_ns, episode.duration_ns) == (100, 250, 150)
    with pytest.raises(TimeRangeError):
        _ = Episode.of({}).start_ts


def test_snapshot(episode: Episode) -> None:
    now = episode.time[165]
    assert now["task"] == "pick"
    assert now["fast"] == 6
    assert now["slow"].tolist() == [1, 2]
    assert now["note"] == "stop"
    with pytest.raises(TimeRangeError, match="'slow'"):
        episode.time[110]
    with pytest.raises(TypeError):
        episode.time[165.0]


def test_window_keeps_static_and_meta(episode: Episode) -> None:
    view = episode.time[120:170]
    assert isinstance(view, EpisodeView)
    assert view["fast"].timestamps.tolist() == [120, 130, 140, 150, 160]
    assert view["slow"].timestamps.tolist() == [120]
    assert view["task"] == "pick"
    assert view.meta["uid"] == "u"
    assert len(episode.time[300:400]["slow"]) == 0
    assert view.time[130:][("fast")].first_ts_ns == 130
    with pytest.raises(TypeError):
        episode.time["a":]


def test_a_grid_gives_every_signal_the_same_length(episode: Episode) -> None:
    view = episode.time[::20]
    assert {len(signal) for signal in view.signals.values()} == {7}
    assert view["fast"].timestamps.tolist() == list(range(120, 251, 20))
    assert {len(s) for s in episode.time[130:300:25].signals.values()} == {7}
    assert [len(s) for s in episode.time[[130, 125]].signals.values()] == [2, 2, 2]
    with pytest.raises(TimeRangeError, match="'slow'"):
        episode.time[100:200:10]
    for step in (0, -1):
        with pytest.raises(ValueError):
            episode.time[::step]


def test_samples_say_how_old_they_are(episode: Episode) -> None:
    got = episode.sample([125, 171, 400], fields=["slow", "fast"], max_age_ns=60)
    assert list(got) == ["slow", "fast"]
    assert got["slow"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert got.age_ns["slow"].tolist() == [5, 1, 150]
    assert got.mask["slow"].tolist() == [True, True, False]
    assert got["mask"]["fast"].tolist() == [True, True, False]
    assert got["times_ns"].tolist() == [125, 171, 400]
    assert pickle.loads(pickle.dumps(got)).mask["slow"].tolist() == [True, True, False]
    with pytest.raises(KeyError):
        got["other"]


def test_samples_before_the_first_record(episode: Episode) -> None:
    with pytest.raises(TimeRangeError, match="'slow'"):
        episode.sample([110, 125], before="raise")
    assert episode.sample([110, 125]).mask["slow"].tolist() == [False, True]
    padded = episode.sample([110, 125], before="pad")
    assert padded["slow"].tolist() == [[1, 2], [1, 2]]
    assert padded.mask["slow"].tolist() == [False, True]
    assert padded.age_ns["slow"].tolist() == [-10, 5]
    blank = episode.sample([90, 125], before="nan")
    assert np.isnan(blank["fast"][0])
    assert blank["fast"][1] == 2
    assert blank["slow"][0].tolist() == [0, 0]
    assert blank["note"][0] == ""
    for bad in ({"before": "guess"}, {"max_age_ns": -1}):
        with pytest.raises(ValueError):
            episode.sample([125], **bad)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="nope"):
        episode.sample([125], fields=["nope"])
    with pytest.raises(TypeError):
        episode.sample([125.0])
    assert episode.sample(125)["fast"].tolist() == [2]


@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=30, unique=True),
    st.lists(st.integers(-(2**41), 2**41), max_size=20),
)
def test_sampling_is_the_step_function(stamps: list[int], times: list[int]) -> None:
    stamps = sorted(stamps)
    episode = Episode.of({"x": ArraySignal(stamps, np.arange(len(stamps)))})
    got = episode.sample(times, before="pad")
    for i, t in enumerate(times):
        held = [k for k, s in enumerate(stamps) if s <= t]
        assert bool(got.mask["x"][i]) is bool(held)
        assert got["x"][i] == (held[-1] if held else 0)
        assert got.age_ns["x"][i] == t - stamps[held[-1] if held else 0]


def test_everything_handed_out_is_read_only(episode: Episode) -> None:
    got: Any = episode.sample([125])
    for array in (got["fast"], got.mask["fast"], got.age_ns["fast"], got.times_ns):
        assert not array.flags.writeable


def test_names_inside_metadata_are_text_as_json_keeps_them() -> None:
    made = Episode.of(
        {"x": ArraySignal([0, 1], [1.0, 2.0])}, {"bins": {2: "b", 10: "j"}}, meta={"map": {1: 2}}
    )
    assert made.static["bins"] == {"2": "b", "10": "j"}
    assert made.meta["map"] == {"1": 2}
