"""Write episodes as MCAP: messages of a recording unchanged, every other signal as a topic of its own.

The adapter of the mcap library, which writes the files.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from warpdata._version import __version__
from warpdata.bytekit.io.commit import commit_file
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import source_id, write_episode_files
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.messages.encoding import SignalTopic
from warpdata.convert.messages.episode import ATTACHMENT_KEYS, ATTACHMENTS, KEPT
from warpdata.convert.messages.log import Attachment, LogChannel
from warpdata.convert.messages.own import OWN, RECEIPT
from warpdata.convert.messages.restored import RestoredTopic, restore_topic
from warpdata.convert.receipt import ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    SchemaMismatchError,
    nearest,
)
from warpdata.timeline.episode import Episode

Compression = Literal["zstd", "lz4", "none"]

_NOT_STORED = (KEPT, "import", "signals", "static_file", "schema_version", "uid", "writer")
_MAX_CHANNELS = 0xFFFF
_BLOCK_ROWS = 256
_INVALID_METADATA = (AttributeError, KeyError, IndexError, TypeError, ValueError)
"""Raised by metadata of an episode that our reader did not make."""


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    compression: Compression = "zstd",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write every episode as an MCAP file, below a new folder, or as the one file that `target` names.

    Topics that came from a recording get their messages back, byte for byte, unless their signals were changed. Every
    other signal is a topic of ROS 2 messages (CDR): a stamp and a value, `sensor_msgs/CompressedImage` with pictures as
    they are encoded, `sensor_msgs/Image` for other frames. `jobs` processes write files; `on_error="skip"` leaves out
    episodes that cannot be read, and counts them.
    """
    known = get_args(Compression)
    if compression not in known:
        hint = nearest(compression, known)
        raise ValueError(f"unknown compression {compression!r} (choose from {', '.join(known)}).{hint}")
    write_file = partial(_write_file, compression)
    return write_episode_files(
        "mcap", episodes, target, write_file, on_error=on_error, jobs=jobs, progress=progress
    )


def _write_file(
    compression: Compression, episode: Episode, path: Path, receipt: ConversionReceipt | None
) -> dict[str, Note]:
    parts = _Parts(episode)
    with commit_file(path, replace=False, durable=receipt is not None) as out:
        writer = _open_writer(out, parts.profile, compression)
        numbers = _register_channels(writer, parts.channels)
        for message in heapq.merge(*parts.streams()):
            writer.add_message(
                numbers[message.channel], message.log_ns, message.data, message.publish_ns, message.sequence
            )
        for file in parts.attachments:
            writer.add_attachment(file.create_ns, file.log_ns, file.name, file.media_type, file.data)
        for name, values in parts.metadata:
            writer.add_metadata(name, dict(values))
        if receipt is not None:
            receipt.add(parts.notes)
            if parts.has_own:  # an unchanged recording gets nothing of ours
                writer.add_metadata(RECEIPT, {"receipt": receipt.document().decode()})
        writer.finish()
    return parts.notes


def _open_writer(out: Any, profile: str, compression: Compression) -> Any:
    try:
        from mcap.writer import CompressionType, Writer
    except ImportError:
        raise MissingExtraError.for_extra("mcap", "mcap") from None
    writer = Writer(out, compression=CompressionType[compression.upper()], enable_data_crcs=True)
    writer.start(profile, f"warpdata {__version__}")
    return writer


def _register_channels(writer: Any, channels: list[LogChannel]) -> list[int]:
    """Declare all channels; their numbers in the file."""
    if len(channels) > _MAX_CHANNELS:
        raise LimitExceededError(f"{len(channels)} topics for one MCAP file (limit {_MAX_CHANNELS})")
    schemas: dict[tuple[str, str, bytes], int] = {("", "", b""): 0}
    numbers = []
    for channel in channels:
        schema = (channel.schema, channel.schema_encoding, channel.schema_data)
        if schema not in schemas:
            schemas[schema] = writer.register_schema(*schema)
        about = dict(channel.metadata)
        numbers.append(
            writer.register_channel(channel.topic, channel.message_encoding, schemas[schema], about)
        )
    return numbers


class _Message(NamedTuple):
    """A message to write; messages are sorted by time, then by channel."""

    log_ns: int
    channel: int
    sequence: int
    publish_ns: int
    data: bytes


