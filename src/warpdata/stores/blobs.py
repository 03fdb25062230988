"""Blobs as range readers: through the page cache, directly from their store, or from a local file; folders of blobs.

A published blob is named by its hash and never changes. A file at a URL is known by its size and tag, and may be
replaced at any time: reading it is then a BlobChangedError.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, sha256_hex
from warpdata.bytekit.io.files import LocalRangeReader
from warpdata.bytekit.io.ranges import (
    FarRangeReader,
    Range,
    RangeReader,
    Span,
    check_range,
    coalesce,
    total_bytes,
)
from warpdata.bytekit.process.forks import OwnProcess, PerProcess, Reopens, run_in_child
from warpdata.errors import BlobChangedError, BlobNotFoundError, ChecksumError, OfflineError, StoreError
from warpdata.stores.blobstore import (
    PAGE_BYTES,
    BlobInfo,
    BlobStore,
    Meter,
    PageSums,
    ReliableStore,
    Spent,
    blob_name,
    check_sha256,
    checked_pages,
    count_traffic,
    is_strong,
    page_checksums,
    page_count,
)
from warpdata.stores.local import LocalStore
from warpdata.stores.pagecache import PageCache, PageFile

_SPAN_BYTES = 8 << 20
_HERD_TIMEOUT_S = 60.0
_WHOLE_STEP_BYTES = 16 << 20
_COPIED_BYTES = 1 << 20

Connect = Callable[[str], BlobStore]
"""From an address to an open store; a function of a module, so that it can be pickled by name."""

OpenCache = Callable[[], PageCache | None]
"""Returns the page cache of this process, if one is used; a function of a module too."""


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Identity of a blob: its hash, its size, its name in the store, and its name in errors."""

    sha256: str
    """Empty if it is not known: then `same_as` identifies the bytes."""
    size: int
    key: str
    label: str
    same_as: BlobInfo | None = None
    """Size and tag of the blob when it was opened."""

    @property
    def cache_name(self) -> str | None:
        """The name of its pages in a cache; None if nothing shows whether two blobs are the same."""
        if self.sha256:
            return self.sha256
        if self.same_as is None or not is_strong(self.same_as.etag):
            return None
        return sha256_hex(f"{self.label}\0{self.same_as.etag}\0{self.size}".encode())


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """Bytes of some ranges, and the whole blob as one view if all of them are in one local file."""

    views: list[memoryview]
    whole: memoryview | None = None
    """Only the requested ranges are present and checked; the rest may be holes."""


class _Claim:
    """Pages that one thread fetches; released when it is done, or when the claim is garbage collected."""

    def __init__(self, release: Callable[[list[int]], None]) -> None:
        self.pages: list[int] = []
        self._release = release
        self._own = OwnProcess()

    def __enter__(self) -> list[int]:
        return self.pages

    def __exit__(self, *_: object) -> None:
        pages, self.pages = self.pages, []
        if pages and self._own:  # in a forked child other threads may have the pages
            self._release(pages)

    def __del__(self) -> None:
        self.__exit__()


