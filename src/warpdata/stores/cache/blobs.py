"""A blob as a RangeReader: through the page cache, straight from its store, or from this disk.

A published blob is named by its hash and never changes. What lies at a URL is known by its size and tag, and may be
replaced at any time: then it is no longer the blob that was opened, and says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import RunningSha256, crc32c, sha256_hex
from warpdata.bytekit.io.files import MmapRangeReader
from warpdata.bytekit.io.ranges import Range, Span, check_range, coalesce
from warpdata.bytekit.process import locks
from warpdata.bytekit.process.forks import OwnProcess, run_in_child
from warpdata.errors import BlobChangedError, BlobNotFoundError, ChecksumError, OfflineError, StoreError
from warpdata.stores.blobstore import BlobInfo, BlobStore, is_strong
from warpdata.stores.cache import layout
from warpdata.stores.cache.layout import PAGE_BYTES
from warpdata.stores.cache.page_cache import PageCache
from warpdata.stores.cache.pagefile import PageFile, checked_pages
from warpdata.stores.local import LocalStore
from warpdata.stores.meter import Meter, Spent, count_traffic
from warpdata.stores.reliable import ReliableStore

PageSums = NDArray[np.uint32]
"""CRC-32C of each page of a blob, as its publisher computed them."""

_SPAN_BYTES = 8 << 20
_HERD_TIMEOUT_S = 60.0
_WHOLE_STEP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Which blob: its hash, its size, its name in the store, and what to call it in an error."""

    sha256: str
    """Nothing where it is not known: then `same_as` says which bytes are meant."""
    size: int
    key: str
    label: str
    same_as: BlobInfo | None = None
    """What the store said of it when it was opened."""

    @property
    def cache_name(self) -> str | None:
        """What its pages are called in a cache; None where nothing tells whether two blobs are the same."""
        if self.sha256:
            return self.sha256
        if self.same_as is None or not is_strong(self.same_as.etag):
            return None
        return sha256_hex(f"{self.label}\0{self.same_as.etag}\0{self.size}".encode())


@dataclass(frozen=True, slots=True)
class RangeBytes:
    """Bytes of some ranges, and the whole blob as one view where they all lie in one file of this machine."""

    views: list[memoryview]
    whole: memoryview | None = None
    """Only the ranges that were asked for are here and checked; the rest may be holes."""


class _Claim:
    """Pages that one thread fetches; they are let go when it is done, or when nothing is left that would do it."""

    def __init__(self, release: Callable[[list[int]], None]) -> None:
        self.pages: list[int] = []
        self._release = release
        self._own = OwnProcess()

    def __enter__(self) -> list[int]:
        return self.pages

    def __exit__(self, *_: object) -> None:
        pages, self.pages = self.pages, []
        if pages and self._own:  # in a forked child it is no claim: there others may have the pages
            self._release(pages)

    def __del__(self) -> None:
        self.__exit__()


