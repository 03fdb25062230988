"""Frames of the row state log: pack one, walk over all, check one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import SealedHeader, records
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import BadMagicError, ChecksumError
from warpdata.formats.rowstate import layout

Array = npt.NDArray[Any]

_FRAME = SealedHeader(layout.FrameHeader, layout.FRAME_HEADER, layout.FRAME_MAGIC)

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
"""Where one row is: offsets in the log, counts, and the number that needs no lookup."""


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

    def arrays(self) -> list[Array]:
        """In the order they are stored."""
        return [self.row_ids, self.n_latents, self.n_active, self.iterations, self.latents, self.active]

    def entries(self, body_offset: int) -> Array:
        """Where each row of this frame is once its body begins at `body_offset`."""
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


def pack_log_header(model: bytes) -> bytes:
    """The first bytes of a log."""
    return layout.LOG_HEADER.pack(layout.LOG_MAGIC, model)


def pack_frame(body: FrameBody) -> bytes:
    """A whole frame."""
    parts = [bytes(byte_view(array)) + padding_to(array.nbytes, layout.ALIGN) for array in body.arrays()]
    packed = b"".join(parts)
    return _FRAME.pack(len(body.row_ids), len(body.latents), len(body.active), crc32c(packed)) + packed


def walk_frames(reader: RangeReader, model: bytes) -> Iterator[FrameBounds]:
    """The frames of a log; every header is checked, no body is read."""
    head = layout.LogHeader._make(layout.LOG_HEADER.unpack(reader.read(0, layout.LOG_HEADER.size)))
    if head.magic != layout.LOG_MAGIC or head.model != model:
        raise BadMagicError("not the row state log of this model", path=reader.name)
    for frame, start, end in records(reader, layout.LOG_HEADER.size, _FRAME, _body_bytes):
        yield FrameBounds(start, end, frame.body_crc32c)


def _body_bytes(frame: layout.FrameHeader) -> int:
    """The size of a frame's body."""
    counts = 3 * align_up(4 * frame.n_rows, layout.ALIGN)
    return 8 * frame.n_rows + counts + 8 * frame.n_latents + align_up(4 * frame.n_active, layout.ALIGN)


def check_frame(data: memoryview, bounds: FrameBounds, path: str | os.PathLike[str]) -> None:
    """Compare the body of a frame with its checksum."""
    if crc32c(data) != bounds.crc32c:
        raise ChecksumError(f"the row states at {bounds.start} were changed", path=path)
