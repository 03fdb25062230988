"""Tables with a row per step: plain Parquet files with a mapping (in only), and the tables of Minari."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.place import Place, foreign_errors
from warpdata.convert.stepped import Rows
from warpdata.convert.tables.mapping import ArrayFile, EpisodeSpan, FileMapping, MappedEpisodes, MappingSource
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError, WarpError, nearest
from warpdata.timeline.meta import OBJECT
from warpdata.timeline.ragged import as_objects

_EPISODE_COLUMNS = ("episode_index", "episode_id", "episode")
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, MemoryError)
LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_MAX_DEPTH = 32
MAX_GROUP_BYTES = 4 << 30
"""Size of one group of rows, once it is read."""


def read(source: Any, *, mapping: MappingSource = None, fps: float | None = None) -> Episodes:
    """The episodes of a Parquet file, or of all those in a folder; row groups are read on demand.

    Rows are steps. `episodes` of the mapping names the column with the number of the episode, whose rows are neighbours
    (by default episode_index, episode_id or episode); without one a file is an episode.
    """
    return Episodes(MappedEpisodes(Place.of(source), (".parquet",), ColumnFile, mapping, fps))


class ColumnFile(ArrayFile):
    """One Parquet or Arrow file: its columns, and the groups of rows that are read at a time; the last ones stay."""

    def __init__(self, place: Place, file: str, format_name: str = "parquet") -> None:
        self._place, self._file, self._is_parquet = place, file, format_name == "parquet"
        self.name = f"{place.name}/{file}" if file else place.name
        self._last: tuple[int, str, Any] | None = None
        self._values: dict[str, tuple[int, NDArray[Any]]] = {}
        sizes: list[int] = []
        with self._errors(), contextlib.closing(place.open(file)) as reader:
            if self._is_parquet:
                about = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                self._schema = about.schema_arrow
                groups = [about.metadata.row_group(n) for n in range(about.metadata.num_row_groups)]
                sizes = [group.total_byte_size for group in groups]
            else:
                opened = pa.ipc.open_file(RangeFile(reader))
                self._schema = opened.schema
                groups = [opened.get_batch(n) for n in range(opened.num_record_batches)]
            counts = [group.num_rows for group in groups]
        if max(sizes, default=0) > MAX_GROUP_BYTES or min(counts, default=0) < 0:
            raise LimitExceededError(f"a group of rows of {max(sizes, default=0)} bytes", path=self.name)
        self.starts: list[int] = np.cumsum([0, *counts]).tolist()
        self.count: int = self.starts[-1]

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return foreign_errors(_ERRORS, "the table cannot be read", self.name)

    @cached_property
    def leaves(self) -> dict[str, Any]:
        """The type of every column that is no struct, by its path."""
        return {path: field for column in self._schema for path, field in _leaves(column, column.name)}

    def paths(self, _group: str = "") -> list[str]:
        """The paths of the columns."""
        return list(self.leaves)

    def shape(self, _path: str) -> tuple[int, ...]:
        """The number of rows."""
        return (self.count,)

    def whole(self, path: str) -> NDArray[Any]:
        """All rows of a column."""
        return self.rows(path).all()

    def spans(self, mapping: FileMapping) -> list[EpisodeSpan] | None:
        """The runs of rows with one number of an episode."""
        column = mapping.episodes
        if column is not None and column not in self.leaves:
            fact = f"there is no column {column!r}; there are {', '.join(self.leaves)}."
            raise CorruptLayoutError(f"{fact}{nearest(column, self.leaves)}", path=self.name)
        column = column or next((name for name in _EPISODE_COLUMNS if name in self.leaves), None)
        if column is None:
            return None
        numbers = self.whole(column)
        edges = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), self.count]
        runs = pairwise(edges if self.count else [])
        return [EpisodeSpan(f"episode_{numbers[low]}", "", low, high) for low, high in runs]

    def rows(
        self,
        path: str,
        count: int | None = None,
        shape: tuple[int, ...] | None = None,
        hint: str = "Leave it out with a mapping.",
    ) -> Rows:
        """A column of numbers, lists of numbers, text or bytes.

        `count` limits the rows; `shape` is the shape of one row, which lists do not state.
        """
        if path not in self.leaves:
            raise CorruptLayoutError(f"there is no column {path!r}", path=self.name)
        field, sides = self.leaves[path], []
        kind, count = field.type, self.count if count is None else count
        read = partial(self._read, path, count, hint)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return Rows.objects(count, "text", partial(read, OBJECT, ()))
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return Rows.objects(count, "bytes", partial(read, OBJECT, ()))
        while isinstance(kind, pa.FixedSizeListType):
            sides.append(kind.list_size)
            kind = kind.value_type
        is_open = isinstance(kind, LISTS)
        while isinstance(kind, LISTS):
            kind = kind.value_type
        try:
            dtype = dtype_of(numpy_dtype(kind)).dtype
        except (ValueError, NotImplementedError, TypeError):
            fact = f"column {path!r} holds {field.type}"
            raise UnsupportedDtypeError(fact, path=self.name, hint=hint) from None
        if is_open and count:  # the length of lists is known from their values only
            sides = list(self._group(path, 0, count, hint, dtype).shape[1:])
        with foreign_errors((ValueError,), f"damaged shape of column {path!r}", self.name):
            stated = (field.metadata or {}).get(b"shape")
            if shape is None and stated is not None:
                shape = tuple(int(side) for side in stated.split(b",") if side)
        if shape is not None and math.prod(shape) != math.prod(sides):
            fact = f"column {path!r} has rows of {sides}, expected {list(shape)}"
            raise CorruptLayoutError(fact, path=self.name)
        shape = tuple(sides) if shape is None else shape
        return Rows(count, dtype, shape, partial(read, dtype, shape))

    def _read(
        self,
        path: str,
        count: int,
        hint: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        start: int,
        stop: int,
    ) -> NDArray[Any]:
        """Rows [start, stop) from the groups that hold them."""
        pieces = [np.empty((0, *shape), dtype)]
        for number, (low, high) in enumerate(pairwise(self.starts)):
            if low < stop and high > start and high > low:
                values = self._group(path, number, count, hint, dtype)
                if math.prod(values.shape[1:]) != math.prod(shape):
                    raise CorruptLayoutError(f"column {path!r} changes its shape", path=self.name)
                shaped = values.reshape(len(values), *shape)
                pieces.append(shaped[max(start, low) - low : min(stop, high) - low])
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _group(self, path: str, number: int, count: int, hint: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The first `count` values of a column in one group of rows, with the shape of their lists."""
        if self._values.get(path, (-1,))[0] != number:
            top, *below = path.split("/")
            with self._errors():
                if self._last is None or self._last[:2] != (number, top):
                    self._last = (number, top, self._read_top(number, top))
                column = self._last[2][: max(0, count - self.starts[number])]
                for name in below:
                    column = check_complete(column, path, self.name).field(name)
                if dtype == OBJECT:
                    values = as_objects(check_complete(column, path, self.name).to_pylist())
                else:
                    fact = f"column {path!r} holds lists of different lengths"
                    uneven = UnsupportedDtypeError(fact, path=self.name, hint=hint)
                    flat, sides = flat_values(column, path, self.name, uneven)
                    values = np.asarray(flat.astype(dtype, copy=False).reshape(len(column), *sides))
            self._values[path] = number, values
        return self._values[path][1]

    def _read_top(self, number: int, top: str) -> Any:
        """A column at the top of one group of rows."""
        with contextlib.closing(self._place.open(self._file)) as reader:
            if self._is_parquet:
                file = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                chunks = file.read_row_group(number, columns=[top], use_threads=False).column(top).chunks
                return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
            fields = [self._schema.get_field_index(top)]
            options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
            batch = pa.ipc.open_file(RangeFile(reader), options=options).get_batch(number)
            batch.validate(full=True)
            return batch.column(0)


