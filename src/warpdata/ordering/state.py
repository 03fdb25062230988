"""Limits of seeds, epochs and positions, which every state holds."""

from __future__ import annotations

import operator

MAX_SEED = (1 << 64) - 1
MAX_EPOCH = 10**6 - 1
MAX_POSITION = 10**12 - 1


def checked_integer(name: str, value: object, most: int, *, least: int = 0) -> int:
    """The value as a plain int if it is an integer in range, else ValueError."""
    if hasattr(value, "__index__") and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise ValueError(f"{name} is an integer from {least} to {most}, not {value!r}")