class BlobReader:
    """Ranges of one blob; every page that is fetched is checked when its publisher's sums are known."""

    is_local = False

    def __init__(
        self,
        address: BlobAddress,
        store: BlobStore | None,
        cache: PageCache | None,
        sums: PageSums | None = None,
    ) -> None:
        self.address = address
        self.name = f"{address.label} (sha256 {address.sha256})" if address.sha256 else address.label
        self.size = address.size
        self._store = store
        self._cache_name = address.cache_name if address.size else None
        self._cache = cache if self._cache_name else None
        self._sums = sums
        self._dropped: set[int] = set()
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Forget which pages are being fetched: the threads that fetch them are not in a forked child."""
        self._busy: set[int] = set()
        self._turn = threading.Condition()
        self._counted: NDArray[np.bool_] | None = None

    @property
    def spent(self) -> Spent | None:
        """Requests and bytes so far, if the store counts them."""
        return self._store.meter.spent if isinstance(self._store, ReliableStore) else None

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, in few requests made at the same time."""
        return self.hold(ranges).views

    def hold(self, ranges: Sequence[Range]) -> RangeBytes:
        """Exactly the bytes of each range, and the file they are in if there is one."""
        for start, end in ranges:
            check_range(self, start, end)
        return self._hold(ranges, None)

    def claim(self, ranges: Sequence[Range]) -> Callable[[], RangeBytes]:
        """A function that holds these ranges, for a thread to run at once.

        The pages it fetches are settled now: a page that several readers need is fetched by the one that claimed it
        first, whichever thread runs first. So the requests of a pass are known beforehand.
        """
        for start, end in ranges:
            check_range(self, start, end)
        if self.has(ranges):
            return partial(self._hold, ranges, None)
        with self._pinned() as file:
            wanted = [] if file is None or file.is_read_only else _missing(file, ranges)
            return partial(self._hold, ranges, None if file is None else self._take(wanted))

    def _hold(self, ranges: Sequence[Range], claim: _Claim | None) -> RangeBytes:
        # A claim is released in any case: other threads wait for it.
        with claim or contextlib.nullcontext(), self._pinned() as file:
            if file is None or self._cache is None:
                return RangeBytes(self._read_direct(ranges))
            return self._read_cached(self._cache, file, ranges, claim)

    @contextlib.contextmanager
    def _pinned(self, *, make: bool = True) -> Iterator[PageFile | None]:
        """The cached pages of the blob; None if there is no cache, or it fails and the store is still there."""
        file = None
        if self._cache is not None and self._cache_name is not None:
            try:
                file = self._cache.pin_blob(self._cache_name, self.size, make=make)
            except StoreError as error:
                if self._store is None:
                    raise
                self._cache.complain(error)
        try:
            yield file
        finally:
            if file is not None:
                file.unpin()

    def resident(self, start: int, end: int) -> memoryview | None:
        """A view of the bytes [start, end) if all of them are in the cache and sound; nothing is fetched.

        It stays valid when the blob is evicted: the mapping keeps its bytes.
        """
        check_range(self, start, end)
        with self._pinned() as file:
            pages = _pages((start, end))
            if file is None or not file.seems_here(*pages) or file.missing(*pages):
                return None
            return file.read(start, end)

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget the cached bytes [start, end), so that the next read fetches them.

        False without a cache, and if all of them were dropped before: then their source is damaged.
        """
        with self._pinned(make=False) as file:
            if file is None or file.is_read_only:
                return False
            pages = range(*_pages((start, end)))
            file.drop(pages.start, pages.stop)
            is_first = not self._dropped.issuperset(pages)
            self._dropped.update(pages)
            return is_first

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Fetch ranges into the cache, if there is one."""
        if self._cache is not None:
            self.read_many(ranges)

    def has(self, ranges: Sequence[Range]) -> bool:
        """Whether these ranges can be read without waiting for a store, unless they are evicted meanwhile."""
        file = None
        if self._cache is not None and self._cache_name is not None:
            file = self._cache.find_open(self._cache_name)  # not pinned: its map is only looked at
        if file is not None:
            return all(file.seems_here(*_pages(part)) for part in ranges)
        with self._pinned() as file:
            return file is not None and all(file.seems_here(*_pages(part)) for part in ranges)

    def costs(self, reads: Sequence[Sequence[Range]]) -> list[int]:
        """The bytes of each request that these reads, one after the other, will make of the store.

        Nothing is written, so that planning a pass does not evict what it needs.
        """
        with self._pinned(make=False) as file:
            if file is None and not self.is_kept():
                spans = [(span.start, span.end) for ranges in reads for span in self._direct_spans(ranges)]
                return [end - start for span in spans for start, end in _split(span) if end > start]
            sizes: list[int] = []
            fetched: set[int] = set()
            for ranges in reads:
                wanted = _missing(file, ranges)
                pages = [page for page in wanted if page not in fetched]
                if file is None or not file.is_read_only:
                    fetched.update(pages)
                spans = [self._bytes_of(run) for run in _runs(pages)]
                sizes += [end - start for span in spans for start, end in _split(span)]
            return sizes

    def is_kept(self) -> bool:
        """Whether its fetched pages are kept in a cache, as long as there is room."""
        try:
            return self._cache is not None and self._cache.is_writable()
        except StoreError:
            return False

    def missing_bytes(self) -> int:
        """How many bytes are not on this disk yet."""
        with self._pinned(make=False) as file:
            return 0 if self.is_local else self.size - (0 if file is None else file.present_bytes)

    def load_whole(self) -> Path | None:
        """Fetch the whole blob and check its hash; the path of its bytes, or None without a cache."""
        if self._cache is None:
            return None
        for start in range(0, self.size, _WHOLE_STEP_BYTES):
            self.prefetch([(start, min(start + _WHOLE_STEP_BYTES, self.size))])
        for is_last in (False, True):
            file = self._cache.pin_blob(self.address.sha256, self.size)
            if file is None:
                return None
            try:
                if not file.is_complete:
                    return None
                if file.is_whole(self.address.sha256):
                    return file.data_path
                file.drop()
            finally:
                file.unpin()
            if is_last:
                raise ChecksumError(f"sha256 mismatch: expected {self.address.sha256[:12]}…", path=self.name)
            self.prefetch([(0, self.size)])
        return None

    def verify(self) -> None:
        """Read everything from its store (offline: from the cache) and compare with the hash."""
        running = RunningSha256()
        for start in range(0, self.size, _WHOLE_STEP_BYTES):
            running.update(self._read_stored(start, min(start + _WHOLE_STEP_BYTES, self.size)))
        check_sha256(self.address.sha256, running.hexdigest(), self.name)

    def _read_stored(self, start: int, end: int) -> memoryview:
        return self.read(start, end) if self._store is None else self._read_direct([(start, end)])[0]

    def close(self) -> None:
        """Nothing is held open."""

    def _read_direct(self, ranges: Sequence[Range]) -> list[memoryview]:
        spans = self._direct_spans(ranges)
        out: list[memoryview] = [memoryview(b"")] * len(ranges)
        for span, data in zip(spans, self._fetch([(span.start, span.end) for span in spans]), strict=True):
            if self._sums is not None:
                data, _ = self._as_published(span.start // PAGE_BYTES, data)
            for member in span.members:
                start, end = ranges[member]
                out[member] = data[start - span.start : end - span.start].toreadonly()
        return out

    def _direct_spans(self, ranges: Sequence[Range]) -> list[Span]:
        """The requests without a cache: whole pages where their sums are known."""
        wanted = ranges if self._sums is None else [self._bytes_of(_pages(part)) for part in ranges]
        return coalesce(wanted, max_span_bytes=_SPAN_BYTES)

    def _read_cached(
        self, cache: PageCache, file: PageFile, ranges: Sequence[Range], claim: _Claim | None
    ) -> RangeBytes:
        unkept: dict[int, memoryview] = {}
        wanted = _missing(file, ranges)
        if self._counted is None:
            self._counted = np.zeros(page_count(self.size), np.bool_)
        counted, size = self._counted, 0
        counted[wanted] = True
        for first, last in map(_pages, ranges):
            if not counted[first:last].all():
                size += int((~counted[first:last]).sum()) * PAGE_BYTES
                if last == len(counted) and not counted[-1]:
                    size -= last * PAGE_BYTES - self.size
                counted[first:last] = True
        if size:
            count_traffic(cache=size)
        if file.is_read_only:
            self._fetch_pages(file, _runs(wanted), unkept)
            wanted = []
        while wanted:
            with claim or self._take(wanted, waits=True) as mine:
                runs = _runs(mine)
                locked = [run for run in runs if file.lock_pages(run)]
                try:
                    self._fetch_pages(file, locked, unkept, cache)
                finally:
                    for run in locked:
                        file.unlock_pages(run)
                others = [run for run in runs if run not in locked]
            is_stuck = claim is None and not mine
            claim = None
            wanted = [page for page in wanted if page not in unkept and file.missing(page, page + 1)]
            # Pages that another process claimed and never fetches are fetched without keeping them.
            self._fetch_pages(file, _runs(wanted) if is_stuck else _wait_for_locks(file, others), unkept)
            wanted = [page for page in wanted if page not in unkept]
        views = [self._join(file, part, unkept) for part in ranges]
        return RangeBytes(views, None if unkept else file.read(0, self.size))

    def _take(self, pages: list[int], *, waits: bool = False) -> _Claim:
        """Claim the pages that no other thread of this process is fetching or about to fetch.

        With `waits`, wait while all are taken; the claim is empty after a timeout.
        """
        claim = _Claim(self._release)
        with self._turn:
            self._turn.wait_for(lambda: not waits or not self._busy.issuperset(pages), _HERD_TIMEOUT_S)
            claim.pages = [page for page in pages if page not in self._busy]
            self._busy.update(claim.pages)
        return claim

    def _release(self, pages: list[int]) -> None:
        with self._turn:
            self._busy.difference_update(pages)
            self._turn.notify_all()

    def _fetch_pages(
        self, file: PageFile, runs: list[Range], unkept: dict[int, memoryview], cache: PageCache | None = None
    ) -> None:
        """Fetch the missing pages of runs; those that are not kept in the cache are added to `unkept`."""
        missing = _runs([page for run in runs for page in file.missing(*run)])
        for run, data in zip(missing, self._fetch([self._bytes_of(run) for run in missing]), strict=True):
            data, sums = self._as_published(run[0], data)
            pieces = [data[i : i + PAGE_BYTES] for i in range(0, data.nbytes, PAGE_BYTES)]
            if cache is None or not cache.keep(file, run[0], pieces, sums):
                unkept.update(zip(range(*run), pieces, strict=True))

    def _join(self, file: PageFile, part: Range, unkept: dict[int, memoryview]) -> memoryview:
        """The bytes of a range: a view of the file, or joined where some pages could not be kept."""
        start, end = part
        first, last = _pages(part)
        if not unkept or not any(page in unkept for page in range(first, last)):
            return file.read(start, end)
        pieces = [
            unkept.get(page) or file.read(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, end))
            for page in range(first, last)
        ]
        return memoryview(b"".join(pieces))[start - first * PAGE_BYTES : end - first * PAGE_BYTES]

    def _fetch(self, ranges: Sequence[Range]) -> list[memoryview]:
        if not ranges:
            return []
        if self._store is None:
            raise OfflineError(f"{total_bytes(ranges)} bytes are not in the cache", path=self.name)
        spans = [piece for part in ranges for piece in _split(part)]
        try:
            pieces = iter(self._store.get_ranges(self.address.key, spans, same_as=self.address.same_as))
        except BlobNotFoundError:
            if self.address.same_as is not None:
                raise BlobChangedError("the blob was removed since it was opened", path=self.name) from None
            hint = "Publish the version again, or restore the blob from another copy."
            raise BlobNotFoundError("the blob is not in its store", path=self.name, hint=hint) from None
        count_traffic(network=total_bytes(ranges))
        out = [[next(pieces) for _ in _split(part)] for part in ranges]
        return [part[0] if len(part) == 1 else memoryview(b"".join(part)) for part in out]

    def _as_published(self, first: int, data: memoryview) -> tuple[memoryview, list[int]]:
        """Data fetched from page `first` on, and its sums; what is not as published is fetched once more."""
        for is_last in (False, True):
            sums = page_checksums(data)
            if self._sums is None:
                break
            bad = np.flatnonzero(self._sums[first : first + len(sums)] != np.asarray(sums, np.uint32))
            if not bad.size:
                break
            if is_last:
                raise ChecksumError(f"checksum mismatch in page {first + int(bad[0])}", path=self.name)
            (data,) = self._fetch([(first * PAGE_BYTES, first * PAGE_BYTES + data.nbytes)])
        return data, sums

    def _bytes_of(self, pages: Range) -> Range:
        return pages[0] * PAGE_BYTES, min(pages[1] * PAGE_BYTES, self.size)


