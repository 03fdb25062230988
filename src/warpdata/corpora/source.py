"""Rows of shards in their fixed order, with memory that stays bounded."""

from __future__ import annotations

import operator
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from warpdata.bytekit.process.forks import Reopens
from warpdata.corpora import shards as shard_sets
from warpdata.corpora.batch import RowBatch, Rows, output_dtype
from warpdata.corpora.options import options_of
from warpdata.corpora.shard_rows import CopiedSpans, MappedSpans, RowSpan, ShardRows
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.shuffled import OrderKeywords, ShuffledRows, ShuffleOptions, torch_dataset
from warpdata.errors import require_kind

if TYPE_CHECKING:
    from typing import Self

DEFAULT_PREFETCH_BYTES = 8 << 20
DEFAULT_BATCH_ROWS = 1024
SPAN_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How rows are read and what they come as."""

    dtype: str | type | np.dtype[Any] = "float64"
    """`float64`, `float32`, or `stored`."""
    copy: bool = True
    """False gives views of the mapping; the dtype must then be the stored one."""
    batch_rows: int = DEFAULT_BATCH_ROWS
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    verify: bool = True
    """Check runs of rows against corpus.json the first time they are read, where there is one."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "prefetch_bytes"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.batch_rows < 1 or self.prefetch_bytes < 1:
            raise ValueError("batch_rows and prefetch_bytes are at least 1")


class SourceKeywords(TypedDict, total=False):
    """The fields of SourceOptions as keyword arguments."""

    dtype: str | type | np.dtype[Any]
    copy: bool
    batch_rows: int
    prefetch_bytes: int
    verify: bool


class FixedOrderSource(Reopens, ABC):
    """A cursor over shards, read in spans that are prefetched; batches never cross a shard."""

    def __init__(self, shards: ShardSet, options: SourceOptions, batch_rows: int) -> None:
        self.shards = shards
        self.options = options
        self.batch_rows = batch_rows
        self._dtype = output_dtype(options.dtype, shards.dtype)
        self._bases = shards.first_rows()
        self._shard_rows = shards.shard_rows
        self._rows = self.open_rows(in_order=True)
        self._span_rows = _span_rows(shards, options.prefetch_bytes)
        self._span: RowSpan | None = None
        self._ahead: deque[RowSpan] = deque()
        self._plan: Iterator[RowSpan] = iter(())
        self.reset()

    @abstractmethod
    def open_rows(self, *, in_order: bool) -> ShardRows:
        """A new reader of the stored rows, in their order or in any; the caller closes it."""

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""
        return self.shards.total_rows

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.shards.width

    @property
    def dtype(self) -> np.dtype[Any]:
        """What rows come as."""
        return self._dtype

    @property
    def position(self) -> int:
        """The id of the next row."""
        return self._id

    def reset(self) -> None:
        """Begin again at the first row."""
        self.seek(0)

    def seek(self, row_id: int) -> None:
        """Go on at the row with this id; the number of rows is the end."""
        row_id = operator.index(row_id)
        if not 0 <= row_id <= self.total_rows:
            raise ValueError(f"row {row_id} of {self.total_rows}")
        self._shard = int(np.searchsorted(self._bases, row_id, "right")) - 1
        self._row = row_id - int(self._bases[self._shard])
        self._id = row_id
        self._skip_drained()

    def next_batch(self, out: Rows | None = None) -> RowBatch | None:
        """The next rows, or None after the last; `out` is filled and handed back instead of a new array."""
        if self._shard == len(self._shard_rows):
            return None
        limit = self.batch_rows if out is None else min(self.batch_rows, self._checked_out(out))
        take = min(limit, self._shard_rows[self._shard] - self._row)
        if out is None:
            rows = self._new_rows(take)
        else:
            rows = out[:take]
            self._read(rows)
        first, self._row, self._id = self._id, self._row + take, self._id + take
        self._skip_drained()
        return RowBatch(rows, np.arange(first, self._id, dtype=np.uint64))

    def _new_rows(self, take: int) -> Rows:
        """The next rows in an array of their own."""
        rows = np.empty((take, self.width), self._dtype)
        self._read(rows)
        return rows

    def _read(self, out: Rows) -> None:
        """Fill `out` with the rows at the cursor, span by span."""
        done = 0
        while done < len(out):
            row = self._row + done
            span = self._enter(self._shard, row)
            take = min(span.end - row, len(out) - done)
            self._rows.decode(span, row, out[done : done + take])
            done += take

    def _enter(self, shard: int, row: int) -> RowSpan:
        """The span of a row, with the spans after it prefetched and the one before it released."""
        span = self._span
        if span is not None and span.shard == shard and span.start <= row < span.end:
            return span
        if span is not None:
            self._rows.release(span)
        wanted = self._span_at(shard, row)
        if not self._ahead or self._ahead[0] != wanted:  # after a seek
            self._drop_ahead()
            self._plan = self._spans_from(wanted)
        row_bytes = max(1, self.shards.row_bytes)
        most = self.options.prefetch_bytes // row_bytes + wanted.end - wanted.start
        waiting = sum(each.end - each.start for each in self._ahead)
        while len(self._ahead) < 2 or waiting < most:
            following = next(self._plan, None)
            if following is None:
                break
            self._rows.prefetch(following)
            self._ahead.append(following)
            waiting += following.end - following.start
        self._span = self._ahead.popleft()
        return self._span

    def _span_at(self, shard: int, row: int) -> RowSpan:
        start = row - row % self._span_rows
        return RowSpan(shard, start, min(start + self._span_rows, self._shard_rows[shard]))

    def _spans_from(self, span: RowSpan) -> Iterator[RowSpan]:
        """The spans of all rows from a span on, on a fixed grid in each shard."""
        for shard in range(span.shard, len(self._shard_rows)):
            first = span.start if shard == span.shard else 0
            for start in range(first, self._shard_rows[shard], self._span_rows):
                yield self._span_at(shard, start)

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._rows.release(self._ahead.popleft())
        self._span = None

    def _checked_out(self, out: Rows) -> int:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        if out.ndim != 2 or out.shape[1] != self.width or out.dtype != self._dtype or not len(out):
            raise ValueError(f"out must be a matrix of width {self.width} and dtype {self._dtype}")
        return len(out)

    def _skip_drained(self) -> None:
        rows = self._shard_rows
        while self._shard < len(rows) and self._row >= rows[self._shard]:
            self._shard, self._row = self._shard + 1, 0

    def to_torch(self, batch_size: int = DEFAULT_BATCH_ROWS, **options: Unpack[OrderKeywords]) -> Any:
        """The shuffled corpus as a torch IterableDataset; keyword arguments as for ShuffledRows."""
        return torch_dataset(
            ShuffledRows(self, options_of(ShuffleOptions, {"batch_size": batch_size, **options}))
        )

    def __iter__(self) -> Iterator[RowBatch]:
        return iter(self.next_batch, None)

    def __len__(self) -> int:
        return self.total_rows

    def close(self) -> None:
        """Stop prefetching and free files and buffers."""
        self._drop_ahead()
        self._rows.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.total_rows} rows x {self.width} {self.shards.dtype}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter modules may be gone, and the system frees threads and files.
        if hasattr(self, "_rows") and not is_over():
            self._rows.close()


