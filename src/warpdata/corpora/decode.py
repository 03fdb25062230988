"""Stored rows to the element type the reader asked for."""

from __future__ import annotations

from contextvars import Context, copy_context
from typing import Any

import numpy as np

from warpdata.bytekit.dtype import DType
from warpdata.corpora.batch import Rows
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
