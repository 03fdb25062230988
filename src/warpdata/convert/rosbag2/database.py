"""The SQLite files of a bag as one recording of messages."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.bytekit.codec import decode_zstd_bounded, decoded_zstd_pieces, zstd_frame_size
from warpdata.bytekit.io.commit import map_os_errors
from warpdata.bytekit.io.folders import RangeFile
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.bytekit.lazy import cached_property
from warpdata.convert.messages.cdr import CdrDecoder
from warpdata.convert.messages.log import MAX_MESSAGE_BYTES, Ints, LogChannel, MessageLog, Payloads, Stamps
from warpdata.convert.messages.msgtext import parse_definition
from warpdata.convert.place import Place
from warpdata.convert.rosbag2.types import known_definition
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    WarpError,
)

SQLITE_MAGIC = b"SQLite format 3\0"
_ASKED = 512
_MAX_FILE_RATIO = 64
_TRIED = 8
_HEAD_BYTES = 1024


class BagLog(MessageLog):
    """The .db3 files of one bag, in order."""

    def __init__(self, place: Place, files: Sequence[str], told: Mapping[str, Any], name: str) -> None:
        self._place, self._files, self._told, self._name = place, list(files), told, name
        self._open: dict[int, sqlite3.Connection] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (BagLog, (self._place, self._files, self._told, self._name))

    @property
    def name(self) -> str:
        """The folder of the bag, or its one file."""
        return self._name

    @property
    def about(self) -> Mapping[str, Any]:
        """metadata.yaml."""
        return {"header": {"profile": "ros2", "library": "rosbag2"}, "metadata": [], "bag": dict(self._told)}

    @property
    def _mode(self) -> str:
        return str(self._told.get("compression_mode") or "").upper()

    # The files.

    def _path(self, file: int) -> str:
        return f"{self._place.name}/{self._files[file]}" if self._files[file] else self._place.name

    def _connection(self, file: int) -> sqlite3.Connection:
        if file not in self._open:
            self._open[file] = self._connect(file)
        return self._open[file]

    def _connect(self, file: int) -> sqlite3.Connection:
        """The file itself, opened to be read only; a copy where it is compressed, elsewhere, or was never closed."""
        name = self._files[file]
        path = self._place.inside(name) if name and self._place.path is not None else self._place.path
        is_packed = self._path(file).endswith(".zstd")
        wal = None if path is None else Path(f"{path}-wal")
        has_wal = wal is not None and wal.is_file() and wal.stat().st_size > 0
        if path is None or is_packed or has_wal:
            path = self._copied(file, is_packed, wal if has_wal else None)
        elif self._place.head(len(SQLITE_MAGIC), name) != SQLITE_MAGIC:
            raise BadMagicError("not an SQLite file", path=path)
        with self._typed(file):
            flags = "mode=ro" if has_wal else "mode=ro&immutable=1"
            found = sqlite3.connect(f"{path.as_uri()}?{flags}", uri=True, check_same_thread=False)
            weakref.finalize(self, found.close)
            found.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            found.execute("PRAGMA trusted_schema = OFF")
            return found

    def _copied(self, file: int, is_packed: bool, wal: Path | None) -> Path:
        folder = tempfile.mkdtemp(prefix="warp-bag-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        target = Path(folder) / "bag.db3"
        reader = self._place.open(self._files[file])
        try:
            if is_packed:
                self._unpack(reader, target, file)
            else:
                with open(target, "wb") as out:
                    for start in range(0, reader.size, 1 << 24):
                        out.write(reader.read(start, min(start + (1 << 24), reader.size)))
        finally:
            reader.close()
        if wal is not None:
            shutil.copyfile(wal, f"{target}-wal")
        with open(target, "rb") as made:
            if made.read(len(SQLITE_MAGIC)) != SQLITE_MAGIC:
                raise BadMagicError("not an SQLite file", path=self._path(file))
        return target

    def _unpack(self, reader: RangeReader, target: Path, file: int) -> None:
        """Decompress a file, a piece at a time."""
        limit = max(1 << 24, reader.size * _MAX_FILE_RATIO)
        try:
            size = zstd_frame_size(reader.read(0, min(reader.size, _HEAD_BYTES)))
            if size is not None and size > limit:
                raise LimitExceededError(f"{reader.size} bytes would become {size}")
            with map_os_errors(target), open(target, "wb") as out:
                for piece in decoded_zstd_pieces(io.BufferedReader(RangeFile(reader)), limit):
                    out.write(piece)
                if out.tell() < (size or 1):
                    raise TruncatedError("the compressed file ends too soon")
        except WarpError as error:
            raise type(error)(error.message, path=self._path(file), hint=error.hint) from None

    def _unpacked(self, data: Any, limit: int, file: int) -> bytes:
        try:
            return decode_zstd_bounded(data, limit)
        except WarpError as error:
            raise type(error)(error.message, path=self._path(file), hint=error.hint) from None

    @contextlib.contextmanager
    def _typed(self, file: int) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CorruptLayoutError(f"the bag is damaged ({error})", path=self._path(file)) from None

    def _select(self, file: int, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._typed(file):
            return self._connection(file).execute(query, values).fetchall()

    # What is in them.

    @cached_property
    def _topics(self) -> dict[tuple[str, str, str], dict[int, int]]:
        """Name, type and serialization -> file -> number of the topic in it."""
        found: dict[tuple[str, str, str], dict[int, int]] = {}
        stated = {name: about.get("serialization_format") for name, about in self._told_topics.items()}
        for file in range(len(self._files)):
            for number, name, kind, form in self._select(
                file, "SELECT id, name, type, serialization_format FROM topics ORDER BY id"
            ):
                if not all(isinstance(each, str) for each in (name, kind, form)) or not isinstance(
                    number, int
                ):
                    raise CorruptLayoutError("a topic of the bag is damaged", path=self._path(file))
                wrong = next((each for each in (form, stated.get(name)) if each not in ("cdr", None)), None)
                if wrong is not None:
                    raise FormatError(
                        f"topic {name!r} is serialized as {wrong!r}", path=self._path(file),
                        hint="Only CDR can be read: convert the bag with the program that wrote it.",
                    )  # fmt: skip
                found.setdefault((name, kind, form), {})[file] = number
        return found

    @cached_property
    def _told_topics(self) -> dict[str, Mapping[str, Any]]:
        """What metadata.yaml says of every topic."""
        found: dict[str, Mapping[str, Any]] = {}
        listed = self._told.get("topics_with_message_count")
        for each in listed if isinstance(listed, list) else ():
            about = each.get("topic_metadata") if isinstance(each, dict) else None
            if isinstance(about, dict):
                found[str(about.get("name"))] = about
        return found

    @cached_property
    def _stored(self) -> dict[str, str]:
        """Type -> its definition, as newer bags have it."""
        found: dict[str, str] = {}
        for file in range(len(self._files)):
            listed = self._select(file, "SELECT name FROM sqlite_master WHERE type = 'table'")
            if ("message_definitions",) in listed:
                for name, encoding, text in self._select(
                    file, "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
                ):
                    if encoding == "ros2msg" and isinstance(text, str) and text:
                        found.setdefault(str(name), text)
        return found

    @cached_property
    def channels(self) -> Sequence[LogChannel]:
        """The topics of all files."""
        found = []
        for number, (name, kind, form) in enumerate(self._topics):
            text = self._definition(number, kind)
            schema = (
                ("", "", b"") if text is None else (kind, "ros2msg", text.encode("utf-8", "surrogateescape"))
            )
            qos = self._told_topics.get(name, {}).get("offered_qos_profiles")
            metadata = {"offered_qos_profiles": qos} if isinstance(qos, str) else {}
            found.append(LogChannel(name, schema[0] or kind, schema[1], schema[2], form, metadata))
        return found

    def _definition(self, number: int, kind: str) -> str | None:
        """The definition that fits the messages: that of the bag, else that of ROS."""
        parts = kind.split("/")
        full = f"{parts[0]}/msg/{parts[1]}" if len(parts) == 2 else kind
        candidates = [self._stored.get(kind), known_definition(full)]
        for text in candidates:
            if text is not None and self._fits(number, kind, text):
                return text
        return None

    def _fits(self, number: int, kind: str, text: str) -> bool:
        try:
            decoder = CdrDecoder(parse_definition(kind, text), self._name)
            count = min(_TRIED, len(self._messages[number][0]))
            decoder.decode(self.payloads(number, np.arange(count)))
        except WarpError:
            return False
        return True

    @cached_property
    def _messages(self) -> list[tuple[Stamps, Ints, Ints, int]]:
        """Of every channel: times, file and row of each message, bytes in all."""
        found = []
        for numbers in self._topics.values():
            times, files, rows, total = [], [], [], 0
            for file, number in numbers.items():
                listed = self._select(
                    file, "SELECT timestamp, id, length(data) FROM messages WHERE topic_id = ? ORDER BY timestamp, id",
                    number,
                )  # fmt: skip
                for time, row, size in listed:
                    if (
                        not isinstance(time, int)
                        or not isinstance(row, int)
                        or not isinstance(size, int)
                        or time < 0
                    ):
                        raise CorruptLayoutError("a message of the bag is damaged", path=self._path(file))
                    times.append(time)
                    files.append(file)
                    rows.append(row)
                    total += size
            log = np.array(times, np.int64)
            order = np.argsort(log, kind="stable")
            stamps = Stamps(log[order], log[order], np.arange(len(log), dtype=np.int64))
            found.append((stamps, np.array(files, np.int64)[order], np.array(rows, np.int64)[order], total))
        return found

    def stamps(self, channel: int) -> Stamps:
        """When the messages were recorded: the only time a bag has."""
        return self._messages[channel][0]

    def payload_bytes(self, channel: int) -> int:
        """How large the messages are, as they are stored."""
        return self._messages[channel][3]

    def payloads(self, channel: int, rows: Ints) -> Payloads:
        """Some messages, by the numbers of their rows."""
        _, files, ids, _ = self._messages[channel]
        found: dict[tuple[int, int], bytes] = {}
        for file in np.unique(files[rows]).tolist():
            wanted = ids[rows][files[rows] == file].tolist()
            for start in range(0, len(wanted), _ASKED):
                some = wanted[start : start + _ASKED]
                marks = ",".join("?" * len(some))
                for row, data in self._select(
                    file, f"SELECT id, data FROM messages WHERE id IN ({marks})", *some
                ):
                    found[file, row] = self._message(data, file)
        try:
            messages = [found[key] for key in zip(files[rows].tolist(), ids[rows].tolist(), strict=True)]
        except KeyError:
            raise TruncatedError("a message of the bag is gone", path=self._name) from None
        return Payloads.of(messages)

    def _message(self, data: Any, file: int) -> bytes:
        if not isinstance(data, bytes):
            raise CorruptLayoutError("a message of the bag is no bytes", path=self._path(file))
        if self._mode != "MESSAGE":
            return data
        return self._unpacked(data, min(MAX_MESSAGE_BYTES, max(1 << 20, len(data) << 10)), file)


def is_database(name: str) -> bool:
    """Whether a file of this name belongs to a bag."""
    return os.path.basename(name).endswith((".db3", ".db3.zstd"))
