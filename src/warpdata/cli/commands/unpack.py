"""`warp unpack`: spread an episode over several files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands import chunk
from warpdata.cli.console import add_json_flag, add_output, add_storage

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "write a packed episode as a directory again, or spread a .wshard over chunks of N steps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp unpack`."""
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, metavar="N", help="cut into chunks of N steps instead")
    add_output(parser, "where to write it; default: FILE without its suffix")
    add_storage(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Unpack a packed directory; any other shard is cut into chunks."""
    from warpdata.episodes.shard_episode import DIRECTORY_BLOCK
    from warpdata.formats.wshard.reader import ShardReader

    with ShardReader.open(args.file) as shard:
        is_directory = DIRECTORY_BLOCK in shard
    if args.steps is not None:
        return chunk.run(args, console)
    if not is_directory:
        raise ValueError("this shard is no packed directory; give --steps N to cut it into chunks")
    from warpdata.episodes.packed import unpack_episode

    target = unpack_episode(args.file, args.output or args.file.removesuffix(".wshard"))
    console.emit({"output": str(target)})
    console.print(str(target))
    return exits.OK
