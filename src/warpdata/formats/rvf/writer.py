"""Append segments to a file and commit them with a manifest: segment, sync, manifest, sync. The writer's lock file."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.io.commit import map_os_errors, write_at
from warpdata.bytekit.process import system
from warpdata.bytekit.process.forks import process_id
from warpdata.bytekit.process.locks import FileLock
from warpdata.errors import ConflictError, CorruptLayoutError, StoreError
from warpdata.formats.rvf import container, layout
from warpdata.formats.rvf.container import Root, SegmentOptions, SignatureFooter, Tlv
from warpdata.formats.rvf.layout import Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.meta import encode_log
from warpdata.formats.rvf.reader import Snapshot, commit_logged, directory_entry

if TYPE_CHECKING:
    from typing_extensions import Buffer

Signer = Callable[[Row], SignatureFooter]
RootSigner = Callable[[Root, bytes], SignatureFooter]


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A payload to be appended."""

    seg_type: int
    payload: Buffer
    options: SegmentOptions = container.PLAIN
    block_count: int = 0
    tier: int = layout.TIER_WARM


class SegmentAppender:
    """Writes segments behind the committed end of an open file; nothing counts before a commit."""

    def __init__(self, fd: int, path: str, snapshot: Snapshot | None, *, durable: bool = True) -> None:
        self._fd = fd
        self._path = path
        self._durable = durable
        self._committed_size = os.fstat(fd).st_size
        self.position = align_up(self._committed_size, layout.ALIGNMENT)
        self.next_id = 1 if snapshot is None else snapshot.next_segment_id
        self.last = snapshot

    def append(self, new: NewSegment, signer: Signer | None = None) -> Row:
        """Write one segment, signed if a signer is given; it is committed by the next manifest."""
        options = new.options
        if signer is not None:
            options = replace(options, checksum="shake256", flags=options.flags | Flag.SIGNED)
        header, stored = container.build(new.seg_type, self.next_id, new.payload, options)
        footer = b"" if signer is None else container.pack_footer(signer(header))
        size = header.payload_length + len(footer)
        header = header._replace(alignment_pad=align_up(size, layout.ALIGNMENT) - size)
        offset = self._write(container.pack_header(header), stored, footer)
        self.next_id += 1
        return directory_entry(header, offset, new.block_count, new.tier)

    def copy(self, data: Buffer, entry: Row) -> Row:
        """Write a segment of another file byte for byte; only its place changes."""
        offset = self._write(data)
        self.next_id = max(self.next_id, entry.segment_id + 1)
        return entry._replace(file_offset=offset)

    def commit_logged(self, pieces: Sequence[NewSegment], live_count: int) -> Snapshot | None:
        """Commit a small change with one LOG segment behind the newest root; None if it needs a manifest."""
        last = self.last
        if last is None or last.newest_records or last.log_commits >= layout.LOG_COMMITS:
            return None
        size = sum(byte_view(piece.payload).nbytes for piece in pieces)
        if size > layout.LOGGED_BYTES or self.position + size > last.checkpoint_end + layout.LOG_BYTES:
            return None
        if not 0 <= live_count <= layout.MAX_VECTORS or any(
            piece.seg_type not in layout.LOG_TYPES for piece in pieces
        ):
            return None
        listed = []
        for piece in pieces:
            data = byte_view(piece.payload)
            about = (piece.seg_type, piece.tier, 0, piece.block_count, data.nbytes)
            listed.append((layout.LOG_PIECE(*about), data))
        payload = encode_log(last.next_epoch, live_count, last.hash, listed)
        # Readers look for the last manifest by these: data must not be taken for one.
        if layout.SEGMENT_MAGIC in payload or layout.ROOT_MAGIC in payload:
            return None
        options = SegmentOptions(timestamp_ns=time.time_ns())
        header, stored = container.build(SegmentType.LOG, self.next_id, payload, options)
        offset = self._write(container.pack_header(header), stored)
        self._sync(system.sync_data)
        self.next_id += 1 + len(pieces)
        self._committed_size = self.position
        self.last = commit_logged(last, header, offset, memoryview(payload), self._path)
        return self.last

    def commit_checkpoint(
        self, entries: Sequence[Row], root: Root, records: Sequence[Tlv], sign_root: RootSigner | None = None
    ) -> Snapshot:
        """Commit with a manifest that lists everything and ends with the root, the last bytes of the file."""
        last = self.last
        link = (0, 0, bytes(16))
        if last is not None:
            link = (last.manifest_offset, last.manifest_id, last.manifest_hash)
        chain = container.pack_chain(layout.OVERLAY_CHAIN(root.epoch, 0, *link))
        listed = [chain, container.pack_directory(entries), *records]
        packed = container.pack_tlvs(listed)
        start = self.position + layout.HEADER_BYTES
        root = replace(root, l1_manifest_offset=start, l1_manifest_length=len(packed))
        if sign_root is not None:
            root = replace(root, flags=root.flags | layout.ROOT_SIGNED)
            signature = sign_root(root, packed)
            if len(signature.signature) <= layout.ROOT_SIGNATURE_MAX_BYTES:
                root = replace(root, signature=signature)
            else:  # too long for the root: a record of its own
                extra = container.pack_tlvs([(Tag.MANIFEST_SIGNATURE, container.pack_footer(signature))])
                root = replace(root, l1_manifest_length=len(packed) + len(extra))
                packed += extra
        payload = packed + padding_to(len(packed), layout.ALIGNMENT) + container.pack_root(root)
        done = self._commit(payload, Flag.SNAPSHOT | Flag.CHECKPOINT)
        self.last = replace(
            done,
            epoch=root.epoch,
            segments=tuple(entries),
            root=root,
            records=tuple(listed),
            checkpointed=len(entries),
            checkpoint_end=done.end,
        )
        return self.last

    def rollback(self) -> None:
        """Remove the bytes written since the last commit, as far as the disk allows."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._committed_size)
        self.position = align_up(self._committed_size, layout.ALIGNMENT)

    def _commit(self, payload: bytes, flags: int) -> Snapshot:
        self._sync(system.sync_data)
        options = SegmentOptions(flags=flags)
        header, stored = container.build(SegmentType.MANIFEST, self.next_id, payload, options)
        offset = self._write(container.pack_header(header), stored)
        self._sync(system.sync)
        self.next_id += 1
        self._committed_size = self.position
        return Snapshot("wire", 0, (), offset, header.segment_id, header.content_hash, self.position)

    def _write(self, *pieces: Buffer) -> int:
        """Write pieces one after the other, padded to the next boundary, in one system call if possible."""
        views = [byte_view(piece) for piece in pieces]
        views.append(byte_view(padding_to(sum(view.nbytes for view in views), layout.ALIGNMENT)))
        start = self.position
        with map_os_errors(self._path):
            self.position += system.write_pieces(self._fd, views, start)
        return start

    def _sync(self, sync: Callable[[int], None]) -> None:
        if self._durable:
            with map_os_errors(self._path):
                sync(self._fd)


def pack_lock(pid: int, hostname: str, timestamp_ns: int, writer_id: bytes) -> bytes:
    """The 104 bytes of the lock file beside a store that is open for writing: which process, and since when."""
    owner = (pid, hostname.encode()[:64], timestamp_ns, writer_id)
    packed = layout.WRITER_LOCK.pack(layout.WRITER_LOCK_MAGIC, *owner, layout.WRITER_LOCK_VERSION, 0)
    return packed[:-4] + zlib.crc32(packed[:-4]).to_bytes(4, "little")


def unpack_lock(data: bytes, where: str = "") -> Row:
    """The owner of a lock; torn or foreign bytes are a CorruptLayoutError."""
    if len(data) != layout.WRITER_LOCK.size:
        raise CorruptLayoutError("a lock file has 104 bytes", path=where or None)
    record = layout.WRITER_LOCK.unpack_from(data)
    if record.magic != layout.WRITER_LOCK_MAGIC or record.checksum != zlib.crc32(data[:-4]):
        raise CorruptLayoutError("a lock file is damaged", path=where or None)
    return record._replace(hostname=record.hostname.rstrip(b"\0").decode("utf-8", "replace"))


class WriterLock:
    """`<file>.lock` held by this process until `release`; a lock whose owner is dead is taken over."""

    def __init__(self, path: str) -> None:
        self.path = f"{path}.lock"
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise StoreError("the folder does not exist", path=path, hint="Create the folder first.")
        lock = FileLock.take(self.path, removes=True, mode=0o644)
        owner = None
        with contextlib.suppress(OSError, CorruptLayoutError), open(self.path, "rb") as file:
            owner = unpack_lock(file.read(layout.WRITER_LOCK.size + 1), self.path)
        age_s = 0.0 if owner is None else (time.time_ns() - owner.timestamp_ns) / 1e9
        is_foreign = owner is not None and owner.hostname != socket.gethostname()
        if lock is not None and is_foreign and age_s < layout.LOCK_STALE_FOREIGN_S:
            lock.let_go()  # the file is another host's, which the kernel here cannot see
            lock = None
        if lock is None:
            holder = "" if owner is None else f" (process {owner.pid} on {owner.hostname})"
            raise ConflictError(
                f"another writer has this store open{holder}",
                path=path,
                hint="Close the other writer, or open this store with mode='r'.",
            )
        self._lock = lock
        try:
            mine = pack_lock(process_id(), socket.gethostname(), time.time_ns(), secrets.token_bytes(16))
            with map_os_errors(self.path):
                os.ftruncate(lock.fd, 0)
                write_at(lock.fd, mine, 0)
        except BaseException:
            lock.release()
            raise

    def release(self) -> None:
        """Release the lock; a forked child holds none."""
        self._lock.release()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()
