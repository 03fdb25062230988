"""A progress line on a terminal: throughput, and whether the loader or the consumer waits."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from warpdata.settings import Settings
from warpdata.stores.blobstore import Traffic, traffic

_DRAW_S = 0.2
_SLOW_LOADER, _SLOW_MODEL = 0.5, 0.1
"""Shares of time spent waiting: from the first on the loader is the bottleneck, below the second the consumer."""


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
        self.items = self.bytes = 0
        self.wait_s = 0.0

    def add(self, items: int, size_bytes: int, wait_s: float, where: str = "") -> None:
        """Count a delivered batch."""
        self.items += items
        self.bytes += size_bytes
        self.wait_s += wait_s
        now = time.monotonic()
        if self._visible and now - self._drawn >= _DRAW_S:
            self._drawn = now
            self._draw(where)

    def text(self, elapsed_s: float, came: Traffic) -> str:
        """The line after so much time: throughput, and which side is slow."""
        share = min(1.0, self.wait_s / elapsed_s) if elapsed_s > 0 else 0.0
        verdict = "both take their time"
        if share >= _SLOW_LOADER:
            verdict = "the loader is slow"
        elif share <= _SLOW_MODEL:
            verdict = f"the {self._consumer} is slow"
        rate = self.items / elapsed_s if elapsed_s > 0 else 0.0
        sources = f"network {_size(came.network)}, cache {_size(came.cache)}"
        return f"{rate:,.0f} {self._unit}/s, {_size(self.bytes)}; {sources}; waiting {share:.0%}: {verdict}"

    def close(self) -> None:
        """End the line."""
        if self._visible and self.items:
            self._draw(" done")
            self._stream.write("\n")
            self._stream.flush()
        self._visible = False

    def _draw(self, where: str) -> None:
        text = self.text(time.monotonic() - self._began, traffic().since(self._before))
        self._stream.write(f"\r{self._label}{where}: {text}\x1b[K")
        self._stream.flush()


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
