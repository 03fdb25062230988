"""`warp unpack`: a packed episode as a directory again; the way back from `warp pack`."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, opened_episode
from warpdata.cli.console import add_json_flag, add_output, add_overwrite, check_free

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp unpack`."""
    add_address(parser, "a packed episode", inside=False)
    add_output(parser, "the folder to write; default: FILE without its suffix, or ID here")
    add_overwrite(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Unpack one packed recording."""
    from warpdata._api import divided_address
    from warpdata.episodes.forms.packed import PackedSource, unpack_episode
    from warpdata.timeline.source import innermost

    source = innermost(opened_episode(args).source)
    if not isinstance(source, PackedSource):
        raise ValueError(
            f"{args.address} is no packed recording; `warp chunk` cuts shards by step, `warp join` joins chunks"
        )
    base, inside = divided_address(args.address)
    output = args.output or inside or os.path.basename(base).removesuffix(".wshard")
    if args.output is None and inside is None and "://" not in base:
        output = base.removesuffix(".wshard")
    check_free(output, overwrite=args.overwrite)
    target = unpack_episode(source.shard, output, overwrite=args.overwrite)
    console.emit({"output": str(target)})
    console.print(str(target))
    return exits.OK
