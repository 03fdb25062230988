"""Rows of local shards in their fixed order, with memory that stays bounded."""

from __future__ import annotations

import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from warpdata.bytekit.io.pages import fits_free_memory
from warpdata.corpora import shards as shard_sets
from warpdata.corpora.batch import RowBatch, Rows
from warpdata.corpora.decode import output_dtype
from warpdata.corpora.direct import DirectSpans
from warpdata.corpora.fixed_order import FixedOrderReader
from warpdata.corpora.mapped import MappedSpans
from warpdata.corpora.options import options_of
from warpdata.corpora.runs import CheckedRuns, FarRuns, FileRuns, RunReader
from warpdata.corpora.shards import ShardSet
from warpdata.corpora.shuffled import OrderKeywords, ShuffleOptions
from warpdata.corpora.spans import CheckedSpans, SpanReader
from warpdata.corpora.torch_dataset import torch_dataset
from warpdata.errors import require_kind, require_word

if TYPE_CHECKING:
    from typing import Self

DEFAULT_PREFETCH_BYTES = 8 << 20
DEFAULT_BATCH_ROWS = 1024
SHUFFLE_READERS = 4
"""Windows of a shuffle that are filled at a time."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How rows are read and what they come as."""

    dtype: str | type | np.dtype[Any] = "float64"
    """`float64`, `float32`, or `stored`."""
    copy: bool = True
    """False gives views of the mapping; the dtype must then be the stored one."""
    batch_rows: int = DEFAULT_BATCH_ROWS
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
    io: str = "auto"
    """`mmap`, `direct` (past the page cache), or `auto`: direct for corpora beyond half of free memory."""
    verify: bool = True
    """Check runs of rows against corpus.json the first time they are read, where there is one."""

    def __post_init__(self) -> None:
        require_word("io", self.io, ("auto", "mmap", "direct"))
        for name in ("batch_rows", "prefetch_bytes"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))
        if self.batch_rows < 1 or self.prefetch_bytes < 1:
            raise ValueError("batch_rows and prefetch_bytes are at least 1")
        if not self.copy and self.io == "direct":
            raise ValueError("views need the mapping; use io='mmap' with copy=False")


class SourceKeywords(TypedDict, total=False):
    """The fields of SourceOptions as keyword arguments."""

    dtype: str | type | np.dtype[Any]
    copy: bool
    batch_rows: int
    prefetch_bytes: int
    io: str
    verify: bool


class FixedOrderSource(ABC):
    """What every fixed-order source shares: a cursor over shards, and batches that never cross one."""

    def __init__(self, shards: ShardSet, spans: SpanReader, options: SourceOptions, batch_rows: int) -> None:
        self.shards = shards
        self.options = options
        self.batch_rows = batch_rows
        self._dtype = output_dtype(options.dtype, shards.dtype)
        self._bases = shards.first_rows()
        self._shard_rows = shards.shard_rows
        self._width = shards.width
        checked = options.verify and shards.run_crcs is not None
        self._spans = CheckedSpans(spans, shards) if checked else spans
        self._reader = FixedOrderReader(shards, self._spans, options.prefetch_bytes, self._dtype)
        self.reset()

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""
        return self.shards.total_rows

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.shards.width

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
        first, last = self._id, self._id + take
        try:
            if out is None:
                rows = self._new_rows(take)
            else:
                self._reader.read(self._shard, self._row, rows := out[:take])
        except BaseException:
            self._reader.seek(self._shard, self._row)  # the next call tries these very rows again
            raise
        self._row += take
        self._id = last
        if self._row >= self._shard_rows[self._shard]:
            self._skip_drained()
        return RowBatch(rows, np.arange(first, last, dtype=np.uint64))

    def _new_rows(self, take: int) -> Rows:
        """The next rows in an array of their own."""
        return self._reader.new_rows(self._shard, self._row, take)

    def _checked_out(self, out: Rows) -> int:
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out must be an array, not {type(out).__name__}")
        if out.ndim != 2 or out.shape[1] != self._width or out.dtype != self._dtype or not len(out):
            raise ValueError(f"out must be a matrix of width {self.width} and dtype {self._dtype}")
        return len(out)

    def _skip_drained(self) -> None:
        rows = self._shard_rows
        while self._shard < len(rows) and self._row >= rows[self._shard]:
            self._shard, self._row = self._shard + 1, 0

    def run_readers(self) -> list[RunReader]:
        """As many readers of runs in any order as a shuffle keeps busy; they are closed by whoever asked for them."""
        readers = self._unchecked_runs()
        if not self.options.verify or self.shards.run_crcs is None:
            return readers
        checked = [np.zeros(len(crcs), np.bool_) for crcs in self.shards.run_crcs]
        return [CheckedRuns(each, self.shards, checked) for each in readers]

    @abstractmethod
    def _unchecked_runs(self) -> list[RunReader]: ...

    @abstractmethod
    def __reduce__(self) -> tuple[Any, ...]: ...

    def reopened(self) -> Self:
        """The same source opened anew: what a worker process reads with."""
        kind, arguments = self.__reduce__()
        again: Self = kind(*arguments)
        return again

    def to_torch(self, batch_size: int = DEFAULT_BATCH_ROWS, **options: Unpack[OrderKeywords]) -> Any:
        """The shuffled corpus as a torch IterableDataset; keyword arguments as for ShuffledRows."""
        return torch_dataset(self, options_of(ShuffleOptions, {"batch_size": batch_size, **options}))

    def __iter__(self) -> Iterator[RowBatch]:
        return iter(self.next_batch, None)

    def __len__(self) -> int:
        return self.total_rows

    def close(self) -> None:
        """Stop reading ahead and give back files and buffers."""
        self._reader.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.total_rows} rows x {self._width} {self.shards.dtype}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # Where the interpreter ends, modules may be gone, and the system takes back threads and files.
        if hasattr(self, "_reader") and not is_over():
            self._reader.close()


class MmapShardSource(FixedOrderSource):
    """Rows of local shards in a fixed order with stable ids, read ahead in a thread and released behind."""

    def __init__(self, shards: ShardSet, options: SourceOptions | None = None) -> None:
        require_kind("shards", shards, ShardSet, "a set of shards; open files with MmapShardSource.open")
        options = options_of(SourceOptions, {}, options)
        self._mapped = MappedSpans(shards)
        spans: SpanReader = DirectSpans(shards) if _wants_direct(shards, options) else self._mapped
        batch_rows = max(1, min(options.batch_rows, shards.total_rows))
        super().__init__(shards, spans, options, batch_rows)
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

    def _new_rows(self, take: int) -> Rows:
        if self.options.copy:
            return self._reader.new_rows(self._shard, self._row, take)
        self._reader.pass_over(self._shard, self._row, take)
        rows = self._mapped.view(self._shard)[self._row : self._row + take]
        return rows.view(self._dtype)

    def _unchecked_runs(self) -> list[RunReader]:
        if _wants_direct(self.shards, self.options):
            return [FarRuns(DirectSpans(self.shards)) for _ in range(SHUFFLE_READERS)]
        return [FileRuns(self.shards) for _ in range(SHUFFLE_READERS)]

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.shards, self.options))


def _wants_direct(shards: ShardSet, options: SourceOptions) -> bool:
    if options.io != "auto":
        return options.io == "direct"
    return options.copy and not fits_free_memory(2 * shards.payload_bytes)
