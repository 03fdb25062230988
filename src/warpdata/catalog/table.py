"""One table of a dataset: look at it, query it, stream it. One of the doors of pyarrow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.bytekit.locks import ThreadLock
from warpdata.catalog.engine import ArrowSource, fields_in, quoted
from warpdata.catalog.frames import pandas_from, polars_from
from warpdata.catalog.refarray import RefType, bound_batch, bound_dict, recipe_of
from warpdata.catalog.rowgroups import ShardFile, schema_from_base64
from warpdata.errors import TooLargeError
from warpdata.formats.manifest.guide import Guide
from warpdata.formats.manifest.model import TablePart
from warpdata.stores.readahead import ReadAhead

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

T = TypeVar("T")

MAX_ROWS = 1_000_000
MAX_BYTES = 1 << 30
_AHEAD_BYTES = 256 << 20

Shard = tuple[int, int] | str | None


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a pass over a table should yield."""

    batch_size: int = 1000
    shard: Shard = None
    limit: int | None = None
    prefetch: str | int | None = None
    even: str | None = None
    """None, "drop" or "pad": make all ranks yield the same number of batches."""


class BatchStream(Protocol):
    """Batches in order, with a state to go on from."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is."""

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state."""

    def close(self) -> None:
        """Stop reading ahead."""


class StreamOpener(Protocol):
    """What the loading room gives to tables: how a stream is made."""

    def __call__(self, table: Table, request: StreamRequest) -> BatchStream: ...


class TableFiles:
    """The shards of a table as parquet files, shared by all views of it."""

    def __init__(self, dataset: Dataset, name: str, part: TablePart) -> None:
        self._dataset = dataset
        self._name = name
        self.part = part
        self._lock = ThreadLock()
        self._guide: Guide | None = None
        self._files: dict[int, ShardFile] = {}

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema the manifest gives."""
        return schema_from_base64(self.part.schema_ipc)

    def file(self, number: int) -> ShardFile:
        """Shard `number`, opened once."""
        with self._lock:
            if number not in self._files:
                self._files[number] = self._opened(number)
            return self._files[number]

    def hoard(self, numbers: Iterable[int]) -> None:
        """In hybrid mode, bring the rest of these shards into the cache in the background."""
        access = self._dataset.access
        access.hoard(self.file(number).reader for number in numbers)

    def _opened(self, number: int) -> ShardFile:
        dataset, shard = self._dataset, self.part.shards[number]
        label = f"table {self._name!r} shard {number}"
        if self.part.guide is None:
            return ShardFile(dataset.access.reader(dataset.catalog, shard, label))
        if self._guide is None:
            guide_label = f"guide of table {self._name!r}"
            reader = dataset.access.reader(dataset.catalog, self.part.guide, guide_label)
            self._guide = Guide(reader, len(self.part.shards))
        guide = self._guide.shard(number)
        return ShardFile(dataset.access.reader(dataset.catalog, shard, label, guide.page_sums), guide.tail)


