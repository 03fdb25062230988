"""Messages of a topic, rebuilt from the signals of an episode that was imported from a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warpdata.convert.messages.log import Ints, LogChannel, MessageLog, Payloads, Stamps
from warpdata.convert.messages.payload import Payload, needs_content
from warpdata.convert.messages.topic import BYTES, ENVELOPE, LOG_TIMES, PUBLISH_TIMES, SEQUENCE, Topic
from warpdata.convert.plain_names import plain_name
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_COMPARED_ROWS = 1 << 12


class RestoredTopic(MessageLog):
    """A log of one channel, whose messages are in an episode."""

    def __init__(self, episode: Episode, channel: LogChannel, base: str, stated: Mapping[str, Any]) -> None:
        """`stated` is the entry of the channel in the metadata of the episode; KeyError if signals are missing."""
        signals = episode.signals
        self._name, self._channel = episode.source.place or channel.topic, channel
        self._payload = Payload.from_json(stated["payload"]) if "payload" in stated else None
        self._content: Signal | None = None
        self.signal_names: list[str] = []
        """Signals of the episode that the messages hold."""
        empty = np.empty(0, np.int64)
        self._stamps, self._order = Stamps(empty, empty, empty), empty
        if stated.get("messages"):
            columns = [signals[f"{base}/{name}"].values() for name in (LOG_TIMES, PUBLISH_TIMES, SEQUENCE)]
            self._messages = signals[f"{base}/{BYTES if self._payload is None else ENVELOPE}"]
            self._content = None if self._payload is None else signals[str(stated["payload_signal"])]
            lengths = {len(self._messages), *map(len, columns)}
            if self._content is not None:
                lengths.add(len(self._content))
            if len(lengths) != 1:
                raise KeyError(base)
            self._stamps, self._order = Stamps.sort(*(np.asarray(column, np.int64) for column in columns))

    @property
    def name(self) -> str:
        """Path of the episode."""
        return self._name

    @property
    def channels(self) -> Sequence[LogChannel]:
        """The one channel."""
        return [self._channel]

    def stamps(self, channel: int) -> Stamps:  # noqa: ARG002 - there is one
        """Times of the messages."""
        return self._stamps

    def payload_bytes(self, channel: int) -> int:  # noqa: ARG002 - there is one
        """A lower bound: sizes are unknown before the messages are read."""
        return len(self._stamps)

    def payloads(self, channel: int, rows: Ints) -> Payloads:  # noqa: ARG002 - there is one
        """Messages by their positions in log order."""
        records = self._order[rows].tolist()
        low, high = min(records), max(records) + 1
        stored = self._messages.rows(low, high)
        if self._payload is None:
            return Payloads.join([stored[record - low] for record in records])
        contents = self._read_contents(low, high) if any(map(needs_content, stored)) else [b""] * len(stored)
        pairs = ((stored[record - low], contents[record - low]) for record in records)
        return Payloads.join([self._payload.message(*pair) for pair in pairs])

    def _read_contents(self, low: int, high: int) -> list[bytes]:
        """The large field of records [low, high)."""
        assert self._payload is not None
        assert self._content is not None
        if self._payload.kind in ("stills", "video"):
            run = encoded_run(self._content[low:high])
            packets = []
            if run is not None and (np.diff(run.shows) == 1).all():
                pairs = zip(run.packets(), run.shown.tolist(), strict=True)
                packets = [packet for packet, is_shown in pairs if is_shown]
            if len(packets) != high - low:
                raise WarpError("pictures were encoded again")
            return packets
        values = self._content.rows(low, high)
        if self._payload.pixels is None:
            return list(values)
        return [self._payload.pixels.encode(frame) for frame in values]

    def is_unchanged(self, episode: Episode, topic: Topic) -> bool:
        """Whether every signal of the topic has the values and times that its messages hold."""
        for field in topic.signal_names():
            base = f"{topic.base}/{plain_name(field)}"
            candidates = [base, *(f"{base}.{number}" for number in range(2, 6))]
            name = next((candidate for candidate in candidates if candidate in episode.signals), None)
            if name is None or not np.array_equal(episode[name].timestamps, topic.read_times()):
                return False
            is_content = self._payload is not None and field == self._payload.field
            if (
                not is_content
                and not field.startswith("message.")
                and not _is_equal(topic.open_signal(field, name), episode[name])
            ):
                return False
            self.signal_names.append(name)
        return True


def restore_topic(
    episode: Episode, channel: LogChannel, base: str, stated: Mapping[str, Any]
) -> RestoredTopic | None:
    """The topic of a channel; None if its signals were removed or changed, so that they must be written instead."""
    try:
        log = RestoredTopic(episode, channel, base, stated)
    except KeyError:
        return None
    topic = Topic(log, 0, base, clock=None, time=stated.get("time", "log"))
    try:
        return log if not len(topic) or log.is_unchanged(episode, topic) else None
    except WarpError:
        return None


def _is_equal(one: Signal, other: Signal) -> bool:
    if not one.meta.same_values(other.meta) or len(one) != len(other):
        return False
    for low in range(0, len(one), _COMPARED_ROWS):
        first, second = one.rows(low, low + _COMPARED_ROWS), other.rows(low, low + _COMPARED_ROWS)
        if not np.array_equal(first, second, equal_nan=first.dtype.kind == "f"):
            return False
    return True
