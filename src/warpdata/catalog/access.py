"""How blobs of a catalog are reached: stores, cache, mode and budget of one open dataset."""

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
    """Everything that says where to read from and what may be spent; it travels to other processes."""

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
        object.__setattr__(self, "catalogs", tuple(_anywhere(address) for address in self.catalogs))
        object.__setattr__(self, "cache_dir", _anywhere(self.cache_dir))
        object.__setattr__(self, "cache_bytes", parse_size(self.cache_bytes))
        keys = self.trusted_keys
        object.__setattr__(self, "trusted_keys", (keys,) if isinstance(keys, str) else tuple(keys))


class AccessKeywords(TypedDict, total=False):
    """The fields of AccessOptions that callers of `wd.dataset` choose, as keyword arguments; None means no change."""

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
            raise TypeError(
                f"there is no option {name!r}.{nearest(name, known)} There are {', '.join(known)}"
            )


def _anywhere(address: str | os.PathLike[str]) -> str:
    """A folder as it is called from every folder and every process; other addresses as they are."""
    address = os.fspath(address)
    return address if "://" in address else os.path.abspath(os.path.expanduser(address))


def access_options(settings: Settings, **changes: object) -> AccessOptions:
    """What the environment says, with the caller's changes; None means no change."""
    store = StoreOptions(
        settings.s3_endpoint,
        settings.s3_region,
        settings.aws_profile,
        AwsFiles(settings.aws_credentials_file, settings.aws_config_file),
        find_secrets=aws_keys,
        find_role=aws_role,
        proxies=Proxies(settings.proxies, settings.no_proxy),
    )
    said: dict[str, Any] = {
        "catalogs": settings.catalogs,
        "mode": settings.mode,
        "cache_dir": settings.cache_dir,
        "cache_bytes": settings.cache_bytes,
        "prefetch": settings.prefetch,
        "verify": settings.verify,
        "trusted_keys": settings.trusted_keys,
        "accept_rollback": settings.accept_rollback,
        "store": store,
    }
    # A name that is no option goes on to where it is refused, also with None.
    changed = {n: value for n, value in changes.items() if value is not None or not hasattr(AccessOptions, n)}
    return AccessOptions(**(said | changed))


def catalog_tuple(catalog: str | os.PathLike[str] | Sequence[str] | None) -> tuple[str, ...] | None:
    """One catalog or several, as the options want them."""
    if catalog is None:
        return None
    require_kind("a catalog", catalog, (str, os.PathLike, Sequence), "an address, or a list of them")
    if isinstance(catalog, str):
        return tuple(part.strip() for part in catalog.split(",") if part.strip())
    if isinstance(catalog, os.PathLike):  # one folder, whatever it is called
        return (os.fspath(catalog),)
    return tuple(os.fspath(one) for one in catalog)


@dataclass(frozen=True, slots=True)
class Catalog:
    """One catalog: its address, and its store unless the network may not be used."""

    address: str
    """What it is called in messages: without the query, which may be secret."""
    store: BlobStore | None
    given: str = field(default="", repr=False)
    """The address as it was given."""
    place: str = ""
    """Which catalog it is, on whichever server."""


