"""The bytes of the lock file beside a store that is being written."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from warpdata.errors import CorruptLayoutError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.container.layout import WriterLockRecord


@dataclass(frozen=True, slots=True)
class LockOwner:
    """Who holds a lock, since when."""

    pid: int
    hostname: str
    timestamp_ns: int
    writer_id: bytes


def pack_lock(owner: LockOwner) -> bytes:
    """The 104 bytes of a lock file."""
    host = owner.hostname.encode()[:64]
    record = WriterLockRecord(
        layout.WRITER_LOCK_MAGIC, owner.pid, host, owner.timestamp_ns, owner.writer_id,
        layout.WRITER_LOCK_VERSION, 0,
    )  # fmt: skip
    packed = layout.WRITER_LOCK.pack(*record)
    return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")


def unpack_lock(data: bytes, where: str = "") -> LockOwner:
    """Who holds the lock; torn or foreign bytes are a CorruptLayoutError."""
    if len(data) != layout.WRITER_LOCK.size:
        raise CorruptLayoutError("a lock file has 104 bytes", path=where or None)
    record = WriterLockRecord._make(layout.WRITER_LOCK.unpack(data))
    if record.magic != layout.WRITER_LOCK_MAGIC or record.checksum != zlib.crc32(data[:-4]):
        raise CorruptLayoutError("a lock file is damaged", path=where or None)
    host = record.hostname.rstrip(b"\0").decode("utf-8", "replace")
    return LockOwner(record.pid, host, record.timestamp_ns, record.writer_id)
