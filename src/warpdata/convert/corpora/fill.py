"""Fill a new corpus from a stream of row batches, or from a folder of rows: it appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from warpdata.bytekit.io.commit import commit_folder
from warpdata.corpora.rows import Rows
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import DEFAULT_SHARD_BYTES, CorpusWriter
from warpdata.formats.bf16dir.reader import is_bf16_directory, read_directory

Progress = Callable[[int, int], None]
BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How a converted corpus is stored."""

    dtype: str | None = None
    """f32, f16 or bf16; what comes closest to the input unless told."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    provenance: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None


def fill_corpus(
    folder: str | os.PathLike[str], batches: Iterable[Rows], shape: tuple[int, int], options: ConvertOptions
) -> int:
    """Write the batches as a corpus of `shape` and return the number of rows."""
    total, width = shape
    with (
        commit_folder(folder) as temp,
        CorpusWriter(
            temp, width, dtype=options.dtype or "f32", shard_bytes=options.shard_bytes,
            provenance=options.provenance,
        ) as writer,
    ):  # fmt: skip
        for rows in batches:
            writer.append(rows)
            if options.progress is not None:
                options.progress(writer.total_rows, total)
        return writer.total_rows


def batch_rows(row_bytes: int) -> int:
    """Rows converted at a time."""
    return max(1, BATCH_BYTES // max(1, row_bytes))


def folder_to_corpus(
    source: str | os.PathLike[str], folder: str | os.PathLike[str], options: ConvertOptions | None = None
) -> int:
    """Write the rows of a bf16 directory or a folder of shards as a corpus with checksums and statistics."""
    options = ConvertOptions() if options is None else options
    with MmapShardSource.open_dir(source, dtype="stored") as rows:
        filled = replace(
            options, dtype=options.dtype or rows.shards.dtype.name,
            provenance={**_provenance(source, rows), **options.provenance},
        )  # fmt: skip
        return fill_corpus(folder, _batches(rows), (rows.total_rows, rows.width), filled)


def _batches(source: MmapShardSource) -> Iterator[Rows]:
    for batch in source:
        yield batch.rows


def _provenance(folder: str | os.PathLike[str], rows: MmapShardSource) -> dict[str, Any]:
    """What the folder says about itself: names and numbers, not statistics."""
    if rows.shards.record is not None:
        return dict(rows.shards.record.provenance)
    if not is_bf16_directory(folder):
        return {}
    extra = read_directory(folder).extra
    return {key: value for key, value in extra.items() if isinstance(value, str | int | bool)}
