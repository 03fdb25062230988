"""Corpora of activations from and to files of arrays: .npy matrices, safetensors, folders of rows.

Rows are converted in bounded memory, and a new corpus or file appears whole or not at all.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.arrays import DType, byte_view, dtype_named
from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.convert.tables.npz import npy_header
from warpdata.corpora.rows import Rows
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import DEFAULT_SHARD_BYTES, CorpusWriter
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
)
from warpdata.formats.bf16dir.reader import is_bf16_directory, read_directory

Progress = Callable[[int, int], None]
StrPath = str | os.PathLike[str]
BATCH_BYTES = 8 << 20
MAX_HEADER_BYTES = 100 << 20
DTYPES = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}
"""Types of safetensors that are rows of a corpus."""
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Storage of a converted corpus."""

    dtype: str | None = None
    """f32, f16 or bf16; by default the type nearest to the input."""
    shard_bytes: int = DEFAULT_SHARD_BYTES
    provenance: dict[str, Any] = field(default_factory=dict)
    progress: Progress | None = None


def _fill_corpus(
    folder: StrPath, batches: Iterable[Rows], shape: tuple[int, int], dtype: str, options: ConvertOptions
) -> int:
    total, width = shape
    stored, about = options.dtype or dtype, options.provenance
    with commit_folder(folder) as temp:
        writer = CorpusWriter(temp, width, dtype=stored, shard_bytes=options.shard_bytes, provenance=about)
        with writer:
            for rows in batches:
                writer.append(rows)
                if options.progress is not None:
                    options.progress(writer.total_rows, total)
            return writer.total_rows


