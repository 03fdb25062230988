"""`warp episodes`: the episodes at an address as a table."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, address_of, opened_episodes
from warpdata.cli.console import add_json_flag, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.collection.episodes import Episodes

_KNOWN = ["id", "duration_s", "signals", "bytes", "flags", "problems"]
"""What the table of a version says of an episode that is printed here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp episodes`."""
    add_address(parser, "a root of recordings, a folder of shards or a dataset", inside=False)
    parser.add_argument("--where", metavar="SQL", help='only those, such as "success and length > 50"')
    parser.add_argument("--raw", action="store_true", help="ignore the edits: recordings as they were made")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one line per episode; exit code 3 if one cannot be read."""
    from warpdata.cli.sparkline import human_time
    from warpdata.episodes.collection.local import LocalDataset

    episodes = _episodes(args)
    chosen = episodes if args.where is None else episodes.where(args.where)
    rows = _known_rows(chosen) if _is_published(chosen) else _opened_rows(chosen)
    if isinstance(episodes, LocalDataset) and args.where is None:
        rows += [_unfinished_row(each) for each in episodes.unfinished]
    console.emit(rows)
    cells = [
        [r["id"], human_time(r["duration_ns"]), ", ".join(r["signals"]), human_bytes(r["bytes"]),
         " ".join(r["flags"])]
        for r in rows
    ]  # fmt: skip
    console.print_table(cells, ["id", "duration", "signals", "size", "flags"], right=[1, 3])
    console.print(console.fitted(f"{len(chosen)} episodes, {len(rows) - len(chosen)} unfinished"))
    return exits.DAMAGED if any("damaged" in row["flags"] for row in rows) else exits.OK


def _episodes(args: argparse.Namespace) -> Episodes:
    if not args.raw:
        return opened_episodes(args)
    from warpdata._api import open_recordings

    return open_recordings(address_of(args), edited=False)


def _is_published(episodes: Episodes) -> bool:
    """Whether the table of a version says everything, so that no episode has to be opened."""
    from warpdata.catalog.read.artifact_contents import PublishedSource

    source = episodes.source
    return isinstance(source, PublishedSource) and set(_KNOWN) <= set(source.facts().column_names)


def _known_rows(episodes: Episodes) -> list[dict[str, Any]]:
    rows = []
    for each in episodes.facts.select(_KNOWN).to_pylist():
        duration_s = each["duration_s"]
        rows.append(
            {
                "id": each["id"],
                "duration_ns": None if duration_s is None else round(duration_s * 1e9),
                "signals": each["signals"] or [],
                "bytes": each["bytes"] or 0,
                "flags": [*(each["flags"] or []), *(["damaged"] if each["problems"] else [])],
            }
        )
    return rows


def _opened_rows(episodes: Episodes) -> list[dict[str, Any]]:
    return [_row(episodes, position, name) for position, name in enumerate(episodes.ids)]


def _row(episodes: Episodes, position: int, name: str) -> dict[str, Any]:
    from warpdata.episodes.collection.facts import flags_of
    from warpdata.errors import WarpError

    row: dict[str, Any] = {"id": name, "duration_ns": None, "signals": [], "bytes": 0, "flags": []}
    try:
        episode = episodes[position]
        row["signals"] = list(episode.signals)
        row["bytes"] = episode.stored_bytes
        row["flags"] = flags_of(episode)
        row["duration_ns"] = episode.duration_ns if any(map(len, episode.signals.values())) else None
    except WarpError as error:
        row["flags"] = ["damaged"]
        row["error"] = str(error)
    return row


def _bytes_below(folder: Any) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _unfinished_row(each: Any) -> dict[str, Any]:
    size = _bytes_below(each.path) if isinstance(each.path, os.PathLike) else 0
    flags = ["recording" if each.is_live else "unfinished"]
    return {"id": os.path.basename(each.path), "duration_ns": None, "signals": list(each.records), "bytes": size,
            "flags": flags, "records": each.records}  # fmt: skip
