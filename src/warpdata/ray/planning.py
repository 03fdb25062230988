"""Rows that stand for episodes, and plans of reads, independent of Ray.

A row is a reference to a published episode, or the shard of a new one as bytes. A plan is made from the manifest and
the table `episodes` of one version, named by its hash, so that a retried task reads the same bytes. A task has names,
hashes and row numbers, never bytes of episodes. If a manifest stores a long list in parts, each task looks up the
hashes of its own rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from warpdata.catalog.build.episodes import EpisodeStore, StoredEpisode, one_episode, packed_bytes
from warpdata.catalog.dataset import Dataset, reopen_dataset
from warpdata.catalog.read.artifacts import Artifact
from warpdata.catalog.read.episodes import EPISODES_TABLE, PublishedSource
from warpdata.catalog.table import ShardPart, Table
from warpdata.episodes.collection.episodes import with_signals
from warpdata.episodes.collection.jobs import Called
from warpdata.episodes.record.recorder import Recorder
from warpdata.episodes.sources.shard_episode import episode_of_shard
from warpdata.errors import ConflictError, NoStepsError, WarpError, nearest, require_word
from warpdata.formats.manifest.model import EPISODE_KIND, PartedShards
from warpdata.formats.wshard.episode import WShardEpisode
from warpdata.formats.wshard.reader import ShardReader
from warpdata.ordering.epochs import TAILS, Tail, check_filled
from warpdata.sql.engine import matching_rows
from warpdata.timeline.episode import Episode

KEY, EPISODE = "episode_id", "episode"

_FIELDS = ("dataset", "catalog", "artifact", "member", "hash", "bytes")
_REFERENCE = pa.struct([(name, pa.int64() if name == "bytes" else pa.string()) for name in _FIELDS])
"""References: the version and its catalogs, the member, and the hash and size of its blob."""


def open(row: Mapping[str, Any] | bytes) -> Episode:  # noqa: A001 - wd.ray.open, as wd.open
    """The episode of a row, or of the value of its column `episode`; a published one is read lazily."""
    value = row.get(EPISODE, row) if isinstance(row, Mapping) else row
    if isinstance(value, bytes | bytearray | memoryview):
        return episode_of_shard(ShardReader.open(bytes(value)))
    source, member = _published(value)
    return source.open_member(member)


def row(
    episode: Episode | str | os.PathLike[str], episode_id: str | None = None, **columns: Any
) -> dict[str, Any]:
    """A row to publish, of an episode or the path of a recording; the same episode gives the same bytes."""
    opened = one_episode(episode)
    name = episode_id or opened.id
    if not name:
        raise ValueError("the episode has no id: give one with episode_id=")
    return {KEY: name, EPISODE: packed_bytes(opened, name), **columns}


def changed_row(
    change: Callable[[Episode], Any], given: Mapping[str, Any], *, replace: bool = False
) -> dict[str, Any]:
    """A row with what `change` made of its episode; the id and the other columns stay."""
    episode = open(given)
    try:
        made = Called(change).on_episode(episode)
    except WarpError as error:
        raise error from None  # Ray prints every cause with its traceback
    if isinstance(made, Mapping):
        taken = [] if replace or isinstance(made, Episode) else sorted(set(made) & set(episode.signals))
        if taken:
            raise ConflictError(
                f"episode {given[KEY]!r} has a signal {taken[0]!r} already",
                hint="Return it under another name, or pass replace=True.",
            )
        try:
            made = with_signals(episode, made)
        except ValueError as error:
            raise ValueError(f"episode {given[KEY]!r}: {error}") from None
    elif not isinstance(made, Recorder | WShardEpisode | str | os.PathLike):
        hint = "give an Episode, a recording (its recorder or path), or a dict of arrays by signal"
        raise TypeError(f"for episode {given[KEY]} there came a {type(made).__name__}: {hint}")
    return {**given, EPISODE: packed_bytes(one_episode(made), str(given[KEY]))}


def store_rows(
    rows: Iterable[Mapping[str, Any]], *, key: str, catalog: str, artifact: str, chunk_bytes: int
) -> list[StoredEpisode]:
    """Store the episodes of rows in a catalog; nothing names them yet."""
    stored = []
    with EpisodeStore(catalog, artifact, chunk_bytes=chunk_bytes) as store:
        for given in rows:
            for name in (key, EPISODE):
                if name not in given:
                    fact = f"the rows have no column {name!r} but {', '.join(given)}"
                    raise ValueError(f"{fact}.{nearest(name, given)}")
            episode_id, value = str("" if given[key] is None else given[key]), given[EPISODE]
            if not episode_id:
                raise ValueError(f"a row has no {key!r}")
            if isinstance(value, bytes | bytearray | memoryview):
                stored.append(store.store(episode_id, bytes(value)))
            else:
                stored.append(store.store_published(episode_id, *_published(value)))
    return stored


def _published(value: Any) -> tuple[PublishedSource, str]:
    if not isinstance(value, Mapping) or not set(_FIELDS) <= set(value):
        what = type(value).__name__
        hint = "rows come from wd.ray.read_episodes, wd.ray.map_episodes or wd.ray.row"
        raise TypeError(f"a {what} is no episode and no reference to one: {hint}")
    return source_of(value), value["member"]


def source_of(reference: Mapping[str, Any]) -> PublishedSource:
    """The episodes of the version that a reference names, opened once in a process."""
    recipe = {"catalogs": reference["catalog"].split(","), "name": reference["dataset"]}
    return reopen_dataset(json.dumps(recipe, sort_keys=True)).episodes_source(reference["artifact"])


TASK_BYTES = 64 << 20
"""Stored bytes that take about a second to read and decode."""

_SMALL_BYTES = 1 << 20
"""To use more processors, tasks may be as small as this."""

_PIECE_BYTES = 32 << 20
"""Windows that are handed on together."""

_OF_WINDOWS = (KEY, "start", "ts_ns")
"""The columns of windows beside those of signals."""

Block: TypeAlias = "pa.Table | dict[str, NDArray[Any]]"


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One piece of reading."""

    read: Callable[[], Iterable[Block]]
    rows: int | None
    """The number of its rows, if that is known before they are read."""
    size_bytes: int


