"""Batches of rows, their decoding to the element type of the reader, and running statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType
from warpdata.errors import CorruptLayoutError, nearest

Rows = npt.NDArray[Any]
RowIds = npt.NDArray[np.uint64]

OUTPUT_DTYPES: dict[str, np.dtype[Any]] = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Some rows of a corpus: `row_ids[k]` is the stable global id of `rows[k]`."""

    rows: Rows
    row_ids: RowIds

    def __len__(self) -> int:
        return len(self.row_ids)

    @property
    def is_empty(self) -> bool:
        """True if there is no row."""
        return not len(self.row_ids)


def output_dtype(name: str | type | np.dtype[Any], stored: DType) -> np.dtype[Any]:
    """The numpy type for `float64`, `float32` (by name or as numpy's own) or `stored` (as on disk)."""
    text = name if isinstance(name, str) else getattr(name, "__name__", str(name))
    if text == "stored":
        return stored.dtype
    if text not in OUTPUT_DTYPES:
        near = nearest(text, (*OUTPUT_DTYPES, "stored"))
        raise ValueError(f"rows come as float64, float32 or stored, not as {name!r}.{near}")
    return OUTPUT_DTYPES[text]


def raw_dtype(stored: DType) -> np.dtype[Any]:
    """The type of rows before decoding: bf16 as its bits, so that numpy moves it at full speed."""
    return np.dtype("<u2") if stored.name == "bf16" else stored.dtype


def check_out(out: Any, width: int, dtype: np.dtype[Any]) -> int:
    """How many rows a caller's buffer holds; an error unless it is a matrix of this width and type."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__name__}")
    if out.ndim != 2 or out.shape[1] != width or out.dtype != dtype or not len(out):
        raise ValueError(f"out must be a matrix of width {width} and dtype {dtype}")
    return len(out)


def decode_rows(raw: Rows, out: Rows, stored: DType) -> None:
    """Fill `out` with the values of `raw`, which holds the bits of `stored` elements; any bits are values."""
    with np.errstate(all="ignore"):
        if stored.name != "bf16":
            out[...] = raw
        elif out.dtype.itemsize == raw.dtype.itemsize:
            np.copyto(out.view(np.uint16), raw)
        elif out.dtype == np.float32:
            np.left_shift(raw, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
        else:
            out[...] = (raw.astype(np.uint32) << 16).view(np.float32)


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
        with np.errstate(all="ignore"):
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
        """Continue from stored statistics."""
        made = cls(width)
        try:
            count = int(stored["rows"])
            mean, rms = np.array(stored["mean"], np.float64), np.array(stored["rms"], np.float64)
            made._norm_sum = float(stored["norm_mean"]) * count
            made._norm_max = float(stored["norm_max"])
            made.n_rows, made.nonfinite_rows = count, int(stored["nonfinite_rows"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptLayoutError(f"the statistics cannot be read ({error!r})") from None
        if mean.shape != (width,) or rms.shape != (width,):
            raise CorruptLayoutError("the statistics are of another width")
        made._sum, made._squares = mean * count, rms * rms * count
        return made
