"""Write episodes as MCAP: every signal as a topic of ROS 2 messages (CDR). The adapter of the mcap library."""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata._version import __version__
from warpdata.bytekit.arrays import dtype_of
from warpdata.bytekit.io.commit import commit_file
from warpdata.convert.exporting import FileOptions, source_id, write_episode_files
from warpdata.convert.messages import Attachment, LogChannel
from warpdata.convert.messages.cdr import PRIMITIVES
from warpdata.convert.messages.episode import ATTACHMENT_KEYS, ATTACHMENTS, KEPT, OWN
from warpdata.convert.messages.payload import stored_config, to_stream_packet
from warpdata.convert.receipt import ConversionReceipt, How, Note, note_of, pack
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    MissingExtraError,
    SchemaMismatchError,
    require_word,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.signal import Signal

Compression = Literal["zstd", "lz4", "none"]

RECEIPT = "warpdata.receipt"
"""Name of the metadata record with the receipt, in a file that was exported alone."""
_NOT_STORED = (KEPT, "import", "signals", "static_file", "schema_version", "uid", "writer")
_MAX_CHANNELS = 0xFFFF

_RULE = "=" * 80
_TIME = f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n{_TIME}"
PICTURE = f"std_msgs/Header header\nstring format\nuint8[] data\n{_HEADER}"
IMAGE = (
    "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\n"
    f"uint8[] data\n{_HEADER}"
)
VIDEO = f"builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n{_TIME}"
_FRAME_ID = "warpdata"
_ENCAPSULATION = b"\x00\x01\x00\x00"
_ROS_TYPES = {code: name for name, code in PRIMITIVES.items()} | {"u1": "uint8", "b1": "bool"}
"""numpy type code -> ROS type."""
_PIXELS = {
    ((), "uint8"): "mono8",
    ((), "uint16"): "16UC1",
    ((3,), "uint8"): "rgb8",
    ((3,), "uint16"): "rgb16",
    ((4,), "uint8"): "rgba8",
    ((4,), "uint16"): "rgba16",
}
"""Channels and element type -> encoding of an image."""
_STILLS = {"mjpeg": "jpeg", "png": "png"}
_VIDEOS = {"h264": "h264", "hevc": "h265", "av1": "av1"}
_BLOCK_BYTES = 4 << 20
_BLOCK_ROWS = 1 << 13


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    compression: Compression = "zstd",
    **options: Unpack[FileOptions],
) -> ConversionReceipt:
    """Write every episode as an MCAP file, below a new folder, or as the one file that `target` names.

    Every signal is a topic of ROS 2 messages (CDR): a stamp and a value, `sensor_msgs/CompressedImage` with pictures as
    they are encoded, `foxglove_msgs/CompressedVideo` with the packets of a video, `sensor_msgs/Image` for other frames.
    Attachments and metadata records of an imported recording are written again. `jobs` processes write files;
    `on_error="skip"` leaves out episodes that cannot be read, and counts them.
    """
    require_word("compression", compression, get_args(Compression))
    return write_episode_files("mcap", episodes, target, partial(_write_file, compression), **options)


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
            fact = f"signal {name!r} has negative times, which MCAP cannot store"
            hint = "Move the episode in time first."
            raise SchemaMismatchError(fact, path=episode.source.place, hint=hint)
    topics = {name: SignalTopic(name, signal) for name, signal in signals.items()}
    notes = {name: topic.note for name, topic in topics.items()}
    if attachments:
        notes[ATTACHMENTS] = note_of(episode.signals[ATTACHMENTS])
    meta = {key: value for key, value in episode.meta.items() if key not in _NOT_STORED}
    about = {"id": source_id(episode), "static": pack(dict(episode.static)), "meta": pack(meta)}
    kept = episode.meta.get(KEPT)
    if isinstance(kept, Mapping) and kept.get("channels"):  # of a recording of other programs
        about[KEPT] = kept
    with commit_file(path, replace=False, durable=receipt is not None) as out:
        writer = _open_writer(out, compression)
        numbers = _register_channels(writer, topics)
        streams = [topic.messages(number) for number, topic in zip(numbers, topics.values(), strict=True)]
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
        records = [(str(entry["name"]), dict(entry["metadata"])) for entry in kept.get("metadata", ())]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        fact = f"corrupted metadata of an imported recording ({error!r})"
        raise CorruptLayoutError(fact, path=episode.source.place) from None
    return attachments, [record for record in records if record[0] not in (OWN, RECEIPT)]


