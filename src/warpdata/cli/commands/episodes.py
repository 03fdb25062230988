"""`warp episodes`: the episodes of a dataset root as a table."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag, human_bytes, table

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.local import LocalDataset
    from warpdata.timeline.episode import Episode

HELP = "list the episodes of a dataset root: id, duration, signals, size, flags"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp episodes`."""
    parser.add_argument("root", help="a root of recordings: a path, or a URL of a store that can list")
    parser.add_argument("--raw", action="store_true", help="ignore the edits: recordings as they were made")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one line per episode; exit code 3 if one cannot be read."""
    from warpdata._api import open_recordings
    from warpdata.cli.sparkline import human_time

    dataset = open_recordings(args.root, edited=not args.raw)
    rows = [_row(dataset, index) for index in range(len(dataset))]
    rows += [_unfinished_row(each) for each in dataset.unfinished]
    console.emit(rows)
    cells = [
        [r["id"], human_time(r["duration_ns"]), ", ".join(r["signals"]), human_bytes(r["bytes"]),
         " ".join(r["flags"])]
        for r in rows
    ]  # fmt: skip
    for line in table(cells, ["id", "duration", "signals", "size", "flags"], right=[1, 3]):
        console.print(line)
    console.print(f"{len(dataset)} episodes, {len(rows) - len(dataset)} unfinished")
    return exits.DAMAGED if any("damaged" in row["flags"] for row in rows) else exits.OK


def _row(dataset: LocalDataset, index: int) -> dict[str, Any]:
    from warpdata.errors import WarpError

    name = dataset.ids[index]
    row: dict[str, Any] = {"id": name, "duration_ns": None, "signals": [], "bytes": 0, "flags": []}
    try:
        episode = dataset[index]
        row["signals"] = list(episode.signals)
        row["bytes"] = episode.stored_bytes
        row["flags"] = _flags(episode)
        row["duration_ns"] = episode.duration_ns if any(map(len, episode.signals.values())) else None
    except WarpError as error:
        row["flags"] = ["damaged"]
        row["error"] = str(error)
    return row


def _flags(episode: Episode) -> list[str]:
    meta = episode.meta
    names = ("interrupted", "salvaged", "edited")
    return [name for name in names if meta.get(name)]


def _bytes_below(folder: Any) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _unfinished_row(each: Any) -> dict[str, Any]:
    size = _bytes_below(each.path) if isinstance(each.path, os.PathLike) else 0
    flags = ["recording" if each.is_live else "unfinished"]
    return {"id": os.path.basename(each.path), "duration_ns": None, "signals": list(each.records), "bytes": size,
            "flags": flags, "records": each.records}  # fmt: skip
