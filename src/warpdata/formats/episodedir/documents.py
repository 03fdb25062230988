"""static.json and meta.json: written whole, read with care."""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader, drop_cached
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import BlobNotFoundError, ChecksumError, CorruptLayoutError, FormatError, TruncatedError
from warpdata.formats.episodedir import layout

Source = str | os.PathLike[str] | RangeReader
Folder = Path | FolderReader

BYTES_TAG = "__bytes_base64__"
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
CHECKSUM_KEY = "checksum"
MAX_STATIC_DEPTH = 64
MAX_STATIC_ARRAY = 1 << 16
"""More numbers than this belong in a signal, not in JSON."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and checksum of a file, as meta.json keeps them."""

    size_bytes: int
    crc32c: int

    @classmethod
    def of(cls, data: bytes) -> FileSum:
        """The sum of these bytes."""
        return cls(len(data), crc32c(data))

    def check(self, data: bytes, path: str) -> None:
        """Raise unless `data` is what was written."""
        if len(data) < self.size_bytes:
            raise TruncatedError(f"{len(data)} bytes of {self.size_bytes} are left", path=path)
        if len(data) != self.size_bytes or crc32c(data) != self.crc32c:
            raise ChecksumError("the file was changed after it was written", path=path)


def plain_static(name: str, value: Any) -> Any:
    """`value` as JSON can hold it; what cannot be held is a TypeError or ValueError naming the item."""
    try:
        return _plain(name, value)
    except RecursionError:
        raise ValueError(f"static item {name!r}: nested too deeply, or inside itself") from None


def _plain(name: str, value: Any, depth: int = 0) -> Any:
    if isinstance(value, np.ndarray):
        return _plain_array(name, value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Mapping | list | tuple):
        if depth == MAX_STATIC_DEPTH:
            raise RecursionError
        if isinstance(value, Mapping):
            return {_key(name, key): _plain(name, inner, depth + 1) for key, inner in value.items()}
        return [_plain(name, inner, depth + 1) for inner in value]
    return _plain_item(name, value)


def _plain_item(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(name, value)
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES_TAG: base64.b64encode(bytes(value)).decode()}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(name, value)
    raise TypeError(f"static item {name!r}: a {type(value).__name__} cannot be stored as JSON")


def _plain_array(name: str, array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind not in "biuf" and not np.issubdtype(array.dtype, np.floating):
        raise TypeError(f"static item {name!r}: an array of {array.dtype} cannot be stored as JSON")
    if array.size > MAX_STATIC_ARRAY:
        raise ValueError(f"static item {name!r}: {array.size} numbers are too many; record them as a signal")
    return _plain(name, array.tolist())


def _text(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"static item {name!r}: the text is not valid Unicode") from None
    return str(value)


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"static item {name!r}: {value} cannot be stored as JSON")
    return float(value)


def _key(name: str, key: Any) -> str:
    if not isinstance(key, str) or key == BYTES_TAG:
        raise TypeError(f"static item {name!r}: key {key!r} is not a plain string")
    return _text(name, key)


