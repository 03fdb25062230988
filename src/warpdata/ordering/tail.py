"""What becomes of the last batch of an epoch that is not full: one word for corpora, tables and windows."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

from warpdata.errors import nearest

Tail = Literal["short", "drop", "pad"]
"""It is shorter, it is left out, or it is filled with what came first."""


def check_tail(word: Any) -> Tail:
    """The word, or an error that names the nearest one."""
    known = get_args(Tail)
    if word not in known:
        raise ValueError(f"tail is one of {', '.join(known)}, not {word!r}.{nearest(str(word), known)}")
    return cast("Tail", word)
