"""The writing side of an open store: checked input, its segments and its commits, each with the root at the end."""

from __future__ import annotations

import math
import operator
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array, byte_view
from warpdata.bytekit.io.commit import commit_file, map_os_errors
from warpdata.bytekit.process.forks import OwnProcess
from warpdata.errors import LimitExceededError, PermissionError_, StoreError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.container import Root, SegmentOptions, Tlv, encode_deletions
from warpdata.formats.rvf.layout import MAX_DIM, MAX_ID, Flag, Row, SegmentType, Tag
from warpdata.formats.rvf.meta import decode_journal, deleted_mask, deletions, encode_journal
from warpdata.formats.rvf.reader import Snapshot
from warpdata.formats.rvf.vec import VecBlock, decode_vec, encode_vec, pack_rows
from warpdata.formats.rvf.writer import NewSegment, SegmentAppender
from warpdata.search.file.content import Profile
from warpdata.search.file.metadata import Metadata, meta_segment

if TYPE_CHECKING:
    from warpdata.search.file.content import Content

Floats = NDArray[np.float32]
Ids = NDArray[np.uint64]
GivenMetadata = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

_INTEGER_RANGES = {"i8": (-128, 127), "u8": (0, 255), "i4": (-8, 7), "binary": (0, 1)}
_FLOAT_MAX = {"f16": 65504.0, "bf16": 3.3895e38, "f32": float(np.finfo(np.float32).max)}


def check_dim(dim: int) -> int:
    """A dimension the format can hold, or ValueError."""
    if not isinstance(dim, int | np.integer) or isinstance(dim, bool) or not 1 <= dim <= MAX_DIM:
        raise ValueError(f"dim is between 1 and {MAX_DIM}, not {dim}")
    return int(dim)


def whole_number(value: int, name: str) -> int:
    """A whole number as Python's own: numpy's cannot be sent or stored."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {value!r}") from None


def checked_matrix(vectors: ArrayLike, dim: int, what: str = "vectors") -> Floats:
    """Vectors as a matrix of finite f32, or ValueError; one vector becomes a matrix of one row."""
    array = as_array(vectors)
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise ValueError(f"{what} are numbers, not {array.dtype}")
    if array.ndim == 1:
        array = array[None] if array.size else array.reshape(0, dim)
    if array.ndim != 2 or array.shape[1] != dim:
        raise ValueError(f"{what} have {dim} dimensions each, not shape {array.shape}")
    matrix = np.ascontiguousarray(array, np.float32) if array.dtype == np.float32 else to_f32(array)
    # The sum is finite unless a number is not, or the squares are too large: only then each one is looked at.
    if not math.isfinite(np.vdot(matrix, matrix)) and not np.isfinite(matrix).all():
        raise ValueError(f"{what} hold NaN, infinity or numbers beyond f32")
    return matrix


def to_f32(array: NDArray[Any]) -> Floats:
    """Numbers as f32; those beyond it become infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)


def check_fits(matrix: Floats, dtype: str) -> None:
    """Whether values can be stored as `dtype`: floats within range, integers exactly."""
    if not matrix.size:
        return
    if dtype in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[dtype]
        if (matrix != np.rint(matrix)).any() or matrix.min() < low or matrix.max() > high:
            raise ValueError(f"a store of {dtype} holds integers from {low} to {high}; quantise others")
    elif dtype != "f32" and np.abs(matrix).max() > _FLOAT_MAX[dtype]:
        raise ValueError(f"a value is too large for {dtype}")


def checked_ids(ids: ArrayLike, count: int | None = None) -> Ids:
    """Ids as u64, each once, below 2**63, or ValueError."""
    ids = as_array(ids) if hasattr(ids, "detach") else ids  # a tensor, with gradients perhaps
    array = np.atleast_1d(np.asarray(ids))
    if array.dtype.kind == "f" and not isinstance(ids, np.ndarray) and array.size:
        array = np.atleast_1d(np.array(ids, object))
    if array.size == 0:
        array = array.astype(np.uint64)
    if array.dtype.kind == "O" and all(isinstance(each, int) for each in array.ravel().tolist()):
        raise ValueError("ids are between 0 and 2**63 - 1")  # too large for numpy
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"ids are a list of integers, not {array.dtype} of shape {array.shape}")
    if count is not None and len(array) != count:
        raise ValueError(f"{len(array)} ids for {count} vectors")
    if array.size and (int(array.min()) < 0 or int(array.max()) > MAX_ID):
        raise ValueError("ids are between 0 and 2**63 - 1")
    return array.astype(np.uint64)


