"""Vectors over many episodes: computed once for each, wherever the work is done, and written as one file.

The file is an index of trajectories (`trajectory_index`), so whatever asks those asks it. What is in it depends on the
episodes, the embedder and the options alone: the same bytes come out of one process, of many and of a cluster.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.system import available_bytes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Called, Here, Runner, code_name
from warpdata.errors import ConflictError, DatasetError, NoStepsError, WarpError, nearest
from warpdata.search.file import profile
from warpdata.search.file.rewrite import Batch, index_vectors, write_vectors
from warpdata.search.moments.behaviour import (
    BLOCK_BYTES,
    Behaviour,
    about_episode,
    episode_and_address,
    key_of,
    window_key,
)
from warpdata.search.moments.embedders import BuiltIn, Embedder, embedded, embedder_of
from warpdata.search.moments.index import CHANNELS, EPISODES, TIMESTEPS, file_row
from warpdata.search.moments.observation import Channels, Observation
from warpdata.search.moments.windows import (
    SAMPLED_EPISODES,
    Scale,
    WindowEmbedder,
    read_windows,
    window_spans,
)
from warpdata.search.query.ann import has_faiss
from warpdata.search.store import VectorStore
from warpdata.timeline.episode import Episode
from warpdata.timeline.pictures import picture_shape
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import checked_rate, rate_grid

Per = Literal["episode", "step", "window", "frame"]
PER: tuple[Per, ...] = get_args(Per)
SCALE = "scale"
"""The note of a file with the scale of its numbers."""
Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]

IndexChoice = Literal["auto", "none", "hnsw", "ivf", "flat"]
INDEX_CHOICES: tuple[IndexChoice, ...] = get_args(IndexChoice)
SUFFIX = ".rvf"
MAX_STEPS = 256
"""Steps of an episode that are embedded unless told otherwise, spread evenly over it."""

INDEX_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_BUILDING_BYTES = 24
"""Memory for each number of the vectors while a graph is built over them: some copies of it, and the graph."""
_WRITTEN_BYTES = 64 << 20
"""Vectors that are handed on together."""


class Embedded(NamedTuple):
    """The vectors of one episode, and what is known of each."""

    vectors: Floats
    rows: list[dict[str, Any]]
    channels: str = ""
    """Note of the channels that the vectors were made of."""


@dataclass(frozen=True, slots=True)
class EmbedOptions:
    """Which moments of an episode get a vector, and of what."""

    per: Per = "step"
    rate_hz: float | None = None
    clock: str | None = None
    max_steps: int | None = None
    """At most so many steps, spread evenly; 0 for all. None is 256, or all of them where a rate or clock is given."""
    window: int = 32
    stride: int = 16
    signals: tuple[str, ...] | None = None
    window_s: float | None = None
    stride_s: float | None = None
    """Windows of so many seconds, every so many seconds (half of a window): the embedder gets them whole, [T, D]."""
    batch_size: int | None = None
    """Hand the embedder so many moments at once, as arrays by channel, instead of one observation."""

    def __post_init__(self) -> None:
        if self.per not in PER:
            raise ValueError(f"per is {', '.join(PER)}, not {self.per!r}.{nearest(self.per, PER)}")
        if self.rate_hz is not None:
            checked_rate(self.rate_hz)
        if self.rate_hz is not None and self.clock is not None:
            raise ValueError("give either clock= or rate_hz=")
        if self.clock is not None and self.per == "frame":
            raise ValueError("frames have the times of their camera: choose some of them with rate_hz=")
        if self.max_steps is not None and self.max_steps < 0:
            raise ValueError(f"max_steps is at least 1, or 0 for all, not {self.max_steps}")
        if self.window < 1 or self.stride < 1:
            raise ValueError(
                f"windows need a size and a stride of at least 1, not {self.window}, {self.stride}"
            )
        if self.window_s is not None and (self.per != "window" or not self.window_s > 0):
            raise ValueError(
                f"window_s is above 0 and needs per='window', not {self.window_s} per {self.per!r}"
            )
        if self.stride_s is not None and (self.window_s is None or not self.stride_s > 0):
            raise ValueError(f"stride_s is above 0 and needs window_s=, not {self.stride_s}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size is at least 1, not {self.batch_size}")

    @property
    def most_steps(self) -> int | None:
        """How many steps of an episode at most; None for all."""
        if self.max_steps is not None:
            return self.max_steps or None
        return MAX_STEPS if self.rate_hz is None and self.clock is None else None

    def to_json(self) -> dict[str, Any]:
        """What changes the vectors: a batch does not."""
        return {name: value for name, value in asdict(self).items() if name != "batch_size"}


@dataclass(frozen=True)
class EmbedTask:
    """Embeds the episode at a position; it travels to other processes."""

    episodes: Episodes
    ids: Sequence[str]
    contents: Sequence[str]
    embedder: Called
    options: EmbedOptions
    dataset: str | None = None
    """The published dataset the episodes are of; else each says itself what opens it again."""

    def __call__(self, position: int) -> Embedded | str:
        """The vectors of an episode, or why it has none."""
        episode = self._episode(position)
        found, path = episode_and_address(episode)
        path = path if self.dataset is None else f"{self.dataset}#{found.id}"
        try:
            moments = _Moments(found, path, self.options, self.embedder).all()
        except NoStepsError:
            return "it was not recorded by step: say a rate or a clock"
        if isinstance(moments, str):
            return moments
        rows = [{**row, "content": self.contents[position]} for row in moments.rows]
        return Embedded(moments.vectors, rows, moments.channels)

    def _episode(self, position: int) -> Episode:
        """The episode that was there: a root that is recorded into may have been listed anew with more of them."""
        ids = self.episodes.source.ids if self.episodes.is_whole else self.episodes.ids
        is_there = position < len(ids) and ids[position] == self.ids[position]
        return self.episodes[position] if is_there else self.episodes.open(self.ids[position])


class _Moments:
    """The moments of one episode that get vectors."""

    def __init__(self, episode: Episode, path: str, options: EmbedOptions, embedder: Called) -> None:
        self._episode, self._path, self._options = episode, path, options
        self._embedder = embedder
        self._built_in: Any = embedder.given if isinstance(embedder.given, BuiltIn | WindowEmbedder) else None
        self._channels = Channels()

    def all(self) -> Embedded | str:
        """Vectors and what is known of each, or why there are none."""
        if self._options.per == "frame":
            return self._frames()
        options = self._options
        found = Behaviour.of(self._episode, options.rate_hz, options.clock, options.signals)
        found.about["file_path"] = self._path
        if self._built_in is not None:
            chosen = {n: s for n, s in sorted(found.signals.items()) if self._built_in.takes(s.row_shape)}
            found.signals = chosen
        if not found.signals:
            return f"it has no {'observations' if self._built_in is None else self._built_in.wanted}"
        if self._options.window_s is not None:
            made = self._windows(found, self._options.window_s)
        else:
            made = self._steps(found) if self._options.per == "step" else self._window_means(found)
        return made._replace(channels=self._channels.to_text())

    def _steps(self, found: Behaviour) -> Embedded:
        most = self._options.most_steps
        count = found.length if most is None else min(most, found.length)
        steps = np.unique(np.linspace(0, found.length - 1, count).astype(np.int64))
        about = {**found.about, "total_reward": found.total_reward}
        row_bytes = sum(each.meta.row_bytes for each in found.signals.values())
        vectors = [
            self._vectors({name: np.asarray(each[_key(block)]) for name, each in found.signals.items()})
            for block in _blocks(steps, row_bytes)
        ]
        rows = [
            file_row(
                EPISODES, f"{found.key}@{step}", {**about, "step": step, "ts_ns": int(found.times_ns[step])}
            )
            for step in steps.tolist()
        ]
        return Embedded(np.concatenate(vectors), rows)

    def _window_means(self, found: Behaviour) -> Embedded:
        """One vector for the whole episode, or one for each window."""
        if self._options.per == "episode":
            about = {**found.about, "total_reward": found.total_reward, "ts_ns": int(found.times_ns[0])}
            observation = found.mean(0, found.length)
            return Embedded(self._one(observation), [file_row(EPISODES, found.key, about)])
        vectors, rows = [], []
        for start in range(0, found.length, self._options.stride):
            end = min(start + self._options.window, found.length)
            about = {
                **found.about,
                "window_start": start,
                "window_end": end,
                "ts_ns": int(found.times_ns[start]),
            }
            vectors.append(self._one(found.mean(start, end)))
            rows.append(file_row(TIMESTEPS, window_key(about), about))
            if end == found.length:
                break
        return Embedded(np.concatenate(vectors), rows)

    def _windows(self, found: Behaviour, window_s: float) -> Embedded:
        """One vector for each window of so many seconds, made of all of its steps."""
        spans = window_spans(found.times_ns, window_s, self._options.stride_s or window_s / 2)
        length, times = spans[0][1] - spans[0][0], found.times_ns
        period = int(np.median(np.diff(times))) if len(times) > 1 else 1
        row_bytes = length * sum(each.meta.row_bytes for each in found.signals.values())
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        vectors = [
            self._vectors(read_windows(found, spans[at : at + step], list(found.signals)))
            for at in range(0, len(spans), step)
        ]
        rows = []
        for start, end in spans:
            moment = {"window_start": start, "window_end": end, "ts_ns": int(times[start])}
            about = {**found.about, **moment, "end_ns": int(times[end - 1]) + period}
            rows.append(file_row(TIMESTEPS, window_key(about), about))
        return Embedded(np.concatenate(vectors), rows)

    def _frames(self) -> Embedded | str:
        cameras = self._cameras()
        if not cameras:
            return "it has no camera"
        about = about_episode(self._episode, self._path, _length(self._episode))
        vectors: list[Floats] = []
        rows: list[dict[str, Any]] = []
        for name, signal in cameras.items():
            times = np.asarray(signal.timestamps)
            chosen = _at_rate(times, self._options.rate_hz)
            vectors += [
                self._vectors({name: signal[_key(block)].values()})
                for block in _blocks(chosen, signal.meta.row_bytes)
            ]
            rows += [
                file_row(
                    EPISODES,
                    f"{key_of(about)}@{name}:{frame}",
                    {**about, "camera": name, "frame": frame, "ts_ns": int(times[frame])},
                )
                for frame in chosen.tolist()
            ]
        return Embedded(np.concatenate(vectors), rows)

    def _cameras(self) -> dict[str, Signal]:
        signals, wanted = self._episode.signals, self._options.signals
        for name in wanted or ():
            if name not in signals:
                raise KeyError(f"no signal {name!r} in episode {self._episode.id}.{nearest(name, signals)}")
        return {
            name: each
            for name, each in sorted(signals.items())
            if len(each)
            and (
                name in wanted
                if wanted is not None
                else picture_shape(each.meta.shape) is not None and each.meta.role == "observation"
            )
        }

    def _one(self, observation: Observation) -> Floats:
        return self._vectors({name: each[None] for name, each in observation.items()})

    def _vectors(self, channels: Mapping[str, NDArray[Any]]) -> Floats:
        """The vectors of some moments: one call for all of them, for some, or for each."""
        count = len(next(iter(channels.values())))
        if self._built_in is not None:
            self._channels = Channels(tuple(channels), tuple(channels))
            is_windowed = isinstance(self._built_in, WindowEmbedder)
            return _checked((self._built_in if is_windowed else self._built_in.many)(channels), count)
        size = self._options.batch_size
        if size is None:
            rows = [Observation({n: each[at] for n, each in channels.items()}) for at in range(count)]
            vectors = _same_length([embedded(self._embedder, each) for each in rows])
            for each in rows:
                self._channels = self._channels.joined(each, self._path)
            return vectors
        parts = []
        for start in range(0, count, size):
            batch = _Batch({name: each[start : start + size] for name, each in channels.items()})
            parts.append(_checked(self._embedder(batch), min(size, count - start)))
            self._channels = Channels(tuple(channels), tuple(batch.used or channels))
        return np.concatenate(parts)


class _Batch(dict[str, NDArray[Any]]):
    """Arrays by channel, with the names that were read."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(arrays)
        self.used: dict[str, None] = {}

    def __getitem__(self, name: str) -> NDArray[Any]:
        self.used[name] = None
        return super().__getitem__(name)


