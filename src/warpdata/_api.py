"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from warpdata.bytekit.ranges import RangeReader
    from warpdata.catalog.dataset import Dataset
    from warpdata.corpora.source import FixedOrderSource
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.formats.wshard.episode import WShardEpisode
    from warpdata.stores.folder import BlobFolder
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
    from warpdata.stores.blobs import BlobAddress, BlobReader
    from warpdata.stores.meter import Meter
    from warpdata.stores.reliable import ReliableStore

    folder, _, key = source.rpartition("/")
    options = access_options(Settings.from_env()).store
    store = ReliableStore(open_store(folder, options), Meter())
    return BlobReader(BlobAddress("", store.head(key).size, key, source), store, None)


def open_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> FixedOrderSource:
    """Open an activation corpus: a folder, shard files in their order, or a URL of either (s3, gs, az, http).

    Options are the fields of SourceOptions, as for `MmapShardSource.open_dir`.
    """
    from warpdata.corpora.source import MmapShardSource
    from warpdata.corpora.store_source import StoreShardSource

    places = [os.fspath(place) for place in ([source] if isinstance(source, str | os.PathLike) else source)]
    if any("://" in place for place in places):
        if len(places) == 1 and not _url_path(places[0]).endswith(".shard"):
            return StoreShardSource.open_folder(_blob_folder(places[0]), **options)
        return StoreShardSource.open([_shard_blob(place) for place in places], **options)
    if len(places) == 1 and not os.path.isfile(places[0]):
        return MmapShardSource.open_dir(places[0], **options)
    return MmapShardSource.open(places, **options)


def _blob_folder(address: str) -> BlobFolder:
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.folder import BlobFolder

    return BlobFolder(address, access_options(Settings.from_env()).store)


def _shard_blob(place: str) -> RangeReader:
    """One shard by URL, or a local one among URLs."""
    path, query = _url_path(place), place[len(_url_path(place)) :]
    folder, _, name = path.rpartition("/")
    return _blob_folder((folder or ".") + query).blob(name)


def _url_path(address: str) -> str:
    return address.partition("?")[0]


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
