"""Read the manifest.json of a bf16 directory and judge the files it lists."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedVersionError,
)
from warpdata.formats.bf16dir import layout

FindFile = Callable[[str], tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Bf16File:
    """One headerless file of rows."""

    path: str
    n_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Bf16Directory:
    """The contents of manifest.json, checked against the files."""

    width: int
    files: tuple[Bf16File, ...]
    extra: dict[str, Any]
    """Every other key of the manifest: model name, layer, statistics."""


def is_bf16_directory(folder: str | os.PathLike[str]) -> bool:
    """True if the folder has a manifest.json of this format."""
    path = os.path.join(folder, layout.MANIFEST_NAME)
    if not os.path.isfile(path):
        return False
    with FileRangeReader(path) as reader:
        return is_bf16_manifest(reader)


def is_bf16_manifest(reader: RangeReader) -> bool:
    """True if a manifest.json is of this format."""
    return layout.FORMAT.encode() in bytes(reader.read(0, min(reader.size, 4096)))


def read_directory(folder: str | os.PathLike[str]) -> Bf16Directory:
    """Read and judge a bf16 directory: every listed file is there and has the size its rows need."""
    with FileRangeReader(Path(folder) / layout.MANIFEST_NAME) as reader:
        return parse_directory(reader, partial(_local_file, Path(folder)))


def parse_directory(manifest: RangeReader, find: FindFile) -> Bf16Directory:
    """Judge a manifest and the files it lists; `find` returns the path and the size of a file."""
    data = bytes(manifest.read(0, min(manifest.size, layout.MAX_MANIFEST_BYTES + 1)))
    try:
        body = parse_json_object(data, max_bytes=layout.MAX_MANIFEST_BYTES, allow_nan=True)
        _check_identity(body)
        return _directory(body, find)
    except FormatError as error:
        if error.path is None:
            error = type(error)(error.message, path=manifest.name)
        raise error from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptLayoutError(f"not a bf16 manifest ({error!r})", path=manifest.name) from None


def _local_file(folder: Path, name: str) -> tuple[str, int]:
    path = folder / name
    if not path.is_file():
        raise BlobNotFoundError("a listed file is missing", path=path)
    return str(path), path.stat().st_size


def _check_identity(body: dict[str, Any]) -> None:
    if body["format"] != layout.FORMAT:
        raise CorruptLayoutError(f"the manifest is of format {body['format']!r}")
    if body["format_version"] != layout.VERSION:
        raise UnsupportedVersionError(f"the manifest is of version {body['format_version']!r}")
    if body["dtype"] != layout.DTYPE or body["byte_order"] != layout.BYTE_ORDER:
        raise UnsupportedDtypeError(f"elements are {body['byte_order']}-endian {body['dtype']}")


def _directory(body: dict[str, Any], find: FindFile) -> Bf16Directory:
    width = _count(body["d_model"])
    files = tuple(_file(entry, width, find) for entry in body["shards"])
    if sum(file.n_rows for file in files) != _count(body["total_tokens"]):
        raise CorruptLayoutError("the rows of the files do not add up to total_tokens")
    known = {"format", "format_version", "dtype", "byte_order", "d_model", "shards", "total_tokens"}
    return Bf16Directory(width, files, {key: value for key, value in body.items() if key not in known})


def _file(entry: dict[str, Any], width: int, find: FindFile) -> Bf16File:
    name, n_rows = str(entry["file"]), _count(entry["rows"])
    if name != os.path.basename(name) or name in ("", ".", ".."):
        raise CorruptLayoutError(f"{name!r} is no name of a file in this folder")
    expected = n_rows * width * layout.ITEM_BYTES
    if _count(entry["bytes"]) != expected:
        raise CorruptLayoutError(f"{name} is listed with {entry['bytes']} bytes, its rows need {expected}")
    if not width and n_rows > layout.MAX_EMPTY_ROWS:
        raise LimitExceededError(f"{n_rows} rows without a column in {name}")
    path, actual = find(name)
    if actual < expected:
        fact = f"file is truncated: the manifest expects {expected} bytes, file has {actual}"
        raise TruncatedError(fact, expected=expected, actual=actual, path=path)
    if actual > expected:
        raise CorruptLayoutError(f"the manifest expects {expected} bytes, file has {actual}", path=path)
    return Bf16File(path, n_rows)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise CorruptLayoutError(f"{value!r} is no count")
    return value
