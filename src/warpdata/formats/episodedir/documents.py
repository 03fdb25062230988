"""The documents of an episode directory: names, static.json, meta.json, edits.jsonl, and what they state of signals."""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import json
import math
import operator
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.bytekit.checksum import crc32c
from warpdata.bytekit.io.append_file import AppendFile
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.io.ranges import FolderReader, RangeReader, retry_damaged
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process import locks
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    ConflictError,
    CorruptLayoutError,
    FormatError,
    TruncatedError,
    add_path,
    naming,
    require_word,
    suggests,
)
from warpdata.formats.episodedir import layout

Folder = Path | FolderReader
T = TypeVar("T")

BYTES_TAG = "__bytes_base64__"
CHECKSUM_KEY = "checksum"
CRC_KEY = "crc32c"
MAX_STATIC_DEPTH = 64
MAX_STATIC_ARRAY = 1 << 16
"""More numbers than this belong in a signal, not in JSON."""

_PART = re.compile(r"[A-Za-z0-9_.\-\x80-\U0010ffff]+")
_STRANGE = re.compile(r"[^A-Za-z0-9_.\-\x80-\U0010ffff]+")
_SORTED = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LOCK_TIMEOUT_S = 60.0


# Names.


def episode_name(number: int) -> str:
    """Relative path of an episode in its root: in blocks of a thousand."""
    return f"{number // layout.BLOCK_EPISODES * layout.BLOCK_EPISODES:012d}/{number:012d}"


def episode_path(root: Path, number: int) -> Path:
    """The directory of an episode."""
    return root / episode_name(number)


def check_name(name: object) -> str:
    """`name` if it may name a signal or a static item, else TypeError or ValueError with the reason."""
    if not isinstance(name, str):
        raise TypeError(f"a name is a string, not {type(name).__name__}")
    _check_text(name)
    return name


def plain_part(key: object) -> str:
    """A part of a name from any key: in Unicode form NFC, what no name can have is replaced by `_`."""
    normal = unicodedata.normalize("NFC", str(key))
    part = _STRANGE.sub("_", "".join(letter if letter.isprintable() else "\0" for letter in normal))
    return part if part.strip(".") else "_"


@functools.lru_cache(maxsize=4096)
def _check_text(name: str) -> None:
    if len(name.encode("utf-8", "replace")) > layout.MAX_NAME_BYTES:
        raise ValueError(f"name {name[:40]!r}… is longer than {layout.MAX_NAME_BYTES} bytes")
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts) or {".", ".."} & set(parts) or not name.isprintable():
        raise ValueError(
            f"name {name!r} is refused: use letters, digits, '_', '.', '-' in parts joined by '/', no '..'"
        )
    if not unicodedata.is_normalized("NFC", name):  # some disks would give the file another name
        raise ValueError(f"name {name!r} is refused: not in Unicode form NFC (unicodedata.normalize)")
    is_file = [
        part in (layout.META_FILE, layout.STATIC_FILE) or bool(_split(part)[1]) or part.endswith(".parquet")
        for part in parts[:-1]
    ]
    if parts[0] == layout.RECORDING_FOLDER or name.endswith(".frames") or any(is_file):
        raise ValueError(f"name {name!r} is reserved")


def signal_file(folder: Path, name: str, suffix: str = layout.SIGNAL_SUFFIX) -> Path:
    """The file of a signal inside an episode; `/` in the name is a sub-folder."""
    return folder / (name + suffix)


def find_signals(files: Iterable[str]) -> dict[str, str]:
    """Signal name -> suffix of its data file, from the names of the files of an episode alone."""
    suffixes: dict[str, str] = {}
    for file in sorted(files):
        name, suffix = _split(file)
        is_hidden = any(part.startswith(".") for part in file.split("/"))
        if suffix and not is_hidden and (suffix in layout.VIDEO_SUFFIXES or name not in suffixes):
            suffixes[name] = suffix
    return suffixes


