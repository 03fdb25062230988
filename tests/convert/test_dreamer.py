"""DreamerV3 replay: streams over chunks, read as the original does and written again as they were."""

from __future__ import annotations

import string
from pathlib import Path

import numpy as np
import pytest

from tests.convert.foreign import copied, expected, imported, same_channel, sample
from tests.convert.sets import assert_same
from warpdata.convert import dreamer, hdf5
from warpdata.convert.place import Place


def base_62(raw: bytes) -> str:
    number, text = int.from_bytes(raw, "big"), ""
    for _ in range(22):
        number, digit = divmod(number, 62)
        text = (string.digits + string.ascii_letters)[digit] + text
    return text


def test_streams_are_joined_over_chunks_and_cut_into_episodes() -> None:
    source = sample("dreamerv3", "replay")
    assert dreamer.matches(Place.of(source))
    episodes = dreamer.read(source)
    for number, stream in expected("dreamerv3", "replay.expected.json")["streams"].items():
        own = [episode for episode in episodes if episode.meta["dreamer"]["stream"] == int(number)]
        assert [len(episode.steps) for episode in own] == stream["episode_lengths"]
        for channel, about in stream["channels"].items():
            assert same_channel(np.concatenate([episode[channel].values() for episode in own]), about), (
                channel
            )


def test_rewards_belong_to_the_action_before() -> None:
    episode = dreamer.read(sample("dreamerv3", "replay"))[0]
    stored = episode["reward"].values()
    steps = episode.steps
    np.testing.assert_array_equal(steps.rewards[:39], stored[1:])
    assert steps.rewards.mask.tolist() == [True] * 39 + [False]
    assert steps.terminated is not None
    assert bool(steps.terminated[38])


@pytest.mark.parametrize("kind", ["straight", "root", "shards"])
def test_replay_comes_out_as_it_went_in(kind: str, tmp_path: Path) -> None:
    source = sample("dreamerv3", "replay")
    episodes = dreamer.read(source)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "dreamer")
    assert dreamer.write(episodes, tmp_path / "out").is_exact
    again = dreamer.read(tmp_path / "out")
    theirs = dreamer.read(source)
    assert again.ids == theirs.ids
    for before, after in zip(theirs, again, strict=True):
        assert_same(before, after)


def test_other_episodes_become_replay(tmp_path: Path) -> None:
    episodes = hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))
    dreamer.write(episodes, tmp_path / "out", chunk_length=64)
    again = dreamer.read(tmp_path / "out")
    assert [len(episode.steps) for episode in again] == [41, 26, 61, 34]
    for before, after in zip(episodes, again, strict=True):
        np.testing.assert_array_equal(after["obs/object"].values(), before["obs/object"].values())
        np.testing.assert_array_equal(after["action"].values()[:-1], before["actions"].values())
        np.testing.assert_array_equal(after.steps.rewards[: len(before.steps)], before["rewards"].values())
        assert after["is_first"].values().tolist() == [True] + [False] * len(before.steps)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.npz"))
    assert [name.rpartition("-")[2] for name in names] == ["64.npz", "64.npz", "34.npz"]
    first = np.load(tmp_path / "out" / names[0])["stepid"]
    assert base_62(first[0, :16].tobytes()) == names[0].split("-")[1]
    dreamer.write(episodes, tmp_path / "same", chunk_length=64)
    assert [path.read_bytes() for path in sorted((tmp_path / "same").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "out").iterdir())
    ]


def test_a_missing_chunk_cuts_its_stream(tmp_path: Path) -> None:
    source = copied(sample("dreamerv3", "replay"), tmp_path)
    next(source.glob("*-3L4PViATKorDCSm8mCGqVK-*")).unlink()
    episodes = dreamer.read(source)
    assert [len(episode.steps) for episode in episodes] == [15, 60, 33]
    assert [episode.meta["dreamer"]["is_begun"] for episode in episodes] == [False, True, True]


def test_older_files_hold_an_episode_each(tmp_path: Path) -> None:
    action = np.arange(8, dtype=np.float32).reshape(4, 2)
    reward = np.arange(4, dtype=np.float32)
    np.savez_compressed(
        tmp_path / "20210101T120000-abc123-4.npz", action=action, reward=reward, image=np.zeros((4, 2))
    )
    episode = dreamer.read(tmp_path)[0]
    np.testing.assert_array_equal(episode["action"].values(), [*action[1:], [0, 0]])
    np.testing.assert_array_equal(episode.steps.rewards[:3], reward[1:])
    chosen = dreamer.read(tmp_path, actions="chosen")[0]
    np.testing.assert_array_equal(chosen["action"].values(), action)
