"""Passes over a nested subsample of a corpus, chosen by row id."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from warpdata.corpora.batch import RowBatch
from warpdata.corpora.source import FixedOrderSource
from warpdata.errors import require_kind
from warpdata.ordering.fraction import Cascade, row_in_fraction


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
        waiting: list[RowBatch] = []
        count = 0
        for batch in self.source:
            chosen = row_in_fraction(batch.row_ids, self.fraction)
            if chosen.any():
                waiting.append(RowBatch(batch.rows[chosen], batch.row_ids[chosen]))
                count += len(waiting[-1])
            while count >= size:
                full, waiting = _cut(waiting, size)
                count -= size
                yield full
        if count:
            yield _cut(waiting, count)[0]


def cascade_passes(source: FixedOrderSource, cascade: Cascade) -> Iterator[FractionRows]:
    """One FractionRows per pass of the cascade, from the smallest fraction to every row."""
    for number in range(len(cascade.fractions) * cascade.passes_per_stage):
        yield FractionRows(source, cascade.fraction_at(number))


def _cut(waiting: list[RowBatch], size: int) -> tuple[RowBatch, list[RowBatch]]:
    rows = np.concatenate([batch.rows for batch in waiting])
    ids = np.concatenate([batch.row_ids for batch in waiting])
    rest = [RowBatch(rows[size:], ids[size:])] if len(ids) > size else []
    return RowBatch(rows[:size], ids[:size]), rest
