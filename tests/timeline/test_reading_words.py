"""One vocabulary for readers: shapes, arrays, keys, aliases, and samples in the batches of a DataLoader."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from tests.contracts.episode import IMU_NS, STEP_COUNT, STEP_NS, imu, in_memory
from warpdata.formats.wshard.episode import Channel
from warpdata.timeline.episode import Episode
from warpdata.timeline.steps import Samples

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Windows(Dataset[Samples]):
    """Four times around each step; the first of them lie before anything was recorded."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode

    def __len__(self) -> int:
        return STEP_COUNT

    def __getitem__(self, k: int) -> Samples:
        times = k * STEP_NS + np.array([-STEP_NS, 0, 1, 3 * IMU_NS], np.int64)
        return self.episode.sample(times, fields=["push", "imu"], max_age_ns=STEP_NS // 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_default_collate_keeps_masks_ages_and_times_of_every_item(workers: int) -> None:
    windows = Windows(in_memory())
    loader = DataLoader(windows, batch_size=5, num_workers=workers)
    seen = 0
    for batch in loader:
        assert isinstance(batch, Samples)
        assert sorted(batch) == ["imu", "push"]
        for at in range(len(batch["push"])):
            item = windows[seen]
            for name in ("push", "imu"):
                assert torch.equal(batch[name][at], torch.tensor(np.array(item[name])))
                assert batch.mask[name][at].tolist() == item.mask[name].tolist()
                assert batch.age_ns[name][at].tolist() == item.age_ns[name].tolist()
            assert batch.times_ns[at].tolist() == item.times_ns.tolist()
            seen += 1
        assert batch.mask["push"].dtype == torch.bool
    assert seen == STEP_COUNT


def test_text_stays_text_in_a_batch() -> None:
    said = wd.Episode.of({"said": wd.ArraySignal([0, 10], ["one", "two"])})
    items = [said.sample([0, 10]), said.sample([5, 12])]
    batch = next(iter(DataLoader(items, batch_size=2)))
    assert batch["said"] == [["one", "two"], ["one", "two"]]
    assert batch.mask["said"].tolist() == [[True, True], [True, True]]


def test_samples_made_before_torch_was_imported_are_refused() -> None:
    """Otherwise a whole batch would have the masks of its first item."""
    code = """
import numpy as np, warpdata as wd
from warpdata.timeline.memory import ArraySignal
episode = wd.Episode.of({"x": ArraySignal([0, 10], [1.0, 2.0])})
items = [episode.sample([0]), episode.sample([-5])]
from torch.utils.data import DataLoader
first = next(iter(DataLoader(items, batch_size=2)))
print(hasattr(first, "mask"))
print(next(iter(DataLoader(items, batch_size=2))).mask["x"].tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["False", "[[True], [False]]"], done.stderr


def test_samples_copy_and_pickle() -> None:
    item = Windows(in_memory())[0]
    for again in (copy.copy(item), pickle.loads(pickle.dumps(item)), copy.deepcopy(item)):
        assert again.mask["imu"].tolist() == item.mask["imu"].tolist() == [False, False, False, True]
        assert again.times_ns.tolist() == item["times_ns"].tolist()


def test_signals_are_arrays() -> None:
    episode = in_memory()
    for signal in (episode["imu"], episode["imu"][2:5], episode.time[STEP_NS:]["imu"]):
        assert np.array_equal(np.asarray(signal), signal.to_numpy())
        assert np.asarray(signal).shape == (len(signal), 3)
    assert np.array_equal(episode["imu"].to_numpy()[3], imu(3))
    assert np.asarray(episode["imu"], np.float32).dtype == np.float32
    steps = episode.steps.observations["number"]
    assert np.array_equal(np.asarray(steps), steps.to_numpy())


def test_the_shape_of_a_channel_is_the_whole_one() -> None:
    made = wd.WShardEpisode("e", length=6)
    made.observations["rgb"] = np.zeros((6, 4, 5, 3), np.uint8)
    made.observations["said"] = ["x"] * 6
    made.rewards = np.zeros(6, np.float32)
    for name, channel in (*made.observations.items(), ("reward", made.rewards)):
        assert channel.shape == channel.data.shape == (6, *channel.row_shape), name
        assert np.array_equal(channel.to_numpy(), np.asarray(channel))
    assert Channel("x", np.zeros((0, 7))).shape == (0, 7)


def test_words_that_speak_for_what_models_made() -> None:
    made = wd.WShardEpisode("e", length=6)
    made.observations["x"] = np.zeros((6, 2), np.float32)
    made.predictions["x/dreamer"] = np.ones((6, 2), np.float32)
    made.uncertainties = {"x/dreamer/std": np.ones((6, 2), np.float32)}
    assert made.omens is made.predictions
    assert list(made.uncerts) == list(made.uncertainties)
    for episode in (made.in_time, wd.open_episode(_bytes(made))):
        steps = episode.steps
        assert list(steps.predictions) == list(steps.omens) != []
        assert list(steps.uncertainties) == list(steps.uncerts) != []
    assert list(episode.tensors.predictions) == list(made.omens)


def _bytes(made: wd.WShardEpisode) -> bytes:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        wd.save_wshard(made, Path(folder) / "e.wshard")
        return (Path(folder) / "e.wshard").read_bytes()


KEYS = st.one_of(
    st.integers(-STEP_COUNT - 2, STEP_COUNT + 1),
    st.builds(
        slice, *[st.one_of(st.none(), st.integers(-15, 15))] * 2, st.sampled_from([None, 1, 2, -1, -3])
    ),
    st.lists(st.integers(-STEP_COUNT, STEP_COUNT - 1), max_size=5),
    st.lists(st.booleans(), min_size=STEP_COUNT, max_size=STEP_COUNT).map(np.array),
    st.tuples(st.integers(0, STEP_COUNT - 1), st.integers(-2, 1)),
    st.tuples(st.slices(STEP_COUNT), st.slices(2)),
    st.just(Ellipsis),
    st.just((None, slice(2, 5))),
)


@given(KEYS, st.sampled_from(["number", "push", "reward", "imu"]))
def test_keys_choose_what_they_choose_of_an_array(key: Any, name: str) -> None:
    signal = in_memory().steps[name]
    whole = np.array(signal.data)
    try:
        wanted = whole[key]
    except IndexError:
        with pytest.raises(IndexError):
            signal[key]
        return
    assert np.array_equal(signal[key], wanted)
    assert np.shape(signal[key]) == np.shape(wanted)


@pytest.mark.parametrize("key", ["x", 1.5, np.array([0.5]), {}])
def test_what_is_no_key_is_said_so(key: Any) -> None:
    with pytest.raises(IndexError, match="integer"):
        in_memory().steps["number"][key]
