"""Write episodes as MCAP: messages of a recording as they were, every other signal as a topic of its own."""

from __future__ import annotations

import heapq
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from warpdata.bytekit.dtype import dtype_of
from warpdata.bytekit.io.commit import commit_file, commit_folder
from warpdata.convert.each_episode import OnError, Progress, check_on_error, exported
from warpdata.convert.exporting import source_id
from warpdata.convert.kept_values import packed, unpacked
from warpdata.convert.mcap.container import Compression, McapFile
from warpdata.convert.messages import encoding
from warpdata.convert.messages.episode import ATTACHMENTS, KEPT
from warpdata.convert.messages.log import Attachment, LogChannel
from warpdata.convert.messages.own import OWN, RECEIPT
from warpdata.convert.messages.packets import decoder_config, stream_packet
from warpdata.convert.messages.restored import RestoredTopic
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, note_of
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import EncodedRun, encoded_run
from warpdata.errors import CorruptLayoutError, SchemaMismatchError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_ENCODINGS = {(3, "uint8"): "rgb8", (2, "uint8"): "mono8", (2, "uint16"): "16UC1"}
_STILLS = {"mjpeg": "jpeg", "png": "png"}
_VIDEOS = {"h264": "h264", "hevc": "h265", "av1": "av1"}
_NOT_KEPT = (KEPT, "import", "signals", "static_file", "schema_version", "uid", "writer")
_BLOCK_BYTES = 4 << 20
_FRAME = "warpdata"


class Message(NamedTuple):
    """One message on its way into a file; they sort by time, then by channel."""

    log_ns: int
    channel: int
    sequence: int
    publish_ns: int
    data: bytes


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
    they are encoded, `sensor_msgs/Image` for frames that are not. `jobs` processes write files; `on_error="skip"`
    leaves out episodes that cannot be read, and counts them.
    """
    episodes = under_own_names(episodes)
    receipt = ConversionReceipt.of_export("mcap", episodes, target)
    check_on_error(on_error)
    if os.fspath(target).endswith(".mcap"):
        if len(episodes) != 1:
            raise ValueError(f"{target} is one file, and there are {len(episodes)} episodes: name a folder")
        _write_file(episodes[0], Path(target), compression, receipt=receipt)
        return receipt
    with commit_folder(target) as folder:
        work = partial(_write_part, folder, compression)
        taken: set[str] = set()
        for position, (name, notes) in exported(
            episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress
        ):
            while name in taken:
                name += "_"
            taken.add(name)
            (folder / f".{position}.part").rename(folder / f"{name}.mcap")
            receipt.add(notes)
        (folder / RECEIPT_FILE).write_bytes(receipt.document())
    return receipt


def _write_part(
    folder: Path, compression: Compression, position: int, episode: Episode
) -> tuple[str, dict[str, Note]]:
    """One file under a name that no other has; what it is to be called, and what became of the signals."""
    notes = _write_file(episode, folder / f".{position}.part", compression, durable=False)
    return re.sub(r"[^A-Za-z0-9_.=+@-]", "_", source_id(episode)).lstrip(".") or "episode", notes


def _write_file(
    episode: Episode,
    path: Path,
    compression: Compression,
    *,
    durable: bool = True,
    receipt: ConversionReceipt | None = None,
) -> dict[str, Note]:
    """One episode as a file; one that is all of the target keeps the receipt too."""
    made = _EpisodeMessages(episode)
    with commit_file(path, replace=False, durable=durable) as out:
        file = McapFile(out, profile=made.profile, compression=compression)
        for channel in made.channels:
            file.channel(channel)
        for each in heapq.merge(*made.streams()):
            file.message(each.channel, each.sequence, each.log_ns, each.publish_ns, each.data)
        for attachment in made.attachments:
            file.attachment(attachment)
        for name, values in made.metadata:
            file.metadata(name, values)
        if receipt is not None:
            receipt.add(made.notes)
        if receipt is not None and made.has_own:  # a recording that is all as it was gets nothing of ours
            file.metadata(RECEIPT, {"receipt": receipt.document().decode()})
        file.finish()
    return made.notes


_NOT_AS_KEPT = (AttributeError, KeyError, IndexError, TypeError, ValueError)
"""What comes of metadata of an episode that is not as our reader made it."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A signal that gets a topic of its own."""

    name: str
    signal: Signal
    run: EncodedRun | None


