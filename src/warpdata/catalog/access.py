"""Names of datasets, and access to the blobs of catalogs: stores, cache, mode, budget and staging folders."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import tempfile
import time
import urllib.parse
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.commit import make_folders, map_os_errors
from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.process.locks import FileLock
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    DatasetError,
    ManifestCorruptedError,
    OfflineError,
    StoreError,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.manifest.model import DATASET_ID, BlobRef, PartSource
from warpdata.settings import Settings, aws_keys, azure_sas
from warpdata.stores.address import (
    StoreOptions,
    address_in_catalog,
    is_remote,
    open_store,
    place_of,
    plain_address,
)
from warpdata.stores.awskeys import AwsProfile
from warpdata.stores.blobs import BlobAddress, BlobReader, LocalBlobReader
from warpdata.stores.blobstore import (
    BlobStore,
    Budget,
    Listener,
    Meter,
    PageSums,
    ReliableStore,
    RetryPolicy,
    check_key,
)
from warpdata.stores.local import STAGING, LocalStore
from warpdata.stores.pagecache import PageCache
from warpdata.stores.prefetch import WholeBlobFetcher
from warpdata.stores.webclient import Proxies
from warpdata.timeline.times import parse_time_ns

LATEST = "latest.json"
VERSION_SUFFIXES = (".json", ".sig.json", ".card.md", ".croissant.json")
"""The files of a version in a catalog: the manifest and the files beside it."""

HASH_PREFIX = re.compile(r"[a-f0-9]{8,64}")
_LATEST_TAG = "latest"
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class DatasetName:
    """`ws/name`, with the beginning of a version hash or a tag after an `@`."""

    dataset_id: str
    hash_prefix: str | None = None
    tag: str | None = None

    @property
    def folder(self) -> str:
        """The folder of the dataset in a catalog; its blobs are elsewhere."""
        return f"datasets/{self.dataset_id}/"

    @property
    def latest_key(self) -> str:
        """The pointer to the newest version."""
        return f"{self.folder}{LATEST}"

    def version_key(self, version: str, suffix: str = ".json") -> str:
        """The manifest of a version, or a file beside it."""
        return f"{self.folder}versions/{version}{suffix}"

    @property
    def list_key(self) -> str:
        """The list of versions and tags."""
        return f"{self.folder}versions.json"

    def tag_key(self, tag: str) -> str:
        """The pointer of a tag."""
        return f"{self.folder}tags/{tag}.json"

    def __str__(self) -> str:
        suffix = self.hash_prefix or self.tag
        return f"{self.dataset_id}@{suffix}" if suffix else self.dataset_id


def parse_name(text: str) -> DatasetName:
    """The name in `text`, or ValueError with the form of a name."""
    if not isinstance(text, str):
        raise TypeError(f"a dataset has a name like workspace/name, not {text!r}")
    dataset_id, at, suffix = text.partition("@")
    if not DATASET_ID.fullmatch(dataset_id) or (at and not suffix):
        raise ValueError(f"not a dataset name: {text!r}; use workspace/name, with @hash or @tag if you like")
    if not at or suffix == _LATEST_TAG:
        return DatasetName(dataset_id)
    if HASH_PREFIX.fullmatch(suffix):
        return DatasetName(dataset_id, hash_prefix=suffix)
    return DatasetName(dataset_id, tag=check_tag(suffix))


def is_dataset_name(text: str) -> bool:
    """Whether `text` has the form of a dataset name."""
    return bool(DATASET_ID.fullmatch(text.partition("@")[0]))


def check_tag(tag: str) -> str:
    """The tag, or ValueError; a tag cannot look like a hash."""
    require_kind("a tag", tag, str, "a text")
    if tag.lower() == _LATEST_TAG:
        raise ValueError(f"the tag {tag!r} is reserved: @latest is the newest version; publish moves it")
    if not _TAG.fullmatch(tag) or HASH_PREFIX.fullmatch(tag):
        raise ValueError(f"not a tag: {tag!r}; use letters, digits, . _ -, and not what looks like a hash")
    return tag


def parse_size(text: str | float) -> int:
    """Bytes from a number or a text like "200GB", "10 GiB" or "512k"."""
    size: float = -1
    if not isinstance(text, str):
        size = text
    elif match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)(i?)[bB]?\s*", text):
        unit: int = (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")
        size = float(match[1]) * unit
    if not 0 <= size < 1 << 63:
        raise ValueError(f"not a size: {text!r}; write it like 500MB or 10GiB")
    return int(size)


def parse_duration(text: str) -> float:
    """Seconds from a text like "30d", "12h", "90m" or "45s"; a bare number is days."""
    with contextlib.suppress(ValueError):
        if (seconds := parse_time_ns(text, "d") / 1e9) >= 0:
            return seconds
    raise ValueError(f"not a duration: {text!r}; write it like 30d or 12h")


MODES = ("auto", "remote", "hybrid", "local")


@suggests
@dataclass(frozen=True, slots=True)
class AccessOptions:
    """Catalogs, cache, budget and trust of a reader; it travels to other processes."""

    catalogs: tuple[str, ...]
    mode: str = "auto"
    cache_dir: str = "~/.cache/warpdata"
    cache_bytes: int = 100 << 30
    prefetch: str = "auto"
    budget: Budget = field(default_factory=Budget)
    verify: str = "if-present"
    trusted_keys: tuple[str, ...] = ()
    allow_foreign_uris: bool = False
    accept_rollback: bool = False
    """Whether a catalog may show an older `latest` than it did before."""
    store: StoreOptions = field(default_factory=StoreOptions, repr=False)

    def __post_init__(self) -> None:
        require_word("mode", self.mode, MODES)
        require_word("verify", self.verify, ("off", "if-present", "require"))
        if not self.catalogs:
            raise ValueError("no catalog is given")
        keys = self.trusted_keys
        changes = {
            "catalogs": tuple(_absolute(address) for address in self.catalogs),
            "cache_dir": _absolute(self.cache_dir),
            "cache_bytes": parse_size(self.cache_bytes),
            "trusted_keys": (keys,) if isinstance(keys, str) else tuple(keys),
        }
        for name, value in changes.items():
            object.__setattr__(self, name, value)


class AccessKeywords(TypedDict, total=False):
    """Fields of AccessOptions as keyword arguments; None means no change."""

    cache_dir: str | os.PathLike[str] | None
    cache_bytes: str | int | None
    prefetch: str | None
    verify: str | None
    trusted_keys: str | Sequence[str] | None
    allow_foreign_uris: bool | None
    accept_rollback: bool | None
    store: StoreOptions | None


def _absolute(address: str | os.PathLike[str]) -> str:
    """A local folder as an absolute path; other addresses as they are."""
    address = os.fspath(address)
    return address if "://" in address else os.path.abspath(os.path.expanduser(address))


_FROM_SETTINGS = AccessOptions.__dataclass_fields__.keys() & Settings.__dataclass_fields__.keys()


def access_options(settings: Settings, **changes: object) -> AccessOptions:
    """The settings of the environment with the caller's changes; None means no change."""
    store = StoreOptions(
        settings.s3_endpoint,
        settings.s3_region,
        AwsProfile(settings.aws_profile, settings.aws_credentials_file, settings.aws_config_file),
        find_secrets=aws_keys,
        find_sas=azure_sas,
        proxies=Proxies(settings.proxies, settings.no_proxy),
    )
    values: dict[str, Any] = {name: getattr(settings, name) for name in _FROM_SETTINGS}
    # An unknown name is passed on to where it is refused, also with None.
    changed = {n: value for n, value in changes.items() if value is not None or not hasattr(AccessOptions, n)}
    return AccessOptions(**{"store": store, **values, **changed})


