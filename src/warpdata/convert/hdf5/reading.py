"""Open HDF5 files as episodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.hdf5.file import MAGIC, Hdf5File
from warpdata.convert.hdf5.layouts import (
    OWN_DOCUMENT,
    FileLayout,
    Layout,
    NextObs,
    Options,
    Split,
    open_layout,
)
from warpdata.convert.place import Place
from warpdata.convert.set_notes import MAX_DOCUMENT_BYTES
from warpdata.convert.stepped import Parts, SteppedEpisodes
from warpdata.convert.tables.mapping import FileMapping
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BlobNotFoundError

SUFFIXES = (".hdf5", ".h5", ".hdf")
_MAX_SIDECAR = 1 << 30


def matches(place: Place) -> bool:
    """Whether it is an HDF5 file, or a folder with some in it."""
    if place.is_file:
        return place.head(len(MAGIC)) == MAGIC
    return any(name.lower().endswith(SUFFIXES) for name in place.children())


def read(
    source: Any,
    *,
    layout: Layout | None = None,
    mapping: FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    fps: float | None = None,
    next_obs: NextObs = "merge",
    split: Split = "auto",
    max_episode_steps: int = 1000,
) -> Episodes:
    """The episodes of an HDF5 file, or of all those in a folder; nothing is read until it is asked for.

    `layout` is `robomimic`, `libero`, `maniskill`, `aloha` or `d4rl`, by default the one the file shows; `mapping`
    says instead what is what. `fps` is the rate of the steps where the file has none. `next_obs="merge"` makes one
    signal of N + 1 rows of `obs` and `next_obs`, and refuses rows where they contradict each other; `"keep"` leaves
    both. D4RL files are cut by `split`: where an episode is `done`, or at a `timeout` only (`auto`: that for AntMaze),
    and after `max_episode_steps` where there are no timeouts.
    """
    if next_obs not in ("merge", "keep"):
        raise ValueError(f"next_obs is 'merge' or 'keep', not {next_obs!r}")
    if split not in ("auto", "done", "timeout"):
        raise ValueError(f"split is 'auto', 'done' or 'timeout', not {split!r}")
    options = Options(fps, next_obs, split, max_episode_steps)
    return Episodes(Hdf5Episodes(Place.of(source), layout, FileMapping.of(mapping), options))


class Hdf5Episodes(SteppedEpisodes):
    """The episodes of one or several HDF5 files."""

    def __init__(
        self, place: Place, layout: Layout | None, mapping: FileMapping | None, options: Options
    ) -> None:
        self._place = place
        self._layout = layout
        self._mapping = mapping
        self._options = options
        self._fps = options.fps
        _ = self.files  # what is no HDF5 file, or of no known layout, is told at once

    @cached_property
    def files(self) -> list[tuple[str, FileLayout]]:
        """The files in order, each with the name that its episodes have before theirs."""
        names = [""]
        if not self._place.is_file:
            names = sorted(
                (name for name in self._place.children() if name.lower().endswith(SUFFIXES)), key=_natural
            )
            if not names:
                raise BlobNotFoundError("no HDF5 file is in this folder", path=self._place.name)
        return [self._file(name) for name in names]

    def _file(self, name: str) -> tuple[str, FileLayout]:
        if self._place.path is not None:
            path = self._place.inside(name) if name else self._place.path
            file = Hdf5File(path)
        else:
            file = Hdf5File(self._place.open(name))
        found = open_layout(file, self._layout, self._options, self._mapping, self._sidecar(name))
        return PurePosixPath(name).stem, found

    def _sidecar(self, name: str) -> dict[str, Any] | None:
        """The JSON file beside an HDF5 file, where there is one."""
        if name:
            beside = str(PurePosixPath(name).with_suffix(".json"))
            data = self._place.read(beside, max_bytes=_MAX_SIDECAR) if self._place.exists(beside) else None
        elif self._place.path is not None and self._place.path.with_suffix(".json").is_file():
            data = Place(self._place.path.with_suffix(".json")).read(max_bytes=_MAX_SIDECAR)
        else:
            data = None
        return None if data is None else parse_json_object(data, max_bytes=_MAX_SIDECAR, allow_nan=True)

    @cached_property
    def _numbers(self) -> list[tuple[int, int]]:
        """Of every episode its file and its position there."""
        return [(at, row) for at, (_, file) in enumerate(self.files) for row in range(len(file.ids))]

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the episodes; of several files with the name of the file before, where it has more than one."""
        found = []
        for stem, file in self.files:
            is_one = len(file.ids) == 1 and file.ids[0] == stem
            found += [each if len(self.files) == 1 or is_one else f"{stem}/{each}" for each in file.ids]
        return found

    def parts(self, position: int) -> Parts:
        """The parts of an episode of one of the files."""
        at, row = self._numbers[position]
        found = self.files[at][1].parts(row)
        return found if found.id == self.ids[position] else found.renamed(self.ids[position])

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into its files."""
        file = self.files[0][1].file
        if len(self.files) > 1 or not file.has(OWN_DOCUMENT):
            return None
        document = file.whole(OWN_DOCUMENT, MAX_DOCUMENT_BYTES)
        return document if isinstance(document, bytes) else None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What each file says of all its episodes."""
        told = {stem: file.metadata for stem, file in self.files}
        return {"hdf5": next(iter(told.values())) if len(told) == 1 else {"files": told}}

    @property
    def name(self) -> str:
        """Where the files lie."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (Hdf5Episodes, (self._place, self._layout, self._mapping, self._options))


def _natural(name: str) -> tuple[int, str]:
    stem = PurePosixPath(name).stem
    digits = stem[len(stem.rstrip("0123456789")) :]
    return (int(digits) if digits else -1, name)