def texts_of(ids: Any) -> list[str] | None:
    """Keys as texts, given one by one or together, or None for ids that are numbers."""
    some = [ids] if isinstance(ids, str | UUID) else ids.tolist() if isinstance(ids, np.ndarray) else ids
    if not isinstance(some, Iterable) or not any(isinstance(each, str | UUID) for each in some):
        return None
    return [str(each) if isinstance(each, UUID) else each for each in some]


def named_rows(
    key: str, ids: Any, rows: Sequence[Mapping[str, Any]] | None, count: int
) -> tuple[Any, list[Mapping[str, Any]], list[str]]:
    """Ids that are numbers or None, metadata with the key in each row, and the keys."""
    filled: list[Mapping[str, Any]] = [{}] * count if rows is None else list(rows)
    given = texts_of(ids)
    names: list[Any] = [row.get(key) for row in filled] if given is None else given
    names = [str(name) if isinstance(name, UUID) else name for name in names]
    if len(names) != count or any(not isinstance(n, str) for n in names) or len(set(names)) < count:
        raise ValueError(f"every vector of this store has its own text in {key!r}, its key")
    filled = [{**row, key: name} for row, name in zip(filled, names, strict=True)]
    return (ids if given is None else None), filled, names


def metadata_rows(metadata: GivenMetadata | None, count: int) -> list[Mapping[str, Any]] | None:
    """Metadata as one mapping per vector; columns of equal length are taken too."""
    if metadata is None:
        return None
    if isinstance(metadata, Mapping):
        for name, values in metadata.items():
            if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                fact = f"the metadata column {name!r} is a list with one value per vector"
                raise TypeError(f"{fact}, not {values!r:.40}")
        columns = {name: list(values) for name, values in metadata.items()}
        wrong = [name for name, values in columns.items() if len(values) != count]
        if wrong:
            raise ValueError(f"the metadata column {wrong[0]!r} has not one value per vector ({count})")
        return [{name: values[row] for name, values in columns.items()} for row in range(count)]
    rows = list(metadata)
    if len(rows) != count:
        raise ValueError(f"{len(rows)} metadata records for {count} vectors")
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"a metadata record is a mapping, not {type(row).__name__}")
    return rows


MAX_BLOCK_ROWS = 8192
_SEGMENT_ROWS_BYTES = 128 << 20
_MOST_JOURNALS = 16
"""So many journals of deletions are listed before they become one."""
_MOST_BITMAP_BYTES = 4096
"""A longer bitmap would be repeated by every commit; its ids go into a journal instead."""
_ANY_WRITE_BIT = 0o222
REPLACED_TAGS = {
    *(Tag.SEGMENT_DIR, Tag.OVERLAY_CHAIN, Tag.PROFILE_CONFIG, Tag.DELETION_BITMAP, Tag.DIMENSION_CATALOG),
    *(Tag.MANIFEST_SIGNATURE, Tag.KEY_DIRECTORY, Tag.ACCESS_SKETCH_REF),
}
"""Records that every commit writes again or leaves out."""
_SMALLEST_BYTES = 4096
MERGED_AT_ONCE = 14
"""Segments up to 4 KiB, 56 KiB, 784 KiB, 11 MiB: this many per step are merged, so a row moves four times at most.

More of them make each manifest longer, fewer move each row more often.
"""
_MERGE_STEPS = 4


@dataclass(slots=True)
class WriterState:
    """What the writer must know to commit: counted once when the store is opened, then kept up."""

    live: int
    next_id: int
    deleted: Ids
    is_revived: bool = False
    """Whether ids came back that were deleted, so that the listed deletions may name a live one."""

    def after_add(self, keys: Ids, known: int) -> WriterState:
        """The state once rows with these ids are added, so many of which were there."""
        deleted = self.deleted[~np.isin(self.deleted, keys)] if len(self.deleted) else self.deleted
        is_revived = self.is_revived or len(deleted) < len(self.deleted)
        next_id = max(self.next_id, int(keys.max()) + 1)
        return WriterState(self.live + len(keys) - known, next_id, deleted, is_revived)

    def after_delete(self, keys: Ids) -> WriterState:
        """The state once these ids are deleted."""
        return replace(self, live=self.live - len(keys), deleted=np.union1d(self.deleted, keys))


