"""Signals of numbers, text and bytes: values go to the journal at once, to a parquet file in the background."""

from __future__ import annotations

import io
import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import commit_together, fsync_file, map_os_errors
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.forks import process_id
from warpdata.episodes.record.threads import Durability, JobQueue, RecordingThreads
from warpdata.episodes.record.values import (
    BEGIN,
    CLOSED,
    as_declared,
    as_event,
    as_numbers,
    as_rows,
    as_timestamp,
    mismatch_error,
    order_error,
)
from warpdata.episodes.statistics import ClockStatistics, SharedClocks, ValueStatistics
from warpdata.formats.episodedir.documents import Description, FileSum
from warpdata.formats.episodedir.layout import SIGNAL_SUFFIX
from warpdata.formats.episodedir.signal_file import TableWriter, signal_schema, table_bytes
from warpdata.formats.journal import layout
from warpdata.formats.journal.writer import JournalWriter, StepRecord
from warpdata.timeline.ragged import as_objects

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FIRST_FRAMES = "frames.journal"
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = (16, 16384)
_MAX_BLOCK_BYTES = 16 << 20
_EVENTS_PER_BLOCK = 4096
_SLICE_ROWS = 1024
_BUFFER_BYTES = 1 << 16


def owner() -> dict[str, Any]:
    """The recording process, as its journal names it."""
    return {"pid": process_id(), "host": socket.gethostname(), "started_ns": time.time_ns()}


