"""How much of a recording power loss may take, and who is recording."""

from __future__ import annotations

import re
import socket
import time
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.process.forks import process_id
from warpdata.errors import nearest

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")


@dataclass(frozen=True, slots=True)
class Durability:
    """What power loss may take: the last period, no record, or whatever the kernel has not written."""

    every_record: bool = False
    period_s: float | None = None

    @classmethod
    def parse(cls, text: str) -> Durability:
        """From `"record"`, `"none"`, or a period such as `"100ms"` or `"2s"`."""
        if text == "record":
            return cls(every_record=True)
        if text == "none":
            return cls()
        match = _PERIOD.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(
                f"durability is 'none', 'record' or a period like '100ms', not {text!r}."
                + nearest(str(text), ("none", "record", "100ms"))
            )
        return cls(period_s=float(match[1]) * (0.001 if match[2] == "ms" else 1.0))


def owner() -> dict[str, Any]:
    """Who is recording: written into a journal for whoever finds it."""
    return {"pid": process_id(), "host": socket.gethostname(), "started_ns": time.time_ns()}
