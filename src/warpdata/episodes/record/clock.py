"""The clock of a recording: the times of records that come without one."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any, Literal

Clock = Literal["monotonic", "wall", "simulated"]

STEP_BACK_NS = 1_000_000
"""The wall clock is adjusted by less than this all the time; a larger step back is reported."""


class RecordingClock:
    """Gives increasing times, for any number of threads.

    A wall clock that is set back would refuse every record until it caught up. Instead the times continue at the
    pace of the monotonic clock, from where the wall clock was before; this is warned of once, and the offset at the
    end of the recording gives the difference.
    """

    def __init__(self, name: Clock) -> None:
        self.name: Clock = name
        self._lock = threading.Lock()
        self._last = -1
        self._first_offset_ns = _wall_offset_ns()
        self._offset_ns = self._first_offset_ns

    def now(self) -> int:
        """The time now, later than every time before."""
        if self.name == "simulated":
            raise ValueError("simulated time is given with every record: pass ts_ns=")
        with self._lock:
            now = time.monotonic_ns() if self.name == "monotonic" else self._wall_ns()
            self._last = now = max(now, self._last + 1)
            return now

    def facts(self) -> dict[str, Any]:
        """The entry `clock` of meta.json at the start: the clock, and the offset from its times to the time of day."""
        offset = {"monotonic": self._first_offset_ns, "wall": 0, "simulated": None}[self.name]
        return {"name": self.name, "wall_offset_ns": offset}

    def last_facts(self) -> dict[str, Any]:
        """The entry `clock` at the end: with the offset now, which a suspend or a step of the wall clock changed."""
        facts = self.facts()
        if self.name == "monotonic":
            facts["wall_offset_end_ns"] = _wall_offset_ns()
        elif self.name == "wall":
            facts["wall_offset_end_ns"] = min(0, _wall_offset_ns() - self._offset_ns)
        return facts

    def _wall_ns(self) -> int:
        wall_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        offset_ns = wall_ns - monotonic_ns
        if offset_ns >= self._offset_ns - STEP_BACK_NS:
            self._offset_ns = offset_ns
            return wall_ns
        if not self._is_behind:
            self._is_behind = True
            warnings.warn(
                f"the wall clock was set back by {(self._offset_ns - offset_ns) / 1e9:.3f} s: the times of this "
                "recording continue without the step",
                RuntimeWarning,
                stacklevel=4,
            )
        return monotonic_ns + self._offset_ns

    _is_behind = False


def _wall_offset_ns() -> int:
    return time.time_ns() - time.monotonic_ns()
