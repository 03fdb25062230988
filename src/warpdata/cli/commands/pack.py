"""`warp pack`: one file out of an episode that is spread over several."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli.commands import join

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "write an episode that is spread over several files as one .wshard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp pack`."""
    join.add_arguments(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Pack a chunked episode."""
    return join.run(args, console)
