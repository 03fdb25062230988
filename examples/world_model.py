"""A world model on sequences like Dreamer's, and what it predicts beside what happened.

    python examples/world_model.py [FOLDER]

Batches are [batch, time, …] of observations, actions, rewards and flags out of published episodes. The model is the
smallest there is: a linear map from an observation and its action to the next observation, fitted with numpy alone.
Its predictions become a lane of a new version: a signal beside the recorded one. Then episodes are added. The lane
lists those that it lacks, and only these are computed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import warpdata as wd

BATCH, LENGTH = 16, 32
NAME = "examples/springs"
STEP_NS = 20_000_000


def record(root: Path, episodes: int, first: int = 0) -> None:
    """A mass on a spring, pushed at random."""
    for number in range(first, first + episodes):
        rng = np.random.default_rng(number)
        state = rng.normal(size=2)
        with wd.record(root, static={"task": "wobble", "seed": number}, clock="simulated") as rec:
            for k in range(120):
                push = rng.normal(size=1)
                rec.step(
                    {"state": state.astype(np.float32)},
                    {"push": push.astype(np.float32)},
                    reward=-float(state @ state),
                    terminated=k == 119,
                    ts_ns=k * STEP_NS,
                )
                state = state + 0.1 * np.array([state[1], push[0] - state[0] - 0.2 * state[1]])


def publish(root: Path, catalog: Path, *, extend: bool = False) -> None:
    """All episodes as a version; with `extend` on top of what is there."""
    with wd.DatasetBuilder(NAME, catalog=catalog) as builder:
        if extend:
            builder.extend()
        builder.add_episodes("episodes", root)
        builder.publish()


def sequences(dataset: wd.Dataset) -> wd.Loader:
    """Sequences of `LENGTH` steps that lie wholly inside an episode, shuffled."""
    windows = wd.Windows(
        dataset.episodes,
        {
            "state": wd.Field("state", horizon=LENGTH),
            "push": wd.Field("push", horizon=LENGTH),
            "reward": wd.Field("reward", horizon=LENGTH),
            "is_terminal": wd.Field("terminated", horizon=LENGTH),
        },
        anchor="push",
        stride=4,
        edges="skip",
    )
    return wd.Loader(windows, BATCH, seed=1, tail="drop", progress=True)


class LinearModel:
    """next = [state, push, 1] @ weights, by least squares over everything it has seen."""

    def __init__(self) -> None:
        self.square, self.product = np.zeros((4, 4)), np.zeros((4, 2))

    def see(self, state: np.ndarray, push: np.ndarray) -> None:
        """Add a batch of sequences."""
        inputs = self.inputs(state[:, :-1], push[:, :-1]).reshape(-1, 4)
        self.square += inputs.T @ inputs
        self.product += inputs.T @ state[:, 1:].reshape(-1, 2)

    @staticmethod
    def inputs(state: np.ndarray, push: np.ndarray) -> np.ndarray:
        """What the model looks at."""
        return np.concatenate([state, push, np.ones((*state.shape[:-1], 1))], axis=-1)

    @property
    def weights(self) -> np.ndarray:
        """The fit."""
        return np.linalg.solve(self.square + 1e-9 * np.eye(4), self.product)

    def predict(self, episode: wd.Episode) -> np.ndarray:
        """What it would have predicted one step ahead, for every record of `state`."""
        state, push = episode["state"].values(), episode["push"].values()
        ahead = self.inputs(state, push) @ self.weights
        return np.concatenate([state[:1], ahead[:-1]]).astype(np.float32)


def main(folder: Path) -> None:
    """Record, publish, fit, predict, compare; then more episodes."""
    root, catalog = folder / "root", folder / "catalog"
    record(root, 8)
    publish(root, catalog)
    model = LinearModel()
    with wd.dataset(NAME, catalog=catalog) as ds:
        loader = sequences(ds)
        for batch in loader:
            assert batch["state"].shape == (BATCH, LENGTH, 2)
            assert batch.mask["state"].all()
            model.see(batch["state"], batch["push"])
        print(f"{loader.report().samples} sequences; state after the epoch: {loader.state_dict()}")
        made = ds.add_lane("linear", model.predict, of="state", revision="epoch-1")
    print(f"lane in {made}: {made.computed} episodes computed")

    with wd.dataset(NAME, catalog=catalog) as ds:
        error = ds.compare_lane("linear").signals[0]
        worst = error.worst[0]
        print(f"one step ahead: rms error {error.rms:.2e}, worst {worst.error:.2e} in {worst.episode_id}")
        assert error.rms < 1e-4, "the world is linear"
        pairs = wd.Windows(
            ds.episodes,
            {
                "real": wd.Field("state", horizon=8),
                "predicted": wd.Field("prediction/state/linear", horizon=8),
            },
            anchor="push",
            edges="skip",
        )
        both = next(iter(wd.Loader(pairs, 4, seed=0)))
        assert np.allclose(both["real"], both["predicted"], atol=1e-3)

    record(root, 2, first=8)
    publish(root, catalog, extend=True)
    with wd.dataset(NAME, catalog=catalog) as ds:
        print(f"two episodes more: the lane lacks {', '.join(ds.lane_status('linear').missing)}")
        again = ds.add_lane("linear", model.predict, of="state", revision="epoch-1")
    assert (again.computed, again.reused) == (2, 8)
    print(f"computed {again.computed}, kept {again.reused}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temp:
            main(Path(temp))
