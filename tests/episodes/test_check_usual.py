"""Checks of sound sets stay silent; cameras that are covered, exchanged, turned or slowed down are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.random_sets import Take, findings
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta

COUNT, STEPS, RATE_NS = 12, 90, 33_000_000


def picture(position: float, *, above: bool = False) -> np.ndarray:
    """A scene with a blue sky, a brown table and a thing that moves on it; another camera sees it from above."""
    image = np.zeros((24, 32, 3), np.uint8)
    image[:12], image[12:] = (60, 120, 220), (140, 90, 40)
    if above:
        image[:] = (200, 200, 190)
        image[:, :8] = (40, 160, 60)
    at = int(4 + 20 * position)
    image[10:18, at : at + 4] = (230, 40, int(250 * min(max(position, 0), 1)))
    return image


class Arm(Take):
    """An arm that moves, rests and moves on; a bumper nobody touches; commands that are recorded on change."""

    def __init__(self, number: int, spoil: str | None = None) -> None:
        rng = np.random.default_rng(number)
        step = np.arange(STEPS)
        phase = np.where(step < 60, np.minimum(step, 30) / 60, 0.5 + (step - 60) / 60)
        position = (0.5 - 0.5 * np.cos(np.pi * phase)) * rng.uniform(0.9, 1.0) + rng.normal(0, 0.02)
        times = step * RATE_NS
        changes = np.flatnonzero(np.diff(position.round(1), prepend=-1))
        front = np.stack([picture(each) for each in position])
        above = np.stack([picture(each, above=True) for each in position])
        if spoil == "freeze":
            front[5:29] = front[4]
        elif spoil == "triple":
            front = front[step // 3 * 3]
        elif spoil == "covered":
            front = front // 20
        elif spoil == "bgr":
            front = front[..., ::-1]
        elif spoil == "turned":
            front = front[:, ::-1]
        elif spoil == "exchanged":
            front, above = above, front
        joints = np.c_[position, -position, 0 * position, 0 * position + 1].astype(np.float32)
        if spoil == "gripper":
            joints[:, 1] = joints[0, 1] + rng.normal(0, 0.01, STEPS)
        super().__init__(
            0,
            {
                "joints": (times, joints, "observation"),
                "bumper": (times, np.zeros(STEPS, np.float32), "observation"),
                "command": (times[changes], position[changes].astype(np.float32), "action"),
                "front": (times, front, "observation"),
                "above": (times, above, "observation"),
            },
        )

    def episode(self, name: str) -> wd.Episode:
        signals = {
            each: ArraySignal(
                times,
                values,
                SignalMeta(
                    values.dtype,
                    values.shape[1:],
                    {1: "scalar", 2: "vector"}.get(values.ndim, "image"),  # type: ignore[arg-type]
                    role=role,
                ),
            )
            for each, (times, values, role) in self.signals.items()
        }
        return wd.Episode.of(signals, id=name)


@pytest.fixture(scope="module")
def sound() -> list[Take]:
    return [Arm(number) for number in range(COUNT)]


def test_a_sound_set_has_no_warning_and_a_line_for_what_is_usual(sound: list[Take]) -> None:
    found = findings(sound)
    assert [each for each in found if each.severity != "info"] == []
    lines = {(each.rule, each.signal): each for each in found}
    assert lines["constant-channel", "bumper"].message.startswith("in 12 of 12 episodes")
    assert len(found) <= 3


@pytest.mark.parametrize(
    ("spoil", "rule", "signal"),
    [("freeze", "frozen-camera", "front"), ("triple", "repeated-frames", "front"), ("covered", "odd-view", "front"),
     ("bgr", "odd-view", "front"), ("turned", "odd-view", "front"), ("exchanged", "odd-view", "front"),
     ("gripper", "dead-channel", "joints")],
)  # fmt: skip
def test_faults_are_named(sound: list[Take], spoil: str, rule: str, signal: str) -> None:
    found = {(each.rule, each.signal) for each in findings([*sound, Arm(99, spoil)]) if each.episode == "012"}
    assert (rule, signal) in found
    assert found <= {
        (rule, signal),
        ("odd-view", "above"),
        ("time-shift", "front"),
        ("repeated-frames", "front"),
        ("outlier-final-state", "joints"),
    }


def ends_in_motion(rng: np.random.Generator, number: int) -> np.ndarray:
    """It stands at a limit, but in one episode, which ended on the way there."""
    course = np.clip(np.cumsum(rng.normal(-0.3, 0.8, 60)), -8, 8)
    course[50:] = np.linspace(0, -4.5, 10) if number == 5 else -8
    return course


def ends_anywhere(rng: np.random.Generator, number: int) -> np.ndarray:
    """Half of them end where they began, others further and further out."""
    end = {4: 1.0, 5: 1.0, 6: 1.0, 7: 1.0, 8: 1.0, 9: 2.8}.get(number, 0.0)
    return np.r_[np.zeros(20), np.linspace(0, end, 20), np.full(20, end)] + rng.normal(0, 1e-3, 60)


def falls_to_either_side(rng: np.random.Generator, number: int) -> np.ndarray:
    end, pace = (1 if number in (2, 6) else -1) * rng.uniform(0.97, 1.03), rng.uniform(0.5, 2)
    return end * np.linspace(0, 1, 40) ** pace + rng.normal(0, 0.005, 40)


def is_mostly_short(rng: np.random.Generator, number: int) -> np.ndarray:
    """Only two episodes have enough records to be judged; nothing ever pushed the sensor."""
    return np.zeros(14 if number in (2, 6) else 6)


def touches(rng: np.random.Generator, number: int) -> np.ndarray:
    """A recording of a sixth of a second in which a thing was touched once."""
    course = np.linspace(-8, 0, 20) + rng.normal(0, 0.01, 20)
    if number == 3:
        course[10] += 7
    return course


@pytest.mark.parametrize(
    "course", [ends_in_motion, ends_anywhere, falls_to_either_side, is_mostly_short, touches]
)
def test_what_chance_does_is_no_warning(course: Callable[[np.random.Generator, int], np.ndarray]) -> None:
    rng, takes = np.random.default_rng(0), []
    for number in range(COUNT):
        values = course(rng, number)
        takes.append(Take(0, {"x": (np.arange(len(values)) * 8_000_000, values, "observation")}))
    found = findings(takes)
    assert [each for each in found if each.severity == "warning" and each.rule != "outlier-length"] == []


def test_a_view_that_rests_in_every_episode_is_not_frozen(tmp_path: Path) -> None:
    """A camera on one hand repeats images while the other hand moves, in one episode a little longer."""
    for still in (12, 12, 11, 13, 30):
        with wd.record(tmp_path / "root", clock="simulated") as rec:
            for number in range(60):
                rec.append("joints", np.float32([np.sin(number / 9), number]), number * 40_000_000)
                shade = number if not 20 <= number <= 20 + still else 20
                rec.append("wrist", np.full((8, 8, 3), 4 * shade, np.uint8), number * 40_000_000)
                rec.append("action", np.float32([np.cos(number / 9)]), number * 40_000_000)
    findings = wd.check_dataset(tmp_path / "root").findings
    assert [(each.rule, each.episode) for each in findings if each.rule == "frozen-camera"] == [
        ("frozen-camera", "000000000004")
    ]