def catalog_tuple(catalog: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...] | None:
    """One catalog or several, as the options take them."""
    if catalog is None:
        return None
    require_kind("a catalog", catalog, (str, os.PathLike, Sequence), "an address, or a list of them")
    if isinstance(catalog, str):
        return tuple(part.strip() for part in catalog.split(",") if part.strip())
    if isinstance(catalog, os.PathLike):  # one folder, even with a comma in its name
        return (os.fspath(catalog),)
    return tuple(os.fspath(one) for one in catalog)


def change_catalog(options: AccessOptions | None, catalog: str | os.PathLike[str] | None) -> AccessOptions:
    """The options, by default those of the environment, with another catalog if one is given."""
    base = options or access_options(Settings.from_env())
    given = catalog_tuple(catalog)
    return base if given is None else replace(base, catalogs=given)


@dataclass(frozen=True, slots=True)
class Catalog:
    """One catalog: its address, and its store unless the network may not be used."""

    address: str
    """The address in messages: without the query, which may be secret."""
    store: BlobStore | None
    given: str = field(default="", repr=False)
    """The address as it was given."""
    place: str = ""
    """The identity of the catalog, the same for every way to reach it."""

    @property
    def online_store(self) -> BlobStore:
        """The store; OfflineError in mode "local" if the catalog is remote."""
        if self.store is None:
            raise OfflineError("the catalog is not reachable offline", path=self.address)
        return self.store


