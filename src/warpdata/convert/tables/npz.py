"""Plain `.npz` files, with a mapping where names do not say enough: an episode per file, or all in one. In only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.place import Place
from warpdata.convert.stepped import PartRows, Parts, Rows, SteppedEpisodes
from warpdata.convert.tables.mapping import FileMapping
from warpdata.convert.tables.npz_file import NpzFile
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BlobNotFoundError


def matches(place: Place) -> bool:
    """Whether it is a .npz file, or a folder of them."""
    if place.is_file:
        return place.suffix == ".npz" and place.head(2) == b"PK"
    return any(name.endswith(".npz") for name in place.children())


def read(
    source: Any,
    *,
    mapping: FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    fps: float | None = None,
) -> Episodes:
    """The episodes of a `.npz` file, or of all those in a folder.

    A file is an episode, unless the mapping says where episodes end in it. An array of objects, which would be a
    pickle, is refused.
    """
    return Episodes(NpzEpisodes(Place.of(source), FileMapping.of(mapping) or FileMapping(), fps))


class NpzEpisodes(SteppedEpisodes):
    """Archives of arrays."""

    def __init__(self, place: Place, mapping: FileMapping, fps: float | None) -> None:
        self._place, self._mapping, self._fps = place, mapping, fps
        names = [""] if place.is_file else sorted(name for name in place.children() if name.endswith(".npz"))
        if not names:
            raise BlobNotFoundError("no .npz file is in this folder", path=place.name)
        self._files = [NpzFile(place, name) for name in names]
        self._stems = [PurePosixPath(name or place.name).stem for name in names]

    @cached_property
    def _spans(self) -> list[tuple[int, str, int | None, int | None]]:
        """Of every episode its file, its id, and its rows where a file holds several."""
        found: list[tuple[int, str, int | None, int | None]] = []
        for at, (file, stem) in enumerate(zip(self._files, self._stems, strict=True)):
            if self._mapping.ends is None:
                found.append((at, stem, None, None))
                continue
            bounds = self._bounds(file).tolist()
            found += [(at, f"{stem}-{n:06d}", low, high) for n, (low, high) in enumerate(pairwise(bounds))]
        return found

    def _bounds(self, file: NpzFile) -> NDArray[np.int64]:
        chosen = self._mapping.chosen(file.keys, file.name)
        count = max((shape[0] for key in chosen.values() if (shape := file.header(key)[0])), default=0)
        assert self._mapping.ends is not None
        return self._mapping.bounds(file.array(self._mapping.ends), count, file.name)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The names of the files, with a number where one holds several."""
        return [name for _, name, _, _ in self._spans]

    def parts(self, position: int) -> Parts:
        """The arrays of an episode."""
        at, name, start, stop = self._spans[position]
        file = self._files[at]
        rows: dict[str, Rows] = {}
        static: dict[str, Any] = {}
        for signal, key in self._mapping.chosen(file.keys, file.name).items():
            if file.header(key)[0]:
                found: Rows = file.rows(key)
                rows[signal] = found if start is None or stop is None else PartRows(found, start, stop)
            else:
                static[signal] = file.array(key).item()
        for item, key in self._mapping.static.items():
            static[item] = file.array(key).reshape(-1)[0].item() if key in file.keys else key
        return self._mapping.parts(name, rows, static, self._fps, f"{file.name}#{name}")

    @property
    def name(self) -> str:
        """Where the files lie."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (NpzEpisodes, (self._place, self._mapping, self._fps))
