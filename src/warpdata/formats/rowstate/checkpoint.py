"""The checkpoint: which bytes of which log are committed, and where every row is in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import SealedHeader
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.errors import BadMagicError, ChecksumError, CorruptLayoutError
from warpdata.formats.rowstate import layout
from warpdata.formats.rowstate.log import ENTRY, Array

_HEADER = SealedHeader(layout.CheckpointHeader, layout.CHECKPOINT_HEADER, layout.CHECKPOINT_MAGIC)


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """The contents of a checkpoint file."""

    model: bytes
    log_number: int
    log_bytes: int
    row_ids: Array
    entries: Array


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, atomically."""
    body = bytes(byte_view(checkpoint.row_ids)) + checkpoint.entries.tobytes()
    header = _HEADER.pack(
        checkpoint.model, checkpoint.log_number, checkpoint.log_bytes, len(checkpoint.row_ids), crc32c(body)
    )
    with commit_file(path) as out:
        out.write(header)
        out.write(body)


def load_checkpoint(path: Path, model: bytes) -> Checkpoint:
    """Read a checkpoint and check every byte of it."""
    with FileRangeReader(path) as reader:
        head = reader.read(0, layout.CHECKPOINT_HEADER.size)
        header = _HEADER.unpack(head, path)
        if header.model != model:
            raise BadMagicError("not the checkpoint of this model", path=path)
        ids_end = layout.CHECKPOINT_HEADER.size + 8 * header.n_rows
        if reader.size != ids_end + ENTRY.itemsize * header.n_rows:
            raise CorruptLayoutError("the checkpoint is not as long as its rows need", path=path)
        body = reader.read(layout.CHECKPOINT_HEADER.size, reader.size)
    if crc32c(body) != header.body_crc32c:
        raise ChecksumError("the checkpoint was changed", path=path)
    ids = np.frombuffer(body[: 8 * header.n_rows], "<u8")
    entries = np.frombuffer(body[8 * header.n_rows :], ENTRY)
    return Checkpoint(model, header.log_number, header.log_bytes, ids, entries)
