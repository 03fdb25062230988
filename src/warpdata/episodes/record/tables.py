"""One signal being recorded: values go to the journal at once, to the parquet file in the background."""

from __future__ import annotations

import io
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import commit_together, fsync_file, map_os_errors
from warpdata.episodes.record.journals import SignalsJournal
from warpdata.episodes.record.values import (
    BEGIN,
    CLOSED,
    as_declared,
    as_event,
    as_numbers,
    as_timestamp,
    mismatch,
    refused,
)
from warpdata.episodes.statistics import (
    ClockStatistics,
    SharedClocks,
    ValueStatistics,
    are_few,
    stated_together,
)
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.signal_file import (
    SMALL_BYTES,
    Description,
    TableWriter,
    signal_schema,
    table_bytes,
)
from warpdata.formats.journal.writer import StepRecord

if TYPE_CHECKING:
    from warpdata.episodes.record.threads import JobQueue

_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = (16, 16384)
_MAX_BLOCK_BYTES = 16 << 20
_EVENTS_PER_BLOCK = 4096
_SLICE_ROWS = 1024
_BUFFER_BYTES = 1 << 16


class SummedFile(io.RawIOBase):
    """A new file that knows the checksum of what was written to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size_bytes = 0
        self.crc32c = 0
        with map_os_errors(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """How many bytes were written."""
        return self.size_bytes

    def write(self, data: Any) -> int:
        """Append all of `data`."""
        view = memoryview(data).cast("B")
        if self._fd < 0:  # closed: what a library still writes is dropped
            return view.nbytes
        self.crc32c = crc32c(view, self.crc32c)
        self.size_bytes += view.nbytes
        rest = view
        with map_os_errors(self.path):
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        return view.nbytes

    def let_go(self) -> None:
        """Close the file, whole or not."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class TableFile:
    """The growing parquet file and the statistics of a signal, fed in blocks by one thread.

    `clock` are the statistics of its times, where they are known before it is written. A file that is not `recorded`
    but copied never yields to other threads.
    """

    def __init__(
        self,
        path: Path,
        description: Description,
        *,
        clock: ClockStatistics | None = None,
        recorded: bool = True,
    ) -> None:
        self.description = description
        self.clock = ClockStatistics()
        self._adds_times = True
        if clock is not None:
            self.use_clock(clock)
        self.gives_way = recorded
        """Whether a thread may be appending, which must not wait for statistics."""
        self._buffer: io.BufferedWriter | None = None
        is_number = description.kind not in ("text", "bytes")
        self.values = ValueStatistics(description.shape) if is_number else None
        self.path = path
        """Where it grows, and waits for its name."""
        self.rows = 0
        """How many records are in it."""
        self.stated: dict[str, Any] | None = None
        """The statistics of its values, where they were found together with those of others."""
        self._file: SummedFile | None = None
        self._table: TableWriter | None = None

    def use_clock(self, clock: ClockStatistics) -> None:
        """Take these as the statistics of its times, which are known before any was counted."""
        self.clock, self._adds_times = clock, False

    def write(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add a block of records."""
        self.write_rows(stamps, values)
        self.count(stamps, values)

    def write_rows(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add a block of records to the file, and to the statistics with `count` later."""
        if self._table is None:
            about = self.description.to_json()
            self._file = SummedFile(self.path)
            self._buffer = io.BufferedWriter(self._file, _BUFFER_BYTES)
            self._table = TableWriter(self._buffer, signal_schema(about), about)
        self._table.write(stamps, values)
        self.rows += len(stamps)

    def write_all(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Write all records of a file that has none yet; few of them make a plain file."""
        if stamps.nbytes + values.nbytes > SMALL_BYTES or self.values is None:
            self.write_rows(stamps, values)
            return
        data = table_bytes(self.description.to_json(), stamps, values)
        self._file = SummedFile(self.path)
        self._file.write(data)
        self.rows = len(stamps)

    def count(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add records that were written to the statistics."""
        for start in range(0, len(stamps), _SLICE_ROWS):
            rows = slice(start, start + _SLICE_ROWS)
            if self._adds_times:
                self._give_way()
                self.clock.add(stamps[rows])
            if self.values is not None:
                self._give_way()
                self.values.add(values[rows])

    def _give_way(self) -> None:
        if self.gives_way:
            time.sleep(0)

    def write_from(self, first: int, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add the records from number `first` on; those that were handed over before are not added again."""
        known = self.rows - first
        if known < len(stamps):
            self.write(stamps[known:], values[known:])

    def complete(self) -> None:
        """Write the end of the file, which still has no name."""
        if self._file is None:
            self.write(
                np.empty(0, np.int64), np.empty((0, *self.description.shape), _dtype(self.description))
            )
        assert self._file is not None
        if self._table is not None and self._buffer is not None:
            self._table.close()
            self._buffer.flush()
        self._file.let_go()

    def facts(self) -> dict[str, Any]:
        """The entry of the signal in meta.json, once its file is complete."""
        assert self._file is not None
        found = {**self.description.to_json(), **self.clock.to_json()}
        if self.values is not None:
            found["values"] = self.values.to_json() if self.stated is None else self.stated
        found["file"] = {"bytes": self._file.size_bytes, "crc32c": f"{self._file.crc32c:08x}"}
        return found

    def commit(self, target: Path) -> dict[str, Any]:
        """Finish the file under its name; returns the entry of the signal in meta.json."""
        self.complete()
        fsync_file(self.path)
        commit_together([(self.path, target)], target.parent)
        return self.facts()

    def let_go(self) -> None:
        """Close the file, whole or not."""
        if self._file is not None:
            self._file.let_go()


def count_together(recorders: Iterable[TableRecorder]) -> None:
    """Find the statistics of complete small recordings in as few steps as possible."""
    small: dict[int, list[tuple[TableRecorder, NDArray[Any]]]] = {}
    for each in recorders:
        values = each.uncounted
        if values is not None:
            small.setdefault(each.count, []).append((each, values))
    for together in small.values():
        for stated, (each, _) in zip(
            stated_together([values for _, values in together]), together, strict=True
        ):
            each.file.stated = stated


def write_empty(path: Path) -> None:
    """Write the file of a signal without records; what its values would have been is not known."""
    TableFile(path.with_name(f".{path.name}.part"), Description("scalar", "f64", ())).commit(path)


class TableRecorder(ABC):
    """What is recorded into one table: records are counted as they reach the journal, and leave in blocks.

    Ctrl-C may come between any two calls. So a record counts from the moment the journal has it, without a call in
    between, and a block is handed over before it is dropped: twice if need be, the file knows what it has.
    """

    def __init__(
        self, name: str, stream: int, file: TableFile, journal: SignalsJournal, jobs: JobQueue
    ) -> None:
        self.name = name
        self.file = file
        self.count = 0
        self._first = 0
        """The number of the first record that was not handed over."""
        self.last_ts_ns = BEGIN
        self.stream = stream
        self._journal = journal
        self._threads = journal.threads
        self._writer = journal.writer
        self._syncs = journal.syncs_every_record
        self._jobs = jobs

    def close(self) -> None:
        """Whoever appends after this is refused."""
        with self._journal.lock:
            self.file.gives_way = False
            self.last_ts_ns = CLOSED

    def complete(self) -> None:
        """Write the rest and the end of the file."""
        self._jobs.settle()  # the file counts rows before they are written: only with an empty queue it is idle
        rest = [part[self.file.rows - self._first :] for part in self._block(self.count - self._first)]
        if len(rest[0]):
            (self.file.write_rows if self.file.rows else self.file.write_all)(*rest)
        self._rest = rest
        self.file.complete()

    def facts(self, clocks: SharedClocks) -> dict[str, Any]:
        """The entry of the signal in meta.json, once its file is complete; `clocks` are those of the episode."""
        stamps, values = self._rest
        if len(stamps) == self.count:  # nothing was counted yet: others may be on the same clock
            self.file.use_clock(clocks.of(stamps))
        if self.file.stated is None:
            self.file.count(stamps, values)
        return self.file.facts()

    @property
    def uncounted(self) -> NDArray[Any] | None:
        """All its values, where they are few numbers that no statistics were made of yet."""
        stamps, values = self._rest
        is_whole = len(stamps) == self.count and self.file.values is not None
        return values if is_whole and are_few(self.count, values[0].size) else None

    def files(self, data: Path, _frames: Path) -> list[tuple[Path, Path]]:
        """The complete file and the name it is to have."""
        return [(self.file.path, data)]

    @property
    def suffix(self) -> str:
        """How the name of its data file ends."""
        return layout.SIGNAL_SUFFIX

    def cancel(self) -> None:
        """Refuse later appends, and close the file."""
        with self._journal.lock:
            self.last_ts_ns = CLOSED
        self.file.let_go()

    def flush(self) -> None:
        """Hand the records collected so far to the background."""
        if self.count > self._first:
            first, file = self._first, self.file
            stamps, values = self._block(self.count - first)
            self._jobs.submit(lambda: file.write_from(first, stamps, values))
            self._new_block()

    @abstractmethod
    def _block(self, rows: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """The first rows of the block that is being filled."""

    @abstractmethod
    def _new_block(self) -> None:
        """Begin the next block at the record that comes next."""


class NumberRecorder(TableRecorder):
    """Numbers and arrays of one type and shape; `append` is two small copies and a checksum."""

    def __init__(
        self,
        name: str,
        stream: int,
        file: TableFile,
        journal: SignalsJournal,
        jobs: JobQueue,
        *,
        converts: bool,
    ) -> None:
        super().__init__(name, stream, file, journal, jobs)
        self._converts = converts
        description = file.description
        self._shape = description.shape
        self._dtype = dtype_named(description.dtype).dtype
        row_bytes = self._dtype.itemsize * math.prod(self._shape)
        self._rows = _rows_per_block(row_bytes)
        self._record = StepRecord(stream, row_bytes)
        # The value is laid directly into the record that is copied to the journal.
        self._cell = np.frombuffer(self._record.payload, self._dtype).reshape(self._shape)
        self._new_block()

    def checked(self, data: Any, ts_ns: int) -> NDArray[Any]:
        """The value as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise refused(self.name, ts_ns, self.last_ts_ns)
        if type(data) is not np.ndarray or data.dtype != self._dtype or data.shape != self._shape:
            return self._converted(data)
        return data

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of `data`, without `ts_ns` at the time of the clock; then it survives a crash."""
        if type(data) is not np.ndarray or data.dtype != self._dtype or data.shape != self._shape:
            data = self._converted(data)
        if ts_ns is not None and (type(ts_ns) is not int or ts_ns.bit_length() > 63):
            ts_ns = as_timestamp(ts_ns)
        with self._journal.lock:
            if self._threads.failure is not None:
                self._threads.check()
            if ts_ns is None:
                ts_ns = self._journal.now()
            if ts_ns <= self.last_ts_ns:
                raise refused(self.name, ts_ns, self.last_ts_ns)
            row = self.count - self._first
            if row == self._rows:
                self.flush()
                row = 0
            self._cell[...] = data
            self._stamps[row] = ts_ns
            self._values[row] = data
            self._writer.append_step(self._record, self.count, ts_ns)
            self.last_ts_ns = ts_ns
            self.count += 1
            if self._syncs:
                self._writer.sync()

    def _block(self, rows: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        return self._stamps[:rows], self._values[:rows]

    def _new_block(self) -> None:
        stamps, values = np.empty(self._rows, np.int64), np.empty((self._rows, *self._shape), self._dtype)
        self._stamps, self._values, self._first = stamps, values, self.count

    def _converted(self, data: Any) -> NDArray[Any]:
        """The value as an array of exactly this signal's type and shape, or SchemaMismatchError."""
        if isinstance(data, str | bytes | bytearray | memoryview):
            raise mismatch(self.name, f"{self._dtype}{list(self._shape)}", type(data).__name__)
        array = as_numbers(data)
        if self._converts:
            array = as_declared(self.name, array, dtype_of(self._dtype))
        if array.dtype != self._dtype or array.shape != self._shape:
            expected = f"{self._dtype}{list(self._shape)}"
            raise mismatch(self.name, expected, f"{array.dtype}{list(array.shape)}")
        return array


class EventRecorder(TableRecorder):
    """Text or bytes of any length."""

    def __init__(
        self, name: str, stream: int, file: TableFile, journal: SignalsJournal, jobs: JobQueue
    ) -> None:
        super().__init__(name, stream, file, journal, jobs)
        self._kind = file.description.kind
        self._records: list[tuple[int, Any]] = []
        self._held_bytes = 0

    def checked(self, data: Any, ts_ns: int) -> Any:
        """The value as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise refused(self.name, ts_ns, self.last_ts_ns)
        as_event(data, self._kind, self.name)
        return data

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of `data`, without `ts_ns` at the time of the clock; then it survives a crash."""
        packed = as_event(data, self._kind, self.name)
        if ts_ns is not None:
            ts_ns = as_timestamp(ts_ns)
        with self._journal.lock:
            if self._threads.failure is not None:
                self._threads.check()
            if ts_ns is None:
                ts_ns = self._journal.now()
            if ts_ns <= self.last_ts_ns:
                raise refused(self.name, ts_ns, self.last_ts_ns)
            row = self.count - self._first
            if row == _EVENTS_PER_BLOCK or self._held_bytes >= _MAX_BLOCK_BYTES:
                self.flush()
                row = 0
            self._held_bytes += len(packed)
            self._records[row:] = [(ts_ns, data if self._kind == "text" else packed)]
            self._writer.append(self.stream, self.count, 1, ts_ns, packed)
            self.last_ts_ns = ts_ns
            self.count += 1
            if self._syncs:
                self._writer.sync()

    def _block(self, rows: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        values = np.empty(rows, object)
        values[:] = [value for _, value in self._records[:rows]]
        return np.array([ts_ns for ts_ns, _ in self._records[:rows]], np.int64), values

    def _new_block(self) -> None:
        self._records, self._held_bytes, self._first = [], 0, self.count


def _rows_per_block(row_bytes: int) -> int:
    """Blocks of a megabyte, of many rows where those are small, of few where they are large, of one if need be."""
    fewest, most = _BLOCK_ROWS
    return max(1, min(max(_BLOCK_BYTES // row_bytes, fewest), most, _MAX_BLOCK_BYTES // row_bytes))


def _dtype(description: Description) -> Any:
    is_event = description.kind in ("text", "bytes")
    return np.dtype(object) if is_event else dtype_named(description.dtype).dtype