class LocalBlobReader(BlobReader):
    """Ranges of a blob in a folder as views of its mapping; pages are checked when first touched."""

    is_local = True

    def __init__(
        self,
        address: BlobAddress,
        store: LocalStore,
        sums: PageSums | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.address = address
        self.name = f"{address.label} (sha256 {address.sha256})"
        self._meter = meter
        self._store = self._cache = None
        self._file = LocalRangeReader(store.file(address.key))
        self._file.copied_bytes = _COPIED_BYTES
        self.size = self._file.size
        if self.size != address.size:
            fact = f"size mismatch: expected {address.size} bytes, got {self.size}"
            raise ChecksumError(fact, path=self.name)
        self._sums = sums
        self._checked = checked_pages(address.sha256, self._file.stamp, page_count(self.size))

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end): of a guide or an index a copy, because mapping a file takes longer."""
        if self._sums is not None:
            return super().read(start, end)
        if self._meter is not None:
            self._meter.request("read", self.name, read=end - start)
        return self._file.read(start, end)

    def _hold(self, ranges: Sequence[Range], claim: _Claim | None) -> RangeBytes:
        del claim  # nothing is fetched
        if self._meter is not None:
            self._meter.request("read", self.name, read=total_bytes(ranges))
        whole = self._file.view(0, self.size)
        for first, last in map(_pages, ranges) if self._sums is not None else ():
            for page in (np.flatnonzero(~self._checked[first:last]) + first).tolist():
                (actual,) = page_checksums(whole[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
                if self._sums is None or actual != self._sums[page]:
                    raise ChecksumError(f"checksum mismatch in page {page}", path=self.name)
                self._checked[page] = True
        return RangeBytes([whole[start:end] for start, end in ranges], whole)

    def has(self, ranges: Sequence[Range]) -> bool:  # noqa: ARG002
        """Always: the bytes are here."""
        return True

    def costs(self, reads: Sequence[Sequence[Range]]) -> list[int]:
        """The bytes of each read."""
        return list(map(total_bytes, reads))

    def load_whole(self) -> Path | None:
        """The path of the blob, after checking its hash."""
        self.verify()
        return Path(self._file.name)

    def _read_stored(self, start: int, end: int) -> memoryview:
        return self._file.read(start, end)

    def close(self) -> None:
        """Drop the mapping."""
        self._file.close()


class StoreFolder(Reopens):
    """The files below one address in a store; in another process it connects again by address."""

    def __init__(self, address: str, connect: Connect, open_cache: OpenCache | None = None) -> None:
        self.name = address
        self._connect = connect
        self.open_cache = open_cache
        self._stores = PerProcess(lambda: connect(address))

    @property
    def store(self) -> BlobStore:
        """The store of this process: connections and threads do not survive a fork."""
        return self._stores()

    def file(self, name: str) -> StoreFile:
        """The reader of a file, or BlobNotFoundError."""
        return StoreFile(self, name, self.store.head(name))

    def open(self, name: str) -> RangeReader:
        """The bytes of a file, or BlobNotFoundError; without a cache the last pages stay in memory."""
        file = self.file(name)
        return file if file.is_cached or self.store.is_local else FarRangeReader(file)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        try:
            self.store.head(name)
        except BlobNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of all files, if the store can list them."""
        return [info.key for info in self.store.list("")]

    def below(self, name: str) -> StoreFolder:
        """The folder of this name inside this one."""
        address, mark, settings = self.name.partition("?")
        return StoreFolder(f"{address.rstrip('/')}/{name}{mark}{settings}", self._connect, self.open_cache)

    def close(self) -> None:
        """Close connections; the next read makes new ones."""
        store = self._stores.reset()
        if store is not None:
            store.close()


