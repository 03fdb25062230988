"""`warp warm`: bring data into the cache before it is needed."""

from __future__ import annotations

import argparse
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp warm`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("--tables", help="names separated by commas (default: everything)")
    parser.add_argument("--artifacts", help="names separated by commas")
    parser.add_argument("--shards", help="first:last, such as 0:50")
    parser.add_argument("--max-bytes", help="stop before more than this is fetched, such as 200GB")


def run(args: argparse.Namespace, console: Console) -> int:
    """Fetch shards and say how much came."""
    from warpdata.cli.commands._dataset import open_named
    from warpdata.cli.console import human_bytes

    with open_named(args) as dataset, console.progress("warming") as progress:
        report = dataset.warm(
            _names(args.tables),
            artifacts=_names(args.artifacts),
            shards=_slice(args.shards),
            max_bytes=args.max_bytes,
            progress=progress,
        )
    console.emit(asdict(report))
    console.print(f"{report.shards} blobs are here, {human_bytes(report.bytes_fetched)} were fetched")
    if report.shards_skipped:
        console.print(f"{report.shards_skipped} were left out: --max-bytes would have been exceeded")
    return exits.OK


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _slice(text: str | None) -> slice | None:
    if text is None:
        return None
    found = re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", text)
    if found is None:
        raise ValueError(f"--shards is {text!r}; write first:last")
    return slice(*(None if each is None else int(each) for each in found.groups()))
