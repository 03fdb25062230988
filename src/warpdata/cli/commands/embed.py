"""`warp embed`: vectors of moments of episodes, to be searched."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.arguments import FORMS, add_catalog_argument, add_runner, naming_errors, ray_of
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_SHOWN = 3
"""Episodes without vectors that are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp embed`."""
    parser.add_argument("address", metavar="ADDRESS", help=f"episodes: {FORMS}")
    parser.add_argument(
        "embedder", nargs="?", default="state", metavar="EMBEDDER",
        help="right behind ADDRESS: state (every number that is no picture; the default), pixels (cameras), or "
        "MODULE:FUNCTION of your own, which is called with an observation and gives a vector",
    )  # fmt: skip
    parser.add_argument("--name", help="what to call the vectors (default: the embedder)")
    parser.add_argument(
        "--per", choices=("episode", "step", "window", "frame"), default="step", help="what gets a vector (step)"
    )  # fmt: skip
    parser.add_argument("--rate", type=float, metavar="HZ", help="steps, or frames, at this rate")
    parser.add_argument("--clock", metavar="SIGNAL", help="the records of this signal are the steps")
    parser.add_argument(
        "--max-steps", type=int, metavar="N",
        help="at most so many steps of an episode, spread evenly; 0 for all (256; all with --rate or --clock)",
    )  # fmt: skip
    parser.add_argument("--window", type=int, default=32, metavar="N", help="steps of a window (32)")
    parser.add_argument("--stride", type=int, default=16, metavar="N", help="steps between windows (16)")
    parser.add_argument(
        "--signal",
        action="append",
        metavar="NAME",
        help="look only at this signal or camera (may be repeated)",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="call the function with arrays of N moments by channel at once",
    )
    parser.add_argument("--where", metavar="SQL", help="only episodes whose facts satisfy this")
    parser.add_argument("--metric", choices=("cosine", "l2", "ip"), help="how vectors are compared")
    parser.add_argument(
        "--revision",
        metavar="WORD",
        help="changes when the vectors do (default: a hash of the function's code)",
    )
    parser.add_argument("--output", metavar="FILE.rvf", help="write the vectors into this file")
    parser.add_argument("--overwrite", action="store_true", help="replace other vectors of that name")
    parser.add_argument(
        "--index", choices=("auto", "none", "hnsw", "ivf", "flat"), default="auto",
        help="the index over the vectors (auto: a graph from 20,000 of them on)",
    )  # fmt: skip
    add_catalog_argument(parser)
    parser.add_argument("--message", default="", help="of the version, where one is published")
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--sign", metavar="KEY.pem", help="put an Ed25519 signature beside the manifest")
    add_runner(parser, "compute vectors")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Compute what is missing or changed, and keep it."""
    from warpdata._api.embedding import embed
    from warpdata.cli.arguments import function_of

    embedder = function_of(args.embedder) if ":" in args.embedder else args.embedder
    with console.progress("embedding") as progress, naming_errors():
        made = embed(
            args.address, embedder, name=args.name, per=args.per, rate_hz=args.rate, clock=args.clock,
            max_steps=args.max_steps, window=args.window, stride=args.stride, signals=args.signal,
            batch_size=args.batch_size, revision=args.revision, metric=args.metric, where=args.where,
            output=args.output,
            overwrite=args.overwrite, index=args.index, catalog=args.catalog, jobs=args.jobs, ray=ray_of(args),
            message=args.message, tags=args.tag, sign_key=args.sign, progress=progress,
        )  # fmt: skip
    console.emit(asdict(made))
    console.print(str(made) + (f", version {made.version[:12]}" if made.version else ""))
    console.print(
        f"{made.computed} episodes embedded, {made.resumed} were before it was stopped, {made.reused} had not changed"
    )
    for episode, why in list(made.without.items())[:_SHOWN]:
        console.print(f"{episode} has no vectors: {why}")
    if len(made.without) > _SHOWN:
        console.print(f"{len(made.without) - _SHOWN} more have none")
    return exits.OK
