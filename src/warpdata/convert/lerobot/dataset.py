"""Frames of any episodes as LeRobot's training code expects them. The adapter of torch for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.convert.aligning import AlignOptions, check_rate, steps_with
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.documents import DEFAULTS, restored_numbers
from warpdata.convert.lerobot.features import Feature, Features, features_of
from warpdata.convert.lerobot.read import FORMAT, TASK
from warpdata.convert.lerobot.statistics import FrameCounts, SetStatistics
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
_PAD = "_is_pad"
_SAMPLED_FRAMES = 256


class LeRobotFrames(Dataset[dict[str, Any]]):  # type: ignore[misc]
    """One item per step of any episodes, with the keys, dtypes, shapes and masks of a LeRobotDataset."""

    def __init__(
        self,
        episodes: Episodes,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        image_transforms: Any = None,
        tolerance_s: float = 1e-4,
    ) -> None:
        self.source = episodes
        self.image_transforms = image_transforms
        self.delta_timestamps = delta_timestamps
        self.tolerance_s = tolerance_s
        self.meta = FramesMeta(episodes)
        self.delta_indices = self._deltas(delta_timestamps, tolerance_s)
        self._loaded: OrderedDict[int, _Loaded] = OrderedDict()

    @property
    def fps(self) -> float:
        """Steps per second."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, Any]:
        """The features as info.json lists them."""
        return self.meta.features

    @property
    def num_frames(self) -> int:
        """How many items there are."""
        return len(self)

    @property
    def num_episodes(self) -> int:
        """How many episodes they are from."""
        return len(self.source)

    def __len__(self) -> int:
        return int(self.meta.starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        at = int(index) % len(self)
        owner = int(self.meta.starts.searchsorted(at, side="right")) - 1
        return self._items(owner, [at - int(self.meta.starts[owner])])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Many items at once, as DataLoader asks for them: each frame is decoded once."""
        out: list[dict[str, Any]] = [{} for _ in indices]
        at = np.asarray(indices, np.int64)
        owners = np.searchsorted(self.meta.starts, at, side="right") - 1
        for owner in np.unique(owners).tolist():
            places = np.flatnonzero(owners == owner)
            rows = at[places] - int(self.meta.starts[owner])
            for place, item in zip(places.tolist(), self._items(int(owner), rows.tolist()), strict=True):
                out[place] = item
        return out

    def _items(self, owner: int, rows: list[int]) -> list[dict[str, Any]]:
        """Items of one episode, their keys in LeRobot's order: videos, columns, masks, the task."""
        loaded = self._episode(owner)
        items: list[dict[str, Any]] = [{} for _ in rows]
        for key in self.meta.video_keys:
            self._add_frames(items, loaded, key, rows)
        for key in self.meta.features:
            if key in self.meta.image_keys:
                self._add_frames(items, loaded, key, rows)
            elif key in self.delta_indices and key not in self.meta.video_keys:
                self._add_window(items, loaded, key, rows)
            elif key not in self.meta.video_keys:
                self._add_column(items, loaded, key, rows)
        self._add_masks(items, loaded.length, rows)
        for item, row in zip(items, rows, strict=True):
            for key in self.meta.camera_keys if self.image_transforms is not None else ():
                item[key] = self.image_transforms(item[key])
            item[TASK] = loaded.tasks[row]
        return items

    def _add_column(self, items: list[dict[str, Any]], loaded: _Loaded, key: str, rows: list[int]) -> None:
        column = loaded.columns[key]
        for item, row in zip(items, rows, strict=True):
            item[key] = (
                column[row]
                if isinstance(column, list)
                else torch.from_numpy(column[row : row + 1].copy().reshape(column.shape[1:]))
            )

    def _add_window(self, items: list[dict[str, Any]], loaded: _Loaded, key: str, rows: list[int]) -> None:
        """Several moments of a key; outside the episode its first or last one."""
        deltas, count = self.delta_indices[key], loaded.length
        column = loaded.columns[key]
        for item, row in zip(items, rows, strict=True):
            inside = np.clip(row + deltas, 0, count - 1)
            item[key] = (
                [column[at] for at in inside.tolist()]
                if isinstance(column, list)
                else torch.from_numpy(column[inside])
            )

    def _add_masks(self, items: list[dict[str, Any]], count: int, rows: list[int]) -> None:
        """Which moments lie outside the episode."""
        for key, deltas in self.delta_indices.items():
            for item, row in zip(items, rows, strict=True):
                wanted = row + deltas
                item[key + _PAD] = torch.from_numpy((wanted < 0) | (wanted >= count))

    def _add_frames(self, items: list[dict[str, Any]], loaded: _Loaded, key: str, rows: list[int]) -> None:
        """Frames as float CHW in 0..1; a camera that is video gives one frame where it is asked for one moment."""
        deltas = self.delta_indices.get(key)
        steps = np.asarray(rows, np.int64)[:, None] + (np.zeros(1, np.int64) if deltas is None else deltas)
        steps = np.minimum(np.maximum(steps, 0), loaded.length - 1)
        if steps.size == 1:  # most of what finding equal ones costs is the call
            wanted, place = steps.reshape(-1), np.zeros(1, np.int64)
        else:
            wanted, place = np.unique(steps, return_inverse=True)
        frames = _scaled(loaded.frames(key, wanted))
        is_single = deltas is None or (key in self.meta.video_keys and len(deltas) == 1)
        for item, chosen in zip(items, place.reshape(steps.shape), strict=True):
            if not is_single:
                item[key] = torch.from_numpy(frames[chosen])
            elif steps.size == 1:
                item[key] = torch.from_numpy(frames[0])
            else:  # an item keeps no memory of others
                item[key] = torch.from_numpy(frames[chosen[0]].copy())

    def _deltas(
        self, given: Mapping[str, Sequence[float]] | None, tolerance_s: float
    ) -> dict[str, NDArray[np.int64]]:
        words = "a dictionary of seconds by feature"
        require_kind("delta_timestamps", given, (Mapping, type(None)), words)
        found = {}
        for key, moments in (given or {}).items():
            if key not in self.meta.features:
                raise KeyError(f"delta_timestamps: no feature {key!r}.{nearest(key, self.meta.features)}")
            exact = np.asarray(moments, np.float64) * self.fps
            whole = np.round(exact).astype(np.int64)
            if exact.ndim != 1 or (np.abs(exact - whole) / self.fps > tolerance_s).any():
                raise ValueError(
                    f"delta_timestamps of {key!r} are no multiples of 1/{self.fps:g} s: {list(moments)}"
                )
            found[key] = whole
        return found

    def _episode(self, owner: int) -> _Loaded:
        found = self._loaded.get(owner)
        if found is None:
            found = self._loaded[owner] = _Loaded(self.meta, owner)
            used = sum(each.nbytes for each in self._loaded.values())
            while len(self._loaded) > 1 and (used > _KEPT_BYTES or len(self._loaded) > _KEPT_EPISODES):
                used -= self._loaded.popitem(last=False)[1].nbytes
        else:
            self._loaded.move_to_end(owner)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": OrderedDict()}

    def __repr__(self) -> str:
        return f"<LeRobotFrames {len(self)} frames of {self.num_episodes} episodes, {self.fps:g} Hz>"


class FramesMeta:
    """What LeRobot's policies and samplers ask a dataset: features, statistics, rate, episodes and tasks."""

    def __init__(self, episodes: Episodes) -> None:
        if not len(episodes):
            raise SchemaMismatchError("there are no episodes")
        self.source = episodes
        stated = episodes.metadata.get(FORMAT)
        self._original: dict[str, Any] = restored_numbers(stated) if isinstance(stated, Mapping) else {}
        info = self._original.get("info")
        self._info: dict[str, Any] = info if isinstance(info, dict) else {}
        first = episodes[0]
        known = self._info.get("features")
        self._features: Features = features_of(
            first, known if isinstance(known, dict) else {}, None, frames_as="video"
        )
        self.features: dict[str, Any] = self._features.to_json()
        fps = self._info.get("fps", first.static.get("fps"))
        rate, _ = check_rate(steps_with(first, AlignOptions()), fps, first.source.place)
        self.fps: float = rate if fps is None else fps
        lengths = _lengths(episodes)
        self.starts: NDArray[np.int64] = np.cumsum([0, *lengths]).astype(np.int64)
        self._task_numbers: dict[str, int] = {
            str(row["task"]): int(row["task_index"]) for row in self._original.get("tasks") or ()
        }
        if not self._task_numbers:
            self._number_tasks()

    def _number_tasks(self) -> None:
        """Number the tasks in the order of the episodes; only where a task changes inside one it is opened."""
        for number, task in enumerate(self.source.facts.column("task").to_pylist()):
            texts = [str(task)] if task is not None else _Loaded(self, number).tasks
            for text in texts:
                self.task_number(text)

    def feature(self, key: str) -> Feature:
        """How a feature comes out of an episode."""
        return next(each for each in self._features.chosen if each.name == key)

    @cached_property
    def video_keys(self) -> list[str]:
        """The cameras that are video."""
        return [key for key, about in self.features.items() if about["dtype"] == "video"]

    @cached_property
    def image_keys(self) -> list[str]:
        """The cameras that are single pictures."""
        return [key for key, about in self.features.items() if about["dtype"] == "image"]

    @property
    def camera_keys(self) -> list[str]:
        """All cameras."""
        return [key for key, about in self.features.items() if about["dtype"] in ("image", "video")]

    @property
    def names(self) -> dict[str, Any]:
        """The names of the dimensions of each feature."""
        return {key: about.get("names") for key, about in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each feature."""
        return {key: tuple(about["shape"]) for key, about in self.features.items()}

    @property
    def robot_type(self) -> str | None:
        """Which robot it was."""
        found = self._info.get("robot_type", self.source[0].static.get("robot_type"))
        return None if found is None else str(found)

    @property
    def total_episodes(self) -> int:
        """How many episodes there are."""
        return len(self.source)

    @property
    def total_frames(self) -> int:
        """How many frames there are."""
        return int(self.starts[-1])

    @property
    def info(self) -> dict[str, Any]:
        """As info.json says it of these episodes."""
        return {
            **self._info, "fps": self.fps, "features": self.features, "total_episodes": self.total_episodes,
            "total_frames": self.total_frames, "robot_type": self.robot_type,
        }  # fmt: skip

    @cached_property
    def episodes(self) -> EpisodeTable:
        """One row per episode: where its frames begin and end, its length and tasks; by number or by column."""
        facts = self.source.facts
        tasks = (
            facts.column("task").to_pylist() if "task" in facts.column_names else [None] * len(self.source)
        )
        numbers = self.starts.tolist()
        return EpisodeTable({
            "episode_index": list(range(len(self.source))),
            "tasks": [[] if task is None else [task] for task in tasks],
            "length": np.diff(self.starts).tolist(),
            "dataset_from_index": numbers[:-1], "dataset_to_index": numbers[1:],
        })  # fmt: skip

    @cached_property
    def tasks(self) -> Any:
        """The tasks by their text, as LeRobot v3.0 has them: a pandas frame with the column `task_index`."""
        rows = sorted(self._task_numbers.items(), key=lambda each: each[1])
        return tables.task_frame([text for text, _ in rows], [number for _, number in rows])

    def task_number(self, text: str) -> int:
        """The number of a task; one that is new gets the next."""
        found = self._task_numbers.get(text)
        if found is None:
            found = self._task_numbers[text] = max(self._task_numbers.values(), default=-1) + 1
        return found

    @cached_property
    def stats(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Statistics per feature: those of the set where they are known and true, else from the data."""
        known = self._original.get("stats")
        same = (self._info.get("total_episodes"), self._info.get("total_frames"))
        if not isinstance(known, Mapping) or same != (self.total_episodes, self.total_frames):
            known = self._computed()
        return {key: {name: np.array(value) for name, value in each.items()} for key, each in known.items()}

    def _computed(self) -> dict[str, Any]:
        totals: dict[str, SetStatistics] = {}
        each_gives = max(1, min(8, _SAMPLED_FRAMES // len(self.source)))
        for number in range(len(self.source)):
            loaded = _Loaded(self, number)
            for key in self.features:
                total = totals.setdefault(key, SetStatistics())
                if key in self.camera_keys:
                    at = np.unique(np.linspace(0, loaded.length - 1, each_gives).astype(np.int64))
                    counts = FrameCounts.of(np.asarray(loaded.frames(key, at)))
                    total.add_part(counts.statistics(quantiles=True), counts)
                elif not isinstance(loaded.columns[key], list):
                    total.add_rows(loaded.columns[key])
        found = {key: total.statistics() for key, total in totals.items()}
        return {key: each for key, each in found.items() if each is not None}


class EpisodeTable(Sequence[dict[str, Any]]):
    """Rows by number, columns by name."""

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = dict(columns)

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

    @property
    def column_names(self) -> list[str]:
        """The names of all columns."""
        return list(self._columns)


class _Loaded:
    """One episode: its columns in LeRobot's types, its cameras opened."""

    def __init__(self, meta: FramesMeta, number: int) -> None:
        self._meta = meta
        self._number = number
        self.episode = meta.source[number]
        self.steps = steps_with(self.episode, AlignOptions())
        check_rate(self.steps, meta.fps, self.episode.source.place)
        self.length = len(self.steps)
        self._cameras: dict[str, tuple[Signal, NDArray[np.int64]]] = {}
        """Each with the record that it shows at every step."""
        if self.length != int(meta.starts[number + 1] - meta.starts[number]):
            raise SchemaMismatchError(
                f"episode {self.episode.id} has {self.length} steps, its facts say otherwise"
            )

    @cached_property
    def tasks(self) -> list[str]:
        """The task of every step."""
        if TASK in self.episode.signals:
            found = [str(text) for text in self.steps[TASK].data.tolist()]
        else:
            found = [str(self.episode.static.get(TASK, ""))] * self.length
        return found

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Arrays of numbers, lists of text."""
        found: dict[str, Any] = {}
        for key, about in self._meta.features.items():
            if about["dtype"] in ("image", "video"):
                continue
            values = self._default(key) if key in DEFAULTS else self._column(key)
            found[key] = values.tolist() if values.dtype == object else _typed(values)
        return found

    @property
    def nbytes(self) -> int:
        """What its columns take, once they are read."""
        columns = self.__dict__.get("columns", {})
        return sum(each.nbytes for each in columns.values() if not isinstance(each, list))

    def _column(self, key: str) -> NDArray[Any]:
        each = self._meta.feature(key)
        values = np.asarray(self.steps[each.signal].data)
        shape = tuple(each.about["shape"])
        return values.reshape(len(values), *shape) if each.shape and values.dtype != object else values

    def _default(self, key: str) -> NDArray[Any]:
        if key in self.episode.signals and len(self.episode.signals[key]) == self.length:
            return np.asarray(self.episode.signals[key].values())
        start = int(self._meta.starts[self._number])
        made: dict[str, NDArray[Any]] = {
            "timestamp": (np.arange(self.length) / self._meta.fps).astype(np.float32),
            "frame_index": np.arange(self.length), "episode_index": np.full(self.length, self._number),
            "index": np.arange(start, start + self.length),
        }  # fmt: skip
        if key == "task_index":
            return np.array([self._meta.task_number(text) for text in self.tasks], np.int64)
        return made[key]

    def frames(self, key: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Decoded frames of a camera at these steps."""
        if key not in self._cameras:
            on_steps = self.steps[self._meta.feature(key).signal]
            self._cameras[key] = on_steps.signal, np.maximum(on_steps.positions, 0)
        signal, positions = self._cameras[key]
        return signal._values_at(positions[rows])


def _lengths(episodes: Episodes) -> list[int]:
    """The steps of each episode, from what is known of them where it suffices."""
    stated = episodes.facts.column("length").to_pylist()
    return [
        episodes[number].steps.length if length is None else int(length)
        for number, length in enumerate(stated)
    ]


def _typed(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the types that LeRobot's items have: float32, int64 or bool."""
    kind = np.bool_ if values.dtype == np.bool_ else np.int64 if values.dtype.kind in "iu" else np.float32
    return np.array(values, kind)


def _scaled(frames: NDArray[Any]) -> NDArray[Any]:
    """Frames as float CHW in 0..1, by numpy: for so little work torch would wake all its threads."""
    several = frames[..., None] if frames.ndim == 3 else frames
    scale = np.float32(255.0 if frames.dtype == np.uint8 else 65535.0)
    out = np.empty((len(several), several.shape[3], *several.shape[1:3]), np.float32)
    np.divide(several.transpose(0, 3, 1, 2), scale, out=out)
    return out
