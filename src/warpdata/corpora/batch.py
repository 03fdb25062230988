"""Batches of rows, and the decoding of stored rows to the element type of the reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType
from warpdata.errors import nearest

OUTPUT_DTYPES: dict[str, np.dtype[Any]] = {"float64": np.dtype(np.float64), "float32": np.dtype(np.float32)}
_PIECE_ROWS = 64


def _quiet_context() -> Context | None:
    """A context in which numpy warns about no number; entering it costs a tenth of `np.errstate`."""
    if int(np.__version__.partition(".")[0]) < 2:
        return None  # before numpy 2 these settings belong to the thread, not to the context
    context = copy_context()
    context.run(np.seterr, all="ignore")
    return context


_QUIET = _quiet_context()


def output_dtype(name: str | type | np.dtype[Any], stored: DType) -> np.dtype[Any]:
    """The numpy type for `float64`, `float32` (by name or as numpy's own) or `stored` (as on disk)."""
    text = name if isinstance(name, str) else getattr(name, "__name__", str(name))
    if text == "stored":
        return stored.dtype
    found = OUTPUT_DTYPES.get(text)
    if found is None:
        near = nearest(text, (*OUTPUT_DTYPES, "stored"))
        raise ValueError(f"rows come as float64, float32 or stored, not as {name!r}.{near}")
    return found


def raw_dtype(stored: DType) -> np.dtype[Any]:
    """What rows are held as before decoding: bf16 as its bits, so that numpy moves it at full speed."""
    return np.dtype("<u2") if stored.name == "bf16" else stored.dtype


def decode_rows(raw: Rows, out: Rows, stored: DType) -> None:
    """Fill `out` with the values of `raw`, which holds the bits of `stored` elements; any bits are values."""
    if _QUIET is None:
        with np.errstate(all="ignore"):
            _decode(raw, out, stored)
    elif stored.name == "bf16":
        _QUIET.copy().run(_decode_bf16, raw, out)
    else:
        _QUIET.copy().run(out.__setitem__, ..., raw)  # straight to C: a small batch takes no longer than this


def _decode(raw: Rows, out: Rows, stored: DType) -> None:
    if stored.name == "bf16":
        _decode_bf16(raw, out)
    else:
        out[...] = raw


def decode_part(raw: Rows, stored: DType, start: int, out: Rows) -> None:
    """Fill `out` with the values of as many rows of `raw`, from `start` on."""
    decode_rows(raw[start : start + len(out)], out, stored)


def _decode_bf16(raw: Rows, out: Rows) -> None:
    if out.dtype.itemsize == raw.dtype.itemsize:
        np.copyto(out.view(np.uint16), raw)
    elif out.dtype == np.float32:
        np.left_shift(raw, 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")
    else:
        _widen_bf16(raw, out)


def _widen_bf16(raw: Rows, out: Rows) -> None:
    """bf16 to float64 through a small float32 buffer that stays in the processor's cache."""
    buffer = np.empty((min(_PIECE_ROWS, len(raw)), raw.shape[1]), np.float32)
    for start in range(0, len(raw), _PIECE_ROWS):
        span = raw[start : start + _PIECE_ROWS]
        bits = buffer[: len(span)]
        np.left_shift(span, 16, out=bits.view(np.uint32), dtype=np.uint32, casting="unsafe")
        np.copyto(out[start : start + len(span)], bits)


Rows = npt.NDArray[Any]
RowIds = npt.NDArray[np.uint64]


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


@runtime_checkable
class RowSource(Protocol):
    """Rows in a fixed global order with stable ids, the same on every run, platform and backend."""

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""

    @property
    def width(self) -> int:
        """Columns of a row."""

    @property
    def batch_rows(self) -> int:
        """The most rows `next_batch` gives at a time."""

    def next_batch(self) -> RowBatch | None:
        """The next rows, or None after the last."""

    def reset(self) -> None:
        """Begin again at the first row."""

    def __iter__(self) -> Iterator[RowBatch]:
        """The batches from here to the end."""
