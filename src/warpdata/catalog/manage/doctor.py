"""Checks whether this machine can read and publish; each check has its result and a remedy."""

from __future__ import annotations

import contextlib
import email.utils
import importlib.util
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warpdata.catalog.access import Access, AccessOptions, Catalog
from warpdata.catalog.read.media import video_codecs
from warpdata.errors import ConflictError, StoreError, WarpError, install_command
from warpdata.settings import Settings
from warpdata.sql.engine import engine_check
from warpdata.stores.address import scheme_of
from warpdata.stores.blobstore import BlobStore, ReliableStore
from warpdata.stores.local import LocalStore

_PROBE_BYTES = 1 << 20
_MAX_SKEW_S = 300
_CREDENTIALS = {
    "s3": "AWS_PROFILE or AWS_ACCESS_KEY_ID",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY",
}
_OPTIONAL = (
    ("pictures", "PIL", "image"),
    ("sound", "soundfile", "audio"),
    ("video", "av", "video"),
    ("signatures", "cryptography", "crypto"),
    ("torch", "torch", "torch"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    is_ok: bool
    is_needed: bool
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.is_ok:
            object.__setattr__(self, "remedy", "")


def examine(settings: Settings, options: AccessOptions) -> list[Check]:
    """Check everything that reading and publishing need."""
    checks: list[Check] = []
    for kind in (scheme_of(address) for address in options.catalogs):
        if kind in _CREDENTIALS:
            is_set = settings.has_credentials.get(kind, False)
            is_set = is_set or (kind == "s3" and (Path.home() / ".aws" / "credentials").exists())
            remedy = f"Set {_CREDENTIALS[kind]}, unless the bucket is public."
            state = "found in the environment" if is_set else "not in the environment"
            checks.append(Check(f"credentials for {kind}", is_set, False, state, remedy))
    checks += _check_cache(options)
    try:
        pushed = ", filters are pushed down" if engine_check() else ""
        checks.append(Check("duckdb", True, True, f"queries run{pushed}"))
    except (WarpError, ImportError) as error:
        checks.append(Check("duckdb", False, True, str(error), "Run: pip install --upgrade duckdb"))
    with contextlib.closing(Access(options)) as access:
        for catalog in access.catalogs:
            checks += _check_catalog(catalog)
    for name, module, extra in _OPTIONAL:
        is_there = importlib.util.find_spec(module) is not None
        remedy = f"Run: {install_command(extra)}"
        checks.append(Check(name, is_there, False, "installed" if is_there else "not installed", remedy))
    codecs, remedy = video_codecs(), f"Run: {install_command('video')}"
    return [*checks, Check("video codecs", bool(codecs), False, ", ".join(codecs) or "none", remedy)]


def _check_cache(options: AccessOptions) -> list[Check]:
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
    is_enough = free > min(options.cache_bytes, 1 << 30)
    remedy = "Free some space or lower WARP_CACHE_SIZE_GB."
    space = f"{free >> 20} MiB free, limit {options.cache_bytes >> 20} MiB"
    writable = Check("cache folder", True, True, f"{folder} can be written")
    return [writable, Check("cache space", is_enough, False, space, remedy)]


def _check_catalog(catalog: Catalog) -> list[Check]:
    name = f"catalog {catalog.address}"
    store = catalog.store
    if store is None:
        return [Check(name, True, False, "offline: not checked")]
    is_web = catalog.address.startswith("http")
    inner = store.inner if isinstance(store, ReliableStore) else store
    folder = inner.folder if isinstance(inner, LocalStore) else None
    missing = [p for p in (folder / "probe", folder, *folder.parents) if not p.exists()] if folder else []
    if folder in missing:
        checks = [Check(name, True, True, "not there yet: publishing makes it")]
    else:
        start = time.perf_counter()
        try:
            with contextlib.suppress(FileNotFoundError):
                store.head("latest.json") if is_web else store.folders("datasets/")
            took_ms = (time.perf_counter() - start) * 1000
            checks = [Check(name, True, True, f"answers in {took_ms:.0f} ms")]
        except WarpError as error:
            remedy = error.hint or "Check the address and the network."
            checks = [Check(name, False, True, str(error), remedy)]
    if checks[0].is_ok and not is_web:
        try:
            checks += _check_writes(name, store)
        except StoreError as error:
            remedy = "Reading may still work; request write access."
            checks.append(Check(f"{name}: publish", False, False, str(error), remedy))
    with contextlib.suppress(OSError):  # leave no folder behind
        for made in missing:
            made.rmdir()
    return checks


def _check_writes(name: str, store: BlobStore) -> Iterator[Check]:
    """Conditional put, range read and clock, with a blob that is removed afterwards."""
    key = f"probe/{secrets.token_hex(8)}"
    try:
        store.put_if_absent(key, secrets.token_bytes(_PROBE_BYTES))
        try:
            store.put_if_absent(key, b"again")
            remedy = "Publish to a folder or to a server with conditional writes; this catalog can only be read safely."
            yield Check(f"{name}: conditional put", False, False, "the store ignores conditions", remedy)
        except ConflictError:
            yield Check(f"{name}: conditional put", True, False, "two publishers cannot overwrite each other")
        info, start = store.head(key), time.perf_counter()
        try:
            view = store.get_ranges(key, [(0, info.size)])[0]
            rate = view.nbytes / max(time.perf_counter() - start, 1e-6) / (1 << 20)
            yield Check(f"{name}: range read", True, True, f"{rate:.0f} MiB/s")
        except WarpError as error:
            remedy = "Use a server that answers ranges, or copy the catalog to one that does."
            yield Check(f"{name}: range read", False, True, str(error), remedy)
        skew = abs(info.modified_s - time.time())
        is_right = skew < _MAX_SKEW_S
        remedy = "Set this machine's clock: signed requests fail when it is wrong."
        now = email.utils.formatdate(time.time(), usegmt=True)
        yield Check(f"{name}: clock", is_right, False, f"{skew:.0f} s apart at {now}", remedy)
    finally:
        with contextlib.suppress(StoreError):
            store.delete(key)
