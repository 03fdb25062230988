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
    options_of,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warpdata.cli.console import Console

_SUFFIXES = {".zarr": "zarr", ".zip": "zarr", ".hdf5": "hdf5", ".h5": "hdf5", ".mcap": "mcap", ".rrd": "rrd"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp convert`."""
    parser.add_argument("source", metavar="A", help="a set of any format, a folder, a URL or workspace/name")
    parser.add_argument(
        "target", metavar="B", help="a new folder or file; without --to it says its format itself"
    )
    parser.add_argument("--to", metavar="FORMAT", help="the format of B, or root, shards, published")
    add_export(parser)
    add_import(parser)
    add_common(parser)


_OF_EXPORTS = {
    "rate": "--rate",
    "clock": "--clock",
    "align": "--align",
    "format_version": "--version",
    "task": "--task",
}
_OF_IMPORTS = {"ray": "--ray", "catalog": "--catalog"}


def _refuse(args: argparse.Namespace, names: Mapping[str, str], target: str) -> None:
    """Raise where something was asked for that this target knows nothing of."""
    for name, flag in names.items():
        if getattr(args, name) is not None:
            raise ValueError(f"{flag} says nothing of a target that is {target}: leave it out")


def run(args: argparse.Namespace, console: Console) -> int:
    """Convert and print the receipt."""
    from warpdata._api.importing import export_episodes, import_episodes

    to = args.to or _SUFFIXES.get(os.path.splitext(args.target.rstrip("/"))[1].lower())
    is_ours = to is None or to in ("root", "shards", "published")
    _refuse(args, _OF_EXPORTS if is_ours else _OF_IMPORTS, "ours" if is_ours else str(to))
    with console.progress("converting") as progress:
        if is_ours:
            receipt = import_episodes(
                args.source,
                args.target,
                format=args.source_format,
                to=to,
                progress=progress,
                **(options_of(args.read) | import_options(args)),
            )
        else:
            receipt = export_episodes(
                args.source, args.target, str(to), progress=progress, **export_options(args)
            )
    return show(receipt, console)
