"""`warp import`: a foreign set becomes recordings, shards or a published dataset."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli.commands._foreign import add_common, add_import, import_options, show

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp import`."""
    parser.add_argument(
        "words", nargs="+", metavar="[FORMAT] SOURCE TARGET",
        help="the format may be left out where the source says it itself; the target is a new folder or workspace/name",
    )  # fmt: skip
    parser.add_argument(
        "--to", choices=("root", "shards", "published"), help="what the target becomes; default: root"
    )
    add_import(parser)
    add_common(parser)
    parser.set_defaults(when_stopped="Run the same command again: it goes on where it stopped.")


def run(args: argparse.Namespace, console: Console) -> int:
    """Import and print the receipt."""
    from warpdata._api.importing import import_episodes

    if len(args.words) not in (2, 3):
        raise ValueError(f"[FORMAT] SOURCE TARGET are two or three words, not {len(args.words)}")
    source, target = args.words[-2:]
    with console.progress("importing") as progress:
        receipt = import_episodes(
            source, target, format=args.words[0] if len(args.words) == 3 else None, to=args.to, progress=progress,
            **import_options(args),
        )  # fmt: skip
    return show(receipt, console)
