"""`warp list-remote`: the datasets of a catalog."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpdata.catalog.access import Catalog
    from warpdata.cli.console import Console
    from warpdata.errors import DatasetNotFoundError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp list-remote`."""
    from warpdata.cli.commands._dataset import add_catalog_argument
    from warpdata.cli.console import add_json_flag

    parser.add_argument("workspace", nargs="?", default="", help="workspace/ (default: all)")
    add_catalog_argument(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print names and latest versions; only pointers are read."""
    from warpdata.catalog.manage.history import list_datasets
    from warpdata.cli.commands._dataset import open_access

    access = open_access(args)
    try:
        catalogs = _published(access.catalogs)
        found = [(c.address, one) for c in catalogs for one in list_datasets(c, args.workspace)]
        if args.workspace and not found:
            raise _no_workspace(args.workspace.strip("/"), catalogs)
    finally:
        access.close()
    console.emit([asdict(one) | {"catalog": address} for address, one in found])
    rows = [[one.dataset_id, one.version[:12], str(one.sequence), address] for address, one in found]
    console.print_table(rows, ["dataset", "latest", "moves", "catalog"], right=[2])
    return exits.OK


def _published(catalogs: Sequence[Catalog]) -> Sequence[Catalog]:
    """Those of several that something was published to: one that is still empty does not hide the others."""
    from warpdata.catalog.publish.dataset_list import is_empty
    from warpdata.errors import StoreError

    found = []
    for each in catalogs:
        try:
            is_none = each.store is not None and is_empty(each.store)
        except StoreError:  # one that cannot be listed; whoever goes on with it says what else is wrong
            is_none = False
        found += [] if is_none else [each]
    return found or catalogs


def _no_workspace(name: str, catalogs: Sequence[Catalog]) -> DatasetNotFoundError:
    from warpdata.catalog.manage.history import list_datasets
    from warpdata.errors import DatasetNotFoundError, nearest

    names = {one.dataset_id.partition("/")[0] for each in catalogs for one in list_datasets(each)}
    hint = f"There are: {', '.join(sorted(names)) or 'none'}.{nearest(name, names)}"
    return DatasetNotFoundError(f"no workspace {name!r}", hint=hint)
