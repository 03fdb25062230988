"""Per-row warm starts on disk: batches in and out, checkpoints that are whole or absent, bounded size."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.commit import map_os_errors, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader, MmapRangeReader
from warpdata.bytekit.process.locks import FileLock
from warpdata.errors import (
    ChecksumError,
    ConflictError,
    LimitExceededError,
    TruncatedError,
    WriterClosedError,
    require_kind,
)
from warpdata.formats.rowstate import layout
from warpdata.formats.rowstate.log import (
    ENTRY,
    Array,
    Checkpoint,
    FrameBody,
    FrameBounds,
    load_checkpoint,
    pack_frame,
    save_checkpoint,
    walk_frames,
)

if TYPE_CHECKING:
    from typing import Self

DEFAULT_MAX_BYTES = 8 << 30
COMPACT_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class WarmRows:
    """States of some rows, flat: row k has latents[latent_offsets[k]:latent_offsets[k+1]], so has active."""

    row_ids: npt.NDArray[np.uint64]
    iterations: npt.NDArray[np.uint32]
    latents: npt.NDArray[np.float64]
    latent_offsets: npt.NDArray[np.int64]
    active: npt.NDArray[np.uint32]
    active_offsets: npt.NDArray[np.int64]
    found: npt.NDArray[np.bool_] | None = None
    """After `get`: which rows were there; the others are empty."""

    @classmethod
    def from_rows(
        cls,
        row_ids: npt.ArrayLike,
        latents: Sequence[npt.ArrayLike],
        active: Sequence[npt.ArrayLike],
        iterations: npt.ArrayLike,
    ) -> WarmRows:
        """From one array of latents and one active set per row."""
        values, sets = (
            [np.asarray(x, np.float64) for x in latents],
            [np.asarray(x, np.uint32) for x in active],
        )
        return cls(
            np.asarray(row_ids, np.uint64),
            np.asarray(iterations, np.uint32),
            np.concatenate([np.empty(0), *values]),
            _offsets([len(x) for x in values]),
            np.concatenate([np.empty(0, np.uint32), *sets]),
            _offsets([len(x) for x in sets]),
        )

    def __len__(self) -> int:
        return len(self.row_ids)

    def latents_of(self, index: int) -> npt.NDArray[np.float64]:
        """The latent coordinates of the row at `index`."""
        return self.latents[self.latent_offsets[index] : self.latent_offsets[index + 1]]

    def active_of(self, index: int) -> npt.NDArray[np.uint32]:
        """The active set of the row at `index`."""
        return self.active[self.active_offsets[index] : self.active_offsets[index + 1]]


class RowWarmCache:
    """Warm starts keyed by (model, row id). Reopening gives exactly what the last checkpoint held."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: str,
        total_rows: int,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        require_kind("model", model, str, "the name of a model")
        if total_rows < 0 or max_bytes < 1:
            raise ValueError("a cache has 0 rows or more, and at least one byte")
        self._model = hashlib.sha256(model.encode()).digest()
        self.folder = Path(folder).absolute() / self._model.hex()[:16]
        self.max_bytes = max_bytes
        self._entries = np.zeros(total_rows, ENTRY)
        self._frames: list[FrameBounds] = []
        self._unchecked: list[FrameBounds] = []
        self._log: AppendFile | None = None
        with map_os_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock.take(self.folder / layout.LOCK_NAME, removes=True)
        if self._lock is None:
            raise ConflictError(
                "another process keeps warm starts of this model here",
                path=self.folder,
                hint="Wait for it, or choose another folder.",
            )
        try:
            remove_temps_of(self.folder / layout.CHECKPOINT_NAME)
            if (self.folder / layout.CHECKPOINT_NAME).is_file():
                self._resume()
            else:
                self._new_log(0)
        except BaseException:
            self.close()
            raise

    @property
    def total_rows(self) -> int:
        """Row ids are below this."""
        return len(self._entries)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._entries["is_present"]))

    @property
    def log_bytes(self) -> int:
        """Bytes of the log, rows that were replaced included."""
        return self._read_log().position

    def put(self, rows: WarmRows) -> None:
        """Remember the states of these rows; of a row given twice the last one counts."""
        require_kind("what is remembered", rows, WarmRows, "WarmRows")
        log = self._open_log()
        ids = self._checked_ids(rows.row_ids)
        body = FrameBody(
            ids.astype("<u8"),
            np.diff(rows.latent_offsets).astype("<u4"),
            np.diff(rows.active_offsets).astype("<u4"),
            rows.iterations.astype("<u4"),
            np.ascontiguousarray(rows.latents, "<f8"),
            np.ascontiguousarray(rows.active, "<u4"),
        )
        count = len(body.row_ids)
        if not (len(body.n_latents) == len(body.n_active) == len(body.iterations) == count):
            raise ValueError("row ids, offsets and iterations are of different lengths")
        if rows.latent_offsets[-1] != len(rows.latents) or rows.active_offsets[-1] != len(rows.active):
            raise ValueError("the offsets do not end where the values do")
        frame = pack_frame(body)
        if log.position + len(frame) > self.max_bytes:
            self._compact(len(frame))
        self._append(frame, body)

    def get(self, row_ids: npt.ArrayLike) -> WarmRows:
        """The states of these rows in their order; rows that are not there are empty and not `found`."""
        ids = self._checked_ids(row_ids)
        entries = self._entries[ids]
        log = self._read_log()
        with MmapRangeReader(log.path) as reader:
            data = reader.read(0, log.position)
            self._check_touched(entries, data, log.path)
            numbers = np.frombuffer(data, "<f8", len(data) // 8), np.frombuffer(data, "<u4", len(data) // 4)
        return WarmRows(
            ids.astype(np.uint64),
            entries["iterations"].copy(),
            _ragged(numbers[0], entries["latents_at"] // 8, entries["n_latents"]),
            _offsets(entries["n_latents"]),
            _ragged(numbers[1], entries["active_at"] // 4, entries["n_active"]),
            _offsets(entries["n_active"]),
            entries["is_present"].astype(np.bool_),
        )

    def checkpoint(self) -> None:
        """Commit everything put so far: after a crash exactly this is there."""
        log = self._open_log()
        log.sync()
        ids = np.flatnonzero(self._entries["is_present"]).astype("<u8")
        target = self.folder / layout.CHECKPOINT_NAME
        save_checkpoint(target, Checkpoint(self._model, self._number, log.position, ids, self._entries[ids]))
        for stale in self.folder.glob("log-*"):
            if stale != Path(log.path):
                stale.unlink()

    def close(self) -> None:
        """Close without a checkpoint."""
        self._close_log()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __repr__(self) -> str:
        return f"<RowWarmCache {self.folder}: {len(self)} of {self.total_rows} rows>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self._log is not None:
            self.checkpoint()
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # Where the interpreter ends, modules may be gone, and the system takes back files and locks.
        if getattr(self, "_lock", None) is not None and not is_over():
            self.close()

    def _resume(self) -> None:
        saved = load_checkpoint(self.folder / layout.CHECKPOINT_NAME, self._model)
        self._number, end = saved.log_number, saved.log_bytes
        path = self.folder / layout.LOG_NAME.format(self._number)
        with FileRangeReader(path) as reader:
            if reader.size < end:
                raise TruncatedError(
                    f"the log is truncated: the checkpoint expects {end} bytes, file has {reader.size}",
                    expected=end,
                    actual=reader.size,
                    path=path,
                )
        if len(saved.row_ids) and int(saved.row_ids.max()) >= self.total_rows:
            raise LimitExceededError(f"the cache holds rows beyond {self.total_rows}", path=self.folder)
        self._log = AppendFile.open(path, end=end)
        self._entries[saved.row_ids.astype(np.int64)] = saved.entries
        with FileRangeReader(path) as reader:
            self._frames = list(walk_frames(reader, self._model))
        self._unchecked = list(self._frames)

    def _new_log(self, number: int) -> None:
        self._number = number
        self._log = AppendFile.open(self.folder / layout.LOG_NAME.format(number), end=0)
        self._log.append(layout.LOG_HEADER.pack(layout.LOG_MAGIC, self._model))
        self._frames, self._unchecked = [], []

    def _append(self, frame: bytes, body: FrameBody) -> None:
        log = self._open_log()
        start = log.append(frame) + layout.FRAME_HEADER.size
        self._entries[body.row_ids.astype(np.int64)] = body.entries(start)
        self._frames.append(FrameBounds(start, log.position, 0))

    def _compact(self, incoming: int) -> None:
        """Write the live rows to a new log, newest first until three quarters of the limit are full."""
        ids = np.flatnonzero(self._entries["is_present"])
        entries = self._entries[ids]
        sizes = 20 + 8 * entries["n_latents"].astype(np.int64) + 4 * entries["n_active"].astype(np.int64)
        newest = np.argsort(entries["latents_at"], kind="stable")[::-1]
        room = max(0, self.max_bytes * 3 // 4 - incoming)
        keep = ids[np.sort(newest[np.cumsum(sizes[newest]) <= room])]
        if incoming > self.max_bytes:
            raise LimitExceededError(f"one batch of {incoming} bytes, the cache may have {self.max_bytes}")
        kept = [self.get(keep[i : i + COMPACT_ROWS]) for i in range(0, len(keep), COMPACT_ROWS)]
        self._close_log()
        self._entries[:] = np.zeros((), ENTRY)
        self._new_log(self._number + 1)
        for rows in kept:
            self.put(rows)

    def _check_touched(self, entries: Array, data: memoryview, path: str | os.PathLike[str]) -> None:
        """Check the frames of the log that these rows are in, each once after opening."""
        if not self._unchecked or not len(entries):
            return
        starts = np.array([frame.start for frame in self._unchecked])
        ends = np.array([frame.end for frame in self._unchecked])
        at = entries["latents_at"][entries["is_present"] == 1].astype(np.int64)
        index = np.searchsorted(starts, at, "right") - 1
        inside = (index >= 0) & (at <= ends[index])
        for touched in np.unique(index[inside])[::-1].tolist():
            frame = self._unchecked[touched]
            if crc32c(data[frame.start : frame.end]) != frame.crc32c:
                raise ChecksumError(f"the row states at {frame.start} were changed", path=path)
            del self._unchecked[touched]

    def _checked_ids(self, row_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ids = np.asarray(row_ids)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise TypeError("row ids are one list of integers")
        if len(ids) and (ids.min() < 0 or ids.max() >= self.total_rows):
            raise ValueError(f"row ids are from 0 to {self.total_rows - 1}")
        return ids.astype(np.int64)

    def _read_log(self) -> AppendFile:
        """The log, of which forked children may read what was there when they began."""
        if self._log is None:
            raise WriterClosedError("this cache was closed", path=self.folder)
        return self._log

    def _open_log(self) -> AppendFile:
        log = self._read_log()
        if not log.is_open:
            raise WriterClosedError(
                "this cache is written by another process",
                path=self.folder,
                hint="Put rows in the process that opened the cache.",
            )
        return log


def _ragged(values: Array, starts: Array, counts: Array) -> Array:
    """The elements of many short runs, one after the other, in one gather."""
    offsets = _offsets(counts)
    places = np.arange(offsets[-1]) + np.repeat(starts.astype(np.int64) - offsets[:-1], counts)
    gathered: Array = values[places]
    return gathered


def _offsets(counts: Any) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets
