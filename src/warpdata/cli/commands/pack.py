"""`warp pack`: an episode directory as one file; `warp unpack` is the way back."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, naming_errors, opened_episode
from warpdata.cli.console import add_json_flag, add_output, add_overwrite, add_storage, check_free

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.timeline.episode import Episode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp pack`."""
    add_address(parser, "an episode", inside=False)
    add_output(parser, "the file to write; default: beside the directory, or ID.wshard here")
    add_overwrite(parser)
    add_storage(parser)
    parser.add_argument(
        "--raw", action="store_true", help="the recording as it was made, without the edits of its root"
    )
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Pack one episode."""
    from warpdata._api import address_kind, divided_address
    from warpdata.episodes.forms.packed import pack_episode

    base, inside = divided_address(args.address)
    kind = address_kind(base)
    if inside is None and kind in ("episode", "chunk-list"):
        what = "chunked: use `warp join`" if kind == "chunk-list" else "one file already"
        raise ValueError(f"{args.address} is {what}")
    is_here = inside is None and os.path.isdir(base)
    output = args.output or (
        f"{os.path.normpath(base)}.wshard" if is_here else f"{inside or os.path.basename(base)}.wshard"
    )
    check_free(output, overwrite=args.overwrite)
    episode: Episode | str
    if args.raw and inside is not None:
        from warpdata._api import open_recordings

        with naming_errors():
            episode = open_recordings(base, edited=False).open(inside)
    else:
        episode = base if args.raw and is_here else opened_episode(args)
    path = pack_episode(
        episode, output, args.compression, compat=args.compat, raw=args.raw, overwrite=args.overwrite
    )
    console.emit({"output": str(path), "bytes": path.stat().st_size})
    console.print(f"{path}  {path.stat().st_size} bytes")
    return exits.OK
