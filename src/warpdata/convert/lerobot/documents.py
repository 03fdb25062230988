"""What a LeRobot set says of itself: info.json, tasks, one row per episode, statistics. Nothing of it is trusted."""

from __future__ import annotations

import base64
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from warpdata.bytekit.jsontext import parse_json, parse_json_object
from warpdata.convert.lerobot.tables import Tables
from warpdata.convert.place import Place, check_inside
from warpdata.convert.rows import stated_rate
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    StoreError,
    UnsupportedVersionError,
)
from warpdata.timeline.source import PLAIN_TYPES, ReadOnlyDict

INFO = "meta/info.json"
STATS = "meta/stats.json"
EPISODES_STATS = "meta/episodes_stats.jsonl"
VERSIONS = ("v2.0", "v2.1", "v3.0")
OURS = "meta/warpdata.json"
"""Where our receipt stands in a set that we wrote."""
DEFAULTS = ("timestamp", "frame_index", "episode_index", "index", "task_index")

_FIELD = re.compile(r"\{(chunk_index|file_index|video_key|episode_chunk|episode_index)(?::0?(\d{1,2})d)?\}")
_ELSEWHERE = ("meta/modality.json",)
"""Files of other programs that are there often: what their training code asks for."""
_KNOWN = {
    INFO,
    STATS,
    OURS,
    "meta/tasks.parquet",
    "meta/tasks.jsonl",
    "meta/episodes.jsonl",
    EPISODES_STATS,
}
_MAX_KEPT_FILE = 16 << 20
_MAX_TABLE = 4 << 30
_FLOAT_TAG = "__float__"


def templated(where: str, template: Any, **values: Any) -> str:
    """A path from a template of info.json: only the known fields, so that a template cannot ask for more."""
    if not isinstance(template, str) or len(template) > 512:
        raise CorruptLayoutError(f"the template {str(template)[:80]!r} is no path", path=where)

    def one(found: re.Match[str]) -> str:
        name, width = found.group(1), found.group(2)
        if name not in values:
            raise CorruptLayoutError(f"the template {template!r} asks for {name!r}", path=where)
        return str(values[name]).zfill(int(width)) if width else str(values[name])

    return check_inside(_FIELD.sub(one, template), where)


@dataclass(slots=True)
class EpisodeRow:
    """One episode as the metadata has it."""

    number: int
    length: int
    tasks: list[str] | None
    row: dict[str, Any]
    """Everything said of it, but its statistics."""
    where: str
    """The file that says it."""
    at: tuple[str, int] | None = None
    """Of v3: the file and the row where its statistics are."""
    data_file: str = ""
    data_start: int = 0


