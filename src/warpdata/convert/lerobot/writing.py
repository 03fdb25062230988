"""Episodes as a LeRobot set, v3.0 or v2.1: encoded frames are copied, times stand exactly on the grid of the rate."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import commit_folder, map_os_errors
from warpdata.convert.aligning import AlignOptions, Hold, exact_rate, steps_with
from warpdata.convert.each_episode import OnError, Progress, check_on_error, exported
from warpdata.convert.lerobot import tables
from warpdata.convert.lerobot.documents import OURS, file_bytes, restored_numbers
from warpdata.convert.lerobot.features import Feature, Features, features_of
from warpdata.convert.lerobot.files import DataOut, Numbers, VideoOut
from warpdata.convert.lerobot.preparing import Frames, Prepared, Preparing, is_true
from warpdata.convert.lerobot.reading import FORMAT
from warpdata.convert.lerobot.statistics import SetStatistics, of_rows
from warpdata.convert.place import check_inside
from warpdata.convert.plain_names import under_own_names
from warpdata.convert.receipt import ConversionReceipt
from warpdata.convert.rows import measured_rate, stated_rate
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import ConflictError, SchemaMismatchError, WarpError, nearest
from warpdata.formats.episodedir.images import VideoOptions

Version = Literal["v3.0", "v2.1"]
VERSIONS: tuple[Version, ...] = ("v3.0", "v2.1")
V3_PATHS = {
    "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
V2_PATHS = {
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}
CODEC = VideoOptions(codec="av1", gop_size=2, quality=30, preset="12")
"""How LeRobot encodes frames itself: for cameras that come as raw frames."""
_SAMPLED_FRAMES = 512
_MB = 1024 * 1024


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    version: Version = "v3.0",
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    max_age_ns: int | None = None,
    names: Mapping[str, str] | None = None,
    task: str | None = None,
    robot_type: str | None = None,
    frames_as: Literal["video", "image"] = "video",
    video: VideoOptions | None = None,
    data_files_size_in_mb: int = 100,
    video_files_size_in_mb: int = 200,
    on_error: OnError = "stop",
    jobs: int = 1,
    source: str = "",
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as a LeRobot set into a new folder, which appears whole or not at all.

    `rate`, `clock` and `align` choose the one rate of the set where the steps of the episodes are not evenly spaced.
    `names` maps signals to features; without it, names of LeRobot stay and others get the names its policies look for.
    `task` is the text of episodes that have none. Raw frames are encoded as `video` says (AV1 as LeRobot does), or
    stored as PNG with `frames_as="image"`; encoded ones are copied. `jobs` processes prepare episodes; the set is the
    same whoever did it.
    """
    if version not in VERSIONS:
        raise ValueError(
            f"version is one of {', '.join(VERSIONS)}, not {version!r}.{nearest(version, VERSIONS)}"
        )
    check_on_error(on_error)
    if not len(episodes):
        raise SchemaMismatchError("there are no episodes to write")
    path = Path(os.path.abspath(target))
    if path.exists():
        raise ConflictError("something is there already", path=path, hint="Choose another target.")
    alignment = AlignOptions(rate, clock, align, max_age_ns)
    said = alignment.to_json() | {
        key: value
        for key, value in (("names", names), ("task", task), ("robot_type", robot_type))
        if value is not None
    }
    episodes = under_own_names(episodes)
    receipt = ConversionReceipt.of_export(FORMAT, episodes, path, version, said)
    receipt.source = source or receipt.source
    with map_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with (
        commit_folder(path, durable=False) as folder,
        tempfile.TemporaryDirectory(prefix="warpdata-") as scratch,
    ):
        limits = (data_files_size_in_mb, video_files_size_in_mb)
        out = _Set(folder, version, episodes, receipt, limits, Path(scratch))
        out.robot_type, out.no_task = robot_type, task
        try:
            out.choose(names, frames_as, on_error, alignment)
            work = out.preparing(alignment, video or CODEC)
            each = exported(episodes, work, jobs=jobs, on_error=on_error, receipt=receipt, progress=progress)
            for position, made in each:
                try:
                    out.add(made)
                except SchemaMismatchError as error:
                    if on_error == "stop":
                        raise
                    receipt.skip(episodes.ids[position], error)
            out.finish()
        finally:
            out.let_go()
    return receipt


@dataclass(slots=True)
class _Row:
    """What the metadata says of a written episode."""

    length: int
    tasks: list[str]
    data: tuple[int, int]
    first: int
    videos: dict[str, tuple[int, int, float, float]]
    stats: dict[str, Any]
    more: dict[str, Any]
    """What the source said of it that we know nothing of."""


