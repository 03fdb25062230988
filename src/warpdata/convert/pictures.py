"""Pictures that lie encoded in foreign files, as rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.stepped import Rows

_JPEG, _JPEG_END = b"\xff\xd8", b"\xff\xd9"


class PictureRows(Rows):
    """JPEG or PNG pictures: rows of bytes, or of bytes padded to one length."""

    def __init__(self, rows: Rows, *, has_axis: bool = False) -> None:
        self._rows = rows
        self.has_axis = has_axis
        self.count, self.dtype, self.row_shape = rows.count, np.dtype(object), ()

    @property
    def is_pictures(self) -> bool:
        """Always."""
        return True

    def encoded(self, start: int, stop: int) -> list[bytes]:
        """The pictures as they lie in the file, without padding."""
        return [without_padding(bytes(each)) for each in self._rows.read(start, stop)]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """The pictures as bytes."""
        out = np.empty(stop - start, object)
        out[:] = self.encoded(start, stop)
        return out


def without_padding(data: bytes) -> bytes:
    """A picture without zeros behind it."""
    if data.startswith(_JPEG) and data.endswith(b"\0"):
        end = data.rfind(_JPEG_END)
        return data[: end + 2] if end >= 0 else data
    return data