def _blocks(rows: NDArray[np.int64], row_bytes: int) -> Iterator[NDArray[np.int64]]:
    """Rows, so many at a time as fit in memory."""
    size = max(1, BLOCK_BYTES // max(1, row_bytes))
    yield from (rows[start : start + size] for start in range(0, len(rows), size))


def _key(rows: NDArray[np.int64]) -> Any:
    """Rows that follow each other as a slice, which is read at once."""
    is_run = len(rows) == int(rows[-1]) - int(rows[0]) + 1
    return slice(int(rows[0]), int(rows[-1]) + 1) if is_run else rows


def _at_rate(times: NDArray[np.int64], rate_hz: float | None) -> NDArray[np.int64]:
    """All records, or those that hold at the moments of a rate."""
    if rate_hz is None:
        return np.arange(len(times))
    moments = rate_grid(int(times[0]), int(times[-1]), rate_hz)
    return np.unique(np.searchsorted(times, moments, side="right") - 1)


def _length(episode: Episode) -> int | None:
    try:
        return episode.steps.length
    except NoStepsError:
        return None


def _checked(given: Any, count: int) -> Floats:
    found = np.asarray(as_array(given), np.float32)
    if found.ndim != 2 or len(found) != count or not found.shape[1] or not np.isfinite(found).all():
        fact = f"for {count} moments the embedder gave shape {found.shape}"
        raise ValueError(f"{fact}: give a row of finite numbers for each")
    return np.ascontiguousarray(found)


def _same_length(vectors: Sequence[Floats]) -> Floats:
    lengths = sorted({len(each) for each in vectors})
    if len(lengths) > 1:
        raise ValueError(f"the embedder gave vectors of {lengths[0]} and of {lengths[-1]} numbers")
    return np.stack(vectors)


# Many episodes.


@dataclass(frozen=True)
class EmbedJob:
    """Vectors of which episodes, by what, and where they are kept until all are there."""

    episodes: Episodes
    source: str
    """What the episodes are called: a root, a dataset."""
    embedder: Embedder | str | Mapping[str, float]
    options: EmbedOptions
    cache_dir: str
    revision: str | None = None
    metric: str | None = None
    dataset: str | None = None
    index: IndexChoice = "auto"

    def __post_init__(self) -> None:
        if self.index not in INDEX_CHOICES:
            known = ", ".join(INDEX_CHOICES)
            raise ValueError(
                f"index is {known}, not {self.index!r}.{nearest(str(self.index), INDEX_CHOICES)}"
            )

    def index_kind(self, count: int, dim: int) -> str | None:
        """The index that so many vectors get; none where it is not worth while, or cannot be built here."""
        if self.index != "auto":
            return None if self.index == "none" else self.index
        free = available_bytes()
        fits = free is None or count * dim * _BUILDING_BYTES <= free
        return "hnsw" if count >= profile.WORTH_INDEXING and fits and has_faiss() else None

    @property
    def function(self) -> Embedder:
        """What turns moments into vectors."""
        if self.options.window_s is not None and isinstance(self.embedder, str | Mapping):
            return WindowEmbedder.named(self.embedder)
        if isinstance(self.embedder, Mapping) or self.embedder in ("motion", "image"):
            raise ValueError(
                f"the embedder {self.embedder!r} is one of windows: give window_s= and per='window'"
            )
        return embedder_of(self.embedder)

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What the file says of itself: vectors of a file with other notes are others."""
        function = self.function
        named = self.revision
        if named is None:
            named = function.name if isinstance(function, BuiltIn | WindowEmbedder) else code_name(function)
        return {
            "embedder": named,
            "per": self.options.per,
            "source": self.source,
            "options": dump_json(self.options.to_json()).decode(),
        }

    @property
    def compared_by(self) -> str:
        """The metric: as told, that of the embedder, or cosine."""
        own = getattr(self.function, "metric", "cosine")
        return self.metric or (own if isinstance(own, str) else "cosine")

    @property
    def folder(self) -> Path:
        """Where finished episodes wait for the others; a run of the same work finds them there."""
        cache = Path(os.path.expanduser(self.cache_dir))
        return cache / "embeddings" / sha256_hex(dump_json({**self.notes, "metric": self.compared_by}))[:24]

    def finish(self) -> None:
        """The vectors are where they belong: nothing waits any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class EmbedReport:
    """What became of the vectors of many episodes."""

    path: str
    """The file, or the dataset that has it."""
    vectors: int
    dim: int
    computed: int
    """Episodes that were embedded now."""
    resumed: int
    """Episodes that a run which was stopped had embedded."""
    reused: int
    """Episodes that had not changed since the file was last written."""
    without: dict[str, str]
    """Episodes that have no vectors, and why."""
    version: str | None = None
    """The version that has the file, where it was published."""
    index: str | None = None
    """The index over the vectors, if they have one."""

    def __str__(self) -> str:
        index = f" with an index ({self.index})" if self.index else ""
        return f"{self.vectors} vectors of {self.dim} numbers{index} in {self.path}"


class EmbedRun:
    """One run of a job: what is held already, what is computed, and the file that comes of it."""

    def __init__(self, job: EmbedJob, held: VectorStore | None) -> None:
        self._job = job
        self._ids = job.episodes.ids
        self._contents = job.episodes.contents
        self._held = _EarlierVectors(held, job)
        self._parts: dict[int, Path] = {}
        self._scale = Scale.parse(self._held.scale)
        self.without: dict[str, str] = {}
        self.computed = self.resumed = self.reused = 0

    def compute(self, runner: Runner | None, progress: Progress | None) -> None:
        """Embed the episodes of which there are no vectors yet."""
        total, missing = len(self._ids), []
        self._job.folder.mkdir(parents=True, exist_ok=True)
        for position in range(total):
            if self._held.has(self._name(position)):
                self.reused += 1
            elif self._is_whole(position):
                self.resumed += 1
                self._parts[position] = self._part(position)
            else:
                missing.append(position)
        done = total - len(missing)
        if progress is not None:
            progress(done, total)
        task = EmbedTask(
            self._job.episodes,
            self._ids,
            self._contents,
            Called(self._function()),
            self._job.options,
            self._job.dataset,
        )
        for position, found in (runner or Here()).run(task, missing):
            if isinstance(found, str):
                self.without[self._ids[position]] = found
            else:
                self._keep(position, found)
            done += 1
            if progress is not None:
                progress(done, total)
        if not (self._parts or self.reused):
            reasons = sorted(set(self.without.values())) or ["there are no episodes"]
            raise DatasetError(f"no episode of {self._job.source} can be embedded: {'; '.join(reasons)}")

    def write(self, path: Path, *, overwrite: bool) -> tuple[int, int, str | None]:
        """Write the file, in the order of the episodes; how many vectors, of how many numbers, and their index."""
        dims: dict[int, str] = {}
        notes = self._job.notes | self._channel_note() | self._scale_note()
        count = write_vectors(
            path, self._batches(dims), overwrite=overwrite, metric=self._job.compared_by, notes=notes
        )
        kind = self._job.index_kind(count, next(iter(dims)))
        if kind is not None:
            index_vectors(path, kind)
        return count, next(iter(dims)), kind

    def _keep(self, position: int, found: Embedded) -> None:
        """A vector file of one episode, whole or not there: what a run that is stopped leaves behind."""
        self.computed += 1
        self._parts[position] = self._part(position)
        notes = self._job.notes | ({CHANNELS: found.channels} if found.channels else {})
        rows = (found.vectors, found.rows)
        write_vectors(
            self._parts[position],
            [rows],
            metric=self._job.compared_by,
            notes=notes,
            overwrite=True,
            durable=False,
        )

    def _function(self) -> Embedder:
        """The embedder, with the scale of the earlier vectors or one that is learned from the set."""
        function = self._job.function
        if not isinstance(function, WindowEmbedder):
            return function
        if not self._scale.numbers:
            options, count = self._job.options, len(self._ids)
            chosen = np.unique(np.linspace(0, count - 1, min(count, SAMPLED_EPISODES)).astype(np.int64))
            behaviours = (
                Behaviour.of(self._job.episodes[at], options.rate_hz, options.clock, options.signals)
                for at in chosen.tolist()
            )
            self._scale = Scale.learn(behaviours)
        return replace(function, scale=self._scale)

    def _scale_note(self) -> dict[str, str]:
        return {SCALE: self._scale.to_text()} if self._scale.numbers else {}

    def is_done(self) -> bool:
        """Whether the earlier file has exactly these vectors, and the index that they would get."""
        held = self._held
        names = {self._name(position) for position in range(len(self._ids))}
        if held.store is None or names != held.names or not names:
            return False
        about = held.store.stats()
        return bool(about["index"] == self._job.index_kind(about["vectors"], about["dim"]))

    @property
    def held_names(self) -> set[tuple[str, str]]:
        """Id and content of the episodes whose vectors the earlier file has."""
        return self._held.names

    def _channel_note(self) -> dict[str, str]:
        """The channels of all vectors; an episode that was embedded from others is refused."""
        texts = {text: id_ for id_, text in self._channel_texts() if text}
        all_channels = [Channels.parse(text) for text in texts]
        for other in all_channels[1:]:
            if set(other.used) != set(all_channels[0].used):
                first, second = next(iter(texts.values())), texts[other.to_text()]
                fact = f"{first} was embedded from {', '.join(all_channels[0].used)}"
                raise DatasetError(
                    f"channel mismatch: {fact}, {second} from {', '.join(other.used)}",
                    hint="Name with signals= what all episodes have.",
                )
        names = tuple(dict.fromkeys(name for each in all_channels for name in each.names))
        return {CHANNELS: Channels(names, all_channels[0].used).to_text()} if names else {}

    def _channel_texts(self) -> Iterator[tuple[str, str]]:
        for position, path in self._parts.items():
            with VectorStore.open(path) as store:
                yield self._ids[position], str(store.notes.get(CHANNELS, ""))
        if self.reused and self._held.channels:
            yield "an episode embedded before", self._held.channels

    def _name(self, position: int) -> tuple[str, str]:
        return self._ids[position], self._contents[position]

    def _part(self, position: int) -> Path:
        name = dump_json(list(self._name(position)))
        return self._job.folder / f"{sha256_hex(name)[:40]}{SUFFIX}"

    def _is_whole(self, position: int) -> bool:
        path = self._part(position)
        try:
            with VectorStore.open(path) as store:
                return own_notes(store) == self._job.notes and not store.verify()
        except (WarpError, OSError):
            return False

    def _batches(self, dims: dict[int, str]) -> Iterator[Batch]:
        """The vectors of all episodes in order, some at a time."""
        vectors: list[Floats] = []
        rows: list[dict[str, Any]] = []
        size = 0
        for position, episode_id in enumerate(self._ids):
            found = self._vectors(position)
            if found is None:
                continue
            dims.setdefault(found.vectors.shape[1], episode_id)
            if len(dims) > 1:
                (one, first), (other, second) = list(dims.items())[:2]
                fact = f"vectors of {first} have {one} numbers, those of {second} have {other}"
                raise DatasetError(fact, hint="Name with signals= what all episodes have.")
            vectors.append(found.vectors)
            rows += found.rows
            size += found.vectors.nbytes
            if size >= _WRITTEN_BYTES:
                yield np.concatenate(vectors), rows
                vectors, rows, size = [], [], 0
        if vectors:
            yield np.concatenate(vectors), rows

    def _vectors(self, position: int) -> Embedded | None:
        if position in self._parts:
            with VectorStore.open(self._parts[position]) as store:
                return Embedded(store.get(store.ids), store.metadata(store.ids))
        return self._held.vectors(self._name(position))


def own_notes(store: VectorStore) -> dict[str, Any]:
    """Notes of a file that identify its job: all but the channels, which are known afterwards."""
    return {name: value for name, value in store.notes.items() if name not in (CHANNELS, SCALE)}


class _EarlierVectors:
    """The vectors of an earlier file that was made in the same way, by episode and content."""

    def __init__(self, store: VectorStore | None, job: EmbedJob) -> None:
        self.store: VectorStore | None = None
        self._ids: dict[tuple[str, str], list[int]] = {}
        self.channels = self.scale = ""
        if store is None or own_notes(store) != job.notes or store.metric != job.compared_by:
            return
        self.store = store
        self.channels, self.scale = str(store.notes.get(CHANNELS, "")), str(store.notes.get(SCALE, ""))
        ids = store.ids.tolist()
        for vector_id, row in zip(ids, store.metadata(ids, ["episode_id", "content"]), strict=True):
            name = (str(row.get("episode_id")), str(row.get("content")))
            self._ids.setdefault(name, []).append(vector_id)

    @property
    def names(self) -> set[tuple[str, str]]:
        """Id and content of every episode of the file."""
        return set(self._ids)

    def has(self, name: tuple[str, str]) -> bool:
        return name in self._ids

    def vectors(self, name: tuple[str, str]) -> Embedded | None:
        if self.store is None or name not in self._ids:
            return None
        return Embedded(self.store.get(self._ids[name]), self.store.metadata(self._ids[name]))


def embed_into_file(
    job: EmbedJob,
    path: Path,
    held: VectorStore | None,
    *,
    overwrite: bool,
    runner: Runner | None,
    progress: Progress | None,
) -> EmbedReport:
    """Embed episodes into a new vector file, or into one that replaces `held`, which is closed then.

    Vectors of `held` that were made in the same way are used again; if they were not, it is only replaced when asked.
    """
    try:
        if held is not None and own_notes(held) != job.notes and not overwrite:
            fact = "there is an index of that name already, and it holds other vectors"
            raise ConflictError(fact, path=path, hint="Choose another name, or overwrite it.")
        run = EmbedRun(job, held)
        if held is not None and run.is_done():
            about = held.stats()
            counts = (0, 0, len(run.held_names))
            return EmbedReport(str(path), about["vectors"], about["dim"], *counts, {}, index=about["index"])
        run.compute(runner, progress)
        count, dim, kind = run.write(path, overwrite=held is not None)
    finally:
        if held is not None:
            held.close()
    return EmbedReport(str(path), count, dim, run.computed, run.resumed, run.reused, run.without, index=kind)


def held_file(path: Path) -> VectorStore | None:
    """The vector file that lies at a path, if one does."""
    return VectorStore.open(path) if os.path.lexists(path) else None


def part_name(name: str) -> str:
    """The artifact that has the vectors of a published dataset."""
    return f"vectors-{name}"


def check_index_name(name: str) -> str:
    """A name for an index, or ValueError."""
    if not INDEX_NAME.fullmatch(name):
        raise ValueError(f"not a name for an index: {name!r}; use letters, digits, `_`, `-` and `.`")
    return name


def name_of(embedder: Embedder | str | Mapping[str, float]) -> str:
    """The default name of the vectors of an embedder."""
    if isinstance(embedder, Mapping):
        embedder = "-".join(sorted(embedder))
    found = embedder if isinstance(embedder, str) else getattr(embedder, "__name__", type(embedder).__name__)
    return check_index_name(re.sub(r"[^A-Za-z0-9_.-]", "_", str(found)).lstrip(".-") or "vectors")
