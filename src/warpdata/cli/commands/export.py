"""`warp export`: episodes of any address become a set of a foreign format."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli.commands._foreign import add_common, add_export, export_options, show

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp export`."""
    parser.add_argument("format", metavar="FORMAT")
    parser.add_argument(
        "source", metavar="SOURCE", help="a folder, a file, a URL or workspace/name[@version]"
    )
    parser.add_argument("target", metavar="TARGET", help="a new folder or file")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that convert episodes")
    add_export(parser)
    add_common(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Export and print the receipt."""
    from warpdata._api.importing import export_episodes

    with console.progress("exporting") as progress:
        receipt = export_episodes(
            args.source, args.target, args.format, progress=progress, **export_options(args)
        )
    return show(receipt, console)
