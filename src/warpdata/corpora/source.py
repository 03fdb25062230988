"""Rows of shards in their fixed order with stable ids, from local files or a store, within bounded memory."""

from __future__ import annotations

import operator
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import Closing, FolderReader, RangeReader, retry_damaged
from warpdata.bytekit.memory import RecycledArrays
from warpdata.bytekit.process.forks import Reopens
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.corpora import shards as shard_sets
from warpdata.corpora.rows import RowBatch, Rows, check_out, output_dtype
from warpdata.corpora.shards import ShardSet, bf16_shards, join_recorded, join_shards
from warpdata.corpora.shuffled import ShuffledRows, ShuffleKeywords, torch_dataset
from warpdata.corpora.spans import (
    MAX_OPEN_FILES,
    FetchedSpans,
    MappedSpans,
    RowSpan,
    ShardRows,
    read_with_retries,
)
from warpdata.errors import BlobNotFoundError, require_kind, suggests
from warpdata.formats.bf16dir.layout import MANIFEST_NAME
from warpdata.formats.bf16dir.reader import is_bf16_manifest, parse_directory
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus import CorpusRecord, parse_corpus, sort_shard_names
from warpdata.formats.gamsae.shard import ShardInfo, parse_header
from warpdata.ordering.fraction import row_in_fraction

if TYPE_CHECKING:
    from typing import Self

SPAN_BYTES = 4 << 20
HEADER_THREADS = 8


