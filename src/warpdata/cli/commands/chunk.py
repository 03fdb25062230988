"""`warp chunk`: cut an episode into chunks with a chunk list."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag, add_output, add_storage

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "cut an episode into chunks of N steps and write their chunk list"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp chunk`."""
    parser.add_argument("file")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps per chunk")
    add_output(parser, "the folder for the chunks; default: FILE without its suffix")
    add_storage(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the chunks and print where the chunk list is."""
    from warpdata.formats.wshard.chunked import chunk_episode
    from warpdata.formats.wshard.load import load_wshard

    folder = args.output or str(Path(args.file).with_suffix(""))
    episode = load_wshard(args.file)
    with console.progress("chunk") as bar:
        listed = chunk_episode(
            episode, folder, args.steps, compression=args.compression, compat=args.compat, progress=bar
        )
    console.emit({"chunk_list": str(listed.path), "chunks": [each.uri for each in listed.chunks]})
    console.print(f"{listed.path}  {listed.total_chunks} chunks, {listed.total_timesteps} steps")
    return exits.OK