class Access:
    """The open stores and the cache of one dataset."""

    def __init__(
        self, options: AccessOptions, listener: Listener | None = None, policy: RetryPolicy | None = None
    ) -> None:
        self.options = options
        self.meter = Meter(options.budget, listener)
        self._policy = policy
        self.catalogs = [self._catalog(address) for address in options.catalogs]
        self.cache = self._open_cache()
        self._whole_blobs = (
            WholeBlobFetcher(self.cache) if options.mode == "hybrid" and self.cache is not None else None
        )
        self._readers: dict[tuple[str, str], AnyBlobReader] = {}
        self._foreign: dict[str, BlobStore] = {}

    @property
    def is_offline(self) -> bool:
        """Whether only this machine may be asked."""
        return self.options.mode == "local"

    @property
    def reads_ahead(self) -> bool:
        """Whether bytes may be fetched before they are asked for: not offline, and not on a budget."""
        return (
            not self.is_offline
            and self.options.budget == Budget()
            and self.options.prefetch not in ("off", "0", "none")
        )

    def store_of(self, address: str, *, follow_redirects: bool = True) -> BlobStore:
        """An open store, retried and counted."""
        options = replace(self.options.store, follow_redirects=follow_redirects)
        return ReliableStore(open_store(address, options), self.meter, self._policy)

    def reader(
        self, catalog: Catalog, blob: BlobRef, label: str, sums: PageSums | None = None
    ) -> AnyBlobReader:
        """The reader of a blob, one for each blob however often it is asked for."""
        key = (catalog.place, blob.hash)
        found = self._readers.get(key)
        if found is None or (sums is not None and found._sums is None):
            found = self._readers[key] = self._open_reader(catalog, blob, label, sums)
        return found

    def parts(self, catalog: Catalog) -> PartSource:
        """Fetches the parts of manifests of a catalog, through the cache."""
        return lambda refs: map_in_threads(lambda ref: self._part(catalog, ref), refs)

    def _part(self, catalog: Catalog, ref: BlobRef) -> memoryview:
        try:
            reader = self.reader(catalog, ref, "a part of the manifest")
            data = reader.read(0, ref.byte_size)
        except BlobNotFoundError:
            hint = "Run `warp repair` with a catalog that has a copy of the version."
            path = f"{catalog.address}/{ref.key}"
            raise ManifestCorruptedError("a part of the manifest is gone", path=path, hint=hint) from None
        if sha256_hex(data) != ref.hash:
            with contextlib.suppress(ChecksumError):  # whoever reads the part says that it is damaged
                reader.load_whole()  # which fetches again what the cache has wrong
            data = reader.read(0, ref.byte_size)
        return data

    def is_settled(self, readers: Iterable[AnyBlobReader], size: int) -> bool:
        """Whether a pass that fetches `size` bytes of these blobs finds in the cache what was there when it began.

        It does not where something is evicted for it, or where whole blobs are brought meanwhile.
        """
        kept = [reader for reader in readers if isinstance(reader, BlobReader) and reader.is_kept()]
        if self.cache is None or not kept:
            return True
        if self._whole_blobs is not None and self.reads_ahead and any(each.missing_bytes() for each in kept):
            return False
        return size == 0 or self.cache.has_room(size, len(kept))

    def bring_whole(self, readers: Iterable[AnyBlobReader]) -> None:
        """In hybrid mode, bring the rest of these blobs into the cache in the background."""
        if self._whole_blobs is not None:
            self._whole_blobs.request(readers)

    def close(self) -> None:
        """Close stores, readers and the cache."""
        if self._whole_blobs is not None:
            self._whole_blobs.close()
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        for store in [c.store for c in self.catalogs] + list(self._foreign.values()):
            if store is not None:
                store.close()
        if self.cache is not None:
            self.cache.close()

    def _catalog(self, address: str) -> Catalog:
        offline = self.options.mode == "local" and is_remote(address)
        store = None if offline else self.store_of(address)
        return Catalog(plain_address(address), store, address, place_of(address, self.options.store))

    def _open_cache(self) -> PageCache | None:
        if self.options.mode == "remote":
            return None
        folder = Path(os.path.expanduser(self.options.cache_dir))
        return PageCache(folder, self.options.cache_bytes)

    def _open_reader(
        self, catalog: Catalog, blob: BlobRef, label: str, sums: PageSums | None
    ) -> AnyBlobReader:
        store, key = self.place(catalog, blob)
        address = BlobAddress(blob.hash, blob.byte_size, key, label)
        inner = store.inner if isinstance(store, ReliableStore) else store
        if isinstance(inner, LocalStore):
            return LocalBlobReader(address, inner, sums, self.meter)
        return BlobReader(address, store, self.cache, sums)

    def place(self, catalog: Catalog, blob: BlobRef) -> tuple[BlobStore | None, str]:
        """The store and the key of a blob: the blob area of its catalog unless the manifest has a uri for it."""
        if not blob.is_elsewhere:
            return catalog.store, blob.key
        assert blob.uri is not None
        folder, _, key = blob.uri.rpartition("/")
        own = address_in_catalog(catalog.given, folder)
        if own is None and not self.options.allow_foreign_uris:
            hint = "Pass allow_foreign_uris=True if you trust the publisher of this dataset."
            raise DatasetError(
                "the manifest points outside its catalog", path=plain_address(blob.uri), hint=hint
            )
        if self.is_offline and is_remote(blob.uri):
            return None, blob.key
        address = own or folder
        if address not in self._foreign:
            self._foreign[address] = self.store_of(address, follow_redirects=own is None)
        return self._foreign[address], urllib.parse.unquote(key)


def writable_catalog(access: Access) -> Catalog:
    """The first catalog, which must be one that can be written."""
    catalog = access.catalogs[0]
    if catalog.store is None or catalog.address.startswith(("http://", "https://")):
        hint = (
            "Name a folder or an s3, gs or az address instead (WARP_CATALOG, or where the command names it)."
        )
        raise StoreError("this catalog cannot be published to", path=catalog.address, hint=hint)
    return catalog
