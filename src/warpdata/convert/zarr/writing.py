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
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import (
    Part,
    SavedRows,
    StepRows,
    StepWriter,
    source_id,
    without_last,
    write_set,
)
from warpdata.convert.kept_values import unpacked
from warpdata.convert.place import check_inside
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt
from warpdata.convert.zarr import codecs
from warpdata.convert.zarr.reading import ENDS
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import CorruptLayoutError, nearest

Compressor = Literal["zstd", "blosc", "zlib", "none"]
_COMPRESSORS: dict[str, Mapping[str, Any] | None] = {
    "zstd": codecs.DEFAULT,
    "none": None,
    "zlib": {"id": "zlib", "level": 1},
    "blosc": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": 2, "blocksize": 0},
}
_CHUNK_BYTES = 2 << 20

Put = Callable[[str, bytes], None]


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    compressor: Compressor = "zstd",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a replay buffer that diffusion policy opens; a target that ends in `.zip` becomes an archive.

    Every episode has the same signals, one row per step: what was seen after the last step has no place. Steps are
    those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by `align`.
    Their times are kept in `warpdata.json`.
    """
    if compressor not in _COMPRESSORS:
        known = ", ".join(_COMPRESSORS)
        raise ValueError(
            f"unknown compressor {compressor!r} (choose from {known}).{nearest(compressor, _COMPRESSORS)}"
        )
    writer, options = ReplayBufferWriter(_COMPRESSORS[compressor]), AlignOptions(rate, clock, align)
    return write_set(writer, episodes, target, options, on_error=on_error, jobs=jobs, progress=progress)


class ReplayBufferWriter(StepWriter):
    """data/<signal>: rows of all episodes; meta/episode_ends."""

    format, version = "zarr", "2"

    def __init__(self, compressor: Mapping[str, Any] | None) -> None:
        self._compressor = compressor
        self._arrays: dict[str, _Array] = {}
        self._ends = [0]
        self._ids: list[str] = []

    @contextlib.contextmanager
    def open(self, target: Path) -> Iterator[Put]:
        """A function that puts bytes under a key."""
        if target.suffix != ".zip":
            with commit_folder(target) as folder:
                yield lambda key, data: _put_file(folder, key, data)
            return
        with commit_file(target, replace=False) as new:
            with (
                os.fdopen(os.dup(new.fd), "w+b") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
            ):
                yield lambda key, data: archive.writestr(zipfile.ZipInfo(check_inside(key, "archive")), data)
            new.position = os.fstat(new.fd).st_size

    def choose(self, rows: StepRows, episodes: Episodes) -> None:
        """All signals but text."""
        rows.drop_objects("")
        super().choose(rows, episodes)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The rows of every signal in a file."""
        notes = rows.drop_objects("text and bytes have no place in a replay buffer")
        self.check_same({**self.schema, **rows.columns}, rows)
        saved: dict[str, SavedRows] = {}
        for number, (name, column) in enumerate(rows.columns.items()):
            saved[name] = column.save(scratch / str(number), len(rows))
            notes[name] = without_last(column.note()) if column.has_more else column.note()
        return Part(len(rows), notes, (source_id(rows.episode), saved))

    def add(self, part: Part) -> str:
        """Append the rows."""
        name, saved = part.data
        for key, rows in saved.items():
            array = self._arrays.get(key)
            if array is None:
                dtype, shape = self.schema[key]
                array = self._arrays[key] = _Array(self.out, f"data/{key}", dtype, shape, self._compressor)
            array.add(rows.read())
        self._ends.append(self._ends[-1] + part.rows)
        return str(name)

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Write the ends, the arrays and attributes that the source has beside its rows, and the receipt."""
        for group in ("", "data/", "meta/"):
            self.out(f"{group}.zgroup", b'{"zarr_format": 2}')
        for array in self._arrays.values():
            array.finish()
        kept = episodes.metadata.get("zarr")
        kept = kept if isinstance(kept, Mapping) else {}
        beside = {path: np.asarray(unpacked(value)) for path, value in kept.get("arrays", {}).items()}
        for path, values in {**beside, ENDS: np.array(self._ends[1:], np.int64)}.items():
            if values.dtype.kind not in "biufS":
                raise CorruptLayoutError(f"array {path!r} of {values.dtype} cannot be written")
            array = _Array(self.out, path, values.dtype, values.shape[1:], self._compressor)
            array.add(np.atleast_1d(values))
            array.finish(values.shape)
        for path, value in kept.get("attributes", {}).items():
            self.out(f"{path}/.zattrs".lstrip("/"), json.dumps(unpacked(value), indent=4).encode())
        self.out(RECEIPT_FILE, receipt.document())


def _put_file(folder: Path, key: str, data: bytes) -> None:
    path = folder / check_inside(key, str(folder))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class _Array:
    """One array being written: rows wait until a chunk of about 2 MB is full."""

    def __init__(
        self, put: Put, path: str, dtype: np.dtype[Any], row_shape: tuple[int, ...], compressor: Any
    ) -> None:
        self._put, self._path, self._compressor = put, path, compressor
        row_bytes = dtype.itemsize * int(np.prod(row_shape))
        depth = max(1, min(1 << 16, _CHUNK_BYTES // max(1, row_bytes)))
        self._chunk: NDArray[Any] = np.zeros((depth, *row_shape), dtype)
        self._count = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows."""
        depth, start = len(self._chunk), 0
        while start < len(rows):
            used = self._count % depth
            taken = min(depth - used, len(rows) - start)
            self._chunk[used : used + taken] = rows[start : start + taken]
            self._count += taken
            start += taken
            if used + taken == depth:
                self._flush()

    def _flush(self) -> None:
        number = (self._count - 1) // len(self._chunk)
        key = ".".join(map(str, (number, *([0] * (self._chunk.ndim - 1)))))
        self._put(f"{self._path}/{key}", codecs.encode(self._compressor, self._chunk))
        self._chunk[:] = np.zeros((), self._chunk.dtype)

    def finish(self, shape: tuple[int, ...] | None = None) -> None:
        """Write the last chunk, padded, and the description of the array."""
        if self._count % len(self._chunk):
            self._flush()
        shape = (self._count, *self._chunk.shape[1:]) if shape is None else shape
        about = {
            "chunks": list(self._chunk.shape) if shape else [],
            "compressor": None if self._compressor is None else dict(self._compressor),
            "dtype": self._chunk.dtype.str,
            "fill_value": None if self._chunk.dtype.kind == "S" else 0,
            "filters": None,
            "order": "C",
            "shape": list(shape),
            "zarr_format": 2,
        }
        self._put(f"{self._path}/.zarray", json.dumps(about, indent=4, sort_keys=True).encode())