class _EpisodeMessages:
    """An episode as channels and messages."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        kept = episode.meta.get(KEPT)
        self._kept: Mapping[str, Any] = kept if isinstance(kept, Mapping) else {}
        self.notes: dict[str, Note] = {}
        self._restored = [
            topic for topic in map(self._restore, self._kept.get("channels", ())) if topic is not None
        ]
        for topic in self._restored:
            for name in topic.signals:
                self.notes[name] = note_of(episode.signals[name], "kept", "in the message it came from")
        self.attachments = self._attachments()
        self._own = [
            self._own_signal(name, signal)
            for name, signal in episode.signals.items()
            if name not in self.notes
        ]
        self.channels = [topic.channel for topic in self._restored] + [
            self._channel(each) for each in self._own
        ]

    @property
    def has_own(self) -> bool:
        """Whether there is anything that did not come from a recording."""
        return bool(self._own) or not self._kept

    @property
    def profile(self) -> str:
        """That of the source, where all is from it; that of ROS 2 for what we write."""
        header = self._kept.get("header")
        stated = header.get("profile") if isinstance(header, Mapping) else None
        return stated if isinstance(stated, str) and not self._own else "ros2" if self._own else ""

    @property
    def metadata(self) -> list[tuple[str, Mapping[str, str]]]:
        """The records of the source, and one of ours where the episode has what no message says."""
        found: list[tuple[str, Mapping[str, str]]] = []
        try:
            for each in self._kept.get("metadata", ()):
                if each.get("name") not in (OWN, RECEIPT):
                    found.append((str(each["name"]), dict(each["metadata"])))
        except _NOT_AS_KEPT:
            raise self._damaged("metadata") from None
        told = {
            "id": source_id(self._episode), "static": packed(dict(self._episode.static)),
            "meta": packed({key: value for key, value in self._episode.meta.items() if key not in _NOT_KEPT}),
        }  # fmt: skip
        if self.has_own:
            found.append((OWN, {"episode": json.dumps(told, allow_nan=False)}))
        return found

    def _restore(self, stated: Mapping[str, Any]) -> RestoredTopic | None:
        schemas = self._kept.get("schemas", ())
        try:
            schema = schemas[stated["schema"]]
            channel = LogChannel(
                stated["topic"], schema["name"], schema["encoding"], unpacked(schema["data"]), stated["encoding"],
                dict(stated["metadata"]),
            )  # fmt: skip
            return RestoredTopic.of(self._episode, channel, stated)
        except _NOT_AS_KEPT:
            raise self._damaged("topics") from None

    def _damaged(self, what: str) -> CorruptLayoutError:
        return CorruptLayoutError(f"what is kept of the {what} is damaged", path=self._episode.source.place)

    def _attachments(self) -> list[Attachment]:
        listed, signal = self._kept.get("attachments"), self._episode.signals.get(ATTACHMENTS)
        if not listed or signal is None or len(listed) != len(signal):
            return []
        self.notes[ATTACHMENTS] = note_of(signal)
        try:
            return [
                Attachment(each["name"], each["media_type"], each["log_ns"], each["create_ns"], value)
                for each, (value, _) in zip(listed, signal, strict=True)
            ]
        except _NOT_AS_KEPT:
            raise self._damaged("attachments") from None

    # Signals that get topics of their own.

    def _own_signal(self, name: str, signal: Signal) -> _Own:
        if len(signal) and signal.first_ts_ns < 0:
            raise SchemaMismatchError(
                f"signal {name!r} has times before 0, which MCAP cannot hold", path=self._episode.source.place,
                hint="Move the episode in time first.",
            )  # fmt: skip
        run = encoded_run(signal) if signal.meta.kind == "image" and len(signal) else None
        copied = run is not None and _is_copied(run)
        note = note_of(signal)
        if run is not None and copied and run.stream.codec not in _STILLS:
            note = note_of(signal, "kept", "packets copied, with their parameter sets before keyframes")
        if run is not None and not copied:
            lossless = run.stream.codec in ("ffv1", "png")
            why = f"decoded from {run.stream.codec} to pixels"
            note = note_of(signal, "kept" if lossless else "reencoded", why)
        self.notes[name] = note
        return _Own(name, signal, run if copied else None)

    def _channel(self, each: _Own) -> LogChannel:
        meta = each.signal.meta
        told = {
            "signal": each.name, "kind": meta.kind, "dtype": None if meta.is_object else dtype_of(meta.dtype).name,
            "shape": list(meta.shape), "role": meta.role, "clock": meta.clock, "units": meta.units,
            "names": None if meta.names is None else list(meta.names), "of": meta.of, "model": meta.model,
        }  # fmt: skip
        text = json.dumps({key: value for key, value in told.items() if value is not None})
        topic = f"/{each.name}"
        if each.run is not None and each.run.stream.codec in _VIDEOS:
            return encoding.type_channel(topic, "foxglove_msgs/msg/CompressedVideo", encoding.VIDEO, text)
        if each.run is not None:
            return encoding.type_channel(topic, "sensor_msgs/msg/CompressedImage", encoding.PICTURE, text)
        if _pixels(each.signal) is not None:
            return encoding.type_channel(topic, "sensor_msgs/msg/Image", encoding.IMAGE, text)
        return encoding.value_channel(topic, meta, text)

    def streams(self) -> list[Iterator[Message]]:
        """The messages of every channel, in the order of their times."""
        found = [self._restored_messages(number, topic) for number, topic in enumerate(self._restored)]
        for number, each in enumerate(self._own, len(found)):
            found.append(self._own_messages(number, each))
        return found

    def _restored_messages(self, number: int, topic: RestoredTopic) -> Iterator[Message]:
        for log_ns, publish_ns, sequence, data in topic.messages():
            yield Message(log_ns, number, sequence, publish_ns, data)

    def _own_messages(self, number: int, each: _Own) -> Iterator[Message]:
        for count, (ts_ns, data) in enumerate(_messages(each)):
            yield Message(ts_ns, number, count, ts_ns, data)


def _pixels(signal: Signal) -> str | None:
    """What ROS calls the pixels of a camera."""
    meta = signal.meta
    return _ENCODINGS.get((len(meta.shape), meta.dtype.name)) if meta.kind == "image" else None


def _messages(each: _Own) -> Iterator[tuple[int, bytes]]:
    signal, meta = each.signal, each.signal.meta
    if each.run is not None and each.run.stream.codec in _VIDEOS:
        yield from _video_messages(each.run)
        return
    if each.run is not None:
        kind = _STILLS[each.run.stream.codec]
        for ts_ns, data in zip(each.run.ts_ns.tolist(), each.run.packets(), strict=True):
            yield ts_ns, encoding.picture_message(ts_ns, _FRAME, kind, data)
        return
    pixels = _pixels(signal)
    for start, stop in _blocks(signal):
        times = np.asarray(signal._ts_in(range(start, stop)))
        values = signal.rows(start, stop)
        if pixels is not None:
            made = [
                encoding.image_message(ts, _FRAME, pixels, frame)
                for ts, frame in zip(times.tolist(), values, strict=True)
            ]
        elif meta.is_object:
            made = [
                encoding.object_message(ts, value) for ts, value in zip(times.tolist(), values, strict=True)
            ]
        elif encoding.ros_type(meta.dtype) is None:
            made = [
                encoding.object_message(ts, np.ascontiguousarray(value).tobytes())
                for ts, value in zip(times.tolist(), values, strict=True)
            ]
        else:
            made = encoding.number_messages(times, values)
        yield from zip(times.tolist(), made, strict=True)


def _video_messages(run: EncodedRun) -> Iterator[tuple[int, bytes]]:
    codec, name = run.stream.codec, _VIDEOS[run.stream.codec]
    config = decoder_config(run.entry, codec)
    for ts_ns, frame in zip(run.ts_ns.tolist(), run.frames(), strict=True):
        data = stream_packet(frame.data, codec, config, is_keyframe=frame.is_keyframe)
        yield ts_ns, encoding.video_message(ts_ns, _FRAME, name, data)


def _is_copied(run: EncodedRun) -> bool:
    """Whether the packets can be messages: none hidden, and of a video each shown when it is decoded."""
    if not bool(run.shown.all()):
        return False
    if run.stream.codec in _STILLS:
        return True
    in_order = bool((np.diff(run.shows) == 1).all())
    return run.stream.codec in _VIDEOS and in_order and decoder_config(run.entry, run.stream.codec) != b""


def _blocks(signal: Signal) -> Iterator[tuple[int, int]]:
    step = max(1, min(1 << 13, _BLOCK_BYTES // max(1, signal.meta.row_bytes)))
    for start in range(0, len(signal), step):
        yield start, min(start + step, len(signal))


__all__ = ["write"]
