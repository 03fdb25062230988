"""`warp cat`: one raw file of a dataset on standard output."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warpdata.catalog.dataset import Dataset
    from warpdata.cli.console import Console

_PIECE_BYTES = 8 << 20


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
            for piece in _pieces(dataset, args.artifact, args.ref):
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return exits.OK
        names = list(dataset.artifact(args.artifact).members(args.prefix))
    console.emit(names)
    console.print("\n".join(names))
    return exits.OK


def _pieces(dataset: Dataset, artifact: str, name: str) -> Iterator[bytes | memoryview]:
    """The bytes of a member; of a vector file, which may be large and lie in parts, some at a time."""
    from warpdata.formats.manifest.model import VECTOR_KIND

    if artifact not in dataset.artifacts or dataset.artifact(artifact).kind != VECTOR_KIND:
        yield dataset.ref(artifact, name).read_bytes()
        return
    reader = dataset.artifact(artifact).member_reader(name)
    for start in range(0, reader.size, _PIECE_BYTES):
        yield reader.read(start, min(start + _PIECE_BYTES, reader.size))
