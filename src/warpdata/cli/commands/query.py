"""`warp query`: SQL over the tables of a dataset, or over the table `episodes` of recordings."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.errors import TooLargeError

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp query`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("sql", help="a SELECT over the tables by name; recordings have one: episodes")
    parser.add_argument("--format", choices=("table", "arrow", "ndjson", "parquet"), default="table")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print or stream the result."""
    from warpdata._api import divided_address, is_published, open_episodes
    from warpdata.catalog.read.arrowout import rows_as_json, write_batches
    from warpdata.catalog.table import MAX_ROWS
    from warpdata.cli.commands._address import naming_errors
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.commands._rows import print_rows

    base, inside = divided_address(args.dataset)
    if is_published(base) and inside is None:
        result = open_named(args).sql(args.sql)
    else:
        with naming_errors():
            result = open_episodes(args.dataset, catalog=args.catalog).sql(args.sql)
    if args.format != "table":
        write_batches(result.batches(), result.schema, args.format, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return exits.OK
    try:
        names, rows = result.schema.names, rows_as_json(result.arrow(max_rows=MAX_ROWS))
    except TooLargeError as error:
        hint = "Stream it with --format ndjson, arrow or parquet, or add a LIMIT."
        raise TooLargeError(error.message, hint=hint) from None
    console.emit(rows)
    print_rows(console, rows, names)
    return exits.OK
