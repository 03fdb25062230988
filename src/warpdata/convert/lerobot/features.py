"""The features of a LeRobot set, those of its source or chosen from the signals of an episode; their statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.convert.lerobot.read import DEFAULTS, FORMAT, TASK, is_of_lerobot
from warpdata.convert.receipt import metadata_of, unpack
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.cameras import StillsSignal
from warpdata.episodes.sources.encoded import encoded_parts
from warpdata.episodes.statistics import ValueStatistics
from warpdata.errors import SchemaMismatchError, nearest
from warpdata.formats.episodedir.documents import STILL_CODECS
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
        every: dict[str, Any] = {feature.name: feature.about for feature in self.chosen}
        for name in DEFAULTS:
            dtype = "float32" if name == "timestamp" else "int64"
            every[name] = {"dtype": dtype, "shape": [1], "names": None}
        return {name: every[name] for name in dict.fromkeys([*self.order, *every]) if name in every}


class SetPlan:
    """What a set like these episodes has: from the LeRobot set that they came from, if any, and from one of them."""

    def __init__(
        self,
        episodes: Episodes,
        first: Episode,
        names: Mapping[str, str] | None = None,
        frames_as: Literal["video", "image"] = "video",
    ) -> None:
        self.original: dict[str, Any] = unpack(metadata_of(episodes.metadata, FORMAT))
        info = self.original.get("info")
        self.info: dict[str, Any] = info if isinstance(info, dict) else {}
        known = self.info.get("features")
        known = known if isinstance(known, dict) else {}
        renamed = _feature_names(first, known, names)
        chosen, dropped = [], {}
        for signal_name, signal in first.signals.items():
            if signal_name not in renamed:
                continue
            if signal.meta.kind == "bytes":
                dropped[signal_name] = "LeRobot has no feature of bytes"
                continue
            name = renamed[signal_name]
            stated = known.get(name)
            stated = stated if isinstance(stated, Mapping) else None
            chosen.append(_feature(name, signal_name, signal, stated, frames_as))
        self.features = Features(chosen, dropped, list(known))
        self.fps: Any = self.info.get("fps", first.static.get("fps") if is_of_lerobot(first) else None)
        self.robot_type: Any = self.info.get("robot_type", first.static.get("robot_type"))
        self._tasks = {str(row["task"]): dict(row) for row in self.original.get("tasks") or ()}

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """Tasks in the order of their numbers, each with all that is known of it."""
        return sorted(self._tasks.values(), key=lambda row: int(row["task_index"]))

    def task_number(self, text: str) -> int:
        """The number of a task; a new one gets the next."""
        if text not in self._tasks:
            last = max((int(row["task_index"]) for row in self._tasks.values()), default=-1)
            self._tasks[text] = {"task_index": last + 1, "task": text}
        return int(self._tasks[text]["task_index"])

    def defaults(self, fps: float, number: int, first: int, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The columns that every set has, of an episode whose first row has the index `first`; `texts` are tasks."""
        rows = np.arange(len(texts), dtype=np.int64)
        return {
            "timestamp": (rows / fps).astype(np.float32),
            "frame_index": rows,
            "episode_index": np.full(len(rows), number, np.int64),
            "index": rows + first,
            "task_index": np.array([self.task_number(text) for text in texts], np.int64),
        }

    def stated_stats(self, episodes: int, frames: int) -> Mapping[str, Any] | None:
        """The statistics of the source, if it had as many episodes and frames."""
        counts = (self.info.get("total_episodes"), self.info.get("total_frames"))
        stats = self.original.get("stats")
        return stats if isinstance(stats, Mapping) and counts == (episodes, frames) else None


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
    """Signal -> feature: names of LeRobot stay, others get those its policies look for; `given` takes precedence.

    Without the columns that every set has, and the task; signals of the user with such a name get another one.
    """
    signals = episode.signals
    placed = DEFAULTS if is_of_lerobot(episode) else ()
    own = [
        name for name in signals if name not in placed and (name != TASK or signals[name].meta.kind != "text")
    ]
    for name in given or {}:
        if name not in signals:
            raise KeyError(f"names contains {name!r}, which is no signal.{nearest(name, signals)}")
    names = {name: name if original else _convention(name, signals) for name in own}
    names = {
        name: f"observation.{each}" if each in (*DEFAULTS, TASK) else each for name, each in names.items()
    }
    names |= {name: feature for name, feature in (given or {}).items() if name in own}
    names = {name: feature.replace("/", ".") for name, feature in names.items()}
    used = list(names.values())
    for feature in sorted(used):
        if feature in (*DEFAULTS, TASK):
            raise SchemaMismatchError(f"feature {feature!r} is LeRobot's own", hint="Give it another name.")
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
    alike = [key for key, m in metas.items() if (m.role, m.kind == "image") == (meta.role, is_image)]
    is_only = alike == [name]
    if meta.role == "action":
        return "action" if is_only else f"action.{name.removeprefix('action/')}"
    if meta.role in ("observation", "other") and is_image:
        return f"observation.images.{re.sub('^observations?[./](images?[./])?', '', name)}"
    if meta.role == "observation" and not meta.is_object:
        is_state = is_only and "observation.state" not in signals
        return "observation.state" if is_state else f"observation.{re.sub('^observations?[./]', '', name)}"
    return name


QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_EXACT_BYTES = 64 << 20
"""Quantiles of a feature are exact up to this much data, within 2 % of the value beyond."""


def row_statistics(values: NDArray[Any], *, quantiles: bool) -> dict[str, Any]:
    """The statistics of the rows of an episode, as lists."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    shape = values.shape[1:] or (1,)
    stats: dict[str, Any] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        for name in ("min", "max", "mean", "std"):
            stats[name] = getattr(flat, name)(axis=0).reshape(shape).tolist()
        stats["count"] = [len(values)]
        if quantiles:
            for name, value in zip(QUANTILES, np.quantile(flat, list(QUANTILES.values()), 0), strict=True):
                stats[name] = value.reshape(shape).tolist()
    return stats


_SIDE, _LARGE = 150, 300
"""Frames with a side of at least `_LARGE` are thinned to about `_SIDE`, as LeRobot does."""


class FrameCounts:
    """How often every level occurs in sampled frames, by channel: all statistics of them are exact, and so are sums."""

    def __init__(self, counts: NDArray[np.int64], frames: int) -> None:
        self._counts = counts
        self._frames = frames

    @classmethod
    def of(cls, frames: NDArray[Any]) -> FrameCounts:
        """Of frames (HWC or HW) of uint8 or uint16; of large ones, only some rows and columns are counted."""
        height, width = frames.shape[1:3]
        side = max(height, width)
        step = side // _SIDE if side >= _LARGE else 1
        pixels = frames[:, ::step, ::step].reshape(-1, frames.shape[3] if frames.ndim == 4 else 1)
        levels = int(np.iinfo(frames.dtype).max) + 1
        counts = [
            np.bincount(pixels[:, channel], minlength=levels).astype(np.int64)
            for channel in range(pixels.shape[1])
        ]
        return cls(np.stack(counts), len(frames))

    def __add__(self, other: FrameCounts) -> FrameCounts:
        return FrameCounts(self._counts + other._counts, self._frames + other._frames)

    def statistics(self, *, quantiles: bool) -> dict[str, Any]:
        """The statistics as LeRobot states them: of uint8 scaled to 0..1, shaped [channel][1][1]."""
        levels = self._counts.shape[1]
        values = np.arange(levels) / (255.0 if levels == 256 else 1.0)
        ranks = np.cumsum(self._counts, axis=1)
        total = int(ranks[0, -1])
        mean = self._counts @ values / total
        spread = self._counts @ values**2 / total - mean**2
        columns = {"min": self._at(values, ranks, 0), "max": self._at(values, ranks, total - 1), "mean": mean}
        columns["std"] = np.sqrt(np.maximum(spread, 0.0))
        for name, share in QUANTILES.items() if quantiles else ():
            place = share * (total - 1)
            low, high = (self._at(values, ranks, int(f(place))) for f in (np.floor, np.ceil))
            columns[name] = low + (high - low) * (place - np.floor(place))
        lists = {name: [[[float(number)]] for number in column] for name, column in columns.items()}
        return {**lists, "count": [self._frames]}

    @staticmethod
    def _at(values: NDArray[Any], ranks: NDArray[np.int64], place: int) -> NDArray[Any]:
        """The value at a place among the sorted ones of each channel."""
        return values[[int(np.searchsorted(rank, place, side="right")) for rank in ranks]]


class SetStatistics:
    """The statistics of one feature over all episodes."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []
        self._bytes = 0
        self._running: ValueStatistics | None = None
        self._shape: tuple[int, ...] = (1,)
        self._parts: list[Mapping[str, Any]] = []
        self._counts: FrameCounts | None = None
        self._counted = 0

    def add_rows(self, values: NDArray[Any]) -> None:
        """The rows of one more episode."""
        self._shape = values.shape[1:] or (1,)
        if self._running is None and self._bytes + values.nbytes <= _EXACT_BYTES:
            self._kept.append(np.array(values))
            self._bytes += values.nbytes
            return
        if self._running is None:
            self._running = ValueStatistics(self._shape)
            for rows in self._kept:
                self._running.add(rows)
            self._kept = []
        self._running.add(values)

    def add_part(self, stats: Mapping[str, Any], counts: FrameCounts | None = None) -> None:
        """What is known of one more episode; `counts` where its frames were looked at."""
        self._parts.append(stats)
        if counts is not None:
            self._counts = counts if self._counts is None else self._counts + counts
            self._counted += 1

    def statistics(self) -> dict[str, Any] | None:
        """The statistics, or None where there was nothing."""
        if self._kept:
            return row_statistics(np.concatenate(self._kept), quantiles=True)
        if self._running is not None:
            running = self._running
            size = int(np.prod(self._shape))
            std = np.sqrt(running.m2 / np.maximum(running.count, 1))
            columns = {"min": running.low, "max": running.high, "mean": running.mean, "std": std}
            quantiles = running.sketch.quantiles(list(QUANTILES.values()))
            columns |= dict(zip(QUANTILES, quantiles, strict=True))
            stats: dict[str, Any] = {
                name: np.broadcast_to(value, size).reshape(self._shape).tolist()
                for name, value in columns.items()
            }
            return {**stats, "count": [int(running.count.max())]}
        if self._counts is not None and self._counted == len(self._parts):
            return self._counts.statistics(quantiles=True)
        return _merged(self._parts) if self._parts else None


def _merged(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Several statistics of sampled frames as one; quantiles are averaged, as nothing better is known of them."""
    counts = np.array([float(part["count"][0]) for part in parts])
    weights = (counts / counts.sum()).reshape(-1, *(1,) * np.ndim(parts[0]["mean"]))
    column = {name: np.array([part[name] for part in parts], float) for name in ("min", "max", "mean", "std")}
    mean = (column["mean"] * weights).sum(axis=0)
    spread = ((column["std"] ** 2 + (column["mean"] - mean) ** 2) * weights).sum(axis=0)
    stats: dict[str, Any] = {
        "min": column["min"].min(axis=0).tolist(),
        "max": column["max"].max(axis=0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(spread).tolist(),
        "count": [int(counts.sum())],
    }
    for name in QUANTILES:
        if all(name in part for part in parts):
            stats[name] = (np.array([part[name] for part in parts], float) * weights).sum(axis=0).tolist()
    return stats
