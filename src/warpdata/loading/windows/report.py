"""Reports of a loader: origins of samples, counts, what was left out, and saved states."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError


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
    """How long the consumer waited for batches."""
    network_bytes: int = 0
    """Bytes that came over a network meanwhile, of everything this process read."""
    cache_bytes: int = 0
    """Bytes that came from the cache meanwhile."""
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


NAME_CHARS, DATA_CHARS = 16, 6


def names_of(data_id: str, windows_id: str) -> str:
    """The name of samples in a state: the beginning of the hash of the episodes, then of the windows over them.

    For windows that grow the first is "" and only the second is used.
    """
    data = data_id[:DATA_CHARS]
    return data + windows_id[: NAME_CHARS - len(data)]


def saved_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that `save_state` wrote."""
    with FileRangeReader(path) as reader:
        try:
            return parse_json_object(reader.read(0, reader.size))
        except FormatError as error:
            hint = "Save it with loader.save_state()."
            raise CorruptLayoutError(f"not a saved state: {error.message}", path=path, hint=hint) from None
