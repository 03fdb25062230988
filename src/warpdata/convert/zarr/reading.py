"""Open a replay buffer as episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.kept_values import packed
from warpdata.convert.place import Place
from warpdata.convert.receipt import RECEIPT_FILE
from warpdata.convert.set_notes import MAX_DOCUMENT_BYTES
from warpdata.convert.stepped import EpisodeColumn, PartRows, Parts, SteppedEpisodes, Times, seconds_as_times
from warpdata.convert.tables.mapping import bounds_of
from warpdata.convert.zarr.store import ZIP_MAGIC, ZarrRows, ZarrStore
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    UnsupportedVersionError,
)
from warpdata.timeline.meta import Role, guess_role

ENDS = "meta/episode_ends"
_OTHERS = ("timestamp", "timestamps")


def matches(place: Place) -> bool:
    """Whether it is a Zarr v2 tree with the ends of episodes, in a folder or a zip archive."""
    if not place.is_file:
        return place.exists(f"{ENDS}/.zarray")
    if place.head(4) != ZIP_MAGIC or not place.name.endswith((".zarr.zip", ".zip")):
        return False
    try:
        return ZarrStore(place).get(f"{ENDS}/.zarray", 1 << 20) is not None
    except FormatError:
        return False


def read(source: Any, *, fps: float | None = None, times: str | None = "timestamp") -> Episodes:
    """The episodes of a replay buffer; rows are read when they are asked for.

    `fps` is the rate of the steps: the format has none. `times` names the array with the time of every step in seconds,
    which is used where it is there and grows; None does not look for it.
    """
    return Episodes(ReplayBuffer(Place.of(source), fps, times))


class ReplayBuffer(SteppedEpisodes):
    """data/<key>, all of one length, and meta/episode_ends."""

    def __init__(self, place: Place, fps: float | None, times: str | None) -> None:
        self._place, self._fps, self._times = place, fps, times
        self._store = ZarrStore(place)
        _ = self.bounds  # what is no replay buffer is told at once

    @cached_property
    def paths(self) -> list[str]:
        """The paths of all arrays."""
        return [key.removesuffix("/.zarray") for key in self._store.documents() if key.endswith("/.zarray")]

    @cached_property
    def arrays(self) -> dict[str, ZarrRows]:
        """The arrays below data."""
        found = {
            path.removeprefix("data/"): self._store.array(path)
            for path in self.paths
            if path.startswith("data/")
        }
        if not found:
            raise CorruptLayoutError("a replay buffer without any array in 'data'", path=self.name)
        return found

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where episodes begin, and the end."""
        if f"{ENDS}" not in self.paths:
            if self._store.get("zarr.json", 1 << 20) is not None:
                raise UnsupportedVersionError("a Zarr v3 tree; replay buffers are v2", path=self.name)
            raise BadMagicError(f"not a replay buffer: there is no {ENDS!r}", path=self.name)
        ends = self._store.array(ENDS).whole(1 << 30)
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            raise CorruptLayoutError(f"{ENDS!r} holds {ends.dtype}{list(ends.shape)}", path=self.name)
        count = int(ends[-1]) if len(ends) else 0
        for key, rows in self.arrays.items():
            if not rows.shape or rows.count != count:
                raise CorruptLayoutError(
                    f"'data/{key}' has shape {list(rows.shape)}, the last episode ends at {count}",
                    path=self.name,
                )
        return bounds_of(ends.astype(np.int64), count, self.name)

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into the tree."""
        return self._store.get(RECEIPT_FILE, MAX_DOCUMENT_BYTES)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The ids that the set had when it was exported, or numbers."""
        count = len(self.bounds) - 1
        if len(self.own_notes) == count:
            return list(self.own_notes)
        return [f"episode_{number:06d}" for number in range(count)]

    def parts(self, position: int) -> Parts:
        """The rows of an episode."""
        start, stop = int(self.bounds[position]), int(self.bounds[position + 1])
        place = f"{self.name}#{self.ids[position]}"
        columns = {
            key: EpisodeColumn(PartRows(rows, start, stop), _role(key))
            for key, rows in self.arrays.items() if 0 not in rows.row_shape
        }  # fmt: skip
        return Parts(
            self.ids[position], stop - start, columns, {}, {"zarr": {"number": position}}, self._fps,
            times=self._step_times(start, stop, place), place=place,
        )  # fmt: skip

    def _step_times(self, start: int, stop: int, place: str) -> Times | None:
        rows = self.arrays.get(self._times or "")
        if rows is None or rows.row_shape not in ((), (1,)) or stop == start:
            return None
        try:
            return seconds_as_times(rows.read(start, stop), place)
        except CorruptLayoutError:  # it is a signal like any other, then
            return None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The arrays beside the rows, and all attributes."""
        beside: dict[str, Any] = {}
        for path in self.paths:
            if not path.startswith("data/") and path != ENDS:
                try:
                    beside[path] = packed(self._store.array(path).whole())
                except LimitExceededError as error:
                    raise LimitExceededError(error.message, path=self.name) from None
        attributes = {
            key.removesuffix(".zattrs").rstrip("/"): packed(self._store.json(key) or {})
            for key in self._store.documents() if key.endswith(".zattrs")
        }  # fmt: skip
        found: dict[str, Any] = {}
        if beside:
            found["arrays"] = beside
        kept = {path: value for path, value in attributes.items() if value}
        return {"zarr": {**found, **({"attributes": kept} if kept else {})}}

    @property
    def name(self) -> str:
        """Where it lies."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (ReplayBuffer, (self._place, self._fps, self._times))


def _role(key: str) -> Role:
    if key in _OTHERS:
        return "other"
    return guess_role(key, "tensor").role
