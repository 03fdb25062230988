"""What got worse between two sets of results: bars that no longer hold, are gone, or moved far towards failing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.measure import RESULTS

NOISE = 1.25
"""A figure this much worse than the committed one is said even where its bar still holds."""

Bars = Mapping[str, Mapping[str, Any]]


def committed(folder: Path = RESULTS) -> dict[str, Bars]:
    """The bars of every area as the JSON files of `folder` have them."""
    reports = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {area: report["bars"] for area, report in reports.items() if "bars" in report}


def slipped(before: Mapping[str, Bars], after: Mapping[str, Bars]) -> Iterator[str]:
    """One sentence for each bar that fails, is gone, or is much worse than before."""
    for area in sorted(before.keys() | after.keys()):
        old, new = before.get(area, {}), after.get(area, {})
        for name in sorted(old.keys() | new.keys()):
            if reason := _reason(old.get(name), new.get(name)):
                yield f"{area}: {name}: {reason}"


def _reason(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str | None:
    if new is None:
        return "is not measured any more"
    told = f"{new['value']:.3g} (bar {new['bar']})"
    if not (new["holds"] and math.isfinite(new["value"])):
        return f"{told} does not hold" + ("; it did" if old and old["holds"] else "")
    if old and _worse_by(old, new) > NOISE:
        return f"{told} was {old['value']:.3g}"
    return None


def _worse_by(old: Mapping[str, Any], new: Mapping[str, Any]) -> float:
    """How many times worse; 1 where a ratio says nothing, as for a count of 0 or a difference."""
    if old["value"] <= 0 or new["value"] <= 0:
        return 1.0
    ratio = new["value"] / old["value"]
    return float(ratio if new["bar"].startswith(("<", "≤")) else 1 / ratio)