def runs(sizes: NDArray[np.int64], parallelism: int) -> list[range]:
    """Cut things of these sizes, in their order, into runs of about a second; more of them for more processors."""
    if not len(sizes):
        return [range(0)]
    ends = np.cumsum(np.maximum(sizes, 1))
    total = int(ends[-1])
    count = max(-(-total // TASK_BYTES), min(parallelism, -(-total // _SMALL_BYTES)), 1)
    marks = np.arange(1, min(count, len(sizes)) + 1) * total / min(count, len(sizes))
    borders = [0, *np.unique(np.searchsorted(ends, marks - 0.5) + 1).tolist()]
    return [range(low, high) for low, high in pairwise(borders)]


class EpisodesPlan:
    """Episodes of a version, a row each: `episode_id`, `episode` (the reference), and the requested facts."""

    def __init__(
        self, name: str, rows: pa.Table, sizes: NDArray[np.int64], columns: Sequence[str] | None = None
    ) -> None:
        self.name, self.rows, self.sizes = name, rows, sizes
        self.columns = rows.column_names if columns is None else list(columns)
        self.schema = rows.select(self.columns).schema
        self.size_bytes = int(rows.nbytes)
        """Of the rows, not of the episodes."""

    def select(self, columns: Sequence[str]) -> EpisodesPlan:
        """The plan with fewer columns."""
        return EpisodesPlan(self.name, self.rows, self.sizes, columns)

    def where(self, condition: Any) -> EpisodesPlan:
        """The plan with fewer episodes."""
        numbers = pa.array(np.arange(len(self.rows)))
        try:
            kept = self.rows.drop_columns([EPISODE]).append_column("", numbers).filter(condition)
        except pa.ArrowInvalid:  # the condition names references: those must be complete
            kept = _complete(self.rows).append_column("", numbers).filter(condition)
        chosen = kept.column("").to_numpy()
        return EpisodesPlan(self.name, self.rows.take(chosen), self.sizes[chosen], self.columns)

    def tasks(self, parallelism: int) -> list[PlannedRead]:
        """Runs of episodes by their stored bytes."""
        parts = [_copy_rows(self.rows.select(self.columns), run) for run in runs(self.sizes, parallelism)]
        return [PlannedRead(partial(_read_rows, part), part.num_rows, int(part.nbytes)) for part in parts]


def _copy_rows(table: pa.Table, run: range) -> pa.Table:
    """A copy: a slice would travel with all the other rows."""
    return table.take(pa.array(run, pa.int64()))


def _read_rows(rows: pa.Table) -> list[pa.Table]:
    return [_complete(rows)]


def plan_episodes(
    dataset: Dataset, *, where: str | None, columns: Sequence[str], artifact: str | None
) -> EpisodesPlan:
    """The episodes of a version; only the columns that are needed of the table `episodes` are read."""
    for name in columns:
        if name in (KEY, EPISODE):
            raise ValueError(f"{name!r} is a column of every row: a fact of that name cannot stand beside it")
    facts = _facts(dataset, where, ("bytes", *columns), artifact)
    return _plan_facts(dataset, facts, columns)


def _plan_facts(dataset: Dataset, facts: pa.Table, columns: Sequence[str]) -> EpisodesPlan:
    """A plan of the episodes of these facts; blobs are looked up now unless that would read a long list."""
    known = facts.column("bytes").cast(pa.int64())
    base, count = recipe_of(dataset), len(facts)
    values = {
        "dataset": pa.repeat(base["name"], count),
        "catalog": pa.repeat(",".join(base["catalogs"]), count),
        "artifact": facts.column("artifact").cast(pa.string()).combine_chunks(),
        "member": facts.column("blob").cast(pa.string()).combine_chunks(),
        "hash": pa.nulls(count, pa.string()),
        "bytes": pa.nulls(count, pa.int64()),
    }
    references = pa.StructArray.from_arrays(
        [values[field.name] for field in _REFERENCE], fields=list(_REFERENCE)
    )
    artifacts = [dataset.artifact(name) for name in facts.column("artifact").unique().to_pylist()]
    if known.null_count or not any(isinstance(artifact.part.shards, PartedShards) for artifact in artifacts):
        references = _look_up(references, dataset.artifact)
    sizes = pc.max_element_wise(references.field("bytes"), known)
    rows = {KEY: facts.column("id").cast(pa.string()), EPISODE: references}
    rows |= {name: facts.column(name) for name in columns}
    return EpisodesPlan(f"{dataset.id}@{dataset.version[:12]}", pa.table(rows), sizes.to_numpy())


def _facts(dataset: Dataset, where: str | None, columns: Sequence[str], artifact: str | None) -> pa.Table:
    names = [name for name in dataset.artifacts if dataset.artifact(name).kind == EPISODE_KIND]
    if artifact is not None or not names:  # raises an error that lists the artifacts
        names = [dataset.episodes_source(artifact or "").artifact.name]
    table = dataset.table(EPISODES_TABLE) if EPISODES_TABLE in dataset.tables else None
    if table is not None and {"id", "artifact", "blob"} <= set(table.schema().names):
        view = table.select(list(dict.fromkeys(["id", "artifact", "blob", *columns])))
        view = view if where is None else view.filter(where)
        facts = pa.concat_tables([pa.Table.from_batches([], view.schema()), *view.row_groups()])
        return facts.filter(pc.is_in(facts.column("artifact"), pa.array(names)))
    # A version without that table: read the facts from each episode.
    parts = []
    for name in names:
        source = dataset.episodes_source(name)
        facts = source.facts()
        facts = facts.append_column("artifact", pa.array([name] * len(facts)))
        parts.append(facts.append_column("blob", pa.array(source.members)))
    facts = pa.concat_tables(parts, promote_options="permissive")
    for name in columns:
        if name not in facts.column_names:
            raise ValueError(f"episodes have no fact {name!r}.{nearest(name, facts.column_names)}")
    return facts if where is None else facts.take(pa.array(matching_rows(facts, where)))


def _look_up(references: pa.StructArray, artifact_named: Callable[[str], Artifact]) -> pa.StructArray:
    """The references with the hash and size of every blob, from the manifest."""
    values = {field.name: references.field(field.name) for field in _REFERENCE}
    members, blobs = values["member"].to_pylist(), np.empty(len(references), object)
    for name in values["artifact"].unique().to_pylist():
        rows = np.flatnonzero(pc.equal(values["artifact"], name))
        blobs[rows] = artifact_named(name).shards_of([members[row] for row in rows.tolist()])
    values["hash"] = pa.array([blob.hash for blob in blobs], pa.string())
    values["bytes"] = pa.array([blob.byte_size for blob in blobs], pa.int64())
    return pa.StructArray.from_arrays(list(values.values()), fields=list(_REFERENCE))


def _complete(rows: pa.Table) -> pa.Table:
    """Rows whose references name their blobs; those of a long list are looked up where the rows are read."""
    references = rows.column(EPISODE).combine_chunks() if EPISODE in rows.column_names and len(rows) else None
    if references is None or not references.field("hash").null_count:
        return rows
    first = references[0].as_py()
    complete = _look_up(references, lambda name: source_of({**first, "artifact": name}).artifact)
    return rows.set_column(rows.column_names.index(EPISODE), EPISODE, complete)


def recipe_of(dataset: Dataset) -> dict[str, Any]:
    """How other machines open this version; they have caches of their own."""
    return {key: dataset.recipe[key] for key in ("name", "catalogs")}


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Which steps make a row."""

    length: int
    stride: int
    tail: Tail = "drop"
    signals: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1:
            raise ValueError(f"windows have 1 step at least, move by 1, not {self.length} and {self.stride}")
        require_word("tail", self.tail, TAILS)

    def starts(self, steps: int) -> NDArray[np.int64]:
        """The first step of every window; unless the tail is dropped, the windows hold every step."""
        whole = np.arange(0, steps - self.length + 1, self.stride, dtype=np.int64)
        held = int(whole[-1]) + self.length if len(whole) else 0
        if self.tail == "drop" or held >= steps:
            return whole
        rest = int(whole[-1]) + self.stride if len(whole) else 0
        return np.append(whole, rest) if rest < steps else whole

    def blocks(self, episode_id: str, episode: Episode, wanted: Sequence[str] | None) -> Iterator[Block]:
        """The windows of an episode, so many at a time as memory allows; `wanted` are the columns to read."""
        steps = episode.steps
        names = self._names(episode)
        if wanted is not None:
            names = [name for name in names if {name, f"{name}.valid"} & set(wanted)]
        starts = self.starts(steps.length)
        row_bytes = sum(steps[name].meta.row_bytes for name in names)
        if self.tail == "pad" and len(starts):
            check_filled(self.length, steps.length, row_bytes)
        count = max(1, _PIECE_BYTES // max(1, row_bytes * self.length))
        for chosen in self._batches(starts, steps.length, count):
            low, high = int(chosen[0]), min(int(chosen[-1]) + self.length, steps.length)
            length = min(self.length, high - low) if self.tail == "short" else self.length
            at = chosen[:, None] + np.arange(length)
            inside = at < steps.length
            at = np.minimum(at, steps.length - 1) - low
            times = steps.times_ns[low:high][at]
            block: dict[str, Any] = {
                KEY: np.array([episode_id] * len(chosen)),
                "start": chosen,
                "ts_ns": times,
            }
            for name in names:
                signal = steps[name]
                block[name] = signal.rows(low, high)[at]
                block[f"{name}.valid"] = signal.mask[low:high][at] & inside
            yield block if wanted is None else {name: block[name] for name in wanted}

    def _batches(self, starts: NDArray[np.int64], steps: int, count: int) -> Iterator[NDArray[np.int64]]:
        whole = len(starts)
        if self.tail == "short" and whole and int(starts[-1]) + self.length > steps:
            whole -= 1
        yield from (starts[i : min(i + count, whole)] for i in range(0, whole, count))
        if whole < len(starts):
            yield starts[whole:]

    def _names(self, episode: Episode) -> list[str]:
        known = [name for name, signal in episode.signals.items() if not signal.meta.is_object]
        chosen = known if self.signals is None else list(self.signals)
        columns = {*_OF_WINDOWS, *(f"{name}.valid" for name in chosen)}
        for name in chosen:
            if name not in known:
                raise KeyError(f"no signal {name!r} of numbers in {episode.id}.{nearest(name, known)}")
            if name in columns:
                raise ValueError(
                    f"windows have a column {name!r} already: choose others than the signal of that name with signals="
                )
        return chosen


class WindowsPlan:
    """Windows of the episodes of a plan, a row each; a condition on tensors would have to read them."""

    schema = None
    """The columns are not known before anything is read."""

    def __init__(
        self,
        episodes: EpisodesPlan,
        windows: WindowShape,
        counts: NDArray[np.int64],
        wanted: Sequence[str] | None = None,
    ) -> None:
        self.episodes, self.windows, self.counts, self.wanted = episodes, windows, counts, wanted
        self.name = episodes.name
        self.size_bytes = int(episodes.sizes.sum())

    def select(self, columns: Sequence[str]) -> WindowsPlan:
        """The plan with fewer signals: the others are not read."""
        return WindowsPlan(self.episodes, self.windows, self.counts, tuple(columns))

    def tasks(self, parallelism: int) -> list[PlannedRead]:
        """Runs of whole episodes."""
        rows, sizes = self.episodes.rows.select([KEY, EPISODE]), self.episodes.sizes
        return [
            PlannedRead(
                partial(_read_windows, _copy_rows(rows, run), self.windows, self.wanted),
                int(self.counts[run.start : run.stop].sum()),
                int(sizes[run.start : run.stop].sum()),
            )
            for run in runs(sizes, parallelism)
        ]


def plan_windows(
    dataset: Dataset, windows: WindowShape, *, where: str | None, artifact: str | None
) -> WindowsPlan:
    """Windows of the episodes of a version; how many follows from the lengths in the table."""
    facts = _facts(dataset, where, ("bytes", "length"), artifact)
    episodes = _plan_facts(dataset, facts, ())
    lengths = facts.column("length").to_pylist()
    for episode_id, length in zip(facts.column("id").to_pylist(), lengths, strict=True):
        if length is None:
            hint = 'Leave it out (where="length is not null"), or read episodes and choose steps with steps_at().'
            raise NoStepsError(f"episode {episode_id} has no steps to make windows of", hint=hint)
    counts = np.array([len(windows.starts(length)) for length in lengths], np.int64)
    return WindowsPlan(episodes, windows, counts)


def _read_windows(rows: pa.Table, windows: WindowShape, wanted: Sequence[str] | None) -> Iterator[Block]:
    for row in rows.to_pylist():
        yield from windows.blocks(row[KEY], open(row), wanted)


class TablePlan:
    """The rows of a view of a table."""

    def __init__(self, view: Table) -> None:
        self.view = view
        self.name = f"{view.dataset.id}@{view.dataset.version[:12]}.{view.name}"
        self.schema = view.schema()
        self.size_bytes = view.part.byte_size

    def select(self, columns: Sequence[str]) -> TablePlan:
        """The plan with fewer columns."""
        return TablePlan(self.view.select(columns))

    def where(self, condition: Any) -> TablePlan:
        """The plan with fewer rows; row groups that cannot hold any are not read."""
        return TablePlan(self.view.filter(condition))

    def tasks(self, parallelism: int) -> list[PlannedRead]:
        """Runs of files, and parts of large ones; row groups are not counted here."""
        view, shards = self.view, self.view.part.shards
        parts: list[ShardPart] = []
        for number, shard in enumerate(shards):
            shares = max(1, shard.byte_size // TASK_BYTES)
            parts += [(number, share, shares) for share in range(shares)]
        sizes = np.array([shards[number].byte_size // shares for number, _, shares in parts], np.int64)
        recipe = json.dumps(recipe_of(view.dataset), sort_keys=True)
        chosen = (view.name, view.columns, view.predicate, view.expression)
        tasks = []
        for run in runs(sizes, parallelism):
            own = [parts[at] for at in run]
            is_known = not view.is_filtered and all(shares == 1 for _, _, shares in own)
            rows = sum(shards[number].row_count for number, _, _ in own) if is_known else None
            size = int(sizes[run.start : run.stop].sum())
            tasks.append(PlannedRead(partial(_read_table, recipe, chosen, own), rows, size))
        return tasks


Plan: TypeAlias = EpisodesPlan | WindowsPlan | TablePlan
"""A read of rows: `select` columns, `where` an Arrow expression holds, and the `tasks` it is cut into."""


def _read_table(recipe: str, chosen: tuple[Any, ...], parts: Sequence[ShardPart]) -> Iterator[pa.Table]:
    view = Table(reopen_dataset(recipe), *chosen)
    yield pa.Table.from_batches([], view.schema())  # so that there are columns even without rows
    yield from view.row_groups(parts)
