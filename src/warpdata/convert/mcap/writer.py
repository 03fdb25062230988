"""Write episodes as MCAP: every signal as a topic of ROS 2 messages. The adapter of the mcap library."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from warpdata._version import __version__
from warpdata.bytekit.io.commit import commit_file
from warpdata.convert.exporting import OnError, Progress, source_id, write_episode_files
from warpdata.convert.messages.encoding import OWN, SignalTopic
from warpdata.convert.messages.episode import ATTACHMENT_KEYS, ATTACHMENTS, KEPT
from warpdata.convert.messages.log import Attachment
from warpdata.convert.receipt import ConversionReceipt, Note, note_of, packed
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

RECEIPT = "warpdata.receipt"
"""Name of the metadata record with the receipt, in a file that was exported alone."""
_NOT_STORED = (KEPT, "import", "signals", "static_file", "schema_version", "uid", "writer")
_MAX_CHANNELS = 0xFFFF


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

    Every signal is a topic of ROS 2 messages (CDR): a stamp and a value, `sensor_msgs/CompressedImage` with pictures as
    they are encoded, `foxglove_msgs/CompressedVideo` with the packets of a video, `sensor_msgs/Image` for other frames.
    Attachments and metadata records of an imported recording are written again. `jobs` processes write files;
    `on_error="skip"` leaves out episodes that cannot be read, and counts them.
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
    attachments, records = _recording_parts(episode)
    signals = {
        name: signal for name, signal in episode.signals.items() if not (attachments and name == ATTACHMENTS)
    }
    if len(signals) > _MAX_CHANNELS:
        raise LimitExceededError(f"{len(signals)} topics for one MCAP file (limit {_MAX_CHANNELS})")
    for name, signal in signals.items():
        if len(signal) and signal.first_ts_ns < 0:
            raise SchemaMismatchError(
                f"signal {name!r} has negative times, which MCAP cannot store",
                path=episode.source.place,
                hint="Move the episode in time first.",
            )
    topics = {name: SignalTopic(name, signal) for name, signal in signals.items()}
    notes = {name: topic.note for name, topic in topics.items()}
    if attachments:
        notes[ATTACHMENTS] = note_of(episode.signals[ATTACHMENTS])
    meta = {key: value for key, value in episode.meta.items() if key not in _NOT_STORED}
    about = {"id": source_id(episode), "static": packed(dict(episode.static)), "meta": packed(meta)}
    kept = episode.meta.get(KEPT)
    if isinstance(kept, Mapping) and kept.get("channels"):  # of a recording of other programs
        about[KEPT] = kept
    with commit_file(path, replace=False, durable=receipt is not None) as out:
        writer = _open_writer(out, compression)
        numbers = _register_channels(writer, topics)
        streams = [_stamped(number, topic) for number, topic in zip(numbers, topics.values(), strict=True)]
        for log_ns, number, sequence, data in heapq.merge(*streams):
            writer.add_message(number, log_ns, data, log_ns, sequence)
        for file in attachments:
            writer.add_attachment(file.create_ns, file.log_ns, file.name, file.media_type, file.data)
        for name, values in [*records, (OWN, {"episode": json.dumps(about, allow_nan=False)})]:
            writer.add_metadata(name, dict(values))
        if receipt is not None:
            receipt.add(notes)
            writer.add_metadata(RECEIPT, {"receipt": receipt.document().decode()})
        writer.finish()
    return notes


def _open_writer(out: Any, compression: Compression) -> Any:
    try:
        from mcap.writer import CompressionType, Writer
    except ImportError:
        raise MissingExtraError.for_extra("mcap", "mcap") from None
    writer = Writer(out, compression=CompressionType[compression.upper()], enable_data_crcs=True)
    writer.start("ros2", f"warpdata {__version__}")
    return writer


def _register_channels(writer: Any, topics: Mapping[str, SignalTopic]) -> list[int]:
    """Declare all channels; their numbers in the file."""
    schemas: dict[tuple[str, str, bytes], int] = {}
    numbers = []
    for topic in topics.values():
        channel = topic.channel
        schema = (channel.schema, channel.schema_encoding, channel.schema_data)
        if schema not in schemas:
            schemas[schema] = writer.register_schema(*schema)
        about = dict(channel.metadata)
        numbers.append(
            writer.register_channel(channel.topic, channel.message_encoding, schemas[schema], about)
        )
    return numbers


def _stamped(number: int, topic: SignalTopic) -> Iterator[tuple[int, int, int, bytes]]:
    """Messages of a topic; those of all topics are sorted by time, then by channel."""
    for sequence, (ts_ns, data) in enumerate(topic.messages()):
        yield ts_ns, number, sequence, data


def _recording_parts(episode: Episode) -> tuple[list[Attachment], list[tuple[str, Mapping[str, str]]]]:
    """Attachments and metadata records of the recording that an episode was imported from."""
    kept = episode.meta.get(KEPT)
    kept = kept if isinstance(kept, Mapping) else {}
    stated, signal = kept.get("attachments"), episode.signals.get(ATTACHMENTS)
    attachments: list[Attachment] = []
    try:
        if stated and signal is not None and len(stated) == len(signal):
            for about, (data, _) in zip(stated, signal, strict=True):
                attachments.append(Attachment(**{key: about[key] for key in ATTACHMENT_KEYS}, data=data))
        records = [(str(each["name"]), dict(each["metadata"])) for each in kept.get("metadata", ())]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptLayoutError(
            f"corrupted metadata of an imported recording ({error!r})", path=episode.source.place
        ) from None
    return attachments, [record for record in records if record[0] not in (OWN, RECEIPT)]
