"""One table of a dataset: look at it, query it, stream it. One of the adapters of pyarrow."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import ThreadLock, cached_property
from warpdata.bytekit.process.threads import ReadAhead, map_in_threads
from warpdata.catalog.read.refs import RefType, bound_batch, bound_dict, python_values, recipe_of
from warpdata.catalog.read.rowgroups import RowFilter, ShardFile
from warpdata.errors import DatasetError, TooLargeError, nearest, require_integer, require_kind
from warpdata.formats.manifest.codec import Guide, ShardGuide
from warpdata.formats.manifest.model import TablePart
from warpdata.ordering.epochs import Tail
from warpdata.sql.columns import (
    MAX_BYTES,
    EngineColumn,
    Positions,
    collect_batches,
    pandas_from,
    polars_from,
    rows_at,
    schema_from_base64,
)
from warpdata.sql.engine import (
    OWN_COLUMNS,
    ROW_NUMBER,
    VIEW,
    Condition,
    arrow_source,
    check_condition,
    refuse_own_column,
    run_sql,
)
from warpdata.timeline.cards import html_table, text, titled_card

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.sql.arrow_source import ArrowSource

T = TypeVar("T")

MAX_ROWS = 1_000_000
_MOST_ROWS = (1 << 63) - 1
_SHOWN_ROWS = 10
_AHEAD_BYTES = 256 << 20
_DENSE_ROWS = 64
"""Rows per byte of a shard from which its footer is read before an order of all rows is made."""

_ROW_FIELD = pa.field(ROW_NUMBER, pa.int64())
_NUMBERED = f"{OWN_COLUMNS}numbered__"
"""The table with that column; a subquery about the view sees it without."""

Shard = tuple[int, int] | str | None
"""(rank, world), "auto" or None for all of it."""

ShardPart = tuple[int, int, int]
"""(k, i, n): of the row groups of file k, the i-th of n parts."""


class TorchOptions(TypedDict, total=False):
    """Keyword arguments of `to_torch`: fields of StreamRequest, and the rank."""

    limit: int | None
    rank: int | None
    world: int | None
    tail: Tail
    shuffle: bool | str
    seed: int
    epoch: int


class StreamOptions(TorchOptions, total=False):
    """Keyword arguments of `batches` and `batch_dicts`."""

    shard: Shard
    prefetch: str | int | None


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a pass over a table should yield."""

    batch_size: int = 1000
    shard: Shard = None
    limit: int | None = None
    prefetch: str | int | None = None
    tail: Tail = "short"
    """How a last batch that is not full is treated; "drop" and "pad" give all ranks equally many batches."""
    shuffle: bool | str = False
    """True or "blocks": blocks of rows in a random order, mixed a few at a time; "full": single rows."""
    seed: int = 0
    epoch: int = 0

    @classmethod
    def of(cls, batch_size: int, options: StreamOptions) -> StreamRequest:
        """A request from the arguments of a caller: `rank` and `world` replace `shard`."""
        known = [*StreamOptions.__annotations__, "batch_size", "columns"]
        for name in options:
            if name not in known:
                raise TypeError(f"got an unexpected keyword argument {name!r}.{nearest(name, known)}")
        given = dict(options)
        rank, world, shard = (given.pop(name, None) for name in ("rank", "world", "shard"))
        if (rank is None) != (world is None):
            raise ValueError(f"rank is {rank} and world is {world}: give both, or neither")
        if rank is not None and shard not in (None, "auto"):
            raise ValueError("shard is given beside rank and world: give one of them")
        own: Any = shard if rank is None else (rank, world)
        return cls(batch_size, own, **given)  # type: ignore[arg-type]


