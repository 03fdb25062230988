"""Replay buffers of diffusion policy and UMI: Zarr trees in a folder or a zip archive. The adapter of zarr.

`data/<signal>` holds the rows of all episodes, `meta/episode_ends` where episodes end. Trees of version 2 and 3 are
read; version 2 is written, which diffusion policy opens. It leaves alone what we keep in `ragged/<signal>`: `values`,
the rows of values of varying length end to end, and `lengths`, how many of them each step has.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.codec import zstd_frame_size
from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import PerProcess, Reopens, cached_property
from warpdata.convert.aligning import seconds_as_times
from warpdata.convert.exporting import ExportOptions, Part, StepRows, StepWriter
from warpdata.convert.place import Place, check_inside, foreign_errors
from warpdata.convert.receipt import (
    MAX_DOCUMENT_BYTES,
    RECEIPT_FILE,
    ConversionReceipt,
    metadata_of,
    pack,
    unpack,
)
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, SteppedEpisodes, numeric_type
from warpdata.convert.tables.mapping import bounds_of
from warpdata.convert.tables.npz import ZIP_ERRORS
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    SchemaMismatchError,
    require_word,
)
from warpdata.timeline.meta import guess_role
from warpdata.timeline.ragged import join_rows, split_rows

Compressor = Literal["zstd", "blosc", "zlib", "none"]
_CODECS: dict[str, dict[str, Any]] = {
    "zstd": {"level": 3},
    "none": {},
    "zlib": {"level": 1},
    "blosc": {"cname": "zstd", "clevel": 5, "shuffle": 2},
}
ENDS = "meta/episode_ends"
RAGGED, LENGTHS, VALUES = "ragged/", "/lengths", "/values"
MAX_CHUNK_BYTES = 1 << 30
_MAX_JSON_BYTES, _MAX_METADATA_BYTES, _MAX_ENDS_BYTES = 16 << 20, 64 << 20, 1 << 30
_CHUNK_BYTES = 2 << 20
_ZIP_MAGIC = b"PK\x03\x04"
_DOCUMENTS = (".zarray", "zarr.json")
_STREAMS: dict[str, Callable[[], Any]] = {
    "zlib": lambda: zlib.decompressobj(47),
    "gzip": lambda: zlib.decompressobj(47),
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
}
_STREAM_ERRORS = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)


def _zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise MissingExtraError.for_extra("zarr", "zarr") from None
    return zarr


def matches(place: Place) -> bool:
    """Whether it is a Zarr tree with the ends of episodes, in a folder or a zip archive."""
    if not place.is_file:
        return any(place.exists(f"{ENDS}/{name}") for name in _DOCUMENTS)
    if place.head(4) != _ZIP_MAGIC or not place.name.endswith(".zip"):
        return False
    try:
        names = ZarrTree(place).names()
    except FormatError:
        return False
    return any(f"{ENDS}/{name}" in names for name in _DOCUMENTS)


def read(source: Any, *, fps: float | None = None, times: str | None = "timestamp") -> Episodes:
    """The episodes of a replay buffer; rows are read on demand.

    `fps` is the rate of the steps: the format has none. `times` names the array with the time of every step in seconds,
    which is used if it exists and grows; None ignores it.
    """
    return Episodes(ReplayBuffer(Place.of(source), fps, times))


class ReplayBuffer(SteppedEpisodes):
    """data/<key>, all of one length, and meta/episode_ends."""

    def __init__(self, place: Place, fps: float | None, times: str | None) -> None:
        super().__init__(place, fps)
        self._times = times
        self._tree = ZarrTree(place)
        _ = self.bounds  # a tree that is no replay buffer is refused at once

    @cached_property
    def paths(self) -> list[str]:
        """The paths of all arrays."""
        tree, paths = self._tree, []
        for path, _, name in (name.rpartition("/") for name in tree.names()):
            if name == ".zarray" or (name == "zarr.json" and tree.node(path).get("node_type") == "array"):
                paths.append(path)
        return sorted(paths)

    @cached_property
    def arrays(self) -> dict[str, Rows]:
        """The arrays inside `data`, and those of varying length; a single value has no rows."""
        paths = [path for path in self.paths if path.startswith("data/")]
        if not paths:
            raise CorruptLayoutError("a replay buffer without any array in 'data'", path=self.name)
        arrays = {path.removeprefix("data/"): ZarrArray(self._tree, path).rows() for path in paths}
        for path in self.paths:
            if path.startswith(RAGGED) and path.endswith(LENGTHS):
                arrays.setdefault(path[len(RAGGED) : -len(LENGTHS)], self._ragged(path.removesuffix(LENGTHS)))
        return arrays

    def _ragged(self, path: str) -> Rows:
        lengths = ZarrArray(self._tree, path + LENGTHS).whole(_MAX_ENDS_BYTES)
        values = ZarrArray(self._tree, path + VALUES).rows()
        is_valid = lengths.ndim == 1 and lengths.dtype.kind in "iu" and bool((lengths >= 0).all())
        if not is_valid or values.count != sum(lengths.tolist()):
            fact = f"'{path}{LENGTHS}' are not the lengths of {values.count} rows"
            raise CorruptLayoutError(fact, path=self.name)
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        return Rows(
            len(lengths), values.dtype, values.shape, partial(_read_ragged, values, offsets), "ragged"
        )

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where episodes begin, and the end."""
        if ENDS not in self.paths:
            raise BadMagicError(f"not a replay buffer: there is no {ENDS!r}", path=self.name)
        ends = ZarrArray(self._tree, ENDS).whole(_MAX_ENDS_BYTES)
        if ends.ndim != 1 or ends.dtype.kind not in "iu":
            raise CorruptLayoutError(f"{ENDS!r} holds {ends.dtype}{list(ends.shape)}", path=self.name)
        count = int(ends[-1]) if len(ends) else 0
        for key, rows in self.arrays.items():
            if rows.count != count:
                fact = f"'data/{key}' has {rows.count} rows, the last episode ends at {count}"
                raise CorruptLayoutError(fact, path=self.name)
        return bounds_of(ends.astype(np.int64), count, self.name)

    def own_document(self) -> bytes | None:
        """The document that warpdata writes into the tree."""
        return self._tree.get(RECEIPT_FILE, MAX_DOCUMENT_BYTES)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The ids before the export, or numbers."""
        count = len(self.bounds) - 1
        names = [f"episode_{number:06d}" for number in range(count)]
        return list(self.own_notes) if len(self.own_notes) == count else names

    def parts(self, position: int) -> Parts:
        """The rows of an episode."""
        start, stop = int(self.bounds[position]), int(self.bounds[position + 1])
        name, columns = self.ids[position], {}
        place = f"{self.name}#{name}"
        for key, rows in self.arrays.items():
            if 0 not in rows.shape:
                role = "other" if key in ("timestamp", "timestamps") else guess_role(key, "tensor").role
                columns[key] = EpisodeColumn(rows.part(start, stop), role)
        times, stamps = None, self.arrays.get(self._times or "")
        if stamps is not None and stamps.shape in ((), (1,)) and stop > start:
            with contextlib.suppress(CorruptLayoutError):  # otherwise it is a signal like any other
                times = seconds_as_times(stamps.read(start, stop), place)
        meta = {"zarr": {"number": position}}
        return Parts(name, stop - start, columns, {}, meta, self._fps, times=times, place=place)

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The arrays beside the rows, and all attributes."""
        beside = [path for path in self.paths if not path.startswith(("data/", RAGGED)) and path != ENDS]
        arrays = {path: pack(ZarrArray(self._tree, path).whole(_MAX_METADATA_BYTES)) for path in beside}
        attributes: dict[str, Any] = {}
        for path, _, file in (name.rpartition("/") for name in self._tree.names()):
            node = {} if file == ".zarray" else self._tree.node(path, file)
            stated = node if file == ".zattrs" else node.get("attributes")
            if stated:
                attributes[path] = pack(stated)
        kept = {"arrays": arrays, "attributes": attributes}
        return {"zarr": {key: value for key, value in kept.items() if value}}