class StoreFile(BlobReader):
    """Ranges of one file of a folder as it was when it was opened, through the page cache if there is one.

    If the file is replaced meanwhile, reading it is an error: bytes of two files are never mixed.
    """

    def __init__(self, folder: StoreFolder, key: str, info: BlobInfo) -> None:
        self._folder = folder
        name = blob_name(folder.name.partition("?")[0], key)
        cache = None if folder.open_cache is None or folder.store.is_local else folder.open_cache()
        super().__init__(BlobAddress("", info.size, key, name, info), folder.store, cache)

    @property
    def is_cached(self) -> bool:
        """Whether its pages are kept on this machine."""
        return self._cache is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return (StoreFile, (self._folder, self.address.key, self.address.same_as))


def _pages(part: Range) -> Range:
    start, end = part
    first = start // PAGE_BYTES
    return first, page_count(end) if end > start else first


def _missing(file: PageFile | None, ranges: Sequence[Range]) -> list[int]:
    """The pages of some ranges that are not here, ascending; without a file all of them."""
    missing = range if file is None else file.missing
    return sorted({page for part in ranges for page in missing(*_pages(part))})


def _wait_for_locks(file: PageFile, runs: list[Range]) -> list[Range]:
    """Wait until other processes have fetched these pages, or ended; the runs still locked after a timeout."""
    stuck: list[Range] = []
    for run in runs:
        timeout_s = 0.0 if stuck else _HERD_TIMEOUT_S
        if file.lock_pages(run, timeout_s):
            file.unlock_pages(run)
        else:
            stuck.append(run)
    return stuck


def _runs(pages: Sequence[int]) -> list[Range]:
    """Ascending pages as runs [first, last) of neighbours."""
    runs: list[Range] = []
    for page in sorted(set(pages)):
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs


def _split(part: Range) -> list[Range]:
    """A long range as several requests that run at the same time."""
    start, end = part
    if end - start <= _SPAN_BYTES:
        return [part]
    return [(at, min(at + _SPAN_BYTES, end)) for at in range(start, end, _SPAN_BYTES)]
