"""The metadata of a LeRobot set: info.json, tasks, one row per episode, statistics. Nothing of it is trusted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.convert.aligning import stated_rate
from warpdata.convert.lerobot.tables import Tables
from warpdata.convert.place import Place, check_inside
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    StoreError,
    UnsupportedVersionError,
)

INFO, STATS, EPISODES_STATS = "meta/info.json", "meta/stats.json", "meta/episodes_stats.jsonl"
TASKS_LINES, TASKS_TABLE, EPISODES_LINES = "meta/tasks.jsonl", "meta/tasks.parquet", "meta/episodes.jsonl"
OURS = "meta/warpdata.json"
"""The receipt, in a set that warpdata wrote."""
VERSIONS = ("v2.0", "v2.1", "v3.0")
DEFAULTS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_KNOWN = (INFO, STATS, EPISODES_STATS, TASKS_LINES, TASKS_TABLE, EPISODES_LINES, OURS)
_OFTEN = ("meta/modality.json",)
"""Files of other programs that are looked for where a server cannot list names."""
_FIELD = re.compile(r"\{(chunk_index|file_index|video_key|episode_chunk|episode_index)(?::0?(\d{1,2})d)?\}")
_STATS_LINE = re.compile(rb'\{"episode_index": ?(0|[1-9][0-9]{0,14}), ?"stats": ?\{')
_MAX_KEPT_FILE, _MAX_LINES, _MAX_FRAMES = 16 << 20, 4 << 30, 1 << 40


@dataclass(slots=True)
class EpisodeRow:
    """One episode in the metadata."""

    number: int
    length: int
    tasks: list[str] | None
    row: dict[str, Any]
    """Its entry, without statistics."""
    file: str
    """The file of the entry."""
    at: int | None = None
    """Row of the entry in a file of v3.0."""
    data_file: str = ""
    data_start: int = 0


class Documents:
    """The metadata of a set; whatever contradicts itself is a typed error that names the file."""

    def __init__(self, place: Place) -> None:
        self.place, self.tables = place, Tables(place)
        try:
            self.info = place.read_json(INFO)
        except BlobNotFoundError:
            raise BadMagicError(f"not a LeRobot set: there is no {INFO!r}", path=place.name) from None
        self.version = self.info.get("codebase_version")
        if self.version not in VERSIONS:
            fact = f"unsupported version {self.version!r} of a LeRobot set (supported: {', '.join(VERSIONS)})"
            hint = "Convert it to v2.1 or v3.0 with the program that wrote it."
            raise UnsupportedVersionError(fact, path=self._path(INFO), hint=hint)
        self.is_v3 = self.version == "v3.0"
        features = self.info.get("features")
        if not isinstance(features, dict) or not all(isinstance(each, dict) for each in features.values()):
            raise self._damaged("info.json does not list its features")
        for name in features:
            if not name or name.startswith("/") or ".." in name.split("/") or "\x00" in name:
                raise self._damaged(f"the feature {name!r} would lead out of its folder")
        self.features: dict[str, dict[str, Any]] = features
        self.fps: Any = self.info.get("fps")
        if (stated_rate(self.fps) or 1e6) >= 1e6:
            raise self._damaged(f"invalid fps in info.json: {self.fps!r}")
        self.chunks_size = self.info.get("chunks_size", 1000)
        if type(self.chunks_size) is not int or self.chunks_size < 1:
            raise self._damaged(f"invalid chunks_size: {self.chunks_size!r}")
        self._stats_lines: dict[int, bytes] = {}
        self.tasks = self._read_tasks()
        self.episodes = sorted(
            self._read_v3() if self.is_v3 else self._read_v2(), key=lambda each: each.number
        )
        self._check_counts()

    def _path(self, name: str) -> str:
        return f"{self.place.name}/{name}"

    def _damaged(self, fact: str, name: str = INFO) -> CorruptLayoutError:
        return CorruptLayoutError(fact, path=self._path(name))

    def _check_counts(self) -> None:
        first: dict[str, int] = {}
        for number, episode in enumerate(self.episodes):
            if episode.number != number:
                fact = f"episode {number} is missing: row {number} is episode {episode.number}"
                raise self._damaged(fact, episode.file)
            first[episode.data_file] = min(
                episode.data_start, first.get(episode.data_file, episode.data_start)
            )
        for episode in self.episodes:  # rows of the set -> rows of the file
            episode.data_start -= first[episode.data_file]
        frames = sum(episode.length for episode in self.episodes)
        for key, count in (("total_episodes", len(self.episodes)), ("total_frames", frames)):
            stated = self.info.get(key)
            if stated is not None and stated != count:
                raise self._damaged(f"info.json states {key} {stated}, the episodes add up to {count}")

    def _read_tasks(self) -> list[dict[str, Any]]:
        name = TASKS_TABLE if self.is_v3 else TASKS_LINES
        if self.is_v3 and not self.place.exists(name):
            raise BlobNotFoundError("the tasks are missing", path=self._path(name))
        tasks = []
        for row in self.tables.everything(name) if self.is_v3 else self._lines(name):
            text = row.pop("task", row.pop("__index_level_0__", None))
            if not isinstance(row.get("task_index"), int) or not isinstance(text, str):
                raise self._damaged("a task without its number or its text", name)
            tasks.append({"task_index": row.pop("task_index"), "task": text, **row})
        return sorted(tasks, key=lambda row: int(row["task_index"]))

    def _episode_files(self) -> Iterator[str]:
        """The files that list the episodes; if the store cannot list names, they are tried one by one."""
        try:
            yield from (name for name in self.place.names("meta/episodes") if name.endswith(".parquet"))
            return
        except StoreError:
            pass
        for chunk in itertools.count():
            for file in itertools.count():
                name = f"meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
                if not self.place.exists(name):
                    break
                yield name
            if not file:
                return

    def _read_v3(self) -> Iterator[EpisodeRow]:
        files = list(self._episode_files())
        if not files:
            raise BlobNotFoundError("no episodes are listed", path=self._path("meta/episodes"))
        for file in files:
            names = tuple(name for name in self.tables.schema(file).names if not name.startswith("stats/"))
            table = self.tables.columns(file, names, 0, self.tables.rows(file))
            for at, row in enumerate(table.table.to_pylist()):
                episode = self._episode(row, file, at)
                chunk, number, start, stop = self._numbers(
                    row,
                    ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index"),
                    file,
                )
                if stop - start != episode.length or start < 0:
                    fact = f"episode {episode.number} has {episode.length} frames in rows {start} to {stop}"
                    raise self._damaged(fact, file)
                episode.data_file = self._template("data_path", chunk_index=chunk, file_index=number)
                episode.data_start = start
                yield episode

    def _numbers(self, row: Mapping[str, Any], keys: tuple[str, ...], file: str) -> list[int]:
        try:
            return [int(row[key]) for key in keys]
        except (KeyError, TypeError, ValueError, OverflowError):
            fact = f"episode {row.get('episode_index')} has no valid {', '.join(keys)}"
            raise self._damaged(fact, file) from None

    def _read_v2(self) -> Iterator[EpisodeRow]:
        for line in self._lines(EPISODES_LINES):
            episode = self._episode(line, EPISODES_LINES, None)
            chunk = episode.number // self.chunks_size
            episode.data_file = self._template("data_path", episode_chunk=chunk, episode_index=episode.number)
            yield episode
        if self.place.exists(EPISODES_STATS):
            for raw in self.place.read(EPISODES_STATS, max_bytes=_MAX_LINES).splitlines():
                if raw.strip():  # parsed when it is needed: a set has many
                    begin = _STATS_LINE.match(raw)
                    number = int(begin[1]) if begin else self._parse(raw, EPISODES_STATS).get("episode_index")
                    if not isinstance(number, int):
                        raise self._damaged("statistics of no episode", EPISODES_STATS)
                    self._stats_lines[number] = raw

    def _episode(self, row: dict[str, Any], file: str, at: int | None) -> EpisodeRow:
        number, length, tasks = row.get("episode_index"), row.get("length"), row.get("tasks")
        if type(number) is not int or number < 0 or type(length) is not int or length < 0:
            raise self._damaged(f"episode {number!r} has length {length!r}", file)
        if length > _MAX_FRAMES:
            raise LimitExceededError(f"episode {number} has {length} frames", path=self._path(file))
        texts = [str(each) for each in tasks] if isinstance(tasks, list) else None
        return EpisodeRow(number, length, texts, row, file, at)

    def _template(self, key: str, **values: Any) -> str:
        """A path from a template of info.json, which may name known fields only."""
        template = self.info.get(key)
        if not isinstance(template, str) or len(template) > 512:
            raise self._damaged(f"invalid {key}: {str(template)[:80]!r}")

        def fill(field: re.Match[str]) -> str:
            if field[1] not in values:
                raise self._damaged(f"the template {template!r} names an unknown field {field[1]!r}")
            return str(values[field[1]]).zfill(int(field[2] or 0))

        return check_inside(_FIELD.sub(fill, template), self._path(INFO))

    def video_file(self, episode: EpisodeRow, key: str) -> tuple[str, float]:
        """The file of a camera of an episode, and the second in it where the episode begins."""
        if not self.is_v3:
            chunk, number = episode.number // self.chunks_size, episode.number
            return self._template("video_path", episode_chunk=chunk, episode_index=number, video_key=key), 0.0
        prefix = f"videos/{key}"
        chunk, file = self._numbers(
            episode.row, (f"{prefix}/chunk_index", f"{prefix}/file_index"), episode.file
        )
        start = episode.row.get(f"{prefix}/from_timestamp")
        if not isinstance(start, int | float):
            raise self._damaged(
                f"episode {episode.number} has no valid {prefix}/from_timestamp", episode.file
            )
        return self._template("video_path", chunk_index=chunk, file_index=file, video_key=key), float(start)

    def stats_of(self, episode: EpisodeRow) -> dict[str, Any]:
        """The statistics of one episode; empty if the set has none."""
        if episode.at is None:
            line = self._stats_lines.get(episode.number)
            stats = {} if line is None else self._parse(line, EPISODES_STATS).get("stats", {})
            return stats if isinstance(stats, dict) else {}
        names = [name for name in self.tables.schema(episode.file).names if name.startswith("stats/")]
        if not names:
            return {}
        found: dict[str, Any] = {}
        row = self.tables.columns(episode.file, tuple(names), episode.at, episode.at + 1).table.to_pylist()[0]
        for name, value in row.items():
            feature, _, what = name.removeprefix("stats/").rpartition("/")
            if value is not None:
                found.setdefault(feature, {})[what] = value
        return found

    def stats(self) -> dict[str, Any] | None:
        """stats.json, if there is one."""
        return self.place.read_json(STATS) if self.place.exists(STATS) else None

    def other_files(self) -> dict[str, str | bytes]:
        """Small files that other programs put into the meta folder."""
        files: dict[str, str | bytes] = {}
        try:
            names = self.place.names("meta")
        except StoreError:
            names = [name for name in _OFTEN if self.place.exists(name)]
        for name in names:
            if name in _KNOWN or name.startswith("meta/episodes/"):
                continue
            try:
                data = self.place.read(name, max_bytes=_MAX_KEPT_FILE)
            except FormatError:  # too large
                continue
            try:
                files[name] = data.decode()
            except UnicodeDecodeError:
                files[name] = data
        return files

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        for raw in self.place.read(name, max_bytes=_MAX_LINES).splitlines():
            if raw.strip():
                yield self._parse(raw, name)

    def _parse(self, raw: bytes, name: str) -> dict[str, Any]:
        try:
            return parse_json_object(raw, allow_nan=True)
        except FormatError as error:
            raise type(error)(error.message, path=self._path(name)) from None
