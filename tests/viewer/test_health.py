"""Findings of a set: complete only when its episodes were also compared with each other."""

from __future__ import annotations

from pathlib import Path

import warpdata as wd
from warpdata.viewer.health import Health
from warpdata.viewer.shown import ShownEpisodes


def test_a_check_is_complete_when_the_episodes_are_compared(tmp_path: Path) -> None:
    """A page asks until everything is checked: it must not stop at findings that the comparison withdraws."""
    wd.demo_data(tmp_path / "root", episodes=8)
    shown = ShownEpisodes(wd.open_episodes(tmp_path / "root"), {}, 0)
    health = Health()
    counts = [health.summary(8)["checked"]]
    while health.step(shown):
        counts.append(health.summary(8)["checked"])
    assert max(counts) == 7
    assert health.summary(8)["checked"] == 8
    found = health.flags(shown, "000000000003")
    assert found is not None
    assert [each["rule"] for each in found] == ["dead-channel"]
