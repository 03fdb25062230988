"""Where a command prints: text for people, JSON for programs, progress only on a terminal."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}

ProgressCallback = Callable[[int, int], None]


@dataclass(slots=True)
class Console:
    """The output of one command."""

    as_json: bool = False
    color: bool = True
    show_progress: bool = True
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def print(self, text: str = "") -> None:
        """A line for a person; nothing when JSON was asked for."""
        if not self.as_json:
            self.out.write(text + "\n")

    def emit(self, value: Any) -> None:
        """The result for a program; nothing when text was asked for."""
        if self.as_json:
            json.dump(value, self.out, indent=2, ensure_ascii=False)
            self.out.write("\n")

    def error(self, code: str, message: str, hint: str = "") -> None:
        """An error in the one form all commands use."""
        self.err.write(f"{self.paint(f'error[{code}]', 'red', self.err)}: {message}\n")
        if hint:
            self.err.write(f"  hint: {hint}\n")

    def paint(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """`text` in a colour, if the stream is a terminal that wants one."""
        if not self.color or not (stream or self.out).isatty():
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return shutil.get_terminal_size((100, 24)).columns

    def progress(self, label: str) -> Progress:
        """A bar for long work; silent when standard error is not a terminal."""
        return Progress(label, self.err, visible=self.show_progress and self.err.isatty())


class Progress:
    """A progress bar: call it with (done, total); it draws at most ten times a second."""

    def __init__(self, label: str, stream: TextIO, *, visible: bool) -> None:
        self._label = label
        self._stream = stream
        self._visible = visible
        self._drawn_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        if not self._visible:
            return
        now = time.monotonic()
        if done < total and now - self._drawn_s < 0.1:
            return
        self._drawn_s = now
        share = done / total if total else 1.0
        filled = int(share * 30)
        self._stream.write(f"\r{self._label} [{'█' * filled}{'·' * (30 - filled)}] {share:4.0%}")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible and self._drawn_s:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def add_storage(parser: argparse.ArgumentParser) -> None:
    """How the blocks of a shard are stored, the same for every command that writes one."""
    parser.add_argument(
        "--compression",
        metavar="NAME",
        help="none, zstd, lz4 (every program reads these), zstd-seekable (rows can be read one by one, not by every "
        "program) or auto; a level behind a colon: zstd:19; default: none",
    )
    parser.add_argument(
        "--compat",
        default="default",
        metavar="WORD",
        help="strict: write nothing that one of the existing programs cannot read",
    )


def add_output(parser: argparse.ArgumentParser, text: str) -> None:
    """Where a command writes: as its last argument or as --output."""
    parser.add_argument("output", nargs="?", default=argparse.SUPPRESS, metavar="OUTPUT", help=text)
    parser.add_argument("-o", "--output", dest="output", metavar="OUTPUT", help="the same, as an option")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """The `--json` flag every reading command has."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def table(rows: Sequence[Sequence[str]], header: Sequence[str], right: Sequence[int] = ()) -> list[str]:
    """Lines of a table with aligned columns; `right` lists the columns set to the right."""
    cells = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(parts).rstrip())
    lines.insert(1, "  ".join("─" * width for width in widths))
    return lines


def human_bytes(count: int) -> str:
    """A byte count in the unit a person would choose."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
