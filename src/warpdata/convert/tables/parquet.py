"""Plain Parquet tables with a row per step, and a mapping where their columns do not say enough. In only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.minari.arrow import MAX_COLUMN_BYTES, column_leaves, column_values, reading
from warpdata.convert.place import Place
from warpdata.convert.stepped import PartRows, Parts, PictureRows, Rows, SteppedEpisodes
from warpdata.convert.tables.mapping import FileMapping
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import BlobNotFoundError, CorruptLayoutError, LimitExceededError, nearest
from warpdata.formats.episodedir.layout import PARQUET_MAGIC
from warpdata.formats.episodedir.pictures import is_still
from warpdata.timeline.meta import Kind

_EPISODE_COLUMNS = ("episode_index", "episode_id", "episode")


def matches(place: Place) -> bool:
    """Whether it is a Parquet file, or a folder of them."""
    if place.is_file:
        return place.head(4) == PARQUET_MAGIC
    return any(name.endswith(".parquet") for name in place.children())


def read(
    source: Any,
    *,
    mapping: FileMapping | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    fps: float | None = None,
) -> Episodes:
    """The episodes of a Parquet file, or of all those in a folder; only the row groups that are asked for are read.

    Rows are steps. `episodes` of the mapping names the column with the number of the episode, whose rows lie together
    (by default episode_index, episode_id or episode); without one a file is an episode.
    """
    return Episodes(ParquetEpisodes(Place.of(source), FileMapping.of(mapping) or FileMapping(), fps))


class ParquetEpisodes(SteppedEpisodes):
    """Tables of steps."""

    def __init__(self, place: Place, mapping: FileMapping, fps: float | None) -> None:
        self._place, self._mapping, self._fps = place, mapping, fps
        names = (
            [""] if place.is_file else sorted(name for name in place.children() if name.endswith(".parquet"))
        )
        if not names:
            raise BlobNotFoundError("no Parquet file is in this folder", path=place.name)
        self._names = names
        self._tables: dict[int, _Table] = {}

    def _table(self, at: int) -> _Table:
        if at not in self._tables:
            self._tables[at] = _Table(self._place, self._names[at])
        return self._tables[at]

    def _episode_column(self, table: _Table) -> str | None:
        if self._mapping.episodes is not None:
            if self._mapping.episodes not in table.leaves:
                raise CorruptLayoutError(
                    f"there is no column {self._mapping.episodes!r}; there are {', '.join(table.leaves)}."
                    f"{nearest(self._mapping.episodes, table.leaves)}",
                    path=table.name,
                )
            return self._mapping.episodes
        return next((name for name in _EPISODE_COLUMNS if name in table.leaves), None)

    @cached_property
    def _spans(self) -> list[tuple[int, str, int, int]]:
        found: list[tuple[int, str, int, int]] = []
        seen: set[str] = set()
        for at, name in enumerate(self._names):
            table = self._table(at)
            stem = PurePosixPath(name or self._place.name).stem
            column = self._episode_column(table)
            if column is not None:
                numbers = table.rows(column).read(0, table.count)
                bounds = (
                    [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), table.count]
                    if table.count
                    else [0]
                )
                spans = [(f"episode_{numbers[low]}", low, high) for low, high in pairwise(bounds)]
            elif self._mapping.ends is not None:
                edges = self._mapping.bounds(
                    table.rows(self._mapping.ends).read(0, table.count), table.count, table.name
                ).tolist()
                spans = [(f"{stem}-{n:06d}", low, high) for n, (low, high) in enumerate(pairwise(edges))]
            else:
                spans = [(stem, 0, table.count)]
            for each, low, high in spans:
                if each in seen:
                    raise CorruptLayoutError(f"the rows of {each!r} do not lie together", path=table.name)
                seen.add(each)
                found.append((at, each, low, high))
        return found

    @cached_property
    def ids(self) -> Sequence[str]:
        """The numbers of the episodes, or the names of the files."""
        return [name for _, name, _, _ in self._spans]

    def parts(self, position: int) -> Parts:
        """The columns of an episode."""
        at, name, start, stop = self._spans[position]
        table = self._table(at)
        rows: dict[str, Rows] = {}
        for signal, path in self._mapping.chosen(list(table.leaves), table.name).items():
            found = PartRows(table.rows(path), start, stop)
            is_picture = found.kind == "bytes" and found.count and is_still(bytes(found.read(0, 1)[0]))
            rows[signal] = PictureRows(found) if is_picture else found
        static = {
            item: table.rows(path).read(start, start + 1)[0] if path in table.leaves and stop > start else path
            for item, path in self._mapping.static.items()
        }  # fmt: skip
        plain = {
            item: value.item() if isinstance(value, np.generic) else value for item, value in static.items()
        }
        return self._mapping.parts(name, rows, plain, self._fps, f"{table.name}#{name}")

    @property
    def name(self) -> str:
        """Where the tables lie."""
        return self._place.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (ParquetEpisodes, (self._place, self._mapping, self._fps))


class _Table:
    """One file: its columns, and where its row groups begin."""

    def __init__(self, place: Place, file: str) -> None:
        self._place, self._file = place, file
        self.name = f"{place.name}/{file}" if file else place.name
        with reading(self.name), self.opened() as found:
            about = found.metadata
            self.leaves = dict(column_leaves(found.schema_arrow))
            self.starts = np.cumsum(
                [0, *(about.row_group(at).num_rows for at in range(about.num_row_groups))]
            )
            sizes = [about.row_group(at).total_byte_size for at in range(about.num_row_groups)]
        if max(sizes, default=0) > MAX_COLUMN_BYTES:
            raise LimitExceededError(f"a row group of {max(sizes)} bytes", path=self.name)
        self.count = int(self.starts[-1])

    @contextlib.contextmanager
    def opened(self) -> Any:
        """The file as the library has it."""
        reader = self._place.open(self._file)
        try:
            yield pq.ParquetFile(RangeFile(reader), pre_buffer=False)
        finally:
            reader.close()

    def rows(self, path: str) -> _TableRows:
        """A column by rows."""
        return _TableRows(self, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Table, (self._place, self._file))


class _TableRows(Rows):
    """A column by rows, a row group at a time; the last one stays."""

    kind: Kind | None = None

    def __init__(self, table: _Table, path: str) -> None:
        if path not in table.leaves:
            raise CorruptLayoutError(f"there is no column {path!r}", path=table.name)
        self._table, self._path, self.count = table, path, table.count
        self._kept: tuple[int, NDArray[Any]] | None = None
        first = self._group(0) if self.count else np.empty(0)
        self.dtype, self.row_shape = first.dtype, first.shape[1:]
        kind = table.leaves[path].type
        if first.dtype == object:
            self.kind = "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "bytes"

    def _group(self, number: int) -> NDArray[Any]:
        if self._kept is None or self._kept[0] != number:
            table = self._table
            with reading(table.name), table.opened() as found:
                top = self._path.partition("/")[0]
                column = (
                    found.read_row_group(number, columns=[top], use_threads=False)
                    .column(top)
                    .combine_chunks()
                )
            self._kept = (number, column_values(column, self._path, table.leaves[self._path], table.name))
        return self._kept[1]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows out of the groups that hold them."""
        pieces = []
        for number, low in enumerate(self._table.starts[:-1].tolist()):
            high = int(self._table.starts[number + 1])
            if low < stop and high > start and high > low:
                block = self._group(number)
                if block.shape[1:] != self.row_shape or block.dtype != self.dtype:
                    raise CorruptLayoutError(
                        f"column {self._path!r} changes its shape", path=self._table.name
                    )
                pieces.append(block[max(start, low) - low : min(stop, high) - low])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.row_shape), self.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_TableRows, (self._table, self._path))