class _Parts:
    """An episode as channels, messages, attachments and metadata records."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        kept = episode.meta.get(KEPT)
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
        self.notes: dict[str, Note] = {}
        try:
            self._restored = self._restore_topics()
            self.attachments = self._restore_attachments()
            stored = [
                (str(record["name"]), dict(record["metadata"])) for record in self._kept.get("metadata", ())
            ]
        except _INVALID_METADATA as error:
            raise CorruptLayoutError(
                f"corrupted metadata of an imported recording ({error!r})", path=episode.source.place
            ) from None
        own = [(name, signal) for name, signal in episode.signals.items() if name not in self.notes]
        for name, signal in own:
            if len(signal) and signal.first_ts_ns < 0:
                raise SchemaMismatchError(
                    f"signal {name!r} has negative times, which MCAP cannot store",
                    path=episode.source.place,
                    hint="Move the episode in time first.",
                )
        self._own = {name: SignalTopic(name, signal) for name, signal in own}
        self.notes |= {name: topic.note for name, topic in self._own.items()}
        self.channels = [log.channels[0] for log in self._restored]
        self.channels += [topic.channel for topic in self._own.values()]
        self.has_own = bool(self._own) or not self._kept
        """Whether something did not come from a recording."""
        self.metadata: list[tuple[str, Mapping[str, str]]] = [
            record for record in stored if record[0] not in (OWN, RECEIPT)
        ]
        if self.has_own:
            meta = {key: value for key, value in episode.meta.items() if key not in _NOT_STORED}
            about = {"id": source_id(episode), "static": packed(dict(episode.static)), "meta": packed(meta)}
            self.metadata.append((OWN, {"episode": json.dumps(about, allow_nan=False)}))

    @property
    def profile(self) -> str:
        """Profile of the source if everything is from it, else that of ROS 2."""
        header = self._kept.get("header")
        profile = header.get("profile") if isinstance(header, Mapping) else ""
        return "ros2" if self._own else profile if isinstance(profile, str) else ""

    def _restore_topics(self) -> list[RestoredTopic]:
        topics = []
        for stated in self._kept.get("channels", ()):
            schema = self._kept["schemas"][stated["schema"]]
            channel = LogChannel(
                stated["topic"],
                schema["name"],
                schema["encoding"],
                unpacked(schema["data"]),
                stated["encoding"],
                dict(stated["metadata"]),
            )
            topic = restore_topic(self._episode, channel, str(stated["signal"]), stated)
            if topic is not None:
                topics.append(topic)
                for name in topic.signal_names:
                    self.notes[name] = note_of(
                        self._episode.signals[name], "kept", "in the message it came from"
                    )
        return topics

    def _restore_attachments(self) -> list[Attachment]:
        stated, signal = self._kept.get("attachments"), self._episode.signals.get(ATTACHMENTS)
        if not stated or signal is None or len(stated) != len(signal):
            return []
        self.notes[ATTACHMENTS] = note_of(signal)
        return [
            Attachment(**{key: about[key] for key in ATTACHMENT_KEYS}, data=data)
            for about, (data, _) in zip(stated, signal, strict=True)
        ]

    def streams(self) -> list[Iterator[_Message]]:
        """Messages of every channel, ordered by time."""
        restored = [_restored_messages(number, log) for number, log in enumerate(self._restored)]
        own = enumerate(self._own.values(), len(restored))
        return restored + [_own_messages(number, topic) for number, topic in own]


def _restored_messages(number: int, log: RestoredTopic) -> Iterator[_Message]:
    stamps = log.stamps(0)
    for low in range(0, len(stamps), _BLOCK_ROWS):
        rows = np.arange(low, min(low + _BLOCK_ROWS, len(stamps)))
        columns = (column[rows].tolist() for column in (stamps.log_ns, stamps.sequence, stamps.publish_ns))
        for log_ns, sequence, publish_ns, data in zip(*columns, log.payloads(0, rows).split(), strict=True):
            yield _Message(log_ns, number, sequence, publish_ns, bytes(data))


def _own_messages(number: int, topic: SignalTopic) -> Iterator[_Message]:
    for sequence, (ts_ns, data) in enumerate(topic.messages()):
        yield _Message(ts_ns, number, sequence, ts_ns, data)
