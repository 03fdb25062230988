"""The shards of a corpus in their order: a list of files, a folder, corpus.json or a bf16 directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import dtype_named
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
from warpdata.formats.gamsae.corpus import CorpusRecord, load_corpus, sort_shard_names
from warpdata.formats.gamsae.shard import ShardInfo, open_shard_info

Path_ = str | os.PathLike[str]


class ShardSet:
    """Shards of one width and type, their rows numbered through in the order given."""

    def __init__(
        self, shards: tuple[ShardInfo, ...], record: CorpusRecord | None = None, folder: str | None = None
    ) -> None:
        self.shards = shards
        self.record, self.folder = record, folder
        self.run_crcs = None if record is None else tuple(shard.run_crcs for shard in record.shards)
        """CRC32C per run of rows of each shard, if corpus.json has them."""
        self.run_rows = 0 if record is None else record.run_rows
        self.width, self.dtype, self.row_bytes = shards[0].width, shards[0].dtype, shards[0].row_bytes
        """Columns, stored element type and stored bytes of a row."""
        self.shard_rows = tuple(shard.n_rows for shard in shards)
        self.total_rows = sum(self.shard_rows)
        self.payload_bytes = self.total_rows * self.row_bytes

    def first_rows(self) -> npt.NDArray[np.int64]:
        """The global id of each shard's first row."""
        rows = np.array(self.shard_rows, np.int64)
        return np.cumsum(rows) - rows


def join_shards(
    shards: Sequence[ShardInfo], record: CorpusRecord | None = None, folder: str | None = None
) -> ShardSet:
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
    joined = ShardSet(tuple(shards), record, folder)
    if joined.total_rows == 0:
        raise EmptyCorpusError("shard source has no shards / no rows")
    if joined.total_rows > layout.MAX_TOTAL_ROWS:
        raise LimitExceededError(f"{joined.total_rows} rows cannot be numbered")
    return joined


def open_paths(paths: Sequence[Path_]) -> ShardSet:
    """The shards of these files; the order given is the order of the rows."""
    if isinstance(paths, str | bytes | os.PathLike):
        raise TypeError("give a list of shard paths; open_dir takes a folder")
    return join_shards([open_shard_info(_absolute(path)) for path in paths])


def _absolute(path: Path_) -> str:
    """Files are opened later, when the program may be in another folder."""
    return os.path.abspath(os.fsdecode(path))


def open_folder(folder: Path_) -> ShardSet:
    """The shards of a folder: every `.shard` file by name, checked against corpus.json if there is one."""
    folder = _absolute(folder)
    if not os.path.exists(folder):
        raise BlobNotFoundError("no such folder", path=folder)
    if not os.path.isdir(folder):
        raise StoreError("not a folder", path=folder, hint="Open a list of shard files with `open`.")
    if is_bf16_directory(folder):
        return join_shards(bf16_shards(read_directory(folder)), folder=folder)
    try:
        record, names = load_corpus(folder), sort_shard_names(os.listdir(folder))
    except PermissionError:
        raise PermissionError_("this folder may not be read", path=folder) from None
    if record is None:
        return join_shards([open_shard_info(os.path.join(folder, name)) for name in names], folder=folder)
    listed = [shard.name for shard in record.shards]
    extra = [name for name in names if name not in listed]
    if extra and record.is_complete:  # while a harvest is going on there may be one more
        raise CorruptLayoutError(
            f"corpus.json does not list {extra[0]}",
            path=folder,
            hint="Move the shard away, or make corpus.json again with `warp corpus convert`.",
        )
    infos = [open_shard_info(Path(folder) / name) for name in listed]
    return join_recorded(record, infos, folder)


def join_recorded(record: CorpusRecord, infos: Sequence[ShardInfo], folder: str | None = None) -> ShardSet:
    """Shards that corpus.json lists, checked against it, with its checksums."""
    if len(record.shards) != len(infos):
        raise CorruptLayoutError(f"corpus.json lists {len(record.shards)} shards, {len(infos)} were given")
    for shard, info in zip(record.shards, infos, strict=True):
        actual = (info.n_rows, info.width, info.dtype.name, info.file_bytes)
        if actual != (shard.n_rows, record.width, record.dtype, shard.file_bytes):
            raise CorruptLayoutError("the shard is not the one corpus.json lists", path=info.name)
    return join_shards(infos, record, folder)


def bf16_shards(directory: Bf16Directory) -> list[ShardInfo]:
    """The files of a bf16 directory, local or not, as shards without a header."""
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
