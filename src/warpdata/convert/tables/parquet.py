"""Tables with a row per step: plain Parquet files with a mapping (in only), and the tables of Minari."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
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
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.place import Place
from warpdata.convert.stepped import Rows
from warpdata.convert.tables.mapping import ArrayFile, EpisodeSpan, FileMapping, MappedEpisodes, MappingSource
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    UnsupportedDtypeError,
    WarpError,
    nearest,
)
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
    stated = FileMapping.of(mapping)
    return Episodes(MappedEpisodes(Place.of(source), (".parquet",), ColumnFile, stated, fps))


class ColumnFile(ArrayFile):
    """One Parquet or Arrow file: its columns, and the groups of rows that are read at a time."""

    def __init__(self, place: Place, file: str, format_name: str = "parquet") -> None:
        self._place, self._file, self._is_parquet = place, file, format_name == "parquet"
        self.name = f"{place.name}/{file}" if file else place.name
        self._last: tuple[int, str, Any] | None = None
        with self.errors(), contextlib.closing(place.open(file)) as reader:
            if self._is_parquet:
                about = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                self._schema = about.schema_arrow
                groups = [about.metadata.row_group(n) for n in range(about.metadata.num_row_groups)]
                counts = [group.num_rows for group in groups]
                sizes = [group.total_byte_size for group in groups]
            else:
                opened = pa.ipc.open_file(RangeFile(reader))
                self._schema = opened.schema
                batches = [opened.get_batch(n) for n in range(opened.num_record_batches)]
                counts, sizes = [batch.num_rows for batch in batches], []
        if max(sizes, default=0) > MAX_GROUP_BYTES or min(counts, default=0) < 0:
            raise LimitExceededError(f"a group of rows of {max(sizes, default=0)} bytes", path=self.name)
        self.starts: list[int] = np.cumsum([0, *counts]).tolist()
        self.count: int = self.starts[-1]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Translate errors of the library about this file."""
        try:
            yield
        except WarpError:
            raise
        except _ERRORS as error:
            fact = f"the table cannot be read ({str(error)[:200]})"
            raise CorruptLayoutError(fact, path=self.name) from None

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
        return self.rows(path).read(0, self.count)

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
        column = _Column(self, path, self.count if count is None else count, hint)
        field = self.leaves[path]
        kind, sides = field.type, []
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return Rows.objects(column.count, "text", column.read)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return Rows.objects(column.count, "bytes", column.read)
        while isinstance(kind, pa.FixedSizeListType):
            sides.append(kind.list_size)
            kind = kind.value_type
        is_open = isinstance(kind, LISTS)
        while isinstance(kind, LISTS):
            kind = kind.value_type
        try:
            column.dtype = dtype_of(numpy_dtype(kind)).dtype
        except (ValueError, NotImplementedError, TypeError):
            fact = f"column {path!r} holds {field.type}"
            raise UnsupportedDtypeError(fact, path=self.name, hint=hint) from None
        column.shape = tuple(sides)
        if is_open and column.count:  # the length of lists is known from their values only
            column.shape = column.group(0).shape[1:]
        shape = _stated_shape(field, self.name) if shape is None else shape
        if shape is not None and math.prod(shape) != math.prod(column.shape):
            fact = f"column {path!r} has rows of {list(column.shape)}, expected {list(shape)}"
            raise CorruptLayoutError(fact, path=self.name)
        column.shape = column.shape if shape is None else shape
        return Rows(column.count, column.dtype, column.shape, column.read)

    def group(self, number: int, top: str) -> Any:
        """A column at the top of one group of rows; the last one stays."""
        if self._last is None or self._last[:2] != (number, top):
            with self.errors(), contextlib.closing(self._place.open(self._file)) as reader:
                if self._is_parquet:
                    file = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                    table = file.read_row_group(number, columns=[top], use_threads=False)
                    chunks = table.column(top).chunks
                    column = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
                else:
                    fields = [self._schema.get_field_index(top)]
                    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
                    batch = pa.ipc.open_file(RangeFile(reader), options=options).get_batch(number)
                    batch.validate(full=True)
                    column = batch.column(0)
            self._last = (number, top, column)
        return self._last[2]


def _stated_shape(field: Any, name: str) -> tuple[int, ...] | None:
    """The shape of a row that the metadata of a column states."""
    stated = (field.metadata or {}).get(b"shape")
    try:
        return None if stated is None else tuple(int(side) for side in stated.split(b",") if side)
    except ValueError:
        raise CorruptLayoutError(f"damaged shape of column {field.name!r}", path=name) from None


def _leaves(field: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not pa.types.is_struct(field.type) or depth >= _MAX_DEPTH:
        yield path, field
        return
    for inner in field.type:
        yield from _leaves(inner, f"{path}/{inner.name}", depth + 1)


class _Column:
    """The values of a column, a group of rows at a time; the last one stays."""

    dtype: np.dtype[Any] = np.dtype(object)
    shape: tuple[int, ...] = ()

    def __init__(self, table: ColumnFile, path: str, count: int, hint: str) -> None:
        self._table, self._path, self.count, self._hint = table, path, count, hint
        self._last: tuple[int, NDArray[Any]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows from the groups that hold them."""
        pieces = []
        for number, (low, high) in enumerate(pairwise(self._table.starts)):
            if low < stop and high > start and high > low:
                values = self.group(number)
                if math.prod(values.shape[1:]) != math.prod(self.shape):
                    fact = f"column {self._path!r} changes its shape"
                    raise CorruptLayoutError(fact, path=self._table.name)
                shaped = values.reshape(len(values), *self.shape)
                pieces.append(shaped[max(start, low) - low : min(stop, high) - low])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.shape), self.dtype)

    def group(self, number: int) -> NDArray[Any]:
        """The values of one group of rows, with the shape of their lists."""
        if self._last is None or self._last[0] != number:
            top, *below = self._path.split("/")
            column = self._table.group(number, top)[: max(0, self.count - self._table.starts[number])]
            with self._table.errors():
                for name in below:
                    column = check_complete(column, self._path, self._table.name).field(name)
                self._last = (number, self._values(check_complete(column, self._path, self._table.name)))
        return self._last[1]

    def _values(self, column: Any) -> NDArray[Any]:
        if self.dtype == object:
            return as_objects(column.to_pylist())
        fact = f"column {self._path!r} holds lists of different lengths"
        uneven = UnsupportedDtypeError(fact, path=self._table.name, hint=self._hint)
        values, sides = flat_values(column, self._path, self._table.name, uneven)
        return np.asarray(values.astype(self.dtype, copy=False).reshape(len(column), *sides))


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