class BatchStream(Protocol):
    """Batches in order, with a state to continue from."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream."""

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state."""

    def close(self) -> None:
        """Stop reading ahead."""


StreamOpener = Callable[["Table", StreamRequest], BatchStream]
"""Makes a stream; it comes from the loading package."""


class TableFiles:
    """The shards of a table as parquet files, shared by all views of it."""

    def __init__(self, dataset: Dataset, name: str, part: TablePart) -> None:
        self._dataset = dataset
        self._name = name
        self.part = part
        self._lock = ThreadLock()
        self._guide: Guide | None = None
        self._files: dict[int, ShardFile] = {}
        self._locks: dict[int, ThreadLock] = {}

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the manifest."""
        return schema_from_base64(self.part.schema_ipc)

    def file(self, number: int) -> ShardFile:
        """Shard `number`, opened once."""
        with self._lock:
            lock = self._locks.setdefault(number, ThreadLock())
        with lock:  # several shards may be opened at the same time, each of them once
            if number not in self._files:
                dataset, shard = self._dataset, self.part.shards[number]
                guide = self.guide(number)
                sums, tail = (None, None) if guide is None else (guide.page_sums, guide.tail)
                label = f"table {self._name!r} shard {number}"
                reader = dataset.access.reader(dataset.catalog, shard, label, sums)
                expected = (shard.row_count, self.schema)
                self._files[number] = ShardFile(reader, tail, dataset.access.bring_whole, expected)
            return self._files[number]

    @cached_property
    def shard_starts(self) -> Positions:
        """The row of the table each shard begins with, and the number of all rows."""
        return np.cumsum([0, *(shard.row_count for shard in self.part.shards)], dtype=np.int64)

    def check_row_counts(self, *, is_shuffled: bool) -> None:
        """Compare footers that a pass would not read, or read too late, with the manifest.

        A shard without rows is skipped; one with very many rows per byte would make an order of all rows endless.
        """
        for number, shard in enumerate(self.part.shards):
            if not shard.row_count or (is_shuffled and shard.row_count > _DENSE_ROWS * shard.byte_size):
                _ = self.file(number).metadata

    def first_row(self, shard: int, group: int) -> int:
        """The row of the table a row group begins with."""
        return int(self.shard_starts[shard]) + self.file(shard).group_starts[group]

    def bring_whole(self, numbers: Iterable[int]) -> None:
        """In hybrid mode, bring the rest of these shards into the cache in the background."""
        self._dataset.access.bring_whole(self.file(number).reader for number in numbers)

    def guide(self, number: int) -> ShardGuide | None:
        """The guide to shard `number`: one of its own, or an entry in that of the table."""
        access, catalog, own = self._dataset.access, self._dataset.catalog, self.part.shards[number].guide
        label = f"guide of table {self._name!r}"
        if own is not None:
            return Guide(access.reader(catalog, own, f"{label} shard {number}"), 1).shard(0)
        if self.part.guide is None:
            return None
        with self._lock:
            if self._guide is None:
                self._guide = Guide(access.reader(catalog, self.part.guide, label), len(self.part.shards))
        return self._guide.shard(number)


