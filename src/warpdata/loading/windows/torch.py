"""Batches of windows as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpdata.corpora.torch_passes import imported_torch, worker_info
from warpdata.loading.windows.batch import Batch


def as_tensors(batch: Batch) -> Batch:
    """A batch whose arrays are tensors over the same memory; text stays as lists."""
    return batch.map(_tensor)


def _tensor(array: Any) -> Any:
    if array.dtype.hasobject:
        return array.tolist()
    torch = imported_torch()
    found = torch.from_numpy(np.ascontiguousarray(array))
    # Pinned memory goes to the device while the program goes on; in a worker it would have to cross a process.
    return found.pin_memory() if torch.cuda.is_available() and worker_info() is None else found
