"""Folders of rows to a corpus: a bf16 directory, or shards without corpus.json."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from warpdata.convert.corpus_fill import ConvertOptions, fill_corpus
from warpdata.corpora.batch import Rows
from warpdata.corpora.source import MmapShardSource
from warpdata.formats.bf16dir.reader import is_bf16_directory, read_directory


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
