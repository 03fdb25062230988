"""`warp unpack`: spread an episode over several files."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli.commands import chunk

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "spread a .wshard over several files: chunks of N steps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp unpack`."""
    chunk.add_arguments(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Unpack a shard into chunks."""
    return chunk.run(args, console)
