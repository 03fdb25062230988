"""Roles that nobody stated go by the name; two signals of one model stay two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.timeline.meta import SignalRole, guess_role


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("joints", SignalRole("observation")),
        ("action", SignalRole("action")),
        ("action/left/grip", SignalRole("action")),
        ("reward", SignalRole("reward")),
        ("reward/shaped", SignalRole("observation")),
        ("done", SignalRole("terminated")),
        ("omen/joints/dreamer", SignalRole("prediction", "joints", "dreamer")),
        ("omen/arm/joints/dreamer", SignalRole("prediction", "arm/joints", "dreamer")),
        ("omen/joints", SignalRole("prediction", "joints")),
        ("uncert/joints/dreamer/std", SignalRole("uncertainty", "joints", "dreamer")),
        ("uncert/joints/dreamer", SignalRole("uncertainty", "joints", "dreamer")),
        ("residual/joints/sign2nddiff", SignalRole("residual", "joints")),
        ("residual/joints/error", SignalRole("residual", "joints")),
        ("residual/joints/error/dreamer", SignalRole("residual", "joints", "dreamer")),
    ],
)
def test_names_imply_roles(name: str, expected: SignalRole) -> None:
    assert guess_role(name, "vector") == expected


def test_two_signals_of_one_model_stay_two(tmp_path: Path) -> None:
    with wd.record(tmp_path, clock="simulated") as rec:
        for name in ("low", "high"):
            rec.declare(name, role="uncertainty", of="state", model="dreamer", clock="steps")
        for k in range(3):
            rec.step({"state": float(k)}, {"push": float(k)}, ts_ns=k)
            rec.append("low", k - 1.0, k)
            rec.append("high", k + 1.0, k)
    episode = wd.open_recordings(tmp_path)[0]
    rows = sorted(channel.data.tolist() for channel in episode.tensors.uncerts.data.values())
    assert rows == [[-1.0, 0.0, 1.0], [1.0, 2.0, 3.0]]
    packed = wd.open_episode(wd.pack_episode(episode, tmp_path / "e.wshard"))
    for name in ("low", "high"):
        assert np.array_equal(packed[name].values(), episode[name].values())
        assert (packed[name].meta.of, packed[name].meta.model) == ("state", "dreamer")
