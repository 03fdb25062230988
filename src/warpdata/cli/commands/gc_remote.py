"""`warp gc-remote`: blobs of a catalog that no version uses."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp gc-remote`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    add_catalog_argument(parser)
    add_json_flag(parser)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only list (the default)")
    choice.add_argument("--delete", action="store_true", help="delete blobs older than the grace period")
    parser.add_argument("--grace-hours", type=float, default=168.0, help="younger blobs stay (default 168)")


def run(args: argparse.Namespace, console: Console) -> int:
    """List or delete unused blobs."""
    from warpdata.catalog.manage.remotegc import collect
    from warpdata.cli.commands._dataset import open_access
    from warpdata.cli.console import human_bytes

    if not 0 <= args.grace_hours < math.inf:
        raise ValueError(f"--grace-hours is a number from 0, not {args.grace_hours}")
    access = open_access(args)
    try:
        found = collect(access.catalogs[0], delete=args.delete, grace_s=args.grace_hours * 3600)
    finally:
        access.close()
    console.emit(asdict(found))
    for key in found.blobs:
        console.print(key)
    verb = "deleted" if found.is_deleted else "unused"
    console.print(
        f"{len(found.blobs)} blobs {verb} ({human_bytes(found.bytes)}) beside {found.versions} versions"
    )
    if found.leftovers:
        console.print(f"{len(found.leftovers)} cards and signatures of deleted versions {verb}")
    if found.young_blobs:
        console.print(f"{found.young_blobs} unused blobs are younger than the grace period")
    return exits.OK
