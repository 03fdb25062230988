"""The samples of a training set: a lazy description over any episodes."""

from __future__ import annotations

import io
import itertools
import operator
import os
import warnings
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.memory import RecycledArrays
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.bytekit.process.threads import ThreadPool, map_in_threads
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.collection.local import LocalDataset
from warpdata.episodes.salvage.live import live_episode
from warpdata.errors import BlobNotFoundError, DatasetError, WarpError, nearest, require_word, suggests
from warpdata.loading.alignment import Anchors, Int64s, matching_anchors
from warpdata.loading.batch import Batch, Sample, register_collate
from warpdata.loading.episode_reader import (
    DAMAGE,
    Copies,
    EpisodeReader,
    FieldOut,
    SampleBlock,
    Timings,
    named_error,
)
from warpdata.loading.field import (
    Field,
    FieldSchema,
    checked_seconds,
    find_schema,
    signal_named,
    unknown_signal,
)
from warpdata.loading.source import RowSource, Threads
from warpdata.loading.statistics import FieldStatistics, source_statistics
from warpdata.settings import Settings
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import ROLES
from warpdata.timeline.times import as_int, as_int_array, is_many

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

Edges = Literal["pad", "zero", "skip", "error"]
IDENTITY_VERSION = 1
SHORT_ID = 16
MOST_OPEN = 320
"""Episodes that stay open: more than the blocks in play at a time."""
_HELD_BYTES = 160 << 20
_TRIM_PARTS = 8
"""Memory of the open episodes is counted again when one in this many is new: counting looks at all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleTable:
    """Sample number -> episode and anchor. A run is consecutive anchors of one episode; memory grows with the runs."""

    episode: Int64s
    first_anchor: Int64s
    starts: Int64s
    """The number of the first sample of each run, and of all samples."""

    @classmethod
    def of_kept(cls, kept: Sequence[Int64s | int]) -> SampleTable:
        """From the anchors of each episode that are samples, or from their number if all of the first are."""
        runs: list[tuple[int, int, int]] = []
        for number, anchors in enumerate(kept):
            if isinstance(anchors, int):
                runs += [(number, 0, anchors)] if anchors else []
            elif len(anchors):
                cuts = np.concatenate([[0], np.flatnonzero(np.diff(anchors) != 1) + 1, [len(anchors)]])
                firsts, sizes = anchors[cuts[:-1]].tolist(), np.diff(cuts).tolist()
                runs += [(number, first, size) for first, size in zip(firsts, sizes, strict=True)]
        table = np.array(runs, np.int64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], np.concatenate([[0], np.cumsum(table[:, 2])]).astype(np.int64))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def locate(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """The episode and the anchor of each sample."""
        run = self.starts.searchsorted(samples, "right") - 1
        return self.episode[run], self.first_anchor[run] + samples - self.starts[run]

    def number_of(self, episode: int, anchor: int) -> int:
        """The number of the sample at an anchor; -1 if it is no sample."""
        for run in np.flatnonzero(self.episode == episode).tolist():
            inside = anchor - int(self.first_anchor[run])
            if 0 <= inside < int(self.starts[run + 1] - self.starts[run]):
                return int(self.starts[run]) + inside
        return -1

    def runs_before(self, samples: int) -> list[tuple[int, int, int]]:
        """(episode, first anchor, count) of the first samples, independent of how often the table was extended."""
        runs: list[tuple[int, int, int]] = []
        for run in range(len(self.episode)):
            count = min(int(self.starts[run + 1]), samples) - int(self.starts[run])
            if count <= 0:
                break
            episode, first = int(self.episode[run]), int(self.first_anchor[run])
            if runs and runs[-1][0] == episode and runs[-1][1] + runs[-1][2] == first:
                runs[-1] = (episode, runs[-1][1], runs[-1][2] + count)
            else:
                runs.append((episode, first, count))
        return runs

    def extend(self, anchors: Int64s, episode: int) -> SampleTable:
        """These samples, and after them some anchors of an episode."""
        more = SampleTable.of_kept([anchors])
        return SampleTable(
            np.concatenate([self.episode, more.episode + episode]),
            np.concatenate([self.first_anchor, more.first_anchor]),
            np.concatenate([self.starts, more.starts[1:] + self.starts[-1]]),
        )

    def save(self, path: Path) -> None:
        """Keep the table for next time; if the cache cannot be written it is counted again then."""
        sink = io.BytesIO()
        np.savez_compressed(sink, episode=self.episode, first_anchor=self.first_anchor, starts=self.starts)
        with suppress(OSError, WarpError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, sink.getvalue(), durable=False)

    @classmethod
    def load(cls, path: Path) -> SampleTable | None:
        """A table that was saved; None if it is missing or damaged."""
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
                table = cls(stored["episode"], stored["first_anchor"], stored["starts"])
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error):
            return None
        is_good = len(table.starts) == len(table.episode) + 1 == len(table.first_anchor) + 1
        return table if is_good and table.starts[0] == 0 and (np.diff(table.starts) > 0).all() else None


class GrowingRoot(EpisodesSource):
    """The episodes of a root in the order they were seen: finished ones, and those being recorded."""

    def __init__(self, dataset: LocalDataset, ids: Sequence[str] = ()) -> None:
        if not isinstance(dataset.folder, Path):
            raise ValueError("only a root on this machine can be followed")
        self._dataset = dataset
        self._ids = list(ids)
        self._finished: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look for new episodes; known ones keep their place."""
        self._dataset.refresh()
        self._finished = {name: position for position, name in enumerate(self._dataset.ids)}
        running = [Path(each.path).name for each in self._dataset.unfinished if each.is_live]
        self._ids += sorted({*self._finished, *running} - set(self._ids))

    @property
    def ids(self) -> Sequence[str]:
        """The id of every episode, in the order they were seen."""
        return self._ids

    def is_finished(self, position: int) -> bool:
        """Whether an episode will not grow any more."""
        return self._ids[position] in self._finished

    def open(self, position: int) -> Episode:
        """A finished episode, or the records so far of one that is being recorded."""
        name = self._ids[position]
        if name in self._finished:
            return self._dataset[self._finished[name]]
        live = live_episode(self._dataset.place(int(name))) if name.isdigit() else None  # type: ignore[arg-type]
        if live is None:
            raise BlobNotFoundError(f"episode {name!r} is gone, or not yet readable", path=self.name)
        return live

    @property
    def knows_signals(self) -> bool:
        """False: an episode that grows has more records each time."""
        return False

    @property
    def name(self) -> str:
        """The path of the root."""
        return str(self._dataset.root)

    def address(self) -> dict[str, Any] | None:
        """The root."""
        return self._dataset.source.address()

    def __reduce__(self) -> tuple[Any, ...]:
        return (GrowingRoot, (self._dataset, self._ids))


