"""Verbs of `import warpdata as wd` that join several packages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, SupportsIndex, Unpack

from warpdata.bytekit.lazy import lazy_names
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    StoreError,
    nearest,
    require_integer,
    require_kind,
    suggests,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warpdata._api.episodes import chunk_episode as chunk_episode
    from warpdata._api.episodes import load_wshard as load_wshard
    from warpdata._api.episodes import open_episode as open_episode
    from warpdata._api.episodes import open_episodes as open_episodes
    from warpdata._api.episodes import open_recordings as open_recordings
    from warpdata._api.episodes import pack_episode as pack_episode
    from warpdata._api.episodes import unpack_episode as unpack_episode
    from warpdata.bytekit.io.ranges import RangeReader
    from warpdata.catalog.access import AccessKeywords
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table
    from warpdata.convert.place import Place
    from warpdata.corpora.source import FixedOrderSource, SourceKeywords
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.jobs import Runner
    from warpdata.search.store import VectorStore
    from warpdata.stores.blobs import StoreFolder
    from warpdata.stores.blobstore import BlobStore, Listener
    from warpdata.stores.pagecache import PageCache
    from warpdata.timeline.episode import Episode

_EPISODE_VERBS = (
    "chunk_episode load_wshard open_episode open_episodes open_recordings pack_episode unpack_episode"
)
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_EPISODE_VERBS.split(), f"{__name__}.episodes"))


@suggests
def open(  # noqa: A001 - the one way in
    address: str | os.PathLike[str], *, catalog: str | os.PathLike[str] | None = None
) -> Episode | Episodes | Dataset | FixedOrderSource | VectorStore:
    """Open what an address names: an Episode, Episodes, a Dataset, a corpus or a vector store.

    An address is a path, a URL, or `workspace/name[@version]` of a published dataset; `#id` selects one episode inside.
    A set of a foreign format (LeRobot, …) opens as Episodes in place, read-only; nothing is converted. `catalog` is
    where published datasets are looked up. Where the kind is known, `open_episode`, `open_episodes`, `open_dataset`,
    `open_corpus` and `open_vectors` have that type for editors and type checkers.
    """
    from warpdata._api.episodes import open_episode, open_episodes

    text = address_text(address)
    base, inside = divided_address(text)
    if inside is not None:
        return open_episode(text, catalog=catalog)
    kind, foreign = kind_or_foreign(base)
    if foreign is not None:
        return foreign
    if kind == "dataset":
        return dataset(base, catalog=catalog)
    if kind in ("recordings", "shards"):
        return open_episodes(base)
    if kind == "vectors":
        return open_vectors(base)
    return open_corpus(base) if kind in ("corpus", "rows") else open_episode(base)


def kind_or_foreign(address: str) -> tuple[str, Episodes | None]:
    """The kind of the thing at an address, or the episodes of the foreign set that is there."""
    try:
        return address_kind(address), None
    except (BadMagicError, BlobNotFoundError):
        foreign = foreign_episodes(address)
        if foreign is None:
            raise
        return "foreign", foreign


def address_text(address: Any) -> str:
    """An address as text; TypeError for other types, ValueError for an empty one."""
    text = os.fspath(address) if isinstance(address, str | os.PathLike) else address
    require_kind("an address", text, str, "a text or a Path")
    if not text:
        raise ValueError("an address is empty: name a file, a folder or a dataset; this folder is '.'")
    return str(text)


def address_kind(address: str | os.PathLike[str]) -> str:
    """Kind of the thing at an address without `#`: a dataset, a kind of folder, or a kind of file.

    `dataset`; `recordings`, `shards`, `corpus`, or one episode as a `directory`; `episode`, `chunk-list`, `shard`,
    `journal`, `vectors`, `rows`.
    """
    from warpdata.catalog.read.filekinds import file_kind, folder_kind

    text = address_text(address)
    if is_published(text):
        return "dataset"
    place = folder_at(text)
    if isinstance(place, str | os.PathLike):
        if os.path.isdir(place):
            return folder_kind(os.listdir(place), text)
        if not os.path.exists(place):
            from warpdata.formats.journal.reader import check_not_unfinished

            check_not_unfinished(os.fspath(place))
        return file_kind(place)
    if is_root(text):
        return folder_kind({name.partition("/")[0] for name in place.names()}, text)
    file = locate(text)[1]
    return "directory" if file is None else file_kind(file)


def foreign_episodes(
    address: str | os.PathLike[str], name: str | None = None, **options: Any
) -> Episodes | None:
    """The episodes of a foreign set; of one whose format is not named, None where no format knows it."""
    from warpdata.convert.formats import check_options, detect_format, format_module, other_format

    base, inside = divided_address(address_text(address))
    folder = folder_at(base)
    if name is None and isinstance(folder, str | os.PathLike) and not os.path.exists(folder):
        return None
    place = place_at(base)
    name = name or detect_format(place)
    if name is None:
        return None
    module = format_module(name)
    if not hasattr(module, "read"):
        raise ValueError(f"{name} can be written, not read")
    check_options(module.read, options, f"reading {name}")
    try:
        episodes: Episodes = module.read(place, **options)
    except (FormatError, StoreError) as error:
        raise other_format(error, name, place) from None
    return episodes if inside is None else episodes[[episodes.position(inside)]]


def place_at(address: str | os.PathLike[str]) -> Place:
    """Location of foreign data: on this machine, or a file or folder of a store."""
    import urllib.parse

    from warpdata.convert.place import Place

    folder = folder_at(address)
    if isinstance(folder, str | os.PathLike):
        return Place.of(folder)
    above, name = _split_url(os.fspath(address))
    is_file = bool(name) and not os.fspath(address).partition("?")[0].endswith("/") and above.exists(name)
    return Place(None, above, urllib.parse.unquote(name)) if is_file else Place.of(folder)


def _split_url(url: str) -> tuple[StoreFolder, str]:
    """The folder above a file or folder of a store, and its name there."""
    import urllib.parse

    from warpdata.stores.address import split_address

    parts = split_address(url)
    above, _, name = parts.path.rstrip("/").rpartition("/")
    return store_folder(urllib.parse.urlunsplit(parts._replace(path=above))), name


def divided_address(address: str) -> tuple[str, str | None]:
    """An address and the id of the episode inside; a file with that whole name has no id."""
    base, mark, inside = address.rpartition("#")
    if not mark or not inside or ("://" not in address and os.path.lexists(address)):
        return address_text(address), None
    return address_text(base), inside


def is_published(address: str) -> bool:
    """Whether an address names a published dataset and nothing on this disk."""
    if "://" in address or os.path.lexists(address):
        return False
    from warpdata.catalog.access import is_dataset_name

    return is_dataset_name(address)


def folder_at(source: str | os.PathLike[str]) -> Any:
    """A folder on this machine by path or file://, a folder of a store by URL."""
    if not isinstance(source, str) or "://" not in source:
        return source
    import urllib.parse

    from warpdata.stores.address import split_address

    parts = split_address(source)
    return urllib.parse.unquote(parts.path) if parts.scheme == "file" else store_folder(source)


