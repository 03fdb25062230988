"""The same rows and ids from range readers: shards in a store, in memory, or in files that may change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.corpora.options import options_of
from warpdata.corpora.shard_rows import ShardRows, StoreSpans, read_with_retries
from warpdata.corpora.shards import ShardSet, bf16_shards, join_recorded, join_shards
from warpdata.corpora.source import FixedOrderSource, SourceKeywords, SourceOptions
from warpdata.errors import BlobNotFoundError, require_kind
from warpdata.formats.bf16dir.layout import MANIFEST_NAME
from warpdata.formats.bf16dir.reader import is_bf16_manifest, parse_directory
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, parse_corpus
from warpdata.formats.gamsae.reader import ShardInfo, parse_header
from warpdata.formats.gamsae.verify import sort_shard_names

if TYPE_CHECKING:
    from typing import Self

HEADER_THREADS = 8


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
        super().__init__(shards, options, batch_rows)

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

    def open_rows(self, *, in_order: bool) -> ShardRows:  # noqa: ARG002
        """A new reader through the same range readers."""
        return StoreSpans(self.shards, self.readers, verify=self.options.verify)


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
    data = read_with_retries(lambda: reader.read(0, reader.size))
    return parse_corpus(bytes(data), reader.name)


def read_header(reader: RangeReader) -> ShardInfo:
    """Read and judge the header of a shard, trying again while the store is unavailable."""
    size = min(layout.HEADER_BYTES, reader.size)
    head = read_with_retries(lambda: reader.read(0, size))
    return parse_header(head, reader.size, reader.name)
