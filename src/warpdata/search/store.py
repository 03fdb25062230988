"""VectorStore: vectors, ids and metadata in one file; add, delete, search, index, compact."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.io.commit import check_free, commit_file, remove_temps_of
from warpdata.bytekit.io.files import FileRangeReader, real_path
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.process.forks import PerProcess, Reopens
from warpdata.errors import (
    ConflictError,
    CorruptLayoutError,
    FileFinding,
    FormatError,
    OutOfSpaceError,
    PermissionError_,
    UnsupportedVersionError,
    WarpError,
    WriterClosedError,
    add_path,
    naming,
    require_kind,
    require_word,
    suggests,
)
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.access import encode_sketch
from warpdata.formats.rvf.graph import Adjacency, encode_graph
from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.reader import Snapshot, earlier_snapshots, open_snapshot
from warpdata.formats.rvf.signing import PublicKey, SigningKey
from warpdata.formats.rvf.verify import verify_file
from warpdata.formats.rvf.writer import NewSegment, WriterLock
from warpdata.search.file import writing
from warpdata.search.file.content import (
    METRICS,
    STORED_DTYPES,
    CodePlan,
    Content,
    CountingReader,
    IndexPlan,
    Profile,
)
from warpdata.search.file.metadata import ID_FIELD, meta_segment
from warpdata.search.file.rewrite import DIALECTS, ExportReceipt, LiveRows, RewritePlan, export_rows, rewrite
from warpdata.search.file.writing import StoreAppender, WriterState, create_file, delete_segment, row_segments
from warpdata.search.query.ann import GraphShape, has_faiss
from warpdata.search.query.searcher import Searcher

if TYPE_CHECKING:
    from warpdata.stores.blobstore import Spent

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]
_Keys = NDArray[np.uint64]
Where = str | Sequence[int | str | UUID] | NDArray[np.integer]

_COMPRESSIONS = ("none", "lz4", "zstd")
_MAX_HOT_SHARE = 0.05
_WORTH_KEEPING = 256
_COPIED_BYTES = 8 << 20
ABSORBED_ROWS, ABSORBED_SHARE = 1024, 0.01
"""Once so many rows, and such a share of the indexed ones, are behind the graph, they are added to it."""
LATE_ROWS, LATE_SHARE = 20_000, 0.5
"""Once so many rows, and such a share of the indexed ones, could not be added to the index, it is built again."""
DEAD_BYTES, DEAD_SHARE = 64 << 20, 0.5
"""Once so many bytes, and such a share of the file, are of earlier states, the file is compacted."""


class VectorStore(Reopens):
    """Vectors in one file, found by similarity. One writer (`mode="a"`), any number of readers (`mode="r"`).

    Adding an id that exists replaces its vector and its metadata. Every call that changes the store is
    durable when it returns.
    """

    def __init__(
        self,
        path: str | None,
        reader: RangeReader,
        mode: str,
        snapshot: Snapshot | None = None,
        *,
        durable: bool = True,
        owns_reader: bool = True,
    ) -> None:
        """Use `create` or `open`."""
        require_kind("path", path, (str, type(None)), "a text or None; open files with VectorStore.open")
        # Checking a protocol takes a fifth of opening a file: files are not checked.
        if not isinstance(reader, FileRangeReader):
            require_kind("reader", reader, RangeReader, "a RangeReader; open files with VectorStore.open")
        require_kind("snapshot", snapshot, (Snapshot, type(None)), "a state of a file")
        require_word("mode", mode, ("r", "a"))
        self._owns_reader = owns_reader
        self._path = path
        self._mode = mode
        self._durable = durable
        self._turn = _Turn()
        self._lock: WriterLock | None = None
        self._appender: StoreAppender | None = None
        self._attach(reader, snapshot)
        self._turn.is_open = True

    @classmethod
    @suggests
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        dim: int,
        metric: str = "l2",
        dtype: str = "f32",
        key: str | None = None,
        overwrite: bool = False,
        durable: bool = True,
    ) -> VectorStore:
        """A new, empty store, open for writing; a file that exists is a ConflictError unless overwritten.

        `key` declares a text field of the metadata that names the vectors (a UUID, a path): adding a key again
        replaces its vector, and everything that takes ids takes keys, texts or UUIDs.
        """
        require_word("dtype", dtype, STORED_DTYPES)
        require_word("metric", metric, METRICS)
        if key is not None and (not isinstance(key, str) or not key or key == ID_FIELD):
            raise ValueError(f"{key!r} cannot be the key: name a text field of the metadata")
        profile = Profile(metric=metric, dtype=dtype, key=key or "")
        target = real_path(path)
        with WriterLock(target):
            remove_temps_of(target)
            create_file(target, writing.check_dim(dim), profile, durable=durable, overwrite=overwrite)
        return cls.open(target, mode="a", durable=durable)

    @classmethod
    def open(
        cls, source: str | os.PathLike[str] | RangeReader, mode: str = "r", *, durable: bool = True
    ) -> VectorStore:
        """Open a store: a path, or for reading any RangeReader. Only the last kilobytes are read."""
        require_word("mode", mode, ("r", "a"))
        if not isinstance(source, str | os.PathLike):
            if not isinstance(source, RangeReader):
                raise TypeError(f"a store is opened from a path or a RangeReader, not {source!r:.40}")
            if mode == "a":
                raise ValueError("only a local path can be opened with mode='a'")
            return cls._reopened_by(cls(None, source, mode), cls.open, source)
        if "://" in os.fspath(source):
            raise ValueError(
                f"a URL is opened for reading with warpdata.open_vectors({source!r}), and written nowhere"
            )
        # The one name of the file, also if it was opened through a link or the folder changes later.
        path = real_path(source)
        if mode == "r":
            return cls._reopened_by(cls._of_file(path, mode), cls.open, path)
        FileRangeReader(path).close()
        lock = WriterLock(path)
        try:
            remove_temps_of(path)
            store = cls._of_file(path, mode, durable=durable)
            try:
                with naming(path):
                    content = store._content
                    if content.is_runtime or not content.has_profile:
                        raise UnsupportedVersionError(
                            "a file of another program is read, not written",
                            path=path,
                            hint="Copy it first: warp vectors export IN OUT --dialect wire.",
                        )
                    state = store._searcher.writer_state()
                    store._appender = StoreAppender(path, content, state, durable=durable)
                    store._lock = lock
            except BaseException:
                store.close()
                raise
        except BaseException:
            lock.release()
            raise
        return store

    @staticmethod
    def _reopened_by(store: VectorStore, call: Callable[..., VectorStore], *args: Any) -> VectorStore:
        store.reopen_by(call, *args)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        if self._mode == "a":
            raise TypeError("cannot pickle a store open for writing: open it with mode='r'")
        return super().__reduce__()

    @classmethod
    def _of_file(cls, path: str, mode: str, *, durable: bool = True) -> VectorStore:
        reader = FileRangeReader(path)
        try:
            return cls(path, reader, mode, durable=durable)
        except BaseException:
            reader.close()
            raise

    def _attach(self, reader: RangeReader, snapshot: Snapshot | None = None) -> None:
        self._reader = CountingReader(reader)
        self._turn.name = self._reader.name
        with naming(self._reader.name):
            found = open_snapshot(self._reader) if snapshot is None else snapshot
            self._content = Content(self._reader, found, self._parents)
            self._searcher = Searcher(self._content, counts_hits=self._mode == "a")

    @property
    def _parents(self) -> Callable[[str], RangeReader]:
        """Opens files of the same folder; without a reference to the store, which would keep its lock alive."""
        folder = os.path.dirname(self._path or self._reader.name)
        return lambda name: FileRangeReader(os.path.join(folder, os.path.basename(name)))

    # -- what it is ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._appender.state.live if self._appender else self._searcher.live_count

    def __repr__(self) -> str:
        return f"<VectorStore {self._reader.name}: {len(self)} x {self.dim} {self.dtype}, {self.metric}>"

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return self._content.dim

    @property
    def metric(self) -> str:
        """l2, ip or cosine."""
        return self._content.profile.metric

    @property
    def dtype(self) -> str:
        """How vectors are stored."""
        return self._content.profile.dtype

    @property
    def dialect(self) -> str:
        """`wire`, or `runtime` for files of shipped programs."""
        return self._content.snapshot.dialect

    @property
    def key(self) -> str | None:
        """The metadata field that names the vectors, if one was declared."""
        return self._content.profile.key or None

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the metadata and their types: str, bytes, i64, u64, f64 or bool."""
        with self._turn:
            return dict(self._searcher.metadata.fields)

    @property
    def notes(self) -> dict[str, Any]:
        """Notes about the file as a whole, if its writer left any (`warp embed` does)."""
        with self._turn:
            return self._searcher.metadata.notes

    @property
    def ids(self) -> Ids:
        """The ids of all live vectors, ascending."""
        with self._turn:
            return self._searcher.live_ids().astype(np.int64)

    def stats(self) -> dict[str, Any]:
        """What the store holds and what reading it has cost so far.

        `reads` and `bytes_read` count what was read; a remote file adds `requests`, `bytes_fetched` and
        `retries`, as they went over the network.
        """
        spent: Spent | None = getattr(self._reader.inner, "spent", None)
        return {
            "path": self._reader.name,
            "dialect": self.dialect,
            "vectors": len(self),
            "dim": self.dim,
            "metric": self.metric,
            "dtype": self.dtype,
            "epoch": self._content.snapshot.epoch,
            "file_bytes": self._reader.size,
            "segments": len(self._content.snapshot.segments),
            "reads": self._reader.reads,
            "bytes_read": self._reader.bytes_read,
            **self._searcher.stats(),
            **(
                {}
                if spent is None
                else {"requests": spent.requests, "bytes_fetched": spent.bytes_read, "retries": spent.retries}
            ),
        }

    def segments(self) -> list[dict[str, Any]]:
        """The segments of the committed state, in the order of the file."""
        return [
            {
                "id": entry.segment_id,
                "type": layout.segment_name(entry.seg_type),
                "offset": entry.file_offset,
                "bytes": entry.compressed_length or entry.payload_length,
                "flags": entry.flags,
            }
            for entry in self._content.snapshot.segments
        ]

    # -- change it -----------------------------------------------------------------------------------

    def add(
        self, vectors: ArrayLike, ids: ArrayLike | None = None, metadata: writing.GivenMetadata | None = None
    ) -> Ids:
        """Add vectors, durably, and return their ids; a known id or key is replaced, ids=None counts on."""
        with self._turn:
            return self._added(vectors, ids, metadata, np.zeros(0, np.uint64))

    def replace(
        self,
        ids: ArrayLike,
        vectors: ArrayLike,
        metadata: writing.GivenMetadata | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> Ids:
        """Delete vectors and add others under new ids, in one commit: all of it happens, or nothing.

        Ids that are not there are ignored. `notes` are set for the file as a whole. Returns the new ids.
        """
        with self._turn:
            return self._added(vectors, None, metadata, self._present(ids), notes)

    def _added(
        self,
        vectors: ArrayLike,
        ids: ArrayLike | None,
        metadata: writing.GivenMetadata | None,
        gone: _Keys,
        notes: Mapping[str, Any] | None = None,
    ) -> Ids:
        """Add vectors in one commit with the deletion of the live ids `gone`."""
        appender = self._writer()
        matrix = writing.checked_matrix(vectors, self.dim)
        writing.check_fits(matrix, self.dtype)
        rows = writing.metadata_rows(metadata, len(matrix))
        names = None
        if self.key is not None:
            ids, rows, names = writing.named_rows(self.key, ids, rows, len(matrix))
        keys = self._new_ids(ids, names, len(matrix))
        gone = np.setdiff1d(gone, keys)
        if not len(matrix):
            self._deleted(appender, gone)
            return keys.astype(np.int64)
        is_fresh = int(keys.min()) >= appender.state.next_id
        known = 0 if is_fresh else int(self._searcher.exist(keys).sum())
        segments = [delete_segment(gone, self._content.snapshot.next_epoch)] if len(gone) else []
        segments += row_segments(keys, matrix, self.dtype)
        about = None
        if rows is not None or notes or (not is_fresh and self._searcher.metadata.fields):
            about = self._searcher.metadata.added(keys, rows, notes or {})
        segments += [] if about is None else [meta_segment(about)]
        state = appender.state.after_delete(gone) if len(gone) else appender.state
        self._commit(appender, segments, state.after_add(keys, known))
        if len(gone):
            self._searcher.deleted(gone)
        if about is not None:
            self._searcher.metadata_changed(about)
        self._searcher.added(keys, matrix, names)
        self._maintain()
        return keys.astype(np.int64)

    def _new_ids(self, ids: ArrayLike | None, names: list[str] | None, count: int) -> _Keys:
        """The ids of new vectors: those that are given, those that have their keys by now, or the next ones."""
        start = self._writer().state.next_id
        known = {} if names is None else self._searcher.ids_of_keys()
        if ids is not None:
            keys = writing.checked_ids(ids, count)
            unique, times = np.unique(keys, return_counts=True)
            if len(unique) < len(keys):
                raise ValueError(f"the id {unique[times > 1][0]} appears twice in one call")
            held = self._searcher.keys_of(keys) if names else {}
            for name, key in zip(names or (), keys.tolist(), strict=False):
                if known.get(name, key) != key or held.get(key, name) != name:
                    raise ValueError(f"the key {name!r} is not that of the vector {key}: keys do not change")
            return keys
        if start + count - 1 > layout.MAX_ID:
            raise ValueError("the ids of this store have reached 2**63; give your own")
        fresh = iter(range(start, start + count))
        if names is None:
            return np.fromiter(fresh, np.uint64, count)
        return np.array([known[name] if name in known else next(fresh) for name in names], np.uint64)

    def _ids_of(self, ids: Any, *, all_known: bool = True) -> _Keys:
        """Ids as they are stored; texts are keys, if the store has declared one. Unknown keys are KeyErrors."""
        names = None if self.key is None else writing.texts_of(ids)
        if names is None:
            return writing.checked_ids(ids)
        known = self._searcher.ids_of_keys()
        missing = [name for name in names if name not in known]
        if missing and all_known:
            raise KeyError(f"no vector with key {missing[0]!r}")
        return np.array([known[name] for name in names if name in known], np.uint64)

    def update(self, ids: ArrayLike, metadata: writing.GivenMetadata) -> None:
        """Set metadata fields of vectors that exist; a field set to None is removed."""
        with self._turn:
            appender = self._writer()
            keys = self._existing(ids)
            rows = writing.metadata_rows(metadata, len(keys)) or []
            if self.key is not None and any(self.key in row for row in rows):
                raise ValueError(
                    f"{self.key!r} is the key, which does not change: add the vector under another"
                )
            payload = self._searcher.metadata.updated(keys, rows)
            if payload is not None:
                self._commit(appender, [meta_segment(payload)], appender.state)
                self._searcher.metadata_changed(payload)

    def delete(self, ids: ArrayLike | None = None, *, where: str | None = None) -> int:
        """Delete vectors by id or by an SQL condition, durably; unknown ids are ignored. Returns their number."""
        if (ids is None) == (where is None):
            raise ValueError("give either ids or where=")
        with self._turn:
            appender = self._writer()
            if where is not None:
                live = self._searcher.live_ids()
                keys = live[self._searcher.allowed(where, live)]
            else:
                keys = self._present(ids)
            self._deleted(appender, keys)
            return len(keys)

    def _present(self, ids: Any) -> _Keys:
        """Those of these ids that are in the store, each once."""
        self._writer()
        keys = np.unique(self._ids_of(ids, all_known=False))
        return keys[self._searcher.exist(keys)]

    def _deleted(self, appender: StoreAppender, keys: _Keys) -> None:
        if len(keys):
            segments = [delete_segment(keys, self._content.snapshot.next_epoch)]
            self._commit(appender, segments, appender.state.after_delete(keys))
            self._searcher.deleted(keys)

    def _fold_log(self, appender: StoreAppender) -> None:
        """End the file with a root that lists all of it, as other programs read it."""
        if appender.snapshot.log_commits:
            self._commit(appender, [], appender.state, is_final=True)

    def _commit(
        self,
        appender: StoreAppender,
        segments: list[NewSegment],
        state: WriterState,
        graph: Any = None,
        *,
        is_final: bool = False,
    ) -> None:
        snapshot = appender.commit(self._content, segments, state, graph, is_final=is_final)
        file = self._reader.inner
        assert isinstance(file, FileRangeReader)
        file.follow()
        self._content = Content(self._reader, snapshot, self._parents)
        self._searcher.follow(self._content)

    def _maintain(self) -> None:
        """Add rows behind the graph to it, and compact a file that is mostly of earlier states.

        Readers are not disturbed: they keep the file and the state that they opened.
        """
        appender, content, profile = self._writer(), self._content, self._content.profile
        listed = sum(64 + (e.compressed_length or e.payload_length) for e in content.snapshot.segments)
        if (
            content.snapshot.end - listed > max(DEAD_BYTES, DEAD_SHARE * self._reader.size)
            and not content.is_signed
        ):
            self._rewrite(profile, graph=self._searcher.graph())
            return
        late = sum(entry.payload_length for entry in content.tail_entries)
        if profile.index is None or not has_faiss() or late < ABSORBED_ROWS * self.dim:
            return
        is_late = self._searcher.tail.count > max(LATE_ROWS, LATE_SHARE * self._searcher.base.count)
        if is_late and not content.is_signed:
            self._rewrite(profile)
            return
        is_graph = profile.index.kind == "hnsw" and layout.LAYER_C in content.layers
        if not is_graph or not self._searcher.is_due(ABSORBED_ROWS, ABSORBED_SHARE):
            return
        self._fold_log(appender)
        graph, content = self._searcher.extended_graph(), self._content
        if graph is None:
            return
        segments = (*profile.graph_segments, *(entry.segment_id for entry in content.tail_entries))
        entry = (graph.shape.entry_point, graph.shape.max_level)
        kinds = (layout.INDEX_KINDS["hnsw"], layout.LAYER_C, profile.index.m, profile.index.ef_construction)
        payload = encode_graph(layout.INDEX_HEADER(*kinds, graph.count), graph.adjacency())
        new = replace(profile, graph_segments=segments, graph_entry=entry)
        self._commit(appender, [], appender.state, (new, NewSegment(SegmentType.INDEX, payload)))
        self._searcher.join(graph)

    # -- read it -------------------------------------------------------------------------------------

    def get(self, ids: ArrayLike) -> Floats:
        """The vectors with these ids, in this order; an id that is not there is a KeyError."""
        with self._turn:
            return self._searcher.take(self._existing(ids))

    def metadata(self, ids: ArrayLike, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The metadata of the vectors with these ids: all fields that have a value, or those of `columns`."""
        with self._turn:
            return self._searcher.metadata.records(self._existing(ids), columns)

    def scroll(
        self,
        where: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> list[dict[str, Any]]:
        """Metadata of the vectors that satisfy a condition, in ascending order of id, each with its `id`.

        At most `limit` of them; `after=` the last id continues.
        """
        with self._turn:
            live = self._searcher.live_ids()
            keys = live if where is None else live[self._searcher.allowed(where, live)]
            if after is not None:
                keys = keys[np.searchsorted(keys, np.uint64(writing.whole_number(after, "after")), "right") :]
            keys = keys[: max(0, writing.whole_number(limit, "limit"))]
            rows = self._searcher.metadata.records(keys, columns)
            return [{ID_FIELD: key, **row} for key, row in zip(keys.tolist(), rows, strict=True)]

    def _existing(self, ids: Any) -> _Keys:
        keys = self._ids_of(ids)
        known = self._searcher.exist(keys)
        if not known.all():
            raise KeyError(f"no vector with id {keys[~known][0]}")
        return keys

    @suggests
    def search(
        self,
        queries: ArrayLike,
        k: int = 10,
        ef: int | None = None,
        where: Where | None = None,
        exact: bool = False,
        *,
        recall: float | None = None,
        columns: Sequence[str] | None = None,
    ) -> tuple[Any, ...]:
        """Ids and distances of the k nearest vectors, nearest first; fewer if there are fewer.

        `where` is an SQL condition on metadata (`"label = 'cat' and score > 0.5"`; `id` is the id of the vector, names
        that need it are quoted: `"joint.pos" > 1`), or a list of ids to search among. `ef` is the effort (64), or
        `recall` the share of the true neighbours that is wanted: the effort that reached it when the index was built.
        With `columns` the metadata of the hits comes third. One query gives arrays of one dimension, a batch gives one
        row per query; where a query of a batch has fewer results than the others, ids are -1 and distances infinite.
        """
        with self._turn:
            if where is not None and self.key is not None and not isinstance(where, str):
                where = self._ids_of(where, all_known=False).astype(np.int64)
            ids, distances = self._searcher.search(queries, k, ef, recall, where, exact)
            if columns is None:
                return ids, distances
            rows = np.atleast_2d(ids)
            unique = np.unique(rows[rows >= 0]).astype(np.uint64)
            records = dict(
                zip(unique.tolist(), self._searcher.metadata.records(unique, columns), strict=True)
            )
            hits = [[dict(records[key]) for key in row.tolist() if key >= 0] for row in rows]
            return ids, distances, hits[0] if ids.ndim == 1 else hits

    def warm(self) -> None:
        """Load everything now, so that the next query does not have to."""
        with self._turn:
            self._searcher.warm()

    # -- rewrite it ----------------------------------------------------------------------------------

    def build_index(
        self,
        kind: str = "hnsw",
        *,
        m: int = 16,
        ef_construction: int = 200,
        partitions: int = 0,
        key: SigningKey | None = None,
        drop_signatures: bool = False,
    ) -> None:
        """Build a vector index over all live vectors; the file is rewritten in the order of the index."""
        with self._turn:
            self._writer()
            numbers = {"m": m, "ef_construction": ef_construction, "partitions": partitions}
            plan = IndexPlan(
                kind, **{name: writing.whole_number(value, name) for name, value in numbers.items()}
            )
            profile = replace(self._content.profile, index=plan)
            self._rewrite(profile, signing=self._signing(key, drop_signatures))

    def quantize(
        self,
        kind: str,
        *,
        keep_full: bool = True,
        code_bytes: int | None = None,
        key: SigningKey | None = None,
        drop_signatures: bool = False,
    ) -> None:
        """Store codes of the vectors, beside them for quick first looks or instead of them to save space."""
        with self._turn:
            self._writer()
            size = None if code_bytes is None else writing.whole_number(code_bytes, "code_bytes")
            plan = CodePlan(kind, bool(keep_full), size)
            profile = replace(self._content.profile, codes=plan)
            self._rewrite(profile, signing=self._signing(key, drop_signatures))

    def compact(
        self, *, compression: str = "none", key: SigningKey | None = None, drop_signatures: bool = False
    ) -> int:
        """Rewrite the file without what was deleted or replaced; returns the bytes saved."""
        require_word("compression", compression, _COMPRESSIONS)
        with self._turn:
            self._writer()
            before = self._reader.size
            signing = self._signing(key, drop_signatures)
            graph = self._searcher.graph()
            self._rewrite(self._content.profile, compression=compression, signing=signing, graph=graph)
            return before - self._reader.size

    def sign(self, key: SigningKey) -> None:
        """Rewrite the file with every segment and the root signed by `key`."""
        require_kind("key", key, SigningKey, "a SigningKey")
        with self._turn:
            self._writer()
            self._rewrite(self._content.profile, signing=key, graph=self._searcher.graph())

    def _signing(self, key: SigningKey | None, drop: bool) -> SigningKey | None:
        """The key to sign the new file with; a signed store loses its signatures only on request."""
        if key is not None:
            require_kind("key", key, SigningKey, "a SigningKey")
        elif self._content.is_signed and not drop:
            raise PermissionError_(
                "this store is signed, and rewriting it would drop the signatures",
                path=self._path,
                hint="Give key= to sign it again, or drop_signatures=True to go without.",
            )
        return key

    def _rewrite(
        self,
        profile: Profile,
        *,
        compression: str = "none",
        signing: SigningKey | None = None,
        graph: tuple[Adjacency, GraphShape] | None = None,
    ) -> None:
        """Write the file anew; a graph of exactly its rows is kept instead of built."""
        appender = self._writer()
        assert self._path is not None
        plan = RewritePlan(replace(profile, next_id=appender.state.next_id), compression, signing)
        try:
            rewrite(self._path, self._content, replace(self._live_rows(), graph=graph), plan)
        finally:
            if not appender.is_at(self._path):  # also if something failed after the new file got the name
                self._appender = None
                appender.close()
                self._reader.close()
                try:
                    self._attach(FileRangeReader(self._path))
                    state = self._searcher.writer_state()
                    self._appender = StoreAppender(self._path, self._content, state, durable=self._durable)
                except BaseException:
                    self.close()  # the old file has no name any more
                    raise

    def _live_rows(self) -> LiveRows:
        ids, vectors = self._searcher.live_rows()
        hot = self._searcher.hot_ids(max(1, int(len(ids) * _MAX_HOT_SHARE)))
        return LiveRows(ids, vectors, self._searcher.metadata, hot)

    # -- the rest ------------------------------------------------------------------------------------

    def verify(self, keys: Sequence[PublicKey] = ()) -> list[FileFinding]:
        """Every damage found by reading everything; with keys, also what they did not sign."""
        for key in keys:
            require_kind("a key", key, PublicKey, "a PublicKey (SigningKey.public)")
        with self._turn:
            code_bytes = 0
            with contextlib.suppress(FormatError):  # a damaged dictionary is found below
                code_bytes = self._content.code_bytes
            return verify_file(self._reader, self._content.snapshot, code_bytes, keys)

    def snapshot(self) -> VectorStore:
        """A reader of the state as it is now, unchanged by later writes."""
        with self._turn:
            return self._reader_of(self._content.snapshot)

    def _reader_of(self, state: Snapshot) -> VectorStore:
        inner = self._reader.inner
        if isinstance(
            inner, FileRangeReader
        ):  # the file of this state, though another one may have its name by now
            made = VectorStore(self._path, inner.twin(), "r", state)
        else:
            made = VectorStore(None, inner, "r", state, owns_reader=False)
        return self._reopened_by(made, _open_epoch, self._path or inner, state.epoch)

    def epochs(self) -> list[int]:
        """The states that `at` can give, oldest first: those since the file was last rewritten."""
        with self._turn:
            before = [state.epoch for state in self._earlier()]
            return [*reversed(before), self._content.snapshot.epoch]

    def _earlier(self) -> Iterator[Snapshot]:
        """The states before this one, newest first.

        Other programs leave links to manifests that they dropped: there the states end, in our files it is damage.
        """
        try:
            yield from earlier_snapshots(self._reader, self._content.snapshot)
        except CorruptLayoutError:
            if self._content.has_profile:
                raise

    def at(self, epoch: int) -> VectorStore:
        """A reader of the state that was committed as `epoch`, which `stats()["epoch"]` was then."""
        with self._turn:
            newest, epoch = self._content.snapshot, writing.whole_number(epoch, "epoch")
            if epoch == newest.epoch:
                return self.snapshot()
            oldest = newest.epoch
            for state in self._earlier():
                if state.epoch == epoch:
                    return self._reader_of(state)
                oldest = min(oldest, state.epoch)
            raise ValueError(
                f"no state of epoch {epoch} in this file; it holds {oldest} to {newest.epoch},"
                f" because rewriting a file (index, compact, sign) drops what was before"
            )

    def refresh(self) -> bool:
        """Follow a writer to the newest committed state; True if there was a newer one."""
        with self._turn:
            if self._path is None or self._mode == "a":
                return False
            reader = FileRangeReader(self._path)
            try:
                newest = open_snapshot(reader)
            except BaseException:
                reader.close()
                raise
            if newest.is_same(self._content.snapshot):
                reader.close()
                return False
            self._reader.close()
            self._attach(reader, newest)
            return True

    def export(
        self, path: str | os.PathLike[str], *, dialect: str = "wire", overwrite: bool = False
    ) -> ExportReceipt:
        """Write all live vectors to a new file in the dialect of this library or of shipped programs.

        A file that exists is a ConflictError unless overwritten, and one that a writer holds always is.
        The receipt lists what the new file has and what it cannot have.
        """
        require_word("dialect", dialect, DIALECTS)
        with self._turn:
            target = real_path(path)
            if self._path is not None and os.path.exists(target) and os.path.samefile(target, self._path):
                raise ValueError("a store is exported to another file; compact() rewrites its own")
            check_free(target, overwrite=overwrite)
            with WriterLock(target):
                remove_temps_of(target)
                nodes = self._searcher.graph_ids()
                return export_rows(
                    target, self._content, self._live_rows(), nodes, dialect, overwrite=overwrite
                )

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Copy the bytes of this state to a new file; one that exists is a ConflictError."""
        with self._turn, commit_file(real_path(path)) as out:
            if self._appender is not None:
                self._fold_log(self._writer())
            end = self._content.snapshot.end
            for start in range(0, end, _COPIED_BYTES):
                out.write(self._reader.read(start, min(end, start + _COPIED_BYTES)))

    def close(self) -> None:
        """Close the store and let another writer in; a file that was written ends with its root again."""
        with self._turn.mutex(), naming(self._turn.name):
            if not self._turn.is_open:
                return
            try:
                if self._appender is not None and self._appender.is_ours:
                    self._finish(self._appender)
            finally:
                self._turn.is_open = False
                self._searcher.close()
                if self._appender is not None:
                    self._appender.close()
                if self._owns_reader:
                    self._reader.close()
                if self._lock is not None:
                    self._lock.release()

    def _finish(self, appender: StoreAppender) -> None:
        """Fold the log, and keep the access counters of many queries; on a full disk the file stays as it is."""
        segments = []
        if self._searcher.new_accesses() >= _WORTH_KEEPING:
            segments.append(NewSegment(SegmentType.SKETCH, encode_sketch(self._searcher.sketch)))
        if segments or appender.snapshot.log_commits:
            with contextlib.suppress(OutOfSpaceError):
                appender.commit(self._content, segments, appender.state, is_final=True)

    def __enter__(self) -> VectorStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_turn"):
            self.close()

    def _writer(self) -> StoreAppender:
        if self._appender is None:
            raise PermissionError_(
                "the store is open for reading", path=self._reader.name, hint="Open it with mode='a'."
            )
        if not self._appender.is_ours:
            raise ConflictError(
                "this store is open for writing in the process that forked this one",
                path=self._path,
                hint="Open it here with mode='r': one process writes.",
            )
        return self._appender


class _Turn:
    """One call at a time, of an open store; errors name its file. Every query enters it, so it is no generator."""

    __slots__ = ("is_open", "mutex", "name")

    def __init__(self) -> None:
        self.mutex = PerProcess(threading.RLock)
        self.is_open, self.name = False, ""

    def __enter__(self) -> None:
        self.mutex().acquire()
        if not self.is_open:
            self.mutex().release()
            raise WriterClosedError("the store is closed", path=self.name)

    def __exit__(self, _: object, error: object, __: object) -> None:
        self.mutex().release()
        if isinstance(error, WarpError):
            add_path(error, self.name)


def _open_epoch(source: str | RangeReader, epoch: int) -> VectorStore:
    """Open a state of a file, as `VectorStore.at` does."""
    with VectorStore.open(source) as newest:
        return newest.at(epoch)
