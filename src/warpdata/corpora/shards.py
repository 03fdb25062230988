"""The shards of a corpus in their order, from a list of files, a folder, corpus.json or a bf16 directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    EmptyCorpusError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    WidthMismatchError,
)
from warpdata.formats.bf16dir.reader import Bf16Directory, is_bf16_directory, read_directory
from warpdata.formats.gamsae import layout
from warpdata.formats.gamsae.corpus_json import CorpusRecord, Crcs, load_corpus
from warpdata.formats.gamsae.reader import ShardInfo, open_shard_info
from warpdata.formats.gamsae.verify import sort_shard_names

Path_ = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, eq=False)
class ShardSet:
    """Shards of one width and type, their rows numbered through in the order given."""

    shards: tuple[ShardInfo, ...]
    run_crcs: tuple[Crcs, ...] | None = None
    """CRC32C per run of rows of each shard, where corpus.json has them."""
    run_rows: int = 0
    record: CorpusRecord | None = None
    folder: str | None = None

    @property
    def width(self) -> int:
        """Columns of a row."""
        return self.shards[0].width

    @property
    def dtype(self) -> DType:
        """The stored element type."""
        return self.shards[0].dtype

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row."""
        return self.shards[0].row_bytes

    @property
    def shard_rows(self) -> tuple[int, ...]:
        """Rows of each shard."""
        return tuple(shard.n_rows for shard in self.shards)

    @property
    def total_rows(self) -> int:
        """Rows of all shards."""
        return sum(self.shard_rows)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all rows."""
        return self.total_rows * self.row_bytes

    def first_rows(self) -> npt.NDArray[np.int64]:
        """The global id of each shard's first row."""
        rows = np.array(self.shard_rows, np.int64)
        return np.cumsum(rows) - rows


def join_shards(shards: Sequence[ShardInfo], **more: Any) -> ShardSet:
    """Check that shards belong together and hold at least one row."""
    if not shards:
        raise EmptyCorpusError("shard source has no shards / no rows")
    first = shards[0]
    for shard in shards[1:]:
        if shard.width != first.width:
            raise WidthMismatchError(
                f"shard has width p={shard.width}, expected p={first.width}",
                expected=first.width,
                found=shard.width,
                path=shard.name,
            )
        if shard.dtype != first.dtype:
            raise CorruptLayoutError(f"shard holds {shard.dtype}, expected {first.dtype}", path=shard.name)
    found = ShardSet(tuple(shards), **more)
    if found.total_rows == 0:
        raise EmptyCorpusError("shard source has no shards / no rows")
    if found.total_rows > layout.MAX_TOTAL_ROWS:
        raise LimitExceededError(f"{found.total_rows} rows cannot be numbered")
    return found


def open_paths(paths: Sequence[Path_]) -> ShardSet:
    """The shards of these files; the order given is the order of the rows."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise TypeError("give a list of shard paths; open_dir takes a folder")
    return join_shards([open_shard_info(_absolute(path)) for path in paths])


def _absolute(path: Path_) -> str:
    """Files are opened when their turn comes: by then the program may work in another folder."""
    return os.path.abspath(os.fsdecode(path))


def open_folder(folder: Path_) -> ShardSet:
    """The shards of a folder: every `.shard` file by name, checked against corpus.json where there is one."""
    folder = _absolute(folder)
    _require_folder(folder)
    if is_bf16_directory(folder):
        return open_bf16_folder(folder)
    record, names = load_corpus(folder), sort_shard_names(_listed(folder))
    if record is None:
        return replace(open_paths([os.path.join(folder, name) for name in names]), folder=os.fspath(folder))
    _check_names(record, names, os.fspath(folder))
    infos = [open_shard_info(Path(folder) / shard.name) for shard in record.shards]
    return join_recorded(record, infos, os.fspath(folder))


def join_recorded(record: CorpusRecord, infos: Sequence[ShardInfo], folder: str | None = None) -> ShardSet:
    """Shards that corpus.json lists, checked against it, with its checksums."""
    _check_record(record, infos)
    return join_shards(
        infos,
        run_crcs=tuple(shard.run_crcs for shard in record.shards),
        run_rows=record.run_rows,
        record=record,
        folder=folder,
    )


def open_bf16_folder(folder: Path_) -> ShardSet:
    """The files of a bf16 directory as shards without a header."""
    return join_shards(bf16_shards(read_directory(folder)), folder=os.fspath(folder))


def bf16_shards(directory: Bf16Directory) -> list[ShardInfo]:
    """The files of a bf16 directory, wherever they are, as shards without a header."""
    bf16 = dtype_named("bf16")
    return [
        ShardInfo(
            file.path,
            file.n_rows,
            directory.width,
            bf16,
            file.n_rows * directory.width * bf16.itemsize,
            data_offset=0,
        )
        for file in directory.files
    ]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except PermissionError:
        raise PermissionError_("this folder may not be read", path=folder) from None


def _require_folder(folder: Path_) -> None:
    if os.path.isdir(folder):
        return
    if not os.path.exists(folder):
        raise BlobNotFoundError("no such folder", path=folder)
    raise StoreError("not a folder", path=folder, hint="Open a list of shard files with `open`.")


def _check_names(record: CorpusRecord, names: Sequence[str], folder: str) -> None:
    """Raise for shards that corpus.json does not list, unless a harvest is still going on."""
    listed = {shard.name for shard in record.shards}
    extra = [name for name in names if name not in listed]
    if extra and record.is_complete:
        raise CorruptLayoutError(
            f"corpus.json does not list {extra[0]}",
            path=folder,
            hint="Move the shard away, or make corpus.json again with `warp corpus convert`.",
        )


def _check_record(record: CorpusRecord, infos: Sequence[ShardInfo]) -> None:
    if len(record.shards) != len(infos):
        raise CorruptLayoutError(f"corpus.json lists {len(record.shards)} shards, {len(infos)} were given")
    for shard, info in zip(record.shards, infos, strict=True):
        found = (info.n_rows, info.width, info.dtype.name, info.file_bytes)
        if found != (shard.n_rows, record.width, record.dtype, shard.file_bytes):
            raise CorruptLayoutError("the shard is not the one corpus.json lists", path=info.name)