def files_below(folder: Path) -> Iterator[str]:
    """The name of every file below a folder, with `/`; hidden folders are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            yield os.path.relpath(os.path.join(place, file), folder).replace(os.sep, "/")


def _split(file: str) -> tuple[str, str]:
    """Name and suffix of the data file of a signal; empty for other files."""
    if not file.endswith(layout.FRAMES_SUFFIX):
        for suffix in (layout.SIGNAL_SUFFIX, *layout.VIDEO_SUFFIXES):
            if file.endswith(suffix) and len(file) > len(suffix):
                return file[: -len(suffix)], suffix
    return "", ""


# Files.


@dataclass(frozen=True, slots=True)
class FileSum:
    """Size and checksum of a file, as meta.json keeps them."""

    size_bytes: int
    crc32c: int

    @classmethod
    def of(cls, data: bytes) -> FileSum:
        """The sum of these bytes."""
        return cls(memoryview(data).nbytes, crc32c(data))

    @classmethod
    def from_json(cls, entry: Any, path: str) -> FileSum:
        """The sum that an entry of meta.json states."""
        try:
            return cls(int(entry["bytes"]), int(entry["crc32c"], 16))
        except (KeyError, TypeError, ValueError):
            raise CorruptLayoutError("the file entry in meta.json is damaged", path=path) from None

    def to_json(self) -> dict[str, Any]:
        """The entry for meta.json."""
        return {"bytes": self.size_bytes, "crc32c": f"{self.crc32c:08x}"}

    def check(self, data: bytes, path: str) -> None:
        """Raise unless `data` is what was written."""
        if len(data) < self.size_bytes:
            raise TruncatedError(f"{len(data)} bytes of {self.size_bytes} are left", path=path)
        if len(data) != self.size_bytes or crc32c(data) != self.crc32c:
            raise ChecksumError("the file was changed after it was written", path=path)


def read_bytes(
    source: str | os.PathLike[str] | RangeReader, *, max_bytes: int = layout.MAX_JSON_BYTES
) -> bytes:
    """All bytes of a small file."""
    reader = FileRangeReader(source) if isinstance(source, str | os.PathLike) else source
    with contextlib.closing(reader):
        return _all_bytes(reader, max_bytes)


def _all_bytes(reader: RangeReader, max_bytes: int) -> bytes:
    if reader.size > max_bytes:
        raise CorruptLayoutError(f"a file of this kind has at most {max_bytes} bytes", path=reader.name)
    return bytes(reader.read(0, reader.size))


def read_document(folder: Folder, name: str, parse: Callable[[bytes, str], T]) -> T | None:
    """What `parse` makes of the bytes and the path of a document; None without the document.

    If it is damaged, its cached copy is dropped and it is read once more.
    """
    try:
        reader = FileRangeReader(folder / name) if isinstance(folder, Path) else folder.open(name)
    except BlobNotFoundError:
        return None
    path = str(folder / name) if isinstance(folder, Path) else f"{folder.name}/{name}"
    with contextlib.closing(reader):
        return retry_damaged(reader, lambda: parse(_all_bytes(reader, layout.MAX_JSON_BYTES), path))


def parse_document(data: bytes, path: str) -> dict[str, Any]:
    """A JSON object; errors name its file."""
    with naming(path):
        return parse_json_object(data)


# static.json


def plain_static(name: str, value: Any) -> Any:
    """`value` as JSON can hold it; anything else is a TypeError or ValueError that names the item."""
    try:
        return _plain(value, 0)
    except RecursionError:
        raise ValueError(f"static item {name!r}: nested too deeply, or inside itself") from None
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"static item {name!r}: {error}") from None


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf" and not np.issubdtype(value.dtype, np.floating):
            raise TypeError(f"an array of {value.dtype} cannot be stored as JSON")
        if value.size > MAX_STATIC_ARRAY:
            raise ValueError(f"{value.size} numbers are too many; record them as a signal")
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(value, Mapping | list | tuple) and depth == MAX_STATIC_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == BYTES_TAG:
                raise TypeError(f"key {key!r} is not a plain string")
        return {_plain_item(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return _plain_item(value)


def _plain_item(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return {BYTES_TAG: base64.b64encode(bytes(value)).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be stored as JSON")
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError("the text is not valid Unicode") from None
    for kind in (bool, int, float, str):  # subclasses, such as those of enums, become the plain type
        if isinstance(value, kind):
            return kind(value)
    if value is not None:
        raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")
    return value


def restored_static(value: Any) -> Any:
    """What `plain_static` made, with bytes as bytes again."""
    if isinstance(value, list):
        return [restored_static(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) != {BYTES_TAG}:
        return {key: restored_static(item) for key, item in value.items()}
    try:
        return base64.b64decode(value[BYTES_TAG], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise CorruptLayoutError("bytes in a static item are not base64") from None


def static_bytes(items: Mapping[str, Any]) -> bytes:
    """static.json as it is stored."""
    return dump_json(dict(items))


def read_static(folder: Folder, expected: FileSum | None = None) -> dict[str, Any]:
    """The static items of an episode; empty where there is no static.json and none is expected."""

    def parse(data: bytes, path: str) -> dict[str, Any]:
        if expected is not None:
            expected.check(data, path)
        try:
            return {name: restored_static(value) for name, value in parse_document(data, path).items()}
        except CorruptLayoutError as error:
            raise add_path(error, path) from None

    items = read_document(folder, layout.STATIC_FILE, parse)
    if items is None and expected is not None:
        place = folder if isinstance(folder, Path) else folder.name
        raise CorruptLayoutError("static.json is missing", path=f"{place}/{layout.STATIC_FILE}")
    return items or {}


# meta.json and dataset.json


def meta_bytes(meta: Mapping[str, Any]) -> bytes:
    """meta.json as it is stored: a line per item and per signal, with a checksum over everything else in it."""
    # Every value is encoded once, for the checksum and for the file: a recorder waits for this at its close.
    items = {
        key: _SORTED.encode(value) for key, value in meta.items() if key not in (CHECKSUM_KEY, "signals")
    }
    signals = {name: _SORTED.encode(entry) for name, entry in meta.get("signals", {}).items()}
    summed = {**items, "signals": _object(dict(sorted(signals.items())))} if "signals" in meta else items
    total = crc32c(_object(dict(sorted(summed.items()))).encode())
    lines = {**items, "signals": _object(signals, ",\n  ")} if "signals" in meta else items
    return _object({**lines, CHECKSUM_KEY: f'"{total:08x}"'}, ",\n ").encode()


def _object(texts: Mapping[str, str], separator: str = ",") -> str:
    """A JSON object of values that are JSON already."""
    colon = ":" if separator == "," else ": "
    return "{" + separator.join([_key_text(key) + colon + text for key, text in texts.items()]) + "}"


@functools.lru_cache(maxsize=4096)
def _key_text(key: str) -> str:
    """A key as JSON: those of other episodes are the same."""
    return dump_json(key).decode()


def read_meta(folder: Folder) -> dict[str, Any]:
    """The system metadata of an episode, checked; empty where there is no meta.json."""

    def parse(data: bytes, path: str) -> dict[str, Any]:
        meta = parse_document(data, path)
        stated, writer = meta.pop(CHECKSUM_KEY, None), meta.get("writer")
        is_ours = isinstance(writer, dict) and str(writer.get("name")).startswith("warpdata.")
        if (stated is not None or is_ours) and stated != f"{crc32c(_SORTED.encode(meta).encode()):08x}":
            raise ChecksumError("meta.json was changed after it was written", path=path)
        return meta

    return read_document(folder, layout.META_FILE, parse) or {}


def read_set_metadata(folder: Folder) -> dict[str, Any]:
    """What dataset.json keeps of the source of a set as a whole; empty without the file."""
    metadata = (read_document(folder, layout.DATASET_FILE, parse_document) or {}).get("metadata")
    return metadata if isinstance(metadata, dict) else {}


# edits.jsonl: one checksummed JSON object per line, only ever appended to.


def pack_line(edit: Mapping[str, Any]) -> bytes:
    """One line of the log."""
    body = {key: value for key, value in edit.items() if key != CRC_KEY}
    return dump_json({**body, CRC_KEY: f"{crc32c(dump_json(body)):08x}"}) + b"\n"


def read_log(root: Folder) -> tuple[list[dict[str, Any]], bool]:
    """All edits in order, and whether the log belongs to another program (then it is left alone)."""
    return read_document(root, layout.EDITS_FILE, _parse_log) or ([], False)


def _parse_log(data: bytes, path: str) -> tuple[list[dict[str, Any]], bool]:
    whole, _, torn = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    if lines and _is_foreign([*lines, torn]):
        return [], True
    edits: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            edit = parse_json_object(line)
        except FormatError as error:
            raise CorruptLayoutError(f"line {number} of the edits is {error.message}", path=path) from None
        if edit.pop(CRC_KEY, None) != f"{crc32c(dump_json(edit)):08x}":
            raise ChecksumError(f"line {number} of the edits was changed after it was written", path=path)
        edits.append(edit)
    for expected, edit in enumerate(edits, 1):
        if edit.get("seq") != expected:
            raise CorruptLayoutError(f"edit {expected} is missing in line {expected}", path=path)
    return edits, False


def append_edit(root: Path, edit: Mapping[str, Any]) -> None:
    """Add one line, durable when this returns, or ConflictError if another process added one meanwhile.

    A torn line of an earlier crash is cut off first.
    """
    path = root / layout.EDITS_FILE
    with locks.hold_lock(path, timeout_s=_LOCK_TIMEOUT_S):
        # The lock belongs to the open file, not to its name: reading it here does not release the lock.
        data = read_document(root, layout.EDITS_FILE, lambda data, _: data) or b""
        lines = data.count(b"\n")
        if edit["seq"] != lines + 1:
            raise ConflictError(f"the log has {lines} edits by now", path=path)
        with contextlib.closing(AppendFile.open(path, end=data.rfind(b"\n") + 1)) as log:
            log.append(pack_line(edit))
            log.sync()


def _is_foreign(lines: Iterable[bytes]) -> bool:
    """Logs of the existing library have the same name but neither sequence numbers nor checksums."""
    for line in filter(bytes.strip, lines):
        try:
            edit = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(edit, dict) or "seq" in edit or CRC_KEY in edit:
            return False
    return True


ENCODERS = {"h264": "libx264", "hevc": "libx265", "h265": "libx265", "av1": "libsvtav1", "ffv1": "ffv1"}

QUALITY_LIMITS = {"h264": 51, "hevc": 51, "h265": 51, "av1": 63}
"""The worst quality (crf) that each encoder takes; 0 is the best."""

STILL_CODECS = ("png", "mjpeg")
"""Every packet is a whole picture."""

_MOST = 1_000_000
"""Frames in a second or a group, or threads: far above what anyone means, and what encoders can hold."""

_PIXELS = {"|u1": "uint8", "<u2": "uint16"}

FORMATS = {
    ("uint8", 1): ("gray", "gray"),
    ("uint8", 3): ("rgb24", "bgr0"),
    ("uint8", 4): ("rgba", "bgra"),
    ("uint16", 1): ("gray16le", "gray16le"),
    ("uint16", 3): ("rgb48le", "gbrp16le"),
    ("uint16", 4): ("rgba64le", "gbrap16le"),
}
"""Element type and channels -> FFmpeg's names of the raw pixels, and of those that FFV1 stores."""


