"""Recognises a published dataset without importing the catalog."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset


def as_published(thing: Any) -> Dataset | None:
    """The thing itself if it is a published dataset; a caller that has one has imported its module."""
    # Another thread may be importing the module right now.
    dataset_type: Any = getattr(sys.modules.get("warpdata.catalog.dataset"), "Dataset", None)
    return thing if dataset_type is not None and isinstance(thing, dataset_type) else None