def restored_static(value: Any) -> Any:
    """What `plain_static` made, with bytes as bytes again."""
    if isinstance(value, dict):
        if set(value) == {BYTES_TAG}:
            try:
                return base64.b64decode(value[BYTES_TAG], validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise CorruptLayoutError("bytes in a static item are not base64") from None
        return {key: restored_static(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [restored_static(inner) for inner in value]
    return value


def write_static(folder: Path, items: Mapping[str, Any], *, durable: bool = True) -> bytes:
    """Write static.json and return its bytes."""
    data = static_bytes(items)
    write_file(folder / layout.STATIC_FILE, data, durable=durable)
    return data


def static_bytes(items: Mapping[str, Any]) -> bytes:
    """static.json as it is stored."""
    return dump_json(dict(items))


def read_static(folder: Folder, expected: FileSum | None = None) -> dict[str, Any]:
    """The static items of an episode; none where there is no static.json and none is expected."""
    return _retry_damaged(folder, layout.STATIC_FILE, lambda: _read_static(folder, expected))


def _read_static(folder: Folder, expected: FileSum | None) -> dict[str, Any]:
    path, data = read_document(folder, layout.STATIC_FILE)
    if expected is not None:
        if data is None:
            raise CorruptLayoutError("static.json is missing", path=path)
        expected.check(data, path)
    if data is None:
        return {}
    try:
        return {name: restored_static(value) for name, value in parse_json_object(data).items()}
    except FormatError as error:
        raise _at(error, path) from None


def write_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write meta.json with a checksum over everything else in it."""
    write_file(folder / layout.META_FILE, meta_bytes(meta))


def meta_bytes(meta: Mapping[str, Any]) -> bytes:
    """meta.json as it is stored: a line per item and per signal, with a checksum over everything else in it."""
    # Every value is made into text once, for the checksum and for the file: a recorder waits for this at its close.
    texts = {key: _sorted_json(value) for key, value in meta.items() if key not in (CHECKSUM_KEY, "signals")}
    if "signals" not in meta:
        return _in_lines({**texts, CHECKSUM_KEY: _sum_of(texts)})
    signals = {name: _sorted_json(about) for name, about in meta["signals"].items()}
    total = _sum_of({**texts, "signals": _in_order(signals)})
    return _in_lines({**texts, "signals": _in_lines(signals, b" "), CHECKSUM_KEY: total})


def _in_lines(texts: Mapping[str, bytes], indent: bytes = b"") -> bytes:
    """A JSON object with a line per item; the library's own indenting is Python code, and slow."""
    lines = [b"%b %b: %b" % (indent, _quoted(key), text) for key, text in texts.items()]
    return b"{\n" + b",\n".join(lines) + b"\n" + indent + b"}"


_quoted = functools.lru_cache(maxsize=1024)(dump_json)
"""Keys as JSON: they come again with every episode."""


def _in_order(texts: Mapping[str, bytes]) -> bytes:
    """A JSON object as the checksum is computed of it: keys sorted, without spaces."""
    return b"{" + b",".join([_quoted(key) + b":" + texts[key] for key in sorted(texts)]) + b"}"


def _sum_of(texts: Mapping[str, bytes]) -> bytes:
    return b'"%08x"' % crc32c(_in_order(texts))


def read_meta(folder: Folder) -> dict[str, Any]:
    """The system metadata of an episode, checked; none where there is no meta.json."""
    return _retry_damaged(folder, layout.META_FILE, lambda: _read_meta(folder))


def _read_meta(folder: Folder) -> dict[str, Any]:
    path, data = read_document(folder, layout.META_FILE)
    if data is None:
        return {}
    try:
        meta = parse_json_object(data)
    except FormatError as error:
        raise _at(error, path) from None
    stated = meta.pop(CHECKSUM_KEY, None)
    if (stated is not None or _is_ours(meta)) and stated != _checksum(meta):
        raise ChecksumError("meta.json was changed after it was written", path=path)
    return meta


def read_set_metadata(folder: Folder) -> dict[str, Any]:
    """What dataset.json keeps of the source of a set as a whole; nothing where there is none."""
    path, data = read_document(folder, layout.DATASET_FILE)
    if data is None:
        return {}
    try:
        found = parse_json_object(data).get("metadata", {})
    except FormatError as error:
        raise _at(error, path) from None
    return found if isinstance(found, dict) else {}


def _retry_damaged(folder: Folder, name: str, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return `call()`; if it finds a file damaged, its cached copy is dropped and it is read once more."""
    try:
        return call()
    except FormatError:
        if isinstance(folder, Path):
            raise
        reader = folder.open(name)
        if not drop_cached(reader, 0, reader.size):
            raise
    return call()


def read_document(folder: Folder, name: str) -> tuple[str, bytes | None]:
    """What to call a document of an episode, and its bytes if it is there."""
    try:
        if isinstance(folder, Path):
            return str(folder / name), read_bytes(folder / name)
        return f"{folder.name}/{name}", read_bytes(folder.open(name))
    except BlobNotFoundError:
        return str(name), None


def read_bytes(source: Source, *, max_bytes: int = layout.MAX_JSON_BYTES) -> bytes:
    """All bytes of a small file."""
    reader = FileRangeReader(source) if isinstance(source, str | os.PathLike) else source
    try:
        if reader.size > max_bytes:
            raise CorruptLayoutError(f"a file of this kind has at most {max_bytes} bytes", path=reader.name)
        return bytes(reader.read(0, reader.size))
    finally:
        reader.close()


def _is_ours(meta: Mapping[str, Any]) -> bool:
    """Whether our writer made it: then its checksum cannot be missing."""
    writer = meta.get("writer")
    return isinstance(writer, dict) and str(writer.get("name")).startswith("warpdata.")


def _checksum(meta: Mapping[str, Any]) -> str:
    return f"{crc32c(_sorted_json(dict(meta))):08x}"


def _sorted_json(value: Any) -> bytes:
    return _SORTED.encode(value).encode()


def _at(error: FormatError, path: str) -> FormatError:
    return type(error)(error.message, path=path, hint=error.hint)
