"""Batches of windows for training: one order for any ranks and threads, one small state, nothing lost silently."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.bytekit.process.threads import CORES, MAX_PARALLEL, ReadAhead, ThreadPool
from warpdata.corpora.torch import torch_epochs
from warpdata.errors import SchemaMismatchError, nearest, suggests
from warpdata.loading.pace import NoLine, PaceLine
from warpdata.loading.ranks import auto_rank, rank_and_world
from warpdata.loading.windows.batch import Batch, as_tensors
from warpdata.loading.windows.faults import Verdicts
from warpdata.loading.windows.gathering import Together, gather, group_samples, hide_with_zeros
from warpdata.loading.windows.mixture import Chosen, Course, Mixture, MixtureCourse, PlainCourse, Shuffle
from warpdata.loading.windows.open_episode import DAMAGE
from warpdata.loading.windows.report import DATA_CHARS, LoaderReport, SampleOrigin, names_of, saved_state
from warpdata.loading.windows.statistics import FieldStatistics, Normalization, chosen_ways
from warpdata.loading.windows.windows import Windows
from warpdata.ordering.blocks import ShuffleQuality
from warpdata.ordering.epochs import EpochStream, LeftOut, Place, rank_slice
from warpdata.ordering.limits import MAX_POSITION, Tail, check_filled, checked_integer
from warpdata.ordering.splitmix import stream_key
from warpdata.stores.reliable import traffic

OnError = Literal["raise", "skip"]
Normalize = str | Mapping[str, str | None] | Normalization | None
SampleTransform = Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any] | None]

MAX_THREADS = 1024
READ_AHEAD_BYTES = 256 << 20
_AHEAD = 12
"""Batches whose bytes may be under way at the same time where they come over a network."""


@dataclass(frozen=True, slots=True)
class LoaderStep:
    """One global batch as a rank sees it."""

    position: int
    after: int
    """Where the epoch stands once all ranks have it."""
    settled: int
    """Where it stands once every worker has given as many batches."""
    chosen: Chosen
    """The samples of this rank."""
    repeated: NDArray[np.bool_]
    left_out: LeftOut = ()
    """Damaged episodes that samples would have been of."""


class Loader(EpochStream):
    """Batches of windows, or of a mixture of them, epoch after epoch; every iteration gives the rest of an epoch.

    `batch_size` is the batch of all ranks together: global batch t is the same samples in the same order for any
    number of ranks and threads, and rank r gives its slice of each. `progress` shows on a terminal how fast it goes,
    where bytes come from, and whether the loader or the consumer is slow.
    """

    @suggests
    def __init__(
        self,
        windows: Windows | Mixture,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int | str = "auto",
        world: int | str = "auto",
        threads: int | None = None,
        tail: Tail = "short",
        shuffle: Shuffle = True,
        normalize: Normalize = None,
        on_error: OnError = "raise",
        transform: SampleTransform | None = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        progress: bool = False,
    ) -> None:
        if not isinstance(windows, Windows | Mixture):
            raise TypeError(f"a loader is over wd.Windows or a wd.Mixture, not {type(windows).__name__}")
        self.windows = windows
        self.batch_size = checked_integer("batch_size", batch_size, MAX_POSITION, least=1)
        super().__init__(seed, epoch, *_rank(rank, world), tail)
        self.on_error: OnError = _one_of("on_error", on_error, get_args(OnError))
        self.threads = min(4, CORES) if threads is None else checked_integer("threads", threads, MAX_THREADS)
        self._shuffle: Shuffle = shuffle
        self._transform = transform
        self._read_ahead_bytes = read_ahead_bytes
        self._progress = progress
        self._traffic_before = traffic()
        self._skipped_before = (0, "")
        self._left_out: dict[str, str] = {}
        """Episodes that batches handed over so far were cut without; what is read ahead does not count yet."""
        self._course: Course = _course(windows, self.seed, shuffle, None)
        self._verdicts = Verdicts(self._course.sources)
        self._sample_bytes = sum(each.sample_bytes for each in self._course.sources[0].schema.values())
        self._report = LoaderReport()
        self.normalization = self._fitted(normalize)
        """How fields are normalised, to be kept in a checkpoint."""
        if on_error == "raise":
            self._verdicts.raise_uncounted()

    # The order.

    def __len__(self) -> int:
        """Steps of a whole epoch; with damaged episodes left out there may be fewer."""
        return self.steps_left(0)

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        return len(self._course)

    @property
    def global_batch(self) -> int:
        """Samples of a step of all ranks together."""
        return self.batch_size

    def quality(self) -> ShuffleQuality:
        """How far the order is from a uniform shuffle, as a number."""
        return self._course.quality(self.batch_size)

    def steps(self, place: Place, worker: int = 0, workers: int = 1) -> Iterator[LoaderStep]:  # type: ignore[override]
        """The steps of this rank from a position of an epoch on; of several workers each gives every n-th."""
        epoch, position = place
        while position < len(self._course):
            begun = position
            bounds = []
            for _ in range(workers):
                found = self._bounds(epoch, position)
                if found is None:
                    break
                bounds.append(found)
                position = found[1]
            if len(bounds) > worker:
                yield self._step(epoch, *bounds[worker], settled=position)
            if position == begun or len(bounds) < workers:
                return

    def _bounds(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Where the batch that begins at a position ends; None where there is no further batch."""
        total = len(self._course)
        if position >= total or (
            self.tail == "drop" and self.on_error == "raise" and total - position < self.batch_size
        ):
            return None
        if self.on_error == "raise":
            return position, min(position + self.batch_size, total)
        chosen, after = self._global_batch(epoch, position)
        is_short = len(chosen) < self.batch_size
        return None if not len(chosen) or (is_short and self.tail == "drop") else (position, after)

    def _step(self, epoch: int, position: int, after: int, *, settled: int) -> LoaderStep:
        chosen, repeated = self._filled(epoch, position)
        mine = rank_slice(len(chosen), self.rank, self.world)
        left_out: LeftOut = ()
        if self.on_error == "skip":
            left_out = self._verdicts.left_out(self._course.chosen(epoch, position, after))
        return LoaderStep(position, after, settled, chosen[mine], repeated[mine], left_out)

    def _filled(self, epoch: int, position: int) -> tuple[Chosen, NDArray[np.bool_]]:
        """The batch of all ranks that begins at a position, and which samples of it only fill it."""
        chosen = self._global_batch(epoch, position)[0]
        missing = self.batch_size - len(chosen)
        if missing and self.tail == "pad":
            check_filled(self.batch_size // self.world, len(self._course), self._sample_bytes)
            chosen = Chosen.joined([chosen, self._filling(epoch, missing)])
        else:
            missing = 0
        return chosen, np.arange(len(chosen)) >= len(chosen) - missing

    def _global_batch(self, epoch: int, position: int) -> tuple[Chosen, int]:
        """The samples of the batch that begins at a position, and where the next begins."""
        total, size = len(self._course), self.batch_size
        stop = min(position + size, total)
        chosen = self._course.chosen(epoch, position, stop)
        if self.on_error == "raise":
            return chosen, stop
        good = self._verdicts.readable(chosen)
        parts = [chosen[good]]
        found = int(good.sum())
        while found < size and stop < total:  # what is left out is made up for by what follows
            more = self._course.chosen(epoch, stop, min(stop + size - found, total))
            stop += len(more)
            good = self._verdicts.readable(more)
            parts.append(more[good])
            found += int(good.sum())
        return Chosen.joined(parts), stop

    def _filling(self, epoch: int, count: int) -> Chosen:
        """Samples from the beginning of the epoch, again and again, for the end of the last batch."""
        total, parts, position = len(self._course), [], 0
        while count:
            some = self._course.chosen(epoch, position, min(position + count, total))
            position = (position + len(some)) % total
            if self.on_error == "skip":
                some = some[self._verdicts.readable(some)]
            parts.append(some)
            count -= len(some)
        return Chosen.joined(parts)

    # Reading.

    def __iter__(self) -> Iterator[Batch]:
        if self._position and self._bounds(self._epoch, self._position) is None:  # all of it was handed over
            self._epoch, self._position = self._epoch + 1, 0
        epoch = self._epoch
        if not self._position:
            self._grow()
        with closing(PaceLine(f"epoch {epoch}", "samples") if self._progress else NoLine()) as line:
            waited = self._report.wait_s
            for step, batch in self.read_steps((epoch, self._position)):
                self._position = step.after
                self.note(step.left_out)
                wait_s, waited = self._report.wait_s - waited, self._report.wait_s
                line.add(batch.size, self._cost(step), wait_s, f" {step.after}/{len(self._course)}")
                yield batch
        self._epoch, self._position = epoch + 1, 0
        self._report.epochs += 1

    def _grow(self) -> None:
        """An epoch of windows that grow has the samples that are there when it begins."""
        if isinstance(self.windows, Windows) and self.windows.follow:
            self.windows.refresh()
            self._set_total(None)

    def _set_total(self, total: int | None) -> None:
        self._course = _course(self.windows, self.seed, self._shuffle, total)

    def read_steps(  # type: ignore[override]
        self, place: Place, worker: int = 0, workers: int = 1
    ) -> Iterator[tuple[LoaderStep, Batch]]:
        """Steps and their batches, read ahead by threads and handed over in order."""
        position = place[1]
        steps = self.steps(place, worker, workers)
        is_far = self.threads > 0 and any(each.is_remote() for each in self._course.sources)
        fetchers = ThreadPool(MAX_PARALLEL, "warp-bring")
        together = (fetchers, self.threads) if self.threads > 1 else None

        def work(step: LoaderStep, _: None) -> tuple[LoaderStep, Batch]:
            # Nothing else is to be done before the first batch is there: all threads read it.
            return step, self.read(step, together if step.position == position else None)

        ahead: ReadAhead[LoaderStep, None, tuple[LoaderStep, Batch]] = ReadAhead(
            lambda step: partial(self._fetch, fetchers, step) if is_far else _nothing,
            work,
            steps,
            workers=_AHEAD if is_far else self.threads,
            cost=self._cost,
            max_cost=self._read_ahead_bytes,
            cores=max(1, self.threads),
            first=1,
        )
        with closing(fetchers), closing(ahead):
            while True:
                began = time.perf_counter()
                found = next(ahead, None)
                if found is None:
                    return
                self._report.add(found[1].size, self._cost(found[0]), time.perf_counter() - began)
                yield found

    def _cost(self, step: LoaderStep) -> int:
        return len(step.chosen) * self._sample_bytes

    def _fetch(self, fetchers: ThreadPool, step: LoaderStep) -> None:
        """Open what a batch needs, and bring its bytes into the cache, all episodes at the same time."""
        tasks = [
            (source, part)
            for number, source in enumerate(self._course.sources)
            for part in group_samples(source, step.chosen.sample[step.chosen.source == number])
            if not source.is_near(part)
        ]
        fetchers.map(lambda task: task[0].prefetch(task[1]), tasks)

    def read(self, step: LoaderStep, together: Together = None) -> Batch:
        """Read the batch of a step: gather, transform and normalise the samples of each source, then join them."""
        chosen = step.chosen
        numbers = np.unique(chosen.source).tolist() or [0]
        parts = [self._source_batch(number, chosen[chosen.source == number], together) for number in numbers]
        batch = parts[0]
        if len(parts) > 1:
            self._check_alike(parts, numbers)
            places = np.argsort(np.concatenate([np.flatnonzero(chosen.source == n) for n in numbers]))
            batch = Batch.joined(parts, places)
        if isinstance(self.windows, Mixture):
            batch.source = chosen.source
        batch.position, batch.repeated = step.position, step.repeated if self.tail == "pad" else None
        if self._transform is not None:
            self._transform_samples(batch, chosen)
        return batch

    def _source_batch(self, number: int, chosen: Chosen, together: Together) -> Batch:
        """Samples of one source with its own transforms and edges, normalised."""
        source = self._course.sources[number]
        batch = gather(source, chosen.sample, together)
        is_changed = bool(self.normalization.ways)
        for name, field in source.fields.items():
            if field.transform is not None and len(chosen):
                is_changed = True
                rows = [
                    np.asarray(field.transform(value, self.rng(epoch, sample, number)))
                    for value, epoch, sample in zip(
                        batch[name], chosen.epoch.tolist(), chosen.sample.tolist(), strict=True
                    )
                ]
                batch[name] = np.stack(rows)
        for name in self.normalization.ways:
            batch[name] = self.normalization.apply(name, batch[name])
        if source.edges == "zero" and is_changed:
            hide_with_zeros(batch)
        return batch

    def _check_alike(self, parts: list[Batch], numbers: list[int]) -> None:
        """Raise unless the fields of all sources have one type and shape after their transforms."""
        first, names = parts[0], self._course.names
        for number, part in zip(numbers[1:], parts[1:], strict=True):
            for name, values in part.items():
                known = first[name]
                if (values.dtype, values.shape[1:]) != (known.dtype, known.shape[1:]):
                    raise SchemaMismatchError(
                        f"field {name!r} is {values.dtype}{list(values.shape[1:])} in source {names[number]!r}, "
                        f"but {known.dtype}{list(known.shape[1:])} in source {names[numbers[0]]!r}",
                        hint="Make the transforms of all sources return one type and shape.",
                    )

    def rng(self, epoch: int, sample_id: int, source: int = 0) -> np.random.Generator:
        """The numbers that transforms of a sample get in an epoch: always the same ones."""
        return sample_rng(self.seed, epoch, sample_id, source)

    def _transform_samples(self, batch: Batch, chosen: Chosen) -> None:
        assert self._transform is not None
        made: list[Mapping[str, Any]] = []
        for row in range(len(chosen)):
            sample = {name: each[row] for name, each in batch.items()}
            rng = self.rng(int(chosen.epoch[row]), int(chosen.sample[row]), int(chosen.source[row]))
            made.append(self._transform(sample, rng) or sample)
        for name in made[0] if made else ():
            batch[name] = np.stack([np.asarray(each[name]) for each in made])

    # Normalising.

    def _fitted(self, normalize: Normalize) -> Normalization:
        schema = self._course.sources[0].schema
        if isinstance(normalize, Normalization):
            normalize.check(schema)
            return normalize
        ways = chosen_ways(schema, normalize)
        return Normalization(ways, self._measured(list(ways)) if ways else {})

    def _measured(self, names: list[str]) -> dict[str, FieldStatistics]:
        """Statistics of what is read: without the episodes that are left out."""
        try:
            return self.windows.statistics(names, progress=self._progress)
        except DAMAGE:
            if self.on_error == "raise":
                raise
        return self._verdicts.good_only(self.windows).statistics(names, progress=self._progress)

    @property
    def statistics(self) -> dict[str, FieldStatistics]:
        """What the fields are normalised with; `normalization.to_json()` goes into a checkpoint."""
        return self.normalization.statistics

    def denormalize(self, name: str, values: Any) -> Any:
        """Values of a field (or a model's answers in its place) in the units they were recorded in."""
        fields = self._course.sources[0].fields
        if name not in fields:
            raise KeyError(f"no field {name!r}.{nearest(name, fields)}")
        return self.normalization.undo(name, values)

    # The state.

    def identity(self) -> dict[str, Any]:
        """Which samples of which data, in which order."""
        return {
            "windows": names_of(self._course.data_id, self._course.id),
            "order": self._course.fingerprint(),
        }

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place, with what was left out so far and, of windows that grow, how many samples there are."""
        epoch, position = place
        if position and not is_worker and self._bounds(epoch, position) is None:
            place = (epoch + 1, 0)
        state = super().state_at(place, is_worker=is_worker)
        count, digest = self._skipped()
        if count:
            state |= {"skipped": count, "skip": digest}
        if isinstance(self.windows, Windows) and self.windows.follow:
            state["samples"] = len(self._course)
        return state

    def _skipped(self) -> tuple[int, str]:
        """How many episodes are left out and a digest of which; what was left out before a resume counts too."""
        names = sorted({*self._verdicts.uncounted(), *self._left_out})
        if len(names) <= self._skipped_before[0]:  # those it was resumed with, or some of them again
            return self._skipped_before
        return len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]

    def note(self, left_out: LeftOut) -> None:
        """Count the episodes that a batch was cut without, now that it is handed over."""
        self._left_out |= dict(left_out)

    def _checked_place(self, state: Any) -> Place:
        """The place of a state of this loader; what it left out counts on."""
        if isinstance(state, Mapping):
            self._take_samples(state.get("samples"))
            self._check_windows(state.get("windows"))
        place = super()._checked_place(state)
        skipped = checked_integer("skipped", state.get("skipped", 0), MAX_POSITION)
        self._skipped_before, self._left_out = (skipped, str(state.get("skip", ""))), {}
        return place

    def _take_samples(self, samples: Any) -> None:
        """An epoch of windows that grow has the samples that were there when it began."""
        if samples is not None and isinstance(self.windows, Windows) and self.windows.follow:
            count = checked_integer("samples", samples, MAX_POSITION)
            if count > len(self.windows):
                self.windows.refresh()
            self._set_total(min(count, len(self.windows)))

    def _check_windows(self, windows: Any) -> None:
        """ValueError with the reason if a state is of other windows."""
        here, data = self.identity()["windows"], self._course.data_id[:DATA_CHARS]
        if isinstance(windows, str) and windows != here:
            if data and windows[:DATA_CHARS] == data:
                reason = "the same data with other fields, anchors or edges"
            else:
                known = f" (data {windows[:DATA_CHARS]}, here {data})" if data else ", or other fields"
                reason = f"another version of the data, another selection or other edits{known}"
            raise ValueError(f"the state was taken with windows {windows}, these are {here}: {reason}")

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state with what `warp why` and `load_state` need to know of the run; no data, no credentials."""
        write_file(path, dump_json({"state": self.state_dict(), "plan": self.plan()}))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save_state` wrote."""
        found = saved_state(path)
        self.load_state_dict(found.get("state", found))

    def plan(self) -> dict[str, Any]:
        """How this run's samples are found again without the program that trained: see `warp why`."""
        return {
            "v": 1,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "on_error": self.on_error,
            "tail": self.tail,
            "windows": self.windows.plan(),
        }

    # What happened.

    def why(
        self, step: int | None = None, *, epoch: int | None = None, positions: tuple[int, int] | None = None
    ) -> list[SampleOrigin]:
        """Where the samples of a step of an epoch (by default the current one) come from; no values are read.

        Steps count from the beginning of the epoch, in batches of this loader, all ranks together. `positions` names
        any stretch of the epoch instead. With on_error="skip" an episode that was not yet looked at is checked first.
        """
        epoch = self._epoch if epoch is None else epoch
        if (step is None) == (positions is None):
            raise ValueError("give a step, or positions=(start, stop)")
        if positions is not None:
            start, stop = positions
            if not 0 <= start <= stop <= len(self._course):
                raise IndexError(
                    f"positions {start} to {stop}: an epoch has those from 0 to {len(self._course)}"
                )
            chosen = self._course.chosen(epoch, start, stop)
        else:
            assert step is not None
            chosen = self._batch_of_step(epoch, step)
        return [origin for origin in self._origins(chosen)]

    def _batch_of_step(self, epoch: int, step: int) -> Chosen:
        if step < 0:
            raise IndexError(f"step {step}: steps count from 0")
        position = step * self.batch_size if self.on_error == "raise" else self._start_of_step(epoch, step)
        if self._bounds(epoch, position) is None:
            raise IndexError(f"step {step} of {len(self)} in an epoch")
        return self._filled(epoch, position)[0]

    def _start_of_step(self, epoch: int, step: int) -> int:
        """Where a step begins when what is damaged is left out: that depends on every step before it."""
        position = 0
        for _ in range(step):
            found = self._bounds(epoch, position)
            position = len(self._course) if found is None else found[1]
        return position

    def _origins(self, chosen: Chosen) -> Iterator[SampleOrigin]:
        located: dict[int, tuple[int, int, int]] = {}
        for number, source in enumerate(self._course.sources):
            here = np.flatnonzero(chosen.source == number)
            if len(here):
                episodes, times = source.locate(chosen.sample[here])
                located |= {
                    int(row): (number, int(e), int(t))
                    for row, e, t in zip(here, episodes, times, strict=True)
                }
        for row in range(len(chosen)):
            number, episode, time_ns = located[row]
            source = self._course.sources[number]
            origin = source.episodes.origin(episode)
            yield SampleOrigin(
                dataset=origin.dataset,
                version=origin.version,
                episode_id=source.ids[episode],
                ts_ns=time_ns,
                sample_id=int(chosen.sample[row]),
                epoch=int(chosen.epoch[row]),
                blob=origin.blob,
                content=source.contents[episode],
                source=self._course.names[number] or None,
            )

    def report(self) -> LoaderReport:
        """What was given, what was left out and why, and how long the consumer waited."""
        damaged = self._verdicts.uncounted() | self._left_out
        came = traffic().since(self._traffic_before)
        return replace(
            self._report,
            skipped=damaged,
            skipped_before=self._skipped_before[0],
            network_bytes=came.network,
            cache_bytes=came.cache,
        )

    def to_torch(self) -> Any:
        """A torch IterableDataset of the same batches as tensors, in the same order with any number of workers."""
        return torch_epochs(self)

    def to_tensors(self, step: Any, batch: Batch) -> Batch:  # noqa: ARG002
        """A batch as tensors."""
        return as_tensors(batch)

    def __repr__(self) -> str:
        return f"<Loader of {self.batch_size} over {self.windows!r}, epoch {self._epoch} at {self._position}>"

    def __getstate__(self) -> dict[str, Any]:
        grows = isinstance(self.windows, Windows) and self.windows.follow
        return {
            **self.__dict__,
            "_course": None,
            "_verdicts": None,
            "_total": len(self._course) if grows else None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._traffic_before = traffic()
        self._course = _course(self.windows, self.seed, self._shuffle, state["_total"])
        self._verdicts = Verdicts(self._course.sources)


def sample_rng(seed: int, epoch: int, sample_id: int, source: int = 0) -> np.random.Generator:
    """A generator that depends on seed, epoch and sample alone (and the source, in a mixture)."""
    parts = (seed, epoch, source) if source else (seed, epoch)
    key = np.array([stream_key(*parts), sample_id], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def _rank(rank: int | str, world: int | str) -> tuple[int, int]:
    if rank == "auto" or world == "auto":
        found = auto_rank()
        rank, world = (found[0] if rank == "auto" else rank), (found[1] if world == "auto" else world)
    return rank_and_world((rank, world))


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}.{nearest(str(value), known)}")
    return value


def _course(windows: Windows | Mixture, seed: int, shuffle: Shuffle, total: int | None) -> Course:
    if isinstance(windows, Mixture):
        return MixtureCourse(windows, seed, shuffle)
    return PlainCourse(windows, seed, shuffle, total)


def _nothing() -> None:
    """Bytes on this machine are not fetched beforehand."""
