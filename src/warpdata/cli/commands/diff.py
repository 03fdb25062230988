"""`warp diff`: what changed between two versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.catalog.manage.diff import PartChange
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp diff`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("other", help="another dataset, or @hash or @tag of the same one")


def run(args: argparse.Namespace, console: Console) -> int:
    """Compare two manifests; no data is read."""
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.console import human_bytes

    with open_named(args) as dataset:
        found = dataset.diff(args.other.removeprefix("@") if "/" not in args.other else args.other)
    console.emit(found.as_dict())
    console.print(f"{found.before[:12]} -> {found.after[:12]}")
    if found.is_empty:
        console.print("the same version")
        return exits.OK
    for kind, changes in (("table", found.tables), ("artifact", found.artifacts)):
        for change in changes:
            console.print(_line(kind, change))
    for sign, bindings in (("+", found.bindings_added), ("-", found.bindings_removed)):
        for binding in bindings:
            console.print(f"{sign} binding {binding}")
    shared, added = human_bytes(found.bytes_shared), human_bytes(found.bytes_added)
    console.print(f"rows {found.rows_before} -> {found.rows_after}; {shared} shared, {added} new")
    return exits.OK


def _line(kind: str, change: PartChange) -> str:
    sign = {"added": "+", "removed": "-", "changed": "~"}[change.change]
    parts = [f"{sign} {kind} {change.name}: {change.rows_before or 0} -> {change.rows_after or 0} entries"]
    parts.append(f"{len(change.shards_added)} shards added, {len(change.shards_removed)} removed")
    for name, columns in (
        ("new", change.columns_added),
        ("gone", change.columns_removed),
        ("changed", change.columns_changed),
    ):
        if columns:
            parts.append(f"columns {name}: {', '.join(columns)}")
    return "; ".join(parts)
