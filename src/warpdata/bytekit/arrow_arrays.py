"""Numbers, truths and text between numpy and Arrow; pyarrow's own ways load pandas first, which takes longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_MOST_TEXT = 2**31 - 1
"""The largest offset of Arrow's text."""

_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}
"""Names of Arrow's that numpy does not know or gives another meaning."""


def to_arrow(values: NDArray[Any]) -> Any:
    """One axis of numbers as an Arrow array over the same memory; truths become bits."""
    if values.ndim != 1 or values.dtype.kind not in "iufb" or not values.dtype.isnative:
        return pa.array(values)
    is_bits = values.dtype.kind == "b"
    data = np.packbits(values, bitorder="little") if is_bits else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def text_to_arrow(items: Sequence[str] | Sequence[bytes], kind: Any) -> Any:
    """Text or bytes as an Arrow array of strings or binaries."""
    encoded = [item.encode() if isinstance(item, str) else item for item in items]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if ends[-1] > _MOST_TEXT:
        return pa.array(items, kind)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


def numpy_dtype(kind: Any) -> np.dtype[Any]:
    """What numpy calls an Arrow type."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return np.dtype(_FLOATS.get(str(kind), str(kind)))
    dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
    return dtype


def to_numpy(array: Any) -> NDArray[Any]:
    """A flat Arrow array as numpy: a read-only view of numbers, a copy of anything else."""
    kind = array.type
    is_bits = pa.types.is_boolean(kind)
    if array.null_count or not (is_bits or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        out: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return out
    dtype = numpy_dtype(kind)
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.empty(0, dtype)
    if is_bits:
        bits = np.unpackbits(
            np.frombuffer(data, np.uint8), count=array.offset + len(array), bitorder="little"
        )
        return bits[array.offset :].astype(np.bool_)
    out = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    out.flags.writeable = False
    return out
