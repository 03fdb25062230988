"""What checking a file finds, in every format the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warpdata.errors import WarpError


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One thing that is wrong with a file, or worth knowing (`is_damage` false)."""

    code: str
    message: str
    part: str | None = None
    """The block, the segment or the file of a folder that is meant."""
    hint: str = ""
    is_damage: bool = True

    @classmethod
    def of(cls, error: WarpError, part: str | None = None) -> FileFinding:
        """What made a file, or this part of it, unreadable."""
        return cls(error.code, str(error), part or error.block, error.hint)