class BlobReader:
    """Ranges of one blob; every page that is fetched is checked when its publisher's sums are known."""

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
        self._cache = cache
        self._cache_name = address.cache_name
        self._sums = sums
        self._start()
        run_in_child(self.in_child)

    def _start(self) -> None:
        """Fresh state: what the threads of a parent were fetching, no thread of a forked child is."""
        self._busy: set[int] = set()
        self._turn = threading.Condition()
        self._asked: NDArray[np.bool_] | None = None

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    @property
    def spent(self) -> Spent | None:
        """What reading from the store has cost so far, if the store counts it."""
        return self._store.meter.spent if isinstance(self._store, ReliableStore) else None

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end)."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, in few requests made at the same time."""
        return self.hold(ranges).views

    def hold(self, ranges: Sequence[Range]) -> RangeBytes:
        """Exactly the bytes of each range, and the cached file they are in if there is one."""
        for start, end in ranges:
            check_range(self, start, end)
        return self._hold(ranges, None)

    def asked(self, ranges: Sequence[Range]) -> Callable[[], RangeBytes]:
        """What a thread is to run at once to hold these ranges.

        Which pages it fetches is settled here: a page that several readers need is fetched by the one that asked first,
        whichever thread runs first. So the requests of a pass are known beforehand.
        """
        for start, end in ranges:
            check_range(self, start, end)
        file = self._pinned()
        if file is None:
            return partial(self._hold, ranges, None)
        try:
            shared = [] if file.is_read_only else _missing(file, ranges)
            return partial(self._hold, ranges, self._claimed(shared))
        finally:
            file.unpin()

    def _hold(self, ranges: Sequence[Range], claim: _Claim | None) -> RangeBytes:
        with contextlib.ExitStack() as stack:
            if claim is not None:
                stack.push(claim)  # let go whatever happens: others wait for it
            file = self._pinned()
            if file is None or self._cache is None:
                return RangeBytes(self._read_direct(ranges))
            stack.callback(file.unpin)
            return self._read_cached(self._cache, file, ranges, claim)

    def _pinned(self, *, make: bool = True) -> PageFile | None:
        """The blob's place in the cache; None where no cache can be used but the store is still there."""
        if self._cache is None or self._cache_name is None or self.size == 0:
            return None
        try:
            return self._cache.pinned(self._cache_name, self.size, make=make)
        except StoreError as error:
            if self._store is None:
                raise
            self._cache.complain(error)
            return None

    def resident(self, start: int, end: int) -> memoryview | None:
        """A view of the bytes [start, end) if all of them are in the cache and sound; nothing is fetched.

        It stays valid when the blob is evicted: the mapping keeps its bytes.
        """
        check_range(self, start, end)
        file = self._pinned()
        if file is None:
            return None
        try:
            first, last = _pages((start, end))
            is_here = file.seems_here(first, last) and not file.missing(first, last)
            return file.read(start, end) if is_here else None
        finally:
            file.unpin()

    def drop_cached(self, start: int, end: int) -> bool:
        """Forget the cached bytes [start, end), so that the next read fetches them; False without a cache."""
        file = self._pinned(make=False)
        if file is None:
            return False
        try:
            file.drop(*_pages((start, end)))
            return not file.is_read_only
        finally:
            file.unpin()

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Bring ranges into the cache, if there is one."""
        if self._cache is not None:
            self.read_many(ranges)

    def has(self, ranges: Sequence[Range]) -> bool:
        """Whether these ranges can be read without waiting for a store."""
        file = self._pinned()
        if file is None:
            return False
        try:
            return all(file.seems_here(*_pages(r)) for r in ranges)
        finally:
            file.unpin()

    def costs(self, reads: Sequence[Sequence[Range]]) -> list[int]:
        """The bytes of each request that these reads, one after the other, will make of the store.

        Nothing is written: who asks what a pass costs must not evict what it needs.
        """
        file = self._pinned(make=False)
        if file is None:
            if self.is_kept():
                return self._cached_costs(_pages_of, reads)
            return [size for ranges in reads for size in self._direct_costs(ranges)]
        try:
            return self._cached_costs(partial(_missing, file), reads, kept=not file.is_read_only)
        finally:
            file.unpin()

    def is_kept(self) -> bool:
        """Whether what is fetched of it is kept in a cache, as long as there is room."""
        if self._cache is None or self._cache_name is None or self.size == 0:
            return False
        try:
            return self._cache.is_writable()
        except StoreError:
            return False

    def _direct_costs(self, ranges: Sequence[Range]) -> list[int]:
        return [
            end - start
            for span in self._direct_spans(ranges)
            for start, end in _split((span.start, span.end))
            if end > start
        ]

    def _cached_costs(
        self,
        missing: Callable[[Sequence[Range]], list[int]],
        reads: Sequence[Sequence[Range]],
        *,
        kept: bool = True,
    ) -> list[int]:
        sizes: list[int] = []
        brought: set[int] = set()
        for ranges in reads:
            pages = [page for page in missing(ranges) if page not in brought]
            if kept:
                brought.update(pages)
            for first, last in _runs(pages):
                whole = first * PAGE_BYTES, min(last * PAGE_BYTES, self.size)
                sizes += [end - start for start, end in _split(whole)]
        return sizes

    def missing_bytes(self) -> int:
        """How many bytes are not on this disk yet."""
        file = self._pinned(make=False)
        if file is None:
            return self.size
        try:
            return self.size - file.present_bytes
        finally:
            file.unpin()

    def load_whole(self, progress: Callable[[int], None] | None = None) -> Path | None:
        """Bring the whole blob here and check its hash; the path of its bytes, or None without a cache."""
        for start in range(0, self.size, _WHOLE_STEP_BYTES):
            end = min(start + _WHOLE_STEP_BYTES, self.size)
            self.prefetch([(start, end)])
            if progress is not None:
                progress(end - start)
        return self._whole_path(retry=True)

    def verify(self) -> None:
        """Read everything from where it was published (offline: from the cache) and compare with the hash."""
        running = RunningSha256()
        for start in range(0, self.size, _WHOLE_STEP_BYTES):
            wanted = [(start, min(start + _WHOLE_STEP_BYTES, self.size))]
            running.update((self.read_many(wanted) if self._store is None else self._read_direct(wanted))[0])
        check_sha256(self.address.sha256, running.hexdigest(), self.name)

    def close(self) -> None:
        """Nothing is held open."""

    def _whole_path(self, *, retry: bool) -> Path | None:
        if self._cache is None or self.size == 0:
            return None
        file = self._cache.pinned(self.address.sha256, self.size)
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
        if not retry:
            raise ChecksumError(f"sha256 mismatch: expected {self.address.sha256[:12]}…", path=self.name)
        self.prefetch([(0, self.size)])
        return self._whole_path(retry=False)

    def _read_direct(self, ranges: Sequence[Range]) -> list[memoryview]:
        spans = self._direct_spans(ranges)
        found = self._fetch([(span.start, span.end) for span in spans])
        out: list[memoryview] = [memoryview(b"")] * len(ranges)
        for span, data in zip(spans, found, strict=True):
            if self._sums is not None:
                self._checked(span.start, data)
            for member in span.members:
                start, end = ranges[member]
                out[member] = data[start - span.start : end - span.start].toreadonly()
        return out

    def _direct_spans(self, ranges: Sequence[Range]) -> list[Span]:
        """What is asked of the store without a cache: whole pages where their sums are known."""
        wanted = [self._aligned(r) for r in ranges] if self._sums is not None else list(ranges)
        return coalesce(wanted, max_span_bytes=_SPAN_BYTES)

    def _read_cached(
        self, cache: PageCache, file: PageFile, ranges: Sequence[Range], claim: _Claim | None
    ) -> RangeBytes:
        streamed: dict[int, memoryview] = {}
        wanted = _missing(file, ranges)
        self._count_cached(ranges, wanted)
        if file.is_read_only:
            self._bring_alone(file, _runs(wanted), streamed)
            wanted = []
        while wanted:
            with claim or self._awaited(wanted) as mine:
                others = self._bring(cache, file, mine, streamed)
            is_stuck = claim is None and not mine
            claim = None
            wanted = [page for page in wanted if page not in streamed and file.missing(page, page + 1)]
            stuck = _runs(wanted) if is_stuck else self._await(file, others)
            self._bring_alone(file, stuck, streamed)
            wanted = [page for page in wanted if page not in streamed]
        views = [self._joined(file, r, streamed) for r in ranges]
        return RangeBytes(views, None if streamed else file.read(0, self.size))

    def _count_cached(self, ranges: Sequence[Range], missing: list[int]) -> None:
        """Count the pages that are asked for the first time and are here."""
        if self._asked is None:
            self._asked = np.zeros(layout.page_count(self.size), np.bool_)
        asked, found = self._asked, 0
        asked[missing] = True
        for first, last in map(_pages, ranges):
            if not asked[first:last].all():
                found += int((~asked[first:last]).sum()) * PAGE_BYTES
                if last == len(asked) and not asked[-1]:
                    found -= last * PAGE_BYTES - self.size
                asked[first:last] = True
        if found:
            count_traffic(cache=found)

    def _claimed(self, pages: list[int]) -> _Claim:
        """The pages no other thread here is fetching or about to fetch."""
        claim = _Claim(self._release)
        with self._turn:
            claim.pages = [page for page in pages if page not in self._busy]
            self._busy.update(claim.pages)
        return claim

    def _awaited(self, pages: list[int]) -> _Claim:
        """The same; waits when all are taken, and gives none when whoever took them does not go on."""
        with self._turn:
            self._turn.wait_for(lambda: not self._busy.issuperset(pages), _HERD_TIMEOUT_S)
            return self._claimed(pages)

    def _release(self, pages: list[int]) -> None:
        with self._turn:
            self._busy.difference_update(pages)
            self._turn.notify_all()

    def _bring(
        self, cache: PageCache, file: PageFile, pages: list[int], streamed: dict[int, memoryview]
    ) -> list[Range]:
        """Fetch the runs of pages nobody else on this machine is fetching; returns the other runs."""
        runs = _runs(pages)
        locked = [run for run in runs if locks.lock_range(file.map_fd, *_lock_range(run))]
        try:
            still = _runs([page for run in locked for page in file.missing(*run)])
            spans = [(first * PAGE_BYTES, min(last * PAGE_BYTES, self.size)) for first, last in still]
            for (first, last), data in zip(still, self._fetch(spans), strict=True):
                self._keep(cache, file, (first, last), data, streamed)
        finally:
            for run in locked:
                locks.unlock_range(file.map_fd, *_lock_range(run))
        return [run for run in runs if run not in locked]

    def _keep(
        self, cache: PageCache, file: PageFile, run: Range, data: memoryview, streamed: dict[int, memoryview]
    ) -> None:
        sums = self._checked(run[0] * PAGE_BYTES, data)
        pieces = [data[i : i + PAGE_BYTES] for i in range(0, data.nbytes, PAGE_BYTES)]
        if not cache.keep(file, run[0], pieces, sums):
            streamed.update(zip(range(*run), pieces, strict=True))

    def _await(self, file: PageFile, runs: list[Range]) -> list[Range]:
        """Wait until whoever fetches these pages is done, or dead; the runs of those who do not go on."""
        stuck: list[Range] = []
        for run in runs:
            timeout_s = 0.0 if stuck else _HERD_TIMEOUT_S
            if locks.lock_range(file.map_fd, *_lock_range(run), timeout_s=timeout_s):
                locks.unlock_range(file.map_fd, *_lock_range(run))
            else:
                stuck.append(run)
        return stuck

    def _bring_alone(self, file: PageFile, runs: list[Range], streamed: dict[int, memoryview]) -> None:
        """Fetch pages without keeping them: whoever said that he would bring them never did."""
        still = _runs([page for run in runs for page in file.missing(*run)])
        spans = [(first * PAGE_BYTES, min(last * PAGE_BYTES, self.size)) for first, last in still]
        for (first, last), data in zip(still, self._fetch(spans), strict=True):
            self._checked(first * PAGE_BYTES, data)
            pieces = [data[i : i + PAGE_BYTES] for i in range(0, data.nbytes, PAGE_BYTES)]
            streamed.update(zip(range(first, last), pieces, strict=True))

    def _joined(self, file: PageFile, wanted: Range, streamed: dict[int, memoryview]) -> memoryview:
        """The bytes of a range: a view of the file, or joined where some pages could not be kept."""
        start, end = wanted
        if not streamed or not any(page in streamed for page in range(*_pages(wanted))):
            return file.read(start, end)
        first, last = _pages(wanted)
        whole = b"".join(
            streamed[page]
            if page in streamed
            else file.read(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, end))
            for page in range(first, last)
        )
        return memoryview(whole)[start - first * PAGE_BYTES : end - first * PAGE_BYTES]

    def _fetch(self, ranges: Sequence[Range]) -> list[memoryview]:
        if not ranges:
            return []
        if self._store is None:
            raise OfflineError(f"{sum(e - s for s, e in ranges)} bytes are not in the cache", path=self.name)
        spans = [piece for r in ranges for piece in _split(r)]
        try:
            found = iter(self._store.get_ranges(self.address.key, spans, same_as=self.address.same_as))
        except BlobNotFoundError:
            if self.address.same_as is not None:
                raise BlobChangedError("the blob was removed since it was opened", path=self.name) from None
            hint = "Publish the version again, or restore the blob from another copy."
            raise BlobNotFoundError("the blob is not in its store", path=self.name, hint=hint) from None
        out = []
        for r in ranges:
            pieces = [next(found) for _ in _split(r)]
            out.append(pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces)))
        count_traffic(network=sum(each.nbytes for each in out))
        return out

    def _checked(self, start: int, data: memoryview) -> list[int]:
        """The sums of whole pages of fetched data; a page that is not as published is an error."""
        sums = [crc32c(data[i : i + PAGE_BYTES]) for i in range(0, data.nbytes, PAGE_BYTES)]
        if self._sums is not None:
            first = start // PAGE_BYTES
            expected = self._sums[first : first + len(sums)]
            bad = np.flatnonzero(expected != np.asarray(sums, np.uint32))
            if bad.size:
                page = first + int(bad[0])
                raise ChecksumError(f"checksum mismatch in page {page}", path=self.name)
        return sums

    def _aligned(self, wanted: Range) -> Range:
        first, last = _pages(wanted)
        return first * PAGE_BYTES, min(last * PAGE_BYTES, self.size)


class LocalBlobReader:
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
        self._file = MmapRangeReader(store.file(address.key))
        self.size = self._file.size
        if self.size != address.size:
            raise ChecksumError(
                f"size mismatch: expected {address.size} bytes, got {self.size}", path=self.name
            )
        self._sums = sums
        self._checked = checked_pages(address.sha256, self._file.stamp, layout.page_count(self.size))

    def read(self, start: int, end: int) -> memoryview:
        """Exactly the bytes [start, end) as a view."""
        return self.read_many([(start, end)])[0]

    def read_many(self, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range as views."""
        if self._meter is not None:
            self._meter.request("read", self.name, read=sum(end - start for start, end in ranges))
        return [self._view(start, end) for start, end in ranges]

    def _view(self, start: int, end: int) -> memoryview:
        check_range(self, start, end)
        if self._sums is not None:
            self._check(self._sums, *_pages((start, end)))
        return self._file.read(start, end)

    def hold(self, ranges: Sequence[Range]) -> RangeBytes:
        """Exactly the bytes of each range, and the file they are in."""
        return RangeBytes(self.read_many(ranges), self._file.read(0, self.size))

    def asked(self, ranges: Sequence[Range]) -> Callable[[], RangeBytes]:
        """What a thread is to run to hold these ranges."""
        return partial(self.hold, ranges)

    def prefetch(self, ranges: Sequence[Range]) -> None:
        """Nothing to do: the bytes are here."""

    def has(self, ranges: Sequence[Range]) -> bool:  # noqa: ARG002
        """Always: the bytes are here."""
        return True

    def costs(self, reads: Sequence[Sequence[Range]]) -> list[int]:
        """The bytes of each read."""
        return [sum(end - start for start, end in ranges) for ranges in reads]

    def missing_bytes(self) -> int:
        """Nothing is missing."""
        return 0

    def load_whole(self, progress: Callable[[int], None] | None = None) -> Path | None:
        """The path of the blob, after checking its hash."""
        self.verify()
        if progress is not None:
            progress(self.size)
        return Path(self._file.name)

    def verify(self) -> None:
        """Read everything and compare with the hash, or ChecksumError."""
        running = RunningSha256()
        for start in range(0, self.size, _WHOLE_STEP_BYTES):
            running.update(self._file.read(start, min(start + _WHOLE_STEP_BYTES, self.size)))
        check_sha256(self.address.sha256, running.hexdigest(), self.name)

    def close(self) -> None:
        """Drop the mapping."""
        self._file.close()

    def _check(self, sums: PageSums, first: int, last: int) -> None:
        seen = self._checked[first:last]
        if seen.all():
            return
        view = self._file.read(0, self.size)
        for page in (np.flatnonzero(~seen) + first).tolist():
            if crc32c(view[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]) != sums[page]:
                raise ChecksumError(f"checksum mismatch in page {page}", path=self.name)
            self._checked[page] = True


