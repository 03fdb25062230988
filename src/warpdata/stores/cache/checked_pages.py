"""Which pages of files this process has checked: a page is checked once, however often its file is opened."""

from __future__ import annotations

import time
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import FileStamp
from warpdata.bytekit.process.locks import ThreadLock

_MAX_FILES = 1024
_SETTLED_NS = 100_000_000
_COARSE_SETTLED_NS = 2_500_000_000
"""A file younger than this may change again within one tick of its clock, so it is not remembered."""

_lock = ThreadLock()
_seen: OrderedDict[tuple[str, FileStamp], NDArray[np.bool_]] = OrderedDict()


def checked_pages(name: str, stamp: FileStamp, page_count: int) -> NDArray[np.bool_]:
    """A flag for each page, shared by every reader of the very same unchanged file; set it after checking."""
    is_coarse = stamp.changed_ns % 1_000_000_000 == 0
    if time.time_ns() - stamp.changed_ns < (_COARSE_SETTLED_NS if is_coarse else _SETTLED_NS):
        return np.zeros(page_count, bool)
    with _lock:
        flags = _seen.setdefault((name, stamp), np.zeros(page_count, bool))
        _seen.move_to_end((name, stamp))
        if len(_seen) > _MAX_FILES:
            _seen.popitem(last=False)
        return flags
