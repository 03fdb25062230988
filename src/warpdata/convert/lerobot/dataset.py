"""Frames of any episodes as LeRobot's training code expects them. The adapter of torch for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.process.forks import cached_property
from warpdata.convert.aligning import AlignOptions, check_rate, steps_with
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.features import FrameCounts, SetPlan, SetStatistics
from warpdata.convert.lerobot.read import DEFAULTS, TASK
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import MissingExtraError, SchemaMismatchError, nearest, require_kind
from warpdata.timeline.signal import Signal

try:
    import torch
    from torch.utils.data import Dataset
except ImportError:
    raise MissingExtraError.for_extra("torch", "torch") from None

_KEPT_BYTES = 512 << 20
_KEPT_EPISODES = 512
_SAMPLED_FRAMES = 256
Item = dict[str, Any]


class LeRobotFrames(Dataset[Item]):  # type: ignore[misc]
    """One item per step of any episodes, with the keys, dtypes, shapes and masks of a LeRobotDataset."""

    def __init__(
        self,
        episodes: Episodes,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        image_transforms: Any = None,
        tolerance_s: float = 1e-4,
    ) -> None:
        self.source, self.image_transforms = episodes, image_transforms
        self.delta_timestamps, self.tolerance_s = delta_timestamps, tolerance_s
        self.meta = FramesMeta(episodes)
        self.fps, self.features = self.meta.fps, self.meta.features
        self.num_frames, self.num_episodes = self.meta.total_frames, self.meta.total_episodes
        require_kind(
            "delta_timestamps", delta_timestamps, (Mapping, type(None)), "a dictionary of seconds by feature"
        )
        deltas = {}
        for key, moments in (delta_timestamps or {}).items():
            if key not in self.features:
                raise KeyError(f"delta_timestamps: no feature {key!r}.{nearest(key, self.features)}")
            exact = np.asarray(moments, np.float64) * self.fps
            deltas[key] = np.round(exact).astype(np.int64)
            if exact.ndim != 1 or (np.abs(exact - deltas[key]) / self.fps > tolerance_s).any():
                fact = f"delta_timestamps of {key!r} are no multiples of 1/{self.fps:g} s: {list(moments)}"
                raise ValueError(fact)
        self.delta_indices = deltas
        self._loaded: OrderedDict[int, LoadedEpisode] = OrderedDict()

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: int) -> Item:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        return self.__getitems__([int(index) % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Many items at once, as DataLoader requests them: each frame is decoded once."""
        items: list[Item] = [{} for _ in indices]
        numbers = np.asarray(indices, np.int64)
        owners = np.searchsorted(self.meta.starts, numbers, side="right") - 1
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            rows = numbers[places] - int(self.meta.starts[owner])
            for place, item in zip(places.tolist(), self._items(owner, rows), strict=True):
                items[place] = item
        return items

    def _items(self, owner: int, rows: NDArray[np.int64]) -> list[Item]:
        """Items of one episode, their keys in LeRobot's order: videos, columns, masks, the task."""
        loaded, meta = self._load(owner), self.meta
        items: list[Item] = [{} for _ in rows]
        keys = [*meta.video_keys, *(key for key in meta.features if key not in meta.video_keys)]
        for key in keys:
            if key in meta.camera_keys:
                self._add_frames(items, loaded, key, rows)
                continue
            column, deltas = loaded.columns[key], self.delta_indices.get(key)
            for item, row in zip(items, rows.tolist(), strict=True):
                if deltas is not None:  # moments outside the episode are its first or last one
                    at = np.clip(row + deltas, 0, loaded.length - 1)
                    is_text = isinstance(column, list)
                    item[key] = [column[k] for k in at.tolist()] if is_text else torch.from_numpy(column[at])
                elif isinstance(column, list):
                    item[key] = column[row]
                else:
                    item[key] = torch.from_numpy(np.array(column[row]))
        for key, deltas in self.delta_indices.items():
            for item, row in zip(items, rows, strict=True):
                at = row + deltas
                item[f"{key}_is_pad"] = torch.from_numpy((at < 0) | (at >= loaded.length))
        for item, row in zip(items, rows.tolist(), strict=True):
            for key in meta.camera_keys if self.image_transforms is not None else ():
                item[key] = self.image_transforms(item[key])
            item[TASK] = loaded.tasks[row]
        return items

    def _add_frames(
        self, items: list[Item], loaded: LoadedEpisode, key: str, rows: NDArray[np.int64]
    ) -> None:
        """Frames as float CHW in 0..1; a video with one requested moment gives one frame."""
        deltas = self.delta_indices.get(key)
        steps = rows[:, None] + (np.zeros(1, np.int64) if deltas is None else deltas)
        steps = np.clip(steps, 0, loaded.length - 1)
        wanted, place = np.unique(steps, return_inverse=True)
        frames = _scale(loaded.frames(key, wanted))
        is_single = deltas is None or (key in self.meta.video_keys and len(deltas) == 1)
        for item, numbers in zip(items, place.reshape(steps.shape), strict=True):  # an item owns its memory
            item[key] = torch.from_numpy(frames[numbers[0]].copy() if is_single else frames[numbers])

    def _load(self, owner: int) -> LoadedEpisode:
        loaded = self._loaded.pop(owner, None) or LoadedEpisode(self.meta, owner)
        self._loaded[owner] = loaded
        used = sum(part.nbytes for part in self._loaded.values())
        while len(self._loaded) > 1 and (used > _KEPT_BYTES or len(self._loaded) > _KEPT_EPISODES):
            used -= self._loaded.popitem(last=False)[1].nbytes
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": OrderedDict()}

    def __repr__(self) -> str:
        return f"<LeRobotFrames {len(self)} frames of {self.num_episodes} episodes, {self.fps:g} Hz>"


