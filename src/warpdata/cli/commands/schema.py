"""`warp schema`: the columns of a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp schema`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("--table", default="main")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the columns; nothing but the manifest is read."""
    from warpdata.cli.commands._dataset import open_named

    with open_named(args) as dataset:
        fields = [dict(field) for field in dataset.table(args.table).part.fields]
        bound = {b.column: b.ref_type for b in dataset.manifest.bindings if b.table == args.table}
    for field in fields:
        field["ref_type"] = bound.get(str(field["name"]))
    console.emit({"table": args.table, "columns": fields})
    rows = [[f["name"], f["type"], "" if f["nullable"] else "required", f["ref_type"] or ""] for f in fields]
    console.print_table(rows, ["column", "type", "", "refers to"])
    return exits.OK
