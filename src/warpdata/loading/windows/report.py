"""What a loader can say about itself: where samples come from, what was given and what was left out."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where one sample comes from."""

    dataset: str
    version: str | None
    """The hash of the published version; None of data that is not published."""
    episode_id: str
    ts_ns: int
    sample_id: int
    epoch: int
    blob: str | None
    """The hash of the published blob that holds the episode."""
    content: str
    """What the episode holds, in one word that is the same in every form it is stored in."""
    source: str | None = None
    """Of a mixture, the name of the source."""

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


@dataclass(slots=True)
class LoaderReport:
    """Counts since the loader was made, of this rank; what was skipped is the same on every rank."""

    batches: int = 0
    samples: int = 0
    epochs: int = 0
    bytes: int = 0
    """Bytes of the arrays that were handed over."""
    wait_s: float = 0.0
    """How long whoever consumes the batches waited for them."""
    network_bytes: int = 0
    """Bytes that came over a network meanwhile, of everything this process read."""
    cache_bytes: int = 0
    """Bytes that were in the page cache when they were first asked for meanwhile."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Episodes that were left out, each with the reason."""
    skipped_before: int = 0
    """How many episodes had been left out when the state was taken that this loader went on from."""

    def add(self, samples: int, size_bytes: int, wait_s: float) -> None:
        """Count a batch."""
        self.batches += 1
        self.samples += samples
        self.bytes += size_bytes
        self.wait_s += wait_s

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)
