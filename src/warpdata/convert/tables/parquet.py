"""Tables with a row per step: plain Parquet files with a mapping (in only), and the columns of Minari's tables."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.arrow_arrays import numpy_dtype
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import Reopens
from warpdata.convert.place import Place
from warpdata.convert.stepped import PartRows, Parts, PictureRows, Rows, SteppedEpisodes
from warpdata.convert.tables.mapping import FileMapping
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    LimitExceededError,
    UnsupportedDtypeError,
    WarpError,
    nearest,
)
from warpdata.formats.episodedir.layout import PARQUET_MAGIC
from warpdata.formats.episodedir.pictures import is_still

_EPISODE_COLUMNS = ("episode_index", "episode_id", "episode")
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, MemoryError)
_MAX_DEPTH = 32
MAX_GROUP_BYTES = 4 << 30
"""Size of one group of rows, once it is read."""


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
    """The episodes of a Parquet file, or of all those in a folder; row groups are read on demand.

    Rows are steps. `episodes` of the mapping names the column with the number of the episode, whose rows are neighbours
    (by default episode_index, episode_id or episode); without one a file is an episode.
    """
    return Episodes(ParquetEpisodes(Place.of(source), FileMapping.of(mapping) or FileMapping(), fps))


class ParquetEpisodes(SteppedEpisodes):
    """Tables of steps."""

    def __init__(self, place: Place, mapping: FileMapping, fps: float | None) -> None:
        self._place, self._mapping, self._fps = place, mapping, fps
        names = [""] if place.is_file else [name for name in place.children() if name.endswith(".parquet")]
        if not names:
            raise BlobNotFoundError("no Parquet file in this folder", path=place.name)
        self._names = names

    @cached_property
    def _tables(self) -> list[ColumnFile]:
        return [ColumnFile(self._place, name, "parquet") for name in self._names]

    def _episode_column(self, table: ColumnFile) -> str | None:
        column = self._mapping.episodes
        if column is not None and column not in table.leaves:
            fact = f"there is no column {column!r}; there are {', '.join(table.leaves)}."
            raise CorruptLayoutError(f"{fact}{nearest(column, table.leaves)}", path=table.name)
        return column or next((name for name in _EPISODE_COLUMNS if name in table.leaves), None)

    @cached_property
    def _spans(self) -> list[tuple[ColumnFile, str, int, int]]:
        """Of every episode its table, its id and its rows."""
        spans: dict[str, tuple[ColumnFile, str, int, int]] = {}
        for table, file in zip(self._tables, self._names, strict=True):
            stem, count = PurePosixPath(file or self._place.name).stem, table.count
            column = self._episode_column(table)
            if column is not None:
                numbers = TableRows(table, column).read(0, count)
                cuts = (np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist() if count else []
                edges = [0, *cuts, count] if count else [0]
                names = [f"episode_{numbers[low]}" for low in edges[:-1]]
            elif self._mapping.ends is not None:
                ends = TableRows(table, self._mapping.ends).read(0, count)
                edges = self._mapping.bounds(ends, count, table.name).tolist()
                names = [f"{stem}-{number:06d}" for number in range(len(edges) - 1)]
            else:
                edges, names = [0, count], [stem]
            for name, (low, high) in zip(names, pairwise(edges), strict=True):
                if name in spans:
                    raise CorruptLayoutError(f"the rows of {name!r} are not neighbours", path=table.name)
                spans[name] = (table, name, low, high)
        return list(spans.values())

    @cached_property
    def ids(self) -> Sequence[str]:
        """The numbers of the episodes, or the names of the files."""
        return [name for _, name, _, _ in self._spans]

    def parts(self, position: int) -> Parts:
        """The columns of an episode."""
        table, name, start, stop = self._spans[position]
        rows: dict[str, Rows] = {}
        for signal, path in self._mapping.arrays(list(table.leaves), table.name).items():
            part = PartRows(TableRows(table, path), start, stop)
            is_picture = part.kind == "bytes" and part.count and is_still(bytes(part.read(0, 1)[0]))
            rows[signal] = PictureRows(part) if is_picture else part
        static: dict[str, Any] = {}
        for item, path in self._mapping.static.items():
            is_column = path in table.leaves and stop > start
            value = TableRows(table, path).read(start, start + 1)[0] if is_column else path
            static[item] = value.item() if isinstance(value, np.generic) else value
        return self._mapping.parts(name, rows, static, self._fps, f"{table.name}#{name}")


class ColumnFile(Reopens):
    """One Parquet or Arrow file: its columns, and the groups of rows that are read at a time."""

    def __init__(self, place: Place, file: str, format_name: str) -> None:
        self._place, self._file, self._is_parquet = place, file, format_name == "parquet"
        self.name = f"{place.name}/{file}" if file else place.name
        self._last: tuple[int, str, Any] | None = None
        with self.errors(), contextlib.closing(place.open(file)) as reader:
            if self._is_parquet:
                about = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                self.schema = about.schema_arrow
                groups = [about.metadata.row_group(n) for n in range(about.metadata.num_row_groups)]
                counts = [group.num_rows for group in groups]
                sizes = [group.total_byte_size for group in groups]
            else:
                opened = pa.ipc.open_file(RangeFile(reader))
                self.schema = opened.schema
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
        return {path: field for column in self.schema for path, field in _leaves(column, column.name)}

    def group(self, number: int, top: str) -> Any:
        """A column at the top of one group of rows; the last one stays."""
        if self._last is None or self._last[:2] != (number, top):
            with self.errors(), contextlib.closing(self._place.open(self._file)) as reader:
                if self._is_parquet:
                    file = pq.ParquetFile(RangeFile(reader), pre_buffer=False)
                    table = file.read_row_group(number, columns=[top], use_threads=False)
                    column = table.column(top).combine_chunks()
                    column = (
                        pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
                    )
                else:
                    fields = [self.schema.get_field_index(top)]
                    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=fields)
                    batch = pa.ipc.open_file(RangeFile(reader), options=options).get_batch(number)
                    batch.validate(full=True)
                    column = batch.column(0)
            self._last = (number, top, column)
        return self._last[2]


def _leaves(field: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if not pa.types.is_struct(field.type) or depth >= _MAX_DEPTH:
        yield path, field
        return
    for inner in field.type:
        yield from _leaves(inner, f"{path}/{inner.name}", depth + 1)


class TableRows(Rows):
    """A column of numbers, lists of numbers, text or bytes by rows, a group at a time; the last one stays."""

    def __init__(
        self,
        table: ColumnFile,
        path: str,
        count: int | None = None,
        shape: tuple[int, ...] | None = None,
        hint: str = "Leave it out with a mapping.",
    ) -> None:
        """`count` limits the rows; `shape` is the shape of one row, which lists do not state."""
        if path not in table.leaves:
            raise CorruptLayoutError(f"there is no column {path!r}", path=table.name)
        self._table, self._path, self._hint = table, path, hint
        self.count = table.count if count is None else count
        self._values: tuple[int, NDArray[Any]] | None = None
        field = table.leaves[path]
        kind, sides = field.type, []
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            self.dtype, self.row_shape, self.kind = np.dtype(object), (), "text"
            return
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            self.dtype, self.row_shape, self.kind = np.dtype(object), (), "bytes"
            return
        while pa.types.is_fixed_size_list(kind):
            sides.append(kind.list_size)
            kind = kind.value_type
        is_open = _is_list(kind)
        while _is_list(kind):
            kind = kind.value_type
        try:
            self.dtype = dtype_of(numpy_dtype(kind)).dtype
        except (ValueError, NotImplementedError, TypeError):
            fact = f"column {path!r} holds {field.type}"
            raise UnsupportedDtypeError(fact, path=table.name, hint=hint) from None
        self.row_shape = tuple(sides)
        if is_open and self.count:  # the length of lists is known from their values only
            self.row_shape = self._group(0).shape[1:]
        stated = _stated_shape(field, table.name) if shape is None else shape
        if stated is not None and math.prod(stated) != math.prod(self.row_shape):
            fact = f"column {path!r} has rows of {list(self.row_shape)}, expected {list(stated)}"
            raise CorruptLayoutError(fact, path=table.name)
        self.row_shape = self.row_shape if stated is None else stated

    def _group(self, number: int) -> NDArray[Any]:
        """The values of one group of rows, with the shape of their lists."""
        if self._values is None or self._values[0] != number:
            top, *below = self._path.split("/")
            start = self._table.starts[number]
            column = self._table.group(number, top)[: max(0, self.count - start)]
            with self._table.errors():
                for name in below:
                    column = self._complete(column).field(name)
                self._values = (number, self._numbers(self._complete(column)))
        return self._values[1]

    def _complete(self, column: Any) -> Any:
        """A column without missing values: a gap among numbers would become a number."""
        if column.null_count:
            raise CorruptLayoutError(f"column {self._path!r} has missing values", path=self._table.name)
        return column

    def _numbers(self, column: Any) -> NDArray[Any]:
        count, sides = len(column), []
        if self.kind is not None:
            out = np.empty(count, object)
            out[:] = column.to_pylist()
            return out
        while _is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            lengths = np.unique(pa.compute.list_value_length(column).to_numpy(zero_copy_only=False))
            if len(lengths) > 1:
                fact = f"column {self._path!r} holds lists of different lengths"
                raise UnsupportedDtypeError(fact, path=self._table.name, hint=self._hint)
            sides.append(int(lengths[0]) if len(lengths) else 0)
            column = self._complete(column.flatten())
        values = column.to_numpy(zero_copy_only=False).astype(self.dtype, copy=False)
        return np.asarray(values.reshape(count, *sides))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows from the groups that hold them."""
        pieces = []
        for number, (low, high) in enumerate(pairwise(self._table.starts)):
            if low < stop and high > start and high > low:
                values = self._group(number)
                if math.prod(values.shape[1:]) != math.prod(self.row_shape):
                    fact = f"column {self._path!r} changes its shape"
                    raise CorruptLayoutError(fact, path=self._table.name)
                shaped = values.reshape(len(values), *self.row_shape)
                pieces.append(shaped[max(start, low) - low : min(stop, high) - low])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty((0, *self.row_shape), self.dtype)


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _stated_shape(field: Any, name: str) -> tuple[int, ...] | None:
    """The shape of a row that the metadata of a column states."""
    stated = (field.metadata or {}).get(b"shape")
    try:
        return None if stated is None else tuple(int(side) for side in stated.split(b",") if side)
    except ValueError:
        raise CorruptLayoutError(f"damaged shape of column {field.name!r}", path=name) from None


