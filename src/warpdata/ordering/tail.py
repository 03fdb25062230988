"""What becomes of the last batch of an epoch that is not full: one word for corpora, tables and windows."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from warpdata.errors import TooLargeError, nearest

Tail = Literal["short", "drop", "pad"]
"""It is shorter, it is left out, or it is filled with what came first."""
MAX_FILLED_BYTES = 1 << 30
_LEAST_ROW_BYTES = 16
"""What a row costs beside its values: its number, and whether it is a repeat."""


def check_tail(word: Any) -> Tail:
    """The word, or an error that names the nearest one."""
    known = get_args(Tail)
    if word not in known:
        raise ValueError(f"tail is one of {', '.join(known)}, not {word!r}.{nearest(str(word), known)}")
    return cast("Tail", word)


def check_filled(rows: int, found: int, row_bytes: int) -> None:
    """TooLargeError for a filled batch or window that is mostly repeats and more than 1 GiB, before any of it is made.

    `found` is how many different rows there are to fill it with. Without repeats the data itself is the bound.
    """
    size = rows * max(row_bytes, _LEAST_ROW_BYTES)
    if rows > 2 * found and size > MAX_FILLED_BYTES:
        raise TooLargeError(
            f'tail="pad" would fill {rows} rows from {found}, which takes {size} bytes',
            hint='Use a smaller batch_size (or window), or tail="short".',
        )
