"""Wiring only: the verbs of `import warpdata as wd` that join several rooms."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from warpdata.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from warpdata.bytekit.ranges import RangeReader
    from warpdata.catalog.dataset import Dataset
    from warpdata.corpora.source import FixedOrderSource
    from warpdata.episodes.check import Progress, Report
    from warpdata.episodes.check_set import EpisodeSet
    from warpdata.episodes.collection import Episodes
    from warpdata.episodes.local import LocalDataset
    from warpdata.formats.wshard.chunks import ChunkList
    from warpdata.formats.wshard.episode import WShardEpisode
    from warpdata.formats.wshard.reader import Verify
    from warpdata.search.store import VectorStore
    from warpdata.stores.blobstore import BlobStore
    from warpdata.stores.meter import Listener
    from warpdata.timeline.episode import Episode


def open_episode(source: str | os.PathLike[str] | RangeReader | bytes | BinaryIO | ChunkList) -> Episode:
    """Open an episode: a directory, a shard or a chunk list, by path or URL; reads lazily.

    `#id` goes inside a root, a folder of shards or a published dataset: `robot_data#3`, `lab/reacher@v1#3`. A shard
    may also be bytes, a file opened in binary mode or a RangeReader.
    """
    from warpdata.episodes.opening import ChunkList, Episode, ShardReader, ShardSource, episode_of_shard

    if isinstance(source, ChunkList):
        return Episode(ShardSource.of_chunks(source))
    if isinstance(source, str):
        source, inside = divided(source)
        if inside is not None:
            return open_episodes(source).open(inside)
    place, found = _located(source)
    if found is None and place is not None:
        return _directory(place)
    try:
        return episode_of_shard(ShardReader.open(found), place)
    except StoreError:
        if isinstance(found, str) and os.path.isdir(found):
            return _directory(found)
        raise


def open(address: str | os.PathLike[str]) -> Any:  # noqa: A001 - the one door
    """Open whatever is there: an Episode, Episodes, a Dataset, a corpus or a vector store.

    An address is a path, a URL, or `workspace/name[@version]` of a published dataset; `#id` goes to one episode inside.
    """
    text = os.fspath(address)
    base, inside = divided(text)
    if inside is not None:
        return open_episode(text)
    if _is_published(base):
        return dataset(base)
    if "://" in base or os.path.isdir(base):
        return _open_folder(base)
    from warpdata.catalog.filekinds import file_kind

    kind = file_kind(base)
    if kind == "vectors":
        return open_vectors(base)
    return open_corpus(base) if kind == "rows" else open_episode(base)


def _open_folder(base: str) -> Any:
    from warpdata.episodes.check_shards import shards_in
    from warpdata.errors import FormatError

    if not _is_root(base):
        return open_episode(base)
    folder = _folder(base)
    is_remote = not isinstance(folder, str | os.PathLike)
    if not is_remote and not shards_in(folder) and not open_recordings(folder).recorded:
        try:
            return open_corpus(base)
        except FormatError:
            pass  # an empty root, then
    return open_episodes(base)


def open_episodes(address: str | os.PathLike[str]) -> Episodes:
    """The episodes of a root of recordings, a folder of shards, or a published dataset, by path, URL or name."""
    from warpdata.episodes.check_shards import shards_in
    from warpdata.episodes.shard_folder import ShardFolderSource

    text = os.fspath(address)
    if _is_published(text):
        return dataset(text).episodes
    shards = shards_in(_folder(text))
    if not shards:
        return open_recordings(text)
    from warpdata.episodes.collection import Episodes

    return Episodes(ShardFolderSource(text, shards))


def divided(address: str) -> tuple[str, str | None]:
    """An address and the episode it names inside, unless something has that whole name."""
    base, mark, inside = address.rpartition("#")
    if not mark or not inside or ("://" not in address and os.path.lexists(address)):
        return address, None
    return base, inside


def _is_published(address: str) -> bool:
    """Whether an address names a published dataset and nothing on this disk."""
    from warpdata.catalog.names import is_dataset_name

    return "://" not in address and not os.path.lexists(address) and is_dataset_name(address)


def _directory(folder: Any) -> Episode:
    from warpdata.episodes.disk_episode import DiskEpisode

    return DiskEpisode(folder)


def open_recordings(root: str | os.PathLike[str], **options: Any) -> LocalDataset:
    """The episodes of a root of recordings, by path, or by URL of a store that can list (s3, gs, az, file).

    Options are those of `LocalDataset`.
    """
    from warpdata.episodes.local import LocalDataset

    return LocalDataset(_folder(root), **options)


def _folder(source: str | os.PathLike[str]) -> Any:
    """A folder on this machine by path or file://, a folder of a store by URL."""
    import urllib.parse

    from warpdata.stores.folder import StoreFolder

    if not isinstance(source, str) or "://" not in source:
        return source
    parts = urllib.parse.urlsplit(source)
    return urllib.parse.unquote(parts.path) if parts.scheme == "file" else StoreFolder(source, connect)


