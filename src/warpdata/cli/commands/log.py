"""`warp log`: the versions of a dataset."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp log`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    add_limit(parser)


def add_limit(parser: argparse.ArgumentParser) -> None:
    """The argument that says how many versions are listed."""
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="list only the newest N versions")


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the versions."""
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.console import human_bytes

    with open_named(args) as dataset:
        versions = dataset.versions(limit=args.limit)
    console.emit([asdict(version) for version in versions])
    for one in versions:
        marks = ", ".join((["latest"] if one.is_latest else []) + list(one.tags))
        console.print(
            f"{console.paint(one.version[:12], 'yellow')} {one.created_at} {f'({marks})' if marks else ''}"
        )
        console.print(f"    {one.rows} rows, {human_bytes(one.bytes)}  {one.message}")
    return exits.OK
