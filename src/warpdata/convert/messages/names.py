"""Topics and fields as names of signals."""

from __future__ import annotations

import re

from warpdata.formats.episodedir.names import check_name

_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")


def plain_name(topic: str) -> str:
    """A topic or field as the name of a signal: no `/` in front, other letters as `_`."""
    parts = [_OTHER.sub("_", part) for part in topic.split("/") if part]
    made = "/".join(part if set(part) != {"."} else "_" for part in parts) or "_"
    try:
        return check_name(made)
    except ValueError:
        return "/".join(f"_{part}" for part in parts)
