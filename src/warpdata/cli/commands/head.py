"""`warp head`: the first rows of a table."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp head`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("-n", type=int, default=5, help="how many rows (default 5)")
    parser.add_argument("--table", default="main")
    parser.add_argument("--columns", help="names separated by commas")
    parser.add_argument("--filter", help="a SQL condition")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the rows."""
    from warpdata.catalog.read.arrowout import rows_as_json
    from warpdata.cli.commands._dataset import asked_view, open_named
    from warpdata.cli.commands._rows import print_rows

    with open_named(args) as dataset:
        view = asked_view(dataset, args)
        rows, names = rows_as_json(view.head(args.n)), view.schema().names
    console.emit(rows)
    print_rows(console, rows, names)
    return exits.OK
