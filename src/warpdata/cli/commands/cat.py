"""`warp cat`: one raw file of a dataset on standard output."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp cat`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("--artifact", required=True)
    parser.add_argument("--ref", help="name of the member; without it the members are listed")
    parser.add_argument("--prefix", default="", help="list only members whose name begins like this")


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the bytes of a member, or the names of members."""
    from warpdata.cli.commands._dataset import open_named

    with open_named(args) as dataset:
        if args.ref is not None:
            sys.stdout.buffer.write(dataset.ref(args.artifact, args.ref).read_bytes())
            sys.stdout.buffer.flush()
            return exits.OK
        names = list(dataset.artifact(args.artifact).members(args.prefix))
    console.emit(names)
    console.print("\n".join(names))
    return exits.OK
