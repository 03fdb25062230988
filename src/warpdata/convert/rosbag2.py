"""ROS 2 bags as episodes: a folder with metadata.yaml and SQLite files is one; bags of MCAP files are read as such.

The adapter of PyYAML.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import decode_zstd_bounded, iter_decode_zstd, zstd_frame_size
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.ranges import RangeFile
from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.mcap.read import METADATA_FILE, McapLog, group_files
from warpdata.convert.mcap.read import matches as is_mcap
from warpdata.convert.messages import (
    MAX_MESSAGE_BYTES,
    Ints,
    LogChannel,
    LogContents,
    MessageLog,
    Payloads,
    Stamps,
)
from warpdata.convert.messages.cdr import CdrDecoder, parse_definition, ros_definition
from warpdata.convert.messages.episode import Reading, Recordings, TimeKind
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
    WarpError,
    naming,
)

_MAX_METADATA_BYTES = 64 << 20
_SUFFIXES = (".db3", ".db3.zstd")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SQLITE_MAGIC = b"SQLite format 3\0"
_ROWS_PER_QUERY = 512
_MAX_FILE_RATIO = 64
_TRIED_MESSAGES = 8
_ZSTD_HEAD_BYTES = 1024
_MAX_DEPTH = 64

_TOPICS = "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table'"
_DEFINITIONS = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
_MESSAGES = "SELECT timestamp, id, length(data) FROM messages WHERE topic_id = ? ORDER BY timestamp, id"
_DATA = "SELECT id, data FROM messages WHERE id IN ({})"


def matches(place: Place) -> bool:
    """Whether it is a bag with SQLite files, a folder of bags, or one such file."""
    if place.is_file:
        return place.name.endswith(_SUFFIXES) and place.head(4) in (_SQLITE_MAGIC[:4], _ZSTD_MAGIC)
    return bool(_list_bags(place))


def read(
    source: Any,
    *,
    time: TimeKind = "log",
    actions: Sequence[str] = (),
    topics: Sequence[str] | None = None,
    recover: bool = False,
) -> Episodes:
    """The recordings of a bag, or of a folder of bags, which may hold SQLite or MCAP files.

    The options are those of `warpdata.convert.mcap.read`. Bags before ROS 2 Iron do not carry the types of their
    messages: `warpdata[ros]` has those that ROS ships. Messages of other types stay bytes.
    """
    reading = Reading.of(time, actions, topics)
    return Episodes(Recordings(Place.of(source), reading, _find_recordings, partial(_open_log, recover)))


def _list_bags(place: Place) -> dict[str, list[str]]:
    """SQLite files by the folder that holds them."""
    bags: dict[str, list[str]] = {}
    for name in place.names(folders_deep=1):
        if name.endswith(_SUFFIXES):
            owner = name.rpartition("/")[0] or PurePosixPath(place.name).name
            bags.setdefault(owner, []).append(name)
    return bags


def _find_recordings(place: Place) -> dict[str, list[str]]:
    if place.is_file:
        return {PurePosixPath(place.name).name.partition(".")[0]: [""]}
    return {**group_files(place), **_list_bags(place)}


def _open_log(recover: bool, place: Place, files: list[str]) -> MessageLog:
    """One bag, with its files in the order of metadata.yaml."""
    if files[0].endswith(".mcap") or (place.is_file and is_mcap(place)):
        return McapLog(place, files, recover)
    folder = files[0].rpartition("/")[0]
    metadata_file = f"{folder}/{METADATA_FILE}".lstrip("/")
    stated: Mapping[str, Any] = {}
    if not place.is_file and place.exists(metadata_file):
        raw = place.read(metadata_file, max_bytes=_MAX_METADATA_BYTES)
        stated = parse_metadata(raw, f"{place.name}/{metadata_file}")
        files = _order_files(stated.get("relative_file_paths"), files, place.name)
    return BagLog(place, files, stated, f"{place.name}/{folder}".rstrip("/"))


def _order_files(listed: Any, files: list[str], path: str) -> list[str]:
    """Files in the order of the metadata; a missing one is an error."""
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed) or not listed:
        return files
    by_name = {PurePosixPath(file).name.removesuffix(".zstd"): file for file in files}
    names = [PurePosixPath(name).name.removesuffix(".zstd") for name in listed]  # old bags list "folder/file"
    for name in names:
        if name not in by_name:
            raise BlobNotFoundError(f"file of the bag is missing: {name}", path=path)
    return [by_name[name] for name in names]


def parse_metadata(raw: bytes, path: str) -> dict[str, Any]:
    """Information about a bag in metadata.yaml, as JSON values. Aliases, which can grow without bound, are refused."""
    try:
        import yaml
    except ImportError:
        raise MissingExtraError.for_extra("PyYAML", "ros") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = raw.decode()
        depth = 0
        for event in yaml.parse(text, loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MAX_DEPTH:
                raise ValueError("it has aliases, or is nested too deeply")
        document = json.loads(json.dumps(yaml.load(text, loader), default=str))
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise CorruptLayoutError(f"corrupted metadata of a bag ({error})", path=path) from None
    stated = document.get("rosbag2_bagfile_information") if isinstance(document, dict) else None
    if not isinstance(stated, dict):
        raise CorruptLayoutError("metadata of a bag has no rosbag2_bagfile_information", path=path)
    return stated


class BagLog(MessageLog):
    """The .db3 files of one bag, in order; `stated` is its metadata.yaml."""

    def __init__(self, place: Place, files: Sequence[str], stated: Mapping[str, Any], name: str) -> None:
        super().__init__(place, files, name)
        self._stated = stated
        self._connections: dict[int, sqlite3.Connection] = {}

    def _select(self, file: int, query: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            if file not in self._connections:
                self._connections[file] = self._connect(file)
            return self._connections[file].execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
            # The message of an SQLite error can quote damaged bytes that are no text.
            raise CorruptLayoutError(f"corrupted SQLite file ({error})", path=self._path(file)) from None

    def _connect(self, file: int) -> sqlite3.Connection:
        """Open a file read-only; a copy if it is compressed, remote, or has a write-ahead log."""
        name, path = self._files[file], self._place.path
        if name and path is not None:
            path = self._place.inside(name)
        is_compressed = self._path(file).endswith(".zstd")
        log = None if path is None else Path(f"{path}-wal")
        has_log = log is not None and log.is_file() and log.stat().st_size > 0
        if path is None or is_compressed or has_log:
            path = self._copy(file, is_compressed)
            if log is not None and has_log:
                shutil.copyfile(log, f"{path}-wal")
        with open(path, "rb") as opened:
            if opened.read(len(_SQLITE_MAGIC)) != _SQLITE_MAGIC:
                raise BadMagicError("not an SQLite file", path=self._path(file))
        flags = "mode=ro" if has_log else "mode=ro&immutable=1"
        connection = sqlite3.connect(f"{path.as_uri()}?{flags}", uri=True, check_same_thread=False)
        weakref.finalize(self, connection.close)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    def _copy(self, file: int, is_compressed: bool) -> Path:
        """A temporary copy of a file, decompressed."""
        folder = tempfile.mkdtemp(prefix="warp-bag-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        target = Path(folder) / "bag.db3"
        with (
            naming(self._path(file)),
            contextlib.closing(self._place.open(self._files[file])) as reader,
            map_os_errors(target),
            open(target, "wb") as out,
        ):
            source = io.BufferedReader(RangeFile(reader))
            if not is_compressed:
                shutil.copyfileobj(source, out, 1 << 24)
                return target
            limit = max(1 << 24, reader.size * _MAX_FILE_RATIO)
            size = zstd_frame_size(reader.read(0, min(reader.size, _ZSTD_HEAD_BYTES)))
            if size is not None and size > limit:
                raise LimitExceededError(f"decompressed size {size} of {reader.size} bytes (limit {limit})")
            out.writelines(iter_decode_zstd(source, limit))
            if out.tell() < (size or 1):
                raise TruncatedError(f"compressed file is cut: expected {size} bytes, got {out.tell()}")
        return target

    @cached_property
    def _topics(self) -> dict[tuple[str, str, str], dict[int, int]]:
        """Name, type and serialization of every topic -> its number in each file."""
        topics: dict[tuple[str, str, str], dict[int, int]] = {}
        for file in range(len(self._files)):
            for number, *texts in self._select(file, _TOPICS):
                if not isinstance(number, int) or not all(isinstance(text, str) for text in texts):
                    raise CorruptLayoutError("corrupted topic of a bag", path=self._path(file))
                name, kind, form = texts
                stated = self._stated_topics.get(name, {}).get("serialization_format")
                for encoding in (form, stated or "cdr"):
                    if encoding != "cdr":
                        fact = f"unsupported serialization {encoding!r} of topic {name!r}"
                        hint = "Only CDR can be read: convert the bag with the program that wrote it."
                        raise FormatError(fact, path=self._path(file), hint=hint)
                topics.setdefault((name, kind, form), {})[file] = number
        return topics

    @cached_property
    def _stated_topics(self) -> dict[str, Mapping[str, Any]]:
        """Entries of topics in metadata.yaml by name."""
        entries = self._stated.get("topics_with_message_count")
        topics: dict[str, Mapping[str, Any]] = {}
        for entry in entries if isinstance(entries, list) else ():
            about = entry.get("topic_metadata") if isinstance(entry, dict) else None
            if isinstance(about, dict):
                topics[str(about.get("name"))] = about
        return topics

    @cached_property
    def _stored_definitions(self) -> dict[str, str]:
        """Definitions by type, which bags since ROS 2 Iron carry."""
        definitions: dict[str, str] = {}
        for file in range(len(self._files)):
            if ("message_definitions",) in self._select(file, _TABLES):
                for name, encoding, text in self._select(file, _DEFINITIONS):
                    if encoding == "ros2msg" and isinstance(text, str) and text:
                        definitions.setdefault(str(name), text)
        return definitions

    @cached_property
    def contents(self) -> LogContents:
        """The topics of all files, with the times of recording, the only ones of a bag; metadata.yaml as JSON."""
        channels = []
        for number, (name, kind, form) in enumerate(self._topics):
            text = self._find_definition(number, kind)
            encoding, data = ("", b"") if text is None else ("ros2msg", text.encode())
            qos = self._stated_topics.get(name, {}).get("offered_qos_profiles")
            more = {"offered_qos_profiles": qos} if isinstance(qos, str) else {}
            channels.append(LogChannel(name, kind, encoding, data, form, more))
        header = {"profile": "ros2", "library": "rosbag2"}
        about = {"header": header, "metadata": [], "bag": dict(self._stated)}
        tables = self._messages
        stamps = [Stamps(table[:, 0], table[:, 0], np.arange(len(table))) for table in tables]
        return LogContents(channels, stamps, [int(table[:, 3].sum()) for table in tables], about)

    def _find_definition(self, number: int, kind: str) -> str | None:
        """The definition that fits the first messages: that of the bag or that of ROS."""
        package, _, name = kind.rpartition("/")
        full_name = kind if "/" in package else f"{package}/msg/{name}"
        rows = np.arange(min(_TRIED_MESSAGES, len(self._messages[number])))
        for text in (self._stored_definitions.get(kind), ros_definition(full_name)):
            with contextlib.suppress(WarpError):
                if text is not None:
                    CdrDecoder(parse_definition(kind, text), self.name).decode(self.payloads(number, rows))
                    return text
        return None

    @cached_property
    def _messages(self) -> list[NDArray[np.int64]]:
        """Time, file, row and size of each message, for every channel."""
        channels = []
        for numbers in self._topics.values():
            entries: list[tuple[int, int, int, int]] = []
            for file, number in numbers.items():
                for time, row, size in self._select(file, _MESSAGES, number):
                    if not all(isinstance(value, int) for value in (time, row, size)) or time < 0:
                        raise CorruptLayoutError("corrupted message of a bag", path=self._path(file))
                    entries.append((time, file, row, size))
            table = np.array(entries, np.int64).reshape(-1, 4)
            channels.append(table[np.argsort(table[:, 0], kind="stable")])
        return channels

    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Messages of a channel by their positions in its stamps."""
        _, files, ids, _ = self._messages[channel][rows].T
        data: dict[tuple[int, int], bytes] = {}
        for file in np.unique(files).tolist():
            wanted = ids[files == file].tolist()
            for start in range(0, len(wanted), _ROWS_PER_QUERY):
                some = wanted[start : start + _ROWS_PER_QUERY]
                for row, stored in self._select(file, _DATA.format(",".join("?" * len(some))), *some):
                    data[file, row] = self._decompress(stored, file)
        try:
            return Payloads.join([data[key] for key in zip(files.tolist(), ids.tolist(), strict=True)])
        except KeyError:
            raise TruncatedError("message of a bag is missing", path=self.name) from None

    def _decompress(self, stored: Any, file: int) -> bytes:
        if not isinstance(stored, bytes):
            raise CorruptLayoutError("message of a bag is not bytes", path=self._path(file))
        if str(self._stated.get("compression_mode") or "").upper() != "MESSAGE":
            return stored
        with naming(self._path(file)):
            return decode_zstd_bounded(stored, min(MAX_MESSAGE_BYTES, max(1 << 20, len(stored) << 10)))