@dataclass(slots=True)
class _Camera:
    """The video files of one camera."""

    numbers: Numbers
    out: VideoOut | None = None


@dataclass(slots=True)
class _Set:
    """A set being written."""

    folder: Path
    version: str
    episodes: Episodes
    receipt: ConversionReceipt
    limits: tuple[int, int]
    scratch: Path
    robot_type: str | None = None
    robot_of_first: Any = None
    no_task: str | None = None
    fps: float | None = None
    features: Features = field(default_factory=lambda: Features([], {}, []))
    rows: list[_Row] = field(default_factory=list)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    cameras: dict[str, _Camera] = field(default_factory=dict)
    data: DataOut | None = None
    statistics: dict[str, SetStatistics] = field(default_factory=dict)
    original: dict[str, Any] = field(default_factory=dict)
    frames: int = 0
    renumbered: bool = False

    @property
    def is_v3(self) -> bool:
        return self.version == "v3.0"

    @property
    def info(self) -> dict[str, Any]:
        found = self.original.get("info")
        return found if isinstance(found, dict) else {}

    @property
    def chunks_size(self) -> int:
        found = self.info.get("chunks_size", 1000)
        return found if isinstance(found, int) and found > 0 else 1000

    def choose(
        self,
        names: Mapping[str, str] | None,
        frames_as: Literal["video", "image"],
        on_error: OnError,
        alignment: AlignOptions,
    ) -> None:
        """Decide on features, paths and tasks from the first episode that can be read, and what the source said."""
        stated = self.episodes.metadata.get(FORMAT)
        self.original = restored_numbers(stated) if isinstance(stated, Mapping) else {}
        known = self.info.get("features")
        for position in range(len(self.episodes)):
            try:
                first = self.episodes[position]
                self.features = features_of(
                    first, known if isinstance(known, dict) else {}, names, frames_as=frames_as
                )
                break
            except WarpError:
                if on_error == "stop" or position + 1 == len(self.episodes):
                    raise
        self.robot_of_first = first.static.get("robot_type")
        fps = self.info.get("fps", first.static.get("fps"))
        if first.meta.get("fps_from") == "user":
            fps = first.meta.get("fps")
        self.fps = fps if stated_rate(fps) is not None and alignment.clock is None else None
        self.fps = alignment.rate or self.fps or self._measured_rate(position, alignment)
        for each in self.features.found:
            if each.name != each.signal:
                self.receipt.notes.append(f"{each.signal} is called {each.name} there")
        for row in self.original.get("tasks") or ():
            self.tasks[row["task"]] = {**row}
        limit = self.limits[0] * _MB if self.is_v3 else None
        self.data = DataOut(limit, Numbers(self.chunks_size))
        for each in self.features.found:
            if each.storing == "video":
                self.cameras[each.name] = _Camera(Numbers(self.chunks_size))

    def _measured_rate(self, first: int, alignment: AlignOptions) -> float | None:
        """The rate of the first episode that has one: a single step has none."""
        for position in range(first, len(self.episodes)):
            try:
                rate = measured_rate(steps_with(self.episodes[position], alignment).times_ns)
            except WarpError:
                continue
            if rate is not None:
                return rate
        return None

    def preparing(self, alignment: AlignOptions, codec: VideoOptions) -> Preparing:
        """How episodes are prepared, by whoever does it."""
        sampled = max(1, min(16, _SAMPLED_FRAMES // len(self.episodes)))
        return Preparing(
            self.features, alignment, self.fps, self.is_v3, codec, self.scratch, self.no_task, sampled
        )

    def add(self, made: Prepared) -> None:
        """Write one episode behind the others."""
        assert made.fps == self.fps
        texts = self._texts(made)
        defaults = self._defaults(len(self.rows), made.length, texts)
        columns = {each.name: self._column(each, made) for each in self.features.found}
        columns |= {
            name: tables.number_column(each, tables.arrow_type(each.dtype, (), is_scalar=True))
            for name, each in defaults.items()
        }
        stats = self._stats(made, defaults)
        self._note_defaults(made)
        order = [name for name in self.features.to_json() if columns.get(name) is not None]
        schema = tables.rows_schema({name: columns[name].type for name in order})
        assert self.data is not None
        data = self.data.write(self._data_file, schema, {name: columns[name] for name in order})
        videos = {name: self._put(name, each, made.length) for name, each in made.frames.items()}
        seen = list(dict.fromkeys(texts))
        tasks = made.tasks if set(made.tasks) == set(seen) else seen
        self.rows.append(_Row(made.length, tasks, data, self.frames, videos, stats, made.more))
        self.frames += made.length
        self.receipt.add(made.notes)
        self.receipt.episode_notes[f"{len(self.rows) - 1:012d}"] = made.own

    def _column(self, each: Feature, made: Prepared) -> Any:
        """The column of a feature; None of one that is video."""
        if each.storing == "video":
            return None
        if each.storing == "image":
            data, suffix = made.pictures[each.name]
            return tables.picture_column(data, [f"frame-{k:06d}.{suffix}" for k in range(len(data))])
        values = made.values[each.name]
        if each.storing == "text":
            return tables.text_column(values.tolist())
        if each.storing == "json":
            return tables.json_column(values.tolist(), each.name)
        shape = tuple(each.about["shape"])
        rows = values.astype(each.dtype, copy=False).reshape(len(values), *(shape if each.shape else ()))
        kind = tables.arrow_type(each.dtype, rows.shape[1:], is_scalar=not each.shape)
        return tables.number_column(rows, kind)

    def _defaults(self, number: int, count: int, texts: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The columns that every set has, counted by this one."""
        assert self.fps is not None
        indexes = np.array([self.tasks[text]["task_index"] for text in texts], np.int64)
        return {
            "timestamp": (np.arange(count) / self.fps).astype(np.float32),
            "frame_index": np.arange(count, dtype=np.int64), "episode_index": np.full(count, number, np.int64),
            "index": np.arange(self.frames, self.frames + count, dtype=np.int64), "task_index": indexes,
        }  # fmt: skip

    def _note_defaults(self, made: Prepared) -> None:
        """Say where the numbers of the source are not those of the set."""
        number = len(self.rows)
        is_same = made.first is None or (made.first == self.frames and made.number in (None, number))
        if not is_same and not self.renumbered:
            self.renumbered = True
            self.receipt.notes.append("episode_index, index, frame_index and timestamp are counted anew")

    def _texts(self, made: Prepared) -> list[str]:
        """The task of every row, each task with a number."""
        if not made.texts and not any("no task" in note for note in self.receipt.notes):
            self.receipt.notes.append("episodes with no task have the empty text as theirs: say task=…")
        found = made.texts or [""] * made.length
        for text in dict.fromkeys(found):
            if text not in self.tasks:
                used = [row["task_index"] for row in self.tasks.values()]
                self.tasks[text] = {"task_index": max(used, default=-1) + 1, "task": text}
        return found

    # Cameras.

    def _put(self, name: str, frames: Frames, count: int) -> tuple[int, int, float, float]:
        """Copy frames into the video file of their camera; returns file and seconds."""
        assert self.fps is not None
        about = next(each.about for each in self.features.found if each.name == name)
        if "info" not in about and "video_info" not in about:
            about["info"] = frames.info
        camera = self.cameras[name]
        out = camera.out
        limit = self.limits[1] * _MB
        if out is None or not self.is_v3 or out.entry != frames.entry or out.bytes + frames.bytes >= limit:
            if out is not None:
                out.close()
            chunk, file = camera.numbers.next() if self.is_v3 else divmod(len(self.rows), self.chunks_size)
            out = camera.out = VideoOut(
                self._video_file(name, chunk, file), frames.entry, exact_rate(self.fps)
            )
        first = out.frames + frames.lead
        out.add(frames.packets, frames.keyframe, frames.shows)
        return (
            camera.numbers.chunk,
            camera.numbers.file,
            float(first / self.fps),
            float((first + count) / self.fps),
        )

    # Statistics.

    def _stats(self, made: Prepared, defaults: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        """Of one episode, those of the numbers that are counted anew too; the sum over all episodes grows by them."""
        found: dict[str, Any] = {}
        for name, feature in self.features.to_json().items():
            column = made.values.get(name, defaults.get(name) if name != "task_index" else None)
            total = self.statistics.setdefault(name, SetStatistics())
            if column is not None and column.dtype != object:
                total.add_rows(column)
            if name in made.stats:
                found[name] = made.stats[name]
            elif name in defaults and column is not None:
                stated = made.known.get(name, {})
                is_stated = is_true(name, stated, column, made.length, is_v3=self.is_v3)
                found[name] = dict(stated) if is_stated else of_rows(column, quantiles=self.is_v3)
            elif name == "task_index" and name in made.known:
                found[name] = dict(made.known[name])
            if feature["dtype"] in ("image", "video") and name in found:
                total.add_part(found[name], made.counts.get(name))
        return found

    # Paths and documents.

    def _data_file(self, chunk: int, file: int) -> str:
        if self.is_v3:
            return str(self._below(V3_PATHS["data_path"].format(chunk_index=chunk, file_index=file)))
        number = len(self.rows)
        numbers = {"episode_chunk": number // self.chunks_size, "episode_index": number}
        return str(self._below(V2_PATHS["data_path"].format(**numbers)))

    def _video_file(self, name: str, chunk: int, file: int) -> Path:
        if self.is_v3:
            return self._below(
                V3_PATHS["video_path"].format(video_key=name, chunk_index=chunk, file_index=file)
            )
        numbers = {"episode_chunk": chunk, "episode_index": len(self.rows)}
        return self._below(V2_PATHS["video_path"].format(video_key=name, **numbers))

    def _below(self, name: str) -> Path:
        return self.folder / check_inside(name, str(self.folder))

    def finish(self) -> None:
        """Finish all files and write the metadata."""
        assert self.data is not None
        if not self.rows:
            raise SchemaMismatchError(f"none of {len(self.episodes)} episodes could be written")
        self.data.close()
        for camera in self.cameras.values():
            if camera.out is not None:
                camera.out.close()
        (self.folder / "meta").mkdir(exist_ok=True)
        tasks = sorted(self.tasks.values(), key=lambda row: int(row["task_index"]))
        (self._v3_documents if self.is_v3 else self._v2_documents)(tasks)
        self._json("meta/info.json", self._info(len(tasks)))
        for name, kept in (self.original.get("files") or {}).items():
            place = self._below(name)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file_bytes(kept))
        (self.folder / OURS).write_bytes(self.receipt.document())

    def let_go(self) -> None:
        """Close whatever is open, all of it: on a full disk closing one file may be an error."""
        with contextlib.ExitStack() as each:
            if self.data is not None:
                each.callback(self.data.close)
            for camera in self.cameras.values():
                if camera.out is not None:
                    each.callback(camera.out.discard)

    def _info(self, tasks: int) -> dict[str, Any]:
        count = len(self.rows)
        same = self.info.get("codebase_version") == self.version
        fresh: dict[str, Any] = {
            "codebase_version": self.version, "robot_type": self.robot_of_first,
            "total_episodes": count, "total_frames": self.frames, "total_tasks": tasks,
        }  # fmt: skip
        cameras = len(self.cameras)
        if not self.is_v3:
            fresh |= {"total_videos": count * cameras, "total_chunks": -(-count // self.chunks_size)}
        fresh["chunks_size"] = self.chunks_size
        if self.is_v3:
            fresh |= {"data_files_size_in_mb": self.limits[0], "video_files_size_in_mb": self.limits[1]}
        paths = V3_PATHS if self.is_v3 else V2_PATHS
        fresh |= {
            "fps": self.fps, "splits": {"train": f"0:{count}"}, "data_path": paths["data_path"],
            "video_path": paths["video_path"] if cameras or not self.is_v3 else None,
            "features": self.features.to_json(),
        }  # fmt: skip
        if self.robot_type is not None:
            fresh["robot_type"] = self.robot_type
        if (
            isinstance(self.fps, float)
            and self.fps.is_integer()
            and not isinstance(self.info.get("fps"), float)
        ):
            fresh["fps"] = int(self.fps)
        gone = (
            ()
            if same
            else ("total_videos", "total_chunks", "data_files_size_in_mb", "video_files_size_in_mb")
        )
        found = {key: value for key, value in self.info.items() if key not in gone}
        keep = {"robot_type", "fps", "data_files_size_in_mb", "video_files_size_in_mb"} & set(found)
        if self.robot_type is not None:
            keep -= {"robot_type"}
        if self.fps != found.get("fps"):
            keep -= {"fps"}
        if found.get("total_episodes") == count:
            keep |= {"splits"} & set(found)
        if same:  # a set without these keys stays one
            optional = {"robot_type", "total_videos", "total_chunks", "total_tasks", "chunks_size", "splits"}
            fresh = {key: value for key, value in fresh.items() if key in found or key not in optional}
        return {**found, **{key: value for key, value in fresh.items() if key not in keep}}

    def _v2_documents(self, tasks: list[dict[str, Any]]) -> None:
        self._lines("meta/tasks.jsonl", tasks)
        rows = [
            {"episode_index": number, "tasks": row.tasks, "length": row.length, **row.more}
            for number, row in enumerate(self.rows)
        ]
        self._lines("meta/episodes.jsonl", rows)
        stats = [{"episode_index": number, "stats": row.stats} for number, row in enumerate(self.rows)]
        self._lines("meta/episodes_stats.jsonl", stats)
        known = self.original.get("stats")
        if known is not None:
            self._json("meta/stats.json", known if self._is_same_set() else self._set_stats())

    def _v3_documents(self, tasks: list[dict[str, Any]]) -> None:
        more = [key for key in tasks[0] if key not in ("task_index", "task")] if tasks else []
        columns: dict[str, Any] = {"task_index": np.array([row["task_index"] for row in tasks], np.int64)}
        columns |= {key: [row.get(key) for row in tasks] for key in more}
        columns["task"] = tables.text_column([row["task"] for row in tasks])
        tables.write_table(
            str(self.folder / "meta/tasks.parquet"), columns, {"pandas": _pandas(list(columns))}
        )
        place = self.folder / "meta/episodes/chunk-000"
        place.mkdir(parents=True)
        tables.write_table(str(place / "file-000.parquet"), self._episode_columns())
        known = self.original.get("stats")
        self._json(
            "meta/stats.json", known if known is not None and self._is_same_set() else self._set_stats()
        )

    def _episode_columns(self) -> dict[str, Any]:
        rows = self.rows
        found: dict[str, Any] = {
            "episode_index": np.arange(len(rows), dtype=np.int64),
            "tasks": [row.tasks for row in rows],
            "length": np.array([row.length for row in rows], np.int64),
        }
        found |= {
            key: [row.more.get(key) for row in rows]
            for key in dict.fromkeys(k for row in rows for k in row.more)
        }
        found |= {
            "data/chunk_index": np.array([row.data[0] for row in rows], np.int64),
            "data/file_index": np.array([row.data[1] for row in rows], np.int64),
            "dataset_from_index": np.array([row.first for row in rows], np.int64),
            "dataset_to_index": np.array([row.first + row.length for row in rows], np.int64),
        }
        for name in self.cameras:
            for at, key in enumerate(("chunk_index", "file_index", "from_timestamp", "to_timestamp")):
                kind = np.int64 if at < 2 else np.float64
                found[f"videos/{name}/{key}"] = np.array([row.videos[name][at] for row in rows], kind)
        for name in dict.fromkeys(name for row in rows for name in row.stats):
            for key in dict.fromkeys(key for row in rows for key in row.stats.get(name, {})):
                found[f"stats/{name}/{key}"] = tables.list_column(
                    [row.stats.get(name, {}).get(key) for row in rows]
                )
        zeros = np.zeros(len(rows), np.int64)
        return {**found, "meta/episodes/chunk_index": zeros, "meta/episodes/file_index": zeros}

    def _is_same_set(self) -> bool:
        """Whether these are all episodes of the set whose statistics are known, with nothing changed."""
        stated = self.info.get("total_episodes"), self.info.get("total_frames")
        same = self.episodes.is_whole and stated == (len(self.rows), self.frames)
        return same and self.receipt.is_exact

    def _set_stats(self) -> dict[str, Any]:
        found = {name: each.found() for name, each in self.statistics.items()}
        return {name: stats for name, stats in found.items() if stats is not None}

    def _json(self, name: str, value: Any) -> None:
        (self.folder / name).write_text(json.dumps(value, indent=4, ensure_ascii=False))

    def _lines(self, name: str, rows: Sequence[Any]) -> None:
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (self.folder / name).write_text(text)


def _pandas(names: Sequence[str]) -> str:
    """What pandas writes into a file so that the column `task` is the index when it reads it."""
    columns = [
        {
            "name": name, "field_name": name,
            "pandas_type": "unicode" if name == "task" else "int64" if name == "task_index" else "object",
            "numpy_type": "int64" if name == "task_index" else "object", "metadata": None,
        }
        for name in names
    ]  # fmt: skip
    return json.dumps({
        "index_columns": ["task"],
        "column_indexes": [{
            "name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object",
            "metadata": {"encoding": "UTF-8"},
        }],
        "columns": columns, "attributes": {}, "creator": {"library": "pyarrow", "version": "15.0.0"},
        "pandas_version": "2.2.0",
    })  # fmt: skip


__all__ = ["CODEC", "VERSIONS", "Version", "write"]