def check_dataset(
    source: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    deep: bool = False,
    mute: Collection[str] = (),
) -> Report:
    """Look for what is wrong with a root of recordings, or with one episode of any form, by path or URL.

    `deep` also decodes every frame; the rules in `mute` say nothing.
    """
    from warpdata.episodes.check import Report, check_root, check_rules, merged, new_set, set_findings
    from warpdata.episodes.check_shards import shards_in

    check_rules(mute)
    if not _is_root(source):
        return _check_one(source, deep=deep).without(mute)
    shards = shards_in(_folder(source))
    if not shards:
        return check_root(open_recordings(source, edited=False), progress=progress, deep=deep).without(mute)
    beside = new_set()
    reports = [_check_one(shard, deep=deep, beside=beside) for shard in shards]
    return merged([*reports, Report(0, set_findings(beside))]).without(mute)


def _check_one(source: str | os.PathLike[str], *, deep: bool, beside: EpisodeSet | None = None) -> Report:
    from warpdata.episodes.check import Report, check_opened
    from warpdata.episodes.check_shards import damaged_blocks

    name = os.path.basename(os.fspath(source).partition("?")[0].rstrip("/"))
    findings = list(check_opened(lambda: open_episode(source), name, deep=deep, beside=beside))
    report = Report(1, findings)
    return report if report.is_damaged else Report(1, [*findings, *damaged_blocks(_located(source)[1], name)])


def _is_root(source: str | os.PathLike[str]) -> bool:
    """Whether a path or URL names a root of recordings rather than an episode."""
    from pathlib import Path

    from warpdata.episodes.check import is_directory
    from warpdata.errors import BlobNotFoundError

    place = _folder(source)
    if isinstance(place, str | os.PathLike):
        return os.path.isdir(place) and not is_directory(Path(place))
    try:
        _located(source)
    except BlobNotFoundError as missing:
        try:
            return bool(place.names())
        except StoreError as cannot_list:
            missing.hint = f"Give the URL of one episode: {cannot_list.message}."
            raise missing from None
    return False


def _located(source: object) -> tuple[Any, Any]:
    """The folder a URL lies in and the bytes of its file; without bytes, the folder of an episode directory."""
    if isinstance(source, str | os.PathLike) and "://" not in (path := os.fspath(source)):
        return None, os.path.abspath(path)  # the process may go elsewhere before everything is read
    if not isinstance(source, str):
        return None, source
    import urllib.parse

    from warpdata.errors import BlobNotFoundError
    from warpdata.stores.folder import StoreFolder

    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "file":
        return None, urllib.parse.unquote(parts.path)
    above, _, name = parts.path.rstrip("/").rpartition("/")
    folder = StoreFolder(urllib.parse.urlunsplit(parts._replace(path=above)), connect)
    try:
        return folder, folder.open(name)
    except BlobNotFoundError:
        below = folder.below(name)
        if any(below.exists(mark) for mark in ("meta.json", "static.json")):
            return below, None
        raise


