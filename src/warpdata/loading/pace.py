"""A progress line on a terminal: throughput, and whether the loader or the consumer waits."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TextIO

from warpdata.settings import Settings
from warpdata.stores.reliable import Traffic, traffic

_DRAW_S = 0.2
_SLOW_LOADER, _SLOW_MODEL = 0.5, 0.1
"""Shares of time spent waiting: from the first on the loader is the bottleneck, below the second the consumer."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Counts since the beginning of a pass."""

    items: int
    bytes: int
    elapsed_s: float
    wait_s: float
    traffic: Traffic

    @property
    def wait_share(self) -> float:
        """The share of the time the consumer waited for data."""
        return min(1.0, self.wait_s / self.elapsed_s) if self.elapsed_s > 0 else 0.0

    def verdict(self, consumer: str = "model") -> str:
        """Which side is slow."""
        if self.wait_share >= _SLOW_LOADER:
            return "the loader is slow"
        return f"the {consumer} is slow" if self.wait_share <= _SLOW_MODEL else "both take their time"

    def text(self, unit: str, consumer: str = "model") -> str:
        """The line."""
        rate = self.items / self.elapsed_s if self.elapsed_s > 0 else 0.0
        sources = f"network {_size(self.traffic.network)}, cache {_size(self.traffic.cache)}"
        return (
            f"{rate:,.0f} {unit}/s, {_size(self.bytes)}; {sources}; "
            f"waiting {self.wait_share:.0%}: {self.verdict(consumer)}"
        )


class PaceLine:
    """Counts a pass, and draws at most five times a second; draws nothing without a terminal.

    Pipes and files get no line, nor does a terminal with WARP_NO_PROGRESS set or without `show`.
    """

    def __init__(
        self,
        label: str,
        unit: str,
        consumer: str = "model",
        *,
        show: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self._label, self._unit, self._consumer = label, unit, consumer
        self._stream = sys.stderr if stream is None else stream
        self._visible = show and self._stream.isatty() and Settings.from_env().progress
        self._began = self._drawn = time.monotonic()
        self._before = traffic()
        self._items = self._bytes = 0
        self._wait_s = 0.0

    def add(self, items: int, size_bytes: int, wait_s: float, where: str = "") -> None:
        """Count a delivered batch."""
        self._items += items
        self._bytes += size_bytes
        self._wait_s += wait_s
        now = time.monotonic()
        if self._visible and now - self._drawn >= _DRAW_S:
            self._drawn = now
            self._draw(where)

    @property
    def pace(self) -> Pace:
        """The pass so far."""
        elapsed = time.monotonic() - self._began
        return Pace(self._items, self._bytes, elapsed, self._wait_s, traffic().since(self._before))

    def close(self) -> None:
        """End the line."""
        if self._visible and self._items:
            self._draw(" done")
            self._stream.write("\n")
            self._stream.flush()
        self._visible = False

    def _draw(self, where: str) -> None:
        self._stream.write(f"\r{self._label}{where}: {self.pace.text(self._unit, self._consumer)}\x1b[K")
        self._stream.flush()


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