class SignalsJournal:
    """The journal of all numbers and events of a recording and of facts about it, and one of the first raw frames."""

    def __init__(
        self,
        folder: Path,
        descriptor: Mapping[str, Any],
        durability: Durability,
        threads: RecordingThreads,
        now: Callable[[], int],
    ) -> None:
        self.threads = threads
        self.now = now
        """The time of a record that came without one; called while the signal is locked, so that times increase."""
        self.lock = threading.Lock()
        self.syncs_every_record = durability.every_record
        self._counts = {layout.CONTROL_STREAM: 0, layout.ROW_STREAM: 0}
        self.writer = JournalWriter(
            folder / layout.SIGNALS_JOURNAL,
            {**descriptor, "kind": layout.SIGNALS_KIND, "journal": layout.SIGNALS_JOURNAL, "owner": owner()},
            max_record_bytes=layout.MAX_RECORD_BYTES,
            publish=False,
        )
        threads.add_journal(self.writer)
        self._frames: JournalWriter | None = None
        self._frames_lock = threading.Lock()
        self._has_frames = False

    def expect_frames(self) -> None:
        """In the background: make a journal in memory for the first frames, which need not reach the disk."""
        if self._frames is None and not self.syncs_every_record:
            path = os.path.join(os.path.dirname(self.writer.path), _FIRST_FRAMES)
            about = {"kind": layout.FRAMES_KIND, "journal": _FIRST_FRAMES, "owner": owner()}
            # Noted by the first frame: who holds the lock of the journal may be waiting for this thread.
            self._frames = JournalWriter(
                path, about, max_record_bytes=layout.MAX_RECORD_BYTES, in_memory=True
            )

    def append_frame(self, stream: int, step: int, ts_ns: int, frame: Buffer) -> tuple[JournalWriter, int]:
        """Add a frame that has no slot; returns the journal it is in, and its offset there."""
        if self._frames is None:
            with self.lock:
                return self.writer, self.writer.append(stream, step, 1, ts_ns, frame)
        with self._frames_lock:  # others need not wait for a copy that takes long
            if not self._has_frames:
                self.note({"journal": _FIRST_FRAMES})
                self._has_frames = True
            return self._frames, self._frames.append(stream, step, 1, ts_ns, frame)

    def note(self, fact: Mapping[str, Any]) -> None:
        """Journal a fact about the recording itself."""
        with self.lock:
            self.threads.check()
            self._append(layout.CONTROL_STREAM, 0, dump_json(dict(fact)))

    def end_row(self, ts_ns: int) -> None:
        """Journal that the row of this time is complete."""
        with self.lock:
            self._append(layout.ROW_STREAM, ts_ns, b"")

    def _append(self, stream: int, ts_ns: int, payload: bytes) -> None:
        self.writer.append(stream, self._counts[stream], 1, ts_ns, payload)
        self._counts[stream] += 1
        if self.syncs_every_record:
            self.writer.sync()

    def close(self, *, durable: bool = True) -> None:
        """Close the journal, which stays on disk."""
        self.threads.remove_journal(self.writer)
        self.writer.close(durable=durable)
        if self._frames is not None:
            self._frames.close(durable=False)


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
        view = rest = memoryview(data).cast("B")
        if self._fd >= 0:  # what a library writes after that is dropped
            self.crc32c = crc32c(view, self.crc32c)
            self.size_bytes += view.nbytes
            with map_os_errors(self.path):
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
        return view.nbytes

    def release(self) -> None:
        """Close the file, complete or not; not `close`, which libraries call too."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def table_entry(
    description: Description,
    clock: ClockStatistics,
    values: ValueStatistics | dict[str, Any] | None,
    file: FileSum,
) -> dict[str, Any]:
    """The entry in meta.json of a signal in a table; `values` are the statistics, or the JSON of them."""
    about = values.to_json() if isinstance(values, ValueStatistics) else values
    statistics = {} if about is None else {"values": about}
    return {**description.to_json(), **clock.to_json(), **statistics, "file": file.to_json()}


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
        self.path = path
        """Its temporary path."""
        self.description = description
        self.rows = 0
        """How many records are in it."""
        self.yields = recorded
        """Whether a thread may be appending, which must not wait for statistics."""
        self._known_clock = clock
        self._clock = clock or ClockStatistics()
        self._is_event = description.is_object
        self._values = None if self._is_event else ValueStatistics(description.shape)
        self._file: SummedFile | None = None
        self._buffer: io.BufferedWriter | None = None
        self._table: TableWriter | None = None

    def write(self, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add a block of records to the file and to its statistics."""
        self.write_rows(stamps, values)
        self.count(stamps, values)

    def write_rows(self, stamps: NDArray[np.int64], values: NDArray[Any], *, is_last: bool = False) -> None:
        """Add a block of records to the file; `count` adds them to the statistics later."""
        about = self.description.to_json()
        if self._file is None:
            self._file = SummedFile(self.path)
            if is_last:
                self._file.write(table_bytes(about, stamps, values))
                self.rows = len(stamps)
                return
            self._buffer = io.BufferedWriter(self._file, _BUFFER_BYTES)
            self._table = TableWriter(self._buffer, signal_schema(about), about)
        assert self._table is not None
        self._table.write(stamps, values)
        self.rows += len(stamps)

    def count(
        self, stamps: NDArray[np.int64], values: NDArray[Any], clock: ClockStatistics | None = None
    ) -> None:
        """Add records that were written to the statistics; `clock` are those of all times, where they are known."""
        self._known_clock = clock or self._known_clock
        for start in range(0, len(stamps), _SLICE_ROWS):
            rows = slice(start, start + _SLICE_ROWS)
            if self.yields:
                time.sleep(0)
            if self._known_clock is None:
                self._clock.add(stamps[rows])
            if self._values is not None:
                self._values.add(values[rows])

    def write_from(self, first: int, stamps: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Add the records from number `first` on; those that were handed over before are not added again."""
        known = self.rows - first
        if known < len(stamps):
            self.write(stamps[known:], values[known:])

    def complete(self) -> None:
        """Write the end of the file, which keeps its temporary name."""
        if self._file is None:
            dtype = np.dtype(object) if self._is_event else dtype_named(self.description.dtype).dtype
            shape = () if self._is_event else self.description.shape
            self.write(np.empty(0, np.int64), np.empty((0, *shape), dtype))
        assert self._file is not None
        if self._table is not None and self._buffer is not None:
            self._table.close()
            self._buffer.flush()
        self._file.release()

    def facts(self) -> dict[str, Any]:
        """The entry of the signal in meta.json, once its file is complete."""
        assert self._file is not None
        total = FileSum(self._file.size_bytes, self._file.crc32c)
        return table_entry(self.description, self._known_clock or self._clock, self._values, total)

    def commit(self, target: Path) -> dict[str, Any]:
        """Finish the file under its name; returns the entry of the signal in meta.json."""
        self.complete()
        fsync_file(self.path)
        commit_together([(self.path, target)], target.parent)
        return self.facts()

    def release(self) -> None:
        """Close the file, complete or not."""
        if self._file is not None:
            self._file.release()


class TableRecorder(ABC):
    """A signal recorded into one table: records are counted as they reach the journal, and leave in blocks.

    Ctrl-C may come between any two calls. So a record counts from the moment the journal has it, without a call in
    between, and a block is handed over before it is dropped: twice if need be, the file knows what it has.
    """

    suffix = SIGNAL_SUFFIX

    def __init__(
        self, name: str, stream: int, file: TableFile, journal: SignalsJournal, jobs: JobQueue
    ) -> None:
        self.name = name
        self.file = file
        self.count = 0
        self.last_ts_ns = BEGIN
        self.stream = stream
        self._first = 0
        """The number of the first record that was not handed over."""
        self._journal = journal
        self._threads = journal.threads
        self._writer = journal.writer
        self._syncs = journal.syncs_every_record
        self.jobs = jobs

    @property
    def kept(self) -> int:
        """Records so far."""
        return self.count

    def close(self) -> None:
        """Refuse later appends."""
        with self._journal.lock:
            self.file.yields = False
            self.last_ts_ns = CLOSED

    def complete(self) -> None:
        """Write the rest and the end of the file."""
        self.jobs.settle()  # the file counts rows before they are written: only with an empty queue it is idle
        stamps, values = (
            part[self.file.rows - self._first :] for part in self._block(self.count - self._first)
        )
        if len(stamps):
            self.file.write_rows(stamps, values, is_last=True)
        self._rest = stamps, values
        self.file.complete()

    def facts(self, clocks: SharedClocks) -> dict[str, Any]:
        """The entry of the signal in meta.json, once its file is complete; `clocks` are those of the episode."""
        stamps, values = self._rest
        is_all = len(stamps) == self.count  # nothing was counted yet: other signals may be on the same clock
        self.file.count(stamps, values, clocks.of(stamps) if is_all else None)
        return self.file.facts()

    def files(self, data: Path, _frames: Path) -> list[tuple[Path, Path]]:
        """The complete file and its final path."""
        return [(self.file.path, data)]

    def cancel(self) -> None:
        """Refuse later appends, and close the file."""
        self.close()
        self.file.release()

    def flush(self) -> None:
        """Hand the records collected so far to the background."""
        if self.count > self._first:
            first, file = self._first, self.file
            stamps, values = self._block(self.count - first)
            self.jobs.submit(lambda: file.write_from(first, stamps, values))
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
        self._shape = file.description.shape
        self._dtype = dtype_named(file.description.dtype).dtype
        row_bytes = self._dtype.itemsize * math.prod(self._shape)
        # Blocks of a megabyte, of many rows where those are small, of few where they are large, of one if need be.
        fewest, most = _BLOCK_ROWS
        rows = min(max(_BLOCK_BYTES // row_bytes, fewest), most, _MAX_BLOCK_BYTES // row_bytes)
        self._rows = max(1, rows)
        self._record = StepRecord(stream, row_bytes)
        # The value is put directly into the record that is copied to the journal.
        self._cell = np.frombuffer(self._record.payload, self._dtype).reshape(self._shape)
        self._new_block()

    @property
    def recorded_bytes(self) -> int:
        """Bytes of the values so far."""
        return self.count * self._cell.nbytes

    def check(self, data: Any, ts_ns: int) -> NDArray[Any]:
        """The value as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise order_error(self.name, ts_ns, self.last_ts_ns)
        if type(data) is not np.ndarray or data.dtype != self._dtype or data.shape != self._shape:
            return self._convert(data)
        return data

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of `data`, without `ts_ns` at the time of the clock; then it survives a crash."""
        if type(data) is not np.ndarray or data.dtype != self._dtype or data.shape != self._shape:
            data = self._convert(data)
        if ts_ns is not None and (type(ts_ns) is not int or ts_ns.bit_length() > 63):
            ts_ns = as_timestamp(ts_ns)
        with self._journal.lock:
            if self._threads.failure is not None:
                self._threads.check()
            if ts_ns is None:
                ts_ns = self._journal.now()
            if ts_ns <= self.last_ts_ns:
                raise order_error(self.name, ts_ns, self.last_ts_ns)
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

    def _convert(self, data: Any) -> NDArray[Any]:
        """The value as an array of exactly this signal's type and shape, or SchemaMismatchError."""
        expected = f"{self._dtype}{list(self._shape)}"
        if isinstance(data, str | bytes | bytearray | memoryview):
            raise mismatch_error(self.name, expected, type(data).__name__)
        array = as_numbers(data)
        if self._converts:
            array = as_declared(self.name, array, dtype_of(self._dtype))
        if array.dtype != self._dtype or array.shape != self._shape:
            raise mismatch_error(self.name, expected, f"{array.dtype}{list(array.shape)}")
        return array


class EventRecorder(TableRecorder):
    """Text, bytes, or arrays of any number of rows."""

    def __init__(
        self,
        name: str,
        stream: int,
        file: TableFile,
        journal: SignalsJournal,
        jobs: JobQueue,
        *,
        converts: bool = False,
    ) -> None:
        super().__init__(name, stream, file, journal, jobs)
        self._kind = file.description.kind
        self.recorded_bytes = 0
        self._converts = converts
        self._new_block()

    def _pack(self, data: Any) -> tuple[Any, bytes]:
        """The value as the file takes it, and as the journal does."""
        if not self.file.description.is_ragged:
            packed = as_event(data, self._kind, self.name)
            return data if self._kind == "text" else packed, packed
        rows = as_rows(data, self.file.description, self.name, converts=self._converts)
        packed = rows.tobytes()
        return np.frombuffer(packed, rows.dtype).reshape(rows.shape), packed

    def check(self, data: Any, ts_ns: int) -> Any:
        """The value as `append` takes it, or what it would raise; nothing is recorded."""
        if ts_ns <= self.last_ts_ns:
            raise order_error(self.name, ts_ns, self.last_ts_ns)
        self._pack(data)
        return data

    def append(self, data: Any, ts_ns: Any) -> None:
        """Record a copy of `data`, without `ts_ns` at the time of the clock; then it survives a crash."""
        value, packed = self._pack(data)
        if ts_ns is not None:
            ts_ns = as_timestamp(ts_ns)
        with self._journal.lock:
            self._threads.check()
            if ts_ns is None:
                ts_ns = self._journal.now()
            if ts_ns <= self.last_ts_ns:
                raise order_error(self.name, ts_ns, self.last_ts_ns)
            row = self.count - self._first
            if row == _EVENTS_PER_BLOCK or self._held_bytes >= _MAX_BLOCK_BYTES:
                self.flush()
                row = 0
            self._held_bytes += len(packed)
            self.recorded_bytes += len(packed)
            self._records[row:] = [(ts_ns, value)]
            self._writer.append(self.stream, self.count, 1, ts_ns, packed)
            self.last_ts_ns = ts_ns
            self.count += 1
            if self._syncs:
                self._writer.sync()

    def _block(self, rows: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        values = as_objects(value for _, value in self._records[:rows])
        return np.array([ts_ns for ts_ns, _ in self._records[:rows]], np.int64), values

    def _new_block(self) -> None:
        self._records: list[tuple[int, Any]] = []
        self._held_bytes, self._first = 0, self.count