class Windows(RowSource):
    """All samples over some episodes, numbered: episodes in their order, anchors in time.

    `anchor` names a signal (or a role): a sample per record. `rate_hz` makes a grid per episode instead. `stride` keeps
    every n-th; `where` keeps the samples for which a SQL condition over signals and static items is true.
    `edges`: rows beyond an edge repeat the nearest record and are masked ("pad"), or all masked values are 0
    ("zero"), samples with such rows do not exist ("skip"), or are refused ("error"). A pause of a signal longer than
    `max_gap_s` is an edge; values older than `max_age_s` are masked.
    """

    @suggests
    def __init__(
        self,
        episodes: Episodes | Dataset | Sequence[Episode] | Episode,
        fields: Mapping[str, Field | str],
        *,
        anchor: str | None = None,
        rate_hz: float | None = None,
        stride: int = 1,
        where: str | None = None,
        edges: Edges = "pad",
        max_age_s: float | None = None,
        max_gap_s: float | None = None,
        follow: bool = False,
    ) -> None:
        require_word("edges", edges, get_args(Edges))
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields are {{name: wd.Field(…)}}, not {fields!r}")
        if not fields:
            raise ValueError("a sample has at least one field")
        self.episodes = _as_episodes(episodes, follow=follow)
        self._fields = {str(n): Field(each) if isinstance(each, str) else each for n, each in fields.items()}
        for name, option in self._fields.items():
            if not isinstance(option, Field):
                raise TypeError(f"field {name!r} is a wd.Field or the name of a signal, not {option!r}")
        self.anchors = Anchors(anchor, rate_hz, stride)
        self.where = where
        self.edges: Edges = edges
        self.max_age_s = None if max_age_s is None else checked_seconds("max_age_s", max_age_s)
        self.max_gap_s = None if max_gap_s is None else checked_seconds("max_gap_s", max_gap_s)
        self.follow = follow
        names = (name for option in self._fields.values() for name in option.signals)
        self._grid_signals = tuple(dict.fromkeys(names))
        """A grid of anchors is over the signals of these fields, also if only some of them are read."""
        self._unreadable: dict[str, str] = {}
        self._done: set[int] = set()
        self._next: dict[int, int] = {}
        """With follow: episodes of which all samples are known, and the first anchor that is not yet a sample."""
        self._damage: dict[int, str | None] = {}
        self._arrays, self._images = RecycledArrays(), RecycledArrays()
        self._begin()
        _ = self.schema  # unknown names are refused here
        if not follow:
            self._check_anchor()

    def _begin(self) -> None:
        self._lock = ThreadLock()
        self._open: OrderedDict[int, EpisodeReader] = OrderedDict()
        self._uncounted = 0

    # Identity.

    @property
    def fields(self) -> Mapping[str, Field]:
        """The field of every name."""
        return self._fields

    @property
    def unreadable(self) -> dict[str, str]:
        """Episodes that could not even be counted, and why; they have no samples."""
        return self._unreadable

    @cached_property
    def id(self) -> str:
        """The hash of everything the samples depend on; equal in every form one version of the data is stored in."""
        identity = {"v": IDENTITY_VERSION, "contents": self.contents, **self.describe()}
        return sha256_hex(dump_json(identity))[:32]

    @property
    def short_id(self) -> str:
        """The beginning of `id`, for messages."""
        return self.id[:SHORT_ID]

    @property
    def data_id(self) -> str:
        """The hash of the contents of the episodes: version, selection and edits."""
        return sha256_hex(dump_json(self.contents))[:32]

    @cached_property
    def contents(self) -> list[str]:
        """The identity of the contents of each episode."""
        # With a condition any signal may matter: it is not taken apart.
        anchor = [] if self.anchors.signal is None else [self.anchors.signal]
        named = None if self.where is not None else [*self._grid_signals, *anchor]
        contents, beside = self.episodes.contents, self.episodes.lane_contents(named)
        if beside is None:
            return contents
        return [f"{each} {lanes}" if lanes else each for each, lanes in zip(contents, beside, strict=True)]

    @cached_property
    def ids(self) -> list[str]:
        """The id of each episode."""
        return self.episodes.ids

    def plan(self) -> dict[str, Any]:
        """A description as JSON from which the windows can be made again; the episodes are named, not copied."""
        grows = {"follow": True} if self.follow else {}
        return {"id": self.id, "episodes": self.episodes.address(), **grows, **self.describe()}

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any], episodes: Episodes) -> Windows:
        """Windows of a plan, over the episodes it names; transforms are left out."""
        options = {name: plan[name] for name in ("where", "edges", "max_age_s", "max_gap_s")}
        fields = {name: Field.from_json(each) for name, each in plan["fields"].items()}
        anchors = {"anchor": plan["anchors"]["signal"], **plan["anchors"]}
        del anchors["signal"]
        made = cls(episodes, fields, **anchors, **options, follow=plan.get("follow", False))
        if not made.follow and made.id != plan["id"]:  # a growing root is identified by its first samples
            raise DatasetError(
                f"the episodes are not those of the run: windows {made.short_id} instead of {plan['id'][:SHORT_ID]}",
                hint="Open the version the state was taken with.",
            )
        return made

    def describe(self) -> dict[str, Any]:
        """The options as JSON: anchors, fields and edges, without the episodes."""
        return {
            "anchors": self.anchors.to_json(),
            "fields": {name: option.to_json() for name, option in sorted(self._fields.items())},
            "where": self.where,
            "edges": self.edges,
            "max_age_s": self.max_age_s,
            "max_gap_s": self.max_gap_s,
        }

    @cached_property
    def schema(self) -> dict[str, FieldSchema]:
        """Element type and shape of every field, from the first episode that has it."""
        known: dict[str, FieldSchema] = {}
        references = {option.relative_to for option in self._fields.values()} - {None}
        names: dict[str, None] = {}
        damage: WarpError | None = None
        for position in range(len(self.episodes)):
            if len(known) == len(self._fields) and not references:
                break
            try:
                episode = self.episodes[position]
                if not names:
                    names |= dict.fromkeys(episode.keys)
                references -= {name for name in references if signal_named(episode, str(name)) is not None}
                for name, option in self._fields.items():
                    schema = None if name in known else find_schema(name, option, episode)
                    if schema is not None:
                        known[name] = schema
            except DAMAGE as error:
                damage = damage or error
                self._note(position, error)
        for name, option in self._fields.items():
            if name not in known or option.relative_to in references:
                if not names:
                    raise DatasetError("there is no episode to make windows of", hint="Check the selection.")
                missing = option.signal if name not in known else str(option.relative_to)
                raise unknown_signal(name, missing, list(names), damage)
        return {name: known[name] for name in self._fields}

    def _check_anchor(self) -> None:
        """Raise if the anchor is neither a role nor a signal of any episode."""
        signal = self.anchors.signal
        if signal is None or signal in ROLES:
            return
        names: dict[str, None] = {}
        for position in range(len(self.episodes)):
            try:
                episode = self.episodes[position]
                if self.anchors.name_in(episode) is not None:
                    return
                names |= dict.fromkeys(episode.signals)
            except DAMAGE as error:
                self._note(position, error)
        if names:
            raise KeyError(
                f"anchor: no episode has a signal {signal!r}, and it is no role; there are "
                f"{', '.join(names)}.{nearest(signal, [*names, *ROLES])}"
            )

    # Which samples there are.

    @cached_property
    def table(self) -> SampleTable:
        """The episode and anchor of every sample; counted on first use."""
        if self.follow:
            return self._grow(SampleTable.of_kept([]))
        counts = self._counts_from_facts()
        if counts is not None:
            return SampleTable.of_kept(counts)
        # The identity may take reading everything: then counting again costs less.
        is_kept = self.where is not None or all(self.episodes.stated_contents())
        path = Path()
        if is_kept:
            folder = os.path.expanduser(Settings.from_env().cache_dir)
            path = Path(folder) / "windows" / f"{self.id}.samples.npz"
            table = SampleTable.load(path)
            if table is not None:
                return table
        workers = self.episodes.source.opens_at_once
        table = SampleTable.of_kept(map_in_threads(self._count, list(range(len(self.episodes))), workers))
        if is_kept and not self._unreadable:
            table.save(path)
        return table

    @property
    def keeps_all(self) -> bool:
        """Whether samples with rows beyond an edge are samples too."""
        return self.edges in ("pad", "zero")

    def _counts_from_facts(self) -> list[Int64s | int] | None:
        """Anchors per episode if the facts suffice to count them without opening any; else None."""
        name, source = self.anchors.signal, self.episodes.source
        is_known = source.knows_signals and source.has_facts and len(self.episodes) > 0
        if name is None or not self.keeps_all or self.where is not None or not is_known:
            return None
        known = [dict(each or ()) for each in self.episodes.facts.column("counts").to_pylist()]
        if not all(name in each for each in known):
            return None
        return [-(-int(each[name]) // self.anchors.stride) for each in known]

    def _count(self, position: int) -> Int64s:
        """The anchors of an episode that are samples."""
        try:
            reader = self.open_at(position)
        except DAMAGE as error:
            self._note(position, error)
            return np.empty(0, np.int64)
        return self._select(reader, np.arange(len(reader.times), dtype=np.int64))

    def _select(self, reader: EpisodeReader, anchors: Int64s) -> Int64s:
        """The anchors that are samples: by edges and condition."""
        if self.edges == "skip":
            anchors = anchors[reader.inside(anchors)]
        elif self.edges == "error" and (outside := reader.first_outside(anchors)) is not None:
            name, anchor = outside
            time = int(reader.times[anchor])
            raise DatasetError(
                f"episode {reader.episode.id!r}, time {time}: field {name!r} reaches beyond an edge",
                hint='Use edges="pad" or edges="skip", or a smaller window.',
            )
        if self.where is not None and len(anchors):
            times = reader.times[anchors]
            anchors = anchors[matching_anchors(reader.episode, times, self.where, lambda: self._names)]
        return anchors

    @cached_property
    def _names(self) -> set[str]:
        """Signals and static items of all readable episodes."""
        names: set[str] = set()
        for position in range(len(self.episodes)):
            with suppress(*DAMAGE):
                names.update(self.episodes[position].keys)
        return names

    def refresh(self) -> int:
        """With follow=True, look for finished records that were not there before; returns how many samples are new.

        Samples keep their numbers: new ones come after all known ones.
        """
        if not self.follow:
            raise ValueError("only windows with follow=True can grow")
        before = self.table
        assert isinstance(self.episodes.source, GrowingRoot)
        self.episodes.source.refresh()
        for name in ("ids", "contents", "id"):
            self.__dict__.pop(name, None)
        with self._lock:
            for position in [each for each in self._open if each not in self._done]:
                del self._open[position]
        self.__dict__["table"] = self._grow(before)
        return len(self.table) - len(before)

    def _grow(self, table: SampleTable) -> SampleTable:
        """Known samples, and after them those that have become final since."""
        assert isinstance(self.episodes.source, GrowingRoot)
        for position in range(len(self.episodes)):
            if position in self._done:
                continue
            is_finished = self.episodes.source.is_finished(position)
            try:
                reader = self.open_at(position)
            except DAMAGE as error:
                if is_finished:
                    self._note(position, error)
                    self._done.add(position)
                continue
            stop = len(reader.times) if is_finished else reader.settled()
            anchors = np.arange(self._next.get(position, 0), stop, dtype=np.int64)
            table = table.extend(self._select(reader, anchors), position)
            self._next[position] = stop
            if is_finished:
                self._done.add(position)
        return table

    def prefix_id(self, samples: int) -> str:
        """The identity of the first samples of windows that grow: it stays when more are added."""
        runs = [[self.contents[e], first, count] for e, first, count in self.table.runs_before(samples)]
        return sha256_hex(dump_json({"v": IDENTITY_VERSION, "runs": runs, **self.describe()}))[:32]

    def _note(self, position: int, error: WarpError) -> None:
        name = self.ids[position]
        if name not in self._unreadable:
            self._unreadable[name] = str(error)
            warnings.warn(f"episode {name!r} cannot be read and has no samples: {error}", stacklevel=3)

    def __len__(self) -> int:
        return len(self.table)

    def locate(self, samples: Any) -> tuple[Int64s, Int64s]:
        """The episode (by position) and the time of each sample; times are read, values are not."""
        numbers = _sample_numbers(samples)
        episodes, anchors = self.table.locate(numbers)
        times = np.empty(len(numbers), np.int64)
        for position in np.unique(episodes).tolist():
            here = episodes == position
            times[here] = self.open_at(position).times[anchors[here]]
        return episodes, times

    # Reading.

    def __getitem__(self, sample: int) -> Sample:
        number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        register_collate()  # a DataLoader over the windows collates single samples
        return self.read(np.array([number % len(self)]), defaultdict(float)).sample(0)

    def batch(self, samples: Any) -> Batch:
        """These samples as one batch, in the order given."""
        numbers = _sample_numbers(samples)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError(f"sample out of range (valid: 0..{len(self) - 1})")
        return self.read(numbers, defaultdict(float))

    def at(self, episode: int | str, ts_ns: int) -> Sample:
        """The sample at any time of an episode (by position or id); `sample_id` is -1 at a time that is no anchor."""
        if isinstance(episode, str):
            if episode not in self.ids:
                raise KeyError(f"no episode {episode!r}.{nearest(episode, self.ids)}")
            episode = self.ids.index(episode)
        if not -len(self.episodes) <= episode < len(self.episodes):
            raise IndexError(f"episode {episode} of {len(self.episodes)}")
        position, time = episode % len(self.episodes), as_int(ts_ns, "a time")
        reader = self.open_at(position)
        anchor = int(reader.times.searchsorted(time))
        is_anchor = anchor < len(reader.times) and int(reader.times[anchor]) == time
        number = self.table.number_of(position, anchor) if is_anchor else -1
        out = self._outputs(1, defaultdict(float))
        for name, field_reader in reader.fields.items():
            field_reader.read_at(np.array([time], np.int64), out[name])
        numbers = (np.array([each], np.int64) for each in (number, time, position))
        return self._finish(out, *numbers).sample(0)

    def read(self, samples: Int64s, timings: Timings, threads: Threads = None, block_rows: int = 1) -> Batch:
        """Samples as one batch: grouped by episode, one call per episode and field, into one buffer per field."""
        out = self._outputs(len(samples), timings)
        episodes, anchors = self.table.locate(samples)
        times = np.empty(len(samples), np.int64)
        order, each_anchor = np.argsort(episodes, kind="stable").tolist(), anchors.tolist()
        groups = [(e, list(own)) for e, own in itertools.groupby(order, episodes.tolist().__getitem__)]
        # Threads that read batches at the same time begin with different episodes: few wait for a decoder.
        first = int(samples[0]) % len(groups) if groups else 0
        groups = groups[first:] + groups[:first]

        def read_groups(some: list[tuple[int, list[int]]]) -> None:
            later: list[Callable[[], object]] = []
            copies: Copies = []
            for episode, at in some:
                here = [each_anchor[place] for place in at]
                try:
                    reader = self.open_at(episode)
                except WarpError as error:
                    raise named_error(error, f"episode {self.episodes.ids[episode]!r}") from None
                for anchor, place in zip(here, at, strict=True):
                    times[place] = reader.times[anchor]
                blocks = self._blocks(samples[at], anchors[at], episode, block_rows) if reader.cameras else []
                later += reader.read(here, at, out, blocks, copies)
            began = perf_counter()
            for target, values in copies:
                target[...] = values
            timings["copy"] += perf_counter() - began
            for read in later:
                read()

        if threads is None:
            read_groups(groups)
        else:
            pool, count = threads
            pool.share(read_groups, [groups[number::count] for number in range(count)])
        return self._finish(out, samples, times, episodes)

    def _blocks(self, samples: Int64s, anchors: Int64s, position: int, block_rows: int) -> list[SampleBlock]:
        """The blocks of samples of one episode; blocks of one sample are decoded together."""
        if block_rows == 1:
            return [SampleBlock(anchors.tobytes(), np.arange(len(anchors)), lambda: anchors)]

        def anchors_of(number: int) -> Int64s:
            first = number * block_rows
            episodes, inside = self.table.locate(np.arange(first, min(first + block_rows, len(self))))
            return np.asarray(inside[episodes == position])

        numbers = samples // block_rows
        return [
            SampleBlock(number, np.flatnonzero(numbers == number), partial(anchors_of, number))
            for number in np.unique(numbers).tolist()
        ]

    def _outputs(self, count: int, timings: Timings) -> dict[str, FieldOut]:
        return {name: FieldOut(schema, count, timings, self._arrays) for name, schema in self.schema.items()}

    def _finish(self, out: dict[str, FieldOut], samples: Int64s, times: Int64s, episodes: Int64s) -> Batch:
        """The arrays as a batch: a field without an axis of time loses it."""
        parts: list[dict[str, Any]] = [{}, {}, {}]
        for name, schema in self.schema.items():
            is_flat = not schema.has_axis and not schema.is_static
            for part, array in zip(parts, (out[name].values, out[name].mask, out[name].age_ns), strict=True):
                part[name] = array[:, 0] if is_flat else array
        values, mask, age_ns = parts
        batch = Batch(values, mask, age_ns, samples, times, episodes)
        if self.edges == "zero":
            batch.hide_with_zeros(batch)
        return batch

    def is_remote(self) -> bool:
        """Whether reading waits for a network, judged by the fields of the first episode."""
        signals = [signal_named(each, name) for each in self.episodes[:1] for name in self._grid_signals]
        return any(signal is not None and signal._is_far() for signal in signals)

    def prefetch(self, samples: Int64s, threads: ThreadPool, block_rows: int = 1) -> None:
        """Open the episodes of samples and bring their bytes into the cache, all episodes at the same time."""
        episodes, anchors = self.table.locate(samples)

        def bring(position: int) -> None:
            here = episodes == position
            blocks = self._blocks(samples[here], anchors[here], position, block_rows)
            self.open_at(position).prefetch(anchors[here], blocks)

        readers = {position: self._open.get(position) for position in np.unique(episodes).tolist()}
        threads.map(bring, [at for at, each in readers.items() if each is None or not each.is_in_place])

    def damage(self, samples: Int64s) -> dict[int, tuple[str, str]]:
        """Samples (by their place in the list) of damaged episodes; each episode is read and checked once."""
        damaged: dict[int, tuple[str, str]] = {}
        episodes = self.table.locate(samples)[0]
        for position in np.unique(episodes).tolist():
            reason = self.episode_damage(position)
            if reason is not None:
                places = np.flatnonzero(episodes == position).tolist()
                damaged |= dict.fromkeys(places, (self.ids[position], reason))
        return damaged

    def episode_damage(self, position: int) -> str | None:
        """Why an episode cannot be read; None if every byte that the fields may need is sound."""
        if position not in self._damage:
            try:
                self.open_at(position).check()
                self._damage[position] = None
            except DAMAGE as error:
                self._damage[position] = str(error)
        return self._damage[position]

    def origins(self, samples: Int64s) -> list[dict[str, Any]]:
        """Dataset, version, episode, time and blob of each sample."""
        found = []
        for position, time in zip(*(part.tolist() for part in self.locate(samples)), strict=True):
            origin = self.episodes.origin(position)
            found.append(
                {
                    "dataset": origin.dataset,
                    "version": origin.version,
                    "episode_id": self.ids[position],
                    "ts_ns": time,
                    "blob": origin.blob,
                    "content": self.contents[position],
                }
            )
        return found

    def open_at(self, position: int) -> EpisodeReader:
        """An episode ready to be read; the last ones used stay open."""
        reader = self._open.get(position)
        if reader is not None:
            with suppress(KeyError):  # another thread may have dropped it just now
                self._open.move_to_end(position)
            return reader
        age, gap = (None if each is None else round(each * 1e9) for each in (self.max_age_s, self.max_gap_s))
        reader = EpisodeReader(
            self.episodes[position], self.anchors, self._grid_signals, self.schema, age, gap, self._images
        )
        with self._lock:
            reader = self._open.setdefault(position, reader)
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            self._uncounted += 1
            if self._uncounted * _TRIM_PARTS >= len(self._open):
                self._uncounted = 0
                held = sum(each.held_bytes for each in self._open.values())
                while len(self._open) > 1 and held > _HELD_BYTES:
                    held -= self._open.popitem(last=False)[1].held_bytes
        return reader

    # Other windows.

    def over(self, episodes: Sequence[int]) -> Windows:
        """The same windows over some of the episodes, by position."""
        return self._with(self.episodes[list(episodes)], self.where)

    def holding(self, condition: str) -> Windows:
        """The same windows, of the samples alone for which a condition is true as well."""
        both = condition if self.where is None else f"({self.where}) and ({condition})"
        return self._with(self.episodes, both)

    def _with(self, episodes: Episodes, where: str | None) -> Windows:
        return Windows(
            episodes,
            self._fields,
            anchor=self.anchors.signal,
            rate_hz=self.anchors.rate_hz,
            stride=self.anchors.stride,
            where=where,
            edges=self.edges,
            max_age_s=self.max_age_s,
            max_gap_s=self.max_gap_s,
        )

    def only(self, names: Sequence[str]) -> Windows:
        """The same samples with some of the fields; nothing is counted again."""
        names = [names] if isinstance(names, str) else names
        for name in names:
            if name not in self._fields:
                raise KeyError(f"no field {name!r}.{nearest(str(name), self._fields)}")
        table = self.table
        made = copy(self)
        for name in ("id", "delivered"):
            made.__dict__.pop(name, None)
        made._fields = {name: self._fields[name] for name in names}
        made.__dict__["schema"] = {
            name: replace(self.schema[name], field=made._fields[name]) for name in names
        }
        made.__dict__["table"] = table
        return made

    def without_damage(self) -> Windows:
        """The same windows over the episodes that are sound; each of them is read and checked."""
        return self.over([e for e in range(len(self.episodes)) if self.episode_damage(e) is None])

    def labels(self, item: str) -> list[Any]:
        """The value of a static item of each episode."""
        facts = self.episodes.facts
        column = item if item in facts.column_names else f"static_{item}"
        if column not in facts.column_names:
            raise KeyError(f"no episode has a static item {item!r}.{nearest(item, facts.column_names)}")
        values: list[Any] = facts.column(column).to_pylist()
        return values

    def part_of(self, label: Any, item: str) -> Windows:
        """The windows over the episodes with a value of a static item."""
        return self.over([row for row, value in enumerate(self.labels(item)) if value == label])

    def statistics(
        self, names: Sequence[str] | None = None, *, progress: bool = False
    ) -> dict[str, FieldStatistics]:
        """Count, mean, std, min, max and quantiles of the valid values of fields, after their transforms.

        By default of all numbers that are no images. Kept under the id of the windows, so they are made once.
        `progress` shows the progress on a terminal.
        """
        if names is None:
            names = [
                name
                for name, schema in self.schema.items()
                if schema.dtype.kind in "fiub" and not schema.is_image and not schema.is_static
            ]
        names = [names] if isinstance(names, str) else list(names)
        return source_statistics([(self, None)], names, progress=progress)

    def __getstate__(self) -> dict[str, Any]:
        hidden = ("_lock", "_open", "_damage")
        return {name: each for name, each in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._damage = {}
        self._begin()

    def __repr__(self) -> str:
        return f"<Windows over {len(self.episodes)} episodes: {', '.join(self._fields)}>"


def _sample_numbers(samples: Any) -> Int64s:
    return as_int_array(samples if is_many(samples) else [samples], "a sample")


def _as_episodes(given: Any, *, follow: bool) -> Episodes:
    if follow and not isinstance(given, LocalDataset):
        raise TypeError(
            "follow=True is for a whole root of recordings (wd.open_recordings); choose with where="
        )
    if follow:
        return Episodes(GrowingRoot(given))
    if isinstance(given, Episodes):
        return given
    if isinstance(episodes := getattr(given, "episodes", None), Episodes):  # a Dataset
        return episodes
    if isinstance(given, Episode):
        return Episodes.of([given])
    if isinstance(given, Sequence) and all(isinstance(each, Episode) for each in given):
        return Episodes.of(list(given))
    raise TypeError(f"windows are over Episodes, a Dataset or a list of episodes, not {type(given).__name__}")