def _batch_rows(row_bytes: int) -> int:
    return max(1, BATCH_BYTES // max(1, row_bytes))


def folder_to_corpus(source: StrPath, folder: StrPath, options: ConvertOptions | None = None) -> int:
    """Write the rows of a bf16 directory or a folder of shards as a corpus; returns the number of rows."""
    options = options or ConvertOptions()
    with MmapShardSource.open_dir(source, dtype="stored") as rows:
        known: dict[str, Any] = {}
        if rows.shards.record is not None:
            known = dict(rows.shards.record.provenance)
        elif is_bf16_directory(source):
            extra = read_directory(source).extra
            known = {key: value for key, value in extra.items() if isinstance(value, str | int | bool)}
        options = replace(options, provenance={**known, **options.provenance})
        shape = (rows.total_rows, rows.width)
        return _fill_corpus(folder, (batch.rows for batch in rows), shape, rows.shards.dtype.name, options)


def npy_to_corpus(path: StrPath, folder: StrPath, options: ConvertOptions | None = None) -> int:
    """Convert a matrix, or an array whose last axis is the row; returns the number of rows."""
    if not os.path.isfile(path):
        raise BlobNotFoundError("no such file", path=path)
    with open(path, "rb") as file:
        shape, is_fortran, dtype = npy_header(file, path)
        if dtype.kind not in "fiu":
            raise UnsupportedDtypeError(f"rows of {dtype} cannot be stored", path=path)
        if len(shape) < 2 or not shape[-1] or (is_fortran and len(shape) > 2):
            raise CorruptLayoutError(f"an array of shape {shape} is no matrix of rows", path=path)
        count, width = int(np.prod(shape[:-1], dtype=object)), shape[-1]
        actual, expected = os.fstat(file.fileno()).st_size, file.tell() + count * width * dtype.itemsize
        if actual < expected:
            fact = f"the array is truncated: expected {expected} bytes, got {actual}"
            raise TruncatedError(fact, expected=expected, actual=actual, path=path)
        step = _batch_rows(width * dtype.itemsize)

        def batches() -> Iterator[Rows]:
            if is_fortran:
                matrix = np.memmap(path, dtype, "r", file.tell(), (count, width), "F")
                yield from (matrix[start : start + step] for start in range(0, count, step))
                return
            for start in range(0, count, step):
                rows = min(step, count - start)
                values = np.fromfile(file, dtype, rows * width)
                if len(values) != rows * width:
                    raise TruncatedError("the array was truncated while it was read", path=path)
                yield values.reshape(rows, width)

        kind = "f16" if dtype.itemsize == 2 else "f32"
        return _fill_corpus(folder, batches(), (count, width), kind, options or ConvertOptions())


def corpus_to_npy(
    folder: StrPath,
    path: StrPath,
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write all rows of a corpus as one matrix; returns the number of rows.

    `dtype` is f32 or f16, by default the stored one. NumPy has no bf16: such rows become f32, which holds them.
    """
    if dtype not in (None, "f32", "f16"):
        raise ValueError(f"a .npy file holds f32 or f16, not {dtype}")

    def header(source: MmapShardSource) -> tuple[bytes, np.dtype[Any]]:
        stored = source.shards.dtype.name
        kind = dtype_named(dtype or ("f32" if stored == "bf16" else stored)).dtype
        head = io.BytesIO()
        descr, shape = np.lib.format.dtype_to_descr(kind), (source.total_rows, source.width)
        np.lib.format.write_array_header_1_0(head, {"descr": descr, "fortran_order": False, "shape": shape})
        return head.getvalue(), kind

    return _write_rows(folder, path, header, overwrite, progress)


def corpus_to_safetensors(
    folder: StrPath,
    path: StrPath,
    *,
    tensor: str = "activations",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> int:
    """Write all rows of a corpus as one tensor of the stored type; returns the number of rows."""

    def header(source: MmapShardSource) -> tuple[bytes, np.dtype[Any]]:
        shards = source.shards
        names = {short: name for name, short in DTYPES.items()}
        shape, offsets = [source.total_rows, source.width], [0, shards.payload_bytes]
        entry = {"dtype": names[shards.dtype.name], "shape": shape, "data_offsets": offsets}
        provenance = {} if shards.record is None else shards.record.provenance
        metadata = {str(key): str(value) for key, value in provenance.items()}
        body = dump_json({"__metadata__": metadata, tensor: entry} if metadata else {tensor: entry})
        body += b" " * (-len(body) % 8)
        return len(body).to_bytes(_LENGTH_BYTES, "little") + body, shards.dtype.dtype

    return _write_rows(folder, path, header, overwrite, progress)


def _write_rows(
    folder: StrPath,
    path: StrPath,
    header: Callable[[MmapShardSource], tuple[bytes, np.dtype[Any]]],
    overwrite: bool,
    progress: Progress | None,
) -> int:
    """Write a header and all rows of a corpus in the type that it states."""
    with (
        MmapShardSource.open_dir(folder, dtype="stored") as source,
        commit_file(path, replace=overwrite) as out,
    ):
        head, kind = header(source)
        out.write(head)
        for batch in source:
            with np.errstate(over="ignore", invalid="ignore"):  # f16 may become infinite
                out.write(byte_view(np.ascontiguousarray(batch.rows, kind)))
            if progress is not None:
                progress(source.position, source.total_rows)
        return source.total_rows


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a safetensors file: its bytes are [start, end) of the file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    end: int


def read_tensors(reader: RangeReader) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The float tensors of a file and its metadata, every offset checked."""
    length = int.from_bytes(reader.read(0, _LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise LimitExceededError(f"a header of {length} bytes", path=reader.name)
    base = _LENGTH_BYTES + length
    if base > reader.size:
        fact = f"the header is truncated: expected {base} bytes, got {reader.size}"
        raise TruncatedError(fact, expected=base, actual=reader.size, path=reader.name)
    try:
        header = parse_json_object(reader.read(_LENGTH_BYTES, base), max_bytes=MAX_HEADER_BYTES)
        metadata = header.pop("__metadata__", {})
        tensors = {name: _tensor(name, entry, base, reader) for name, entry in header.items()}
    except FormatError as error:
        raise error if error.path else type(error)(error.message, path=reader.name) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptLayoutError(f"not a safetensors header ({error!r})", path=reader.name) from None
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}, dict(metadata)


def _tensor(name: str, entry: dict[str, Any], base: int, reader: RangeReader) -> Tensor | None:
    """A tensor from its entry in the header; None if its type is not a float."""
    start, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if not 0 <= start <= end or min(shape, default=0) < 0 or base + end > reader.size:
        raise CorruptLayoutError(f"tensor {name!r} is outside the file")
    if entry["dtype"] not in DTYPES:
        return None
    dtype = dtype_named(DTYPES[entry["dtype"]])
    if int(np.prod(shape, dtype=object)) * dtype.itemsize != end - start:
        raise CorruptLayoutError(f"tensor {name!r} of shape {shape} does not have {end - start} bytes")
    return Tensor(name, dtype, shape, base + start, base + end)


def safetensors_to_corpus(
    path: StrPath, folder: StrPath, *, tensor: str | None = None, options: ConvertOptions | None = None
) -> int:
    """Convert one tensor, whose last axis is the row; `tensor` may be left out if there is only one."""
    options = options or ConvertOptions()
    with FileRangeReader(path) as reader:
        tensors, metadata = read_tensors(reader)
        matrices = {key: item for key, item in tensors.items() if len(item.shape) >= 2 and item.shape[-1]}
        name = next(iter(matrices)) if tensor is None and len(matrices) == 1 else tensor
        if name not in matrices:
            listed = ", ".join(sorted(matrices)) or "no matrix of floats"
            raise ValueError(f"name the tensor to convert: {Path(path).name} has {listed}")
        chosen = matrices[name]
        width = chosen.shape[-1]
        shape = (int(np.prod(chosen.shape[:-1], dtype=object)), width)
        row_bytes = width * chosen.dtype.itemsize
        step = _batch_rows(row_bytes) * row_bytes
        edges = range(chosen.start, chosen.end, step)
        parts = (reader.read(start, min(start + step, chosen.end)) for start in edges)
        batches = (np.frombuffer(part, chosen.dtype.dtype).reshape(-1, width) for part in parts)
        kind = "f32" if chosen.dtype.name == "f64" else chosen.dtype.name
        options = replace(options, provenance={**metadata, **options.provenance})
        return _fill_corpus(folder, batches, shape, kind, options)