# Messages.


class SignalTopic:
    """A signal as a topic of its own; a record is a stamped value, a picture, an image or a video packet."""

    def __init__(self, name: str, signal: Signal) -> None:
        meta = signal.meta
        self._signal = signal
        run = encoded_run(signal) if meta.kind == "image" and len(signal) else None
        self._run = run if run is not None and _can_copy(run) else None
        self._pixels = _PIXELS.get((meta.shape[2:], meta.dtype.name)) if meta.kind == "image" else None
        codec = self._run.stream.codec if self._run is not None else ""
        if run is None or codec in _STILLS:
            self.note: Note = note_of(signal)
        elif codec:
            self.note = note_of(signal, "kept", "packets copied, with their parameter sets before keyframes")
        else:
            how: How = "kept" if run.stream.codec in ("ffv1", "png") else "reencoded"
            self.note = note_of(signal, how, f"decoded from {run.stream.codec} to pixels")
        if codec in _VIDEOS:
            schema, definition = "foxglove_msgs/msg/CompressedVideo", VIDEO
        elif codec:
            schema, definition = "sensor_msgs/msg/CompressedImage", PICTURE
        elif self._pixels is not None:
            schema, definition = "sensor_msgs/msg/Image", IMAGE
        else:
            schema, definition = _define_value(meta)
        dtype, shape = meta.rows or (meta.dtype, meta.shape)
        stated = {
            "signal": name,
            "kind": meta.kind,
            "dtype": None if dtype == OBJECT else dtype_of(dtype).name,
            "shape": list(shape),
            "names": None if meta.names is None else list(meta.names),
            **{key: getattr(meta, key) for key in ("role", "clock", "units", "of", "model", "rate_hz")},
        }
        about = {OWN: json.dumps({key: value for key, value in stated.items() if value is not None})}
        self.channel = LogChannel(f"/{name}", schema, "ros2msg", definition.encode(), "cdr", about)

    def messages(self, number: int) -> Iterator[tuple[int, int, int, bytes]]:
        """Every message: time, channel `number`, sequence and bytes, in the order in which those of all are sorted."""
        messages = self._value_messages() if self._run is None else _picture_messages(self._run)
        for sequence, (ts_ns, data) in enumerate(messages):
            yield ts_ns, number, sequence, data

    def _value_messages(self) -> Iterator[tuple[int, bytes]]:
        for run in self._signal.runs(_BLOCK_BYTES, _BLOCK_ROWS):
            times = np.asarray(self._signal._ts_in(run))
            values = self._signal.rows(run.start, run.stop)
            yield from zip(times.tolist(), self._encode(times, values), strict=True)

    def _encode(self, times: NDArray[np.int64], values: NDArray[Any]) -> list[bytes]:
        pairs = zip(times.tolist(), values, strict=True)
        if self._pixels is not None:
            return [_image_message(ts_ns, self._pixels, frame) for ts_ns, frame in pairs]
        if self._signal.meta.rows is not None:
            return [_rows_message(ts_ns, value) for ts_ns, value in pairs]
        if self._signal.meta.is_object:
            return [_value_message(ts_ns, value) for ts_ns, value in pairs]
        if _ros_type(values.dtype) is None:
            return [_value_message(ts_ns, np.ascontiguousarray(value).tobytes()) for ts_ns, value in pairs]
        # A stamp and numbers of one shape: every type is aligned after the stamp.
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        raw = np.ascontiguousarray(little).reshape(len(values), -1).view(np.uint8)
        head = np.broadcast_to(np.frombuffer(_ENCAPSULATION, np.uint8), (len(values), 4))
        stamps = np.stack([(times // 1_000_000_000) & 0xFFFFFFFF, times % 1_000_000_000], axis=1)
        rows = np.concatenate([head, stamps.astype("<u4").view(np.uint8), raw], axis=1)
        return [row.tobytes() for row in rows]


def _ros_type(dtype: np.dtype[Any]) -> str | None:
    return _ROS_TYPES.get(dtype.str[1:]) if dtype.kind in "biuf" else None


def _define_value(meta: SignalMeta) -> tuple[str, str]:
    """Name and definition of the type of a stamped value."""
    ros_type = _ros_type(meta.dtype)
    if meta.rows is not None and (item := _ros_type(meta.rows.dtype)) is not None:
        name, line = f"{item.capitalize()}s", f"{item}[] value"
    elif meta.kind == "text":
        name, line = "Text", "string value"
    elif meta.kind == "bytes" or ros_type is None:
        name, line = "Bytes", "uint8[] value"
    elif meta.shape:
        count = int(np.prod(meta.shape, dtype=object))
        name, line = f"{ros_type.capitalize()}x{count}", f"{ros_type}[{count}] value"
    else:
        name, line = ros_type.capitalize(), f"{ros_type} value"
    return f"warpdata_msgs/msg/{name}", f"builtin_interfaces/Time stamp\n{line}\n{_TIME}"


def _can_copy(run: EncodedRun) -> bool:
    """Whether packets can be messages: all frames shown, and those of a video in the order of decoding."""
    codec = run.stream.codec
    if not bool(run.shown.all()) or codec in _STILLS:
        return bool(run.shown.all())
    return (
        codec in _VIDEOS and bool((np.diff(run.shows) == 1).all()) and stored_config(run.entry, codec) != b""
    )


def _picture_messages(run: EncodedRun) -> Iterator[tuple[int, bytes]]:
    """Messages of sensor_msgs/CompressedImage or foxglove_msgs/CompressedVideo."""
    codec = run.stream.codec
    config = stored_config(run.entry, codec) if codec in _VIDEOS else b""
    for ts_ns, frame in zip(run.ts_ns.tolist(), run.frames(), strict=True):
        head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID))
        if codec in _STILLS:
            yield ts_ns, _ENCAPSULATION + _pad(head + encode_string(_STILLS[codec])) + encode_blob(frame.data)
        else:
            packet = to_stream_packet(frame.data, codec, config, is_keyframe=frame.is_keyframe)
            yield ts_ns, video_message(ts_ns, _VIDEOS[codec], packet)


def video_message(ts_ns: int, encoding: str, data: bytes) -> bytes:
    """A foxglove_msgs/CompressedVideo."""
    head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID))
    return _ENCAPSULATION + _pad(head + encode_blob(data)) + encode_string(encoding)


