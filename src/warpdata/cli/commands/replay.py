"""`warp replay`: play an episode back as a live table."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import (
    MOMENT,
    add_address,
    moment_argument,
    naming_errors,
    opened_episode,
    within,
)
from warpdata.cli.console import add_json_flag, table

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_DRAW_S = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp replay`."""
    add_address(parser, "an episode")
    parser.add_argument("--speed", type=float, default=1.0, help="1 is the original timing")
    parser.add_argument("--fast", action="store_true", help="as fast as possible")
    parser.add_argument("--start", type=moment_argument, metavar="TIME", help=f"from here on: {MOMENT}")
    parser.add_argument("--end", type=moment_argument, metavar="TIME", help="up to here")
    parser.add_argument("--signal", action="append", metavar="NAME", help="only this one; may be repeated")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Play, redrawing the table in a terminal; elsewhere only its last state is printed."""
    from warpdata.episodes.collection.replay import replay

    live = _LiveTable(console)
    episode = within(opened_episode(args), args.start, args.end)
    with naming_errors():
        played = replay(episode, live, speed=None if args.fast else args.speed, signals=args.signal)
    live.draw()
    console.emit({"played": played, "records": live.counts})
    console.print(f"{played} records played")
    return exits.OK


class _LiveTable:
    """The last value of each signal, redrawn at most ten times a second."""

    def __init__(self, console: Console) -> None:
        self.counts: dict[str, int] = {}
        self._console = console
        self._last: dict[str, tuple[str, int]] = {}
        self._first_ns: int | None = None
        self._drawn_s = 0.0
        self._lines = 0

    def __call__(self, name: str, value: Any, ts_ns: int) -> None:
        self._first_ns = ts_ns if self._first_ns is None else self._first_ns
        self.counts[name] = self.counts.get(name, 0) + 1
        self._last[name] = (_text(value), ts_ns - self._first_ns)
        if self._console.out.isatty() and time.monotonic() - self._drawn_s > _DRAW_S:
            self.draw()

    def draw(self) -> None:
        """Print the table over the one before."""
        if self._lines and self._console.out.isatty():
            self._console.out.write(f"\x1b[{self._lines}A\x1b[J")
        rows = [
            [name, f"{at / 1e9:.3f}", str(self.counts[name]), text] for name, (text, at) in self._last.items()
        ]
        lines = table(
            rows, ["signal", "time", "records", "value"], right=[1, 2], fit_width=self._console.fit_width
        )
        for line in lines:
            self._console.print(line)
        self._lines = len(lines)
        self._drawn_s = time.monotonic()


def _text(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.ndarray):
        if value.size > 12:
            return f"{value.dtype}{list(value.shape)} mean {value.mean():.2f}"
        return np.array2string(value, precision=3, separator=" ").replace("\n", "")
    return repr(value) if isinstance(value, str | bytes) else f"{value}"