def write_table(path: Path, columns: Mapping[str, Any], count: int, format_name: str) -> None:
    """Write columns by path as one nested table of `count` rows; shorter ones are padded with zeros or nulls.

    Columns are arrays of numbers, or lists of text or bytes. Those below `infos` state their shape.
    """
    tree: dict[str, Any] = {}
    for name, values in columns.items():
        node, (*above, last) = tree, name.split("/")
        for part in above:
            node = node.setdefault(part, {})
        node[last] = _column_leaf(values, count, has_shape=name.startswith("infos/"))
    arrays, fields = _nested(tree)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    if format_name == "parquet":
        pq.write_table(table, sink)
    else:
        with pa.ipc.new_file(sink, table.schema) as out:
            out.write_table(table.combine_chunks())
    with commit_file(path, durable=False) as new:
        new.write(sink.getvalue())


def _column_leaf(values: Any, count: int, *, has_shape: bool) -> tuple[Any, dict[str, str] | None]:
    if isinstance(values, list):
        is_text = any(isinstance(each, str) for each in values)
        return pa.array(
            [*values, *[None] * (count - len(values))], pa.string() if is_text else pa.binary()
        ), None
    rest = np.zeros((count - len(values), *values.shape[1:]), values.dtype)
    values = np.concatenate([values, rest])
    kind = pa.from_numpy_dtype(values.dtype)
    flat = pa.array(values.reshape(-1), kind)
    if values.ndim == 1:
        return flat, None
    width = int(np.prod(values.shape[1:]))
    shape = {"shape": ",".join(map(str, values.shape[1:]))}
    return pa.FixedSizeListArray.from_arrays(flat, type=pa.list_(kind, width)), shape if has_shape else None


def _nested(tree: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    arrays, fields = [], []
    for name, leaf in tree.items():
        if isinstance(leaf, dict):
            inner, inside = _nested(leaf)
            leaf = pa.StructArray.from_arrays(inner, fields=inside), None
        array, metadata = leaf
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    return arrays, fields
