"""`warp salvage`: finish interrupted recordings and print a loss receipt for each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp salvage`."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a .partial or the name it was to have, a signal file, an episode directory, a root, ROOT#ID",
    )
    parser.add_argument("--output", help="where to write it (one PATH only)")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that has the name already")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Salvage each path; one that fails does not stop the others."""
    from warpdata.errors import WarpError

    if args.output and len(args.paths) > 1:
        raise ValueError("--output goes with one PATH")
    receipts, failed = [], False
    for path in args.paths:
        try:
            receipts += _salvage(path, args, console)
        except WarpError as error:
            failed = True
            console.error(error.code, str(error), error.hint)
    console.emit(receipts)
    if failed:
        return exits.ERROR
    return exits.OK if all(each["is_complete"] for each in receipts) else exits.DAMAGED


def _salvage(path: str, args: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """One receipt, or one per unfinished episode of a dataset root."""
    import os

    from warpdata._api import divided_address
    from warpdata.episodes.collection.listing import episode_path
    from warpdata.episodes.salvage.recordings import salvage, salvage_folder

    root, inside = divided_address(path)
    if inside is not None and inside.isdigit() and os.path.isdir(root):
        path = str(episode_path(Path(root), int(inside)))
    if os.path.isdir(path):
        if args.output:
            raise ValueError(
                "--output goes with a file: what was recorded into a directory is finished there"
            )
        receipts = salvage_folder(path, overwrite=args.overwrite)
        if not receipts:
            console.print(f"{path}: nothing to salvage")
    else:
        with console.progress("salvage") as bar:
            receipts = [salvage(path, args.output, overwrite=args.overwrite, progress=bar)]
    for receipt in receipts:
        console.print_receipt(receipt)
    return [receipt.to_json() for receipt in receipts]
