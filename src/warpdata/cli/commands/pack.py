"""`warp pack`: one file out of an episode that is spread over several."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands import join
from warpdata.cli.console import add_json_flag, add_output, add_storage

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "write an episode directory, or a chunked episode, as one .wshard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp pack`."""
    parser.add_argument(
        "manifest", metavar="EPISODE", help="an episode directory, or the chunk list of an episode"
    )
    add_output(parser, "the file to write; default: beside the episode")
    add_storage(parser)
    parser.add_argument(
        "--raw", action="store_true", help="a directory as it was recorded, without the edits of its dataset"
    )
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Pack a directory or the chunks of a list."""
    if not os.path.isdir(args.manifest):
        return join.run(args, console)
    from warpdata.episodes.packed import pack_episode

    output = args.output or f"{os.path.normpath(args.manifest)}.wshard"
    path = pack_episode(args.manifest, output, args.compression, compat=args.compat, raw=args.raw)
    console.emit({"output": str(path), "bytes": path.stat().st_size})
    console.print(f"{path}  {path.stat().st_size} bytes")
    return exits.OK
