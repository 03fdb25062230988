"""Harvest a corpus: append batches of rows from a model, roll shards, survive being killed, go on later."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.io.commit import map_os_errors, remove_temps_of
from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.locks import FileLock
from warpdata.corpora.batch import Rows
from warpdata.corpora.open_shard import (
    OpenShard,
    journal_columns,
    journal_path,
    partial_path,
    shard_name,
    stored_dtype,
)
from warpdata.corpora.options import options_of
from warpdata.corpora.side_table import COLUMN_DTYPES, extend_side_table, side_rows
from warpdata.corpora.statistics import RowStatistics
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
)
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, load_corpus, save_corpus
from warpdata.formats.gamsae.digest import digest_shard
from warpdata.formats.gamsae.reader import open_shard_info
from warpdata.formats.gamsae.writer import encode_rows

if TYPE_CHECKING:
    from typing import Self

LOCK_NAME = ".harvest.lock"
DEFAULT_SHARD_BYTES = 512 << 20
_ADOPT_ROWS = 4096
_EXACT_FLOAT = 2**53
_REOPEN = "Go on with CorpusWriter.reopen."


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What a new corpus is made of."""

    dtype: str = "f32"
    shard_bytes: int = DEFAULT_SHARD_BYTES
    """The most bytes of rows in one shard, and at least one row."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Side columns by name: `{"token_id": "i64", "position": "i32"}`."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Where the rows come from: model, layer, tokenizer, dataset."""
    sync_appends: bool = False
    """Survive power loss after every append, not only the death of the process."""


class CorpusKeywords(TypedDict, total=False):
    """The fields of CorpusOptions as keyword arguments."""

    dtype: str
    shard_bytes: int
    columns: Mapping[str, str]
    provenance: Mapping[str, Any]
    sync_appends: bool