def _read_ragged(values: Rows, offsets: NDArray[np.int64], start: int, stop: int) -> NDArray[Any]:
    low, high = int(offsets[start]), int(offsets[stop])
    return split_rows(values.read(low, high), offsets[start : stop + 1] - low)


class ZarrTree(Reopens):
    """The files of a Zarr tree by key: metadata documents and chunks."""

    def __init__(self, place: Place) -> None:
        self.place, self.name = place, place.name
        self._zip = PerProcess(self._open_zip)

    def _open_zip(self) -> zipfile.ZipFile:
        with foreign_errors(ZIP_ERRORS, "not a readable zip archive", self.name):
            return zipfile.ZipFile(RangeFile(self.place.open()))

    def names(self) -> list[str]:
        """The keys of all metadata documents, sorted."""
        names = self._zip().namelist() if self.place.is_file else self.place.names()
        return sorted({name for name in names if name.rpartition("/")[2] in (*_DOCUMENTS, ".zattrs")})

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """The bytes of a key, None if it is missing; more than `max_bytes` are refused."""
        check_inside(key, self.name)
        if not self.place.is_file:
            if not self.place.exists(key):
                return None
            with contextlib.closing(self.place.open(key)) as reader:
                self._check_size(key, reader.size, max_bytes)
                return bytes(reader.read(0, reader.size))
        archive = self._zip()
        if key not in archive.NameToInfo:
            return None
        entry = archive.getinfo(key)
        self._check_size(key, entry.file_size, -1 if entry.flag_bits & 1 else max_bytes)
        with foreign_errors(ZIP_ERRORS, f"{key!r} is damaged", self.name), archive.open(entry) as file:
            data = file.read(entry.file_size)
            if len(data) != entry.file_size or file.read(1):
                raise CorruptLayoutError(f"size mismatch of {key!r} in the archive", path=self.name)
            return data

    def _check_size(self, key: str, size: int, max_bytes: int) -> None:
        if size > max_bytes:
            fact = f"{key!r} claims {size} bytes, at most {max(0, max_bytes)} are possible"
            raise LimitExceededError(fact, path=self.name)

    def node(self, path: str, document: str = "zarr.json") -> dict[str, Any]:
        """A JSON document about a group or an array; empty if it is missing."""
        key = f"{path}/{document}".lstrip("/")
        data = self.get(key, _MAX_JSON_BYTES)
        try:
            return {} if data is None else parse_json_object(data, allow_nan=True)
        except CorruptLayoutError as error:
            raise CorruptLayoutError(f"{key!r}: {error.message}", path=self.name) from None