class MmapShardSource(FixedOrderSource):
    """Rows of local shards in a fixed order with stable ids, prefetched into the page cache and unmapped behind."""

    def __init__(self, shards: ShardSet, options: SourceOptions | None = None) -> None:
        require_kind("shards", shards, ShardSet, "a set of shards; open files with MmapShardSource.open")
        options = options_of(SourceOptions, {}, options)
        super().__init__(shards, options, max(1, min(options.batch_rows, shards.total_rows)))
        if not options.copy and self._dtype != shards.dtype.dtype:
            raise ValueError(f"copy=False cannot turn {shards.dtype} into {self._dtype}; use dtype='stored'")

    @classmethod
    def open(cls, paths: Sequence[str | os.PathLike[str]], **options: Unpack[SourceKeywords]) -> Self:
        """Open these shard files; their order is the order of the rows."""
        chosen = options_of(SourceOptions, options)
        return cls(shard_sets.open_paths(paths), chosen)

    @classmethod
    def open_dir(cls, folder: str | os.PathLike[str], **options: Unpack[SourceKeywords]) -> Self:
        """Open every `.shard` file of a folder by name, or a bf16 directory."""
        chosen = options_of(SourceOptions, options)
        return cls(shard_sets.open_folder(folder), chosen)

    def open_rows(self, *, in_order: bool) -> ShardRows:
        """A new reader of the files."""
        return (MappedSpans if in_order else CopiedSpans)(self.shards, verify=self.options.verify)

    def _new_rows(self, take: int) -> Rows:
        if self.options.copy:
            return super()._new_rows(take)
        if self._span is not None:
            self._rows.release(self._span)
        self._span = RowSpan(self._shard, self._row, self._row + take)
        following = RowSpan(
            self._shard, self._span.end, min(self._span.end + take, self._shard_rows[self._shard])
        )
        self._rows.prefetch(following)
        return self._rows.read(self._span).view(self._dtype)


def _span_rows(shards: ShardSet, prefetch_bytes: int) -> int:
    """Rows of a span: about 4 MiB, at most what is prefetched, and whole checksummed runs where there are any."""
    rows = max(1, min(SPAN_BYTES, prefetch_bytes) // max(1, shards.row_bytes))
    return max(1, rows // shards.run_rows) * shards.run_rows if shards.run_rows else rows
