"""safetensors files to a corpus and back. The format is small enough to be read and written here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.arrays import DType, byte_view, dtype_named
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.convert.corpora.fill import ConvertOptions, Progress, batch_rows, fill_corpus
from warpdata.corpora.rows import Rows
from warpdata.corpora.source import MmapShardSource
from warpdata.errors import CorruptLayoutError, FormatError, LimitExceededError, TruncatedError

MAX_HEADER_BYTES = 100 << 20
DTYPES = {"F64": "f64", "F32": "f32", "F16": "f16", "BF16": "bf16"}
NAMES = {short: name for name, short in DTYPES.items()}
_LENGTH_BYTES = 8


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
        raise TruncatedError(
            f"the header is truncated: {base} bytes are needed, file has {reader.size}",
            expected=base, actual=reader.size, path=reader.name,
        )  # fmt: skip
    try:
        header = parse_json_object(reader.read(_LENGTH_BYTES, base), max_bytes=MAX_HEADER_BYTES)
        metadata = header.pop("__metadata__", {})
        tensors = [_tensor(name, entry, base, reader) for name, entry in header.items()]
    except FormatError as error:
        raise error if error.path else type(error)(error.message, path=reader.name) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptLayoutError(f"not a safetensors header ({error!r})", path=reader.name) from None
    return {tensor.name: tensor for tensor in tensors if tensor is not None}, dict(metadata)


def safetensors_to_corpus(
    path: str | os.PathLike[str], folder: str | os.PathLike[str], *, tensor: str | None = None,
    options: ConvertOptions | None = None,
) -> int:  # fmt: skip
    """Convert one tensor, whose last axis is the row; it may stay unnamed where there is only one."""
    options = ConvertOptions() if options is None else options
    with FileRangeReader(path) as reader:
        tensors, metadata = read_tensors(reader)
        chosen = _choose(tensors, tensor, os.fspath(path))
        width = chosen.shape[-1]
        count = int(np.prod(chosen.shape[:-1], dtype=object))
        stored = "f32" if chosen.dtype.name == "f64" else chosen.dtype.name
        filled = replace(
            options, dtype=options.dtype or stored, provenance={**metadata, **options.provenance}
        )
        return fill_corpus(folder, _rows(reader, chosen, width), (count, width), filled)


def corpus_to_safetensors(
    folder: str | os.PathLike[str], path: str | os.PathLike[str], *, tensor: str = "activations",
    overwrite: bool = False, progress: Progress | None = None,
) -> int:  # fmt: skip
    """Write all rows of a corpus as one tensor of the stored type; returns the number of rows."""
    with (
        MmapShardSource.open_dir(folder, dtype="stored") as source,
        commit_file(path, replace=overwrite) as out,
    ):
        shards = source.shards
        entry = {
            "dtype": NAMES[shards.dtype.name],
            "shape": [source.total_rows, source.width],
            "data_offsets": [0, shards.payload_bytes],
        }
        record = shards.record
        out.write(_pack_header(tensor, entry, {} if record is None else record.provenance))
        for batch in source:
            out.write(byte_view(batch.rows))
            if progress is not None:
                progress(source.position, source.total_rows)
        return source.total_rows


def _pack_header(name: str, entry: dict[str, Any], provenance: Mapping[str, Any]) -> bytes:
    metadata = {
        str(key): value if isinstance(value, str) else str(value) for key, value in provenance.items()
    }
    body = dump_json({"__metadata__": metadata, name: entry} if metadata else {name: entry})
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def _tensor(name: str, entry: dict[str, Any], base: int, reader: RangeReader) -> Tensor | None:
    start, end = (int(offset) for offset in entry["data_offsets"])
    shape = tuple(int(size) for size in entry["shape"])
    if not 0 <= start <= end or min(shape, default=0) < 0 or base + end > reader.size:
        raise CorruptLayoutError(f"tensor {name!r} lies outside the file")
    if entry["dtype"] not in DTYPES:
        return None
    dtype = dtype_named(DTYPES[entry["dtype"]])
    if int(np.prod(shape, dtype=object)) * dtype.itemsize != end - start:
        raise CorruptLayoutError(f"tensor {name!r} of shape {shape} does not have {end - start} bytes")
    return Tensor(name, dtype, shape, base + start, base + end)


def _choose(tensors: dict[str, Tensor], name: str | None, path: str) -> Tensor:
    matrices = {key: tensor for key, tensor in tensors.items() if len(tensor.shape) >= 2 and tensor.shape[-1]}
    if name is None and len(matrices) == 1:
        return next(iter(matrices.values()))
    if name in matrices:
        return matrices[name]
    found = ", ".join(sorted(matrices)) or "no matrix of floats"
    raise ValueError(f"name the tensor to convert: {Path(path).name} has {found}")


def _rows(reader: RangeReader, tensor: Tensor, width: int) -> Iterator[Rows]:
    row_bytes = width * tensor.dtype.itemsize
    step = batch_rows(row_bytes) * row_bytes
    for start in range(tensor.start, tensor.end, step):
        data = reader.read(start, min(start + step, tensor.end))
        yield np.frombuffer(data, tensor.dtype.dtype).reshape(-1, width)