@suggests
@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How rows are read and their element type."""

    dtype: str | type | np.dtype[Any] = "float64"
    """`float64`, `float32`, or `stored`."""
    copy: bool = True
    """False returns views of the mapping; the dtype must then be the stored one."""
    batch_rows: int = 1024
    prefetch_bytes: int = 8 << 20
    verify: bool = True
    """Check runs of rows against corpus.json, if there is one, the first time they are read."""

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


class FixedOrderSource(Reopens, Closing, ABC):
    """A cursor over shards, read in spans that are prefetched; batches never cross a shard."""

    def __init__(self, shards: ShardSet, options: SourceOptions | None) -> None:
        require_kind(
            "shards", shards, ShardSet, f"a set of shards; open files with {type(self).__name__}.open"
        )
        require_kind("options", options, (SourceOptions, type(None)), "SourceOptions")
        self.shards = shards
        self.total_rows, self.width = shards.total_rows, shards.width
        """Rows of all shards, and columns of a row."""
        self.options = options or SourceOptions()
        self.batch_rows = max(1, min(self.options.batch_rows, shards.total_rows))
        self.dtype = output_dtype(self.options.dtype, shards.dtype)
        self._firsts = shards.first_rows()
        self._rows = self.open_rows(in_order=True)
        self._arrays = RecycledArrays()
        per_span = max(1, min(SPAN_BYTES, self.options.prefetch_bytes) // max(1, shards.row_bytes))
        run_rows = shards.run_rows
        self._span_rows = max(1, per_span // run_rows) * run_rows if run_rows else per_span
        self._span: RowSpan | None = None
        self._ahead: deque[RowSpan] = deque()
        self._plan: Iterator[RowSpan] = iter(())
        self.reset()

    @abstractmethod
    def open_rows(self, *, in_order: bool) -> ShardRows:
        """A new reader of the stored rows, in their order or in any; the caller closes it."""

    @property
    def position(self) -> int:
        """The id of the next row."""
        return self._id

    def reset(self) -> None:
        """Begin again at the first row."""
        self.seek(0)

    def seek(self, row_id: int) -> None:
        """Continue at the row with this id; the number of rows is the end."""
        row_id = operator.index(row_id)
        if not 0 <= row_id <= self.total_rows:
            raise ValueError(f"row {row_id} of {self.total_rows}")
        self._id = row_id

    def next_batch(self, out: Rows | None = None) -> RowBatch | None:
        """The next rows, or None after the last; `out` is filled and returned instead of a new array."""
        first = self._id
        if first == self.total_rows:
            return None
        limit = (
            self.batch_rows if out is None else min(self.batch_rows, check_out(out, self.width, self.dtype))
        )
        shard = int(self._firsts.searchsorted(first, "right")) - 1
        row = first - int(self._firsts[shard])
        take = min(limit, self.shards.shards[shard].n_rows - row)
        if out is None and not self.options.copy:
            rows = self._view(RowSpan(shard, row, row + take))
        else:
            rows = self._arrays.empty((take, self.width), self.dtype) if out is None else out[:take]
            done = 0
            while done < take:
                span = self._enter(shard, row + done)
                part = rows[done : span.end - row]
                self._rows.read_into(span, row + done, part)
                done += len(part)
        self._id = first + take
        return RowBatch(rows, np.arange(first, self._id, dtype=np.uint64))

    def _view(self, span: RowSpan) -> Rows:
        """A view of the next rows; the pages of the previous ones are released."""
        if self._span is not None:
            self._rows.release(self._span)
        self._span = span
        end = min(2 * span.end - span.start, self.shards.shards[span.shard].n_rows)
        self._rows.prefetch(RowSpan(span.shard, span.end, end))
        return self._rows.read(span).view(self.dtype)

    def _enter(self, shard: int, row: int) -> RowSpan:
        """The span of a row, with the spans after it prefetched and the one before it released."""
        span = self._span
        if span is not None and span.shard == shard and span.start <= row < span.end:
            return span
        if span is not None:
            self._rows.release(span)
        wanted = next(self._spans_from(shard, row))
        if not self._ahead or self._ahead[0] != wanted:  # after a seek
            self._drop_ahead()
            self._plan = self._spans_from(shard, row)
        row_bytes = max(1, self.shards.row_bytes)
        most = self.options.prefetch_bytes // row_bytes + wanted.end - wanted.start
        waiting = sum(span.end - span.start for span in self._ahead)
        while len(self._ahead) < 2 or waiting < most:
            following = next(self._plan, None)
            if following is None:
                break
            self._rows.prefetch(following)
            self._ahead.append(following)
            waiting += following.end - following.start
        self._span = self._ahead.popleft()
        return self._span

    def _spans_from(self, shard: int, row: int) -> Iterator[RowSpan]:
        """The spans of all rows from a row on, on a fixed grid in each shard."""
        start = row - row % self._span_rows
        for number in range(shard, len(self.shards.shards)):
            rows = self.shards.shards[number].n_rows
            for first in range(start, rows, self._span_rows):
                yield RowSpan(number, first, min(first + self._span_rows, rows))
            start = 0

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._rows.release(self._ahead.popleft())
        self._span = None

    def to_torch(self, batch_size: int = 1024, **options: Unpack[ShuffleKeywords]) -> Any:
        """The shuffled corpus as a torch IterableDataset; keyword arguments as for ShuffledRows."""
        return torch_dataset(ShuffledRows(self, batch_size=batch_size, **options))

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

    def __del__(self, is_over: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the interpreter modules may be gone, and the system frees threads and files.
        if hasattr(self, "_rows") and not is_over():
            self._rows.close()


class MmapShardSource(FixedOrderSource):
    """Rows of local shards in a fixed order with stable ids: copies, or views of a mapping that is released behind."""

    def __init__(self, shards: ShardSet, options: SourceOptions | None = None) -> None:
        super().__init__(shards, options)
        if not self.options.copy and self.dtype != shards.dtype.dtype:
            raise ValueError(f"copy=False cannot turn {shards.dtype} into {self.dtype}; use dtype='stored'")

    @classmethod
    def open(cls, paths: Sequence[str | os.PathLike[str]], **options: Unpack[SourceKeywords]) -> Self:
        """Open these shard files; their order is the order of the rows."""
        chosen = SourceOptions(**options)
        return cls(shard_sets.open_paths(paths), chosen)

    @classmethod
    def open_dir(cls, folder: str | os.PathLike[str], **options: Unpack[SourceKeywords]) -> Self:
        """Open every `.shard` file of a folder by name, or a bf16 directory."""
        chosen = SourceOptions(**options)
        return cls(shard_sets.open_folder(folder), chosen)

    def open_rows(self, *, in_order: bool) -> ShardRows:
        """A new reader of the files; rows in any order are copied, because mapped pages would pile up in memory."""
        if in_order:
            return MappedSpans(self.shards, verify=self.options.verify)
        names = [shard.name for shard in self.shards.shards]
        open_reader = lru_cache(maxsize=MAX_OPEN_FILES)(lambda shard: FileRangeReader(names[shard]))
        return FetchedSpans(self.shards, open_reader, verify=self.options.verify, is_local=True)


class StoreShardSource(FixedOrderSource):
    """Rows of shards behind range readers in a fixed order; the window is bounded in bytes, not in shards."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], options: SourceOptions | None = None
    ) -> None:
        self.readers = _checked_readers(readers)
        super().__init__(shards, options)
        if not self.options.copy:
            raise ValueError("rows of a store are always copies")
        if len(self.readers) != len(shards.shards):
            raise ValueError(f"{len(self.readers)} readers of {len(shards.shards)} shards")
        fits = self.options.prefetch_bytes // max(1, shards.row_bytes)
        self.batch_rows = max(1, min(self.batch_rows, fits))

    @classmethod
    def open(
        cls,
        readers: Sequence[RangeReader],
        *,
        corpus: RangeReader | None = None,
        **options: Unpack[SourceKeywords],
    ) -> Self:
        """Open the shards behind these readers in their order; `corpus` reads their corpus.json, to check rows."""
        chosen = SourceOptions(**options)
        infos = map_in_threads(_read_header, _checked_readers(readers), HEADER_THREADS)
        shards = join_shards(infos) if corpus is None else join_recorded(_read_record(corpus), infos)
        return cls(shards, readers, chosen)

    @classmethod
    def open_folder(cls, folder: FolderReader, **options: Unpack[SourceKeywords]) -> Self:
        """Open the corpus of any folder: the shards its corpus.json lists, a bf16 directory, or every `.shard`."""
        require_kind("a folder", folder, FolderReader, "a FolderReader; open a path with open_dir")
        corpus = _open_if_present(folder, layout.CORPUS_JSON)
        if corpus is not None:
            names = [shard.name for shard in _read_record(corpus).shards]
            return cls.open(map_in_threads(folder.open, names, HEADER_THREADS), corpus=corpus, **options)
        manifest = _open_if_present(folder, MANIFEST_NAME)
        if manifest is not None and is_bf16_manifest(manifest):
            readers: list[RangeReader] = []

            def find(name: str) -> tuple[str, int]:
                readers.append(folder.open(name))
                return readers[-1].name, readers[-1].size

            shards = join_shards(bf16_shards(parse_directory(manifest, find)))
            return cls(shards, readers, SourceOptions(**options))
        names = sort_shard_names([name for name in folder.names() if "/" not in name])
        return cls.open(map_in_threads(folder.open, names, HEADER_THREADS), **options)

    @classmethod
    def open_dir(cls, folder: str | os.PathLike[str], **options: Unpack[SourceKeywords]) -> Self:
        """Open the corpus of a local folder by positioned reads, safe for files that may change."""
        shards = shard_sets.open_folder(folder)
        return cls(shards, [FileRangeReader(shard.name) for shard in shards.shards], SourceOptions(**options))

    def open_rows(self, *, in_order: bool) -> ShardRows:  # noqa: ARG002
        """A new reader through the same range readers."""
        return FetchedSpans(self.shards, self.readers.__getitem__, verify=self.options.verify)


