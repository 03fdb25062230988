"""A root that grows: episodes keep the place they were first seen at, and one that is recorded now is read as it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from warpdata.episodes.collection.episodes import EpisodesSource
from warpdata.episodes.collection.local import LocalDataset
from warpdata.episodes.salvage.unfinished import live_episode
from warpdata.errors import BlobNotFoundError
from warpdata.timeline.episode import Episode


class GrowingRoot(EpisodesSource):
    """The episodes of a root in the order they were seen: finished ones, and those being recorded."""

    def __init__(self, dataset: LocalDataset, ids: Sequence[str] = ()) -> None:
        if not isinstance(dataset.folder, Path):
            raise ValueError("only a root on this machine can be followed")
        self._dataset = dataset
        self._ids = list(ids)
        self._finished: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look again at what is there; what was seen before keeps its place."""
        self._dataset.refresh()
        self._finished = {name: position for position, name in enumerate(self._dataset.ids)}
        running = [Path(each.path).name for each in self._dataset.unfinished if each.is_live]
        self._ids += sorted({*self._finished, *running} - set(self._ids))

    @property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in the order they were seen."""
        return self._ids

    def is_finished(self, position: int) -> bool:
        """Whether an episode will not grow any more."""
        return self._ids[position] in self._finished

    def open(self, position: int) -> Episode:
        """A finished episode, or what there is of one that is being recorded."""
        name = self._ids[position]
        if name in self._finished:
            return self._dataset[self._finished[name]]
        found = live_episode(self._dataset.place(int(name))) if name.isdigit() else None  # type: ignore[arg-type]
        if found is None:
            raise BlobNotFoundError(
                f"episode {name!r} is no longer there, or not yet to be read", path=self.name
            )
        return found

    @property
    def knows_signals(self) -> bool:
        """No: an episode that grows has more records each time."""
        return False

    @property
    def name(self) -> str:
        """Where the root is."""
        return str(self._dataset.root)

    def address(self) -> dict[str, Any] | None:
        """The root."""
        return self._dataset.source.address()

    def __reduce__(self) -> tuple[Any, ...]:
        return (GrowingRoot, (self._dataset, self._ids))
