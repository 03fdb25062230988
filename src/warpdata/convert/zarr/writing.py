"""Write episodes as a replay buffer: Zarr v2, in a folder or a zip archive."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.convert.aligning import AlignOptions, Hold
from warpdata.convert.exporting import (
    StepColumn,
    counted,
    episode_notes,
    source_id,
    step_columns,
    usable,
    without_last,
)
from warpdata.convert.importing import OnError, Progress
from warpdata.convert.kept_values import unpacked
from warpdata.convert.place import check_inside
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.convert.zarr import codecs
from warpdata.convert.zarr.reading import ENDS
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.timeline.episode import Episode

Compressor = Literal["source", "zstd", "blosc", "zlib", "none"]
_COMPRESSORS: dict[str, Mapping[str, Any] | None] = {
    "zstd": codecs.DEFAULT, "none": None, "zlib": {"id": "zlib", "level": 1},
    "blosc": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
}  # fmt: skip
_CHUNK_BYTES = 2 << 20
_GROUP = b'{\n    "zarr_format": 2\n}'

Put = Callable[[str, bytes], None]


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    compressor: Compressor = "source",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a replay buffer that diffusion policy opens; a target that ends in `.zip` becomes an archive.

    Every episode has the same signals, one row per step: what was seen after the last step has no place. `compressor`
    is how the source was compressed, where that is lossless and can be done here, or one by name.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`. Their times are kept in `warpdata.json`.
    """
    if compressor not in ("source", *_COMPRESSORS):
        raise ValueError(f"compressor is one of source, {', '.join(_COMPRESSORS)}, not {compressor!r}")
    episodes = under_own_names(episodes)
    options = AlignOptions(rate, clock, align)
    receipt = ConversionReceipt.of_export("zarr", episodes, target, "2", options.to_json())
    episodes = usable(episodes, on_error, receipt, options)
    kept = episodes.metadata.get("zarr")
    kept = kept if isinstance(kept, Mapping) else {}
    with _tree(target) as put:
        for group in ("", "data/", "meta/"):
            put(f"{group}.zgroup", _GROUP)
        _Buffer(put, kept, compressor, options, receipt).fill(episodes, progress)
    return receipt


@contextlib.contextmanager
def _tree(target: str | os.PathLike[str]) -> Iterator[Put]:
    """A new tree that appears whole or not at all."""
    if not os.fspath(target).endswith(".zip"):
        with commit_folder(target) as folder:
            yield lambda key, data: _put_file(folder, key, data)
        return
    with commit_file(target, replace=False) as new:
        with (
            os.fdopen(os.dup(new.fd), "w+b") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
        ):
            yield lambda key, data: archive.writestr(zipfile.ZipInfo(check_inside(key, "the archive")), data)
        new.position = os.fstat(new.fd).st_size


