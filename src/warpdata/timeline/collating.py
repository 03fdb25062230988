"""Samples in a batch of torch's default collate: what is kept beside the values is stacked as they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

_COLLATE = "torch.utils.data._utils.collate"
"""Where torch keeps the table of how types are collated; looked at only where torch is loaded already."""


def teach_torch(kind: type) -> bool:
    """Tell torch how samples of this type are put together; False where it is loaded and did not know until now."""
    found = sys.modules.get(_COLLATE)
    table = getattr(found, "default_collate_fn_map", None)
    if table is None or kind in table:
        return True
    table[kind] = _collated
    return False


def _collated(batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    """Samples of several items as one: values, masks, ages and times with the items first."""
    first = batch[0]
    parts = [
        {name: _together([part[name] for part in parts], collate_fn_map) for name in parts[0]}
        for parts in (batch, [each.mask for each in batch], [each.age_ns for each in batch])
    ]
    times = _together([each.times_ns for each in batch], collate_fn_map)
    return type(first)(*parts, times)


def _together(parts: Sequence[Any], collate_fn_map: Any) -> Any:
    if not isinstance(parts[0], np.ndarray):
        return sys.modules[_COLLATE].collate(list(parts), collate_fn_map=collate_fn_map)
    if parts[0].dtype == object:
        return [part.tolist() for part in parts]  # text and bytes stay what they are
    return sys.modules["torch"].from_numpy(np.stack(parts))
