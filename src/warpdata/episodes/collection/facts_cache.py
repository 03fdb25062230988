"""Facts of recordings kept beside them, so that asking a root twice reads one file, not all episodes."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.io.commit import write_file
from warpdata.episodes.collection.facts import COLUMNS, facts_table, joined_tables
from warpdata.episodes.collection.listing import episode_path
from warpdata.errors import WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import read_bytes
from warpdata.timeline.episode import Episode

_NUMBER, _MTIME, _SIZE = "__number", "__mtime_ns", "__size"
_OWN = (_NUMBER, _MTIME, _SIZE)
_MAX_FILE_BYTES = 1 << 33
_VERSION = {b"warpdata_facts": b"1"}


def recorded_facts(root: Path, numbers: Sequence[int], opened: Callable[[int], Episode]) -> pa.Table:
    """The facts of recordings, in order: those kept from last time, where meta.json did not change since.

    `opened` gives the recording of a number.
    """
    if not len(numbers):
        return facts_table([])
    wanted = np.array(numbers, np.int64)
    marks = _marks(root, numbers)
    known = _read(root / layout.FACTS_FILE)
    rows = _rows_of(known, wanted, marks)
    new = np.flatnonzero(rows < 0)
    if not len(new):
        return known.drop_columns(list(_OWN)).take(to_arrow(rows))
    fresh = facts_table(opened(int(number)) for number in wanted[new])
    for name, column in zip(_OWN, (wanted[new], marks[new, 0], marks[new, 1]), strict=True):
        fresh = fresh.append_column(name, to_arrow(column))
    kept = known.take(to_arrow(rows[rows >= 0]))
    whole = joined_tables([kept, fresh]) if len(kept) else fresh
    order = np.argsort(np.concatenate([np.flatnonzero(rows >= 0), new]), kind="stable")
    whole = whole.take(to_arrow(order))
    _write(root / layout.FACTS_FILE, whole)
    return whole.drop_columns(list(_OWN))


def _rows_of(known: pa.Table, wanted: NDArray[np.int64], marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the facts of each number stand, -1 where they are missing or older than the recording."""
    if not len(known) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    numbers, mtimes, sizes = (np.array(known.column(name).to_pylist(), np.int64) for name in _OWN)
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
    fits = (numbers[at] == wanted) & (mtimes[at] == marks[:, 0]) & (sizes[at] == marks[:, 1])
    return np.where(fits & (marks[:, 1] >= 0), at, -1)


def _marks(root: Path, numbers: Sequence[int]) -> NDArray[np.int64]:
    """When each meta.json was written and how large it is; recordings without one are always looked at."""
    marks: list[int] = []
    for block, inside in itertools.groupby(numbers, lambda number: number // layout.BLOCK_EPISODES):
        folder = episode_path(root, block * layout.BLOCK_EPISODES).parent
        marks += _block_marks(folder, [f"{number:0{layout.DIGITS}d}/{layout.META_FILE}" for number in inside])
    return np.array(marks, np.int64).reshape(-1, 2)


def _block_marks(folder: Path, names: Sequence[str]) -> list[int]:
    """The marks of one block, seen from its folder: a path from the top costs twice as much to follow."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return [-1] * (2 * len(names))
    marks: list[int] = []
    try:
        for name in names:
            try:
                found = os.stat(name, dir_fd=fd)
                marks += (found.st_mtime_ns, found.st_size)
            except OSError:
                marks += (-1, -1)
    finally:
        os.close(fd)
    return marks


def _read(path: Path) -> pa.Table:
    """The facts written last time; none where they cannot be trusted."""
    with contextlib.suppress(OSError, WarpError, pa.ArrowException):
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        found = file.read(use_threads=False)
        stated = dict(found.schema.metadata or {})
        is_known = stated.get(b"warpdata_facts") == _VERSION[b"warpdata_facts"]
        if is_known and {*_OWN, *COLUMNS} <= set(found.column_names):
            return found
    return pa.table({name: to_arrow(np.empty(0, np.int64)) for name in _OWN})


def _write(path: Path, table: pa.Table) -> None:
    """Keep the facts; a root that cannot be written is simply looked at again next time."""
    problems = table.column("problems").to_pylist()
    healthy = table.filter(pa.array([not each for each in problems]))
    sink = io.BytesIO()
    pq.write_table(
        healthy.replace_schema_metadata(_VERSION), sink, compression="zstd", write_page_checksum=True
    )
    with contextlib.suppress(WarpError):
        write_file(path, sink.getvalue(), durable=False)
