"""Anything that holds numbers as a numpy array: sequences, arrays of other libraries, tensors of torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named


def as_array(value: Any) -> NDArray[Any]:
    """`value` as an array, without a copy where possible; ValueError where it is no array.

    Tensors with a gradient or on a device are accepted, bf16 keeps its bits, and the byte order becomes native.
    """
    masked = sys.modules.get("numpy.ma")  # loading it takes as long as storing a thousand values
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise ValueError("a masked array: masked entries would become values")
    try:
        array = np.asarray(_tensor_values(value) if _is_tensor(value) else value)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"not an array ({error})") from None


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of an array; the array itself if it is read-only."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _is_tensor(value: Any) -> bool:
    return not isinstance(value, np.ndarray) and hasattr(value, "detach") and hasattr(value, "cpu")


def _tensor_values(tensor: Any) -> Any:
    plain = tensor.detach().cpu()
    if str(plain.dtype) != "torch.bfloat16":
        return plain.numpy()
    wide = np.ascontiguousarray(plain.float().numpy())
    # A bf16 is the upper half of the f32 it widens to: taking that half back loses no bit, not even of a NaN.
    return (wide.view(np.uint32) >> 16).astype(np.uint16).view(dtype_named("bf16").dtype)
