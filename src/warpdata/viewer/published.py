"""Whether something is a published dataset, without loading the catalog for those who show none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset


def as_published(thing: Any) -> Dataset | None:
    """The thing itself if it is a published dataset: whoever has one has loaded its module."""
    module = sys.modules.get("warpdata.catalog.dataset")
    return thing if module is not None and isinstance(thing, module.Dataset) else None
