"""The scheduling of threads, kept as it was around libraries that change it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_TASKS = "/proc/self/task"


@contextlib.contextmanager
def kept_scheduling() -> Iterator[None]:
    """Give this thread, and those started meanwhile, the policy this thread has now.

    A video encoder that runs as root makes itself and whoever opens it real-time threads of the highest
    priority, before which everything else on the machine waits.
    """
    if not os.path.isdir(_TASKS):
        yield
        return
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    before = set(os.listdir(_TASKS))
    try:
        yield
    finally:
        started = (int(task) for task in os.listdir(_TASKS) if task not in before)
        for task in (0, *started):
            # A thread may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                if os.sched_getscheduler(task) != policy:
                    os.sched_setscheduler(task, policy, priority)
