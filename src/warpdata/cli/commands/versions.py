"""`warp versions`: list, delete and expire the versions of a dataset."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.catalog.manage.expiry import Expired
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp versions`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments
    from warpdata.cli.commands.log import add_limit

    parser.add_argument("action", choices=("list", "delete", "expire"))
    add_dataset_arguments(parser)
    parser.add_argument("versions", nargs="*", metavar="HASH", help="delete: which, by their first 8 digits")
    add_limit(parser)
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="expire: the newest N stay")
    age = "expire: only those older than this, such as 30d or 12h"
    parser.add_argument("--older-than", default="0s", metavar="AGE", help=age)
    parser.add_argument(
        "--delete", action="store_true", help="expire: delete them (otherwise they are only listed)"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """List, delete or expire; what latest or a tag points at always stays."""
    if args.action == "list":
        from warpdata.cli.commands import log

        return log.run(args, console)
    found = _removed(args)
    console.emit(asdict(found))
    for version in found.versions:
        console.print(f"{found.dataset_id}@{version}")
    verb = "deleted" if found.is_deleted else "would be deleted (add --delete)"
    console.print(f"{len(found.versions)} versions {verb}, {found.kept} stay")
    if found.is_deleted and found.versions:
        console.print("their blobs are reclaimed by `warp gc-remote --delete`")
    return exits.OK


def _removed(args: argparse.Namespace) -> Expired:
    from warpdata.catalog.manage.expiry import delete_versions, expire_versions
    from warpdata.catalog.names import parse_duration, parse_name
    from warpdata.cli.commands._dataset import open_access

    name = parse_name(args.dataset)
    if str(name) != name.dataset_id and (args.action == "expire" or args.versions):
        raise ValueError(f"name the dataset without a version ({name.dataset_id}), not {name}")
    access = open_access(args)
    try:
        if args.action == "delete":
            chosen = args.versions or ([name.hash_prefix] if name.hash_prefix else [])
            if not chosen:
                raise ValueError("say which versions to delete, by the beginnings of their hashes")
            return delete_versions(access, name, [one.removeprefix("@") for one in chosen])
        if args.versions or not (args.keep or args.older_than != "0s"):
            raise ValueError("say what expires: --keep N from 1 on, --older-than AGE, or both")
        older_than_s = parse_duration(args.older_than)
        return expire_versions(
            access, name, keep_last=args.keep, older_than_s=older_than_s, delete=args.delete
        )
    finally:
        access.close()