class Access:
    """The open stores and the cache of one dataset."""

    def __init__(
        self, options: AccessOptions, listener: Listener | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.options = options
        self.is_offline = options.mode == "local"
        """Whether no network may be used."""
        self.meter = Meter(options.budget, listener)
        self._policy = policy
        self.catalogs = []
        for address in options.catalogs:
            store = None if self.is_offline and is_remote(address) else self.store_of(address)
            place = place_of(address, options.store)
            self.catalogs.append(Catalog(plain_address(address), store, address, place))
        is_hybrid = options.mode == "hybrid"
        self._whole_blobs = WholeBlobFetcher(self.cache) if is_hybrid and self.cache is not None else None
        self._readers: dict[tuple[str, str], BlobReader] = {}
        self._foreign: dict[str, BlobStore] = {}

    @cached_property
    def cache(self) -> PageCache | None:
        """The page cache, unless nothing may be written to this disk."""
        options = self.options
        return None if options.mode == "remote" else PageCache(options.cache_dir, options.cache_bytes)

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes may be fetched before they are needed: not offline, and not with a budget."""
        prefetches = self.options.prefetch not in ("off", "0", "none")
        return not self.is_offline and self.options.budget == Budget() and prefetches

    def store_of(self, address: str, *, follow_redirects: bool = True) -> BlobStore:
        """An open store with retries and a meter."""
        options = replace(self.options.store, follow_redirects=follow_redirects)
        return ReliableStore(open_store(address, options), self.meter, self._policy)

    def reader(self, catalog: Catalog, blob: BlobRef, label: str, sums: PageSums | None = None) -> BlobReader:
        """The reader of a blob, one for each blob."""
        key = (catalog.place, blob.hash)
        reader = self._readers.get(key)
        if reader is None or (sums is not None and reader._sums is None):
            store, name = self.place(catalog, blob)
            address = BlobAddress(blob.hash, blob.byte_size, name, label)
            inner = store.inner if isinstance(store, ReliableStore) else store
            reader = (
                LocalBlobReader(address, inner, sums, self.meter)
                if isinstance(inner, LocalStore)
                else BlobReader(address, store, self.cache, sums)
            )
            self._readers[key] = reader
        return reader

    def parts(self, catalog: Catalog) -> PartSource:
        """Fetches the parts of manifests of a catalog, through the cache."""

        def fetch(ref: BlobRef) -> memoryview:
            try:
                reader = self.reader(catalog, ref, "a part of the manifest")
                data = reader.read(0, ref.byte_size)
            except BlobNotFoundError:
                hint = "Run `warp repair` with a catalog that has a copy of the version."
                path = f"{catalog.address}/{ref.key}"
                raise ManifestCorruptedError(
                    "a part of the manifest is missing", path=path, hint=hint
                ) from None
            if sha256_hex(data) != ref.hash:
                with contextlib.suppress(ChecksumError):  # the parser of the part reports the damage
                    reader.load_whole()  # fetches damaged pages of the cache again
                data = reader.read(0, ref.byte_size)
            return data

        return lambda refs: map_in_threads(fetch, refs)

    def is_settled(self, readers: Iterable[BlobReader], size: int) -> bool:
        """Whether the cache stays as it is while a pass fetches `size` bytes of these blobs.

        It does not if something is evicted for it, or if whole blobs are fetched meanwhile.
        """
        kept = [reader for reader in readers if reader.is_kept()]
        if self.cache is None or not kept:
            return True
        if self._whole_blobs is not None and self.reads_ahead and any(r.missing_bytes() for r in kept):
            return False
        return size == 0 or self.cache.has_room(size, len(kept))

    def bring_whole(self, readers: Iterable[BlobReader]) -> None:
        """In hybrid mode, fetch the rest of these blobs into the cache in the background."""
        if self._whole_blobs is not None and self.reads_ahead:
            self._whole_blobs.request(readers)

    def place(self, catalog: Catalog, blob: BlobRef) -> tuple[BlobStore | None, str]:
        """The store and the key of a blob: the blob area of its catalog unless the manifest has a uri for it."""
        if not blob.is_elsewhere:
            return catalog.store, blob.key
        assert blob.uri is not None
        folder, _, name = blob.uri.rpartition("/")
        try:
            key = check_key(urllib.parse.unquote(name))
        except ValueError as error:
            raise ManifestCorruptedError(f"invalid uri in a manifest: {error}", path=blob.uri) from None
        own = address_in_catalog(catalog.given, folder)
        if own is None and not self.options.allow_foreign_uris:
            hint = "Pass allow_foreign_uris=True if you trust the publisher of this dataset."
            path = plain_address(blob.uri)
            raise DatasetError("the manifest points outside its catalog", path=path, hint=hint)
        if self.is_offline and is_remote(blob.uri):
            return None, blob.key
        address = own or folder
        if address not in self._foreign:
            self._foreign[address] = self.store_of(address, follow_redirects=own is None)
        return self._foreign[address], key

    def close(self) -> None:
        """Close stores, readers and the cache."""
        if self._whole_blobs is not None:
            self._whole_blobs.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        for store in [catalog.store for catalog in self.catalogs] + list(self._foreign.values()):
            if store is not None:
                store.close()
        if (cache := self.__dict__.get("cache")) is not None:
            cache.close()


def writable_store(access: Access) -> BlobStore:
    """The store of the first catalog; StoreError if it cannot be written."""
    catalog = access.catalogs[0]
    if catalog.store is None or catalog.address.startswith(("http://", "https://")):
        hint = (
            "Use a folder or an s3, gs or az address instead (WARP_CATALOG, or the catalog of the command)."
        )
        raise StoreError("this catalog cannot be published to", path=catalog.address, hint=hint)
    return catalog.store


_PREFIX = "warpdata-staging-"
_LOCK = "owner.lock"
_UNOWNED_S = 600.0
"""A folder without a lock is one being made, unless it is this old."""


class Staging:
    """A temporary folder that is removed when it is closed, collected, or its process ends in any way."""

    def __init__(self, parent: str | os.PathLike[str] | None = None) -> None:
        root, lock = Path(parent or tempfile.gettempdir()), None
        made = [root] if root.name == STAGING else []  # that one is always ours
        absent = itertools.takewhile(lambda folder: not folder.exists(), (root, *root.parents))
        made += [folder for folder in absent if folder not in made]
        with map_os_errors(root):
            while lock is None:
                make_folders(root)
                # Another process may remove the folder, or the one around it, before it is locked.
                with contextlib.suppress(FileNotFoundError):
                    self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
                    try:
                        lock = _lock_folder(self.path)
                    except StoreError:
                        shutil.rmtree(self.path, ignore_errors=True)
                        raise
        sweep(root)
        self._finalizer = weakref.finalize(self, _remove_own, self.path, lock, made)

    def close(self) -> None:
        """Remove the folder."""
        self._finalizer()


def staging_for(catalog: str, cache_dir: str, chosen: str | os.PathLike[str] | None) -> Staging:
    """A folder on the disk of the catalog, so that files move into it; for catalogs elsewhere, in the cache folder."""
    if chosen is not None:
        if not os.fspath(chosen):
            raise ValueError("staging names no folder; leave it out to use the disk of the catalog")
        return Staging(os.path.expanduser(chosen))
    if not is_remote(catalog):
        store = open_store(catalog)
        return Staging(store.folder / STAGING if isinstance(store, LocalStore) else None)
    try:
        return Staging(Path(os.path.expanduser(cache_dir)) / "staging")
    except StoreError:
        return Staging()


def sweep(root: Path) -> int:
    """Remove the folders of dead owners; returns their number."""
    removed = 0
    for folder in root.glob(f"{_PREFIX}*"):
        # Several processes may sweep at the same time.
        with contextlib.suppress(OSError, StoreError):
            status, lock = folder.stat(), None
            if status.st_uid != os.getuid():
                continue
            if (folder / _LOCK).exists():
                if (lock := _lock_folder(folder)) is None:
                    continue
            elif time.time() - status.st_mtime <= _UNOWNED_S:
                continue
            with lock or contextlib.nullcontext():
                shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _lock_folder(folder: Path) -> FileLock | None:
    """The lock of the folder, None if another process holds it; FileNotFoundError if the folder is gone."""
    try:
        return FileLock.take(folder / _LOCK, mode=0o600)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise


def _remove_own(folder: Path, lock: FileLock, made: list[Path]) -> None:
    """Remove the folder, unless this is a forked child, whose lock is closed."""
    if lock.fd >= 0:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            for empty in made:
                empty.rmdir()
    lock.release()