class Table:
    """A view of a table: some columns, some rows; every change makes a new view and reads nothing."""

    def __init__(
        self,
        dataset: Dataset,
        name: str,
        columns: tuple[str, ...] | None = None,
        predicate: str | None = None,
        expression: Any = None,
    ) -> None:
        self.dataset = dataset
        self.name = name
        self.files = dataset.files_of(name)
        self.part: TablePart = self.files.part
        """The table in the manifest."""
        self.row_count = self.part.row_count
        """Rows of the whole table, before any filter."""
        self.columns = columns
        self.predicate = predicate
        self.expression = expression
        """A condition on rows as an Arrow expression, beside the one in SQL."""
        self.is_filtered = predicate is not None or expression is not None

    @property
    def row_bytes(self) -> int:
        """About how many bytes a row of the view takes, as far as that is known without reading."""
        widths = sum(_value_bytes(kind) for kind in self.schema().types)
        return max(widths, self.part.byte_size // max(1, self.row_count)) if self.columns is None else widths

    @property
    def condition(self) -> str | None:
        """The condition on rows as text."""
        parts = [str(part) for part in (self.predicate, self.expression) if part is not None]
        return " and ".join(parts) or None

    @property
    def identity(self) -> dict[str, Any]:
        """The rows of the view in states of streams."""
        dataset = self.dataset
        known: dict[str, Any] = {"dataset": dataset.id, "version": dataset.version, "table": self.name}
        known["filter"] = self.condition
        if self.expression is not None:  # its text leaves most of a long list out
            (serialized,) = self.expression.__reduce__()[1]
            literals = pa.ipc.open_file(pa.py_buffer(serialized)).read_all()
            digest = hashlib.sha256(str(literals.schema.types).encode())
            buffers = [column.combine_chunks().buffers() for column in literals.columns]
            for buffer in itertools.chain.from_iterable(buffers):
                digest.update(buffer or b"")
            known["filter_values"] = digest.hexdigest()[:16]
        return known

    def schema(self) -> pa.Schema:
        """The Arrow schema of the chosen columns; it comes with the manifest."""
        schema = self.files.schema
        if self.columns is None:
            return schema
        return pa.schema([schema.field(name) for name in self.columns], metadata=schema.metadata)

    def select(self, columns: str | Sequence[str]) -> Table:
        """A view of these columns."""
        names = (columns,) if isinstance(columns, str) else tuple(columns)
        known = self.schema().names
        for name in names:
            if name not in known:
                listed = f"it has {', '.join(known)}.{nearest(name, known)}"
                raise ValueError(f"no column {name!r} in table {self.name!r}; {listed}")
            if known.count(name) > 1 and self.columns is None:
                hint = "Read all columns, or publish the table again with other names."
                raise DatasetError(f"table {self.name!r} has two columns called {name!r}", hint=hint)
        return Table(self.dataset, self.name, names, self.predicate, self.expression)

    def filter(self, predicate: str | pc.Expression) -> Table:
        """A view of the rows for which a SQL condition holds, such as "reward > 0 and split = 'train'".

        In a subquery `t` is this whole table, and other tables have their names. An Arrow expression such as
        `pc.field("reward") > 0` does as well.
        """
        sql, expression = self.predicate, self.expression
        if isinstance(predicate, pc.Expression):
            expression = predicate if expression is None else expression & predicate
        elif not isinstance(predicate, str):
            raise TypeError(f"a filter is SQL text or an Arrow expression, not a {type(predicate).__name__}")
        elif not predicate.strip():
            raise ValueError("the condition of a filter is empty")
        else:
            check_condition(predicate, self.dataset.tables)
            both = [predicate] if sql is None else [sql, predicate]
            # A comment at the end of one cannot swallow its bracket.
            closed = [f"(\n{one}\n)" if "--" in one else f"({one})" for one in both]
            sql = predicate if sql is None else " and ".join(closed)
        return Table(self.dataset, self.name, self.columns, sql, expression)

    def head(self, n: int = 5) -> pa.Table:
        """The first rows, read from as few row groups as they need."""
        count = require_integer("the number of rows", n, _MOST_ROWS)
        request = StreamRequest(batch_size=max(1, min(count, 65_536)), limit=count, prefetch="off")
        return self._collect(request, None, MAX_BYTES) if count else self.schema().empty_table()

    def batches(
        self,
        batch_size: int = 1000,
        columns: str | Sequence[str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> BatchStream:
        """Arrow record batches of exactly `batch_size` rows (the last may be shorter), in row order.

        `rank` and `world` give the share of one rank (as `shard=(rank, world)`; `shard="auto"` finds both).
        `tail="drop"` and `"pad"` make every rank yield the same number of batches, each of `batch_size` rows.
        `shuffle` gives every row once per epoch in an order that follows from `seed` and `epoch` alone: True mixes
        blocks of rows, "full" single rows (which reads a row group for each). Its state fits any number of ranks.
        """
        request = StreamRequest.of(batch_size, options)
        return self.dataset.open_stream(self._of(columns), request, bound=True)

    def batch_dicts(
        self,
        batch_size: int = 1000,
        columns: str | Sequence[str] | None = None,
        **options: Unpack[StreamOptions],
    ) -> ChangedStream[dict[str, list[Any]]]:
        """The batches as dictionaries of lists; bound columns are lists of references."""
        request = StreamRequest.of(batch_size, options)
        view = self._of(columns)
        types = view.ref_types()
        return ChangedStream(self.dataset.open_stream(view, request), lambda batch: bound_dict(batch, types))

    def to_torch(
        self,
        batch_size: int = 1000,
        shard: Shard = "auto",
        prefetch: str | int | None = None,
        *,
        columns: str | Sequence[str] | None = None,
        nulls: str = "error",
        **options: Unpack[TorchOptions],
    ) -> Any:
        """A torch IterableDataset of batches of tensors, split over ranks and DataLoader workers.

        The type of a tensor follows from the schema. A null is NaN among floats and an error among other numbers;
        with `nulls="mask"` it is 0, and for every tensor `x` there is one `x.valid` that is False there.
        `shuffle` as in `batches`: the first iteration gives `epoch`, each further one the next epoch, in one order
        for any number of workers.
        """
        request = StreamRequest.of(batch_size, {**options, "shard": shard, "prefetch": prefetch})
        return self.dataset.streams.torch(self._of(columns), request, nulls)

    def _of(self, columns: str | Sequence[str] | None) -> Table:
        return self if columns is None else self.select(columns)

    def count(self) -> int:
        """Rows of the view; without a filter only footers are read, which must agree with the manifest."""
        if self.is_filtered:
            column = EngineColumn(ROW_NUMBER, _ROW_FIELD, _ROW_FIELD.type)
            return sum(len(table) for table in self._scan([column], None))
        files = map_in_threads(self.files.file, range(len(self.part.shards)))
        return sum(int(file.metadata.num_rows) for file in files)

    def take(
        self, rows: Sequence[int] | NDArray[np.integer[Any]], columns: str | Sequence[str] | None = None
    ) -> pa.Table:
        """These rows of the view, in the order given; negative numbers count from the end.

        Only the row groups that hold them are read.
        """
        view = self._of(columns)
        if self.is_filtered:
            kept = self.row_numbers()
            numbers = kept[_row_list(rows, len(kept))]
        else:
            numbers = _row_list(rows, self.row_count)
        wanted, places = np.unique(numbers, return_inverse=True)
        return rows_at(view._joined(list(view._rows_at(wanted))), places)

    def rows_together(self) -> pa.Table:
        """All rows of the chosen columns, all shards read at the same time: for tables that are small."""
        files = map_in_threads(self.files.file, range(len(self.part.shards)))
        tasks = [(file, group) for file in files for group in range(len(file.group_starts))]
        return self._joined(map_in_threads(lambda task: task[0].read(task[1], self.columns), tasks))

    def _joined(self, pieces: list[pa.Table]) -> pa.Table:
        table = pa.concat_tables(pieces) if pieces else pa.Table.from_batches([], self.schema())
        return table.select(self.schema().names) if self.columns is not None else table

    def _rows_at(self, rows: Positions) -> Iterator[pa.Table]:
        """These rows of the table, given in order, one row group after the other."""
        starts = self.files.shard_starts
        for shard in np.unique(np.searchsorted(starts, rows, side="right") - 1).tolist():
            file = self.files.file(shard)
            borders = starts[shard] + np.array([*file.group_starts, sum(file.group_rows)])
            cuts = np.searchsorted(rows, borders)
            for group in np.flatnonzero(np.diff(cuts)).tolist():
                inside = rows[cuts[group] : cuts[group + 1]] - borders[group]
                needed = int(inside[-1]) + 1
                if file.is_worth_paging(group, self.columns, needed):
                    yield rows_at(file.first_rows(group, self.columns, needed), inside)
                else:
                    yield rows_at(file.read(group, self.columns), inside)

    def row_numbers(self) -> Positions:
        """The positions of the rows of the view in the table, in order."""
        column = EngineColumn(ROW_NUMBER, _ROW_FIELD, _ROW_FIELD.type)
        pieces = [table.column(ROW_NUMBER).to_numpy() for table in self._scan([column], None)]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def sql(self, query: str) -> Any:
        """A query in which this view is called `t`; whole tables have their own names."""
        return self.dataset.sql(query, extra={VIEW: self})

    def arrow(self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> pa.Table:
        """All rows in memory, unless they are more than the limits allow.

        Rows and columns that the view leaves out do not count.
        """
        size = self.part.byte_size if self.columns is None else 0
        if not self.is_filtered and (self.row_count > max_rows or size > max_bytes):
            fact = f"table {self.name!r} has {self.row_count} rows in {self.part.byte_size} bytes"
            raise TooLargeError(fact)
        return self._collect(StreamRequest(65_536), max_rows, max_bytes)

    def pandas(self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a pandas frame, unless they are more than the limits allow."""
        return pandas_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def polars(self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> Any:
        """All rows as a polars frame, unless they are more than the limits allow."""
        return polars_from(self.arrow(max_rows=max_rows, max_bytes=max_bytes))

    def ref_types(self) -> dict[str, RefType]:
        """The bound columns of this view and the types that turn their values into references."""
        dataset, schema = self.dataset, self.files.schema
        wanted = schema.names if self.columns is None else self.columns
        types = {}
        for binding in dataset.manifest.bindings:
            if binding.table == self.name and binding.column in wanted:
                kind = schema.field(binding.column).type  # categories and views are plain text in batches
                kind = kind.value_type if pa.types.is_dictionary(kind) else kind
                kind = pa.large_string() if pa.types.is_string_view(kind) else kind
                recipe = recipe_of(binding.artifact, binding.ref_type, dataset.recipe)
                types[binding.column] = dataset.ref_type(kind, recipe)
        return types

    def bind(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with its bound columns as references."""
        require_kind("a batch", batch, pa.RecordBatch, "an Arrow record batch")
        return bound_batch(batch, self.ref_types())

    def source(self) -> ArrowSource:
        """The view as a source of the SQL engine."""
        return arrow_source(list(self.schema()), self._scan)

    def rows_where(self, condition: Condition) -> Positions:
        """The positions of the rows that satisfy a condition with subqueries, by one query."""
        schema = self.files.schema
        refuse_own_column(condition, schema.names)
        if condition.takes_rows(schema.names):
            hint = "Name the columns it looks at."
            fact = f"a condition with a subquery cannot look at whole rows of {VIEW!r}"
            raise DatasetError(fact, hint=hint)
        whole = Table(self.dataset, self.name)
        numbered = arrow_source([*schema, _ROW_FIELD], whole._scan)
        query = f"select {ROW_NUMBER} from {_NUMBERED} as {VIEW} where {condition.clause}"
        tables = {**self.dataset.sources(), VIEW: whole.source(), _NUMBERED: numbered}
        pieces = [batch.column(0).to_numpy() for batch in run_sql(query, tables, spill=self.dataset.spill)]
        return np.sort(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)

    def _scan(self, columns: Sequence[EngineColumn], expression: Any) -> Iterator[pa.Table]:
        """The rows of the view, group by group and in order; groups that an expression rules out are not read."""
        stored = {column.field.name for column in columns} - {ROW_NUMBER}
        return self._read(stored, expression, [(number, 0, 1) for number in range(len(self.part.shards))])

    def row_groups(self, parts: Sequence[ShardPart] | None = None) -> Iterator[pa.Table]:
        """The rows of the view row group by row group, in order: all of them, or those in some parts of its files."""
        view = self.select(self.schema().names)
        names = view.schema().names
        wanted = [(number, 0, 1) for number in range(len(self.part.shards))] if parts is None else parts
        for table in view._read(set(names), None, wanted):
            yield table.select(names)

    def _read(self, stored: set[str], expression: Any, files: Sequence[ShardPart]) -> Iterator[pa.Table]:
        with contextlib.closing(RowFilter(self)) as condition:
            needed = sorted({*stored, *condition.columns})
            parts = [part for part in (expression, condition.pruning) if part is not None]
            ahead = ReadAhead(
                lambda task: self.files.file(task[0]).ask(task[1], needed),
                lambda task, fetched: (task, self.files.file(task[0]).read(task[1], needed, fetched)),
                self._groups(parts, files),
                workers=4,
                cost=lambda task: self.files.file(task[0]).group_bytes(task[1]),
                max_cost=_AHEAD_BYTES,
            )
            with contextlib.closing(ahead):
                for task, table in ahead:
                    first = self.files.first_row(*task)
                    numbers = np.arange(first, first + table.num_rows, dtype=np.int64)
                    yield condition.keep(table.append_column(_ROW_FIELD, pa.array(numbers)), first)

    def _groups(self, pruning: Sequence[Any], files: Sequence[ShardPart]) -> Iterator[tuple[int, int]]:
        for number, share, shares in files:
            file = self.files.file(number)
            count = len(file.group_rows)
            groups = list(range(share * count // shares, (share + 1) * count // shares))
            for expression in pruning:
                groups = file.matching_groups(groups, expression)
            yield from ((number, group) for group in groups)

    def _collect(self, request: StreamRequest, max_rows: int | None, max_bytes: int) -> pa.Table:
        with contextlib.closing(self.dataset.open_stream(self, request)) as stream:
            return collect_batches(stream, self.schema(), f"table {self.name!r}", max_rows, max_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.dataset, self.name, self.columns, self.predicate, self.expression)

    def _repr_html_(self) -> str:
        shown = self.head(_SHOWN_ROWS)
        columns = [
            python_values(column, name)
            for name, column in zip(shown.column_names, shown.columns, strict=True)
        ]
        rows = ([text(value) for value in row] for row in zip(*columns, strict=True))
        return titled_card(repr(self), html_table(shown.column_names, rows))

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of {self.dataset.name}: {self.row_count} rows>"


def _value_bytes(kind: Any) -> int:
    """What a value of an Arrow type takes at least."""
    if isinstance(kind, pa.BaseExtensionType):
        return _value_bytes(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_value_bytes(kind.field(number).type) for number in range(kind.num_fields))
    return int(kind.bit_width) // 8 if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) else 0


def _row_list(rows: Any, count: int) -> Positions:
    """Numbers of rows as a caller writes them, checked against how many there are."""
    if isinstance(rows, range) and len(rows) > 2 * count:
        rows = rows[:: max(1, len(rows) - 1)]  # one of its ends is outside
    numbers = np.asarray(rows)
    if numbers.dtype.kind == "b":
        raise TypeError("take wants a list of row numbers, not a mask: give np.flatnonzero(mask)")
    is_beyond = numbers.dtype.kind == "O" and all(type(number) is int for number in numbers.flat)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu" and not is_beyond):
        raise TypeError("take wants a list of row numbers")
    outside = numbers[(numbers < -count) | (numbers >= count)]
    if outside.size:
        raise IndexError(f"row {outside[0]} of {count} rows")
    signed = numbers.astype(np.int64)
    return np.where(signed < 0, signed + count, signed)


class ChangedStream(Generic[T]):
    """The changed batches of a stream, with its state."""

    def __init__(self, stream: BatchStream, change: Callable[[pa.RecordBatch], T]) -> None:
        self._stream = stream
        self._change = change

    def __iter__(self) -> ChangedStream[T]:
        return self

    def __next__(self) -> T:
        return self._change(next(self._stream))

    def state_dict(self) -> dict[str, Any]:
        """The position of the stream."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state."""
        self._stream.load_state_dict(state)

    def close(self) -> None:
        """Stop reading ahead."""
        self._stream.close()
