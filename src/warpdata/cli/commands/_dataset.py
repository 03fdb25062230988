"""What the commands about datasets share: how a dataset is named and opened."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpdata.catalog.access import Access
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table


def add_catalog_argument(parser: argparse.ArgumentParser) -> None:
    """`--catalog`, for commands that read one."""
    parser.add_argument("--catalog", help="folder or address of the catalog (default: WARP_CATALOG)")


def add_dataset_arguments(parser: argparse.ArgumentParser, *, json: bool = True) -> None:
    """The name of a dataset and how to reach it."""
    from warpdata.cli.console import add_json_flag

    parser.add_argument("dataset", help="workspace/name, with @hash or @tag if you like")
    add_catalog_argument(parser)
    parser.add_argument("--mode", choices=("auto", "remote", "hybrid", "local"), help="default: WARP_MODE")
    if json:
        add_json_flag(parser)


def open_named(args: argparse.Namespace, name: str | None = None) -> Dataset:
    """The dataset a command names."""
    from warpdata._api import dataset

    return dataset(name or args.dataset, catalog=args.catalog, mode=getattr(args, "mode", None))


def asked_view(dataset: Dataset, args: argparse.Namespace) -> Table:
    """The rows and columns of a table that `--table`, `--columns` and `--filter` ask for."""
    view = dataset.table(args.table)
    if args.columns is not None:
        view = view.select([name.strip() for name in args.columns.split(",")])
    return view if args.filter is None else view.filter(args.filter)


def open_access(args: argparse.Namespace) -> Access:
    """The catalogs a command names."""
    from warpdata.catalog.access import Access, access_options, catalog_tuple
    from warpdata.settings import Settings

    return Access(access_options(Settings.from_env(), catalogs=catalog_tuple(args.catalog)))


def is_dataset(text: str) -> bool:
    """Whether an argument names a dataset rather than a file that is there."""
    import os

    from warpdata.catalog.names import is_dataset_name

    return is_dataset_name(text) and not os.path.exists(text)