class StoreAppender:
    """Commits changes to the file of one store."""

    def __init__(self, path: str, content: Content, state: WriterState, *, durable: bool) -> None:
        self._path = path
        self._own = OwnProcess()
        self.state = state
        self.profile = content.profile
        self._fd = _open_for_writing(path)
        self.snapshot = content.snapshot
        if os.fstat(self._fd).st_size > self.snapshot.end:  # half a manifest may not be between whole ones
            with map_os_errors(path):
                os.ftruncate(self._fd, self.snapshot.end)
        self._appender = SegmentAppender(self._fd, path, content.snapshot, durable=durable)

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

    def commit(
        self,
        content: Content,
        new: Sequence[NewSegment],
        state: WriterState,
        graph: tuple[Profile, NewSegment] | None = None,
        *,
        is_final: bool = False,
    ) -> Snapshot:
        """Write a change durably; on any failure the store is as before. `content` is what was committed before.

        A small change is one segment of the log behind the newest root. Others, and the final one of a writer, write
        what the log holds as segments of their own, and a manifest with the root that lists all that counts. It must
        stay short: small segments are merged, deletions gathered, superseded segments left out. A `graph` with its
        profile takes the place of the one before.
        """
        try:
            if graph is None and not is_final:
                logged = self._appender.commit_logged(new, state.live)
                if logged is not None:
                    self.snapshot, self.state = logged, state
                    return logged
            return self._commit_checkpoint(content, new, state, graph)
        except BaseException:
            self._appender.rollback()
            raise

    def _commit_checkpoint(
        self,
        content: Content,
        new: Sequence[NewSegment],
        state: WriterState,
        graph: tuple[Profile, NewSegment] | None,
    ) -> Snapshot:
        profile, layers, before = self.profile if graph is None else graph[0], None, self.snapshot
        listed = [entry for entry in before.segments if entry.segment_id not in before.logged]
        logged = [entry for entry in before.segments if entry.segment_id in before.logged]
        listed, rows = self._merged_rows(content, profile, listed, logged, new, state)
        listed, metadata = self._merged_metadata(content, listed, logged, new)
        others = [segment for segment in new if segment.seg_type not in layout.LOG_TYPES]
        listed += [self._appender.append(segment) for segment in (*rows, *metadata, *others)]
        listed = _without_superseded(listed)
        if graph is not None:
            replaced = content.layers[layout.LAYER_C].segment_id
            entry = self._appender.append(graph[1])
            listed = [*(each for each in listed if each.segment_id != replaced), entry]
            value = before.record(Tag.INDEX_LAYERS) or b""
            places = layout.LAYER_ENTRY.iter_unpack(value[layout.LAYER_BITS.size :])
            moved = [
                e._replace(segment_id=entry.segment_id) if e.segment_id == replaced else e for e in places
            ]
            layers = value[: layout.LAYER_BITS.size]
            layers += b"".join(layout.LAYER_ENTRY.pack(*each) for each in moved)
        listed, bitmap = self._with_deletions(content, listed, logged, new, state)
        root = self._root(before.epoch if not new and graph is None else before.next_epoch, state)
        records = self._records(root, state, bitmap, listed, profile, layers)
        self.snapshot = self._appender.commit_checkpoint(listed, root, records)
        self.state, self.profile = replace(state, is_revived=False), profile
        return self.snapshot

    def _merged_rows(
        self,
        content: Content,
        profile: Profile,
        listed: list[Row],
        logged: Sequence[Row],
        new: Sequence[NewSegment],
        state: WriterState,
    ) -> tuple[list[Row], list[NewSegment]]:
        """What stays listed and what is to be written: rows of the log as one segment, a long run of small ones too.

        New rows that belong to the run are written as part of it only.
        """
        kept = {*profile.row_segments, *profile.code_segments, *profile.graph_segments}
        tail = [e for e in listed if e.seg_type == SegmentType.VEC and e.segment_id not in kept]
        fresh = [segment for segment in new if segment.seg_type == SegmentType.VEC]
        late = [entry for entry in logged if entry.seg_type == SegmentType.VEC]
        sizes = [sum(entry.payload_length for entry in late)] if late else []
        sizes += [byte_view(segment.payload).nbytes for segment in fresh]
        old_sizes = [entry.payload_length for entry in tail]
        count = max(0, count_to_merge([*old_sizes, *sizes]) - len(sizes))
        is_one = count > 0  # with all that is new
        count = count or count_to_merge(old_sizes)
        run = tail[len(tail) - count :]
        # The newest row of an id is the last one.
        blocks = [block for entry in run for block in content.decode_blocks(entry)]
        later = [block for entry in late for block in content.decode_blocks(entry)]
        if is_one:
            later += [block for segment in fresh for block in decode_vec(segment.payload, where=self._path)]
            blocks, later, fresh = [*blocks, *later], [], []
        merged = [_merge_blocks(some, state.deleted) for some in (blocks, later) if some]
        gone = {entry.segment_id for entry in run}
        written = [*(segment for segment in merged if segment is not None), *fresh]
        return [entry for entry in listed if entry.segment_id not in gone], written

    def _merged_metadata(
        self, content: Content, listed: list[Row], logged: Sequence[Row], new: Sequence[NewSegment]
    ) -> tuple[list[Row], list[NewSegment]]:
        """The same for segments of metadata: those of the log and a run of small ones become one."""
        tail = [entry for entry in listed if entry.seg_type == SegmentType.META]
        late = [entry for entry in logged if entry.seg_type == SegmentType.META]
        fresh = [segment for segment in new if segment.seg_type == SegmentType.META]
        if not fresh and not late:
            return listed, []
        size = sum(entry.payload_length for entry in late)
        size += sum(byte_view(segment.payload).nbytes for segment in fresh)
        count = max(0, count_to_merge([*(entry.payload_length for entry in tail), size]) - 1)
        run = tail[len(tail) - count :]
        old_ones = [n for n, entry in enumerate(run) if not content.is_columns(entry)]
        run = run[max(old_ones, default=-1) + 1 :]
        if not run and not late:
            return listed, fresh
        merged = Metadata.of_segments(content, [*run, *late])
        for segment in fresh:
            merged = merged.with_segment(bytes(segment.payload))
        gone = {entry.segment_id for entry in run}
        is_whole = any(entry.flags & Flag.SNAPSHOT for entry in run)
        written = meta_segment(merged.merged(), is_whole=is_whole)
        return [entry for entry in listed if entry.segment_id not in gone], [written]

    def _with_deletions(
        self,
        content: Content,
        listed: list[Row],
        logged: Sequence[Row],
        new: Sequence[NewSegment],
        state: WriterState,
    ) -> tuple[list[Row], bytes | None]:
        """The listing and the bitmap; together their deletions are exactly those of the state."""
        entries = [e for each in logged if _is_deletions(each) for e in content.journal(each).entries]
        for segment in new:
            if segment.seg_type == SegmentType.JOURNAL:
                entries += decode_journal(segment.payload, self._path).entries
        gone = state.deleted[deleted_mask(state.deleted, entries)]
        journals = [entry for entry in listed if _is_deletions(entry)]
        if not self.snapshot.newest_records and not state.is_revived and len(journals) < _MOST_JOURNALS:
            if len(gone):
                listed.append(self._appender.append(delete_segment(gone, self.snapshot.next_epoch)))
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

    def _records(
        self,
        root: Root,
        state: WriterState,
        bitmap: bytes | None,
        listed: list[Row],
        profile: Profile,
        layers: bytes | None,
    ) -> list[Tlv]:
        described = replace(profile, next_id=state.next_id)
        out: list[Tlv] = [(int(Tag.PROFILE_CONFIG), described.to_json()), dimension_record(root, state.live)]
        if bitmap is not None:
            out.append((int(Tag.DELETION_BITMAP), bitmap))
        sketches = [entry for entry in listed if entry.seg_type == SegmentType.SKETCH]
        if sketches:
            place = layout.SKETCH_REF.pack(sketches[-1].segment_id, sketches[-1].file_offset)
            out.append((int(Tag.ACCESS_SKETCH_REF), place))
        if layers is not None:
            out.append((int(Tag.INDEX_LAYERS), layers))
        dropped = REPLACED_TAGS | ({Tag.INDEX_LAYERS} if layers is not None else set())
        return [*out, *(record for record in self.snapshot.records if record[0] not in dropped)]

    def _root(self, epoch: int, state: WriterState) -> Root:
        old = self.snapshot.root or Root()
        return replace(
            old,
            total_vector_count=state.live,
            epoch=epoch,
            modified_ns=time.time_ns(),
            flags=old.flags & ~layout.ROOT_SIGNED,
            signature=None,
        )


