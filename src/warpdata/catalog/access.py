"""Access to the blobs of catalogs: stores, cache, mode and budget of one open dataset."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.names import parse_size
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    DatasetError,
    ManifestCorruptedError,
    OfflineError,
    StoreError,
    nearest,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.manifest.model import BlobRef
from warpdata.formats.manifest.parts import PartSource
from warpdata.settings import Settings, aws_keys, aws_role
from warpdata.stores.address import (
    StoreOptions,
    address_in_catalog,
    is_remote,
    open_store,
    place_of,
    plain_address,
)
from warpdata.stores.awskeys import AwsFiles
from warpdata.stores.blobs import AnyBlobReader, BlobAddress, BlobReader, LocalBlobReader
from warpdata.stores.blobstore import BlobStore, PageSums
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache
from warpdata.stores.prefetch import WholeBlobFetcher
from warpdata.stores.reliable import Budget, Listener, Meter, ReliableStore, RetryPolicy
from warpdata.stores.webclient import Proxies

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
    """The fields of AccessOptions that `wd.dataset` takes as keyword arguments; None means no change."""

    cache_dir: str | os.PathLike[str] | None
    cache_bytes: str | int | None
    prefetch: str | None
    verify: str | None
    trusted_keys: str | Sequence[str] | None
    allow_foreign_uris: bool | None
    accept_rollback: bool | None
    store: StoreOptions | None


def check_keywords(given: Iterable[str], *beside: str) -> None:
    """TypeError for a name that is neither one of AccessKeywords nor an argument beside them."""
    known = [*beside, *AccessKeywords.__annotations__]
    for name in given:
        if name not in known:
            raise TypeError(f"unknown option {name!r}.{nearest(name, known)} There are {', '.join(known)}")


def _absolute(address: str | os.PathLike[str]) -> str:
    """A local folder as an absolute path; other addresses as they are."""
    address = os.fspath(address)
    return address if "://" in address else os.path.abspath(os.path.expanduser(address))


def access_options(settings: Settings, **changes: object) -> AccessOptions:
    """The settings of the environment with the caller's changes; None means no change."""
    store = StoreOptions(
        settings.s3_endpoint,
        settings.s3_region,
        settings.aws_profile,
        AwsFiles(settings.aws_credentials_file, settings.aws_config_file),
        find_secrets=aws_keys,
        find_role=aws_role,
        proxies=Proxies(settings.proxies, settings.no_proxy),
    )
    names = (
        "catalogs",
        "mode",
        "cache_dir",
        "cache_bytes",
        "prefetch",
        "verify",
        "trusted_keys",
        "accept_rollback",
    )
    values: dict[str, Any] = {name: getattr(settings, name) for name in names} | {"store": store}
    # An unknown name is passed on to where it is refused, also with None.
    changed = {n: value for n, value in changes.items() if value is not None or not hasattr(AccessOptions, n)}
    return AccessOptions(**(values | changed))


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
        self.meter = Meter(options.budget, listener)
        self._policy = policy
        self.catalogs = [self._catalog(address) for address in options.catalogs]
        self.cache: PageCache | None = None
        if options.mode != "remote":
            self.cache = PageCache(Path(os.path.expanduser(options.cache_dir)), options.cache_bytes)
        is_hybrid = options.mode == "hybrid" and self.cache is not None
        self._whole_blobs = WholeBlobFetcher(self.cache) if is_hybrid and self.cache is not None else None
        self._readers: dict[tuple[str, str], AnyBlobReader] = {}
        self._foreign: dict[str, BlobStore] = {}

    @property
    def is_offline(self) -> bool:
        """Whether no network may be used."""
        return self.options.mode == "local"

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes may be fetched before they are needed: not offline, and not with a budget."""
        prefetches = self.options.prefetch not in ("off", "0", "none")
        return not self.is_offline and self.options.budget == Budget() and prefetches

    def store_of(self, address: str, *, follow_redirects: bool = True) -> BlobStore:
        """An open store with retries and a meter."""
        options = replace(self.options.store, follow_redirects=follow_redirects)
        return ReliableStore(open_store(address, options), self.meter, self._policy)

    def reader(
        self, catalog: Catalog, blob: BlobRef, label: str, sums: PageSums | None = None
    ) -> AnyBlobReader:
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

    def is_settled(self, readers: Iterable[AnyBlobReader], size: int) -> bool:
        """Whether the cache stays as it is while a pass fetches `size` bytes of these blobs.

        It does not if something is evicted for it, or if whole blobs are fetched meanwhile.
        """
        kept = [reader for reader in readers if isinstance(reader, BlobReader) and reader.is_kept()]
        if self.cache is None or not kept:
            return True
        if self._whole_blobs is not None and self.reads_ahead and any(r.missing_bytes() for r in kept):
            return False
        return size == 0 or self.cache.has_room(size, len(kept))

    def bring_whole(self, readers: Iterable[AnyBlobReader]) -> None:
        """In hybrid mode, fetch the rest of these blobs into the cache in the background."""
        if self._whole_blobs is not None:
            self._whole_blobs.request(readers)

    def place(self, catalog: Catalog, blob: BlobRef) -> tuple[BlobStore | None, str]:
        """The store and the key of a blob: the blob area of its catalog unless the manifest has a uri for it."""
        if not blob.is_elsewhere:
            return catalog.store, blob.key
        assert blob.uri is not None
        folder, _, key = blob.uri.rpartition("/")
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
        return self._foreign[address], urllib.parse.unquote(key)

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
        if self.cache is not None:
            self.cache.close()

    def _catalog(self, address: str) -> Catalog:
        is_unreachable = self.is_offline and is_remote(address)
        store = None if is_unreachable else self.store_of(address)
        return Catalog(plain_address(address), store, address, place_of(address, self.options.store))


def writable_store(access: Access) -> BlobStore:
    """The store of the first catalog; StoreError if it cannot be written."""
    catalog = access.catalogs[0]
    if catalog.store is None or catalog.address.startswith(("http://", "https://")):
        hint = (
            "Use a folder or an s3, gs or az address instead (WARP_CATALOG, or the catalog of the command)."
        )
        raise StoreError("this catalog cannot be published to", path=catalog.address, hint=hint)
    return catalog.store
