"""Fill a new corpus from a stream of row batches: the folder appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from warpdata.bytekit.commit import commit_folder
from warpdata.corpora.batch import Rows
from warpdata.corpora.writer import DEFAULT_SHARD_BYTES, CorpusWriter

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
