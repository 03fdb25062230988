"""The state of a recording while it runs: counts and rates of its signals, the disk, and warnings about both."""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from warpdata.errors import CorruptLayoutError

STATUS_FILE = "status.json"
FRAMES_PREFIX = "frames-"
"""Of the journals of raw frames."""
_SHORT_S, _LONG_S = 5.0, 60.0
"""Rates of signals are those of the last seconds, the rate at which the disk fills that of the last minute."""
_LEAST_S = 6.0
"""The disk is watched for so long before a warning."""
_WARN_MINUTES = (15, 5, 1)
_QUIET_S = 10.0
"""Slow appends and drops of a signal are logged no more often."""
_log = logging.getLogger("warpdata.record")

OnSlow = Callable[[str, float], object]


@dataclass(frozen=True, slots=True)
class SignalStatus:
    """Counts of one signal since the recording began."""

    records: int = 0
    rate_hz: float = 0.0
    """Records per second, lately."""
    bytes: int = 0
    """Bytes of the values recorded, not encoded."""
    waiting: int = 0
    """Frames that wait for the encoder."""
    delay_ms: float = 0.0
    """How long the oldest of them has been waiting."""
    blocked: int = 0
    """Calls that had to wait because the encoder had too much to do."""
    blocked_ns: int = 0
    dropped: int = 0
    """Frames that the policy of the camera dropped."""
    refused: int = 0
    """Values that were given and refused: they are not in the recording."""


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """The state of a recording: its signals, the space it uses, and the space that is left."""

    written_ns: int
    """Time of day."""
    signals: Mapping[str, SignalStatus] = field(default_factory=dict)
    disk_bytes: int = 0
    """Space that its files and journals use on the disk by now."""
    free_bytes: int = 0
    left_s: float | None = None
    """Until the floor of free space at the present rate; None while the disk does not fill."""

    def total(self, count: str) -> int:
        """One of the counts over all signals."""
        return sum(int(getattr(signal, count)) for signal in self.signals.values())

    def to_json(self) -> dict[str, Any]:
        """The status as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> RecordingStatus:
        """What `to_json` made; numbers that are none count as 0, anything else is a CorruptLayoutError."""
        try:
            signals = {
                str(name): SignalStatus(
                    **{item.name: _count(about.get(item.name)) for item in fields(SignalStatus)}
                )
                for name, about in stated["signals"].items()
            }
            written_ns, left_s = stated["written_ns"], stated.get("left_s")
            if type(written_ns) is not int:
                raise TypeError(f"written_ns is {written_ns!r:.40}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLayoutError(f"unreadable status of a recording ({error})") from None
        return cls(
            written_ns,
            signals,
            disk_bytes=int(_count(stated.get("disk_bytes"))),
            free_bytes=int(_count(stated.get("free_bytes"))),
            left_s=None if left_s is None else _count(left_s),
        )

    def __str__(self) -> str:
        lines = [f"{self.disk_bytes / 1e6:.1f} MB on disk, {self.free_bytes / 1e9:.1f} GB free"]
        if self.left_s is not None:
            lines[0] += f", {_in_words(self.left_s)} left at this rate"
        for name, signal in self.signals.items():
            line = f"  {name}: {signal.records} records, {signal.rate_hz:.1f} Hz, {signal.bytes / 1e6:.1f} MB"
            if signal.waiting or signal.blocked_ns:
                line += f", {signal.waiting} wait since {signal.delay_ms:.0f} ms"
            counts = ("dropped", "refused", "blocked")
            line += "".join(
                f", {getattr(signal, count)} {count}" for count in counts if getattr(signal, count)
            )
            lines.append(line)
        return "\n".join(lines)


def _in_words(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"


def _count(value: object) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) and value >= 0 else 0  # type: ignore[arg-type,operator]


class Monitor:
    """Watches one recording: `look` is called twice a second, `status` at any time."""

    def __init__(
        self, place: Path, work: Path, min_free: int, signals: Callable[[], dict[str, SignalStatus]]
    ) -> None:
        """`place` names the recording in messages, `work` has its journals, `signals` gives counts without rates."""
        self._place, self._work = place, work
        self._min_free = min_free
        self._signals = signals
        self._free_bytes = 0
        self._room: deque[tuple[float, int]] = deque()
        """Space for what is kept: raw frames that wait for their encoder come and go."""
        self._records: deque[tuple[float, dict[str, int]]] = deque()
        self._warn_minutes = list(_WARN_MINUTES)
        self._reported: dict[tuple[str, str], float] = {}

    def look(self, needed_bytes: Callable[[], int]) -> str | None:
        """Take a sample, and warn when the disk will soon be full; returns why recording must stop, or None.

        `needed_bytes` is the space that closing takes.
        """
        now, free = time.monotonic(), shutil.disk_usage(self._work.parent).free
        self._free_bytes = free
        self._room.append((now, free + used_bytes(self._work, FRAMES_PREFIX)))
        self._records.append((now, {name: signal.records for name, signal in self._signals().items()}))
        for samples, period_s in ((self._room, _LONG_S), (self._records, _SHORT_S)):
            while samples[0][0] < now - period_s:
                samples.popleft()
        floor = self._min_free + (needed_bytes() if self._min_free else 0)
        if free < floor and self._min_free:
            reason = f"recording stopped: {free} bytes are free, min_free is {self._min_free}"
            _log.error("%s (%s)", reason, self._place)
            return reason
        left_s = self._left_s(floor)
        is_known = now - self._room[0][0] >= min(_LEAST_S, _LONG_S / 10)
        if is_known and self._warn_minutes and left_s < 60 * self._warn_minutes[0]:
            while self._warn_minutes and left_s < 60 * self._warn_minutes[0]:
                self._warn_minutes.pop(0)
            goal = "min_free is reached" if self._min_free else "it is full"
            _log.warning("disk of %s: %s left at this rate until %s", self._place, _in_words(left_s), goal)
        return None

    def _left_s(self, floor: int) -> float:
        (begin, before), (now, free) = self._room[0], self._room[-1]
        rate = (before - free) / max(now - begin, 1e-9)
        return max(0, free - floor) / rate if rate > 0 else math.inf

    def status(self) -> RecordingStatus:
        """The state by now."""
        now, signals = time.monotonic(), self._signals()
        since, before = self._records[0] if self._records else (now, {})
        for name, signal in signals.items():
            rate = (signal.records - before.get(name, 0)) / max(now - since, 1e-3) if self._records else 0.0
            values = {**asdict(signal), "rate_hz": round(rate, 3)}
            signals[name] = SignalStatus(**values)
        left_s = self._left_s(self._min_free) if self._room else math.inf
        free = self._free_bytes or shutil.disk_usage(self._work.parent).free
        left = None if left_s == math.inf else round(left_s, 1)
        return RecordingStatus(time.time_ns(), signals, used_bytes(self._work), free, left)

    def report(self, message: str, signal: str, number: float) -> None:
        """Log something about a signal, each message once in a while; `number` is its last value."""
        now, key = time.monotonic(), (signal, message)
        if now - self._reported.get(key, -math.inf) >= _QUIET_S:
            self._reported[key] = now
            _log.warning(message, signal, self._place, number)

    def report_wait(self, signal: str, waited_s: float, slow_s: float, on_slow: OnSlow | None) -> None:
        """Log an append that waited for its encoder, and call `on_slow`; a call that fails is logged too."""
        if waited_s < slow_s:
            return
        self.report("append to %r of %s waited %.0f ms for its encoder", signal, waited_s * 1e3)
        if on_slow is not None:
            try:
                on_slow(signal, waited_s)
            except Exception:  # noqa: BLE001 - of the caller; recording goes on
                _log.exception("on_slow failed for %r", signal)


def used_bytes(folder: Path, prefix: str = "") -> int:
    """Space that files below a folder use on the disk, holes not counted: all, or those of this prefix."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += used_bytes(Path(entry.path), prefix)
                elif entry.name.startswith(prefix):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:  # files come and go
        return total
    return total