class ZarrArray(Reopens):
    """An array of a Zarr tree; the chunks read last are kept."""

    def __init__(self, tree: ZarrTree, path: str) -> None:
        self._tree, self.path = tree, path
        self._array = PerProcess(self._open)
        self._block: tuple[int, NDArray[Any]] | None = None
        array = self._array()
        self._shape: tuple[int, ...] = tuple(array.shape)
        chunks = tuple(array.shards or array.chunks)
        size = math.prod(chunks) * array.dtype.itemsize
        if size > MAX_CHUNK_BYTES or 0 in chunks:
            raise LimitExceededError(f"{path!r} has chunks of {size} bytes", path=tree.name)
        self._dtype = numeric_type(array.dtype, repr(path), tree.name)
        row_bytes = math.prod(self._shape[1:]) * self._dtype.itemsize
        self._depth = chunks[0] if chunks and chunks[0] * row_bytes <= MAX_CHUNK_BYTES else 1

    def _open(self) -> Any:
        zarr = _zarr()
        with self._errors():
            _register_pictures(self._tree.node(self.path, ".zarray").get("compressor"))
            store = zarr.storage.MemoryStore(ChunkFiles(self._tree, self.path), read_only=True)
            return zarr.open_array(store, path=self.path, mode="r")

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        """zarr and its codecs raise any exception over damaged bytes."""
        return foreign_errors((Exception,), f"array {self.path!r} cannot be read", self._tree.name)

    def whole(self, max_bytes: int) -> NDArray[Any]:
        """A small array, also one with a single value."""
        if math.prod(self._shape) * self._dtype.itemsize > max_bytes:
            raise LimitExceededError(f"{self.path!r} is larger than metadata can be", path=self._tree.name)
        with self._errors():
            return np.asarray(self._array()[...], self._dtype)

    def rows(self) -> Rows:
        """The rows of the array; a single value has none."""
        count, *sides = self._shape or (-1,)
        return Rows(count, self._dtype, tuple(sides), self._read)

    def _read(self, start: int, stop: int) -> NDArray[Any]:
        out = np.empty((stop - start, *self._shape[1:]), self._dtype)
        for number in range(start // self._depth, -(-stop // self._depth)):
            first = number * self._depth
            if self._block is None or self._block[0] != number:
                with self._errors():
                    self._block = (number, self._array()[first : first + self._depth])
            low, high = max(start, first), min(stop, first + self._depth)
            out[low - start : high - start] = self._block[1][low - first : high - first]
        return out


class ChunkFiles(Mapping[str, Any]):
    """The files of one array for zarr, each checked before a codec allocates what it claims."""

    def __init__(self, tree: ZarrTree, path: str) -> None:
        self._tree = tree
        about = tree.node(path, ".zarray")
        compressor = about.get("compressor")
        self._codec = compressor.get("id") if isinstance(compressor, dict) else None
        self._size: int | None = None
        with contextlib.suppress(KeyError, TypeError, ValueError):  # zarr names what is wrong with them
            self._size = math.prod(about["chunks"]) * np.dtype(about["dtype"]).itemsize

    def __getitem__(self, key: str) -> Any:
        is_chunk = key.rpartition("/")[2] not in (*_DOCUMENTS, ".zattrs", ".zgroup", ".zmetadata")
        limit = MAX_CHUNK_BYTES if self._size is None else 2 * self._size + (1 << 16)
        data = self._tree.get(key, limit if is_chunk else _MAX_JSON_BYTES)
        if data is None:
            raise KeyError(key)
        if is_chunk and self._size is not None and self._size <= MAX_CHUNK_BYTES:
            # Raise unless a compressed chunk expands to the bytes of its array.
            size = self._size
            actual: int | None = None
            try:
                with foreign_errors(_STREAM_ERRORS, f"damaged chunk {key!r}", self._tree.name):
                    if self._codec in _STREAMS:
                        actual = len(_STREAMS[self._codec]().decompress(data, size + 1))
                    elif self._codec == "blosc":
                        actual = int.from_bytes(data[4:8], "little") if len(data) >= 16 else 0
                    elif self._codec == "lz4":
                        actual = int.from_bytes(data[:4], "little")
                    elif self._codec == "zstd":
                        actual = zstd_frame_size(data)
            except FormatError as error:
                if error.path:
                    raise
                fact = f"damaged chunk {key!r} ({error.message})"
                raise CorruptLayoutError(fact, path=self._tree.name) from None
            if actual is not None and actual != size:
                fact = f"chunk {key!r} expands to {actual} bytes, expected {size}"
                raise (LimitExceededError if actual > size else CorruptLayoutError)(
                    fact, path=self._tree.name
                )
        return _zarr().core.buffer.cpu.Buffer.from_bytes(data)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree.names())

    def __len__(self) -> int:
        return len(self._tree.names())