def count_to_merge(sizes: Sequence[int]) -> int:
    """How many of the last segments of these sizes should become one, because so many of them are small."""
    merged = 0
    for step in range(_MERGE_STEPS):
        limit = _SMALLEST_BYTES * MERGED_AT_ONCE**step
        count = next((n for n, size in enumerate(reversed(sizes)) if size > limit), len(sizes))
        if count >= MERGED_AT_ONCE * (step + 1):
            merged = count
    return merged


def _merge_blocks(blocks: Sequence[VecBlock], deleted: Ids) -> NewSegment | None:
    """The newest row of each id in these blocks, unless it is deleted; None if no row is left."""
    ids = np.concatenate([block.ids for block in blocks])
    rows = np.concatenate([block.rows for block in blocks])
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    last = np.append(ordered[1:] != ordered[:-1], True)
    order = order[last & ~np.isin(ordered, deleted)]
    if not len(order):
        return None
    ids, rows, first = ids[order], rows[order], blocks[0]
    pieces = [
        VecBlock(rows[at : at + MAX_BLOCK_ROWS], ids[at : at + MAX_BLOCK_ROWS], first.dim, first.dtype)
        for at in range(0, len(ids), MAX_BLOCK_ROWS)
    ]
    return NewSegment(SegmentType.VEC, encode_vec(pieces), block_count=len(pieces))


