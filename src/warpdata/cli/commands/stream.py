"""`warp stream`: batches of a table on standard output."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_args

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp stream`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments
    from warpdata.ordering.tail import Tail

    add_dataset_arguments(parser, json=False)
    parser.add_argument("--table", default="main")
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--columns", help="names separated by commas")
    parser.add_argument("--filter", help="a SQL condition")
    parser.add_argument("--rank", type=int, help="give the share of this rank, counted from 0")
    parser.add_argument("--world", type=int, help="how many ranks there are")
    parser.add_argument("--shard", help="rank/world such as 0/8, or auto: RANK and WORLD_SIZE say it")
    parser.add_argument(
        "--tail", choices=get_args(Tail), default="short", help="what becomes of a short last batch"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--format", choices=("arrow", "ndjson", "parquet"), default="arrow")
    parser.add_argument(
        "--json", action="store_const", dest="format", const="ndjson", help="same as --format ndjson"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Write the rows; the first ones leave as soon as they are read."""
    from warpdata.catalog.read.arrowout import write_batches
    from warpdata.cli.commands._dataset import asked_view, open_named

    console.as_json = False
    with open_named(args) as dataset:
        view = asked_view(dataset, args)
        batches = view.batches(
            args.batch_size, shard=_shard(args.shard), limit=args.limit,
            rank=args.rank, world=args.world, tail=args.tail,
        )  # fmt: skip
        write_batches(_watched(batches, args.table), view.schema(), args.format, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return exits.OK


def _watched(batches: Iterable[Any], label: str) -> Iterator[Any]:
    """The batches, with a line about their pace on a terminal."""
    import time

    from warpdata.loading.pace import PaceLine

    with contextlib.closing(PaceLine(label, "rows", "reader")) as line:
        each = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(each, None)
            if batch is None:
                return
            line.add(batch.num_rows, batch.nbytes, time.perf_counter() - began)
            yield batch


def _shard(text: str | None) -> tuple[int, int] | str | None:
    if text is None or text == "auto":
        return text
    rank, _, world = text.partition("/")
    if not rank.isdigit() or not world.isdigit():
        raise ValueError(f"--shard is {text!r}; write auto or rank/world")
    return int(rank), int(world)
