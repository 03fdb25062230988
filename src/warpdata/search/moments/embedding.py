"""Vectors over many episodes: computed once for each, wherever the work is done, and written as one file.

The file is an index of trajectories (`trajectory_index`), so whatever asks those asks it. What is in it depends on the
episodes, the embedder and the options alone: the same bytes come out of one process, of many and of a cluster.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.system import available_bytes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import Called, Here, Runner, code_name
from warpdata.errors import ConflictError, DatasetError, NoStepsError, WarpError, nearest
from warpdata.search.file import content
from warpdata.search.file.rewrite import Batch, index_vectors, write_vectors
from warpdata.search.moments.behaviour import CHANNELS, Behaviour, Channels, episode_and_address
from warpdata.search.moments.embedders import (
    SAMPLED_EPISODES,
    BuiltIn,
    Embedder,
    Scale,
    WindowEmbedder,
    embedder_of,
)
from warpdata.search.moments.moments import Embedded, EmbedOptions, Floats, Moments
from warpdata.search.query.ann import has_faiss
from warpdata.search.store import VectorStore
from warpdata.timeline.episode import Episode

SCALE = "scale"
"""The note of a file with the scale of its numbers."""
Progress = Callable[[int, int], None]

IndexChoice = Literal["auto", "none", "hnsw", "ivf", "flat"]
INDEX_CHOICES: tuple[IndexChoice, ...] = get_args(IndexChoice)
SUFFIX = ".rvf"
INDEX_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_BUILDING_BYTES = 24
"""Memory for each number of the vectors while a graph is built over them: some copies of it, and the graph."""
_WRITTEN_BYTES = 64 << 20
"""Vectors that are handed on together."""


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
            moments = Moments(found, path, self.options, self.embedder).all()
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
        return "hnsw" if count >= content.WORTH_INDEXING and fits and has_faiss() else None

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
        """Write the file, in the order of the episodes; how many vectors, of how many numbers, and their index.

        An earlier file of this path is changed where it is: one new episode costs one episode.
        """
        dims: dict[int, str] = {}
        notes = self._job.notes | self._channel_note() | self._scale_note()
        held, positions = self._held, range(len(self._ids))
        if held.store is not None and held.store.stats()["path"] == os.path.realpath(path):
            dims[held.store.dim] = "an episode embedded before"
            wanted = {self._name(position) for position in positions}
            gone = [vector_id for name in held.names - wanted for vector_id in held.ids_of(name)]
            with VectorStore.open(path, mode="a") as store:
                for vectors, rows in self._batches(dims, sorted(self._parts)):
                    store.replace(gone, vectors, rows, notes)
                    gone = []
                store.delete(gone)
                kind = self._job.index_kind(len(store), store.dim)
                if kind is not None and kind != store.stats()["index"]:
                    store.build_index(kind)
                return len(store), store.dim, store.stats()["index"]
        count = write_vectors(
            path,
            self._batches(dims, positions),
            overwrite=overwrite,
            metric=self._job.compared_by,
            notes=notes,
        )
        kind = self._job.index_kind(count, next(iter(dims)))
        if kind is not None:
            index_vectors(path, kind)
        return count, next(iter(dims)), kind

    def _keep(self, position: int, found: Embedded) -> None:
        """A vector file of one episode, whole or not there: what a run that is stopped leaves behind."""
        self.computed += 1
        self._parts[position] = self._part(position)
        notes = self._job.notes | ({CHANNELS: found.channels.to_text()} if found.channels.names else {})
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

    def _batches(self, dims: dict[int, str], positions: Sequence[int]) -> Iterator[Batch]:
        """The vectors of these episodes in order, some at a time."""
        vectors: list[Floats] = []
        rows: list[dict[str, Any]] = []
        size = 0
        for position in positions:
            found = self._vectors(position)
            if found is None:
                continue
            dims.setdefault(found.vectors.shape[1], self._ids[position])
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

    def ids_of(self, name: tuple[str, str]) -> list[int]:
        return self._ids[name]

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
