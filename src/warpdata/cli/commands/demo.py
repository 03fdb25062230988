"""`warp demo`: the whole way from the sensor to the training step, on this machine, in under two minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp demo`."""
    parser.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="where to; by default warp-demo here, or warp-demo-2, …"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Tell the story; everything it makes stays in the folder."""
    from warpdata.cli.demo_story import tell

    folder = _free() if args.folder is None else Path(args.folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: name a folder that is, or none")
    tell(folder, console)
    return exits.OK


def _free() -> Path:
    number, folder = 1, Path("warp-demo")
    while folder.exists():
        number += 1
        folder = Path(f"warp-demo-{number}")
    return folder
