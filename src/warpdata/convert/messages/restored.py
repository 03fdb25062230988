"""The messages of a topic, put together again from an episode that came from a recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from warpdata.convert.messages.log import Ints, LogChannel, MessageLog, Payloads, Stamps
from warpdata.convert.messages.payload import Payload, is_whole
from warpdata.convert.messages.topic import (
    BYTES,
    ENVELOPE,
    LOG_TIMES,
    PUBLISH_TIMES,
    SEQUENCE,
    Topic,
)
from warpdata.convert.plain_names import plain_name
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import WarpError
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

_BLOCK = 256


class RestoredTopic:
    """A topic whose messages an episode still has."""

    def __init__(
        self, channel: LogChannel, base: str, parts: Mapping[str, Signal], payload: Payload | None
    ) -> None:
        self.channel, self.base = channel, base
        self._parts, self._payload = parts, payload
        self.signals: list[str] = []
        """The names of all signals of the episode that are in the messages."""

    @classmethod
    def of(cls, episode: Episode, channel: LogChannel, stated: Mapping[str, Any]) -> RestoredTopic | None:
        """The topic, or None where its signals are no longer what its messages say: those must be written instead."""
        base, signals = str(stated["signal"]), episode.signals
        payload = Payload.from_json(stated["payload"]) if "payload" in stated else None
        if not stated.get("messages"):
            return cls(channel, base, {}, None)
        wanted = {LOG_TIMES, PUBLISH_TIMES, SEQUENCE, BYTES if payload is None else ENVELOPE}
        parts = {name: signals[f"{base}/{name}"] for name in wanted if f"{base}/{name}" in signals}
        if len(parts) != len(wanted) or len({len(each) for each in parts.values()}) != 1:
            return None
        if payload is not None:
            content = signals.get(str(stated["payload_signal"]))
            if content is None or len(content) != len(parts[LOG_TIMES]):
                return None
            parts["content"] = content
        made = cls(channel, base, parts, payload)
        return made if made._is_unchanged(episode, str(stated.get("time", "log"))) else None

    def _is_unchanged(self, episode: Episode, time: str) -> bool:
        """Whether every signal of the topic is what its messages say, values and times."""
        log = _RestoredLog(self, episode.source.place or self.channel.topic)
        topic = Topic(log, 0, self.base, time=time)  # type: ignore[arg-type]
        try:
            makers = topic.signals()
            for field, make in makers.items():
                name = next((each for each in _names(self.base, field) if each in episode.signals), None)
                if name is None:
                    return False
                signal = episode.signals[name]
                if not np.array_equal(signal.timestamps, topic.times):
                    return False
                is_content = self._payload is not None and field == self._payload.field
                if not is_content and not field.startswith("message.") and not _equal(make(name), signal):
                    return False
                self.signals.append(name)
        except WarpError:
            return False
        return True

    def __len__(self) -> int:
        return len(self._parts[LOG_TIMES]) if self._parts else 0

    def column(self, name: str) -> Ints:
        """All log or publish times, or sequence numbers."""
        return np.asarray(self._parts[name].values(), np.int64)

    def message_bytes(self, rows: Sequence[int]) -> list[bytes]:
        """The messages of some records."""
        name = BYTES if self._payload is None else ENVELOPE
        low, high = min(rows), max(rows) + 1
        stored = self._parts[name].rows(low, high)
        if self._payload is None:
            return [stored[row - low] for row in rows]
        contents = _contents(self._parts["content"], self._payload, low, high, list(stored))
        return [self._payload.message(stored[row - low], contents[row - low]) for row in rows]

    def messages(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Log time, publish time, sequence and bytes of every message, in the order of log times."""
        if not self._parts:
            return
        log, publish, sequence = (self.column(name) for name in (LOG_TIMES, PUBLISH_TIMES, SEQUENCE))
        order = np.argsort(log, kind="stable")
        for start in range(0, len(order), _BLOCK):
            rows = order[start : start + _BLOCK].tolist()
            for row, data in zip(rows, self.message_bytes(rows), strict=True):
                yield int(log[row]), int(publish[row]), int(sequence[row]), data


def _names(base: str, field: str) -> list[str]:
    name = f"{base}/{plain_name(field)}"
    return [name, *(f"{name}.{again}" for again in range(2, 6))]


def _contents(
    signal: Signal, payload: Payload, low: int, high: int, envelopes: Sequence[bytes]
) -> list[bytes]:
    """The large field of records [low, high) as the signal has it."""
    if all(map(is_whole, envelopes)):
        return [b""] * (high - low)
    if payload.kind in ("stills", "video"):
        run = encoded_run(signal[low:high])
        found = [] if run is None else [
            data for data, is_shown in zip(run.packets(), run.shown.tolist(), strict=True) if is_shown
        ]  # fmt: skip
        if run is None or len(found) != high - low or (np.diff(run.shows) != 1).any():
            raise WarpError("the pictures are no longer as they were")
        return found
    values = signal.rows(low, high)
    if payload.pixels is not None:
        return [payload.pixels.data(frame) for frame in values]
    return list(values)


def _equal(one: Signal, other: Signal) -> bool:
    if not one.meta.same_values(other.meta) or len(one) != len(other):
        return False
    step = 1 << 12
    for start in range(0, len(one), step):
        first, second = one.rows(start, start + step), other.rows(start, start + step)
        same = np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        if not same:
            return False
    return True


class _RestoredLog(MessageLog):
    """The messages of one topic of an episode, to be decoded again."""

    def __init__(self, topic: RestoredTopic, name: str) -> None:
        self._topic, self._name = topic, name
        log, publish, sequence = (topic.column(each) for each in (LOG_TIMES, PUBLISH_TIMES, SEQUENCE))
        self._order = np.argsort(log, kind="stable")
        self._stamps = Stamps(log[self._order], publish[self._order], sequence[self._order])

    @property
    def name(self) -> str:
        """The episode."""
        return self._name

    @property
    def channels(self) -> Sequence[LogChannel]:
        """The one topic."""
        return [self._topic.channel]

    def stamps(self, channel: int) -> Stamps:  # noqa: ARG002 - there is one
        """Its times."""
        return self._stamps

    def payloads(self, channel: int, rows: Ints) -> Payloads:  # noqa: ARG002 - there is one
        """Its messages."""
        return Payloads.of(self._topic.message_bytes(self._order[rows].tolist()))

    def payload_bytes(self, channel: int) -> int:  # noqa: ARG002 - there is one
        """Not known before they are read; small, so that fields are read together."""
        return len(self._topic)

    @property
    def about(self) -> Mapping[str, Any]:
        """Nothing."""
        return {}