@dataclass(slots=True)
class Documents:
    """The metadata of a set."""

    place: Place
    tables: Tables
    info: dict[str, Any]
    version: str
    fps: float
    features: dict[str, dict[str, Any]]
    episodes: list[EpisodeRow] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    _stats_lines: dict[int, bytes] = field(default_factory=dict)

    @property
    def is_v3(self) -> bool:
        """Whether many episodes share a file."""
        return self.version.startswith("v3")

    @property
    def chunks_size(self) -> int:
        """Files, or episodes, per chunk folder."""
        found = self.info.get("chunks_size", 1000)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise CorruptLayoutError(f"chunks_size is {found!r}", path=self._at(INFO))
        return found

    def task_texts(self) -> dict[int, str]:
        """Task by index."""
        return {int(each["task_index"]): str(each["task"]) for each in self.tasks}

    def video_file(self, episode: EpisodeRow, key: str) -> tuple[str, float]:
        """The file of a camera of an episode, and the second in it where the episode begins."""
        template = self.info.get("video_path")
        if not self.is_v3:
            chunk = episode.number // self.chunks_size
            name = templated(
                self._at(INFO), template, episode_chunk=chunk, episode_index=episode.number, video_key=key
            )
            return name, 0.0
        try:
            chunk = int(episode.row[f"videos/{key}/chunk_index"])
            file = int(episode.row[f"videos/{key}/file_index"])
            start = float(episode.row[f"videos/{key}/from_timestamp"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CorruptLayoutError(
                f"episode {episode.number} does not say where its video {key!r} is",
                path=self._at(episode.where),
            ) from None
        return templated(self._at(INFO), template, chunk_index=chunk, file_index=file, video_key=key), start

    def stats_of(self, episode: EpisodeRow) -> dict[str, Any]:
        """The statistics of one episode, as the set has them; none where it has none."""
        if episode.at is not None:
            return self._v3_stats(*episode.at)
        line = self._stats_lines.get(episode.number)
        if line is None:
            return {}
        found = _line(line, self._at(EPISODES_STATS)).get("stats", {})
        return found if isinstance(found, dict) else {}

    def plain_stats_of(self, episode: EpisodeRow) -> Mapping[str, Any]:
        """The same as JSON can hold it."""
        found = self.stats_of(episode)
        line = None if episode.at is not None else self._stats_lines.get(episode.number)
        if line is not None and not _may_be_not_finite(line):
            return _owned(found)  # hundreds of numbers, and none of them needs to be looked at
        plain: Mapping[str, Any] = plain_numbers(found)
        return plain

    def _v3_stats(self, file: str, row: int) -> dict[str, Any]:
        names = [name for name in self.tables.schema(file).names if name.startswith("stats/")]
        if not names:
            return {}
        found: dict[str, Any] = {}
        table = self.tables.columns(file, tuple(names), row, row + 1).table
        for name, value in table.to_pylist()[0].items():
            feature, _, what = name.removeprefix("stats/").rpartition("/")
            if value is not None:
                found.setdefault(feature, {})[what] = value
        return found

    def stats(self) -> dict[str, Any] | None:
        """stats.json, where there is one."""
        if not self.place.exists(STATS):
            return None
        return _object(self.place, STATS)

    def other_files(self) -> dict[str, str]:
        """Small files of the meta folder that other programs put there: text, or base64 with a mark."""
        found: dict[str, str] = {}
        try:
            names = self.place.names("meta")
        except StoreError:  # a web server tells no names: those that are known elsewhere are asked for
            names = [name for name in _ELSEWHERE if self.place.exists(name)]
        for name in names:
            if name in _KNOWN or name.startswith("meta/episodes/"):
                continue
            reader = self.place.open(name)
            size = reader.size
            reader.close()
            if size > _MAX_KEPT_FILE:
                continue
            data = self.place.read(name)
            try:
                found[name] = "text:" + data.decode()
            except UnicodeDecodeError:
                found[name] = "base64:" + base64.b64encode(data).decode()
        return found

    def _at(self, name: str) -> str:
        return f"{self.place.name}/{name}"


def file_bytes(kept: str) -> bytes:
    """What `other_files` kept of a file."""
    kind, _, text = kept.partition(":")
    return text.encode() if kind == "text" else base64.b64decode(text)


def read_documents(place: Place) -> Documents:
    """The metadata of a set; whatever contradicts itself is a typed error that names the file."""
    try:
        info = _object(place, INFO)
    except BlobNotFoundError:
        raise BadMagicError(f"not a LeRobot set: there is no {INFO!r}", path=place.name) from None
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise UnsupportedVersionError(
            f"a LeRobot set of version {version!r}; {', '.join(VERSIONS)} can be read", path=f"{place.name}/{INFO}",
            hint="Convert it to v2.1 or v3.0 with the program that wrote it.",
        )  # fmt: skip
    where = f"{place.name}/{INFO}"
    features = info.get("features")
    if not isinstance(features, dict) or not all(isinstance(each, dict) for each in features.values()):
        raise CorruptLayoutError("info.json does not list its features", path=where)
    for name in features:
        if not name or name.startswith("/") or ".." in name.split("/") or "\x00" in name:
            raise CorruptLayoutError(f"the feature {name!r} would lead out of its folder", path=where)
    fps = info.get("fps")
    if fps is None or stated_rate(fps) is None or fps >= 1e6:
        raise CorruptLayoutError(f"info.json says fps is {fps!r}", path=where)
    made = Documents(place, Tables(place), info, version, fps, features)
    (_read_v3 if made.is_v3 else _read_v2)(made)
    _check_counts(made)
    return made


def _check_counts(made: Documents) -> None:
    where = f"{made.place.name}/{INFO}"
    for number, episode in enumerate(made.episodes):
        if episode.number != number:
            raise CorruptLayoutError(
                f"episode {number} is missing: row {number} is episode {episode.number}",
                path=f"{made.place.name}/{episode.where}",
            )
    frames = sum(episode.length for episode in made.episodes)
    for key, found in (("total_episodes", len(made.episodes)), ("total_frames", frames)):
        stated = made.info.get(key)
        if stated is not None and stated != found:
            raise CorruptLayoutError(
                f"info.json says {key} is {stated}, the episodes add up to {found}", path=where
            )


def _episode_files(place: Place) -> list[str]:
    """The files that list the episodes; where a store tells no names, one number after the other is asked for."""
    try:
        return [name for name in place.names("meta/episodes") if name.endswith(".parquet")]
    except StoreError:
        found: list[str] = []
    for chunk in itertools.count():
        before = len(found)
        for file in itertools.count():
            name = f"meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
            if not place.exists(name):
                break
            found.append(name)
        if len(found) == before:
            return found
    raise AssertionError


def _read_v3(made: Documents) -> None:
    place, tables = made.place, made.tables
    made.tasks = _v3_tasks(made)
    files = _episode_files(place)
    if not files:
        raise BlobNotFoundError("no episodes are listed", path=f"{place.name}/meta/episodes")
    for file in files:
        names = [name for name in tables.schema(file).names if not name.startswith("stats/")]
        rows = tables.columns(file, tuple(names), 0, tables.rows(file)).table.to_pylist()
        for at, row in enumerate(rows):
            episode = _episode(row, file, (file, at), place)
            episode.data_file, episode.data_start = _v3_data(made, row, file)
            made.episodes.append(episode)
    made.episodes.sort(key=lambda each: each.number)
    first: dict[str, int] = {}
    for episode in made.episodes:
        first[episode.data_file] = min(episode.data_start, first.get(episode.data_file, episode.data_start))
    for episode in made.episodes:
        episode.data_start -= first[episode.data_file]


def _v3_data(made: Documents, row: Mapping[str, Any], file: str) -> tuple[str, int]:
    try:
        chunk, number = int(row["data/chunk_index"]), int(row["data/file_index"])
        start, stop = int(row["dataset_from_index"]), int(row["dataset_to_index"])
        length = int(row["length"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CorruptLayoutError(
            f"episode {row.get('episode_index')} does not say where its rows are",
            path=f"{made.place.name}/{file}",
        ) from None
    if stop - start != length or start < 0:
        raise CorruptLayoutError(
            f"episode {row.get('episode_index')} has {length} frames in rows {start} to {stop}",
            path=f"{made.place.name}/{file}",
        )
    return templated(made._at(INFO), made.info.get("data_path"), chunk_index=chunk, file_index=number), start


def _v3_tasks(made: Documents) -> list[dict[str, Any]]:
    name = "meta/tasks.parquet"
    if not made.place.exists(name):
        raise BlobNotFoundError("the tasks are missing", path=f"{made.place.name}/{name}")
    rows = made.tables.everything(name)
    found = []
    for row in rows:
        text = row.pop("task", row.pop("__index_level_0__", None))
        if not isinstance(row.get("task_index"), int) or not isinstance(text, str):
            raise CorruptLayoutError(
                "a task without its number or its text", path=f"{made.place.name}/{name}"
            )
        found.append({"task_index": row.pop("task_index"), "task": text, **row})
    return sorted(found, key=lambda each: int(each["task_index"]))


def _read_v2(made: Documents) -> None:
    place = made.place
    tasks = []
    for line in _lines(place, "meta/tasks.jsonl"):
        if not isinstance(line.get("task_index"), int) or not isinstance(line.get("task"), str):
            raise CorruptLayoutError(
                "a task without its number or its text", path=f"{place.name}/meta/tasks.jsonl"
            )
        tasks.append(line)
    made.tasks = sorted(tasks, key=lambda each: int(each["task_index"]))
    for line in _lines(place, "meta/episodes.jsonl"):
        episode = _episode(line, "meta/episodes.jsonl", None, place)
        chunk = episode.number // made.chunks_size
        episode.data_file = templated(
            made._at(INFO), made.info.get("data_path"), episode_chunk=chunk, episode_index=episode.number
        )
        made.episodes.append(episode)
    made.episodes.sort(key=lambda each: each.number)
    if place.exists(EPISODES_STATS):
        for raw in place.read(EPISODES_STATS, max_bytes=_MAX_TABLE).splitlines():
            if raw.strip():
                made._stats_lines[_number_of(raw, f"{place.name}/{EPISODES_STATS}")] = raw


_NUMBERED = re.compile(rb'\{"episode_index": ?(0|[1-9][0-9]{0,14}), ?"stats": ?\{')
"""How writers begin a line of statistics."""


def _number_of(raw: bytes, path: str) -> int:
    """The episode of a line of statistics; the rest of it is looked at when it is asked for: a set has many."""
    begins = _NUMBERED.match(raw)
    number = int(begins.group(1)) if begins else _line(raw, path).get("episode_index")
    if not isinstance(number, int):
        raise CorruptLayoutError("statistics of no episode", path=path)
    return number


def _episode(row: dict[str, Any], file: str, at: tuple[str, int] | None, place: Place) -> EpisodeRow:
    number, length, tasks = row.get("episode_index"), row.get("length"), row.get("tasks")
    is_number = isinstance(number, int) and not isinstance(number, bool) and number >= 0
    if not is_number or not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise CorruptLayoutError(f"episode {number!r} has length {length!r}", path=f"{place.name}/{file}")
    if length > 1 << 40:
        raise LimitExceededError(f"episode {number} has {length} frames", path=f"{place.name}/{file}")
    assert isinstance(number, int)
    texts = [str(each) for each in tasks] if isinstance(tasks, list) else None
    return EpisodeRow(number, length, texts, row, file, at)


def _lines(place: Place, name: str) -> Iterator[dict[str, Any]]:
    for raw in place.read(name, max_bytes=_MAX_TABLE).splitlines():
        if raw.strip():
            yield _line(raw, f"{place.name}/{name}")


def _line(raw: bytes, path: str) -> dict[str, Any]:
    try:
        return parse_json_object(raw, allow_nan=True)
    except FormatError as error:
        raise type(error)(error.message, path=path) from None


def _object(place: Place, name: str) -> dict[str, Any]:
    data = place.read(name)
    try:
        found = parse_json(data, allow_nan=True)
    except FormatError as error:
        raise type(error)(error.message, path=f"{place.name}/{name}") from None
    if not isinstance(found, dict):
        raise CorruptLayoutError("not a JSON object", path=f"{place.name}/{name}")
    return found


_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_MAYBE_NOT_FINITE = (b"NaN", b"Infinity", b"0" * 200, b"e000", b"e+000")
"""Text without these has no number beyond float64: 200 digits and an exponent of two are less than 10**300."""


def _may_be_not_finite(text: bytes) -> bool:
    """Whether JSON may hold a number that is none; an expression with all of it takes longer than parsing it."""
    alike = text.translate(_DIGITS_ALIKE)
    return any([mark in alike for mark in _MAYBE_NOT_FINITE])


def _owned(value: dict[str, Any]) -> ReadOnlyDict:
    """Objects of parsed JSON that nobody else holds, read-only."""
    return ReadOnlyDict.owning(
        {key: _owned(each) if type(each) is dict else each for key, each in value.items()}
    )


_NUMBERS = frozenset({int, float})
"""What the lists of statistics are full of."""


def plain_numbers(value: Any) -> Any:
    """A value that JSON can hold: NaN and infinities as text with a mark."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else {_FLOAT_TAG: repr(value)}
    if kind in PLAIN_TYPES:
        return value
    if isinstance(value, list | tuple):
        if _NUMBERS.issuperset(map(type, value)) and all(map(math.isfinite, value)):
            return list(value)
        return [plain_numbers(each) for each in value]
    if isinstance(value, dict):
        return ReadOnlyDict.owning({key: plain_numbers(each) for key, each in value.items()})
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT_TAG: repr(value)}
    return value


def restored_numbers(value: Any) -> Any:
    """What `plain_numbers` made, as it was."""
    if isinstance(value, Mapping):
        if set(value) == {_FLOAT_TAG}:
            return float(value[_FLOAT_TAG])
        return {key: restored_numbers(each) for key, each in value.items()}
    return [restored_numbers(each) for each in value] if isinstance(value, list | tuple) else value
