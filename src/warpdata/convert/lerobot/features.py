"""The features of an exported set: those of the set it came from, or chosen from the signals of an episode."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from warpdata.convert.lerobot.documents import DEFAULTS
from warpdata.convert.lerobot.read import TASK
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.encoded import encoded_parts
from warpdata.errors import SchemaMismatchError, nearest
from warpdata.formats.episodedir.images import STILL_CODECS
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

Storing = Literal["numbers", "text", "json", "image", "video"]
_SIDES = ["height", "width", "channels"]
_FLAGS = {"reward": "next.reward", "terminated": "next.done", "truncated": "next.truncated"}


@dataclass(slots=True)
class Feature:
    """One feature of the exported set: the signal it comes from and its storage."""

    name: str
    signal: str
    storing: Storing
    about: dict[str, Any]
    """Its entry in info.json."""
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(object))
    shape: tuple[int, ...] = ()
    why: str = ""
    """The change of the signal, if there is one."""


@dataclass(slots=True)
class Features:
    """All features of the exported set, and the signals that are left out, with the reason."""

    chosen: list[Feature]
    dropped: dict[str, str]
    order: list[str]

    def to_json(self) -> dict[str, Any]:
        """The entries of info.json, with the five features that every set has."""
        every: dict[str, Any] = {each.name: each.about for each in self.chosen}
        for name in DEFAULTS:
            every[name] = {
                "dtype": "float32" if name == "timestamp" else "int64",
                "shape": [1],
                "names": None,
            }
        return {name: every[name] for name in dict.fromkeys([*self.order, *every]) if name in every}


def features_of(
    episode: Episode,
    original: Mapping[str, Any],
    names: Mapping[str, str] | None,
    *,
    frames_as: Literal["video", "image"],
) -> Features:
    """The features of a set like this episode; `original` are those of the LeRobot set it came from, if any."""
    renamed = _feature_names(episode, original, names)
    chosen, dropped = [], {}
    for signal_name, signal in episode.signals.items():
        if signal_name in DEFAULTS or signal_name == TASK:
            continue
        if signal.meta.kind == "bytes":
            dropped[signal_name] = "LeRobot has no feature of bytes"
            continue
        name = renamed[signal_name]
        stated = original.get(name)
        stated = stated if isinstance(stated, Mapping) else None
        chosen.append(_feature(name, signal_name, signal, stated, frames_as))
    return Features(chosen, dropped, list(original))


def _feature(
    name: str, signal_name: str, signal: Signal, original: Mapping[str, Any] | None, frames_as: str
) -> Feature:
    meta, shape = signal.meta, signal.meta.shape

    def entry(dtype: str, sides: list[int], names: list[str] | None) -> dict[str, Any]:
        """The entry of the original set as long as it is true of the signal, else a new one."""
        stated = original.get("shape") if original is not None else None
        fits = isinstance(stated, list) and math.prod(stated) == math.prod(sides)
        if original is not None and original.get("dtype") == dtype and fits:
            return dict(original)
        return {"dtype": dtype, "shape": sides, "names": names}

    if meta.kind == "text":
        is_json = original is not None and original.get("dtype") not in ("string", None)
        about = dict(original or {"dtype": "string", "shape": [1], "names": None})
        return Feature(name, signal_name, "json" if is_json else "text", about)
    # Other pictures than RGB of 8 bits (gray, depth, RGBA, 16-bit colour) are numbers, unless they are single pictures.
    is_gray = meta.kind == "image" and (shape[2:] != (3,) or meta.dtype != np.uint8)
    if meta.kind == "image" and not (is_gray and camera_codec(signal) not in STILL_CODECS):
        stated = original.get("dtype") if original is not None else None
        is_image = is_gray or (frames_as if stated is None else stated) == "image"
        storing: Storing = "image" if is_image else "video"
        about = entry(storing, [*shape[:2], shape[2] if len(shape) == 3 else 1], list(_SIDES))
        return Feature(name, signal_name, storing, about, meta.dtype, shape)
    dtype, why = meta.dtype, ""
    if dtype.name == "bfloat16":
        dtype, why = np.dtype(np.float32), "bfloat16 as float32, which holds it exactly"
    labels = list(_SIDES)[: len(shape)] if is_gray else list(meta.names) if meta.names else None
    return Feature(
        name, signal_name, "numbers", entry(dtype.name, list(shape or (1,)), labels), dtype, shape, why
    )


def camera_codec(signal: Signal) -> str | None:
    """The codec of the frames of a camera; None if they are not encoded."""
    parts = encoded_parts(signal)
    if not parts:
        return None
    video = parts[0].video
    if isinstance(video, StillsSignal):
        return video.still.codec
    index = video.frame_index()
    return None if index.stream is None else index.stream.codec


def _feature_names(
    episode: Episode, original: Mapping[str, Any], given: Mapping[str, str] | None
) -> dict[str, str]:
    """Signal -> feature: names of LeRobot stay, others get those its policies look for; `given` takes precedence."""
    signals = episode.signals
    for name in given or {}:
        if name not in signals:
            raise KeyError(f"names contains {name!r}, which is no signal.{nearest(name, signals)}")
    names = {name: name if original else _convention(name, signals) for name in signals}
    names = {name: feature.replace("/", ".") for name, feature in {**names, **(given or {})}.items()}
    used = [names[name] for name in signals if name not in DEFAULTS and name != TASK]
    for feature in sorted(used):
        if used.count(feature) > 1:
            fact = f"two signals would become {feature!r}"
            raise SchemaMismatchError(fact, hint="Give names={signal: feature}.")
    return names


def _convention(name: str, signals: Mapping[str, Signal]) -> str:
    """The name by LeRobot's conventions; one that follows them already stays."""
    meta = signals[name].meta
    is_image = meta.kind == "image"
    if is_image and meta.role in ("observation", "other"):
        is_known = name == "observation.image" or name.startswith("observation.images.")
    else:
        is_known = name == "action" or name.startswith(("action.", "observation.", "next."))
    if is_known:
        return name
    if meta.role in _FLAGS:
        return _FLAGS[meta.role]
    metas = {other: signal.meta for other, signal in signals.items() if not signal.meta.is_object}
    is_only = [
        other
        for other, each in metas.items()
        if each.role == meta.role and (each.kind == "image") == is_image
    ] == [name]
    if meta.role == "action":
        return "action" if is_only else f"action.{name.removeprefix('action/')}"
    if meta.role in ("observation", "other") and is_image:
        return f"observation.images.{re.sub('^observations?[./](images?[./])?', '', name)}"
    if meta.role == "observation" and not meta.is_object:
        is_state = is_only and "observation.state" not in signals
        return "observation.state" if is_state else f"observation.{re.sub('^observations?[./]', '', name)}"
    return name
