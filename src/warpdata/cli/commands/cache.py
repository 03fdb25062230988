"""`warp cache`: what is kept of remote data on this disk."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp cache`."""
    from warpdata.cli.console import add_json_flag

    parser.add_argument("action", choices=("stats", "gc", "clear"))
    parser.add_argument(
        "address", nargs="?", help="clear: the URL of a file, or a dataset; everything by default"
    )
    limit = "gc: how much may stay, such as 500GB or 200MB; a bare number is GB (default WARP_CACHE_SIZE_GB)"
    parser.add_argument("--limit", metavar="GB", help=limit)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show, shrink or clear the cache."""
    import os

    from warpdata.catalog.names import parse_size
    from warpdata.cli.console import human_bytes
    from warpdata.settings import Settings
    from warpdata.stores.cache.page_cache import PageCache

    settings = Settings.from_env()
    cache = PageCache(os.path.expanduser(settings.cache_dir), settings.cache_bytes)
    freed = None
    if args.action == "gc":
        freed = cache.gc(None if args.limit is None else parse_size(_in_gigabytes(args.limit)))
    if args.action == "clear":
        freed = cache.remove(None if args.address is None else _cache_names(args.address))
    elif args.address is not None:
        raise ValueError(f"`warp cache {args.action}` takes no address")
    stats = cache.stats()
    cache.close()
    console.emit(asdict(stats) | ({} if freed is None else {"freed_bytes": freed}))
    if freed is not None:
        console.print(f"freed {human_bytes(freed)}")
    console.print(f"folder  {stats.folder}")
    console.print(f"used    {human_bytes(stats.used_bytes)} of {human_bytes(stats.limit_bytes)}")
    console.print(f"blobs   {stats.blobs}, of which {stats.whole_blobs} are whole and checked")
    console.print(f"files   {stats.files}")
    return exits.OK


def _cache_names(address: str) -> set[str]:
    """The names in the cache of the file at a URL, or of every blob of a dataset."""
    import warpdata as wd
    from warpdata import _api

    if "://" not in address:
        with wd.dataset(address) as dataset:
            return set(dataset.manifest.blobs())
    folder, _, name = address.rpartition("/")
    file = _api.store_folder(folder).file(name)
    return {file.address.cache_name} if file.address.cache_name else set()


def _in_gigabytes(text: str) -> str:
    """A bare number with its unit."""
    return f"{text}GB" if text.strip().replace(".", "", 1).isdigit() else text
