"""`warp tag`: names for versions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp tag`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("tag", nargs="?", help="the tag to set on this version; without it tags are listed")
    parser.add_argument("--delete", action="store_true", help="remove the tag; the version stays")


def run(args: argparse.Namespace, console: Console) -> int:
    """List, set or delete tags."""
    from warpdata.catalog.manage.history import delete_tag, list_tags, set_tag
    from warpdata.catalog.names import parse_name
    from warpdata.cli.commands._dataset import open_access

    access = open_access(args)
    name = parse_name(args.dataset)
    try:
        if args.tag is not None and args.delete:
            delete_tag(access.catalogs[0], name, args.tag)
        elif args.tag is not None:
            set_tag(access, access.catalogs[0], name, args.tag)
        tags = list_tags(access.catalogs[0], name)
    finally:
        access.close()
    console.emit(tags)
    for tag, version in tags.items():
        console.print(f"{tag}  {version[:12]}")
    return exits.OK