@suggests
@dataclass(frozen=True, slots=True)
class VideoOptions:
    """How a camera is encoded; `None` chooses by the kind of image."""

    codec: str | None = None
    gop_size: int = 10
    fps: float = 30
    quality: int | None = None
    preset: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.codec is not None:
            require_word("codec", self.codec, ENCODERS)
        for name, least in (("gop_size", 1), ("threads", 0)):
            if not least <= operator.index(getattr(self, name)) <= _MOST:
                raise ValueError(f"{name} is from {least} to {_MOST}, not {getattr(self, name)}")
        most = QUALITY_LIMITS.get(self.codec or "av1")
        if self.quality is not None and not 0 <= operator.index(self.quality) <= (most or 0):
            allowed = f"0 (best) to {most}" if most else "None: the codec is lossless"
            raise ValueError(f"quality out of range: expected {allowed}, got {self.quality}")
        if not 1 / _MOST < self.fps <= _MOST:
            raise ValueError(f"fps is positive and at most {_MOST}, not {self.fps}")

    def to_json(self) -> dict[str, Any]:
        """As journals keep it."""
        return asdict(self)

    @property
    def rate(self) -> Fraction:
        """Frames per second as containers want it."""
        return Fraction(self.fps).limit_denominator(1001)


class FrameShape(NamedTuple):
    """Height, width and channels of a camera, and its element type.

    Channels are 3 for RGB and 4 for RGBA. A single plane has 0, or 1 where its frames have an axis for it.
    """

    height: int
    width: int
    channels: int
    dtype: str

    @classmethod
    def of(cls, frame: NDArray[Any]) -> FrameShape:
        """The shape of an image; anything else is a ValueError."""
        return cls.of_values(frame.shape, frame.dtype)

    @classmethod
    def of_values(cls, shape: tuple[int, ...], dtype: np.dtype[Any]) -> FrameShape:
        """That of HxW, HxWx1, HxWx3 or HxWx4 values of uint8 or uint16; anything else is a ValueError."""
        name, channels = _PIXELS.get(dtype.str), shape[2] if len(shape) == 3 else 0
        is_image = len(shape) in (2, 3) and (name, channels or 1) in FORMATS and all(shape)
        if name is None or not is_image or max(shape) > layout.MAX_FRAME_SIDE:
            raise ValueError(f"an image is uint8 or uint16 HxW, HxWx3 or HxWx4, not {dtype} {shape}")
        return cls(shape[0], shape[1], channels, name)

    @property
    def is_colour(self) -> bool:
        """Whether it is RGB of 8 bits, which every codec takes."""
        return self.channels == 3 and self.dtype == "uint8"

    @property
    def picture(self) -> FrameShape:
        """The shape in the head of a single picture, which has no axis of one channel."""
        return self._replace(channels=0) if self.channels == 1 else self

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of one frame."""
        return (self.height, self.width, self.channels) if self.channels else (self.height, self.width)

    @property
    def nbytes(self) -> int:
        """Raw bytes of one frame."""
        return math.prod(self.shape) * (2 if self.dtype == "uint16" else 1)

    @property
    def raw_format(self) -> str:
        """FFmpeg's name of the raw pixels."""
        return FORMATS[self.dtype, self.channels or 1][0]

    @property
    def lossless_format(self) -> str:
        """FFmpeg's name of the pixels that FFV1 stores."""
        return FORMATS[self.dtype, self.channels or 1][1]


