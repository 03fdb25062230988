"""Status of a running recording, in a small file beside its journals: for monitors, not for readers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import WarpError
from warpdata.formats.episodedir.documents import read_bytes

STATUS_FILE = "status.json"
STATUS_S = 0.5
"""How often it is written at most."""

_MAX_BYTES = 1 << 20
_COUNTS = ("waiting", "blocked", "blocked_ns", "dropped")


@dataclass(frozen=True, slots=True)
class SignalStatus:
    """Counts of one signal since the recording began."""

    waiting: int = 0
    """Frames that wait for the encoder."""
    blocked: int = 0
    """Calls that had to wait because the encoder had too much to do."""
    blocked_ns: int = 0
    dropped: int = 0
    """Values that were given and refused: they are not in the recording."""


@dataclass(frozen=True, slots=True)
class RecordingStatus:
    """The status of a recorder."""

    written_ns: int
    signals: Mapping[str, SignalStatus] = field(default_factory=dict)

    def total(self, count: str) -> int:
        """One of the counts over all signals."""
        return sum(int(getattr(each, count)) for each in self.signals.values())


def write_status(work: Path, signals: Mapping[str, SignalStatus]) -> None:
    """Write the status of the recording in this folder; disk errors are left to the recorder itself."""
    status = {"written_ns": time.time_ns(), "signals": {name: asdict(each) for name, each in signals.items()}}
    with contextlib.suppress(WarpError, OSError):
        write_file(work / STATUS_FILE, dump_json(status), durable=False)


def read_status(work: Path) -> RecordingStatus | None:
    """The last status of a recorder; None without one that can be read."""
    try:
        status = parse_json_object(read_bytes(work / STATUS_FILE, max_bytes=_MAX_BYTES))
        signals = {
            str(name): SignalStatus(**{key: _count(each, key) for key in _COUNTS})
            for name, each in status["signals"].items()
        }
        written_ns = status["written_ns"]
        return RecordingStatus(written_ns, signals) if type(written_ns) is int else None
    except (WarpError, KeyError, TypeError, ValueError, AttributeError):
        return None


def remove_status(work: Path) -> None:
    """Nobody records here any more."""
    with contextlib.suppress(OSError):
        (work / STATUS_FILE).unlink()


def _count(each: Mapping[str, object], key: str) -> int:
    found = each.get(key, 0)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
