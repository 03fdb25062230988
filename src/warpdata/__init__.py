"""warpdata: record, shard, publish, stream and search recorded experience. Names load when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from warpdata._version import __version__ as __version__

if TYPE_CHECKING:
    from warpdata.errors import WarpError as WarpError
    from warpdata.formats.rvf.signing import SigningKey as SigningKey
    from warpdata.search.store import VectorStore as VectorStore

_HOMES: dict[str, str] = {
    "SigningKey": "warpdata.formats.rvf.signing",
    "VectorStore": "warpdata.search.store",
    "WarpError": "warpdata.errors",
}
"""Public name -> the module it lives in; nothing is imported until the name is asked for."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'warpdata' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
