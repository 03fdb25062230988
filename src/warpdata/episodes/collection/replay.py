"""Play an episode back: every record of every signal in the order of time, paced or as fast as possible."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import count, repeat
from typing import Any

from warpdata.errors import nearest
from warpdata.timeline.episode import Episode

Callback = Callable[[str, Any, int], object]


def replay(
    episode: Episode,
    callback: Callback,
    *,
    speed: float | None = 1.0,
    signals: Sequence[str] | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Call `callback(name, value, ts_ns)` for each record in time order; `speed=None` does not wait.

    Returns how many records were played. A late record is played at once, never skipped.
    """
    if speed is not None and not speed > 0:
        raise ValueError(f"speed is positive, or None for as fast as possible; not {speed}")
    names = [signals] if isinstance(signals, str) else list(signals or episode.signals)
    for name in names:
        if name not in episode.signals:
            known = episode.signals
            raise KeyError(
                f"no signal {name!r} in this episode; it has {', '.join(known)}.{nearest(name, known)}"
            )
    chosen = {name: episode.time[start_ns:end_ns].signals[name] for name in names}
    clocks = [zip(chosen[n].timestamps.tolist(), repeat(n), count(), strict=False) for n in names]
    played = 0
    began: tuple[float, int] | None = None
    for ts_ns, name, position in heapq.merge(*clocks):
        if speed is not None:
            began = began or (clock(), ts_ns)
            ahead_s = (ts_ns - began[1]) / 1e9 / speed - (clock() - began[0])
            if ahead_s > 0:
                sleep(ahead_s)
        callback(name, chosen[name][position][0], ts_ns)
        played += 1
    return played