def _put_file(folder: Path, key: str, data: bytes) -> None:
    path = folder / check_inside(key, str(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class _Array:
    """One array being written: rows gather until a chunk is full."""

    def __init__(
        self,
        put: Put,
        path: str,
        column: StepColumn,
        stored: Mapping[str, Any],
        config: Mapping[str, Any] | None,
    ) -> None:
        self.dtype, self.row_shape = column.meta.dtype, column.meta.shape
        self._put, self._path, self._config = put, path, config
        self._fill = stored.get("fill_value", 0)
        self._deep = _depth(stored.get("chunks"), self.row_shape, column.meta.row_bytes)
        self._waiting = np.zeros((self._deep, *self.row_shape), self.dtype)
        self._filled = 0
        self._chunks = 0
        self.count = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows."""
        at = 0
        while at < len(rows):
            taken = min(self._deep - self._filled, len(rows) - at)
            self._waiting[self._filled : self._filled + taken] = rows[at : at + taken]
            self._filled += taken
            at += taken
            if self._filled == self._deep:
                self._flush()
        self.count += len(rows)

    def _flush(self) -> None:
        key = ".".join(map(str, (self._chunks, *([0] * len(self.row_shape)))))
        self._put(f"{self._path}/{key}", codecs.encode(self._config, self._waiting))
        self._chunks += 1
        self._filled = 0
        self._waiting[:] = 0

    def finish(self) -> None:
        """Write the last chunk, padded, and what the array is."""
        if self._filled:
            self._flush()
        put_array_json(
            self._put, self._path, (self.count, *self.row_shape), (self._deep, *self.row_shape), self.dtype,
            self._config, self._fill,
        )  # fmt: skip


def put_array_json(
    put: Put, path: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any],
    config: Mapping[str, Any] | None, fill: Any = 0,
) -> None:  # fmt: skip
    """Write what an array is."""
    about = {
        "chunks": list(chunks), "compressor": None if config is None else dict(config), "dtype": dtype.str,
        "fill_value": fill, "filters": None, "order": "C", "shape": list(shape), "zarr_format": 2,
    }  # fmt: skip
    put(f"{path}/.zarray", json.dumps(about, indent=4, sort_keys=True).encode())


def _depth(chunks: Any, row_shape: tuple[int, ...], row_bytes: int) -> int:
    """How many rows a chunk has: as in the source, unless its chunks cut rows; about 2 MB else."""
    is_known = isinstance(chunks, list) and len(chunks) == 1 + len(row_shape) and isinstance(chunks[0], int)
    if is_known and 0 < chunks[0] * max(1, row_bytes) <= 64 << 20:
        return int(chunks[0])
    return max(1, min(1 << 16, _CHUNK_BYTES // max(1, row_bytes)))


class _Buffer:
    """The arrays of a replay buffer, filled episode by episode."""

    def __init__(
        self, put: Put, kept: Mapping[str, Any], compressor: str, options: AlignOptions,
        receipt: ConversionReceipt,
    ) -> None:  # fmt: skip
        self._options = options
        self._put, self._kept, self._compressor, self._receipt = put, kept, compressor, receipt
        self._arrays: dict[str, _Array] = {}

    def fill(self, episodes: Episodes, progress: Progress | None) -> None:
        """Write all episodes and what belongs to them."""
        ends: list[int] = []
        for episode in counted(episodes, progress):
            steps, notes = self._add(episode)
            ends.append((ends[-1] if ends else 0) + steps)
            self._receipt.add(notes)
        for array in self._arrays.values():
            array.finish()
        self._ends(np.array(ends, np.int64))
        for path, value in self._kept.get("arrays", {}).items():
            self._whole(path, np.asarray(unpacked(value)))
        for path, value in self._kept.get("attributes", {}).items():
            self._put(f"{path}/.zattrs".lstrip("/"), json.dumps(unpacked(value), indent=4).encode())
        self._put(RECEIPT_FILE, self._receipt.document())

    def _add(self, episode: Episode) -> tuple[int, dict[str, Note]]:
        steps, columns = step_columns(episode, self._options)
        notes: dict[str, Note] = {}
        usable = {}
        for name, column in columns.items():
            if column.meta.is_object:
                notes[name] = note_of(
                    column.signal, "dropped", "text and bytes have no place in a replay buffer"
                )
            else:
                usable[name] = column
        if self._arrays and set(usable) != set(self._arrays):
            odd = sorted(set(usable) ^ set(self._arrays))
            raise SchemaMismatchError(
                f"episode {episode.id!r} and those before differ in their signals: {', '.join(odd)}",
                hint="Leave out the signals that not all episodes have.",
            )
        for name, column in usable.items():
            notes[name] = self._column(name, column, episode.id)
        self._receipt.episode_notes[source_id(episode)] = episode_notes(
            episode, columns, steps, len(steps), self._options
        )
        return len(steps), notes

    def _column(self, name: str, column: StepColumn, episode_id: str) -> Note:
        array = self._arrays.get(name)
        if array is None:
            stored = unpacked(self._kept.get("data", {}).get(name, {}))
            array = _Array(self._put, f"data/{name}", column, stored, self._config(name, stored))
            self._arrays[name] = array
        if (array.dtype, array.row_shape) != (column.meta.dtype, column.meta.shape):
            raise SchemaMismatchError(
                f"signal {name!r} of episode {episode_id!r} is {column.meta.dtype}{list(column.meta.shape)}, "
                f"before it was {array.dtype}{list(array.row_shape)}"
            )
        for block in column.blocks(0, len(column.steps)):
            array.add(block)
        return without_last(column.note()) if column.has_more else column.note()

    def _config(self, name: str, stored: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if self._compressor != "source":
            return _COMPRESSORS[self._compressor]
        if "compressor" not in stored:
            return codecs.DEFAULT
        config: Mapping[str, Any] | None = stored["compressor"]
        if codecs.can_encode(config):
            return config
        was = config.get("id") if config else None
        self._receipt.notes.append(f"{name}: compressed with zstd, without loss; in the source with {was}")
        return codecs.DEFAULT

    def _ends(self, ends: NDArray[np.int64]) -> None:
        stored = self._kept.get("ends", {})
        dtype = np.dtype(stored.get("dtype", "<i8"))
        if dtype.kind not in "iu" or (len(ends) and int(ends[-1]) > np.iinfo(dtype).max):
            dtype = np.dtype("<i8")
        self._whole(ENDS, ends.astype(dtype))

    def _whole(self, path: str, array: NDArray[Any]) -> None:
        """A small array as one chunk."""
        config = codecs.DEFAULT if self._compressor == "source" else _COMPRESSORS[self._compressor]
        if array.dtype.kind not in "biufS":
            raise CorruptLayoutError(f"{path!r} holds {array.dtype}, which cannot be written")
        chunks = tuple(max(1, side) for side in array.shape)
        if array.size:
            key = ".".join(["0"] * array.ndim) or "0"
            self._put(f"{path}/{key}", codecs.encode(config, array if array.ndim else array.reshape(1)))
        put_array_json(self._put, path, array.shape, chunks, array.dtype, config)
