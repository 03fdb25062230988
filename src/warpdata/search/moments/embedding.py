"""Vectors over many episodes: computed once for each, wherever the work is done, and written as one file.

The file is an index of trajectories, which searches of those read. A new file depends on the episodes, the embedder and
the options alone: the same bytes come out of one process, of many and of a cluster.
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
from warpdata.errors import ConflictError, DatasetError, NoStepsError, WarpError, require_word
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
from warpdata.search.moments.moments import Embedded, EmbedOptions, EpisodeMoments, Floats
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
    """The published dataset the episodes are of; else each has an address of its own."""

    def __call__(self, position: int) -> Embedded | str:
        """The vectors of an episode, or why it has none."""
        episode = self._episode(position)
        found, path = episode_and_address(episode)
        path = path if self.dataset is None else f"{self.dataset}#{found.id}"
        try:
            moments = EpisodeMoments(found, path, self.options, self.embedder).all()
        except NoStepsError:
            return "it was not recorded by step: give a rate or a clock"
        if isinstance(moments, str):
            return moments
        return moments._replace(rows=[{**row, "content": self.contents[position]} for row in moments.rows])

    def _episode(self, position: int) -> Episode:
        """The episode that was there: a root that is recorded into may have been listed again with more of them."""
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
        require_word("index", self.index, INDEX_CHOICES)

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
        if isinstance(self.embedder, Mapping) or self.embedder == "motion":
            raise ValueError(
                f"the embedder {self.embedder!r} is one of windows: give window_s= and per='window'"
            )
        return embedder_of(self.embedder)

    @cached_property
    def notes(self) -> dict[str, Any]:
        """Notes of the file: vectors of a file with other notes are others."""
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
        """The metric: as given, that of the embedder, or cosine."""
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


def own_notes(store: VectorStore) -> dict[str, Any]:
    """Notes of a file that identify its job: all but the channels and the scale, which are known afterwards."""
    return {name: value for name, value in store.notes.items() if name not in (CHANNELS, SCALE)}


class EmbedRun:
    """One run of a job: vectors that are there already, those that are computed, and the file that comes of it."""

    def __init__(self, job: EmbedJob, held: VectorStore | None) -> None:
        self._job = job
        self._names = list(zip(job.episodes.ids, job.episodes.contents, strict=True))
        """Id and content of each episode."""
        is_same = held is not None and own_notes(held) == job.notes and held.metric == job.compared_by
        self._store = held if is_same else None
        self._held: dict[tuple[str, str], list[int]] = {}
        """Vectors of the earlier file by id and content of their episode."""
        notes: dict[str, Any] = {}
        if self._store is not None:
            notes, ids = self._store.notes, self._store.ids.tolist()
            for vector_id, row in zip(ids, self._store.metadata(ids, ["episode_id", "content"]), strict=True):
                name = (str(row.get("episode_id")), str(row.get("content")))
                self._held.setdefault(name, []).append(vector_id)
        self._channels, self._scale = str(notes.get(CHANNELS, "")), Scale.parse(notes.get(SCALE))
        self._parts: dict[int, Path] = {}
        self.without: dict[str, str] = {}
        self.computed = self.resumed = self.reused = 0

    def is_done(self) -> bool:
        """Whether the earlier file has exactly these vectors, and the index that they would get."""
        if self._store is None or set(self._names) != set(self._held) or not self._names:
            return False
        about = self._store.stats()
        self.reused = len(self._held)
        return bool(about["index"] == self._job.index_kind(about["vectors"], about["dim"]))

    def compute(self, runner: Runner | None, progress: Progress | None) -> None:
        """Embed the episodes of which there are no vectors yet."""
        job, total, missing = self._job, len(self._names), []
        function = self._function()
        job.folder.mkdir(parents=True, exist_ok=True)
        self.reused = 0
        for position, name in enumerate(self._names):
            if name in self._held:
                self.reused += 1
            elif self._is_whole(self._part(position)):
                self.resumed += 1
                self._parts[position] = self._part(position)
            else:
                missing.append(position)
        report = progress or (lambda _done, _total: None)
        report(done := total - len(missing), total)
        ids, contents = [name[0] for name in self._names], [name[1] for name in self._names]
        task = EmbedTask(job.episodes, ids, contents, Called(function), job.options, job.dataset)
        for position, made in (runner or Here()).run(task, missing):
            if isinstance(made, str):
                self.without[ids[position]] = made
            else:
                self._keep(position, made)
            report(done := done + 1, total)
        if not (self._parts or self.reused):
            reasons = sorted(set(self.without.values())) or ["there are no episodes"]
            raise DatasetError(f"no episode of {job.source} can be embedded: {'; '.join(reasons)}")

    def write(self, path: Path, *, overwrite: bool) -> tuple[int, int, str | None]:
        """Write the file, in the order of the episodes; how many vectors, of how many numbers, and their index.

        An earlier file is changed where it is, or in a copy at `path`: one new episode costs one episode.
        """
        dims: dict[int, str] = {}
        notes = self._job.notes | self._channel_note()
        notes |= {SCALE: self._scale.to_text()} if self._scale.numbers else {}
        if self._store is None:
            options: dict[str, Any] = {"metric": self._job.compared_by, "overwrite": overwrite}
            count = write_vectors(path, self._batches(dims), notes=notes, **options)
            kind = self._job.index_kind(count, next(iter(dims)))
            if kind is not None:
                index_vectors(path, kind)
            return count, next(iter(dims)), kind
        if is_copy := self._store.stats()["path"] != os.path.realpath(path):
            self._store.copy_to(path)
        dims[self._store.dim] = "an episode embedded before"
        dropped = set(self._held) - set(self._names)
        gone = [vector_id for name in dropped for vector_id in self._held[name]]
        with VectorStore.open(path, mode="a") as store:
            for vectors, rows in self._batches(dims):
                store.replace(gone, vectors, rows, notes)
                gone = []
            store.delete(gone)
            kind, about = self._job.index_kind(len(store), store.dim), store.stats()
            if kind is not None and kind != about["index"]:
                store.build_index(kind)
            elif is_copy and about["index"] and about["late_bytes"] > content.MAX_TAIL_BYTES:
                store.compact()  # first queries of a remote file read partitions, and what came behind them
            return len(store), store.dim, store.stats()["index"]

    def _keep(self, position: int, made: Embedded) -> None:
        """A vector file of one episode, whole or not there: what a run that is stopped leaves behind."""
        self.computed += 1
        path = self._parts[position] = self._part(position)
        notes = self._job.notes | ({CHANNELS: made.channels.to_text()} if made.channels.names else {})
        options: dict[str, Any] = {"metric": self._job.compared_by, "overwrite": True, "durable": False}
        write_vectors(path, [(made.vectors, made.rows)], notes=notes, **options)

    def _function(self) -> Embedder:
        """The embedder, with the scale of the earlier vectors or one that is learned from the set."""
        function = self._job.function
        if not isinstance(function, WindowEmbedder):
            return function
        if not self._scale.numbers:
            options, count = self._job.options, len(self._names)
            chosen = np.unique(np.linspace(0, count - 1, min(count, SAMPLED_EPISODES)).astype(np.int64))
            behaviours = (
                Behaviour.of(self._job.episodes[at], options.rate_hz, options.clock, options.signals)
                for at in chosen.tolist()
            )
            self._scale = Scale.learn(behaviours)
        return replace(function, scale=self._scale)

    def _channel_note(self) -> dict[str, str]:
        """The channels of all vectors; an episode that was embedded from others is refused."""
        texts: dict[str, str] = {}
        for position, path in self._parts.items():
            with VectorStore.open(path) as store:
                texts[str(store.notes.get(CHANNELS, ""))] = self._names[position][0]
        if self.reused:
            texts[self._channels] = "an episode embedded before"
        texts.pop("", None)
        channels = [Channels.parse(text) for text in texts]
        for other in channels[1:]:
            if set(other.used) != set(channels[0].used):
                first, second = next(iter(texts.values())), texts[other.to_text()]
                fact = f"{first} was embedded from {', '.join(channels[0].used)}"
                raise DatasetError(
                    f"channel mismatch: {fact}, {second} from {', '.join(other.used)}",
                    hint="Name with signals= what all episodes have.",
                )
        names = tuple(dict.fromkeys(name for each in channels for name in each.names))
        return {CHANNELS: Channels(names, channels[0].used).to_text()} if names else {}

    def _part(self, position: int) -> Path:
        """The file of one episode; vectors of another scale are others."""
        name = dump_json([*self._names[position], self._scale.to_text()])
        return self._job.folder / f"{sha256_hex(name)[:40]}{SUFFIX}"

    def _is_whole(self, path: Path) -> bool:
        try:
            with VectorStore.open(path) as store:
                return own_notes(store) == self._job.notes and not store.verify()
        except (WarpError, OSError):
            return False

    def _batches(self, dims: dict[int, str]) -> Iterator[Batch]:
        """The new vectors in the order of their episodes, some at a time."""
        vectors: list[Floats] = []
        rows: list[dict[str, Any]] = []
        for position, part in sorted(self._parts.items()):
            with VectorStore.open(part) as store:
                vectors.append(store.get(store.ids))
                rows += store.metadata(store.ids)
            dims.setdefault(vectors[-1].shape[1], self._names[position][0])
            if len(dims) > 1:
                (one, first), (other, second) = list(dims.items())[:2]
                fact = f"vectors of {first} have {one} numbers, those of {second} have {other}"
                raise DatasetError(fact, hint="Name with signals= what all episodes have.")
            if sum(each.nbytes for each in vectors) >= _WRITTEN_BYTES:
                yield np.concatenate(vectors), rows
                vectors, rows = [], []
        if vectors:
            yield np.concatenate(vectors), rows


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

    Vectors of `held` that were made in the same way are used again; others are only replaced with `overwrite`.
    """
    try:
        if held is not None and own_notes(held) != job.notes and not overwrite:
            fact = "there is an index of that name already, and it holds other vectors"
            raise ConflictError(fact, path=path, hint="Choose another name, or overwrite it.")
        run = EmbedRun(job, held)
        if held is not None and run.is_done():
            about = held.stats()
            return EmbedReport(
                str(path), about["vectors"], about["dim"], 0, 0, run.reused, {}, index=about["index"]
            )
        run.compute(runner, progress)
        count, dim, kind = run.write(path, overwrite=held is not None)
    finally:
        if held is not None:
            held.close()
    return EmbedReport(str(path), count, dim, run.computed, run.resumed, run.reused, run.without, index=kind)


def held_file(path: Path) -> VectorStore | None:
    """The vector file at a path, if there is one."""
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
