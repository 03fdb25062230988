"""The row state log and its checkpoint: frames packed, listed and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import SealedHeader, records
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BadMagicError, ChecksumError, CorruptLayoutError
from warpdata.formats.rowstate import layout

Array = npt.NDArray[Any]

_FRAME = SealedHeader(layout.FrameHeader, layout.FRAME_HEADER, layout.FRAME_MAGIC)
_CHECKPOINT = SealedHeader(layout.CheckpointHeader, layout.CHECKPOINT_HEADER, layout.CHECKPOINT_MAGIC)

ENTRY = np.dtype(
    [
        ("latents_at", "<u8"),
        ("active_at", "<u8"),
        ("n_latents", "<u4"),
        ("n_active", "<u4"),
        ("iterations", "<u4"),
        ("is_present", "<u4"),
    ]
)
"""One row: offsets in the log, counts, and the number that needs no lookup."""


@dataclass(frozen=True, slots=True)
class FrameBounds:
    """Bounds and checksum of a frame's body in the log."""

    start: int
    end: int
    crc32c: int


@dataclass(frozen=True, slots=True, eq=False)
class FrameBody:
    """The arrays of one frame: states of rows, flat, one after the other."""

    row_ids: Array
    n_latents: Array
    n_active: Array
    iterations: Array
    latents: Array
    active: Array

    def entries(self, body_offset: int) -> Array:
        """The entries of the rows of this frame if its body begins at `body_offset`."""
        count = len(self.row_ids)
        counts_bytes = align_up(4 * count, layout.ALIGN)
        latents = body_offset + 8 * count + 3 * counts_bytes
        active = latents + 8 * len(self.latents)
        entries = np.zeros(count, ENTRY)
        entries["latents_at"] = latents + 8 * (np.cumsum(self.n_latents, dtype=np.int64) - self.n_latents)
        entries["active_at"] = active + 4 * (np.cumsum(self.n_active, dtype=np.int64) - self.n_active)
        entries["n_latents"], entries["n_active"] = self.n_latents, self.n_active
        entries["iterations"], entries["is_present"] = self.iterations, 1
        return entries


def pack_frame(body: FrameBody) -> bytes:
    """A whole frame."""
    arrays = [body.row_ids, body.n_latents, body.n_active, body.iterations, body.latents, body.active]
    packed = b"".join(bytes(byte_view(array)) + padding_to(array.nbytes, layout.ALIGN) for array in arrays)
    return _FRAME.pack(len(body.row_ids), len(body.latents), len(body.active), crc32c(packed)) + packed


def walk_frames(reader: RangeReader, model: bytes) -> Iterator[FrameBounds]:
    """The frames of a log; every header is checked, no body is read."""
    head = layout.LogHeader._make(layout.LOG_HEADER.unpack(reader.read(0, layout.LOG_HEADER.size)))
    if head.magic != layout.LOG_MAGIC or head.model != model:
        raise BadMagicError("not the row state log of this model", path=reader.name)

    def body_bytes(frame: layout.FrameHeader) -> int:
        counts = 3 * align_up(4 * frame.n_rows, layout.ALIGN)
        return 8 * frame.n_rows + counts + 8 * frame.n_latents + align_up(4 * frame.n_active, layout.ALIGN)

    for frame, start, end in records(reader, layout.LOG_HEADER.size, _FRAME, body_bytes):
        yield FrameBounds(start, end, frame.body_crc32c)


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
    header = _CHECKPOINT.pack(
        checkpoint.model, checkpoint.log_number, checkpoint.log_bytes, len(checkpoint.row_ids), crc32c(body)
    )
    with commit_file(path) as out:
        out.write(header)
        out.write(body)


def load_checkpoint(path: Path, model: bytes) -> Checkpoint:
    """Read a checkpoint and check every byte of it."""
    with FileRangeReader(path) as reader:
        head = reader.read(0, layout.CHECKPOINT_HEADER.size)
        header = _CHECKPOINT.unpack(head, path)
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
