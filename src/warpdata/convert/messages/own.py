"""Topics that warpdata wrote for signals of other recordings: each is one signal again, as it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named
from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.messages.topic import Topic, TopicPictures
from warpdata.convert.rows import RowsSignal
from warpdata.errors import CorruptLayoutError, WarpError
from warpdata.timeline.meta import OBJECT, SignalMeta, as_kind, as_role
from warpdata.timeline.signal import Signal

OWN = "warpdata"
RECEIPT = "warpdata.receipt"
"""The metadata record of the receipt, in a file that was exported alone."""
"""In the metadata of a channel: what the signal was that it was written from."""
VALUE, DATA = "value", "data"


def own_signal(topic: Topic) -> dict[str, Callable[[str], Signal]]:
    """The signal of a topic that warpdata wrote, under its own name."""
    try:
        told = parse_json_object(topic.channel.metadata[OWN].encode())
        name, meta = str(told["signal"]), _meta(told)
    except (WarpError, KeyError, TypeError, ValueError):
        raise CorruptLayoutError(
            f"what topic {topic.channel.topic!r} says of its signal is damaged", path=topic.log.name
        ) from None
    topic.clock, topic.role = meta.clock, meta.role
    return {name: partial(_made, topic, meta)}


def _meta(told: Mapping[str, Any]) -> SignalMeta:
    kind = as_kind(told["kind"])
    dtype = OBJECT if kind in ("text", "bytes") else dtype_named(told["dtype"]).dtype
    names, shape = told.get("names"), tuple(int(side) for side in told["shape"])
    if min(shape, default=0) < 0:
        raise ValueError(shape)
    return SignalMeta(
        dtype, shape, kind, told.get("units"),
        None if names is None else tuple(map(str, names)), as_role(told["role"]), told.get("of"), told.get("model"),
        told.get("clock"),
    )  # fmt: skip


def _made(topic: Topic, meta: SignalMeta, name: str) -> Signal:
    if not len(topic):
        return RowsSignal(np.empty(0, np.int64), meta, partial(_none, meta), 0)
    payload = topic.payload
    if payload is not None and payload.field == DATA and payload.kind == "stills":
        return TopicPictures(topic, name, meta.role)
    if payload is not None and payload.field == DATA and payload.kind == "video":
        return topic.payload_signal(name)
    return RowsSignal(partial(_times, topic), meta, partial(_rows, topic, meta), len(topic))


def _times(topic: Topic) -> NDArray[np.int64]:
    return topic.times


def _none(meta: SignalMeta, _low: int, _high: int) -> NDArray[Any]:
    return np.empty((0, *meta.shape), meta.dtype)


def _rows(topic: Topic, meta: SignalMeta, low: int, high: int) -> NDArray[Any]:
    payload = topic.payload
    if payload is not None and payload.pixels is not None:
        found = topic.frames(low, high)
    elif payload is not None:
        found = topic.blobs(low, high)
    elif VALUE in topic.facts:
        found = topic.rows(VALUE, low, high)
    else:
        found = np.empty(0)
    made = _conformed(found, meta, high - low)
    if made is None:
        raise CorruptLayoutError(
            f"topic {topic.channel.topic!r} does not hold what it says {topic.problem}".rstrip(),
            path=topic.log.name,
        )
    return made


def _conformed(found: NDArray[Any], meta: SignalMeta, count: int) -> NDArray[Any] | None:
    """The values of messages as the signal had them; None where they cannot be its values."""
    if len(found) != count or (meta.is_object and found.dtype != OBJECT):
        return None
    if meta.is_object:
        return found if all(isinstance(each, str) == (meta.kind == "text") for each in found) else None
    if found.dtype == OBJECT:  # elements that ROS has no type for are bytes
        if any(not isinstance(each, bytes) or len(each) != meta.row_bytes for each in found):
            return None
        found = np.stack([np.frombuffer(each, meta.dtype) for each in found])
    if found.dtype != meta.dtype or found[:1].size != math.prod(meta.shape):
        return None
    return found.reshape(count, *meta.shape)