@dataclass(frozen=True, slots=True)
class Stream:
    """What a decoder must know about an encoded camera."""

    codec: str
    pix_fmt: str
    coded_width: int
    coded_height: int
    extradata: bytes

    def to_json(self) -> dict[str, Any]:
        """As indexes and journals keep it."""
        coded, extradata = [self.coded_width, self.coded_height], base64.b64encode(self.extradata).decode()
        return {"codec": self.codec, "pix_fmt": self.pix_fmt, "coded": coded, "extradata": extradata}

    @classmethod
    def from_json(cls, about: Mapping[str, Any]) -> Stream:
        """What `to_json` made; anything else is a KeyError, TypeError or ValueError."""
        width, height = (int(side) for side in about["coded"])
        extradata = base64.b64decode(about["extradata"], validate=True)
        return cls(str(about["codec"]), str(about["pix_fmt"]), width, height, extradata)


def choose_codec(shape: FrameShape, options: VideoOptions) -> str:
    """The codec of the options, or the default: h264 for RGB of 8 bits, lossless ffv1 for all else."""
    codec = options.codec or ("h264" if shape.is_colour else "ffv1")
    if (shape.dtype == "uint16" or shape.channels == 4) and codec != "ffv1":
        kind = "uint16" if shape.dtype == "uint16" else "RGBA"
        raise ValueError(f"{kind} images are stored lossless with codec 'ffv1', not {codec!r}")
    return codec


