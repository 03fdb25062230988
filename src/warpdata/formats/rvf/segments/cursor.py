"""A position in a payload that never goes past its end."""

from __future__ import annotations

from warpdata.bytekit.arrays import align_up
from warpdata.errors import TruncatedError
from warpdata.formats.rvf.container import layout


class PayloadCursor:
    """Bytes of a payload one after the other; `what` names it where it is cut off."""

    def __init__(self, view: memoryview, what: str, where: str, position: int = 0) -> None:
        self.view, self.position, self.where = view, position, where or None
        self._what = what

    def take(self, size: int) -> memoryview:
        """The next `size` bytes."""
        end = self.position + size
        if end > self.view.nbytes:
            raise TruncatedError(f"{self._what} is cut off", path=self.where)
        taken, self.position = self.view[self.position : end], end
        return taken

    def align(self) -> int:
        """Go on at the next boundary; where that is."""
        self.position = align_up(self.position, layout.ALIGNMENT)
        return self.position
