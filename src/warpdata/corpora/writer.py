"""Harvest a corpus: append batches of rows from a model, roll shards, survive being killed, continue later."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import map_os_errors, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.process.forks import NoPickle, ThreadLock, run_in_child
from warpdata.bytekit.process.locks import FileLock
from warpdata.corpora.rows import Rows, RowStatistics
from warpdata.corpora.side_table import COLUMN_DTYPES, extend_side_table, side_rows
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    CorruptLayoutError,
    JournalInUseError,
    SchemaMismatchError,
    WriterClosedError,
    nearest,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus import CorpusRecord, digest_shard, load_corpus, save_corpus
from warpdata.formats.gamsae.shard import Columns, OpenShard, encode_rows, open_shard_info, read_appends

if TYPE_CHECKING:
    from typing import Self

LOCK_NAME = ".harvest.lock"
DEFAULT_SHARD_BYTES = 512 << 20
_ADOPT_ROWS = 4096
_EXACT_FLOAT = 2**53
_NOTHING: Mapping[str, Any] = {}
_REOPEN = "Continue with CorpusWriter.reopen."


class CorpusWriter(NoPickle):
    """Append rows to a corpus folder, from any thread: an append that returned survives a kill; `close` completes it.

    Rows are stored as `dtype` in shards of at most `shard_bytes` (and at least one row). `columns` names side columns:
    `{"token_id": "i64"}`. `provenance` describes the source of the rows: model, layer, tokenizer, dataset. With
    `sync_appends` an append also survives power loss.
    """

    @suggests
    def __init__(
        self,
        folder: str | os.PathLike[str],
        width: int,
        *,
        dtype: str = "f32",
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        columns: Mapping[str, str] = _NOTHING,
        provenance: Mapping[str, Any] = _NOTHING,
        sync_appends: bool = False,
    ) -> None:
        """Begin a corpus in a new or empty folder."""
        if dtype not in layout.DTYPE_TAGS:
            near = nearest(str(dtype), layout.DTYPE_TAGS)
            raise ValueError(f"rows can be stored as {', '.join(layout.DTYPE_TAGS)}, not as {dtype!r}.{near}")
        _check_columns(columns)
        width = operator.index(width)
        row_bytes = width * dtype_named(dtype).itemsize
        if width < 1:
            raise ValueError("rows have at least one column")
        if row_bytes > layout.MAX_ROW_BYTES:
            raise ValueError(
                f"rows of {width} columns are too wide: a row has at most {layout.MAX_ROW_BYTES} bytes"
            )
        record = CorpusRecord(
            width,
            dtype,
            layout.rows_per_run(row_bytes),
            is_complete=False,
            columns=dict(columns),
            provenance=dict(provenance),
            harvest=_harvest_options(shard_bytes, sync_appends),
        )
        path = Path(folder).absolute()
        with map_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = _lock_folder(path)
        try:
            if any(path.glob("*" + layout.SHARD_SUFFIX)) or (path / layout.CORPUS_JSON).exists():
                hint = "Use CorpusWriter.reopen to append."
                raise ConflictError("a corpus is here already", path=path, hint=hint)
            save_corpus(path, record)
            self._start(path, lock, record)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def reopen(
        cls,
        folder: str | os.PathLike[str],
        *,
        shard_bytes: int | None = None,
        sync_appends: bool | None = None,
    ) -> Self:
        """Continue a corpus, finished or killed: every acknowledged row is there, and nothing else.

        `shard_bytes` and `sync_appends` are those it was begun with unless given.
        """
        changes = _harvest_options(shard_bytes, sync_appends)
        path = Path(folder).absolute()
        if not (path / layout.CORPUS_JSON).is_file():
            raise BlobNotFoundError("no corpus.json here: nothing to continue", path=path)
        lock = _lock_folder(path)
        writer = cls.__new__(cls)
        try:
            record = load_corpus(path)
            assert record is not None
            options = {**_harvest_options(DEFAULT_SHARD_BYTES, False), **record.harvest, **changes}
            writer._start(path, lock, replace(record, is_complete=False, harvest=options))
        except BaseException:
            lock.release()
            raise
        return writer

    def _start(self, folder: Path, lock: FileLock, record: CorpusRecord) -> None:
        if not record.width:
            raise CorruptLayoutError("rows without columns cannot be appended to", path=folder)
        shard_bytes = record.harvest["shard_bytes"]
        if not isinstance(shard_bytes, int):
            raise CorruptLayoutError(f"shard_bytes is an integer, not {shard_bytes!r}", path=folder)
        self.folder = folder
        self._lock = lock
        self._turn = ThreadLock()
        self._record = record
        self._dtype = dtype_named(record.dtype)
        self._shard_rows = max(1, shard_bytes // (record.width * self._dtype.itemsize))
        side_bytes = sum(dtype_named(kind).itemsize for kind in record.columns.values())
        self._frame_rows = layout.MAX_JOURNAL_FRAME_BYTES // max(1, side_bytes)
        stored = record.statistics
        self._statistics = (
            RowStatistics.from_dict(stored, record.width) if stored else RowStatistics(record.width)
        )
        self._shard: OpenShard | None = None
        self._is_open = True
        self._stopped: tuple[str, str] | None = None
        """Why this writer cannot be closed in order, with a hint."""
        run_in_child(self.in_child)
        for name in (layout.CORPUS_JSON, layout.ROWS_PARQUET):
            remove_temps_of(folder / name)
        self._adopt_finished()
        shard = self._new_shard(len(self._record.shards))
        if shard.partial_path.exists() and shard.journal_path.exists():
            self._shard = shard
            for rows in shard.recover(record.columns):
                self._statistics.update(rows)

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._record.width

    @property
    def total_rows(self) -> int:
        """Rows acknowledged so far: a continued harvest begins with this row of its input."""
        return self._record.total_rows + (0 if self._shard is None else self._shard.n_rows)

    def statistics(self) -> dict[str, Any]:
        """Mean, RMS and norms of the rows so far."""
        return self._statistics.to_dict()

    def append(self, rows: npt.ArrayLike, **columns: npt.ArrayLike) -> int:
        """Add rows and their side columns; returns the id of the first. Acknowledged when it returns.

        An append is kept whole or not at all, unless it is larger than a shard: then it is cut into shards, and a kill
        or a full disk in the middle of it leaves the shards that were finished. `total_rows` counts the rows kept.
        """
        matrix = encode_rows(rows, self._dtype)
        if matrix.shape[1] != self.width:
            raise SchemaMismatchError(f"rows of width {matrix.shape[1]} in a corpus of width {self.width}")
        side = self._side_columns(columns, len(matrix))
        most = min(self._shard_rows, self._frame_rows)
        with self._turn:
            if not self._is_open:
                raise self._closed_error()
            first = self.total_rows
            for start in range(0, len(matrix), most):
                part = slice(start, start + most)
                self._append_part(matrix[part], {name: column[part] for name, column in side.items()})
        return first

    def _append_part(self, rows: Rows, side: Columns) -> None:
        """Append rows that fit a shard to the open one, or else to a new one."""
        if self._shard is not None and self._shard.n_rows + len(rows) > self._shard_rows:
            self._finish_shard()
        if self._shard is None:
            shard = self._new_shard(len(self._record.shards))
            shard.begin()
            self._shard = shard
        self._shard.append(rows, side)
        self._statistics.update(rows)
        if self._shard.n_rows >= self._shard_rows:
            self._finish_shard()

    def hook(self, columns: Callable[[], Mapping[str, npt.ArrayLike]] | None = None) -> Callable[..., None]:
        """A forward hook for a torch module: every output is appended, with the side data that `columns` returns."""

        def append_output(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            shape = tuple(getattr(tensor, "shape", ()))
            if not shape or shape[-1] != self.width:
                fact = f"the module gave {type(tensor).__name__} of shape {shape}, the corpus has width {self.width}"
                raise SchemaMismatchError(fact)
            self.append(tensor.reshape(-1, self.width), **({} if columns is None else columns()))

        return append_output

    def in_child(self) -> None:
        """In a forked child: the harvest continues in the process that began it."""
        hint = "Append in the process that opened the writer."
        self._is_open, self._stopped = False, ("this corpus is written by another process", hint)
        if self._shard is not None:
            self._shard.close()

    def _closed_error(self) -> WriterClosedError:
        fact, hint = self._stopped or ("this corpus writer was closed", _REOPEN)
        return WriterClosedError(fact, path=self.folder, hint=hint)

    def close(self) -> None:
        """Finish the last shard, write rows.parquet and the complete corpus.json."""
        with self._turn:
            if not self._is_open:
                if self._stopped is not None:
                    raise self._closed_error()
                return
            self._finish_shard()
            record = self._record
            if record.columns and side_rows(self.folder) < record.total_rows:
                extend_side_table(self.folder, record.columns, self._waiting_columns())
            statistics = self._statistics.to_dict()
            save_corpus(self.folder, replace(record, statistics=statistics, is_complete=True))
            with map_os_errors(self.folder):
                for index in range(len(record.shards)):
                    self._new_shard(index).journal_path.unlink(missing_ok=True)
            self._stop()

    def abandon(self) -> None:
        """Stop as a kill would: acknowledged rows stay, and the corpus can be reopened."""
        with self._turn:
            if self._is_open:
                self._stop()

    def _stop(self) -> None:
        if self._shard is not None:
            self._shard.close()
        self._is_open = False
        self._lock.release()

    def _new_shard(self, index: int) -> OpenShard:
        sync = bool(self._record.harvest["sync_appends"])
        return OpenShard(self.folder, index, self.width, self._dtype, sync_appends=sync)

    def _finish_shard(self) -> None:
        """Finish the open shard and list it in corpus.json. If that fails the harvest stops as a kill would stop it.

        Its rows were acknowledged, and the next shard would replace them.
        """
        shard = self._shard
        if shard is None:
            return
        try:
            with map_os_errors(self.folder):
                if shard.n_rows:
                    shard.finish()
                    self._list(shard)
                else:
                    shard.discard()
                    self._shard = None
        except BaseException:
            fact = "this corpus writer stopped: a shard could not be finished; acknowledged rows are kept"
            self._stopped = fact, _REOPEN
            self._stop()
            raise

    def _list(self, shard: OpenShard) -> None:
        """Add a finished shard to corpus.json; its journal goes unless it holds side columns."""
        with FileRangeReader(shard.path) as reader:
            entry = digest_shard(reader, self._record.run_rows)[1]
        record = replace(self._record, shards=(*self._record.shards, entry))
        save_corpus(self.folder, replace(record, statistics=self._statistics.to_dict()))
        self._record, self._shard = record, None
        if not record.columns:
            shard.journal_path.unlink(missing_ok=True)

    def _adopt_finished(self) -> None:
        """List a shard that got its name just before a kill."""
        shard = self._new_shard(len(self._record.shards))
        if not shard.path.is_file():
            return
        info = open_shard_info(shard.path)
        if (info.width, info.dtype) != (self.width, self._dtype) or info.trailing_bytes:
            hint = "Move it away, then reopen the corpus."
            raise CorruptLayoutError("this shard is not of the harvest", path=shard.path, hint=hint)
        if info.n_rows:
            shape = (info.n_rows, self.width)
            rows = np.memmap(shard.path, self._dtype.dtype, "r", info.data_offset, shape)
            for start in range(0, info.n_rows, _ADOPT_ROWS):
                self._statistics.update(rows[start : start + _ADOPT_ROWS])
        self._list(shard)

    def _side_columns(self, columns: Mapping[str, npt.ArrayLike], count: int) -> Columns:
        schema = self._record.columns
        if set(columns) != set(schema):
            near = "".join(nearest(name, schema) for name in sorted(set(columns) - set(schema))[:1])
            raise SchemaMismatchError(
                f"side columns {sorted(columns)} were given, the corpus has {sorted(schema)}.{near}"
            )
        return {name: _cast_column(name, columns[name], kind, count) for name, kind in schema.items()}

    def _waiting_columns(self) -> Iterator[Columns]:
        """Side columns of the shards that rows.parquet does not cover yet."""
        covered, first = side_rows(self.folder), 0
        for index, entry in enumerate(self._record.shards):
            if first >= covered:
                for append in read_appends(self._new_shard(index).journal_path, self._record.columns):
                    yield append.columns
            first += entry.n_rows

    def __repr__(self) -> str:
        return f"<CorpusWriter {self.folder}: {self.total_rows} rows x {self.width} {self._record.dtype}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def _harvest_options(shard_bytes: int | None, sync_appends: bool | None) -> dict[str, Any]:
    """The options that are given, checked."""
    options: dict[str, Any] = {} if sync_appends is None else {"sync_appends": bool(sync_appends)}
    if shard_bytes is not None:
        if operator.index(shard_bytes) < 1:
            raise ValueError(f"shard_bytes is at least 1, not {shard_bytes}")
        options["shard_bytes"] = operator.index(shard_bytes)
    return options


def _lock_folder(folder: Path) -> FileLock:
    """The lock of the only harvest that writes to a folder; that of a killed process is gone with it."""
    lock = FileLock.take(folder / LOCK_NAME, removes=True)
    if lock is None:
        hint = "Wait for it, or choose another folder."
        raise JournalInUseError("another harvest is writing this corpus", path=folder, hint=hint)
    return lock


def _check_columns(columns: Mapping[str, str]) -> None:
    require_kind("columns", columns, Mapping, f"a mapping of names to kinds ({', '.join(COLUMN_DTYPES)})")
    for name, kind in columns.items():
        require_kind("the name of a side column", name, str, "a text")
        require_word(f"side column {name!r}", kind, COLUMN_DTYPES)
        if name == layout.ROW_ID_COLUMN or not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a side column")


def _cast_column(name: str, values: npt.ArrayLike, kind: str, count: int) -> npt.NDArray[Any]:
    """A side column as it is stored; an error for values that its type does not hold."""
    dtype = dtype_named(kind).dtype
    array = np.asarray(values)
    if array.shape != (count,):
        raise SchemaMismatchError(f"side column {name!r} has shape {array.shape}, there are {count} rows")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise SchemaMismatchError(f"side column {name!r} is {array.dtype}, the corpus has {kind}")
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    if array.dtype.kind == "f":  # floats are rounded, but stay finite
        fits = np.isfinite(cast) >= np.isfinite(array)
    else:
        fits = cast == array
        if cast.dtype.kind == "f":  # which numpy compares as floats
            fits &= (array <= _EXACT_FLOAT) & (array >= -_EXACT_FLOAT)
    if not fits.all():
        raise SchemaMismatchError(f"side column {name!r} has values that do not fit {kind}")
    return cast