class Table:
    """A view of a table: some columns, some rows; every change makes a new view and reads nothing."""

    def __init__(
        self,
        dataset: Dataset,
        name: str,
        files: TableFiles,
        columns: tuple[str, ...] | None = None,
        predicate: str | None = None,
        expression: Any = None,
    ) -> None:
        self.dataset = dataset
        self.name = name
        self.files = files
        self.columns = columns
        self.predicate = predicate
        self.expression = expression
        """A condition on rows in Arrow's terms, beside the one in SQL."""

    @property
    def part(self) -> TablePart:
        """What the manifest says about the table."""
        return self.files.part

    @property
    def row_count(self) -> int:
        """Rows of the whole table, before any filter."""
        return self.part.row_count

    @property
    def is_filtered(self) -> bool:
        """Whether the view leaves rows out."""
        return self.predicate is not None or self.expression is not None

    @property
    def condition(self) -> str | None:
        """The condition on rows as text."""
        parts = [str(part) for part in (self.predicate, self.expression) if part is not None]
        return " and ".join(parts) or None

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
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"no column {unknown[0]!r} in table {self.name!r}; it has {', '.join(known)}")
        return Table(self.dataset, self.name, self.files, names, self.predicate, self.expression)

    def filter(self, predicate: str | pc.Expression) -> Table:
        """A view of the rows for which a SQL condition holds, such as "reward > 0 and split = 'train'".

        An Arrow expression such as `pc.field("reward") > 0` does as well.
        """
        sql, expression = self.predicate, self.expression
        if isinstance(predicate, pc.Expression):
            expression = predicate if expression is None else expression & predicate
        elif not isinstance(predicate, str):
            raise TypeError(f"a filter is SQL text or an Arrow expression, not a {type(predicate).__name__}")
        elif not predicate.strip():
            raise ValueError("the condition of a filter is empty")
        else:
            sql = f"({sql}) and ({predicate})" if sql else predicate
        return Table(self.dataset, self.name, self.files, self.columns, sql, expression)

    def head(self, n: int = 5) -> pa.Table:
        """The first rows, read from as few row groups as they need."""
        request = StreamRequest(batch_size=max(1, min(n, 65_536)), limit=n, prefetch="off")
        batches = [b for b in self.dataset.open_stream(self, request)] if n > 0 else []
        return pa.Table.from_batches(batches, self.schema())

    def batches(
        self,
        batch_size: int = 1000,
        columns: str | Sequence[str] | None = None,
        shard: Shard = None,
        limit: int | None = None,
        prefetch: str | int | None = None,
        *,
        drop_last: bool = False,
        pad: bool = False,
    ) -> BatchStream:
        """Arrow record batches of exactly `batch_size` rows (the last may be shorter), in row order.

        `drop_last` and `pad` make every rank yield the same number of batches, each of `batch_size` rows.
        """
        request = StreamRequest(batch_size, shard, limit, prefetch, _even(drop_last, pad))
        return self.dataset.open_stream(self._of(columns), request, bound=True)

    def batch_dicts(
        self,
        batch_size: int = 1000,
        columns: str | Sequence[str] | None = None,
        shard: Shard = None,
        limit: int | None = None,
        prefetch: str | int | None = None,
        *,
        drop_last: bool = False,
        pad: bool = False,
    ) -> ChangedStream[dict[str, list[Any]]]:
        """The same batches as dictionaries of lists; bound columns are lists of references."""
        request = StreamRequest(batch_size, shard, limit, prefetch, _even(drop_last, pad))
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
        limit: int | None = None,
        drop_last: bool = False,
        pad: bool = False,
        nulls: str = "error",
    ) -> Any:
        """A torch IterableDataset of batches of tensors, split over ranks and DataLoader workers.

        The type of a tensor follows from the schema. A null is NaN among floats and an error among other numbers;
        with `nulls="mask"` it is 0, and for every tensor `x` there is one `x.valid` that is False there.
        """
        request = StreamRequest(batch_size, shard, limit, prefetch, _even(drop_last, pad))
        return self.dataset.open_torch(self._of(columns), request, nulls)

    def _of(self, columns: str | Sequence[str] | None) -> Table:
        return self if columns is None else self.select(columns)

    def count(self) -> int:
        """Rows of the view; without a filter nothing is read."""
        if not self.is_filtered:
            return self.row_count
        return int(self.sql("select count(*) from t").arrow().column(0)[0].as_py())

    def sql(self, query: str) -> Any:
        """A query in which this view is called `t`; whole tables have their own names."""
        return self.dataset.sql(query, extra={"t": self})

    def select_from(self, source: str) -> str:
        """The SQL of this view, given the name under which its source is known."""
        columns = "*" if self.columns is None else ", ".join(quoted(name) for name in self.columns)
        where = f" where {self.predicate}" if self.predicate else ""
        return f"select {columns} from {quoted(source)}{where}"

    def arrow(self, *, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> pa.Table:
        """All rows in memory, unless they are more than the limits allow."""
        self._guard(max_rows, max_bytes)
        return pa.Table.from_batches(
            list(self.dataset.open_stream(self, StreamRequest(65_536))), self.schema()
        )

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
        return {
            b.column: dataset.ref_type(
                schema.field(b.column).type, recipe_of(b.artifact, b.ref_type, dataset.recipe)
            )
            for b in dataset.manifest.bindings
            if b.table == self.name and b.column in wanted
        }

    def bind(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with its bound columns as references."""
        return bound_batch(batch, self.ref_types())

    def source(self) -> ArrowSource:
        """The table as the SQL engine sees it: all columns, and all rows an Arrow filter leaves."""
        return ArrowSource(self.files.schema, self._scan)

    def _scan(self, columns: Sequence[str] | None, expression: Any) -> Iterator[pa.RecordBatch]:
        """Batches of the row groups that can match, filtered; read ahead, in order."""
        everything = self.files.schema.names
        names = list(columns) if columns is not None else everything
        if self.expression is not None:
            expression = self.expression if expression is None else expression & self.expression
        needed = sorted({*names, *fields_in(expression, everything)})

        def _kept(table: pa.Table) -> pa.Table:
            return table if expression is None else table.filter(expression).select(names)

        ahead = ReadAhead(
            lambda task: self.files.file(task[0]).fetch(task[1], needed),
            lambda task, fetched: _kept(self.files.file(task[0]).read(task[1], needed, fetched)),
            self._groups(expression), workers=4, cost=self._group_bytes, max_cost=_AHEAD_BYTES,
        )  # fmt: skip
        with contextlib.closing(ahead):
            for table in ahead:
                yield from table.to_batches()

    def _groups(self, expression: Any) -> Iterator[tuple[int, int]]:
        for number in range(len(self.part.shards)):
            file = self.files.file(number)
            groups = list(range(file.metadata.num_row_groups))
            kept = groups if expression is None else file.matching_groups(groups, expression)
            yield from ((number, group) for group in kept)

    def _group_bytes(self, task: tuple[int, int]) -> int:
        return int(self.files.file(task[0]).metadata.row_group(task[1]).total_byte_size)

    def _guard(self, max_rows: int, max_bytes: int) -> None:
        size = self.part.byte_size
        if self.row_count > max_rows or size > max_bytes:
            raise TooLargeError(f"table {self.name!r} has {self.row_count} rows in {size} bytes")

    def __reduce__(self) -> tuple[Any, ...]:
        return _table_again, (self.dataset, self.name, self.columns, self.predicate, self.expression)

    def __repr__(self) -> str:
        return f"<Table {self.name!r} of {self.dataset.name}: {self.row_count} rows>"


def stream_request(
    batch_size: int = 1000,
    shard: Shard = None,
    limit: int | None = None,
    prefetch: str | int | None = None,
    *,
    drop_last: bool = False,
    pad: bool = False,
) -> StreamRequest:
    """What the options of `batches` ask for."""
    return StreamRequest(batch_size, shard, limit, prefetch, _even(drop_last, pad))


def _even(drop_last: bool, pad: bool) -> str | None:
    if drop_last and pad:
        raise ValueError("drop_last and pad exclude each other")
    return "drop" if drop_last else "pad" if pad else None


class ChangedStream(Generic[T]):
    """What `change` makes of each batch, with the state of the stream they come from."""

    def __init__(self, stream: BatchStream, change: Callable[[pa.RecordBatch], T]) -> None:
        self._stream = stream
        self._change = change

    def __iter__(self) -> ChangedStream[T]:
        return self

    def __next__(self) -> T:
        return self._change(next(self._stream))

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state."""
        self._stream.load_state_dict(state)

    def close(self) -> None:
        """Stop reading ahead."""
        self._stream.close()


def _table_again(
    dataset: Dataset, name: str, columns: tuple[str, ...] | None, predicate: str | None, expression: Any
) -> Table:
    """A view that came from another process."""
    return Table(dataset, name, dataset.table(name).files, columns, predicate, expression)
