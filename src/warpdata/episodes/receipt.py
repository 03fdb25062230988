"""The loss receipt: what a salvage kept, what it could not, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from warpdata.timeline.cards import items_card, titled


@dataclass(frozen=True, slots=True, repr=False)
class LossReceipt:
    """What came out of a salvage; `is_complete` says whether everything that was written is there."""

    source: str
    output: str | None
    episode_id: str
    steps_kept: int
    steps_lost: int
    time_kept_s: float
    channels: dict[str, int]
    bytes_dropped: int
    why: str
    damage: list[dict[str, Any]] = field(default_factory=list)
    last_crc32c: str | None = None
    kept_aside: str | None = None
    """Where the original lies, if not all of it could be read or another file took its place."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing that was written is missing or damaged."""
        return self.steps_lost == 0 and self.bytes_dropped == 0 and not self.damage

    def __repr__(self) -> str:
        lost = (
            "nothing lost"
            if self.is_complete
            else f"{self.steps_lost} lost, {self.bytes_dropped} bytes dropped"
        )
        return f"<LossReceipt {self.episode_id!r}: {self.steps_kept} records kept, {lost}>"

    def _repr_html_(self) -> str:
        return titled(repr(self), items_card(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """The receipt as JSON."""
        return {**asdict(self), "is_complete": self.is_complete}