def _leaves(field: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not pa.types.is_struct(field.type) or depth >= _MAX_DEPTH:
        yield path, field
        return
    for inner in field.type:
        yield from _leaves(inner, f"{path}/{inner.name}", depth + 1)


def check_complete(column: Any, name: str, path: str) -> Any:
    """A column without missing values: a gap among numbers would become a number."""
    if column.null_count:
        raise CorruptLayoutError(f"column {name!r} has missing values", path=path)
    return column


def flat_values(column: Any, name: str, path: str, uneven: WarpError) -> tuple[NDArray[Any], list[int]]:
    """The numbers of a column of nested lists, and the length of the lists at every depth; `uneven` if they differ."""
    sides: list[int] = []
    while isinstance(check_complete(column, name, path).type, LISTS):
        if isinstance(column.type, pa.FixedSizeListType):
            sides.append(column.type.list_size)  # a view, which `flatten` is not
            column = column.values.slice(column.offset * sides[-1], len(column) * sides[-1])
            continue
        lengths = np.diff(column.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():  # numbers of one row must not be in another
            raise uneven
        sides.append(int(lengths[0]) if len(lengths) else 0)
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False), sides


def write_table(path: Path, columns: Mapping[str, Any], count: int, format_name: str) -> None:
    """Write columns by path as one nested table of `count` rows; shorter ones are padded with zeros or nulls.

    Columns are arrays of numbers, or lists of text or bytes. Those below `infos` state their shape.
    """
    table = pa.Table.from_struct_array(_nested_array(columns, count))
    sink = pa.BufferOutputStream()
    if format_name == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table.combine_chunks())
    with commit_file(path, durable=False) as new:
        new.write(sink.getvalue())


def _nested_array(columns: Mapping[str, Any], count: int, above: str = "") -> Any:
    """Columns by path as one struct of structs."""
    groups: dict[str, dict[str, Any]] = {}
    for path, values in columns.items():
        name, _, below = path.partition("/")
        groups.setdefault(name, {})[below] = values
    arrays, fields = [], []
    for name, group in groups.items():
        metadata = None
        if "" not in group:
            array = _nested_array(group, count, f"{above}{name}/")
        elif isinstance(values := group[""], list):
            is_text = any(isinstance(value, str) for value in values)
            padded = [*values, *[None] * (count - len(values))]
            array = pa.array(padded, pa.string() if is_text else pa.binary())
        else:
            rest = np.zeros((count - len(values), *values.shape[1:]), values.dtype)
            kind = pa.from_numpy_dtype(values.dtype)
            array = pa.array(np.concatenate([values, rest]).reshape(-1), kind)
            if values.ndim > 1:
                width = math.prod(values.shape[1:])
                array = pa.FixedSizeListArray.from_arrays(array, type=pa.list_(kind, width))
                if above.startswith("infos/"):
                    metadata = {"shape": ",".join(map(str, values.shape[1:]))}
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.StructArray.from_arrays(arrays, fields=fields)
