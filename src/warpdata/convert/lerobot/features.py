"""Which features an exported set has: those of the set it came from, or what the signals of an episode are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from warpdata.convert.lerobot.documents import DEFAULTS
from warpdata.convert.lerobot.reading import TASK
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.encoded import encoded_parts
from warpdata.errors import SchemaMismatchError, nearest
from warpdata.formats.episodedir.images import STILL_CODECS, Stream
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.signal import Signal

Storing = Literal["numbers", "text", "json", "image", "video"]
_DEFAULT_FEATURES = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    for name in DEFAULTS
}
_SIDES = ["height", "width", "channels"]
_FLAGS = {"reward": "next.reward", "terminated": "next.done", "truncated": "next.truncated"}


@dataclass(slots=True)
class Feature:
    """One feature of the exported set: the signal it comes from and how it is stored."""

    name: str
    signal: str
    storing: Storing
    about: dict[str, Any]
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(object))
    shape: tuple[int, ...] = ()
    why: str = ""
    """What is changed of the signal, if something is."""


@dataclass(slots=True)
class Features:
    """All features of the exported set, in their order, and what is left out."""

    found: list[Feature]
    dropped: dict[str, str]
    order: list[str]

    def to_json(self) -> dict[str, Any]:
        """As info.json has them, with the five that every set has."""
        stated = {each.name: each.about for each in self.found}
        every = {**stated, **{name: dict(about) for name, about in _DEFAULT_FEATURES.items()}}
        names = [name for name in self.order if name in every] + [
            name for name in every if name not in self.order
        ]
        return {name: every[name] for name in names}


def features_of(
    episode: Episode,
    original: Mapping[str, Any],
    names: Mapping[str, str] | None,
    *,
    frames_as: Literal["video", "image"],
) -> Features:
    """The features of a set like this episode; `original` are those of the LeRobot set it came from, if it did."""
    renamed = _names(episode, original, names)
    found, dropped = [], {}
    for signal_name, signal in episode.signals.items():
        if signal_name in DEFAULTS or signal_name == TASK:
            continue
        name = renamed[signal_name]
        made = _feature(name, signal_name, signal, original.get(name), frames_as)
        if isinstance(made, str):
            dropped[signal_name] = made
        else:
            found.append(made)
    return Features(found, dropped, list(original))


def _feature(name: str, signal_name: str, signal: Signal, original: Any, frames_as: str) -> Feature | str:
    meta = signal.meta
    if meta.kind == "bytes":
        return "LeRobot has no feature of bytes"
    if meta.kind == "text":
        is_json = isinstance(original, Mapping) and original.get("dtype") not in ("string", None)
        about = _kept(original) or {"dtype": "string", "shape": [1], "names": None}
        return Feature(name, signal_name, "json" if is_json else "text", about)
    if meta.kind == "image":
        return _camera(name, signal_name, signal, original, frames_as)
    dtype, why = meta.dtype, ""
    if dtype.name == "bfloat16":
        dtype, why = np.dtype(np.float32), "bfloat16 as float32, which holds it exactly"
    shape = meta.shape or (1,)
    plain = {"dtype": dtype.name, "shape": list(shape), "names": list(meta.names) if meta.names else None}
    about = _kept(original, dtype=dtype.name, size=int(np.prod(shape))) or plain
    return Feature(name, signal_name, "numbers", about, dtype, meta.shape, why)


def _camera(name: str, signal_name: str, signal: Signal, original: Any, frames_as: str) -> Feature | str:
    shape = signal.meta.shape
    codec = camera_codec(signal)
    is_gray = len(shape) == 2 or shape[2] == 1
    if is_gray and codec not in STILL_CODECS:
        about = {"dtype": signal.meta.dtype.name, "shape": list(shape), "names": list(_SIDES)[: len(shape)]}
        return Feature(name, signal_name, "numbers", about, signal.meta.dtype, shape)
    stated = original.get("dtype") if isinstance(original, Mapping) else None
    as_image = stated == "image" or (stated is None and frames_as == "image")
    storing: Storing = "image" if as_image or is_gray else "video"
    sides = [*shape[:2], shape[2] if len(shape) == 3 else 1]
    about = _kept(original, dtype=storing, size=int(np.prod(sides))) or {
        "dtype": storing, "shape": sides, "names": list(_SIDES),
    }  # fmt: skip
    return Feature(name, signal_name, storing, about, signal.meta.dtype, shape)


def _kept(original: Any, *, dtype: str | None = None, size: int | None = None) -> dict[str, Any] | None:
    """What the original set says of a feature, as long as it is true of the signal."""
    if not isinstance(original, Mapping):
        return None
    shape = original.get("shape")
    is_same = dtype is None or original.get("dtype") == dtype
    fits = size is None or (isinstance(shape, list) and int(np.prod(shape)) == size)
    return dict(original) if is_same and fits else None


def camera_codec(signal: Signal) -> str | None:
    """How the frames of a camera are encoded; None where they are not."""
    parts = encoded_parts(signal)
    if not parts:
        return None
    video = parts[0].video
    if isinstance(video, StillsSignal):
        return video.still.codec
    index = video.frame_index()
    return None if index.stream is None else index.stream.codec


def video_info(stream: Stream, height: int, width: int, fps: float) -> dict[str, Any]:
    """What info.json says of a camera, from the stream itself."""
    return {
        "video.height": height, "video.width": width, "video.codec": stream.codec, "video.pix_fmt": stream.pix_fmt,
        "video.is_depth_map": False, "video.fps": fps, "video.channels": 3, "has_audio": False,
    }  # fmt: skip


def _names(episode: Episode, original: Mapping[str, Any], given: Mapping[str, str] | None) -> dict[str, str]:
    """Signal -> feature: LeRobot's names stay, others get those its policies look for; `given` has the last word."""
    for name in given or {}:
        if name not in episode.signals:
            raise KeyError(f"names speaks of {name!r}, which is no signal.{nearest(name, episode.signals)}")
    signals = episode.signals
    found = {
        name: name if original or _is_lerobot_name(name, signals[name].meta) else _convention(name, signals)
        for name in signals
    }
    found |= dict(given or {})
    made = {name: feature.replace("/", ".") for name, feature in found.items()}
    used = [made[name] for name in signals if name not in DEFAULTS and name != TASK]
    twice = {name for name in used if used.count(name) > 1}
    if twice:
        raise SchemaMismatchError(
            f"two signals would become {sorted(twice)[0]!r}", hint="Say names={signal: feature}."
        )
    return made


def _is_lerobot_name(name: str, meta: SignalMeta) -> bool:
    """Whether a signal already has a name of LeRobot's conventions."""
    if meta.kind == "image" and meta.role in ("observation", "other"):
        return name.startswith("observation.images.") or name == "observation.image"
    return name == "action" or name.startswith(("action.", "observation.", "next."))


def _convention(name: str, signals: Mapping[str, Signal]) -> str:
    meta = signals[name].meta
    if meta.role in _FLAGS:
        return _FLAGS[meta.role]
    alike = [
        each for each, signal in signals.items()
        if signal.meta.role == meta.role and (signal.meta.kind == "image") == (meta.kind == "image")
        and not signal.meta.is_object
    ]  # fmt: skip
    if meta.role == "action":
        return "action" if alike == [name] else f"action.{name.removeprefix('action/')}"
    if meta.role in ("observation", "other") and meta.kind == "image":
        return f"observation.images.{re.sub('^observations?[./](images?[./])?', '', name)}"
    if meta.role == "observation" and not meta.is_object:
        is_free = alike == [name] and "observation.state" not in signals
        return "observation.state" if is_free else f"observation.{re.sub('^observations?[./]', '', name)}"
    return name