def runner_for(jobs: int, ray: str | bool | None) -> Runner:
    """The runner for work on many episodes: this process, several processes, or a Ray cluster."""
    from warpdata.episodes.collection.jobs import runner_of

    require_kind("jobs", jobs, SupportsIndex, "a whole number of processes")
    require_kind("ray", ray, (str, bool, type(None)), "True, or the address of a cluster")
    if ray is None or ray is False:
        return runner_of(jobs)
    if jobs != 1:
        raise ValueError("jobs are processes of this machine, ray is a cluster: choose one of them")
    from warpdata.ray.verbs import runner

    return runner(None if ray is True else ray)


def is_root(source: str | os.PathLike[str]) -> bool:
    """Whether a path or URL names a root of recordings rather than an episode."""
    from pathlib import Path

    from warpdata.episodes.check.rules import is_directory

    folder = folder_at(source)
    if isinstance(folder, str | os.PathLike):
        return os.path.isdir(folder) and not is_directory(Path(folder))
    try:
        locate(source)
    except BlobNotFoundError as missing:
        try:
            return bool(folder.names())
        except StoreError as cannot_list:
            missing.hint = f"Give the URL of one episode: {cannot_list.message}."
            raise missing from None
    return False


def locate(source: object) -> tuple[Any, Any]:
    """The folder of a URL and a reader or path of its file; for an episode directory, the directory and None."""
    if (isinstance(source, str) or hasattr(source, "__fspath__")) and "://" not in (
        path := os.fspath(source)
    ):
        # The process may go elsewhere before everything is read.
        return None, path if path.startswith("/") else os.path.abspath(path)
    if not isinstance(source, str):
        return None, source
    local = folder_at(source)
    if isinstance(local, str):
        return None, local
    folder, name = _split_url(source)
    try:
        return folder, folder.open(name)
    except BlobNotFoundError:
        below = folder.below(name)
        if any(below.exists(mark) for mark in ("meta.json", "static.json")):
            return below, None
        raise


def store_folder(address: str) -> StoreFolder:
    """The files below a URL, read through the page cache."""
    from warpdata.stores.blobs import StoreFolder

    return StoreFolder(address, connect, url_cache)


def url_cache() -> PageCache | None:
    """The page cache of the environment; None in remote mode."""
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.pagecache import page_cache

    options = access_options(Settings.from_env())
    return None if options.mode == "remote" else page_cache(options.cache_dir, options.cache_bytes)


def connect(address: str) -> BlobStore:
    """The store at an address, with the options of the environment."""
    from warpdata.catalog.access import access_options
    from warpdata.settings import Settings
    from warpdata.stores.address import open_store
    from warpdata.stores.blobstore import Meter, ReliableStore

    return ReliableStore(open_store(address, access_options(Settings.from_env()).store), Meter())


