"""Episodes in an order, read like a list: written once for every place where they lie."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, overload

from warpdata.bytekit.keys import positions
from warpdata.timeline.episode import Episode


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
        found = positions(key, len(self), "episode")
        if isinstance(found, int):
            return self._at(found)
        return [self._at(position) for position in (found if isinstance(found, range) else found.tolist())]

    def __iter__(self) -> Iterator[Episode]:
        return (self._at(position) for position in range(len(self)))
