"""`warp copy`: versions from one catalog to another."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp copy`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    parser.add_argument("dataset", help="workspace/name, with @hash or @tag if you like")
    parser.add_argument("--to", required=True, metavar="CATALOG", help="the catalog to copy to")
    add_catalog_argument(parser)
    parser.add_argument("--all", action="store_true", help="every version, oldest first")
    parser.add_argument("--tags", action=argparse.BooleanOptionalAction, default=True, help="copy tags too")
    latest = "move latest there (default: unless a version is named)"
    parser.add_argument("--set-latest", action=argparse.BooleanOptionalAction, default=None, help=latest)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Copy what is missing there and say how much it was."""
    from warpdata.catalog.access import Access, access_options, catalog_tuple
    from warpdata.catalog.manage.copying import copy_dataset
    from warpdata.catalog.names import parse_name
    from warpdata.cli.console import human_bytes
    from warpdata.settings import Settings

    settings = Settings.from_env()
    source, target = (
        Access(access_options(settings, catalogs=catalog_tuple(place), mode="remote"))
        for place in (args.catalog, args.to)
    )
    try:
        with console.progress("copying") as progress:
            done = copy_dataset(
                source,
                target,
                parse_name(args.dataset),
                all_versions=args.all,
                set_latest=args.set_latest,
                tags=args.tags,
                progress=progress,
            )
    finally:
        source.close()
        target.close()
    console.emit(asdict(done))
    for version in done.versions:
        console.print(f"{done.dataset_id}@{version}")
    console.print(f"{done.blobs_sent} blobs copied ({human_bytes(done.bytes_sent)}) to {done.target}")
    return exits.OK
