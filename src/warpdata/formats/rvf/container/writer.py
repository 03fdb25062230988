"""Append segments to a file and commit them with a manifest: segment, sync, manifest, sync."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import align_up, byte_view, padding_to
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.process import system
from warpdata.formats.rvf.container import layout, manifest, segment
from warpdata.formats.rvf.container.layout import (
    DirectoryEntry,
    Flag,
    OverlayChain,
    SegmentHeader,
    SegmentType,
    Tag,
)
from warpdata.formats.rvf.container.manifest import Root, Tlv
from warpdata.formats.rvf.container.reader import directory_entry
from warpdata.formats.rvf.container.segment import SegmentOptions, SignatureFooter
from warpdata.formats.rvf.container.snapshot import Snapshot

if TYPE_CHECKING:
    from typing_extensions import Buffer

Signer = Callable[[SegmentHeader], SignatureFooter]
RootSigner = Callable[[Root, bytes], SignatureFooter]


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A payload to be appended."""

    seg_type: int
    payload: Buffer
    options: SegmentOptions = segment.PLAIN
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

    def append(self, new: NewSegment, signer: Signer | None = None) -> DirectoryEntry:
        """Write one segment, signed if a signer is given; it is committed by the next manifest."""
        options = new.options
        if signer is not None:
            options = replace(options, checksum="shake256", flags=options.flags | Flag.SIGNED)
        header, stored = segment.build(new.seg_type, self.next_id, new.payload, options)
        footer = b"" if signer is None else segment.pack_footer(signer(header))
        size = header.payload_length + len(footer)
        header = header._replace(alignment_pad=align_up(size, layout.ALIGNMENT) - size)
        offset = self._write(segment.pack_header(header), stored, footer)
        self.next_id += 1
        return directory_entry(header, offset, new.block_count, new.tier)

    def copy(self, data: Buffer, entry: DirectoryEntry) -> DirectoryEntry:
        """Write a segment of another file byte for byte; only its place changes."""
        offset = self._write(data)
        self.next_id = max(self.next_id, entry.segment_id + 1)
        return entry._replace(file_offset=offset)

    def commit_checkpoint(
        self,
        entries: Sequence[DirectoryEntry],
        root: Root,
        records: Sequence[Tlv],
        sign_root: RootSigner | None = None,
    ) -> Snapshot:
        """Commit with a manifest that lists everything and ends with the root, the last bytes of the file."""
        last = self.last
        link = (
            (0, 0, bytes(16))
            if last is None
            else (last.manifest_offset, last.manifest_id, last.manifest_hash)
        )
        chain = OverlayChain(root.epoch, 0, *link)
        listed = [manifest.pack_chain(chain), manifest.pack_directory(entries), *records]
        packed = manifest.pack_tlvs(listed)
        root = replace(
            root, l1_manifest_offset=self.position + layout.HEADER_BYTES, l1_manifest_length=len(packed)
        )
        if sign_root is not None:
            root, packed = _signed_root(root, packed, sign_root)
        payload = packed + padding_to(len(packed), layout.ALIGNMENT) + manifest.pack_root(root)
        done = self._commit(payload, Flag.SNAPSHOT | Flag.CHECKPOINT)
        self.last = replace(
            done, epoch=root.epoch, segments=tuple(entries), root=root, records=tuple(listed),
            checkpointed=len(entries), checkpoint_end=done.end,
        )  # fmt: skip
        return self.last

    def rollback(self) -> None:
        """Take back what was written since the last commit, as far as the disk allows."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._committed_size)
        self.position = align_up(self._committed_size, layout.ALIGNMENT)

    def _commit(self, payload: bytes, flags: int) -> Snapshot:
        self._sync(system.sync_data)
        header, stored = segment.build(
            SegmentType.MANIFEST, self.next_id, payload, SegmentOptions(flags=flags)
        )
        offset = self._write(segment.pack_header(header), stored)
        self._sync(system.sync)
        self.next_id += 1
        self._committed_size = self.position
        return Snapshot("wire", 0, (), offset, header.segment_id, header.content_hash, self.position)

    def _write(self, *pieces: Buffer) -> int:
        """Write pieces one after the other, padded to the next boundary, in one system call if it can be."""
        views = [byte_view(piece) for piece in pieces]
        size = sum(view.nbytes for view in views)
        views.append(byte_view(padding_to(size, layout.ALIGNMENT)))
        start = self.position
        with map_os_errors(self._path):
            self.position += system.write_pieces(self._fd, views, start)
        return start

    def _sync(self, sync: Callable[[int], None]) -> None:
        if self._durable:
            with map_os_errors(self._path):
                sync(self._fd)


def _signed_root(root: Root, packed: bytes, sign_root: RootSigner) -> tuple[Root, bytes]:
    """Sign the root in place; a signature too long for it becomes a record of its own."""
    flagged = replace(root, flags=root.flags | layout.ROOT_SIGNED)
    signature = sign_root(flagged, packed)
    if len(signature.signature) <= layout.ROOT_SIGNATURE_MAX_BYTES:
        return replace(flagged, signature=signature), packed
    extra = manifest.pack_tlvs([(Tag.MANIFEST_SIGNATURE, segment.pack_footer(signature))])
    return replace(flagged, l1_manifest_length=len(packed) + len(extra)), packed + extra
