"""The writing side of an open store: segments and commits, each with the root at the end of the file."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.io.commit import commit_file, map_os_errors
from warpdata.bytekit.process.forks import OwnProcess
from warpdata.errors import PermissionError_, StoreError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.journal import DeleteRange, deletions, encode_journal
from warpdata.formats.rvf.layout import FILE_IDENTITY, Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.manifest import Root, Tlv, encode_deletions
from warpdata.formats.rvf.meta import MetaPayload, encode_meta
from warpdata.formats.rvf.reader import Snapshot
from warpdata.formats.rvf.segment import SegmentOptions
from warpdata.formats.rvf.vec import VecBlock, decode_vec, encode_vec, pack_rows
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender
from warpdata.search.file import merging
from warpdata.search.file.profile import Profile
from warpdata.search.file.rewrite import MAX_BLOCK_ROWS, dimension_record, root_flags

if TYPE_CHECKING:
    from warpdata.search.file.content import Content

Ids = NDArray[np.uint64]

_SEGMENT_ROWS_BYTES = 128 << 20
_MOST_JOURNALS = 16
"""So many journals of deletions are listed before they become one."""
_MOST_BITMAP_BYTES = 4096
"""A longer bitmap would be repeated by every commit; its ids go into a journal instead."""
_ANY_WRITE_BIT = 0o222
_REPLACED_TAGS = {
    Tag.SEGMENT_DIR, Tag.OVERLAY_CHAIN, Tag.PROFILE_CONFIG, Tag.DELETION_BITMAP, Tag.DIMENSION_CATALOG,
    Tag.MANIFEST_SIGNATURE, Tag.KEY_DIRECTORY, Tag.ACCESS_SKETCH_REF,
}  # fmt: skip


@dataclass(slots=True)
class WriterState:
    """What the writer must know to commit: counted once when the store is opened, then kept up."""

    live: int
    next_id: int
    deleted: Ids

    def after_add(self, keys: Ids, known: int) -> WriterState:
        """The state once rows with these ids are added, so many of which were there."""
        deleted = self.deleted[~np.isin(self.deleted, keys)] if len(self.deleted) else self.deleted
        return WriterState(self.live + len(keys) - known, max(self.next_id, int(keys.max()) + 1), deleted)

    def after_delete(self, keys: Ids) -> WriterState:
        """The state once these ids are deleted."""
        return WriterState(self.live - len(keys), self.next_id, np.union1d(self.deleted, keys))


class StoreAppender:
    """Commits changes to the file of one store."""

    def __init__(self, path: str, content: Content, state: WriterState, *, durable: bool) -> None:
        self._path = path
        self._durable = durable
        self._own = OwnProcess()
        self.state = state
        self._profile = content.profile
        self._fd = _open_for_writing(path)
        self.snapshot = content.snapshot
        self._drop_torn_tail()
        self._appender = SegmentAppender(self._fd, path, content.snapshot, durable=durable)

    def _drop_torn_tail(self) -> None:
        """Cut off what a crash left: half a manifest may not lie between whole ones."""
        if os.fstat(self._fd).st_size > self.snapshot.end:
            with map_os_errors(self._path):
                os.ftruncate(self._fd, self.snapshot.end)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, and no process it was forked from."""
        return bool(self._own)

    def is_at(self, path: str) -> bool:
        """Whether a path still leads to the file that is written here."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def commit(self, content: Content, new: Sequence[NewSegment], state: WriterState) -> Snapshot:
        """Write segments and a manifest that lists all that counts; on any failure the store is as before.

        `content` is what was committed before. Every manifest ends with the root, so each commit must stay
        short: small row segments are merged, deletions gathered, superseded segments left out.
        """
        try:
            old, new = self._merged(content, new, state)
            listed = _counting([*old, *(self._appender.append(each) for each in new)])
            listed, bitmap = self._with_deletions(listed, state)
            root = self._root(state)
            records = self._records(root, state, bitmap, listed)
            self.snapshot = self._appender.commit_checkpoint(listed, root, records)
        except BaseException:
            self._appender.rollback()
            raise
        self.state = state
        return self.snapshot

    def _merged(
        self, content: Content, new: Sequence[NewSegment], state: WriterState
    ) -> tuple[Sequence[Row], Sequence[NewSegment]]:
        """What stays listed and what is to be written, once a long run of small row segments becomes one.

        New rows that belong to the run are written as part of it only.
        """
        kept = {*self._profile.row_segments, *self._profile.code_segments}
        old = self.snapshot.segments
        tail = [e for e in old if e.seg_type == SegmentType.VEC and e.segment_id not in kept]
        fresh = [each for each in new if each.seg_type == SegmentType.VEC]
        sizes = [entry.payload_length for entry in tail]
        count = merging.count_to_merge([*sizes, *(byte_view(each.payload).nbytes for each in fresh)]) - len(
            fresh
        )
        if count <= 0:
            fresh, count = [], merging.count_to_merge(sizes)
        if not count:
            return old, new
        run = tail[-count:]
        # The newest row of an id is the last one.
        blocks = [block for entry in run for block in content.decode_blocks(entry)]
        blocks += [block for each in fresh for block in decode_vec(each.payload, where=self._path)]
        merged = merging.merged_rows(blocks, state.deleted)
        rest = [each for each in new if each not in fresh]
        gone = {entry.segment_id for entry in run}
        return [e for e in old if e.segment_id not in gone], rest if merged is None else [merged, *rest]

    def _with_deletions(self, listed: list[Row], state: WriterState) -> tuple[list[Row], bytes | None]:
        """The listing and the bitmap; together their deletions are exactly those of the state."""
        journals = [entry for entry in listed if _is_deletions(entry)]
        came_back = len(state.deleted) < len(self.state.deleted)
        if self.snapshot.is_checkpoint and not came_back and len(journals) <= _MOST_JOURNALS:
            return listed, self.snapshot.record(Tag.DELETION_BITMAP)
        listed = [entry for entry in listed if not _is_deletions(entry)]
        if not len(state.deleted):
            return listed, None
        if int(state.deleted[-1]) <= layout.MAX_BITMAP_ID:
            bitmap = encode_deletions(state.deleted)
            if len(bitmap) <= _MOST_BITMAP_BYTES:
                return listed, bitmap
        listed.append(self._appender.append(delete_segment(state.deleted, self.snapshot.next_epoch)))
        return listed, None

    def _records(self, root: Root, state: WriterState, bitmap: bytes | None, listed: list[Row]) -> list[Tlv]:
        profile = replace(self._profile, next_id=state.next_id)
        out: list[Tlv] = [(int(Tag.PROFILE_CONFIG), profile.to_json()), dimension_record(root, state.live)]
        if bitmap is not None:
            out.append((int(Tag.DELETION_BITMAP), bitmap))
        sketches = [entry for entry in listed if entry.seg_type == SegmentType.SKETCH]
        if sketches:
            place = layout.SKETCH_REF.pack(sketches[-1].segment_id, sketches[-1].file_offset)
            out.append((int(Tag.ACCESS_SKETCH_REF), place))
        return [*out, *(each for each in self.snapshot.records if each[0] not in _REPLACED_TAGS)]

    def _root(self, state: WriterState) -> Root:
        old = self.snapshot.root or Root()
        return replace(
            old, total_vector_count=state.live, epoch=self.snapshot.next_epoch, modified_ns=time.time_ns(),
            flags=old.flags & ~layout.ROOT_SIGNED, signature=None,
        )  # fmt: skip


def _is_deletions(entry: Row) -> bool:
    return entry.seg_type == SegmentType.JOURNAL and entry.tier == layout.TIER_HOT  # type: ignore[no-any-return]


def _counting(entries: list[Row]) -> list[Row]:
    """Without older access counters, and without metadata that a snapshot behind it stands for."""
    sketches = [n for n, entry in enumerate(entries) if entry.seg_type == SegmentType.SKETCH]
    wholes = [
        n
        for n, entry in enumerate(entries)
        if entry.seg_type == SegmentType.META and entry.flags & Flag.SNAPSHOT
    ]
    last_sketch, last_whole = max(sketches, default=0), max(wholes, default=0)
    return [
        entry
        for n, entry in enumerate(entries)
        if not (entry.seg_type == SegmentType.SKETCH and n < last_sketch)
        and not (_is_metadata(entry) and n < last_whole)
    ]


def _is_metadata(entry: Row) -> bool:
    updates = entry.seg_type == SegmentType.JOURNAL and not _is_deletions(entry)
    return updates or entry.seg_type == SegmentType.META


def meta_segment(change: MetaPayload) -> NewSegment:
    """A META segment; a flag marks one that stands for everything before it."""
    flags = Flag.SNAPSHOT if change.is_snapshot else 0
    return NewSegment(SegmentType.META, encode_meta(change), SegmentOptions(flags=flags))


def _open_for_writing(path: str) -> int:
    refusal = PermissionError_(
        "this store may not be written", path=path, hint="Open it with mode='r', or copy it."
    )
    try:
        # A superuser may write everything; a file marked read-only stays as it is all the same.
        if not os.stat(path).st_mode & _ANY_WRITE_BIT:
            raise refusal
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except PermissionError:
        raise refusal from None
    except OSError as error:
        raise StoreError(f"cannot open for writing ({error.strerror})", path=path) from None


def create_file(path: str, dim: int, profile: Profile, *, durable: bool, overwrite: bool) -> None:
    """A new, empty store: one checkpoint."""
    now_ns = time.time_ns()
    root = Root(
        dim, layout.DTYPE_IDS[profile.dtype], 0, 1, now_ns, now_ns, flags=root_flags(profile.metric),
        identity=FILE_IDENTITY(secrets.token_bytes(16), bytes(16), bytes(32), 0),
    )  # fmt: skip
    records = [(int(Tag.PROFILE_CONFIG), profile.to_json()), dimension_record(root, 0)]
    with commit_file(path, durable=durable, replace=overwrite) as out:
        SegmentAppender(out.fd, path, None, durable=False).commit_checkpoint([], root, records)


def row_segments(
    ids: Ids, matrix: NDArray[np.float32], dtype: str, timestamp_ns: int | None = None
) -> list[NewSegment]:
    """Rows as VEC segments of columnar blocks, in ascending order of id, written now or at the time that is given."""
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        order = np.argsort(ids)
        ids, matrix = ids[order], matrix[order]
    options = SegmentOptions(timestamp_ns=time.time_ns() if timestamp_ns is None else timestamp_ns)
    step = max(1, _SEGMENT_ROWS_BYTES // (matrix.shape[1] * 4))
    out = []
    for start in range(0, len(ids), step):
        end = min(start + step, len(ids))
        blocks = [
            VecBlock(pack_rows(matrix[a:b], dtype), ids[a:b], matrix.shape[1], dtype)
            for a, b in ((a, min(a + MAX_BLOCK_ROWS, end)) for a in range(start, end, MAX_BLOCK_ROWS))
        ]
        out.append(NewSegment(SegmentType.VEC, encode_vec(blocks), options, len(blocks)))
    return out


def delete_segment(ids: Ids, epoch: int) -> NewSegment:
    """A JOURNAL segment of deletions; its tier marks that nothing else is in it."""
    entries: list[DeleteRange] = deletions(ids)
    payload = encode_journal(entries, epoch)
    return NewSegment(SegmentType.JOURNAL, payload, tier=layout.TIER_HOT)
