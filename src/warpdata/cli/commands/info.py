"""`warp info`: what a dataset is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp info`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one dataset version."""
    from warpdata.catalog.dataset import describe
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.console import human_bytes

    with open_named(args) as dataset:
        found = describe(dataset)
    console.emit(found)
    console.print(console.paint(f"{found['dataset_id']}@{found['version']}", "bold"))
    if found["is_remembered"]:
        console.print("offline: the latest version as it was seen last")
    console.print(f"catalog   {found['catalog']}")
    console.print(f"created   {found['created_at']}")
    console.print(f"rows      {found['total_rows']}")
    console.print(f"size      {human_bytes(found['total_bytes'])}")
    console.print(f"tables    {', '.join(found['tables']) or '-'}")
    console.print(f"artifacts {', '.join(found['artifacts']) or '-'}")
    if signed := found["signature"]:
        console.print(f"signed    {signed['covers']}, by {signed['public_key']}")
    for key, value in found["metadata"].items():
        if key == "edits" and isinstance(value, dict):
            value = f"{sum(map(len, value.values()))}, listed by `warp inspect {found['dataset_id']}`"
        console.print(f"{key:<9} {value}")
    return exits.OK
