"""`warp lane`: compute predictions over the episodes of a dataset and publish them beside it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._runner import add_runner, ray_of

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp lane`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="what to call the lane: the model")
    text = (
        "what computes it: called with an episode, gives an array with a row per record of what it predicts"
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION", help=text)
    parser.add_argument(
        "--of",
        action="append",
        required=True,
        metavar="SIGNAL",
        help="what it predicts; several are given one by one",
    )
    parser.add_argument(
        "--revision",
        metavar="WORD",
        help="changes when the predictions do (default: a hash of the function's code)",
    )
    parser.add_argument("--message", default="")
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--sign", metavar="KEY.pem", help="put an Ed25519 signature beside the manifest")
    add_runner(parser, "compute predictions")


def run(args: argparse.Namespace, console: Console) -> int:
    """Compute what is missing or stale, and publish it."""
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.commands._function import function_of

    function = function_of(args.function)
    with open_named(args) as dataset, console.progress(f"computing {args.name}") as progress:
        made = dataset.add_lane(
            args.name, function, of=args.of, revision=args.revision, message=args.message, tags=args.tag,
            sign_key=args.sign, jobs=args.jobs, ray=ray_of(args), progress=progress,
        )  # fmt: skip
    console.emit({**asdict(made), "version": made.version})
    console.print(str(made))
    console.print(
        f"{made.computed} episodes computed, {made.resumed} were computed before it was stopped, "
        f"{made.reused} had not changed" + (f", {len(made.without)} lack the signal" if made.without else "")
    )
    return exits.OK
