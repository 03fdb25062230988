"""What a caller says about the channels of a stream, checked before anything is recorded."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warpdata.bytekit.dtype import dtype_named, dtype_of
from warpdata.errors import nearest
from warpdata.formats.wshard.compression import Compression
from warpdata.formats.wshard.episode import LATENT, LATENT_CODEBOOK
from warpdata.formats.wshard.layout import LANE_PREFIX
from warpdata.formats.wshard.residual import SIGN_BITS, is_sign_bits
from warpdata.formats.wshard.schema import ENCODINGS, MAX_RANK, TensorSpec, check_channel_id

LANES = tuple(LANE_PREFIX)
TEXT_SIZE_BYTES = 4
DEFAULT_TEXT_BYTES = 1024
_MAX_TEXT_BYTES = 1 << 24

_KEYS = ("id", "dtype", "shape", "lane", "compression", "max_bytes")
_MODEL_KEYS = ("of", "model", "type")
_MISSPELT = 0.85
"""How like a known key another one must be to be taken for a slip of the hand."""


@dataclass(frozen=True, slots=True)
class StepField:
    """One channel or flag of a step: where it lies in the payload, what it is, and where it goes in the episode."""

    id: str
    lane: str
    tensor: TensorSpec
    offset: int
    compression: str | None = None
    about: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    """Its name within the lane: that of the channel, or `<of>/<model>` and the like for what models say."""
    encoding: str | None = None
    """`text` or `json`: then the field is a length and room for that many bytes."""

    @property
    def is_bits(self) -> bool:
        """Whether it takes signs, of which the bits are stored: by its type, or by its name where it says none."""
        subject, _, kind = self.path.rpartition("/")
        if self.about.get("of") is not None:
            kind = self.about.get("type", "")
        return self.lane == "residual" and bool(subject) and kind == SIGN_BITS


def channel_fields(channels: Sequence[Mapping[str, Any]]) -> list[StepField]:
    """The fields of a step, not yet placed; ValueError or TypeError says what is wrong with which channel."""
    if isinstance(channels, Mapping | str) or not all(isinstance(each, Mapping) for each in channels):
        raise TypeError("channels is a list of dicts with 'id', 'dtype' and 'shape'")
    for index, each in enumerate(channels):
        _check_keys(each, index)
    fields = [_field(each) for each in channels]
    subjects = {each.id for each in fields if each.lane in ("signal", "action")} | {LATENT, LATENT_CODEBOOK}
    for made in fields:
        of = made.about.get("of") if made.lane not in ("signal", "action") else None
        if of is not None and of not in subjects:
            raise ValueError(
                f"channel {made.id!r} is of {of!r}, which is no channel here.{nearest(of, subjects)}"
            )
    for names in ([each.id for each in fields], [(each.lane, each.path) for each in fields]):
        if len(set(names)) != len(names):
            raise ValueError("two channels have the same id, or would be stored in the same block")
    return fields


def absent(fact: str, name: str, given: Iterable[object]) -> str:
    """The fact that a name is not there, and the given one that was probably meant for it."""
    for each in given:
        if meant := nearest(str(each), [name]):
            return f"{fact}, but there is {each!r}.{meant}"
    return fact


def _check_keys(each: Mapping[str, Any], index: int) -> None:
    for key in ("id", "dtype"):
        if key not in each:
            raise ValueError(absent(f"channel {each.get('id', index)!r} has no {key!r}", key, each))
    known = _KEYS if each.get("lane", "signal") in ("signal", "action") else _KEYS + _MODEL_KEYS
    for key in each:
        if key not in known and (close := difflib.get_close_matches(str(key), known, 1, _MISSPELT)):
            raise ValueError(f"channel {each['id']!r} has the key {key!r}. Did you mean {close[0]!r}?")


def _field(each: Mapping[str, Any]) -> StepField:
    channel_id, lane = each["id"], each.get("lane", "signal")
    check_channel_id(channel_id)
    if lane not in LANES:
        raise ValueError(
            f"the lane of {channel_id!r} is one of {', '.join(LANES)}, not {lane!r}.{nearest(str(lane), LANES)}"
        )
    compression = each.get("compression")
    if compression is not None and not isinstance(compression, str):
        raise TypeError(f"the compression of {channel_id!r} is a name such as 'zstd', not {compression!r}")
    Compression.parse(compression)
    encoding = each["dtype"] if isinstance(each["dtype"], str) and each["dtype"] in ENCODINGS else None
    tensor = _tensor(each, channel_id) if encoding is None else _text_room(each, channel_id)
    about = {key: value for key, value in each.items() if key not in _KEYS}
    made = StepField(channel_id, lane, tensor, 0, compression, about, _path(each, lane), encoding)
    if made.is_bits and tensor.dtype != "i8":
        raise ValueError(f"channel {channel_id!r} takes signs: its dtype is 'i8', and their bits are stored")
    if lane == "residual" and is_sign_bits(made.path, tensor):
        raise ValueError(
            f"channel {channel_id!r} would be taken for bits of {SIGN_BITS}: use another dtype or name"
        )
    return made


def _path(each: Mapping[str, Any], lane: str) -> str:
    """`<of>/<model>` of a prediction, `<of>/<model>/<type>` of an uncertainty, `<of>/<type>/<model>` of a residual."""
    channel_id, of, model, kind = each["id"], each.get("of"), each.get("model"), each.get("type")
    if lane in ("signal", "action") or of is None:
        if lane not in ("signal", "action") and (model is not None or kind is not None):
            raise ValueError(
                f"channel {channel_id!r} says nothing of what it is: give 'of', the id of a channel"
            )
        return str(channel_id)
    needed = {"omen": ("model",), "uncert": ("model", "type"), "residual": ()}[lane]
    for key in needed:
        if each.get(key) is None:
            raise ValueError(f"channel {channel_id!r} in lane {lane!r} has no {key!r}")
    parts = {"omen": (of, model), "uncert": (of, model, kind), "residual": (of, kind or "error", model)}[lane]
    path = "/".join(str(part) for part in parts if part is not None)
    check_channel_id(path)
    return path


def _tensor(each: Mapping[str, Any], channel_id: str) -> TensorSpec:
    shape = each.get("shape", ())
    # A string is one of the thirteen names, not whatever numpy takes a word for.
    dtype = dtype_named(each["dtype"]) if isinstance(each["dtype"], str) else dtype_of(each["dtype"])
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"the shape of {channel_id!r} is a list such as [7], not {shape!r}")
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"the shape of {channel_id!r} is {list(shape)}, sizes were expected")
    if len(shape) > MAX_RANK:
        raise ValueError(f"the shape of {channel_id!r} has {len(shape)} axes, at most {MAX_RANK} are allowed")
    return TensorSpec(dtype, tuple(shape))


def _text_room(each: Mapping[str, Any], channel_id: str) -> TensorSpec:
    """A length and room for the longest value: records of a stream are all of one size."""
    room = each.get("max_bytes", DEFAULT_TEXT_BYTES)
    if isinstance(room, bool) or not isinstance(room, int) or not 0 < room <= _MAX_TEXT_BYTES:
        raise ValueError(f"max_bytes of {channel_id!r} is {room!r}, 1 to {_MAX_TEXT_BYTES} was expected")
    if list(each.get("shape", ())) != []:
        raise ValueError(f"channel {channel_id!r} holds one {each['dtype']} per step, it has no shape")
    return TensorSpec(dtype_named("u8"), (TEXT_SIZE_BYTES + room,))
