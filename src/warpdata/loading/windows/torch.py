"""Batches of windows as tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from warpdata.corpora.torch_passes import imported_torch, worker_info
from warpdata.loading.windows.batch import Batch, Sample


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


def teach_collate() -> None:
    """Tell torch, once it is loaded, how samples become a batch: by itself it keeps the masks of the first only."""
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is not None:
        collate.default_collate_fn_map.setdefault(Sample, _collated)


def _collated(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Batch:
    """Samples of `windows[i]` as `windows.batch` gives them, as tensors."""
    _ = collate_fn_map
    names = list(samples[0])
    return as_tensors(
        Batch(
            {name: _stacked([each[name] for each in samples]) for name in names},
            {name: _stacked([each.mask[name] for each in samples]) for name in names},
            {name: _stacked([each.age_ns[name] for each in samples]) for name in names},
            _stacked([each.sample_id for each in samples]),
            _stacked([each.ts_ns for each in samples]),
            _stacked([each.episode for each in samples]),
        )
    )


def _stacked(rows: list[Any]) -> Any:
    """Arrays or numbers with an axis in front; anything else as objects."""
    if isinstance(rows[0], np.ndarray | np.generic | int | float):
        return np.stack(rows)
    found = np.empty(len(rows), object)
    found[:] = rows
    return found
