"""Record a Gymnasium environment, look at the returns, keep the good episodes and pack one into a file.

    python examples/record_gym.py [FOLDER]

`wd.RecordEpisodes` wraps the environment; the loop around it stays as it is. Needs the extra `gym`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

import warpdata as wd


def balance(observation: np.ndarray, skill: float, rng: np.random.Generator) -> int:
    """Push towards the side to which the pole falls; a low skill often pushes at random."""
    if rng.random() > skill:
        return int(rng.integers(2))
    return int(observation[2] + 0.5 * observation[3] > 0)


def record(root: Path, episodes: int = 12) -> None:
    """Every episode becomes a recording below `root`, with its seed and skill as static items."""
    env = wd.RecordEpisodes(gymnasium.make("CartPole-v1", max_episode_steps=80), root)
    rng = np.random.default_rng(0)
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        is_over = False
        while not is_over:
            action = balance(observation, seed / episodes, rng)
            observation, _, terminated, truncated, _ = env.step(action)
            is_over = terminated or truncated
    env.close()


def main(folder: Path) -> None:
    """Record, compare the returns, pack the best episode."""
    record(folder / "cartpole")
    episodes = wd.open(folder / "cartpole")
    returns = {episode.id: float(np.sum(episode.steps["reward"].data)) for episode in episodes}
    print(f"{len(episodes)} episodes, returns {min(returns.values()):.0f} to {max(returns.values()):.0f}")
    good = episodes.where("length >= 60")
    print(f"{len(good)} episodes of at least 60 steps, signals: {', '.join(good[0].signals)}")
    best = max(returns, key=lambda name: returns[name])
    wd.pack_episode(next(episode for episode in episodes if episode.id == best), folder / "best.wshard")
    packed = wd.open(folder / "best.wshard")
    assert float(np.sum(packed.steps["reward"].data)) == returns[best]
    print(f"packed the best episode: {len(packed.steps)} steps")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