AnyBlobReader = BlobReader | LocalBlobReader


def check_sha256(expected: str, actual: str, name: str) -> None:
    """ChecksumError unless the hashes are equal."""
    if expected != actual:
        raise ChecksumError(f"sha256 mismatch: expected {expected[:12]}…, got {actual[:12]}…", path=name)


def page_sums(pieces: Iterator[memoryview]) -> PageSums:
    """The sums of pages given one after the other, each a whole page but the last."""
    return np.fromiter((crc32c(piece) for piece in pieces), np.uint32)


@contextlib.contextmanager
def closing_reader(reader: AnyBlobReader) -> Iterator[AnyBlobReader]:
    """Close a reader when done."""
    try:
        yield reader
    finally:
        reader.close()


def _pages(wanted: Range) -> Range:
    start, end = wanted
    return start // PAGE_BYTES, layout.page_count(end) if end > start else start // PAGE_BYTES


def _pages_of(ranges: Sequence[Range]) -> list[int]:
    """The pages of some ranges, ascending."""
    return sorted({page for r in ranges for page in range(*_pages(r))})


def _missing(file: PageFile, ranges: Sequence[Range]) -> list[int]:
    """The pages of some ranges that are not here, ascending."""
    return sorted({page for r in ranges for page in file.missing(*_pages(r))})


def _lock_range(run: Range) -> Range:
    """Where the lock of a run of pages lies, and how long it is."""
    return layout.PAGE_LOCK_BASE + run[0], run[1] - run[0]


def _runs(pages: Sequence[int]) -> list[Range]:
    """Ascending pages as runs [first, last), near ones joined only when they touch."""
    runs: list[Range] = []
    for page in sorted(set(pages)):
        if runs and runs[-1][1] == page:
            runs[-1] = (runs[-1][0], page + 1)
        else:
            runs.append((page, page + 1))
    return runs


def _split(wanted: Range) -> list[Range]:
    """A long range as several requests that run at the same time."""
    start, end = wanted
    if end - start <= _SPAN_BYTES:
        return [wanted]
    return [(at, min(at + _SPAN_BYTES, end)) for at in range(start, end, _SPAN_BYTES)]
