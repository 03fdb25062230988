"""Batches for training: one order for any ranks and threads, one small state, nothing lost silently."""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.bytekit.process.forks import cached_property
from warpdata.bytekit.process.threads import CORES, MAX_PARALLEL, ReadAhead, ThreadPool
from warpdata.errors import (
    CorruptLayoutError,
    DatasetError,
    FormatError,
    nearest,
    require_integer,
    require_word,
    suggests,
)
from warpdata.loading.batch import Batch, as_tensors
from warpdata.loading.episode_reader import DAMAGE, Timings
from warpdata.loading.mixture import Chosen, Mixture, SampleOrder, Shuffle, as_source
from warpdata.loading.pace import PaceLine
from warpdata.loading.ranks import auto_rank, rank_and_world
from warpdata.loading.source import RowSource, Threads, sample_rng
from warpdata.loading.statistics import (
    FieldStatistics,
    Normalization,
    Normalize,
    choose_ways,
    relative_options,
    source_statistics,
)
from warpdata.loading.windows import Windows
from warpdata.ordering.blocks import ShuffleQuality, stream_key
from warpdata.ordering.epochs import (
    MAX_POSITION,
    EpochStream,
    LeftOut,
    Place,
    Step,
    Tail,
    check_filled,
    rank_slice,
)
from warpdata.ordering.torch import torch_epochs
from warpdata.stores.blobstore import traffic

if TYPE_CHECKING:
    from warpdata.corpora.source import FixedOrderSource

OnError = Literal["raise", "skip"]
NormalizeOption = str | Normalize | Mapping[str, str | Normalize | None] | Normalization | None
SampleTransform = Callable[[dict[str, Any], np.random.Generator], Mapping[str, Any] | None]
BatchTransform = Callable[[Batch, np.random.Generator], Batch | None]

MAX_THREADS = 1024
READ_AHEAD_BYTES = 256 << 20
_AHEAD = 12
"""Batches whose bytes may be under way at the same time if they come over a network."""
_BATCH_STREAM = 7
_WORK = ("decode", "scale", "copy", "transform")
_DATA_CHARS, _NAME_CHARS = 6, 16


class LoaderStep(NamedTuple):
    """One global batch as a rank sees it; the first fields are those of Step."""

    start: int
    after: int
    settled: int
    left_out: LeftOut
    epoch: int
    first: int
    """The position of the first sample of this rank."""
    chosen: Chosen
    """The samples of this rank."""
    repeated: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where one sample comes from."""

    dataset: str
    version: str | None
    """The hash of the published version; None for data that is not published."""
    episode_id: str
    ts_ns: int
    sample_id: int
    epoch: int
    blob: str | None
    """The hash of the published blob that holds the episode."""
    content: str
    """The identity of the contents of the episode, the same in every form it is stored in."""
    source: str | None = None
    """Of a mixture, the name of the source."""

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


@dataclass(slots=True)
class LoaderReport:
    """Counts since the loader was made, of this rank; `skipped` is the same on every rank."""

    batches: int = 0
    samples: int = 0
    epochs: int = 0
    bytes: int = 0
    """Bytes of the delivered arrays."""
    elapsed_s: float = 0.0
    """Time from the beginning of each pass to its last batch so far."""
    wait_s: float = 0.0
    """How long the consumer waited for batches."""
    decode_s: float = 0.0
    """Time of all threads for reading and decoding values."""
    scale_s: float = 0.0
    """Time of all threads for cropping, scaling and converting images."""
    copy_s: float = 0.0
    """Time of all threads for copying values that need no decoding."""
    transform_s: float = 0.0
    """Time of all threads for transforms, normalising and joining sources."""
    network_bytes: int = 0
    """Bytes from a network meanwhile, of everything this process read."""
    cache_bytes: int = 0
    """Bytes from the cache meanwhile."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Episodes that were left out, each with the reason."""
    skipped_before: int = 0
    """How many episodes had been left out in the state that this loader continued."""

    def shares(self) -> dict[str, float]:
        """The share of each kind of work in the time of all threads; `wait` is the consumer's share of waiting."""
        work = {name: getattr(self, f"{name}_s") for name in _WORK}
        whole = sum(work.values()) or 1.0
        wait = self.wait_s / self.elapsed_s if self.elapsed_s else 0.0
        return {**{name: seconds / whole for name, seconds in work.items()}, "wait": wait}

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return asdict(self)


