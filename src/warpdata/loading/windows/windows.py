"""The samples of a training set: a lazy description over any episodes."""

from __future__ import annotations

import operator
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.local import LocalDataset
from warpdata.errors import DatasetError, WarpError, nearest, suggests
from warpdata.loading.windows.aligning import Int64s
from warpdata.loading.windows.anchors import Anchors, matching_anchors
from warpdata.loading.windows.batch import Batch, Sample, teach_collate
from warpdata.loading.windows.field import (
    Field,
    FieldSchema,
    _seconds,
    find_schema,
    signal_named,
    unknown_signal,
)
from warpdata.loading.windows.gathering import first_sample, gather, gather_at, read_one
from warpdata.loading.windows.growing_root import GrowingRoot
from warpdata.loading.windows.open_episode import DAMAGE, OpenEpisode, SampleGroup, SignalReader
from warpdata.loading.windows.statistics import FieldStatistics, window_statistics
from warpdata.loading.windows.table import SampleTable, keep_table, kept_table
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
"""Episodes that stay open: more than the blocks that are in play at a time."""
_HELD_BYTES = 160 << 20
_TRIM_PARTS = 8
"""What the open episodes hold is counted again when one in so many is new: counting looks at all of them."""


class Windows:
    """All samples over some episodes, numbered: episodes in their order, anchors in time.

    `anchor` names a signal (or a role): a sample per record. `rate_hz` makes a grid per episode instead. `stride` keeps
    every n-th; `where` keeps the samples for which a SQL condition over signals and static items holds.
    `edges`: rows beyond an edge repeat the nearest record and are masked ("pad"), or all that the mask hides is 0
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
        if edges not in get_args(Edges):
            raise ValueError(
                f"edges is {', '.join(get_args(Edges))}, not {edges!r}.{nearest(str(edges), get_args(Edges))}"
            )
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields are {{name: wd.Field(…)}}, not {fields!r}")
        if not fields:
            raise ValueError("a sample has at least one field")
        self.episodes = _followed(episodes) if follow else _as_episodes(episodes)
        self.fields = {
            str(name): Field(each) if isinstance(each, str) else each for name, each in fields.items()
        }
        for name, field in self.fields.items():
            if not isinstance(field, Field):
                raise TypeError(f"field {name!r} is a wd.Field or the name of a signal, not {field!r}")
        self.anchors = Anchors(anchor, rate_hz, stride)
        self.where = where
        self.edges: Edges = edges
        self.max_age_s = None if max_age_s is None else _seconds("max_age_s", max_age_s, positive=True)
        self.max_gap_s = None if max_gap_s is None else _seconds("max_gap_s", max_gap_s, positive=True)
        self.follow = follow
        self._grid_signals = tuple(dict.fromkeys(each.signal for each in self.fields.values()))
        """A grid of anchors is over the signals of these fields, also where only some of them are read."""
        self.unreadable: dict[str, str] = {}
        """Episodes that could not even be counted, and why; they have no samples."""
        self._done: set[int] = set()
        self._next: dict[int, int] = {}
        """With follow: episodes all of whose samples are known, and the first anchor that is not yet a sample."""
        self._begin()
        _ = self.schema  # unknown names are refused here
        if not follow:
            self._check_anchor()

    def _begin(self) -> None:
        self._lock = ThreadLock()
        self._open: OrderedDict[int, OpenEpisode] = OrderedDict()
        self._uncounted = 0

    # What they are.

    @cached_property
    def id(self) -> str:
        """The hash of everything the samples depend on; equal in every form one version of the data is stored in."""
        return sha256_hex(dump_json(self._identity()))[:32]

    @property
    def short_id(self) -> str:
        """The beginning of `id`, for messages."""
        return self.id[:SHORT_ID]

    @property
    def data_id(self) -> str:
        """The hash of what the episodes hold: which version, which of them, with which edits."""
        return sha256_hex(dump_json(self._contents))[:32]

    def _identity(self) -> dict[str, Any]:
        return {"v": IDENTITY_VERSION, "contents": self._contents, **self.describe()}

    @cached_property
    def _contents(self) -> list[str]:
        found = self.episodes.contents
        beside = self.episodes.lane_contents(self._named_signals())
        if beside is None:
            return found
        return [f"{each} {lanes}" if lanes else each for each, lanes in zip(found, beside, strict=True)]

    def _named_signals(self) -> list[str] | None:
        """The signals that samples depend on; None where any may be one: a condition is not taken apart."""
        if self.where is not None:
            return None
        return [*self._grid_signals, *([] if self.anchors.signal is None else [self.anchors.signal])]

    @property
    def contents(self) -> list[str]:
        """What each episode holds, in one word."""
        return self._contents

    @cached_property
    def ids(self) -> list[str]:
        """The id of each episode."""
        return self.episodes.ids

    def plan(self) -> dict[str, Any]:
        """How the windows are made again elsewhere, as JSON; the episodes are named, not copied."""
        grows = {"follow": True} if self.follow else {}
        return {"id": self.id, "episodes": self.episodes.address(), **grows, **self.describe()}

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any], episodes: Episodes) -> Windows:
        """Windows as a plan describes them, over the episodes it names; transforms are left out."""
        made = cls(
            episodes,
            {name: Field.from_json(each) for name, each in plan["fields"].items()},
            anchor=plan["anchors"]["signal"],
            rate_hz=plan["anchors"]["rate_hz"],
            stride=plan["anchors"]["stride"],
            where=plan["where"],
            edges=plan["edges"],
            max_age_s=plan["max_age_s"],
            max_gap_s=plan["max_gap_s"],
            follow=plan.get("follow", False),
        )
        if (
            not made.follow and made.id != plan["id"]
        ):  # what grows is told by its first samples, as the state has them
            raise DatasetError(
                f"the episodes are not those the run had: windows {made.short_id} instead of {plan['id'][:SHORT_ID]}",
                hint="Open the version the state was taken with.",
            )
        return made

    def describe(self) -> dict[str, Any]:
        """The options as JSON: anchors, fields and edges, without the episodes."""
        return {
            "anchors": self.anchors.to_json(),
            "fields": {name: field.to_json() for name, field in sorted(self.fields.items())},
            "where": self.where,
            "edges": self.edges,
            "max_age_s": self.max_age_s,
            "max_gap_s": self.max_gap_s,
        }

    @cached_property
    def schema(self) -> dict[str, FieldSchema]:
        """Element type and shape of every field, from the first episode that has it."""
        found: dict[str, FieldSchema] = {}
        first: Episode | None = None
        for position in range(len(self.episodes)):
            if len(found) == len(self.fields):
                break
            try:
                episode = self.episodes[position]
                first = first or episode
                for name, field in self.fields.items():
                    known = None if name in found else find_schema(name, field, episode)
                    if known is not None:
                        found[name] = known
            except DAMAGE as error:
                self._note(position, error)
        for name, field in self.fields.items():
            if name not in found:
                if first is None:
                    raise DatasetError(
                        "there is no episode to make windows of", hint="Check what was selected."
                    )
                raise unknown_signal(name, field, first)
        return {name: found[name] for name in self.fields}

    # Which samples there are.

    @cached_property
    def table(self) -> SampleTable:
        """Which sample is which anchor of which episode; counted when it is first needed."""
        return self._grown() if self.follow else self._counted(range(len(self.episodes)))

    def _check_anchor(self) -> None:
        """Raise if the anchor is neither a role nor a signal of any episode."""
        if self.anchors.signal is None or self.anchors.signal in ROLES:
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
            raise self.anchors.unknown(list(names))

    @cached_property
    def _names(self) -> set[str]:
        """Signals and static items of all readable episodes."""
        names: set[str] = set()
        for position in range(len(self.episodes)):
            with suppress(*DAMAGE):
                names.update(self.episodes[position].keys)
        return names

    def _counted(self, episodes: range) -> SampleTable:
        counts = self._counts_from_facts(episodes)
        if counts is not None:
            return SampleTable.of_counts(counts)
        is_kept = len(episodes) == len(self.episodes) and self._is_worth_keeping()
        folder = Settings.from_env().cache_dir if is_kept else ""
        found = kept_table(folder, self.id) if is_kept else None
        if found is None:
            workers = self.episodes.source.opens_at_once
            found = SampleTable.of_kept(map_in_threads(self._kept, list(episodes), workers))
            if is_kept and not self.unreadable:
                keep_table(folder, self.id, found)
        return found

    def _is_worth_keeping(self) -> bool:
        """Whether counting again costs more than knowing what was counted: the identity may take reading everything."""
        return self.where is not None or all(self.episodes.stated_contents())

    def refresh(self) -> int:
        """With follow=True, look for finished records that were not there before; returns how many samples are new.

        Samples keep their numbers: new ones come after all that were known.
        """
        if not self.follow:
            raise ValueError("only windows with follow=True can grow")
        before = len(self.table)
        assert isinstance(self.episodes.source, GrowingRoot)
        self.episodes.source.refresh()
        for name in ("ids", "_contents", "id"):
            self.__dict__.pop(name, None)
        with self._lock:
            for position in [each for each in self._open if each not in self._done]:
                del self._open[position]
        self.__dict__["table"] = self._grown()
        return len(self.table) - before

    def _grown(self) -> SampleTable:
        """The samples known so far, and after them those that have become fixed since."""
        table = self.__dict__.get("table") or SampleTable.of_counts([])
        assert isinstance(self.episodes.source, GrowingRoot)
        for position in range(len(self.episodes)):
            if position in self._done:
                continue
            is_finished = self.episodes.source.is_finished(position)
            try:
                found = self.open_at(position)
            except DAMAGE as error:
                if is_finished:
                    self._note(position, error)
                    self._done.add(position)
                continue
            stop = len(found.times) if is_finished else found.settled()
            anchors = self._chosen_anchors(
                found, np.arange(self._next.get(position, 0), stop, dtype=np.int64)
            )
            table = table.extended(SampleTable.of_kept([anchors]), position)
            self._next[position] = stop
            if is_finished:
                self._done.add(position)
        return table

    def prefix_id(self, samples: int) -> str:
        """The identity of the first samples of windows that grow: it stays when more are added."""
        runs = [
            [self._contents[episode], first, count]
            for episode, first, count in self.table.runs_before(samples)
        ]
        return sha256_hex(dump_json({"v": IDENTITY_VERSION, "runs": runs, **self.describe()}))[:32]

    @property
    def keeps_all(self) -> bool:
        """Whether samples with rows beyond an edge are samples too."""
        return self.edges in ("pad", "zero")

    def _counts_from_facts(self, episodes: range) -> list[int] | None:
        """Anchors per episode if the facts suffice to count them without opening any; else None."""
        name = self.anchors.signal
        if name is None or not self.keeps_all or self.where is not None:
            return None
        source = self.episodes.source
        if not source.knows_signals or not source.has_facts or not len(self.episodes):
            return None
        facts = self.episodes.facts
        known = [dict(each or ()) for each in facts.column("counts").to_pylist()][
            episodes.start : episodes.stop
        ]
        if not all(name in each for each in known):
            return None
        return [-(-int(each[name]) // self.anchors.stride) for each in known]

    def _kept(self, position: int) -> Int64s:
        """The anchors of an episode that are samples."""
        try:
            found = self.open_at(position)
        except DAMAGE as error:
            self._note(position, error)
            return np.empty(0, np.int64)
        return self._chosen_anchors(found, np.arange(len(found.times), dtype=np.int64))

    def _chosen_anchors(self, found: OpenEpisode, anchors: Int64s) -> Int64s:
        if self.edges == "skip":
            anchors = anchors[found.inside(anchors)]
        elif self.edges == "error":
            self._refuse_outside(found, anchors)
        if self.where is not None and len(anchors):
            times = found.times[anchors]
            anchors = anchors[matching_anchors(found.episode, times, self.where, lambda: self._names)]
        return anchors

    def _refuse_outside(self, found: OpenEpisode, anchors: Int64s) -> None:
        outside = found.first_outside(anchors)
        if outside is not None:
            name, anchor = outside
            raise DatasetError(
                f"episode {found.episode.id!r}, time {int(found.times[anchor])}: field {name!r} reaches beyond an edge",
                hint='Use edges="pad" or edges="skip", or a smaller window.',
            )

    def _note(self, position: int, error: WarpError) -> None:
        name = self.ids[position]
        if name not in self.unreadable:
            self.unreadable[name] = str(error)
            warnings.warn(f"episode {name!r} cannot be read and has no samples: {error}", stacklevel=3)

    def __len__(self) -> int:
        return len(self.table)

    def locate(self, samples: Any) -> tuple[Int64s, Int64s]:
        """The episode (by position) and the time of each sample; times are read, values are not."""
        numbers = _sample_numbers(samples)
        episodes, anchors = self.table.locate(numbers)
        times = np.empty(len(numbers), np.int64)
        for each in np.unique(episodes).tolist():
            chosen = episodes == each
            times[chosen] = self.open_at(each).times[anchors[chosen]]
        return episodes, times

    # Reading.

    def __getitem__(self, sample: int) -> Sample:
        number = operator.index(sample)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        teach_collate()  # a DataLoader over the windows collates single samples
        return read_one(self, number % len(self))

    def batch(self, samples: Any) -> Batch:
        """These samples as one batch, in the order given."""
        numbers = _sample_numbers(samples)
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < len(self):
            raise IndexError(f"sample out of range (valid: 0..{len(self) - 1})")
        return gather(self, numbers)

    def at(self, episode: int | str, ts_ns: int) -> Sample:
        """The sample at any time of an episode (by position or id); `sample_id` is -1 where that is no anchor."""
        position = self._position(episode)
        found = self.open_at(position)
        time = as_int(ts_ns, "a time")
        anchor = int(found.times.searchsorted(time))
        is_anchor = anchor < len(found.times) and int(found.times[anchor]) == time
        number = self.table.number_of(position, anchor) if is_anchor else -1
        return first_sample(gather_at(self, number, position, time))

    def _position(self, episode: int | str) -> int:
        if isinstance(episode, str):
            ids = self.ids
            if episode not in ids:
                raise KeyError(f"no episode {episode!r}.{nearest(episode, ids)}")
            return ids.index(episode)
        if not -len(self.episodes) <= episode < len(self.episodes):
            raise IndexError(f"episode {episode} of {len(self.episodes)}")
        return episode % len(self.episodes)

    def is_remote(self) -> bool:
        """Whether reading waits for a network, judged by the fields of the first episode."""
        if not len(self.episodes):
            return False
        signals = (signal_named(self.episodes[0], field.signal) for field in self.fields.values())
        return any(signal is not None and signal._is_far() for signal in signals)

    def is_near(self, group: SampleGroup) -> bool:
        """Whether an episode is open and nothing of it has to be fetched."""
        found = self._open.get(group.episode)
        return found is not None and found.is_near

    def prefetch(self, group: SampleGroup) -> None:
        """Open an episode and read what a batch needs of it, so that its bytes are in the cache."""
        for reader in self.open_at(group.episode).fields.values():
            if isinstance(reader, SignalReader):
                reader.bring(group.anchors)

    def _used(self, position: int) -> OpenEpisode | None:
        """An episode if it is open already; it is the one used last."""
        found = self._open.get(position)
        if found is not None:
            try:  # called for every episode of a batch: a context manager would cost more than all else
                self._open.move_to_end(position)
            except KeyError:  # another thread has dropped it just now
                return found
        return found

    def open_at(self, position: int) -> OpenEpisode:
        """An episode ready to be read; the last ones used stay open."""
        found = self._used(position)
        if found is not None:
            return found
        made = OpenEpisode(
            self.episodes[position],
            self.anchors,
            self._grid_signals,
            self.schema,
            None if self.max_age_s is None else round(self.max_age_s * 1e9),
            None if self.max_gap_s is None else round(self.max_gap_s * 1e9),
        )
        with self._lock:
            made = self._open.setdefault(position, made)
            self._trim()
        return made

    def _trim(self) -> None:
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        self._uncounted += 1
        if self._uncounted * _TRIM_PARTS < len(self._open):
            return
        self._uncounted = 0
        held = sum(each.held_bytes for each in self._open.values())
        while len(self._open) > 1 and held > _HELD_BYTES:
            held -= self._open.popitem(last=False)[1].held_bytes

    def over(self, episodes: Sequence[int]) -> Windows:
        """The same windows over some of the episodes, by position."""
        return self._remade(self.episodes[list(episodes)], self.where)

    def holding(self, condition: str) -> Windows:
        """The same windows, of the samples alone for which a condition holds as well."""
        both = condition if self.where is None else f"({self.where}) and ({condition})"
        return self._remade(self.episodes, both)

    def _remade(self, episodes: Episodes, where: str | None) -> Windows:
        anchors = self.anchors
        return Windows(
            episodes,
            self.fields,
            anchor=anchors.signal,
            rate_hz=anchors.rate_hz,
            stride=anchors.stride,
            where=where,
            edges=self.edges,
            max_age_s=self.max_age_s,
            max_gap_s=self.max_gap_s,
        )

    def only(self, names: Sequence[str]) -> Windows:
        """The same samples with some of the fields and no transforms; nothing is counted again."""
        names = [names] if isinstance(names, str) else names
        for name in names:
            if name not in self.fields:
                raise KeyError(f"no field {name!r}.{nearest(str(name), self.fields)}")
        made = copy(self)
        made.__dict__.pop("id", None)
        made.fields = {name: self.fields[name].without_transform() for name in names}
        made.__dict__["schema"] = {
            name: replace(self.schema[name], field=made.fields[name]) for name in names
        }
        made.__dict__["table"] = self.table
        return made

    def statistics(
        self, names: Sequence[str] | None = None, *, progress: bool = False
    ) -> dict[str, FieldStatistics]:
        """Count, mean, std, min, max and quantiles of the valid values of fields, before any transform.

        By default of all numbers that are no images. Kept under the id of the windows, so they are made once.
        `progress` shows on a terminal how far that is.
        """
        wanted = [
            n for n, s in self.schema.items() if s.dtype.kind in "fiub" and not s.is_image and not s.is_static
        ]
        return window_statistics(self, wanted if names is None else list(names), progress=progress)

    # Other processes.

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if name not in ("_lock", "_open")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        fields = ", ".join(self.fields)
        return f"<Windows over {len(self.episodes)} episodes: {fields}>"


def _sample_numbers(samples: Any) -> Int64s:
    return as_int_array(samples if is_many(samples) else [samples], "a sample")


def _followed(given: Any) -> Episodes:
    """Episodes that grow: a whole root of recordings."""
    if not isinstance(given, LocalDataset):
        raise TypeError(
            "follow=True is for a whole root of recordings (wd.open_recordings); choose with where="
        )
    return Episodes(GrowingRoot(given))


def _as_episodes(given: Any) -> Episodes:
    if isinstance(given, Episodes):
        return given
    if isinstance(found := getattr(given, "episodes", None), Episodes):  # a Dataset
        return found
    if isinstance(given, Episode):
        return Episodes.of([given])
    if isinstance(given, Sequence) and all(isinstance(each, Episode) for each in given):
        return Episodes.of(list(given))
    raise TypeError(f"windows are over Episodes, a Dataset or a list of episodes, not {type(given).__name__}")
