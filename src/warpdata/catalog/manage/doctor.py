"""Is this machine able to read and publish? Each check says what it found and what to do about it."""

from __future__ import annotations

import contextlib
import email.utils
import importlib.util
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from warpdata.catalog.access import Access, AccessOptions, Catalog
from warpdata.catalog.read.media import video_codecs
from warpdata.errors import ConflictError, StoreError, WarpError
from warpdata.settings import Settings
from warpdata.sql.engine import engine_check
from warpdata.stores.address import scheme_of
from warpdata.stores.blobstore import BlobStore
from warpdata.stores.local import LocalStore
from warpdata.stores.reliable import ReliableStore

_PROBE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    is_ok: bool
    is_needed: bool
    found: str
    remedy: str = ""


def examine(settings: Settings, options: AccessOptions) -> list[Check]:
    """Try everything that reading and publishing need."""
    checks = [
        _credentials(settings, address)
        for address in options.catalogs
        if scheme_of(address) in ("s3", "gs", "az")
    ]
    checks += _cache(options)
    checks.append(_engine())
    access = Access(options)
    try:
        for catalog in access.catalogs:
            checks += _catalog(catalog)
    finally:
        access.close()
    checks += [_optional(*one) for one in _OPTIONAL]
    checks.append(_codecs())
    return checks


_OPTIONAL = (
    ("pictures", "PIL", "image"),
    ("sound", "soundfile", "audio"),
    ("video", "av", "video"),
    ("signatures", "cryptography", "crypto"),
    ("torch", "torch", "torch"),
)


def _credentials(settings: Settings, address: str) -> Check:
    kind = scheme_of(address)
    found = settings.has_credentials.get(kind, False)
    found = found or (kind == "s3" and (Path.home() / ".aws" / "credentials").exists())
    names = {"s3": "AWS_PROFILE or AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}
    remedy = f"Set {names.get(kind, 'AZURE_STORAGE_ACCOUNT_KEY')}, unless the bucket is public."
    text = "found in the environment" if found else "not in the environment"
    return Check(f"credentials for {kind}", found, False, text, "" if found else remedy)


def _cache(options: AccessOptions) -> list[Check]:
    folder = Path(os.path.expanduser(options.cache_dir))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(4)}"
        probe.write_bytes(b"x")
        probe.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = "Set WARP_CACHE_DIR to a folder that can be written."
        return [Check("cache folder", False, True, f"{folder}: {error.strerror}", remedy)]
    enough = free > min(options.cache_bytes, 1 << 30)
    remedy = "" if enough else "Free some space or lower WARP_CACHE_SIZE_GB."
    room = Check(
        "cache space", enough, False, f"{free >> 20} MiB free, limit {options.cache_bytes >> 20} MiB", remedy
    )
    return [Check("cache folder", True, True, f"{folder} can be written"), room]


def _engine() -> Check:
    try:
        pushed = engine_check()
    except (WarpError, ImportError) as error:
        return Check("duckdb", False, True, str(error), "Run: pip install --upgrade duckdb")
    return Check("duckdb", True, True, f"queries run{', filters are pushed down' if pushed else ''}")


def _catalog(catalog: Catalog) -> list[Check]:
    name = f"catalog {catalog.address}"
    store = catalog.store
    if store is None:
        return [Check(name, True, False, "offline: not asked")]
    inner = store.inner if isinstance(store, ReliableStore) else store
    folder = inner.folder if isinstance(inner, LocalStore) else None
    absent = [p for p in (folder / "probe", folder, *folder.parents) if not p.exists()] if folder else []
    checks = [_reachable(name, store)]
    if folder in absent:
        checks = [Check(name, True, True, "not there yet: publishing makes it")]
    if checks[0].is_ok and not catalog.address.startswith("http"):
        checks += _writes(name, store)
    with contextlib.suppress(OSError):  # who only looks leaves no folder
        for made in absent:
            made.rmdir()
    return checks


def _reachable(name: str, store: BlobStore) -> Check:
    start = time.perf_counter()
    try:
        if store.address.startswith("http"):
            with contextlib.suppress(FileNotFoundError):
                store.head("latest.json")
        else:
            store.folders("datasets/")
    except WarpError as error:
        return Check(name, False, True, str(error), error.hint or "Check the address and the network.")
    return Check(name, True, True, f"answers in {(time.perf_counter() - start) * 1000:.0f} ms")


def _writes(name: str, store: BlobStore) -> list[Check]:
    key = f"probe/{secrets.token_hex(8)}"
    try:
        with _removed(store, key):
            store.put_if_absent(key, secrets.token_bytes(_PROBE_BYTES))
            return [
                _conditional(name, store, key),
                _ranges(name, store, key),
                _clock(name, store, key),
            ]
    except StoreError as error:
        return [
            Check(
                f"{name}: publish", False, False, str(error), "Reading may still work; ask for write access."
            )
        ]


def _conditional(name: str, store: BlobStore, key: str) -> Check:
    try:
        store.put_if_absent(key, b"again")
    except ConflictError:
        return Check(f"{name}: conditional put", True, False, "two publishers cannot overwrite each other")
    remedy = (
        "Publish to a folder or to a server with conditional writes; this catalog can only be read safely."
    )
    return Check(f"{name}: conditional put", False, False, "the store ignores conditions", remedy)


def _ranges(name: str, store: BlobStore, key: str) -> Check:
    start = time.perf_counter()
    size = store.head(key).size
    try:
        view = store.get_ranges(key, [(0, size)])[0]
    except WarpError as error:
        remedy = "Use a server that answers ranges, or copy the catalog to one that does."
        return Check(f"{name}: range read", False, True, str(error), remedy)
    seconds = max(time.perf_counter() - start, 1e-6)
    return Check(f"{name}: range read", True, True, f"{view.nbytes / seconds / (1 << 20):.0f} MiB/s")


def _clock(name: str, store: BlobStore, key: str) -> Check:
    skew = store.head(key).modified_s - time.time()
    good = abs(skew) < 300
    remedy = "" if good else "Set this machine's clock: signed requests fail when it is wrong."
    stamp = email.utils.formatdate(time.time(), usegmt=True)
    return Check(f"{name}: clock", good, False, f"{abs(skew):.0f} s apart at {stamp}", remedy)


@contextlib.contextmanager
def _removed(store: BlobStore, key: str) -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(StoreError):
            store.delete(key)


def _optional(name: str, module: str, extra: str) -> Check:
    found = importlib.util.find_spec(module) is not None
    remedy = "" if found else f"Run: pip install 'warpdata[{extra}]'"
    return Check(name, found, False, "installed" if found else "not installed", remedy)


def _codecs() -> Check:
    codecs: Callable[[], list[str]] = video_codecs
    found = codecs()
    remedy = "" if found else "Run: pip install 'warpdata[video]'"
    return Check("video codecs", bool(found), False, ", ".join(found) or "none", remedy)