class CorpusWriter:
    """Append rows to a corpus folder: an append that returned survives a kill; `close` completes it."""

    def __init__(self, folder: str | os.PathLike[str], width: int, **options: Unpack[CorpusKeywords]) -> None:
        """Begin a corpus in a new or empty folder; keyword arguments are the fields of CorpusOptions."""
        chosen = options_of(CorpusOptions, options)
        stored_dtype(chosen.dtype)
        _check_columns(chosen.columns)
        _check_shard_bytes(chosen.shard_bytes)
        width = operator.index(width)
        if width < 1:
            raise ValueError("rows have at least one column")
        path = Path(folder).absolute()
        row_bytes = width * dtype_named(chosen.dtype).itemsize
        if row_bytes > layout.MAX_ROW_BYTES:
            raise ValueError(
                f"rows of {width} columns are too wide: a row has at most {layout.MAX_ROW_BYTES} bytes"
            )
        record = CorpusRecord(
            width,
            chosen.dtype,
            layout.rows_per_run(row_bytes),
            is_complete=False,
            columns=dict(chosen.columns),
            provenance=dict(chosen.provenance),
            harvest={
                "shard_bytes": operator.index(chosen.shard_bytes),
                "sync_appends": bool(chosen.sync_appends),
            },
        )
        with map_os_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        try:
            _require_no_corpus(path)
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
        """Go on with a corpus, finished or killed: every acknowledged row is there, and nothing else.

        `shard_bytes` and `sync_appends` are those it was begun with unless given.
        """
        if shard_bytes is not None:
            _check_shard_bytes(shard_bytes)
        path = Path(folder).absolute()
        if not (path / layout.CORPUS_JSON).is_file():
            raise BlobNotFoundError("no corpus.json here: nothing to go on with", path=path)
        lock = _locked(path)
        writer = cls.__new__(cls)
        try:
            record = load_corpus(path)
            assert record is not None
            options = {"shard_bytes": DEFAULT_SHARD_BYTES, "sync_appends": False, **record.harvest}
            if shard_bytes is not None:
                options["shard_bytes"] = operator.index(shard_bytes)
            if sync_appends is not None:
                options["sync_appends"] = bool(sync_appends)
            writer._start(path, lock, replace(record, is_complete=False, harvest=options))
        except BaseException:
            lock.release()
            raise
        return writer

    def _start(self, folder: Path, lock: FileLock, record: CorpusRecord) -> None:
        if not record.width:
            raise CorruptLayoutError("rows without columns cannot be appended to", path=folder)
        self.folder = folder
        self._lock = lock
        self._record = record
        self._dtype = stored_dtype(record.dtype)
        shard_bytes = record.harvest["shard_bytes"]
        if not isinstance(shard_bytes, int):
            raise CorruptLayoutError(f"shard_bytes is an integer, not {shard_bytes!r}", path=folder)
        self._shard_rows = max(1, shard_bytes // (record.width * self._dtype.itemsize))
        side_bytes = sum(dtype_named(kind).itemsize for kind in record.columns.values())
        self._frame_rows = layout.MAX_JOURNAL_FRAME_BYTES // max(1, side_bytes)
        self._sync_appends = bool(record.harvest["sync_appends"])
        stored = record.statistics
        width = record.width
        self._statistics = RowStatistics.from_dict(stored, width) if stored else RowStatistics(width)
        self._shard: OpenShard | None = None
        self._is_open = True
        self._is_of_parent = False
        self._is_stopped = False
        run_in_child(self.in_child)
        for name in (layout.CORPUS_JSON, layout.ROWS_PARQUET):
            remove_temps_of(folder / name)
        self._adopt_finished()
        self._recover_partial()

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self._record.width

    @property
    def total_rows(self) -> int:
        """Rows acknowledged so far: a harvest that goes on begins with this row of its input."""
        return self._record.total_rows + (0 if self._shard is None else self._shard.n_rows)

    def statistics(self) -> dict[str, Any]:
        """Mean, RMS and norms of the rows so far."""
        return self._statistics.to_dict()

    def append(self, rows: npt.ArrayLike, **columns: npt.ArrayLike) -> int:
        """Add rows and their side columns; returns the id of the first. Acknowledged when it returns.

        It is kept whole or not at all, unless it is larger than a shard: then it is cut into shards, and a kill or
        a full disk in the midst of it leaves the shards that were finished. `total_rows` counts what is there.
        """
        self._check_process()
        if not self._is_open:
            self._check_stopped()
            raise WriterClosedError("this corpus writer was closed", path=self.folder, hint=_REOPEN)
        matrix = encode_rows(rows, self._dtype)
        if matrix.shape[1] != self.width:
            raise SchemaMismatchError(f"rows of width {matrix.shape[1]} in a corpus of width {self.width}")
        side = self._side_columns(columns, len(matrix))
        first = self.total_rows
        most = min(self._shard_rows, self._frame_rows)
        for start in range(0, len(matrix), most):
            part = slice(start, start + most)
            self._append_whole(matrix[part], {name: column[part] for name, column in side.items()})
        return first

    def _append_whole(self, rows: Rows, side: dict[str, npt.NDArray[Any]]) -> None:
        """Rows that fit a shard, in the one that is open or else in a new one."""
        if self._shard is not None and self._shard.n_rows + len(rows) > self._shard_rows:
            self._seal()
        shard = self._open_shard()
        shard.append(rows, side)
        self._statistics.update(rows)
        if shard.n_rows >= self._shard_rows:
            self._seal()

    def hook(self, columns: Callable[[], Mapping[str, npt.ArrayLike]] | None = None) -> Callable[..., None]:
        """A forward hook for a torch module: every output is appended, with the side data that `columns` returns."""

        def take(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            shape = tuple(getattr(tensor, "shape", ()))
            if not shape or shape[-1] != self.width:
                fact = f"the module gave {type(tensor).__name__} of shape {shape}, the corpus has width {self.width}"
                raise SchemaMismatchError(fact)
            self.append(tensor.reshape(-1, self.width), **({} if columns is None else columns()))

        return take

    def in_child(self) -> None:
        """In a forked child: the harvest goes on in the process that began it."""
        self._is_of_parent, self._is_open = True, False
        if self._shard is not None:
            self._shard.close()

    def _check_process(self) -> None:
        if self._is_of_parent:
            raise WriterClosedError(
                "this corpus is written by another process",
                path=self.folder,
                hint="Append in the process that opened the writer.",
            )

    def _check_stopped(self) -> None:
        if self._is_stopped:
            raise WriterClosedError(
                "this corpus writer stopped when a shard could not be finished; what was acknowledged is there",
                path=self.folder,
                hint=_REOPEN,
            )

    def close(self) -> None:
        """Finish the last shard, write rows.parquet and the complete corpus.json."""
        self._check_process()
        self._check_stopped()
        if not self._is_open:
            return
        self._seal()
        self._write_side_table()
        statistics = self._statistics.to_dict()
        save_corpus(self.folder, replace(self._record, statistics=statistics, is_complete=True))
        with map_os_errors(self.folder):
            for index in range(len(self._record.shards)):
                journal_path(self.folder, index).unlink(missing_ok=True)
        self._unlock()

    def abandon(self) -> None:
        """Stop as a kill would: what was acknowledged stays and can be reopened."""
        if self._is_open:
            if self._shard is not None:
                self._shard.close()
            self._unlock()

    def _open_shard(self) -> OpenShard:
        if self._shard is None:
            shard = self._new_shard(len(self._record.shards))
            try:
                shard.begin()
            except BaseException:
                shard.close()
                raise
            self._shard = shard
        return self._shard

    def _new_shard(self, index: int) -> OpenShard:
        return OpenShard(self.folder, index, self.width, self._dtype, sync_appends=self._sync_appends)

    def _seal(self) -> None:
        """Finish the shard that is open. Where that fails the harvest stops as a kill would stop it.

        Its rows were acknowledged, and the next shard would take their place.
        """
        if self._shard is None:
            return
        try:
            with map_os_errors(self.folder):
                if self._shard.n_rows:
                    self._list(self._shard.finish())
                else:
                    self._shard.discard()
                    self._shard = None
        except BaseException:
            self._is_stopped = True
            self.abandon()
            raise

    def _list(self, path: Path) -> None:
        """Add a finished shard to corpus.json; its journal goes unless side columns wait in it."""
        index = len(self._record.shards)
        entry = digest_shard(path, self._record.run_rows).record()
        record = replace(self._record, shards=(*self._record.shards, entry))
        save_corpus(self.folder, replace(record, statistics=self._statistics.to_dict()))
        self._record, self._shard = record, None
        if not record.columns:
            journal_path(self.folder, index).unlink(missing_ok=True)

    def _adopt_finished(self) -> None:
        """A shard that got its name just before a kill is listed now."""
        path = self.folder / shard_name(len(self._record.shards))
        if not path.is_file():
            return
        info = open_shard_info(path)
        if (info.width, info.dtype) != (self.width, self._dtype) or info.trailing_bytes:
            raise CorruptLayoutError(
                "this shard is not of the harvest", path=path, hint="Move it away, then reopen the corpus."
            )
        shape = (info.n_rows, self.width)
        rows = (
            np.memmap(path, self._dtype.dtype, "r", info.data_offset, shape)
            if info.n_rows
            else np.empty(shape)
        )
        for start in range(0, info.n_rows, _ADOPT_ROWS):
            self._statistics.update(rows[start : start + _ADOPT_ROWS])
        self._list(path)

    def _recover_partial(self) -> None:
        """Take over the acknowledged rows of a killed harvest."""
        index = len(self._record.shards)
        if partial_path(self.folder, index).exists() and journal_path(self.folder, index).exists():
            self._shard = self._new_shard(index)
            for rows in self._shard.recover(self._record.columns):
                self._statistics.update(rows)

    def _side_columns(self, columns: Mapping[str, npt.ArrayLike], count: int) -> dict[str, npt.NDArray[Any]]:
        schema = self._record.columns
        if set(columns) != set(schema):
            near = "".join(nearest(name, schema) for name in sorted(set(columns) - set(schema))[:1])
            raise SchemaMismatchError(
                f"side columns {sorted(columns)} were given, the corpus has {sorted(schema)}.{near}"
            )
        return {name: _column(name, columns[name], kind, count) for name, kind in schema.items()}

    def _write_side_table(self) -> None:
        if self._record.columns and side_rows(self.folder) < self._record.total_rows:
            extend_side_table(self.folder, self._record.columns, self._waiting_columns())

    def _waiting_columns(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Side columns of the shards that rows.parquet does not cover yet."""
        covered, first = side_rows(self.folder), 0
        for index, shard in enumerate(self._record.shards):
            if first >= covered:
                yield from journal_columns(self.folder, index, self._record.columns)
            first += shard.n_rows

    def _unlock(self) -> None:
        self._is_open = False
        self._lock.release()

    def __repr__(self) -> str:
        return f"<CorpusWriter {self.folder}: {self.total_rows} rows x {self.width} {self._record.dtype}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def _locked(folder: Path) -> FileLock:
    """Only one harvest writes to a folder; the lock of a killed one is gone with it."""
    lock = FileLock.take(folder / LOCK_NAME, removes=True)
    if lock is None:
        hint = "Wait for it, or choose another folder."
        raise JournalInUseError("another harvest is writing this corpus", path=folder, hint=hint)
    return lock


def _require_no_corpus(folder: Path) -> None:
    if any(folder.glob("*" + layout.SHARD_SUFFIX)) or (folder / layout.CORPUS_JSON).exists():
        raise ConflictError(
            "a corpus is here already", path=folder, hint="Use CorpusWriter.reopen to append."
        )


def _check_shard_bytes(shard_bytes: int) -> None:
    if operator.index(shard_bytes) < 1:
        raise ValueError(f"shard_bytes is at least 1, not {shard_bytes}")


def _check_columns(columns: Mapping[str, str]) -> None:
    require_kind("columns", columns, Mapping, f"a mapping of names to kinds ({', '.join(COLUMN_DTYPES)})")
    for name, kind in columns.items():
        require_kind("the name of a side column", name, str, "a text")
        require_word(f"side column {name!r}", kind, COLUMN_DTYPES)
        if name == layout.ROW_ID_COLUMN or not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a side column")


def _column(name: str, values: npt.ArrayLike, kind: str, count: int) -> npt.NDArray[Any]:
    dtype = dtype_named(kind).dtype
    array = np.asarray(values)
    if array.shape != (count,):
        raise SchemaMismatchError(f"side column {name!r} has shape {array.shape}, there are {count} rows")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise SchemaMismatchError(f"side column {name!r} is {array.dtype}, the corpus has {kind}")
    with np.errstate(over="ignore"):  # what that does to values is looked at below
        cast = np.ascontiguousarray(array, dtype)
    if array.dtype.kind == "f":  # floats are rounded, but stay numbers
        fits = np.isfinite(cast) >= np.isfinite(array)
    else:
        fits = cast == array
        if cast.dtype.kind == "f":  # which numpy compares as floats
            fits &= (array <= _EXACT_FLOAT) & (array >= -_EXACT_FLOAT)
    if not fits.all():
        raise SchemaMismatchError(f"side column {name!r} has values that do not fit {kind}")
    return cast