def _register_pictures(compressor: Any) -> None:
    """Make the codec of pictures known to zarr; without imagecodecs, its use raises MissingExtraError."""
    name = compressor.get("id") if isinstance(compressor, dict) else None
    if not isinstance(name, str) or not name.startswith("imagecodecs_"):
        return
    import numcodecs

    try:
        from imagecodecs.numcodecs import register_codecs
    except ImportError:
        methods = {"__init__": lambda _self, **_: None, "encode": _raise_missing, "decode": _raise_missing}
        missing = type("MissingCodec", (numcodecs.abc.Codec,), {"codec_id": name, **methods})
        numcodecs.register_codec(missing)
    else:
        register_codecs(name.removeprefix("imagecodecs_"), verbose=False)


def _raise_missing(*_: Any, **__: Any) -> Any:
    raise MissingExtraError.for_extra("imagecodecs", "jxl")


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    compressor: Compressor = "zstd",
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as a replay buffer that diffusion policy opens; a target that ends in `.zip` becomes an archive.

    Every episode has the same signals, one row per step: what was seen after the last step has no place. Values of
    varying length are beside those that diffusion policy reads. The times of the steps are kept in `warpdata.json`.
    """
    require_word("compressor", compressor, _CODECS)
    return ReplayBufferWriter(compressor).write(episodes, target, **options)


@dataclass
class ReplayBufferWriter(StepWriter):
    """Appends the rows of every episode to the arrays of their signals, in whole chunks."""

    format, version = "zarr", "2"
    holds_ragged = True
    _compressor: Compressor
    _arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = field(default_factory=dict)
    """The arrays of the signals by path: the type and the shape of a row."""
    _ends: list[int] = field(default_factory=list)
    _pending: dict[str, list[NDArray[Any]]] = field(default_factory=dict)
    """Rows of every array that do not fill a chunk yet."""

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[Any]:
        """The root group, in the new folder or beside the new archive."""
        zarr = _zarr()
        if target.suffix != ".zip":
            with commit_folder(target) as folder:
                yield zarr.open_group(folder, mode="w", zarr_format=2)
            return
        with (
            commit_file(target, replace=False) as new,
            tempfile.TemporaryDirectory(prefix="warpdata-") as tree,
        ):
            yield zarr.open_group(tree, mode="w", zarr_format=2)
            with os.fdopen(os.dup(new.fd), "w+b") as file, zipfile.ZipFile(file, "w") as archive:
                for path in sorted(member for member in Path(tree).rglob("*") if member.is_file()):
                    entry = zipfile.ZipInfo(path.relative_to(tree).as_posix())  # no time: equal bytes
                    archive.writestr(entry, path.read_bytes())
            new.position = os.fstat(new.fd).st_size

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """All signals but text."""
        rows.drop_objects("")
        super().choose(rows, episodes)
        rows.place({})  # no array may be the folder of another
        for name, (dtype, shape) in self.schema.items():
            check_inside(name, "the archive")
            if dtype.kind not in "biuf":
                raise SchemaMismatchError(f"signal {name!r} of {dtype} has no place in a replay buffer")
            if shape[:1] == (-1,):
                self._arrays[RAGGED + name + VALUES] = dtype, shape[1:]
                self._arrays[RAGGED + name + LENGTHS] = np.dtype(np.int64), ()
            else:
                self._arrays[f"data/{name}"] = dtype, shape

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The rows of every array in a file."""
        rows.drop_objects("text and bytes have no place in a replay buffer")
        self.check_same({**self.schema, **rows.columns}, rows)
        saved = {path: scratch / str(number) for number, path in enumerate(self._arrays)}
        with contextlib.ExitStack() as stack:
            files = {path: stack.enter_context(open(file, "xb")) for path, file in saved.items()}
            for name, column in rows.columns.items():
                for block in column.blocks(0, len(rows)):
                    parts = {f"data/{name}": block}
                    if column.meta.rows is not None:
                        values, offsets = join_rows(block, column.meta.rows)
                        parts = {RAGGED + name + VALUES: values, RAGGED + name + LENGTHS: np.diff(offsets)}
                    for path, part in parts.items():
                        files[path].write(byte_view(np.ascontiguousarray(part)))
                rows.keep(name, has_final=False)
        return Part(len(rows), (rows.id, saved))

    def add(self, part: Part) -> str:
        """Append the rows."""
        name, saved = part.data
        for path, file in saved.items():
            dtype, shape = self._arrays[path]
            count = -1 if path.endswith(VALUES) and path.startswith(RAGGED) else part.rows
            self._pending.setdefault(path, []).append(np.fromfile(file, dtype).reshape(count, *shape))
            self._write_chunks(path, is_last=False)
        self._ends.append((self._ends[-1] if self._ends else 0) + part.rows)
        return str(name)

    def _write_chunks(self, path: str, *, is_last: bool) -> None:
        """Write the pending rows that fill chunks; all of them at the end."""
        dtype, shape = self._arrays[path]
        depth = max(1, min(1 << 16, _CHUNK_BYTES // max(1, dtype.itemsize * math.prod(shape))))
        count = sum(map(len, self._pending[path]))
        if count < depth and not is_last:
            return
        rows = np.concatenate(self._pending[path])
        full = count if is_last else count - count % depth
        if path not in self.out:
            self._create(path, (0, *shape), dtype, (depth, *shape))
        if full:
            self.out[path].append(rows[:full])
        self._pending[path] = [rows[full:].copy()]

    def _create(self, path: str, shape: tuple[int, ...], dtype: Any, chunks: tuple[int, ...]) -> Any:
        import numcodecs

        config = {"id": self._compressor, **_CODECS[self._compressor]}
        codec = None if self._compressor == "none" else numcodecs.get_codec(config)
        about = {"dtype": dtype, "chunks": tuple(max(1, side) for side in chunks), "compressors": codec}
        return self.out.create_array(path, shape=shape, filters=None, **about)

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the last chunks, the ends, the arrays and attributes beside the rows, and the receipt."""
        for path in self._pending:
            self._write_chunks(path, is_last=True)
        kept = metadata_of(episodes.metadata, "zarr")
        beside = {path: np.asarray(unpack(value)) for path, value in kept.get("arrays", {}).items()}
        for path, values in {**beside, ENDS: np.array(self._ends, np.int64)}.items():
            if values.dtype.kind not in "biufS":
                raise CorruptLayoutError(f"array {path!r} of {values.dtype} cannot be written")
            place = check_inside(path, "the archive")
            self._create(place, values.shape, values.dtype, values.shape)[...] = values
        for path, value in kept.get("attributes", {}).items():
            node = self.out.get(path) if path else self.out
            if node is not None:
                node.attrs.update(unpack(value))
        root = Path(self.out.store.root)
        for group in root.glob("data/*/**/.zgroup"):  # every member of data would be an array
            group.unlink()
        (root / RECEIPT_FILE).write_bytes(receipt.document())
