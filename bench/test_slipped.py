"""What `make bench` says of a figure that got worse."""

from __future__ import annotations

from typing import Any

import pytest

from bench.slipped import committed, slipped
from bench.versus import startup


def bar(value: float, text: str, holds: bool = True) -> dict[str, Any]:
    return {"value": value, "bar": text, "holds": holds}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (bar(0.20, "<= 0.25"), bar(0.21, "<= 0.25"), ""),
        (bar(0.10, "<= 0.25"), bar(0.20, "<= 0.25"), "0.2 (bar <= 0.25) was 0.1"),
        (bar(0.20, "<= 0.25"), bar(0.30, "<= 0.25", False), "does not hold; it did"),
        (bar(0.30, "<= 0.25", False), bar(0.31, "<= 0.25", False), "does not hold"),
        (bar(2.0, "≥ 1.0"), bar(4.0, "≥ 1.0"), ""),
        (bar(4.0, ">= 1"), bar(2.0, ">= 1"), "was 4"),
        (bar(0.0, "<= 0"), bar(0.0, "<= 0"), ""),
        (bar(-0.1, "< 96"), bar(3.0, "< 96"), ""),
        (bar(1.0, "<= 2"), None, "not measured any more"),
        (None, bar(1.0, "<= 2"), ""),
        (None, bar(float("nan"), "<= 2", True), "does not hold"),
    ],
)
def test_what_is_said(old: dict[str, Any] | None, new: dict[str, Any] | None, said: str) -> None:
    found = list(slipped({"a": {"b": old} if old else {}}, {"a": {"b": new} if new else {}}))
    assert len(found) == bool(said)
    assert not said or (found[0].startswith("a: b: ") and found[0].endswith(said))


def test_every_area_records_its_bars_alike() -> None:
    found = committed()
    assert found.keys() >= {"activations", "episode_formats", "recording", "streaming", "vectors"}
    for bars in found.values():
        for row in bars.values():
            assert row.keys() == {"value", "bar", "holds"}
            assert row["bar"].startswith(("<", ">", "≤", "≥"))
    assert list(slipped(found, found)) == [
        f"{area}: {name}: {row['value']:.3g} (bar {row['bar']}) does not hold"
        for area, bars in sorted(found.items())
        for name, row in sorted(bars.items())
        if not row["holds"]
    ]


def test_the_front_door_is_measured() -> None:
    assert [row["bar"] for row in startup.run(1)["bars"].values()] == ["< 150", "< 150"]
