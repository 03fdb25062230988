"""Recordings under way: what each holds by now, what waits to be encoded, and how much room is left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from warpdata.episodes.salvage.unfinished import is_recorded, read_status, unfinished_at
from warpdata.errors import WarpError
from warpdata.formats.episodedir.layout import RECORDING_FOLDER
from warpdata.viewer.health import Health
from warpdata.viewer.shown import Shown


def live_state(shown: Shown, health: Health) -> dict[str, Any]:
    """What a page must know to follow others: the state of the list, of the checks, and of everything unfinished."""
    shown.refresh()
    snapshot = shown.snapshot
    found: dict[str, Any] = {
        "generation": snapshot.generation, "episodes": len(snapshot.ids), "checks": health.revision,
    }  # fmt: skip
    found["recordings"] = [recording_state(path) for path in snapshot.unfinished.values()]
    if shown.root is not None:
        found["free_bytes"] = shutil.disk_usage(shown.root).free
    return found


def recording_state(folder: Path) -> dict[str, Any]:
    """One unfinished recording; what is not known by now is left out."""
    try:
        recording = unfinished_at(folder)
    except (WarpError, OSError):  # it ended just now, or is damaged: salvage reports it
        return {"id": folder.name, "is_live": is_recorded(folder / RECORDING_FOLDER)}
    status = read_status(folder / RECORDING_FOLDER)
    names = ("dropped", "blocked", "blocked_ns")
    totals = {} if status is None else {name: status.total(name) for name in names}
    return {
        "id": folder.name, "is_live": recording.is_live, "records": recording.records, "backlog": recording.backlog,
        **totals, "lost": recording.unreadable, "owner": recording.owner.get("pid"),
    }  # fmt: skip
