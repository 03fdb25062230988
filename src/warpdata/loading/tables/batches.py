"""Record batches of an exact size, cut from pieces of any size. An adapter of pyarrow."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def exact_batches(pieces: Iterator[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `size`; slices share memory, only what crosses a border is copied."""
    held: list[pa.RecordBatch] = []
    count = 0
    for piece in pieces:
        at = 0
        if held:
            at = min(size - count, piece.num_rows)
            held.append(piece.slice(0, at))
            count += at
            if count < size:
                continue
            yield joined(held)
            held, count = [], 0
        while piece.num_rows - at >= size:
            yield piece.slice(at, size)
            at += size
        if at < piece.num_rows:
            held, count = [piece.slice(at)], piece.num_rows - at
    if held:
        yield joined(held)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def cut_batches(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows; nothing is read after them."""
    while rows > 0 and (batch := next(batches, None)) is not None:
        yield batch.slice(0, rows)
        rows -= batch.num_rows


def with_positions(table: pa.Table, first: int, name: str) -> pa.Table:
    """A table with a column that counts its rows from `first`."""
    return table.append_column(name, pa.array(range(first, first + table.num_rows), pa.int64()))


def batches_of(table: pa.Table) -> list[pa.RecordBatch]:
    """A table's chunks as batches."""
    found: list[pa.RecordBatch] = table.to_batches()
    return found