def _image_message(ts_ns: int, encoding: str, frame: NDArray[Any]) -> bytes:
    """A sensor_msgs/Image."""
    height, width = frame.shape[:2]
    data = np.ascontiguousarray(frame.astype(frame.dtype.newbyteorder("<"), copy=False)).tobytes()
    head = _pad(_stamp(ts_ns) + encode_string(_FRAME_ID)) + _u32(height) + _u32(width)
    head = _pad(head + encode_string(encoding) + b"\0") + _u32(len(data) // max(1, height))
    return _ENCAPSULATION + head + encode_blob(data)


def _value_message(ts_ns: int, value: str | bytes) -> bytes:
    """A stamp and text or bytes."""
    data = encode_string(value) if isinstance(value, str) else encode_blob(value)
    return _ENCAPSULATION + _stamp(ts_ns) + data


def _rows_message(ts_ns: int, rows: NDArray[Any]) -> bytes:
    """A stamp and a list of numbers, all elements of some rows; of types that ROS has not, their bytes."""
    data = np.ascontiguousarray(rows).tobytes()
    if _ros_type(rows.dtype) is None:
        return _value_message(ts_ns, data)
    padding = bytes(4 if rows.itemsize == 8 and data else 0)  # the stamp and the length are 12 bytes
    return _ENCAPSULATION + _stamp(ts_ns) + _u32(rows.size) + padding + data


def _stamp(ts_ns: int) -> bytes:
    """Seconds and nanoseconds; seconds after 2038 wrap (log times do not)."""
    return _u32(ts_ns // 1_000_000_000 & 0xFFFFFFFF) + _u32(ts_ns % 1_000_000_000)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def encode_string(value: str) -> bytes:
    """Text after its length, with a final zero."""
    return encode_blob(value.encode("utf-8", "surrogateescape") + b"\0")


def encode_blob(value: bytes) -> bytes:
    """Bytes after their length."""
    return _u32(len(value)) + value