def _checked_readers(readers: Sequence[RangeReader]) -> tuple[RangeReader, ...]:
    for reader in readers:
        require_kind("a reader", reader, RangeReader, "a RangeReader; open paths with open_dir")
    return tuple(readers)


def _open_if_present(folder: FolderReader, name: str) -> RangeReader | None:
    try:
        return folder.open(name)
    except BlobNotFoundError:
        return None


def _read_record(reader: RangeReader) -> CorpusRecord:
    def read() -> CorpusRecord:
        return parse_corpus(bytes(read_with_retries(lambda: reader.read(0, reader.size))), reader.name)

    return retry_damaged(reader, read)


def _read_header(reader: RangeReader) -> ShardInfo:
    size = min(layout.HEADER_BYTES, reader.size)

    def read() -> ShardInfo:
        return parse_header(read_with_retries(lambda: reader.read(0, size)), reader.size, reader.name)

    return retry_damaged(reader, read, [(0, size)])


class FractionRows:
    """The rows of a source that are in a fraction, in their fixed order; each pass begins at the first row."""

    def __init__(self, source: FixedOrderSource, fraction: float) -> None:
        require_kind("a source", source, FixedOrderSource, "an open corpus (wd.open_corpus)")
        self.source = source
        self.fraction = fraction
        row_in_fraction([0], fraction)

    def __repr__(self) -> str:
        return f"<FractionRows {self.fraction} of {self.source!r}>"

    def __iter__(self) -> Iterator[RowBatch]:
        self.source.reset()
        size = self.source.batch_rows
        rows, ids = np.empty((0, self.source.width), self.source.dtype), np.empty(0, np.uint64)
        for batch in self.source:
            chosen = row_in_fraction(batch.row_ids, self.fraction)
            rows = np.concatenate([rows, batch.rows[chosen]])
            ids = np.concatenate([ids, batch.row_ids[chosen]])
            while len(ids) >= size:
                yield RowBatch(rows[:size], ids[:size])
                rows, ids = rows[size:], ids[size:]
        if len(ids):
            yield RowBatch(rows, ids)
