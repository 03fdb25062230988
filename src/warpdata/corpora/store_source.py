"""The same rows and ids from range readers: shards in a store, in memory, or in files that may change."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from warpdata.bytekit.io.folders import FolderReader
from warpdata.bytekit.io.ranges import FileRangeReader, RangeReader
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.corpora.batch import Rows
from warpdata.corpora.decode import raw_dtype
from warpdata.corpora.options import options_of
from warpdata.corpora.runs import FarRuns, RunReader
from warpdata.corpora.shards import ShardSet, bf16_shards, join_recorded, join_shards
from warpdata.corpora.source import FixedOrderSource, SourceKeywords, SourceOptions
from warpdata.corpora.spans import FarSpans, RowSpan
from warpdata.errors import BlobNotFoundError, UnavailableError, require_kind
from warpdata.formats.bf16dir.layout import MANIFEST_NAME
from warpdata.formats.bf16dir.reader import is_bf16_manifest, parse_directory
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, parse_corpus
from warpdata.formats.gamsae.reader import ShardInfo, parse_header
from warpdata.formats.gamsae.verify import sort_shard_names

if TYPE_CHECKING:
    from typing import Self

HEADER_THREADS = 8
SHUFFLE_READERS = 8
RETRIES = 4
BACKOFF_S = 0.05


class StoreShardSource(FixedOrderSource):
    """Rows of shards behind range readers in a fixed order; the window is bounded in bytes, not in shards."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], options: SourceOptions | None = None
    ) -> None:
        require_kind("shards", shards, ShardSet, "a set of shards; open files with StoreShardSource.open")
        options = options_of(SourceOptions, {}, options)
        if not options.copy:
            raise ValueError("rows of a store are always copies")
        self.readers = _checked_readers(readers)
        if len(self.readers) != len(shards.shards):
            raise ValueError(f"{len(self.readers)} readers of {len(shards.shards)} shards")
        fits = options.prefetch_bytes // max(1, shards.row_bytes)
        batch_rows = max(1, min(options.batch_rows, shards.total_rows, fits))
        super().__init__(shards, self._ranged(shards), options, batch_rows)

    @classmethod
    def open(
        cls,
        readers: Sequence[RangeReader],
        *,
        corpus: RangeReader | None = None,
        **options: Unpack[SourceKeywords],
    ) -> Self:
        """Open the shards behind these readers in their order; `corpus` reads their corpus.json, to check rows."""
        chosen = options_of(SourceOptions, options)
        infos = map_in_threads(read_header, _checked_readers(readers), HEADER_THREADS)
        shards = join_shards(infos) if corpus is None else join_recorded(read_record(corpus), infos)
        return cls(shards, readers, chosen)

    @classmethod
    def open_folder(cls, folder: FolderReader, **options: Unpack[SourceKeywords]) -> Self:
        """Open the corpus of any folder: the shards its corpus.json lists, a bf16 directory, or every `.shard`."""
        require_kind("a folder", folder, FolderReader, "a FolderReader; open a path with open_dir")
        corpus = _found(folder, layout.CORPUS_JSON)
        if corpus is not None:
            names = [shard.name for shard in read_record(corpus).shards]
            return cls.open(map_in_threads(folder.open, names, HEADER_THREADS), corpus=corpus, **options)
        manifest = _found(folder, MANIFEST_NAME)
        if manifest is not None and is_bf16_manifest(manifest):
            return cls._open_bf16(folder, manifest, options_of(SourceOptions, options))
        names = sort_shard_names([name for name in folder.names() if "/" not in name])
        return cls.open(map_in_threads(folder.open, names, HEADER_THREADS), **options)

    @classmethod
    def _open_bf16(cls, folder: FolderReader, manifest: RangeReader, options: SourceOptions) -> Self:
        readers: list[RangeReader] = []

        def find(name: str) -> tuple[str, int]:
            readers.append(folder.open(name))
            return readers[-1].name, readers[-1].size

        shards = join_shards(bf16_shards(parse_directory(manifest, find)))
        return cls(shards, readers, options)

    @classmethod
    def open_dir(cls, folder: str | os.PathLike[str], **options: Unpack[SourceKeywords]) -> Self:
        """Open the corpus of a local folder by positioned reads, safe for files that may change."""
        return cls.open_folder(_LocalFolder(folder), **options)

    def _ranged(self, shards: ShardSet) -> RangedSpans:
        return RangedSpans(shards, self.readers, retries=RETRIES, backoff_s=BACKOFF_S)

    def _unchecked_runs(self) -> list[RunReader]:
        return [FarRuns(self._ranged(self.shards)) for _ in range(SHUFFLE_READERS)]

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.shards, self.readers, self.options))


class _LocalFolder:
    """A folder of this machine."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self.name = str(folder)

    def open(self, name: str) -> RangeReader:
        """One file by positioned reads."""
        return FileRangeReader(self._folder / name)

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self._folder / name).is_file()

    def names(self) -> list[str]:
        """The names of its files."""
        return os.listdir(self._folder)


def _checked_readers(readers: Sequence[RangeReader]) -> tuple[RangeReader, ...]:
    for reader in readers:
        require_kind("a reader", reader, RangeReader, "a RangeReader; open paths with open_dir")
    return tuple(readers)


def _found(folder: FolderReader, name: str) -> RangeReader | None:
    try:
        return folder.open(name)
    except BlobNotFoundError:
        return None


def read_record(reader: RangeReader) -> CorpusRecord:
    """Read corpus.json, trying again while the store is unavailable."""
    data = read_with_retries(lambda: reader.read(0, reader.size), RETRIES, BACKOFF_S)
    return parse_corpus(bytes(data), reader.name)


def read_header(reader: RangeReader) -> ShardInfo:
    """Read and judge the header of a shard, trying again while the store is unavailable."""
    size = min(layout.HEADER_BYTES, reader.size)
    head = read_with_retries(lambda: reader.read(0, size), RETRIES, BACKOFF_S)
    return parse_header(head, reader.size, reader.name)


class RangedSpans(FarSpans):
    """Spans fetched through range readers; what fails for a moment is tried again, never skipped."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], *, retries: int = 4, backoff_s: float = 0.05
    ) -> None:
        self._shards = shards.shards
        self._dtype = shards.dtype
        self._readers = readers
        self._retries = retries
        self._backoff_s = backoff_s

    def fetch(self, span: RowSpan) -> Rows:
        """Fetch exactly the bytes of the span."""
        info = self._shards[span.shard]
        start, end = info.row_offset(span.start), info.row_offset(span.end)
        data = self._read(self._readers[span.shard], start, end)
        return np.frombuffer(data, raw_dtype(info.dtype)).reshape(span.end - span.start, info.width)

    def _read(self, reader: RangeReader, start: int, end: int) -> memoryview:
        return read_with_retries(lambda: reader.read(start, end), self._retries, self._backoff_s)

    def release(self, span: RowSpan, rows: Rows) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """The readers belong to whoever opened them."""


def read_with_retries(read: Callable[[], memoryview], retries: int, backoff_s: float) -> memoryview:
    """Try a read again while the store is unavailable, waiting longer each time."""
    for attempt in range(retries):
        try:
            return read()
        except UnavailableError:
            time.sleep(backoff_s * 2**attempt)
    return read()
