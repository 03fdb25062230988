"""`warp why`: where the samples of a training step came from."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp why`."""
    parser.add_argument("state", help="a file that loader.save_state() wrote")
    parser.add_argument("step", type=int, help="the step, counted from 0 within its epoch")
    parser.add_argument("--epoch", type=int, help="the epoch (default: the one the state stands in)")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print one line per sample; no values are read."""
    from warpdata._api.state import loader_of_state

    found = loader_of_state(args.state).why(args.step, epoch=args.epoch)
    console.emit([each.to_json() for each in found])
    cells = [
        [str(each.sample_id), each.source or "", _version(each.dataset, each.version), each.episode_id,
         str(each.ts_ns), (each.blob or each.content)[:24]]
        for each in found
    ]  # fmt: skip
    console.print_table(cells, ["sample", "source", "dataset", "episode", "ts_ns", "holds"], right=[0, 4])
    return exits.OK


def _version(dataset: str, version: str | None) -> str:
    return dataset if version is None else f"{dataset}@{version[:12]}"
