"""`warp chunk`: an episode as chunks with a chunk list; `warp join` is the way back."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, opened_episode
from warpdata.cli.console import add_json_flag, add_output, add_overwrite, add_storage, check_free
from warpdata.errors import ConflictError

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp chunk`."""
    add_address(parser, "an episode", inside=False)
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps per chunk")
    add_output(parser, "the folder for the chunks; default: FILE without its suffix, or ID here")
    add_overwrite(parser)
    add_storage(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the chunks and print where the chunk list is."""
    from warpdata._api import divided_address
    from warpdata.episodes.check.rules import is_directory
    from warpdata.episodes.forms.packed_chunks import write_chunks
    from warpdata.formats.wshard.chunks import list_name

    episode = opened_episode(args)
    base, inside = divided_address(args.address)
    is_file = inside is None and os.path.isfile(base)
    folder = Path(args.output or (Path(base).with_suffix("") if is_file else f"{episode.id}_chunks"))
    if folder.is_dir():
        if is_directory(folder):
            hint = "Give the chunks a folder of their own with --output."
            raise ConflictError(
                "an episode lies there, and chunks are not part of it", path=folder, hint=hint
            )
        check_free(folder / list_name(episode.id), overwrite=args.overwrite)
    with console.progress("chunk") as bar:
        listed = write_chunks(
            episode, folder, steps=args.steps, compression=args.compression, compat=args.compat, progress=bar
        )
    console.emit({"chunk_list": str(listed.path), "chunks": [each.uri for each in listed.chunks]})
    console.print(f"{listed.path}  {listed.total_chunks} chunks, {listed.total_timesteps} steps")
    return exits.OK
