"""`warp lane`: compute predictions over the episodes of a dataset and publish them beside it."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "compute predictions over the episodes of a dataset and publish them as a lane of a new version"


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


def run(args: argparse.Namespace, console: Console) -> int:
    """Compute what is missing or stale, and publish it."""
    from warpdata.cli.commands._dataset import open_named

    function = _function(args.function)
    with open_named(args) as dataset, console.progress(f"computing {args.name}") as progress:
        made = dataset.add_lane(
            args.name, function, of=args.of, revision=args.revision, message=args.message, tags=args.tag,
            sign_key=args.sign,
            progress=progress,
        )  # fmt: skip
    console.emit({**asdict(made), "version": made.version})
    console.print(str(made))
    console.print(
        f"{made.computed} episodes computed, {made.resumed} were computed before it was stopped, "
        f"{made.reused} had not changed" + (f", {len(made.without)} lack the signal" if made.without else "")
    )
    return exits.OK


def _function(address: str) -> Callable[[Any], Any]:
    """A function by `module:name`; modules of the current folder are found too."""
    from warpdata.errors import nearest

    module_name, colon, name = address.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{address!r} is not MODULE:FUNCTION, such as my_model:predict")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ValueError(f"there is no module {module_name!r} here or among what is installed") from None
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{module_name} has no {name!r}.{nearest(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"{address} is a {type(found).__name__}, no function")
    return found  # type: ignore[no-any-return]
