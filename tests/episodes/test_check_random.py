"""`warp check` on random sets it was not made for: clean ones have no findings, what is spoilt is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.episodes.random_sets import (
    SPOILT,
    Take,
    clean_set,
    findings,
    is_named,
    spoilable,
    spoilt_set,
    world,
)
from tests.sweeps import enough_examples
from warpdata.episodes.check.report import SET_RULES

CLEAN = enough_examples(6)
SPOILT_OF_EACH = enough_examples(2)


def test_clean_sets_have_no_findings() -> None:
    alarms = {}
    for seed in range(CLEAN):
        where = world(np.random.default_rng(seed))
        found = findings(clean_set(where, int(where.rng.integers(8, 40))))
        if found:
            alarms[seed] = found
    assert len(alarms) <= CLEAN // 50, alarms


@pytest.mark.parametrize("rule", SPOILT)
def test_what_is_spoilt_is_named(rule: str) -> None:
    missed, besides = [], {}
    for seed in range(SPOILT_OF_EACH):
        takes, at, rules = spoilt_set(1001 + seed, rule)
        found = findings(takes)
        if not is_named(found, at, rules):
            missed.append(seed)
        others = [each for each in found if each.rule not in rules]
        if others:
            besides[seed] = others
    assert len(missed) <= SPOILT_OF_EACH // 10, missed
    assert len(besides) <= SPOILT_OF_EACH // 10, besides


@pytest.mark.parametrize("rule", ["outlier-length", "outlier-return", "action-jerk"])
def test_two_that_are_spoilt_alike_are_both_named(rule: str) -> None:
    """Neither hides the other, though two of few are not rare."""
    hits, seed, tried = 0, 5000, 0
    while tried < SPOILT_OF_EACH:
        seed += 1
        rng = np.random.default_rng(seed)
        where = world(rng, camera="none")
        takes = clean_set(where, int(rng.integers(12, 24)))
        chosen = spoilable(where, takes)
        if len(chosen) < 10:
            continue
        both = rng.choice(chosen, 2, replace=False).tolist()
        names = [SPOILT[rule](where, takes, at) for at in both]
        if None in names:
            continue
        tried += 1
        found = findings(takes)
        hits += sum(is_named(found, at, (rule,)) for at in both)
    assert hits >= 0.75 * 2 * tried


def test_every_rule_of_sets_is_tried() -> None:
    assert set(SPOILT) == set(SET_RULES) - {
        "odd-view",
        "spikes",
    }  # in test_check_usual.py, test_check_faults.py


def named(address: str | Path, **options: str) -> set[tuple[str, str]]:
    found = wd.check_dataset(address, **options).findings
    return {(each.episode.removesuffix(".wshard").lstrip("0") or "0", each.rule) for each in found}


@pytest.mark.parametrize("rule", ["action-jerk", "dead-channel"])
def test_the_same_in_every_form(tmp_path: Path, rule: str) -> None:
    """Signals whose names do not say what they are, in tasks of different lengths: roles and tasks travel along."""
    fixed = {
        "rate_hz": 50.0, "camera": "none", "action": "velocity", "action_name": "u", "state_name": "q",
        "reward": "alive", "jitter": 0.0, "dtype": "f4", "labelled": True, "joints": 3,
        "most_steps": 60, "noise": 0.001, "binary": False, "length_spread": 0.02, "motion": "reach",
    }  # fmt: skip
    takes, at, rules = spoilt_set(4, rule, **fixed)
    root, shards, out = tmp_path / "root", tmp_path / "shards", tmp_path / "lerobot"
    shards.mkdir()
    for each in takes:
        each.record(root)
    for episode in wd.LocalDataset(root):
        wd.pack_episode(episode, shards / f"{episode.id}.wshard")  # type: ignore[attr-defined]
    with wd.DatasetBuilder("lab/arm", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("demos", root)
        builder.publish()
    wd.export_episodes(root, out, "lerobot")
    expected = named(root)
    assert expected in [{(str(at), each)} for each in rules]
    assert named(shards) == expected
    assert named("lab/arm", catalog=str(tmp_path / "catalog")) == expected
    assert named(out) == expected


def one_of(seed: int, **fixed: object) -> list[Take]:
    where = world(np.random.default_rng(seed), camera="none", **fixed)
    return clean_set(where, 16)


@pytest.mark.parametrize("reward", ["zero", "alive", "sparse"])
@pytest.mark.parametrize("action", ["constant", "zero"])
def test_what_is_chosen_or_earned_may_be_constant(reward: str, action: str) -> None:
    assert findings(one_of(0, reward=reward, action=action)) == []


def test_a_joint_that_several_episodes_leave_alone_is_no_finding_but_one_that_never_moves_is() -> None:
    takes = one_of(
        0, joints=3, most_steps=60, quantum=0.0, noise=0.001, dtype="f8", state_name="q", labelled=False
    )
    for each in takes[:4]:
        times, values, role = each.signals["q"]
        still = values.copy()
        still[:, 1] = 0.0
        each.signals["q"] = (times, still, role)
    assert findings(takes) == []
    for each in takes:
        times, values, role = each.signals["q"]
        still = values.copy()
        still[:, 1] = 0.0
        each.signals["q"] = (times, still, role)
    assert {each.rule for each in findings(takes)} == {"constant-channel"}


def test_pixels_of_shards_by_step_may_be_constant_and_their_cameras_are_compared(tmp_path: Path) -> None:
    """Frames in a shard by step are tensors: they are pictures all the same."""
    fixed = {
        "camera_rate": 20.0,
        "rate_hz": 20.0,
        "jitter": 0.0,
        "labelled": False,
        "joints": 2,
        "most_steps": 60,
        "dtype": "f4",
    }
    takes, at, _ = spoilt_set(3, "time-shift", **fixed)
    for number, take in enumerate(takes):
        made = wd.WShardEpisode(id=f"{number:03d}", length=len(next(iter(take.signals.values()))[0]))
        for name, (times, values, role) in take.signals.items():
            lane = made.actions if role == "action" else made.observations
            if role == "reward":
                continue
            dark = values.copy()
            if name == "camera":
                dark[:, 0] = 0
            lane[name] = wd.Channel(name, dark, timestamps_ns=times)
        wd.save_wshard(made, tmp_path / f"{number:03d}.wshard")
    assert named(tmp_path) == {(str(at), "time-shift")}


@pytest.mark.parametrize("rule", sorted(set(SPOILT) - {"time-shift"}))
def test_an_odd_episode_hides_nothing(rule: str) -> None:
    """Without a record, with one, or of another robot: it is left out of what is said of the others."""
    missed = []
    for seed in range(SPOILT_OF_EACH):
        takes, at, rules = spoilt_set(1001 + seed, rule)
        if not is_named(findings(takes), at, rules):
            continue
        whole = takes[(at + 1) % len(takes)]
        first = {name: (times[:1], rows[:1], role) for name, (times, rows, role) in whole.signals.items()}
        other = {f"other_{name}": each for name, each in whole.signals.items()}
        odd = [Take(whole.task, signals, whole.static) for signals in ({}, first, other)]
        if not all(is_named(findings([*takes, each]), at, rules) for each in odd):
            missed.append(seed)
    assert not missed


def test_an_episode_of_one_record_is_too_short() -> None:
    takes, _, _ = spoilt_set(1001, "near-duplicate")
    one = {name: (times[:1], rows[:1], role) for name, (times, rows, role) in takes[0].signals.items()}
    found = findings([*takes, Take(takes[0].task, one, takes[0].static)])
    assert ("outlier-length", f"{len(takes):03d}") in {(each.rule, each.episode) for each in found}


def test_goals_in_all_directions_leave_some_channels_nearly_still() -> None:
    """How far a channel goes is anything from nothing on: the one that goes least is not dead."""
    alarms = []
    for seed in range(CLEAN):
        rng, takes = np.random.default_rng(9000 + seed), []
        for _ in range(40):
            goal, times = rng.normal(size=4), np.arange(60) * 50_000_000
            course = np.linspace(0, 1, 60)[:, None] ** 2 * goal / np.linalg.norm(goal)
            state = (course + rng.normal(0, 1e-4, course.shape)).astype(np.float32)
            action = (np.gradient(course, axis=0) + rng.normal(0, 0.01, course.shape)).astype(np.float32)
            takes.append(
                Take(0, {"state": (times, state, "observation"), "action": (times, action, "action")})
            )
        alarms += [each for each in findings(takes) if each.rule == "dead-channel"]
    assert len(alarms) <= CLEAN // 10, alarms
