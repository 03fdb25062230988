"""Topics that warpdata wrote, one per signal: each is read as the signal it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.messages.log import MessageLog
from warpdata.convert.messages.topic import Topic
from warpdata.convert.stepped import RowsSignal
from warpdata.errors import CorruptLayoutError, WarpError
from warpdata.timeline.meta import OBJECT, SignalMeta, as_kind, as_role
from warpdata.timeline.signal import Signal

OWN = "warpdata"
"""Key in the metadata of a channel: description of the signal; and name of the metadata record of the episode."""
RECEIPT = "warpdata.receipt"
"""Name of the metadata record with the receipt, in a file that was exported alone."""


def open_own_topic(log: MessageLog, number: int) -> tuple[str, Callable[[str], Signal]]:
    """Name of the signal of a topic that warpdata wrote, and the function that opens it under a name."""
    channel = log.channels[number]
    try:
        stated = parse_json_object(channel.metadata[OWN].encode())
        name, meta = str(stated["signal"]), _parse_meta(stated)
    except (WarpError, KeyError, TypeError, ValueError):
        raise CorruptLayoutError(
            f"corrupted description of the signal of topic {channel.topic!r}", path=log.name
        ) from None
    topic = Topic(log, number, name, clock=meta.clock, role=meta.role)
    return name, partial(_make_signal, topic, meta)


def _parse_meta(stated: Mapping[str, Any]) -> SignalMeta:
    kind = as_kind(stated["kind"])
    names, shape = stated.get("names"), tuple(int(side) for side in stated["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(shape)
    return SignalMeta(
        OBJECT if kind in ("text", "bytes") else dtype_named(stated["dtype"]).dtype,
        shape,
        kind,
        stated.get("units"),
        None if names is None else tuple(map(str, names)),
        as_role(stated["role"]),
        stated.get("of"),
        stated.get("model"),
        stated.get("clock"),
    )


def _make_signal(topic: Topic, meta: SignalMeta, name: str) -> Signal:
    if not len(topic):
        empty = np.empty((0, *meta.shape), meta.dtype)
        return RowsSignal(np.empty(0, np.int64), meta, partial(_slice, empty), 0)
    payload = topic.payload
    if payload is not None and payload.field == "data" and payload.kind in ("stills", "video"):
        return topic.open_payload(name)
    return RowsSignal(topic.read_times, meta, partial(_read_rows, topic, meta), len(topic))


def _slice(array: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    return array[low:high]


def _read_rows(topic: Topic, meta: SignalMeta, low: int, high: int) -> NDArray[Any]:
    payload = topic.payload
    values = np.empty(0)
    if payload is not None:
        values = topic.read_frames(low, high) if payload.pixels is not None else topic.read_blobs(low, high)
    elif "value" in topic.fields:
        values = topic.rows("value", low, high)
    rows = _check_values(values, meta, high - low)
    if rows is None:
        raise CorruptLayoutError(
            f"values of topic {topic.channel.topic!r} do not match its description {topic.problem}".rstrip(),
            path=topic.log.name,
        )
    return rows


def _check_values(values: NDArray[Any], meta: SignalMeta, count: int) -> NDArray[Any] | None:
    """Values in the type and shape of the signal; None if they do not have it."""
    if len(values) != count or (meta.is_object and values.dtype != OBJECT):
        return None
    if meta.is_object:
        return values if all(isinstance(value, str) == (meta.kind == "text") for value in values) else None
    if values.dtype == OBJECT:  # ROS has no type for the elements: they were written as bytes
        if any(not isinstance(value, bytes) or len(value) != meta.row_bytes for value in values):
            return None
        values = np.stack([np.frombuffer(value, meta.dtype) for value in values])
    if values.dtype != meta.dtype or values[:1].size != math.prod(meta.shape):
        return None
    return values.reshape(count, *meta.shape)