class FramesMeta:
    """Metadata that LeRobot's policies and samplers use: features, statistics, rate, episodes and tasks."""

    def __init__(self, episodes: Episodes) -> None:
        if not len(episodes):
            raise SchemaMismatchError("there are no episodes", hint="Check the selection.")
        self.source, first = episodes, episodes[0]
        plan = self._plan = SetPlan(episodes, first)
        self.chosen = {feature.name: feature for feature in plan.features.chosen}
        self.features: dict[str, Any] = plan.features.to_json()
        kinds = {key: about["dtype"] for key, about in self.features.items()}
        self.video_keys = [key for key, kind in kinds.items() if kind == "video"]
        self.image_keys = [key for key, kind in kinds.items() if kind == "image"]
        self.camera_keys = [key for key, kind in kinds.items() if kind in ("image", "video")]
        self.names = {key: about.get("names") for key, about in self.features.items()}
        self.shapes = {key: tuple(about["shape"]) for key, about in self.features.items()}
        rate, _ = check_rate(steps_with(first, AlignOptions()), plan.fps, first.source.place)
        self.fps: float = rate if plan.fps is None else plan.fps
        self.robot_type = None if plan.robot_type is None else str(plan.robot_type)
        facts = episodes.facts
        lengths = [
            episodes[number].steps.length if length is None else int(length)
            for number, length in enumerate(facts.column("length").to_pylist())
        ]
        self.starts: NDArray[np.int64] = np.cumsum([0, *lengths]).astype(np.int64)
        self.total_episodes, self.total_frames = len(episodes), int(self.starts[-1])
        if not plan.tasks:  # in the order of the episodes; one whose task changes is opened
            for number, task in enumerate(facts.column("task").to_pylist()):
                for text in [str(task)] if task is not None else LoadedEpisode(self, number).tasks:
                    plan.task_number(text)

    @property
    def info(self) -> dict[str, Any]:
        """info.json of these episodes."""
        keys = ("fps", "features", "total_episodes", "total_frames", "robot_type")
        return {**self._plan.info, **{key: getattr(self, key) for key in keys}}

    @cached_property
    def episodes(self) -> EpisodeTable:
        """One row per episode: where its frames begin and end, its length and tasks; by number or by column."""
        facts, numbers = self.source.facts, self.starts.tolist()
        tasks = facts.column("task").to_pylist() if "task" in facts.column_names else [None] * len(facts)
        return EpisodeTable({
            "episode_index": list(range(len(self.source))),
            "tasks": [[] if task is None else [task] for task in tasks],
            "length": np.diff(self.starts).tolist(),
            "dataset_from_index": numbers[:-1],
            "dataset_to_index": numbers[1:],
        })  # fmt: skip

    @cached_property
    def tasks(self) -> Any:
        """The tasks by their text, as LeRobot v3.0 has them: a pandas frame with the column `task_index`."""
        rows = self._plan.tasks
        return tables.task_frame([row["task"] for row in rows], [row["task_index"] for row in rows])

    @cached_property
    def stats(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Statistics per feature: those of the set if they are of these episodes, else from the data."""
        stats = self._plan.stated_stats(self.total_episodes, self.total_frames)
        if stats is None:
            totals = {key: SetStatistics() for key in self.features}
            sampled = max(1, min(8, _SAMPLED_FRAMES // len(self.source)))
            for number in range(len(self.source)):
                loaded = LoadedEpisode(self, number)
                for key, total in totals.items():
                    if key in self.camera_keys:
                        rows = np.unique(np.linspace(0, loaded.length - 1, sampled).astype(np.int64))
                        counted = FrameCounts.of(np.asarray(loaded.frames(key, rows)))
                        total.add_part(counted.statistics(quantiles=True), counted)
                    elif not isinstance(loaded.columns[key], list):
                        total.add_rows(loaded.columns[key])
            stats = {key: total.statistics() for key, total in totals.items()}
        known = {key: each for key, each in stats.items() if each is not None}
        return {key: {name: np.array(value) for name, value in part.items()} for key, part in known.items()}


class EpisodeTable(Sequence[Item]):
    """Rows by number, columns by name."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = dict(columns)
        self.column_names = list(columns)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._columns:
                raise KeyError(f"no column {key!r}.{nearest(key, self._columns)}")
            return self._columns[key]
        if isinstance(key, slice):
            return [self[at] for at in range(len(self))[key]]
        return {name: column[key] for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self._columns["episode_index"])


class LoadedEpisode:
    """One episode: its columns in LeRobot's types, its cameras opened."""

    def __init__(self, meta: FramesMeta, number: int) -> None:
        self._meta, self._number, self.episode = meta, number, meta.source[number]
        self.steps = steps_with(self.episode, AlignOptions())
        check_rate(self.steps, meta.fps, self.episode.source.place)
        self.length = len(self.steps)
        self._cameras: dict[str, tuple[Signal, NDArray[np.int64]]] = {}
        """Each with the record that it shows at every step."""
        expected = int(meta.starts[number + 1] - meta.starts[number])
        if self.length != expected:
            fact = f"episode {self.episode.id} has {self.length} steps, its facts state {expected}"
            raise SchemaMismatchError(fact)

    @cached_property
    def tasks(self) -> list[str]:
        """The task of every step."""
        if TASK in self.episode.signals:
            return [str(text) for text in self.steps[TASK].data.tolist()]
        return [str(self.episode.static.get(TASK, ""))] * self.length

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Arrays of numbers (float32, int64 or bool), lists of text."""
        columns: dict[str, Any] = {}
        for key, about in self._meta.features.items():
            if about["dtype"] in ("image", "video"):
                continue
            values = self._default(key) if key in DEFAULTS else self._values(key)
            kind = {"b": np.bool_, "i": np.int64, "u": np.int64}.get(values.dtype.kind, np.float32)
            columns[key] = values.tolist() if values.dtype == object else np.array(values, kind)
        return columns

    @property
    def nbytes(self) -> int:
        """Memory of its columns, once they are read."""
        columns = self.__dict__.get("columns", {})
        return sum(column.nbytes for column in columns.values() if not isinstance(column, list))

    def _values(self, key: str) -> NDArray[Any]:
        feature = self._meta.chosen[key]
        values = np.asarray(self.steps[feature.signal].data)
        is_flat = not feature.shape or values.dtype == object
        return values if is_flat else values.reshape(len(values), *feature.about["shape"])

    def _default(self, key: str) -> NDArray[Any]:
        signal = self.episode.signals.get(key)
        if signal is not None and len(signal) == self.length:
            return np.asarray(signal.values())
        plan, first = self._meta._plan, int(self._meta.starts[self._number])
        return plan.defaults(self._meta.fps, self._number, first, self.tasks)[key]

    def frames(self, key: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Decoded frames of a camera at these steps."""
        if key not in self._cameras:
            aligned = self.steps[self._meta.chosen[key].signal]
            self._cameras[key] = aligned.signal, np.maximum(aligned.positions, 0)
        signal, positions = self._cameras[key]
        return signal._values_at(positions[rows])


def _scale(frames: NDArray[Any]) -> NDArray[Any]:
    """Frames as float CHW in 0..1, by numpy: torch would start all its threads for so little work."""
    frames = frames[..., None] if frames.ndim == 3 else frames
    scale = np.float32(255.0 if frames.dtype == np.uint8 else 65535.0)
    out = np.empty((len(frames), frames.shape[3], *frames.shape[1:3]), np.float32)
    np.divide(frames.transpose(0, 3, 1, 2), scale, out=out)
    return out