class Loader(EpochStream):
    """Batches of windows, of a corpus or of a mixture, epoch after epoch; every iteration is the rest of an epoch.

    `batch_size` is the batch of all ranks together: global batch t is the same samples in the same order for any
    number of ranks and threads, and rank r gives its slice of each. `transform(sample, rng)` changes single samples,
    `batch_transform(batch, rng)` whole batches, both with random numbers that depend on the place alone. `progress`
    shows throughput on a terminal, and whether the loader or the consumer is slow.
    """

    @suggests
    def __init__(
        self,
        windows: RowSource | Mixture | FixedOrderSource,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int | str = "auto",
        world: int | str = "auto",
        threads: int | None = None,
        tail: Tail = "short",
        shuffle: Shuffle = True,
        normalize: NormalizeOption = None,
        normalize_by: str | None = "source",
        on_error: OnError = "raise",
        transform: SampleTransform | None = None,
        batch_transform: BatchTransform | None = None,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        progress: bool = False,
    ) -> None:
        self.windows = windows if isinstance(windows, Mixture) else as_source(windows)
        self.batch_size = require_integer("batch_size", batch_size, MAX_POSITION, least=1)
        known = auto_rank() if "auto" in (rank, world) else (0, 1)
        pair = (known[0] if rank == "auto" else rank, known[1] if world == "auto" else world)
        super().__init__(seed, epoch, *rank_and_world(pair), tail)
        require_word("on_error", on_error, get_args(OnError))
        self.on_error: OnError = on_error
        self.threads = min(4, CORES) if threads is None else require_integer("threads", threads, MAX_THREADS)
        self._shuffle: Shuffle = shuffle
        self._transform = transform
        self._batch_transform = batch_transform
        self._read_ahead_bytes = read_ahead_bytes
        self._progress = progress
        self._traffic_before = traffic()
        self._skipped_before = (0, "")
        self._left_out: dict[str, str] = {}
        """Episodes that delivered batches were cut without; batches read ahead do not count yet."""
        self._order = SampleOrder(self.windows, self.seed, shuffle)
        self._report = LoaderReport()
        self._timings: Timings = defaultdict(float)
        self.normalization = self._fit(normalize, normalize_by)
        """How fields are normalised, for a checkpoint."""
        if on_error == "raise":
            for source in self._order.sources:
                _ = len(source)
            for name, why in self._uncounted().items():
                raise DatasetError(
                    f"episode {name!r} cannot be read: {why}",
                    hint='Leave it out with where(), or pass on_error="skip" to count and report it.',
                )

    # The order.

    def __len__(self) -> int:
        """Steps of a whole epoch; with damaged episodes left out there may be fewer."""
        return self.steps_left(0)

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        return len(self._order)

    @property
    def global_batch(self) -> int:
        """Samples of a step of all ranks together."""
        return self.batch_size

    def quality(self) -> ShuffleQuality:
        """How far the order is from a uniform shuffle, as a number."""
        return self._order.quality(self.batch_size)

    def batch_end(self, epoch: int, position: int) -> int | None:
        """The position after the global batch that begins at a position; None if there is no further batch."""
        if self.on_error == "raise" or position >= self.total:
            return super().batch_end(epoch, position)
        chosen, after = self._sound_batch(epoch, position)
        is_short = len(chosen) < self.batch_size
        return None if not len(chosen) or (is_short and self.tail == "drop") else after

    def steps(self, place: Place, worker: int = 0, workers: int = 1) -> Iterator[Any]:
        """The steps of this rank from a place on; of several workers each takes every n-th."""
        epoch = place[0]
        for step in super().steps(place, worker, workers):
            chosen, repeated = self._fill(epoch, step.start)
            mine = rank_slice(len(chosen), self.rank, self.world)
            left_out: LeftOut = ()
            if self.on_error == "skip":
                damaged = self._damage(self._order.chosen(epoch, step.start, step.after))
                left_out = tuple(sorted(set(damaged.values())))
            first = step.start + mine.start
            yield LoaderStep(*step[:3], left_out, epoch, first, chosen[mine], repeated[mine])

    def _fill(self, epoch: int, position: int) -> tuple[Chosen, NDArray[np.bool_]]:
        """The batch of all ranks that begins at a position, and which samples of it only fill it."""
        chosen = self._sound_batch(epoch, position)[0]
        missing = self.batch_size - len(chosen) if self.tail == "pad" else 0
        if missing:
            sample_bytes = max(source.sample_bytes for source in self._order.sources)
            check_filled(self.batch_size // self.world, self.total, sample_bytes)
            parts, at = [chosen], 0
            while missing:  # from the beginning of the epoch, repeatedly
                more = self._order.chosen(epoch, at, min(at + missing, self.total))
                at = (at + len(more)) % self.total
                parts.append(more[self._is_sound(more)])
                missing -= len(parts[-1])
            filled = len(chosen)
            chosen = Chosen.join(parts)
            return chosen, np.arange(len(chosen)) >= filled
        return chosen, np.zeros(len(chosen), np.bool_)

    def _sound_batch(self, epoch: int, position: int) -> tuple[Chosen, int]:
        """The samples of the batch that begins at a position, and where the next begins."""
        size, stop = self.batch_size, min(position + self.batch_size, self.total)
        chosen = self._order.chosen(epoch, position, stop)
        if self.on_error == "raise":
            return chosen, stop
        parts = [chosen[self._is_sound(chosen)]]
        count = len(parts[0])
        while count < size and stop < self.total:  # damaged samples are replaced by the following ones
            more = self._order.chosen(epoch, stop, min(stop + size - count, self.total))
            stop += len(more)
            parts.append(more[self._is_sound(more)])
            count += len(parts[-1])
        return Chosen.join(parts), stop

    def _damage(self, chosen: Chosen) -> dict[int, tuple[str, str]]:
        """Samples of damaged episodes by their place, with the episode and the reason."""
        damaged: dict[int, tuple[str, str]] = {}
        for number, source in enumerate(self._order.sources):
            here = np.flatnonzero(chosen.source == number)
            if len(here):
                damaged |= {int(here[p]): why for p, why in source.damage(chosen.sample[here]).items()}
        return damaged

    def _is_sound(self, chosen: Chosen) -> NDArray[np.bool_]:
        good = np.ones(len(chosen), np.bool_)
        if self.on_error == "skip":
            good[list(self._damage(chosen))] = False
        return good

    def _uncounted(self) -> dict[str, str]:
        """Episodes without known samples, each with the reason."""
        return {name: why for source in self._order.sources for name, why in source.unreadable.items()}

    # Reading.

    def __iter__(self) -> Iterator[Batch]:
        self.close()
        if self._position and self.batch_end(self._epoch, self._position) is None:  # all of it was delivered
            self._epoch, self._position = self._epoch + 1, 0
        epoch, waited = self._epoch, self._report.wait_s
        if not self._position and isinstance(self.windows, Windows) and self.windows.follow:
            self.windows.refresh()  # an epoch has the samples that are there when it begins
            self._order = SampleOrder(self.windows, self.seed, self._shuffle)
        with closing(PaceLine(f"epoch {epoch}", "samples", show=self._progress)) as line:
            try:
                while (batch := self.next_step()) is not None:
                    wait_s, waited = self._report.wait_s - waited, self._report.wait_s
                    line.add(batch.size, self._cost(batch.size), wait_s, f" {self._position}/{self.total}")
                    yield batch
            finally:
                self.close()
        self._epoch, self._position = epoch + 1, 0
        self._report.epochs += 1

    def read_steps(
        self, place: Place, worker: int = 0, workers: int = 1
    ) -> Generator[tuple[Any, Batch], None, None]:
        """Steps and their batches, read ahead by threads and delivered in order."""
        is_far = self.threads > 0 and any(source.is_remote() for source in self._order.sources)
        workers_pool, fetchers = self._pools
        together = (workers_pool, self.threads) if self.threads > 1 else None

        def fetch(step: LoaderStep) -> None:
            for number, source in enumerate(self._order.sources):
                mine = step.chosen.sample[step.chosen.source == number]
                source.prefetch(mine, fetchers, self._order.block_rows(number))

        def work(step: LoaderStep, _: None) -> tuple[LoaderStep, Batch]:
            # All threads read the first batch: there is nothing else to do yet.
            return step, self.read(step, together if step.start == place[1] else None)

        ahead: ReadAhead[LoaderStep, None, tuple[LoaderStep, Batch]] = ReadAhead(
            lambda step: partial(fetch, step) if is_far else (lambda: None),
            work,
            self.steps(place, worker, workers),
            workers=_AHEAD if is_far else self.threads,
            cost=lambda step: self._cost(len(step.chosen)),
            max_cost=self._read_ahead_bytes,
            cores=max(1, self.threads),
            first=1,
            pool=workers_pool,
        )
        with closing(ahead):
            before = time.perf_counter()
            while True:
                began = time.perf_counter()
                pair = next(ahead, None)
                if pair is None:
                    return
                report, size = self._report, pair[1].size
                report.batches, report.samples = report.batches + 1, report.samples + size
                report.bytes += self._cost(size)
                now = time.perf_counter()
                report.wait_s, report.elapsed_s = report.wait_s + now - began, report.elapsed_s + now - before
                before = now
                yield pair

    @cached_property
    def _pools(self) -> tuple[ThreadPool, ThreadPool]:
        """Threads that work, and that fetch; kept for all epochs, because new threads take new memory."""
        return ThreadPool(max(1, self.threads), "warp-work"), ThreadPool(MAX_PARALLEL, "warp-bring")

    def _cost(self, samples: int) -> int:
        return samples * max(source.sample_bytes for source in self._order.sources)

    def read(self, step: LoaderStep, threads: Threads = None) -> Batch:
        """Read the batch of a step: read, transform and normalise the samples of each source, then join them."""
        chosen = step.chosen
        timings: Timings = defaultdict(float)
        numbers = np.unique(chosen.source).tolist() or [0]
        parts: list[Batch] = [Batch()] * len(numbers)
        # Threads that read batches at the same time begin with different sources: few wait for a decoder.
        first = step.start // self.batch_size
        for place in range(first, first + len(numbers)):
            number = numbers[place % len(numbers)]
            source, own = self._order.sources[number], chosen[chosen.source == number]
            batch = source.read(own.sample, timings, threads, self._order.block_rows(number))
            began = time.perf_counter()
            is_changed = source.transform(batch, own.epoch, self.seed, number)
            is_changed |= self._normalize(batch, number)
            if is_changed:
                batch.hide_with_zeros(
                    name for name in batch if source.edges == "zero" or source.schema[name].is_ragged
                )
            timings["transform"] += time.perf_counter() - began
            parts[place % len(numbers)] = batch
        began = time.perf_counter()
        batch = self.windows.join(parts, chosen.source) if isinstance(self.windows, Mixture) else parts[0]
        batch.position, batch.repeated = step.start, step.repeated if self.tail == "pad" else None
        if self._transform is not None:
            self._transform_samples(batch, chosen)
        timings["transform"] += time.perf_counter() - began
        for kind, seconds in timings.items():
            self._timings[kind] += seconds
        return batch

    def _transform_samples(self, batch: Batch, chosen: Chosen) -> None:
        assert self._transform is not None
        made: list[Mapping[str, Any]] = []
        keys = zip(chosen.epoch.tolist(), chosen.sample.tolist(), chosen.source.tolist(), strict=True)
        for row, key in enumerate(keys):
            sample = {name: values[row] for name, values in batch.items()}
            made.append(self._transform(sample, sample_rng(self.seed, *key)) or sample)
        for name in made[0] if made else ():
            batch[name] = np.stack([np.asarray(sample[name]) for sample in made])

    def deliver(self, step: Any, batch: Batch) -> Batch:
        """Apply the transform of whole batches, in the thread that takes the batch."""
        if self._batch_transform is None or not batch.size:
            return batch
        key = np.array([stream_key(self.seed, step.epoch, _BATCH_STREAM), step.first], np.uint64)
        changed = self._batch_transform(batch, np.random.Generator(np.random.Philox(key=key)))
        return batch if changed is None else changed

    def to_tensors(self, step: Step, batch: Batch) -> Batch:
        """A batch as tensors, with the transform of whole batches applied."""
        return self.deliver(step, as_tensors(batch))

    # Normalising.

    def _fit(self, normalize: NormalizeOption, by: str | None) -> Normalization:
        """The normalisation of all fields: given, or from statistics of the samples."""
        sources, names = self._order.sources, self._order.names
        is_mixture = isinstance(self.windows, Mixture)
        by = None if by == "source" and not is_mixture else by
        if isinstance(normalize, Normalization):
            for name, source in zip(names, sources, strict=True):
                normalize.check(source.delivered, name if normalize.by == "source" else "")
            self._labels = self._group_labels(normalize.by)
            return normalize
        delivered = {name: each for source in reversed(sources) for name, each in source.delivered.items()}
        static = {name for source in sources for name, schema in source.schema.items() if schema.is_static}
        ways = choose_ways(delivered, static, normalize)
        relative = {k: v for source in sources for k, v in relative_options(source.fields).items()}
        self._labels = self._group_labels(by) if ways else []
        if not ways:
            return Normalization({}, {}, None, relative)
        try:
            groups = self._measure(list(ways), by, sources)
        except DAMAGE:
            if self.on_error == "raise":
                raise
            groups = self._measure(list(ways), by, [source.without_damage() for source in sources])
        return Normalization(ways, groups, by, relative)

    def _group_labels(self, by: str | None) -> list[Any]:
        """For each source the group of its samples: one name, or one per episode."""
        if by is None:
            return [""] * len(self._order.sources)
        if by == "source":
            return list(self._order.names)
        return [[str(label) for label in source.labels(by)] for source in self._order.sources]

    def _measure(
        self, fields: list[str], by: str | None, sources: list[RowSource]
    ) -> dict[str, dict[str, FieldStatistics]]:
        """Statistics of each group."""
        groups: dict[str, list[tuple[RowSource, float | None]]] = {}
        if by is None:
            mixture = self.windows if isinstance(self.windows, Mixture) else None
            groups[""] = [(sources[0], None)] if mixture is None else mixture.with_shares(sources)
        elif by == "source":
            groups = {n: [(source, None)] for n, source in zip(self._order.names, sources, strict=True)}
        else:
            for source in sources:
                for label in dict.fromkeys(source.labels(by)):
                    groups.setdefault(str(label), []).append((source.part_of(label, by), None))
            groups = dict(sorted(groups.items()))
        return {
            group: source_statistics(
                parts, [n for n in fields if any(n in s.schema for s, _ in parts)], progress=self._progress
            )
            for group, parts in groups.items()
        }

    def _normalize(self, batch: Batch, number: int) -> bool:
        """Normalise the fields of one source, each sample with the statistics of its group."""
        if not self.normalization.ways:
            return False
        labels = self._labels[number]
        for name in [each for each in self.normalization.ways if each in batch]:
            values = batch[name]
            if isinstance(labels, str):
                batch[name] = self.normalization.apply(name, values, source=labels)
                continue
            own = np.array([labels[episode] for episode in batch.episode.tolist()], object)
            for label in dict.fromkeys(own.tolist()):
                part = self.normalization.apply(name, values[own == label], source=label)
                if batch[name] is values:
                    batch[name] = np.empty(values.shape, part.dtype)
                batch[name][own == label] = part
        return True

    @property
    def statistics(self) -> dict[str, Any]:
        """Statistics by field, or by group and field; `normalization.to_json()` goes into a checkpoint."""
        return self.normalization.statistics

    def denormalize(self, name: str, values: Any, *, source: Any = None, reference: Any = None) -> Any:
        """Values of a field (or a model's output in its place) in the recorded units.

        `source` names the source of a mixture; `reference` makes relative values absolute, see `Normalization.undo`.
        """
        fields = {known for each in self._order.sources for known in each.schema}
        if name not in fields:
            raise KeyError(f"no field {name!r}.{nearest(name, sorted(fields))}")
        return self.normalization.undo(name, values, source=source, reference=reference)

    # The state.

    def identity(self) -> dict[str, Any]:
        """Identities of the samples and of their order.

        The first characters are of the data, the others of the windows over it; for windows that grow all are.
        """
        data = self._order.data_id[:_DATA_CHARS]
        return {
            "windows": data + self._order.id[: _NAME_CHARS - len(data)],
            "order": self._order.fingerprint(),
        }

    def state_at(self, place: Place, *, is_worker: bool = False) -> dict[str, Any]:
        """The state at a place, with the number of skipped episodes and, of windows that grow, of samples."""
        state = super().state_at(place, is_worker=is_worker)
        names = sorted({*self._uncounted(), *self._left_out})
        count, digest = self._skipped_before
        if len(names) > count:  # otherwise those of the loaded state, or some of them again
            count, digest = len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
        if count:
            state |= {"skipped": count, "skip": digest}
        if self.windows_grow:
            state["samples"] = self.total
        return state

    @property
    def windows_grow(self) -> bool:
        """Whether the windows follow a root that grows."""
        return isinstance(self.windows, Windows) and self.windows.follow

    def note(self, left_out: LeftOut) -> None:
        """Count the episodes that a delivered batch was cut without."""
        self._left_out |= dict(left_out)

    def _checked_place(self, state: Any) -> Place:
        """The place of a state of this loader; the episodes it left out are counted on."""
        if isinstance(state, Mapping):
            if state.get("samples") is not None and self.windows_grow:
                assert isinstance(self.windows, Windows)
                count = require_integer("samples", state["samples"], MAX_POSITION)
                if count > len(self.windows):
                    self.windows.refresh()
                total = min(count, len(self.windows))
                self._order = SampleOrder(self.windows, self.seed, self._shuffle, total)
            windows, here = state.get("windows"), self.identity()["windows"]
            data = self._order.data_id[:_DATA_CHARS]
            if isinstance(windows, str) and windows != here:
                if data and windows[:_DATA_CHARS] == data:
                    reason = "the same data with other fields, anchors or edges"
                else:
                    known = f" (data {windows[:_DATA_CHARS]}, here {data})" if data else ", or other fields"
                    reason = f"another version of the data, another selection or other edits{known}"
                raise ValueError(f"the state was taken with windows {windows}, these are {here}: {reason}")
        place = super()._checked_place(state)
        skipped = require_integer("skipped", state.get("skipped", 0), MAX_POSITION)
        self._skipped_before, self._left_out = (skipped, str(state.get("skip", ""))), {}
        return place

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state with the plan that `warp why` and `load_state` need; no data, no credentials."""
        write_file(path, dump_json({"state": self.state_dict(), "plan": self.plan()}))

    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Continue from a file that `save_state` wrote."""
        saved = read_saved_state(path)
        self.load_state_dict(saved.get("state", saved))

    def plan(self) -> dict[str, Any]:
        """A description as JSON from which this run's samples are found again: see `warp why`."""
        return {
            "v": 1,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": self._shuffle,
            "on_error": self.on_error,
            "tail": self.tail,
            "windows": self.windows.plan(),
        }

    # Origins and reports.

    def why(
        self, step: int | None = None, *, epoch: int | None = None, positions: tuple[int, int] | None = None
    ) -> list[SampleOrigin]:
        """Where the samples of a step of an epoch (by default the current one) come from; no values are read.

        Steps count from the beginning of the epoch, in batches of this loader, all ranks together. `positions` names
        any stretch of the epoch instead. With on_error="skip" an unchecked episode is checked first.
        """
        epoch = self._epoch if epoch is None else epoch
        if (step is None) == (positions is None):
            raise ValueError("give a step, or positions=(start, stop)")
        if positions is not None:
            start, stop = positions
            if not 0 <= start <= stop <= self.total:
                raise IndexError(f"positions {start} to {stop}: an epoch has those from 0 to {self.total}")
            chosen = self._order.chosen(epoch, start, stop)
        else:
            assert step is not None
            if step < 0:
                raise IndexError(f"step {step}: steps count from 0")
            position: int | None = step * self.batch_size
            if self.on_error == "skip":  # then the start depends on every step before it
                position = 0
                for _ in range(step):
                    position = None if position is None else self.batch_end(epoch, position)
            if position is None or self.batch_end(epoch, position) is None:
                raise IndexError(f"step {step} of {len(self)} in an epoch")
            chosen = self._fill(epoch, position)[0]
        origins: dict[int, SampleOrigin] = {}
        for number, source in enumerate(self._order.sources):
            here = np.flatnonzero(chosen.source == number)
            for row, origin in zip(here.tolist(), source.origins(chosen.sample[here]), strict=True):
                origins[row] = SampleOrigin(
                    **origin,
                    sample_id=int(chosen.sample[row]),
                    epoch=int(chosen.epoch[row]),
                    source=self._order.names[number] or None,
                )
        return [origins[row] for row in range(len(chosen))]

    def report(self) -> LoaderReport:
        """Counts of samples, of skipped episodes with reasons, of bytes, and the time of each kind of work."""
        came = traffic().since(self._traffic_before)
        work: dict[str, Any] = {f"{name}_s": self._timings[name] for name in _WORK}
        return replace(
            self._report,
            **work,
            skipped=self._uncounted() | self._left_out,
            skipped_before=self._skipped_before[0],
            network_bytes=came.network,
            cache_bytes=came.cache,
        )

    def to_torch(self) -> Any:
        """A torch IterableDataset of the same batches as tensors, in the same order with any number of workers."""
        return torch_epochs(self)

    def __repr__(self) -> str:
        return f"<Loader of {self.batch_size} over {self.windows!r}, epoch {self._epoch} at {self._position}>"

    def __getstate__(self) -> dict[str, Any]:
        total = self.total if self.windows_grow else None
        kept = {name: value for name, value in self.__dict__.items() if name != "_pools"}
        return {**kept, "_order": None, "_batches": None, "_total": total}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._traffic_before = traffic()
        self._order = SampleOrder(self.windows, self.seed, self._shuffle, state["_total"])


def read_saved_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file that `save_state` wrote."""
    with FileRangeReader(path) as reader:
        try:
            return parse_json_object(reader.read(0, reader.size))
        except FormatError as error:
            hint = "Save it with loader.save_state()."
            raise CorruptLayoutError(f"not a saved state: {error.message}", path=path, hint=hint) from None
