"""A vector file written whole, from vectors that come in order: the same ones give the same bytes, on any machine.

It has no time and no chance in it: its id is a hash of what it holds, and its times are 0.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import RunningSha256
from warpdata.bytekit.io.commit import commit_file, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.errors import ConflictError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.layout import FILE_IDENTITY, Tag
from warpdata.formats.rvf.manifest import Root
from warpdata.formats.rvf.meta import MetaPayload, Value, encode_meta
from warpdata.formats.rvf.reader import open_snapshot
from warpdata.formats.rvf.writer import SegmentAppender
from warpdata.search.file import checked_input
from warpdata.search.file.appending import meta_segment, row_segments
from warpdata.search.file.content import Content
from warpdata.search.file.metadata import MetadataTable, split_metadata
from warpdata.search.file.profile import IndexPlan, Profile
from warpdata.search.file.rewrite import LiveRows, RewritePlan, dimension_record, rewrite, root_flags
from warpdata.search.file.writer_lock import WriterLock
from warpdata.search.query.ann import one_thread
from warpdata.search.query.distance import check_metric

Rows = tuple[NDArray[np.float32], Sequence[Mapping[str, Any]]]
"""Some vectors, and what is known of each."""


def write_vectors(
    path: str | os.PathLike[str], batches: Iterable[Rows], *, metric: str = "cosine",
    notes: Mapping[str, Value] | None = None, overwrite: bool = False,
) -> int:  # fmt: skip
    """Write a vector file of these vectors, with ids that count from 0; returns how many there are.

    It appears whole or not at all, and durably. `notes` are about the file as a whole (`VectorStore.notes`).
    """
    target = os.path.realpath(path)
    if not overwrite and os.path.lexists(target):
        raise ConflictError(
            "the file exists already", path=target, hint="Choose another name, or overwrite it."
        )
    lock = WriterLock(target)
    try:
        remove_temps_of(target)
        with commit_file(target, replace=overwrite) as out:
            return _written(out.fd, target, batches, check_metric(metric), notes)
    finally:
        lock.release()


def write_own(
    path: str | os.PathLike[str], vectors: Rows, *, metric: str, notes: Mapping[str, Value]
) -> None:
    """The same for a small file in a folder of our own, where nobody else writes and nothing has to last."""
    target = os.path.realpath(path)
    with commit_file(target, durable=False, replace=True) as out:
        _written(out.fd, target, [vectors], check_metric(metric), notes)


def _written(
    fd: int, path: str, batches: Iterable[Rows], metric: str, notes: Mapping[str, Value] | None
) -> int:
    appender = SegmentAppender(fd, path, None, durable=False)
    table, total, count, dim, entries = MetadataTable(), RunningSha256(), 0, 0, []
    for vectors, rows in batches:
        dim = dim or checked_input.check_dim(vectors.shape[1])
        matrix = checked_input.checked_matrix(vectors, dim)
        ids = np.arange(count, count + len(matrix), dtype=np.uint64)
        entries += [appender.append(each) for each in row_segments(ids, matrix, "f32", 0)]
        total.update(byte_view(matrix))
        table.schema, checked = table.checked(checked_input.metadata_rows(rows, len(matrix)) or [])
        table.records |= dict(zip(ids.tolist(), checked, strict=True))
        count += len(matrix)
    if not count:
        raise ValueError("there are no vectors to write")
    for payload in _payloads(table, notes or {}):
        total.update(encode_meta(payload))
        entries.append(appender.append(meta_segment(payload)))
    profile = Profile(metric=metric, next_id=count)
    identity = FILE_IDENTITY(bytes.fromhex(total.hexdigest())[:16], bytes(16), bytes(32), 0)
    root = Root(
        dim, layout.DTYPE_IDS[profile.dtype], count, 1, 0, 0, flags=root_flags(metric), identity=identity
    )
    records = [(int(Tag.PROFILE_CONFIG), profile.to_json()), dimension_record(root, count)]
    appender.commit_checkpoint(entries, root, records)
    return count


def _payloads(table: MetadataTable, notes: Mapping[str, Value]) -> Iterator[MetaPayload]:
    """All metadata: a snapshot, and what follows it."""
    return split_metadata(MetaPayload(1, None, table.schema, dict(notes), dict(table.records)))


def index_vectors(path: str | os.PathLike[str], kind: str) -> None:
    """Write a file of `write_vectors` anew with an index over its vectors, in the same way every time."""
    target = os.path.realpath(path)
    lock = WriterLock(target)
    try:
        with contextlib.closing(FileRangeReader(target)) as reader:
            content = Content(reader, open_snapshot(reader))
            found, table = content.load_rows(), content.load_metadata()
            rows = LiveRows(found.ids.astype(np.uint64), found.take(np.arange(len(found))), table.snapshot())
            profile = replace(content.profile, index=IndexPlan(kind))
            with one_thread():
                rewrite(target, content, rows, RewritePlan(profile, timestamp_ns=0))
    finally:
        lock.release()
