"""Waiting for another process or thread. The one clock of the tests: nothing here is a claim about speed."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 180.0
"""Only what hangs takes this long, however busy the machine is."""


def until(
    is_so: Callable[[], object],
    otherwise: str = "it does not go on",
    *,
    pause_s: float = 0.002,
    before_failing: Callable[[], object] | None = None,
) -> None:
    """Return as soon as `is_so()`; fail with `otherwise` when it hangs."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        if time.monotonic() > deadline:
            if before_failing:
                before_failing()
            raise AssertionError(otherwise)
        time.sleep(pause_s)