def _is_deletions(entry: Row) -> bool:
    return bool(entry.seg_type == SegmentType.JOURNAL and entry.tier == layout.TIER_HOT)


def _without_superseded(entries: list[Row]) -> list[Row]:
    """Without older access counters, and without metadata that a snapshot behind it stands for."""
    sketches = [n for n, entry in enumerate(entries) if entry.seg_type == SegmentType.SKETCH]
    wholes = [
        n
        for n, entry in enumerate(entries)
        if entry.seg_type == SegmentType.META and entry.flags & Flag.SNAPSHOT
    ]
    last_whole, last_sketch = max(wholes, default=0), max(sketches, default=0)
    kept = []
    for n, entry in enumerate(entries):
        is_updates = entry.seg_type == SegmentType.JOURNAL and not _is_deletions(entry)
        is_metadata = is_updates or entry.seg_type == SegmentType.META
        is_old_sketch = entry.seg_type == SegmentType.SKETCH and n < last_sketch
        if not is_old_sketch and not (is_metadata and n < last_whole):
            kept.append(entry)
    return kept


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
        dim,
        layout.DTYPE_IDS[profile.dtype],
        0,
        1,
        now_ns,
        now_ns,
        flags=root_flags(profile.metric),
        identity=layout.FILE_IDENTITY(secrets.token_bytes(16), bytes(16), bytes(32), 0),
    )
    records = [(int(Tag.PROFILE_CONFIG), profile.to_json()), dimension_record(root, 0)]
    with commit_file(path, durable=durable, replace=overwrite) as out:
        SegmentAppender(out.fd, path, None, durable=False).commit_checkpoint([], root, records)


def row_segments(
    ids: Ids, matrix: NDArray[np.float32], dtype: str, timestamp_ns: int | None = None
) -> list[NewSegment]:
    """Rows as VEC segments of columnar blocks, in ascending order of id; the time is now unless given."""
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        order = np.argsort(ids)
        ids, matrix = ids[order], matrix[order]
    options = SegmentOptions(timestamp_ns=time.time_ns() if timestamp_ns is None else timestamp_ns)
    step = max(1, _SEGMENT_ROWS_BYTES // (matrix.shape[1] * 4))
    out = []
    for start in range(0, len(ids), step):
        end = min(start + step, len(ids))
        spans = [slice(low, min(low + MAX_BLOCK_ROWS, end)) for low in range(start, end, MAX_BLOCK_ROWS)]
        blocks = [VecBlock(pack_rows(matrix[s], dtype), ids[s], matrix.shape[1], dtype) for s in spans]
        out.append(NewSegment(SegmentType.VEC, encode_vec(blocks), options, len(blocks)))
    return out


def delete_segment(ids: Ids, epoch: int) -> NewSegment:
    """A JOURNAL segment of deletions; its tier marks that nothing else is in it."""
    entries: list[Any] = list(deletions(ids))
    return NewSegment(SegmentType.JOURNAL, encode_journal(entries, epoch), tier=layout.TIER_HOT)


def dimension_record(root: Root, live: int) -> Tlv:
    """The record with the number of live vectors."""
    if not 0 <= live <= layout.MAX_VECTORS:
        raise LimitExceededError(f"a vector file that counts {live} vectors")
    flags = 3 if root.centroid.entries else 1
    entry = (root.dimension, root.base_dtype, flags, live, root.centroid.seg_offset)
    return Tag.DIMENSION_CATALOG, layout.DIMENSION_HEAD.pack(1, 0) + layout.DIMENSION_ENTRY.pack(*entry)


def root_flags(metric: str) -> int:
    """The flags of a root: the metric, so that the root alone is enough to know it."""
    return layout.METRIC_IDS[metric] << layout.ROOT_METRIC_SHIFT
