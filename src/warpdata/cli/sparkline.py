"""Numbers as a row of small bars, and spans of time as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """At most `width` bars; a value that is not finite is a gap."""
    if not values:
        return ""
    step = max(1.0, len(values) / width)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    finite = [value for value in picked if math.isfinite(value)]
    if not finite:
        return "·" * len(picked)
    low, span = min(finite), max(finite) - min(finite)
    bars = [
        "·" if not math.isfinite(value) else _BARS[int((value - low) / span * 7.999)] if span else _BARS[0]
        for value in picked
    ]
    return "".join(bars)


def human_time(duration_ns: int | None) -> str:
    """A span of time in the unit a person would choose."""
    if duration_ns is None:
        return "-"
    seconds = duration_ns / 1e9
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