def connect(address: str) -> BlobStore:
    """The store at an address as the environment says it is reached."""
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.address import open_store
    from warpdata.stores.meter import Meter
    from warpdata.stores.reliable import ReliableStore

    return ReliableStore(open_store(address, access_options(Settings.from_env()).store), Meter())


def open_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> FixedOrderSource:
    """Open an activation corpus: a folder, shard files in their order, or a URL of either (s3, gs, az, http).

    Options are the fields of SourceOptions, as for `MmapShardSource.open_dir`.
    """
    from warpdata.corpora.source import MmapShardSource
    from warpdata.corpora.store_source import StoreShardSource
    from warpdata.stores.folder import StoreFolder

    places = [os.fspath(place) for place in ([source] if isinstance(source, str | os.PathLike) else source)]
    if any("://" in place for place in places):
        if len(places) == 1 and not places[0].partition("?")[0].endswith(".shard"):
            return StoreShardSource.open_folder(StoreFolder(places[0], connect), **options)
        return StoreShardSource.open([_shard_bytes(place) for place in places], **options)
    if len(places) == 1 and not os.path.isfile(places[0]):
        return MmapShardSource.open_dir(places[0], **options)
    return MmapShardSource.open(places, **options)


def _shard_bytes(place: str) -> RangeReader:
    """One shard by URL, or a local one among URLs."""
    from warpdata.bytekit.ranges import FileRangeReader

    found = _located(place)[1]
    return FileRangeReader(found) if isinstance(found, str) else found


def load_wshard(
    source: str | os.PathLike[str] | RangeReader | bytes | BinaryIO,
    channels: Collection[str] | None = None,
    *,
    verify: Verify = "block",
) -> WShardEpisode:
    """Open an episode by step; lazy, zero-copy for raw blocks on this machine.

    The source is a path, a URL, bytes, a file opened in binary mode or a RangeReader. `channels` keeps only these ids
    or block names, and rewards, flags and times. `verify`: `"block"` holds every byte against a checksum before it is
    handed out; `"window"` does not read a whole raw block to check a window for which the file has no checksum (large
    ones of other programs); False trusts the bytes of blocks.
    """
    from warpdata.formats.wshard.load import load_wshard as load

    place, found = _located(source)
    if found is None and place is not None:
        raise _directory_error(source)
    return load(found, channels, verify=verify)


def keep_decoded(max_bytes: str | int) -> None:
    """Keep at most this much of decoded blocks in this process (512 MiB unless told; 0 for none, "2GB" for more).

    A compressed block that is one frame is decoded whole for any of its rows: kept, it is decoded once.
    """
    from warpdata.bytekit.kept import KEPT
    from warpdata.catalog.names import parse_size

    KEPT.max_bytes = parse_size(max_bytes)


def _directory_error(source: Any) -> Exception:
    from warpdata.errors import CorruptLayoutError

    return CorruptLayoutError("an episode directory, not a file", path=source, hint="Use wd.open_episode().")


def open_vectors(
    source: str | os.PathLike[str] | RangeReader, mode: str = "r", *, durable: bool = True
) -> VectorStore:
    """Open a vector store: a path, for reading also a URL or a RangeReader; `stats()` counts its requests."""
    from warpdata.search.store import VectorStore

    if mode != "r":
        return VectorStore.open(source, mode, durable=durable)
    found = _located(source)[1]
    if found is None:
        raise _directory_error(source)
    return VectorStore.open(found)


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
    """What the rooms above the catalog give to datasets."""
    from warpdata.catalog.dataset import Streams
    from warpdata.loading.stream import TableStream, plan_read
    from warpdata.loading.torch import torch_dataset

    return Streams(batches=TableStream, torch=torch_dataset, plan=plan_read, vectors=_vectors)


def _vectors(reader: RangeReader) -> Any:
    from warpdata.search.store import VectorStore

    return VectorStore.open(reader)


def load(name: str, table: str = "main", *, limit: int | None = None, **options: Any) -> Any:
    """A table as a pandas frame in one line; large tables are refused, stream those."""
    from warpdata.sql.frames import pandas_from

    view = dataset(name, **options).table(table)
    return view.pandas() if limit is None else pandas_from(view.head(limit))
