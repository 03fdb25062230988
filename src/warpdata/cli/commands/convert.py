"""`warp convert`: from any format to any other, without a copy of ours on the way."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from warpdata.cli.commands._foreign import (
    add_common,
    add_export,
    add_import,
    export_options,
    import_options,
    show,
)

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_SUFFIXES = {".zarr": "zarr", ".zip": "zarr", ".hdf5": "hdf5", ".h5": "hdf5", ".mcap": "mcap", ".rrd": "rrd"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp convert`."""
    parser.add_argument("source", metavar="A", help="a set of any format, a folder, a URL or workspace/name")
    parser.add_argument(
        "target", metavar="B", help="a new folder or file; without --to it says its format itself"
    )
    parser.add_argument(
        "--from", dest="source_format", metavar="FORMAT", help="the format of A, if A does not say it"
    )
    parser.add_argument("--to", metavar="FORMAT", help="the format of B, or root, shards, published")
    add_export(parser)
    add_import(parser)
    add_common(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Convert and print the receipt."""
    from warpdata._api.importing import export_episodes, import_episodes

    to = args.to or _SUFFIXES.get(os.path.splitext(args.target.rstrip("/"))[1].lower())
    with console.progress("converting") as progress:
        if to in (None, "root", "shards", "published"):
            receipt = import_episodes(
                args.source,
                args.target,
                format=args.source_format,
                to=to,
                progress=progress,
                **import_options(args),
            )
        elif args.ray is not None:
            raise ValueError(f"{to} is written on this machine: leave out --ray")
        else:
            receipt = export_episodes(
                args.source, args.target, to, source_format=args.source_format, progress=progress,
                **export_options(args),
            )  # fmt: skip
    return show(receipt, console)
