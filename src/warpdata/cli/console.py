"""Output of commands: text for people, JSON for programs, progress only on a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from enum import IntEnum
from typing import Any, TextIO


class Exit(IntEnum):
    """Exit codes of `warp`, the same for every command."""

    OK = 0
    ERROR = 1
    USAGE = 2
    DAMAGED = 3
    """The command finished, but data was lost or is damaged."""
    STOPPED = 130
    """The user pressed Ctrl-C."""


_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}

ProgressCallback = Callable[[int, int], None]
Column = str | Callable[[Any], object]
"""A key of a row, or a function that makes a cell of it."""


@dataclass(slots=True)
class Output:
    """The result of a command: a value for programs, lines and a table for people, an exit code."""

    value: Any = None
    """For `--json`; data classes and receipts become objects, without it the lines are the value."""
    lines: Sequence[str] = ()
    rows: Sequence[Any] = ()
    columns: Mapping[str, Column] = field(default_factory=dict)
    """Header -> what stands in the column; without columns there is no table."""
    right: Collection[str] = ()
    """Columns set to the right."""
    footer: Sequence[str] = ()
    style: Mapping[str, str] = field(default_factory=dict)
    """Word -> style: its first occurrence in a line is painted."""
    fit: bool = False
    """Whether lines are cut at the width of the terminal."""
    code: int = Exit.OK

    def cells(self) -> list[list[str]]:
        """The cells of the table as text."""
        lines = []
        for row in self.rows:
            values = []
            for column in self.columns.values():
                if callable(column):
                    values.append(column(row))
                else:
                    values.append(row[column] if isinstance(row, Mapping) else getattr(row, column))
            lines.append(["" if value is None else str(value) for value in values])
        return lines


@dataclass(slots=True)
class Console:
    """The output of one command."""

    as_json: bool = False
    color: bool = True
    show_progress: bool = True
    pictures: str = "blocks"
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def print(self, text: str = "", style: Mapping[str, str] | None = None) -> None:
        """Print lines for a person; nothing in JSON mode.

        Control characters are replaced: names, messages and metadata of others cannot steer the terminal. `style` maps
        words to styles; the first occurrence of each word is painted.
        """
        if self.as_json:
            return
        for line in text.split("\n"):
            shown = printable(line)
            for word, name in (style or {}).items():
                shown = shown.replace(word, self.paint(word, name), 1)
            self.out.write(shown + "\n")

    def show(self, report: Output) -> int:
        """Print a report, for a program or for people, and return its exit code."""
        value = list(report.lines) if report.value is None and report.lines else report.value
        if self.as_json and value is not None:
            self.out.write(json_text(value, self.out.encoding) + "\n")
        for line in report.lines:
            self.print(self.fit_line(line) if report.fit else line, report.style)
        if report.columns:
            header = list(report.columns)
            right = [number for number, name in enumerate(header) if name in report.right]
            for line in table(report.cells(), header, right, fit_width=self.fit_width):
                self.print(line)
        for line in report.footer:
            self.print(self.fit_line(line) if report.fit else line, report.style)
        return report.code

    def error(self, code: str, message: str, hint: str = "") -> None:
        """Print an error in the one form that all commands use."""
        lines = [printable(line) for line in message.split("\n")]
        text = f"{self.paint(f'error[{code}]', 'red', self.err)}: {chr(10).join(lines)}\n"
        try:
            self.err.write(text + (f"  hint: {printable(hint)}\n" if hint else ""))
        except OSError:  # does not change the exit code
            give_up(self.err)

    def paint(self, text: str, style: str, stream: TextIO | None = None) -> str:
        """`text` in a colour, if the stream is a terminal that wants one."""
        if not self.color or not (stream or self.out).isatty():
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return shutil.get_terminal_size((100, 24)).columns

    @property
    def fit_width(self) -> int | None:
        """Width that lines must fit: that of a terminal, None for pipes and files."""
        return self.width if self.out.isatty() else None

    def fit_line(self, line: str) -> str:
        """A line without control characters, cut at the width of the terminal."""
        width = self.fit_width
        return printable(line) if width is None else cut(printable(line), width)

    def progress(self, label: str) -> Progress:
        """A bar for long work; silent when standard error is not a terminal."""
        return Progress(label, self.err, visible=self.show_progress and self.err.isatty())


def take_every_text() -> None:
    """Make the standard streams accept every text: a closed one discards it, an ASCII one prints `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the whole run
        elif isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            stream.reconfigure(errors="replace")


def give_up(stream: TextIO) -> None:
    """Discard what a stream could not write, so that it does not fail again when Python exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def json_text(value: Any, encoding: str | None) -> str:
    """JSON in printable characters that `encoding` has; file names need not be valid text."""
    from warpdata.bytekit.jsontext import escape_unprintable

    text = json.dumps(value, indent=2, ensure_ascii=False, default=as_json)
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=2, default=as_json)
    return escape_unprintable(text)


def as_json(value: Any) -> Any:
    """A value that JSON has no type for: a receipt, a data class, a mapping, bytes by their length, a path."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return dict(value) if isinstance(value, Mapping) else str(value)


class Progress:
    """A progress bar: call it with (done, total); it draws at most ten times a second."""

    def __init__(self, label: str, stream: TextIO, *, visible: bool) -> None:
        self._label = label
        self._stream = stream
        self._visible = visible
        self._drawn_s = 0.0
        self._begun: tuple[float, int] | None = None

    def __call__(self, done: int, total: int) -> None:
        if not self._visible:
            return
        now = time.monotonic()
        if self._begun is None:
            self._begun = (now, done)
        if done < total and now - self._drawn_s < 0.1:
            return
        self._drawn_s = now
        share = done / total if total else 1.0
        (since, first), pace = self._begun, ""
        if done > first and now - since >= 0.5:
            rate = (done - first) / (now - since)
            left = round((total - done) / rate)
            hours = f"{left // 3600}:{left // 60 % 60:02d}" if left >= 3600 else f"{left // 60}"
            pace = f"  {rate:,.4g}/s, {hours}:{left % 60:02d} left"
        filled = int(share * 30)
        bar = f"{self._label} [{'█' * filled}{'·' * (30 - filled)}] {share:4.0%}{pace}"
        self._stream.write(f"\r{bar}\x1b[K")
        self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible and self._drawn_s:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str],
    right: Sequence[int] = (),
    *,
    fit_width: int | None = None,
) -> list[str]:
    """Lines of a table with aligned columns; `right` lists the columns set to the right.

    With `fit_width`, long cells are cut, and columns without room are counted at the end.
    """
    cells = [[printable(cell) for cell in row] for row in [header, *rows]]
    widths = [max(text_width(row[column]) for row in cells) for column in range(len(header))]
    if fit_width is not None:
        widths = _fitting(widths, fit_width)
    lines = []
    for row in cells:
        parts = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=False)):
            text = cut(cell, width)
            space = " " * max(0, width - text_width(text))
            parts.append(space + text if column in right else text + space)
        lines.append(_GAP.join(parts).rstrip())
    lines.insert(1, _GAP.join("─" * width for width in widths))
    if left_out := list(header[len(widths) :]):
        note = f"… and {len(left_out)} more columns: {', '.join(map(printable, left_out))}"
        lines.append(note if fit_width is None else cut(note, fit_width))
    return lines


_GAP = "  "
_LEAST_WIDTH = 6


def _fitting(widths: list[int], total: int) -> list[int]:
    """Widths of the columns that fit: the widest shrink first, the last ones are dropped if nothing else helps."""
    shown = list(widths)
    while len(shown) > 1 and sum(min(w, _LEAST_WIDTH) for w in shown) + len(_GAP) * (len(shown) - 1) > total:
        shown.pop()
    room = max(1, total - len(_GAP) * (len(shown) - 1))
    limit = max(shown, default=0)
    while limit > 1 and sum(min(w, limit) for w in shown) > room:
        limit -= 1
    fitted = [min(w, limit) for w in shown]
    for column, width in enumerate(shown):
        # What is left over goes to the first columns that were cut.
        if fitted[column] < width and sum(fitted) < room:
            fitted[column] += 1
    return fitted


def cut(text: str, width: int) -> str:
    """A text cut to at most `width` columns of a terminal."""
    if text_width(text) <= width:
        return text
    kept, used = [], 1
    for letter in text:
        used += text_width(letter)
        if used > width:
            break
        kept.append(letter)
    return "".join(kept) + "…"


def text_width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def printable(text: str) -> str:
    """A text without line breaks and without terminal control codes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(" " if c in "\n\t" else c if c.isprintable() else "\ufffd" for c in text)


def count_text(number: int, noun: str) -> str:
    """A number with its noun: `1 episode`, `2 episodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def human_bytes(count: int) -> str:
    """A byte count in a readable unit."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
