"""One way to look at any contiguous buffer or array as flat bytes, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from typing_extensions import Buffer


def byte_view(data: Buffer | NDArray[Any]) -> memoryview:
    """The bytes of a contiguous buffer or array as a flat view; bf16 and empty arrays included."""
    if isinstance(data, np.ndarray):
        if not data.flags.c_contiguous:
            raise ValueError("only a C-contiguous array can be seen as bytes")
        return data.reshape(-1).view(np.uint8).data if data.size else memoryview(b"")
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")
