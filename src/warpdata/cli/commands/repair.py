"""`warp repair`: replace damaged and missing blobs of a published version."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp repair`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    parser.add_argument("dataset", help="workspace/name, with @hash or @tag if you like")
    add_catalog_argument(parser)
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], metavar="CATALOG", help="a catalog with a copy"
    )
    parser.add_argument(
        "--files", nargs="+", default=[], metavar="PATH", help="files or folders the dataset was made from"
    )
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Read every blob, replace the bad ones; exit code 3 if some are lost."""
    from warpdata.catalog.access import Access, access_options, catalog_tuple
    from warpdata.catalog.manage.mending import mend_version
    from warpdata.catalog.names import parse_name
    from warpdata.cli.commands._dataset import open_access
    from warpdata.settings import Settings

    access = open_access(args)
    settings = Settings.from_env()
    sources = [
        Access(access_options(settings, catalogs=catalog_tuple(one), mode="remote")) for one in args.sources
    ]
    try:
        with console.progress("reading") as progress:
            done = mend_version(
                access, parse_name(args.dataset), sources=sources, files=args.files, progress=progress
            )
    finally:
        for one in [access, *sources]:
            one.close()
    console.emit(asdict(done))
    console.print(f"{done.dataset_id}@{done.version}: {done.blobs} blobs, {len(done.replaced)} replaced")
    if done.is_manifest_replaced:
        console.print("the manifest was damaged and is replaced")
    for sha256 in done.lost:
        console.print(f"{console.paint('lost', 'red')}: {sha256}")
    if done.lost:
        console.print("  name a catalog with a copy (--from) or the files it was made from (--files)")
    return exits.DAMAGED if done.lost else exits.OK
