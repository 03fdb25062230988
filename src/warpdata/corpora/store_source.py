"""The same rows and ids from range readers: shards in a store, in memory, or in files that may change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.ranges import FileRangeReader, RangeReader
from warpdata.corpora.ranged import RangedPieces, read_with_retries
from warpdata.corpora.runs import CopiedRuns, RunReader
from warpdata.corpora.shards import ShardSet, join_recorded, join_shards
from warpdata.corpora.source import FixedOrderSource, SourceOptions
from warpdata.corpora.worker import map_in_threads
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, parse_corpus
from warpdata.formats.gamsae.reader import ShardInfo, parse_header
from warpdata.formats.gamsae.verify import shard_paths

if TYPE_CHECKING:
    import os
    from typing import Self

HEADER_THREADS = 8
RETRIES = 4
BACKOFF_S = 0.05


class StoreShardSource(FixedOrderSource):
    """Rows of shards behind range readers in a fixed order; the window is bounded in bytes, not in shards."""

    def __init__(
        self, shards: ShardSet, readers: Sequence[RangeReader], options: SourceOptions | None = None
    ) -> None:
        options = SourceOptions() if options is None else options
        if not options.copy:
            raise ValueError("rows of a store are always copies")
        self._readers = tuple(readers)
        fits = options.prefetch_bytes // max(1, shards.row_bytes)
        batch_rows = max(1, min(options.batch_rows, shards.total_rows, fits))
        super().__init__(shards, self._ranged(shards), options, batch_rows)

    @classmethod
    def open(
        cls, readers: Sequence[RangeReader], *, corpus: RangeReader | None = None, **options: Any
    ) -> Self:
        """Open the shards behind these readers in their order; `corpus` reads their corpus.json, to check rows."""
        infos = map_in_threads(read_header, readers, HEADER_THREADS)
        shards = join_shards(infos) if corpus is None else join_recorded(read_record(corpus), infos)
        return cls(shards, readers, SourceOptions(**options))

    @classmethod
    def open_dir(cls, folder: str | os.PathLike[str], **options: Any) -> Self:
        """Open every `.shard` file of a local folder by positioned reads, safe for files that may change."""
        record = Path(folder) / layout.CORPUS_JSON
        corpus = FileRangeReader(record) if record.is_file() else None
        names = shard_paths(folder)
        if corpus is not None:
            names = [Path(folder) / shard.name for shard in read_record(corpus).shards]
        return cls.open([FileRangeReader(path) for path in names], corpus=corpus, **options)

    def _ranged(self, shards: ShardSet) -> RangedPieces:
        return RangedPieces(shards, self._readers, retries=RETRIES, backoff_s=BACKOFF_S)

    def _unchecked_runs(self) -> RunReader:
        return CopiedRuns(self._ranged(self.shards))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.shards, self._readers, self.options))


def read_record(reader: RangeReader) -> CorpusRecord:
    """Read corpus.json, trying again while the store is unavailable."""
    data = read_with_retries(lambda: reader.read(0, reader.size), RETRIES, BACKOFF_S)
    return parse_corpus(bytes(data), reader.name)


def read_header(reader: RangeReader) -> ShardInfo:
    """Read and judge the header of a shard, trying again while the store is unavailable."""
    size = min(layout.HEADER_BYTES, reader.size)
    head = read_with_retries(lambda: reader.read(0, size), RETRIES, BACKOFF_S)
    return parse_header(head, reader.size, reader.name)
