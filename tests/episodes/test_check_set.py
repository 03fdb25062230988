"""A set of recordings with sabotage in it: each is named, and nothing else, and nothing in clean sets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tools import make_sabotage

import warpdata as wd
from warpdata.cli.main import main
from warpdata.episodes.check.compare import MIN_EPISODES, EpisodeSet, remember
from warpdata.episodes.check.report import RULES, SET_RULES
from warpdata.timeline.memory import ArraySignal

EXPECTED = Path(__file__).with_name("sabotage.json")
"""What must be found, committed: a rule that changes its mind must change this file."""


def named(root: Path) -> set[tuple[str, str, str | None]]:
    return {(each.episode, each.rule, each.signal) for each in wd.check_dataset(root).findings}


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("spoilt") / "root"
    make_sabotage.make(root, seed=0)
    return root


def test_each_sabotage_is_named_and_nothing_else(spoilt: Path) -> None:
    expected = {(each["episode"], each["rule"], each["signal"]) for each in json.loads(EXPECTED.read_text())}
    assert named(spoilt) == expected
    assert {rule for _, rule, _ in expected} >= set(SET_RULES) - {"odd-view", "spikes"}


def test_the_maker_says_what_the_committed_list_says() -> None:
    made = [
        {"episode": f"{number:012d}", "rule": rule, "signal": signal}
        for number, (rule, signal) in make_sabotage.EXPECTED.items()
    ]
    assert json.loads(EXPECTED.read_text()) == made


def test_the_same_in_a_folder_of_shards(spoilt: Path, tmp_path: Path) -> None:
    for episode in wd.LocalDataset(spoilt):
        wd.pack_episode(episode, tmp_path / f"{episode.id}.wshard")  # type: ignore[attr-defined]
    found = {(each.removesuffix(".wshard"), rule, signal) for each, rule, signal in named(tmp_path)}
    assert found == named(spoilt)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_clean_set_has_no_findings(tmp_path: Path, seed: int) -> None:
    make_sabotage.make(tmp_path, seed, clean=True, camera=seed == 1)
    assert named(tmp_path) == set()


def test_other_seeds_are_spoilt_alike(tmp_path: Path) -> None:
    expected = make_sabotage.make(tmp_path, seed=7, camera=False)
    without = {(name, *what) for name, what in expected.items() if what[0] != "time-shift"}
    assert named(tmp_path) == without


def test_a_camera_that_shows_nothing_of_the_state_says_nothing_of_time(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for _ in range(MIN_EPISODES + 2):
        one = make_sabotage.take(rng, steps=40)
        one.pictures = [rng.integers(0, 255, (24, 32, 3), np.uint8) for _ in one.joints]
        with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as recording:
            make_sabotage._record(recording, one, camera=True)
    assert named(tmp_path) == set()


def test_in_a_small_set_nothing_is_unusual(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(MIN_EPISODES - 1):
        with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as recording:
            make_sabotage._record(
                recording, make_sabotage.take(rng, steps=200 if number == 3 else 40), camera=False
            )
    assert named(tmp_path) == set()


def test_episodes_without_a_signal_or_with_another_shape_do_not_break_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(2 * MIN_EPISODES):
        with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as recording:
            one = make_sabotage.take(rng, steps=40)
            if number % 2:
                one.joints = one.joints[:, :3]
            make_sabotage._record(recording, one, camera=False)
            if number % 5 == 0:
                recording.append("note", "only here", 0)
                recording.append("big", rng.normal(size=(10, 10)), 0)
    assert named(tmp_path) == set()


@pytest.mark.parametrize("largest", [1e308, 1e200, 1e40, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["state", "action", "reward"])
def test_values_that_cannot_be_squared_are_left_out(name: str, largest: float) -> None:
    beside = EpisodeSet()
    for number in range(MIN_EPISODES):
        values = np.array([largest, 0.0, -largest] * 5) * ((number + 1) / MIN_EPISODES)
        signals = {name: ArraySignal(np.arange(15), values, role="action" if name == "action" else None)}
        beside.add(remember(str(number), wd.Episode.of(signals), lambda name: name == "action"))
    assert list(beside.findings()) == []


def test_repeats_are_one_line_and_rules_can_be_muted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(6):
        with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as recording:
            for i in range(20):
                recording.append("state", np.array([i, 3.0]), i * 10)
    assert main(["check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3  # two groups and the sum
    [line] = [line for line in lines if "[constant-channel]" in line]
    assert line.startswith("info[constant-channel] state: in 6 of 6 episodes"), line
    assert lines[-1] == "6 episodes, 2 findings"
    assert main(["check", str(tmp_path), "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["check", str(tmp_path), "--mute", "constant-channel", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["by_rule"] == {"no-actions": 1}
    [group] = report["groups"]
    assert (group["rule"], group["count"], len(group["episodes"])) == ("no-actions", 6, 6)
    quiet = wd.check_dataset(tmp_path, mute=["no-actions", "constant-channel"])
    assert quiet.findings == []
    assert main(["check", str(tmp_path), "--mute", "constant-chanel"]) == 2
    assert "Did you mean 'constant-channel'?" in capsys.readouterr().err


def test_a_muted_rule_of_damage_does_not_count(tmp_path: Path) -> None:
    with wd.LocalDatasetWriter(tmp_path, durability="none").new_episode() as recording:
        for i in range(20):
            recording.append("action", float(i), i)
    (Path(recording.path) / "action.parquet").unlink()
    assert wd.check_dataset(tmp_path).is_damaged
    assert not wd.check_dataset(tmp_path, mute=["damaged-file"]).is_damaged


def test_every_rule_of_sets_is_listed() -> None:
    assert set(SET_RULES) <= set(RULES)
