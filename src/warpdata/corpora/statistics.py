"""Mean, RMS and norms of rows, kept while they stream by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from warpdata.corpora.batch import Rows
from warpdata.errors import CorruptLayoutError


class RowStatistics:
    """Per-column mean and RMS, and norms of rows; rows that are not finite are only counted."""

    def __init__(self, width: int) -> None:
        self.n_rows = 0
        self.nonfinite_rows = 0
        self._sum = np.zeros(width)
        self._squares = np.zeros(width)
        self._norm_sum = 0.0
        self._norm_max = 0.0

    def update(self, rows: Rows) -> None:
        """Add rows of any float type."""
        with np.errstate(all="ignore"):  # rows that are not finite are what the next lines look for
            values = np.asarray(rows, np.float64)
            squares = np.einsum("ij,ij->i", values, values)
        finite = np.isfinite(squares)
        if not finite.all():
            self.nonfinite_rows += int(len(finite) - np.count_nonzero(finite))
            values, squares = values[finite], squares[finite]
        if len(values):
            norms = np.sqrt(squares)
            self.n_rows += len(values)
            self._sum += values.sum(axis=0)
            self._squares += np.einsum("ij,ij->j", values, values)
            self._norm_sum += float(norms.sum())
            self._norm_max = max(self._norm_max, float(norms.max()))

    def to_dict(self) -> dict[str, Any]:
        """The statistics as corpus.json holds them."""
        count = max(1, self.n_rows)
        return {
            "rows": self.n_rows,
            "nonfinite_rows": self.nonfinite_rows,
            "mean": (self._sum / count).tolist(),
            "rms": np.sqrt(self._squares / count).tolist(),
            "norm_mean": self._norm_sum / count,
            "norm_rms": float(np.sqrt(self._squares.sum() / count)),
            "norm_max": self._norm_max,
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], width: int) -> RowStatistics:
        """Go on from stored statistics."""
        found = cls(width)
        try:
            count = int(stored["rows"])
            mean, rms = np.array(stored["mean"], np.float64), np.array(stored["rms"], np.float64)
            found._norm_sum = float(stored["norm_mean"]) * count
            found._norm_max = float(stored["norm_max"])
            found.n_rows, found.nonfinite_rows = count, int(stored["nonfinite_rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"the statistics cannot be read ({error!r})") from None
        if mean.shape != (width,) or rms.shape != (width,):
            raise CorruptLayoutError("the statistics are of another width")
        found._sum, found._squares = mean * count, rms * rms * count
        return found
