"""Episodes in an order, read like a list: written once for every place where they lie."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

from warpdata.timeline.episode import Episode
from warpdata.timeline.times import as_int, as_int_array, is_many


class EpisodeSequence(Sequence[Episode]):
    """`[i]` is an episode, `[a:b]` and `[[i, …]]` are lists; no boolean masks."""

    @abstractmethod
    def _at(self, position: int) -> Episode:
        """The episode at a position that is there."""

    @overload
    def __getitem__(self, key: int) -> Episode: ...
    @overload
    def __getitem__(self, key: slice | Sequence[int]) -> list[Episode]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self._at(position) for position in range(len(self))[key]]
        if is_many(key):
            return [self[number] for number in as_int_array(key, "an index").tolist()]
        index, count = as_int(key, "an index"), len(self)
        if not -count <= index < count:
            raise IndexError(f"episode {index} of a dataset with {count} episodes")
        return self._at(index % count)

    def __iter__(self) -> Iterator[Episode]:
        return (self._at(position) for position in range(len(self)))
