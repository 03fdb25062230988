"""Row groups read ahead of the consumer: the first one at once, the rest by a bounded pool of threads."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.process.threads import CORES, ReadAhead
from warpdata.errors import nearest
from warpdata.loading.tables.row_ranges import RowRanges

if TYPE_CHECKING:
    from warpdata.catalog.read.rowgroups import Fetched
    from warpdata.catalog.table import Table

_AHEAD_BYTES = 512 << 20
_REMOTE_WORKERS = 12


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """Rows [start, end) of one row group; `position` counts the rows of the share before them."""

    shard: int
    group: int
    start: int
    end: int
    position: int


def group_slices(table: Table, ranges: RowRanges) -> Iterator[GroupSlice]:
    """The row groups of a share in order, found as they are needed."""
    position = 0
    for piece in ranges:
        borders = [0, *accumulate(group_rows(table, piece.shard))]
        for group, (low, high) in enumerate(pairwise(borders)):
            start, end = max(low, piece.start), min(high, piece.end)
            if start < end:
                yield GroupSlice(piece.shard, group, start - low, end - low, position)
                position += end - start


def group_rows(table: Table, shard: int) -> list[int]:
    """The rows of each row group of a shard."""
    return table.files.file(shard).group_rows


def group_bytes(table: Table, part: GroupSlice, columns: Sequence[str] | None) -> int:
    """Bytes of a row group's columns on disk."""
    ranges = table.files.file(part.shard).column_ranges(part.group, columns)
    return sum(end - start for start, end in ranges)


def stream_rows(
    table: Table, ranges: RowRanges, columns: Sequence[str] | None, first_rows: int, workers: int
) -> Iterator[Any]:
    """Record batches of a share in order; reading ahead begins once the first batch is out."""
    slices = group_slices(table, ranges)
    first = next(slices, None)
    if first is None:
        return
    file = table.files.file(first.shard)
    needed = min(first.end, first.start + first_rows)
    if file.is_worth_paging(first.group, columns, needed):
        yield from file.first_rows(first.group, columns, needed).slice(first.start).to_batches()
        if needed == first.end:
            begun: Iterator[Any] = iter(())
        else:
            begun = _first_group(table, replace(first, start=needed), columns, first_rows)
    else:
        begun = _first_group(table, first, columns, first_rows)
        yield from itertools.islice(begun, 1)
    if workers:
        table.files.bring_whole(piece.shard for piece in ranges)
    with contextlib.closing(_ahead(table, slices, columns, workers)) as ahead:
        yield from begun
        for _, loaded in ahead:
            yield from loaded.to_batches()


def load_groups(
    table: Table, slices: Iterator[GroupSlice], columns: Sequence[str] | None, workers: int
) -> Iterator[tuple[GroupSlice, Any]]:
    """Whole row groups as tables, read ahead, each with where it came from."""
    with contextlib.closing(_ahead(table, slices, columns, workers)) as ahead:
        yield from ahead


def _ahead(
    table: Table, slices: Iterator[GroupSlice], columns: Sequence[str] | None, workers: int
) -> ReadAhead[GroupSlice, Fetched, tuple[GroupSlice, Any]]:
    return ReadAhead(
        lambda part: table.files.file(part.shard).ask(part.group, columns),
        lambda part, fetched: (part, _decoded(table, part, columns, fetched)),
        slices,
        workers=workers,
        cost=lambda part: group_bytes(table, part, columns),
        max_cost=_AHEAD_BYTES,
        is_here=lambda part: table.files.file(part.shard).is_here(part.group, columns),
    )


def worker_count(table: Table, prefetch: str | int | None) -> int:
    """How many threads read ahead: none when it is off, more where each read waits for a network."""
    options = table.dataset.access.options
    wanted = options.prefetch if prefetch is None else prefetch
    if wanted in ("off", 0, "0", "none"):
        return 0
    if isinstance(wanted, int) or (isinstance(wanted, str) and wanted.isdigit()):
        if int(wanted) < 0:
            raise ValueError(f"prefetch is {wanted}; a number of row groups is not negative")
        return min(int(wanted), 64)
    if wanted not in ("auto", "aggressive"):
        near = nearest(str(wanted), ("auto", "off", "aggressive"))
        raise ValueError(f"prefetch is {wanted!r}; use auto, off, aggressive or a number.{near}")
    store = table.dataset.catalog.store
    count = CORES + 1 if store is not None and store.is_local else _REMOTE_WORKERS
    return count * 2 if wanted == "aggressive" or options.mode == "hybrid" else count


def _first_group(table: Table, part: GroupSlice, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """The first row group in small steps, so that the first batch is there as soon as it can be."""
    at = 0
    for batch in table.files.file(part.shard).stream(part.group, columns, rows):
        start, end = max(part.start - at, 0), min(part.end - at, batch.num_rows)
        at += batch.num_rows
        if start < end:
            yield batch.slice(start, end - start)
        if at >= part.end:
            return


def _decoded(table: Table, part: GroupSlice, columns: Sequence[str] | None, fetched: Fetched) -> Any:
    """The rows of a slice; where other groups are decoded at the same time, its columns need no threads."""
    whole = table.files.file(part.shard).read(part.group, columns, fetched)
    if part.end - part.start == whole.num_rows:
        return whole
    return whole.slice(part.start, part.end - part.start)