@suggests
def open_corpus(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Unpack[SourceKeywords]
) -> FixedOrderSource:
    """Open an activation corpus: a folder, shard files in their order, or a URL of either (s3, gs, az, http).

    Options are the fields of SourceOptions, as for `MmapShardSource.open_dir`.
    """
    from warpdata.bytekit.io.files import FileRangeReader
    from warpdata.corpora.source import MmapShardSource, StoreShardSource

    is_one = isinstance(source, str | bytes | os.PathLike) or not hasattr(source, "__iter__")
    several: Any = [source] if is_one else source
    places = [address_text(place) for place in several]
    if any("://" in place for place in places):
        if len(places) == 1 and not places[0].partition("?")[0].endswith(".shard"):
            return StoreShardSource.open_folder(store_folder(places[0]), **options)
        files = [locate(place)[1] for place in places]
        readers = [FileRangeReader(file) if isinstance(file, str) else file for file in files]
        return StoreShardSource.open(readers, **options)
    if len(places) == 1 and not os.path.isfile(places[0]):
        return MmapShardSource.open_dir(places[0], **options)
    return MmapShardSource.open(places, **options)


def keep_decoded(max_bytes: str | int) -> None:
    """Keep at most this much of decoded blocks in this process (default 192 MiB; 0 for none, "2GB" for more).

    A compressed block that is one frame is decoded whole for any of its rows: kept, it is decoded once. So are frames
    of cameras, JPEG and PNG pictures too, that windows and samples ask for again.
    """
    from warpdata.bytekit.lazy import BLOCK_CACHE
    from warpdata.catalog.access import parse_size

    BLOCK_CACHE.max_bytes = parse_size(max_bytes)


def locate_file(source: Any) -> Any:
    """The reader or path of a file; CorruptLayoutError for an episode directory."""
    folder, file = locate(source)
    if file is None and folder is not None:
        raise CorruptLayoutError(
            "an episode directory, not a file", path=source, hint="Use wd.open_episode()."
        )
    return file


@suggests
def open_vectors(
    source: str | os.PathLike[str] | RangeReader, mode: str = "r", *, durable: bool = True
) -> VectorStore:
    """Open a vector store: a path, for reading also a URL or a RangeReader; `stats()` counts its requests."""
    from warpdata.search.store import VectorStore

    if mode != "r":
        return VectorStore.open(source, mode, durable=durable)
    store = VectorStore.open(locate_file(source))
    if isinstance(source, str | os.PathLike):
        store.reopen_by(open_vectors, source)
    return store


@suggests
def dataset(
    name: str,
    *,
    mode: str | None = None,
    catalog: str | os.PathLike[str] | Sequence[str] | None = None,
    max_bytes: str | int | None = None,
    max_requests: int | None = None,
    listener: Listener | None = None,
    **options: Unpack[AccessKeywords],
) -> Dataset:
    """Open a published dataset by name: `workspace/name`, `@hash` or `@tag` if you like; reads no data.

    Further options are fields of AccessOptions: cache_dir, cache_bytes, prefetch, verify, trusted_keys, …
    """
    from warpdata.catalog.access import AccessKeywords, access_options, catalog_tuple, parse_name, parse_size
    from warpdata.catalog.dataset import open_dataset
    from warpdata.settings import Settings
    from warpdata.stores.blobstore import Budget

    known = ["mode", "catalog", "max_bytes", "max_requests", "listener", *AccessKeywords.__annotations__]
    for word in options:
        if word not in known:
            raise TypeError(f"unknown option {word!r}.{nearest(word, known)} There are {', '.join(known)}")
    limit = None if max_bytes is None else parse_size(max_bytes)
    most = None if max_requests is None else require_integer("max_requests", max_requests, 1 << 63)
    access = access_options(
        Settings.from_env(), mode=mode, catalogs=catalog_tuple(catalog), budget=Budget(limit, most), **options
    )
    return open_dataset(parse_name(name), access, table_streams(), listener)


open_dataset = dataset
"""Alias of `dataset`, named like the other `open_*`."""


def table_streams() -> Any:
    """Functions of packages above the catalog that datasets need."""
    from warpdata.catalog.dataset import Streams
    from warpdata.loading.tables.stream import open_stream, plan_read
    from warpdata.loading.tables.torch import torch_dataset

    return Streams(
        batches=open_stream,
        torch=torch_dataset,
        plan=plan_read,
        vectors=_vectors,
        ray=_ray,
        runner=runner_for,
    )


def _ray(table: Table) -> Any:
    from warpdata.ray import read_table

    return read_table(table)


def _vectors(reader: RangeReader) -> Any:
    from warpdata.search.store import VectorStore

    return VectorStore.open(reader)


@suggests
def load(
    name: str,
    table: str = "main",
    *,
    limit: int | None = None,
    mode: str | None = None,
    catalog: str | os.PathLike[str] | Sequence[str] | None = None,
    **options: Unpack[AccessKeywords],
) -> Any:
    """A table as a pandas frame in one line; large tables are refused, stream those."""
    from warpdata.sql.columns import pandas_from

    view = dataset(name, mode=mode, catalog=catalog, **options).table(table)
    return view.pandas() if limit is None else pandas_from(view.head(limit))
