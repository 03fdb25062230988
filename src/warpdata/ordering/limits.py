"""Limits of seeds, epochs and positions, and what becomes of a last batch that is not full."""

from __future__ import annotations

import operator
from typing import Any, Literal, cast, get_args

from warpdata.errors import TooLargeError, nearest

MAX_SEED = (1 << 64) - 1
MAX_EPOCH = 10**6 - 1
MAX_POSITION = 10**12 - 1

Tail = Literal["short", "drop", "pad"]
"""The last batch is shorter, left out, or filled with what came first."""
MAX_FILLED_BYTES = 1 << 30
_LEAST_ROW_BYTES = 16
"""Bytes of a row beside its values: its number, and whether it is a repeat."""


def checked_integer(name: str, value: object, most: int, *, least: int = 0) -> int:
    """The value as a plain int if it is an integer in range, else ValueError."""
    if hasattr(value, "__index__") and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= most:
            return number
    raise ValueError(f"{name} is an integer from {least} to {most}, not {value!r}")


def check_tail(word: Any) -> Tail:
    """The word, or an error that names the nearest one."""
    known = get_args(Tail)
    if word not in known:
        raise ValueError(f"tail is one of {', '.join(known)}, not {word!r}.{nearest(str(word), known)}")
    return cast("Tail", word)


def check_filled(rows: int, available: int, row_bytes: int) -> None:
    """TooLargeError for a filled batch that is mostly repeats and more than 1 GiB, before any of it is made.

    `available` counts the different rows it is filled with. Without repeats the data itself is the bound.
    """
    size = rows * max(row_bytes, _LEAST_ROW_BYTES)
    if rows > 2 * available and size > MAX_FILLED_BYTES:
        raise TooLargeError(
            f'tail="pad" would fill {rows} rows from {available}, which takes {size} bytes',
            hint='Use a smaller batch_size (or window), or tail="short".',
        )