def suffix_for(codec: str) -> str:
    """The file name ending of a codec's container."""
    return ".mkv" if codec == "ffv1" else ".mp4"


_ABOUT_ROLE = ("role", "of", "model", "clock")
_OBJECT_KINDS = ("text", "bytes")


@dataclass(frozen=True, slots=True)
class Description:
    """What one signal holds, as it is stored beside its values."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    units: str | None = None
    names: tuple[str, ...] | None = None
    role: str | None = None
    of: str | None = None
    model: str | None = None
    clock: str | None = None
    rate_hz: float | None = None
    """Of sound: samples in a second."""

    @property
    def is_ragged(self) -> bool:
        """Whether a value has any number of rows, each of `shape`."""
        return self.kind in layout.RAGGED_KINDS

    @property
    def is_object(self) -> bool:
        """Whether values are text, bytes or arrays of varying length."""
        return self.kind in _OBJECT_KINDS or self.is_ragged

    def frame_shape(self) -> FrameShape:
        """The shape of the frames of a camera; ValueError where no frame is like this."""
        return FrameShape.of_values(self.shape, dtype_named(self.dtype).dtype)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON holds it."""
        entry: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}
        if self.units is not None:
            entry["units"] = self.units
        if self.names is not None:
            entry["names"] = list(self.names)
        for key in _ABOUT_ROLE:
            if (value := getattr(self, key)) is not None:
                entry[key] = value
        return entry if self.rate_hz is None else {**entry, "sample_rate_hz": self.rate_hz}

    @classmethod
    def from_json(cls, entry: Any, path: str) -> Description:
        """Check a stored description."""
        try:
            shape = tuple(int(side) for side in entry["shape"])
            names = None if entry.get("names") is None else tuple(str(name) for name in entry["names"])
            about = {key: None if entry.get(key) is None else str(entry[key]) for key in _ABOUT_ROLE}
            stated = entry.get("sample_rate_hz")
            rate = None if stated is None else float(stated)
            kind, dtype = str(entry["kind"]), str(entry["dtype"])
            made = cls(kind, dtype, shape, entry.get("units"), names, **about, rate_hz=rate)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise CorruptLayoutError("the description of the signal is damaged", path=path) from None
        is_known = made.dtype in DTYPE_NAMES or (made.kind in _OBJECT_KINDS and made.dtype == made.kind)
        is_sound = made.kind == "sound"
        has_rate = rate is not None and 0 < rate < 1e9 and made.dtype in layout.SOUND_DTYPES
        is_valid = made.kind in layout.KINDS and is_known and all(side > 0 for side in shape)
        is_valid = is_valid and math.prod(shape) <= layout.MAX_RECORDS
        if not is_valid or has_rate != is_sound or (is_sound and len(shape) > 1):
            raise CorruptLayoutError(f"a signal of kind {made.kind!r}, type {made.dtype!r}", path=path)
        if made.role is not None and made.role not in layout.ROLES:
            raise CorruptLayoutError(f"a signal with the role {made.role!r}", path=path)
        return made


@dataclass(frozen=True, slots=True)
class Summary:
    """Description of a signal, number of records, first and last time."""

    description: Description
    count: int
    first_ts_ns: int | None
    last_ts_ns: int | None
