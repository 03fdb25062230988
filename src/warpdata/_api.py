"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from warpdata.bytekit.ranges import RangeReader
    from warpdata.catalog.dataset import Dataset
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.formats.wshard.episode import WShardEpisode
    from warpdata.search.store import VectorStore
    from warpdata.stores.meter import Listener
    from warpdata.timeline.episode import Episode

DIRECTORY_BLOCK = "meta/directory"
"""Only a packed episode directory has this block; looking for its name needs no parquet library."""


def open_episode(source: str | os.PathLike[str] | RangeReader | ChunkList) -> Episode:
    """Open an episode in time: a directory, a shard (also by URL) or a chunk list; reads lazily."""
    from warpdata.episodes.shard_episode import ShardEpisode
    from warpdata.formats.wshard.chunks import ChunkList, read_chunk_list
    from warpdata.formats.wshard.layout import ROLE_CHUNK_LIST
    from warpdata.formats.wshard.load import load_wshard
    from warpdata.formats.wshard.reader import ShardReader

    if isinstance(source, ChunkList):
        return ShardEpisode.of_chunks(source)
    if isinstance(source, str | os.PathLike) and os.path.isdir(source):
        from warpdata.episodes.disk_episode import DiskEpisode

        return DiskEpisode(source)
    shard = ShardReader.open(_remote_bytes(source))
    if shard.role == ROLE_CHUNK_LIST:
        return ShardEpisode.of_chunks(read_chunk_list(shard))
    if DIRECTORY_BLOCK in shard:
        from warpdata.episodes.packed import PackedEpisode

        return PackedEpisode(shard)
    return ShardEpisode(load_wshard(shard))


def _remote_bytes(source: str | os.PathLike[str] | RangeReader) -> str | os.PathLike[str] | RangeReader:
    """Ranges of the object a URL names; anything else as it is."""
    if not isinstance(source, str) or "://" not in source:
        return source
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.address import open_store
    from warpdata.stores.blobs import LoneBlobReader
    from warpdata.stores.meter import Meter
    from warpdata.stores.reliable import ReliableStore

    folder, key, query = _split_url(source)
    options = access_options(Settings.from_env()).store
    store = ReliableStore(open_store(folder + query, options), Meter())
    try:
        return LoneBlobReader(store, key, source)
    except BaseException:
        store.close()
        raise


def _split_url(url: str) -> tuple[str, str, str]:
    """The folder of an object, its name, and the settings behind the question mark."""
    import urllib.parse

    parts = urllib.parse.urlsplit(url)
    place, _, query = url.partition("?") if parts.scheme in ("s3", "gs", "az") else (url, "", "")
    folder, _, key = place.rpartition("/")
    return folder, key, f"?{query}" if query else ""


def load_wshard(
    source: str | os.PathLike[str] | RangeReader,
    channels: Collection[str] | None = None,
    *,
    verify: bool = True,
) -> WShardEpisode:
    """Open an episode by step, from a path, a URL or a RangeReader; lazy, zero-copy for raw blocks on this machine.

    `channels` keeps only these ids or block names; `verify=False` trusts the bytes of raw blocks.
    """
    from warpdata.formats.wshard.load import load_wshard as load

    return load(_remote_bytes(source), channels, verify=verify)


def open_vectors(
    source: str | os.PathLike[str] | RangeReader, mode: str = "r", *, durable: bool = True
) -> VectorStore:
    """Open a vector store: a path, for reading also a URL or a RangeReader; `stats()` counts its requests."""
    from warpdata.search.store import VectorStore

    if mode != "r":
        return VectorStore.open(source, mode, durable=durable)
    return VectorStore.open(_remote_bytes(source))


def dataset(
    name: str,
    *,
    mode: str | None = None,
    catalog: str | os.PathLike[str] | Sequence[str] | None = None,
    max_bytes: str | int | None = None,
    max_requests: int | None = None,
    listener: Listener | None = None,
    **options: Any,
) -> Dataset:
    """Open a published dataset by name: `workspace/name`, `@hash` or `@tag` if you like; reads no data."""
    from warpdata.catalog.access import access_options, catalog_tuple
    from warpdata.catalog.dataset import budget_of, open_dataset
    from warpdata.catalog.names import parse_name
    from warpdata.settings import Settings

    budget = budget_of(max_bytes, max_requests)
    access = access_options(
        Settings.from_env(), mode=mode, catalogs=catalog_tuple(catalog), budget=budget, **options
    )
    return open_dataset(parse_name(name), access, table_streams(), listener)


def table_streams() -> Any:
    """How tables are streamed: what the loading room gives to datasets."""
    from warpdata.catalog.dataset import Streams
    from warpdata.loading.stream import TableStream, plan_read
    from warpdata.loading.torch import torch_dataset

    return Streams(batches=TableStream, torch=torch_dataset, plan=plan_read)


def load(name: str, table: str = "main", *, limit: int | None = None, **options: Any) -> Any:
    """A table as a pandas frame in one line; large tables are refused, stream those."""
    view = dataset(name, **options).table(table)
    return view.pandas() if limit is None else view.head(limit).to_pandas()
