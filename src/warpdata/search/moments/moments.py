"""Moments of one episode that get vectors: its steps, windows, frames, or the whole of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.episodes.collection.jobs import Called
from warpdata.errors import NoStepsError, nearest
from warpdata.search.moments.behaviour import (
    BLOCK_BYTES,
    EPISODES,
    TIMESTEPS,
    Behaviour,
    Channels,
    Observation,
    about_episode,
    file_row,
    key_of,
    window_key,
)
from warpdata.search.moments.embedders import (
    BuiltIn,
    Embedder,
    WindowEmbedder,
    embedded,
    is_module,
    read_windows,
    run_module,
    window_spans,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.pictures import picture_shape
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import checked_rate, rate_grid

Per = Literal["episode", "step", "window", "frame"]
PER: tuple[Per, ...] = get_args(Per)
MAX_STEPS = 256
"""Steps of an episode that are embedded unless given, spread evenly over it."""
_MODULE_BATCH = 64
Floats = NDArray[np.float32]


class Embedded(NamedTuple):
    """The vectors of one episode, and what is known of each."""

    vectors: Floats
    rows: list[dict[str, Any]]
    channels: Channels = Channels()
    """The channels that the vectors were made of."""


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


class Vectors:
    """Vectors of moments by one embedder: one call for all of them, for some, or for each."""

    def __init__(
        self,
        embedder: Embedder,
        batch_size: int | None,
        channels: Channels,
        where: str,
        *,
        is_of_one: bool = False,
    ) -> None:
        """`channels` are those of the vectors that the new ones join; each may be of one channel, as frames are."""
        function = embedder.made if isinstance(embedder, Called) else embedder
        self.built_in = function if isinstance(function, BuiltIn | WindowEmbedder) else None
        self.channels = channels
        self._size, self._where, self._is_of_one = batch_size, where, is_of_one
        self._function = function
        if is_module(function):
            self._function, self._size = partial(run_module, function), batch_size or _MODULE_BATCH

    def of(self, channels: Mapping[str, NDArray[Any]]) -> Floats:
        """A vector for each row of the channels."""
        count = len(next(iter(channels.values())))
        if self.built_in is not None:
            self._join(channels, list(channels))
            many = self.built_in.many if isinstance(self.built_in, BuiltIn) else self.built_in
            return _checked(many(channels), count)
        parts = []
        if self._size is None:
            for at in range(count):
                row = Observation({name: each[at] for name, each in channels.items()})
                parts.append(embedded(self._function, row)[None])
                self._join(row.channels, row.used)
            return _joined(parts)
        for start in range(0, count, self._size):
            batch = _Batch({name: each[start : start + self._size] for name, each in channels.items()})
            parts.append(_checked(self._function(batch), min(self._size, count - start)))
            self._join(channels, list(batch.used or channels))
        return _joined(parts)

    def _join(self, channels: Iterable[str], used: Sequence[str]) -> None:
        self.channels = self.channels.joined(channels, () if self._is_of_one else used, self._where)


class EpisodeMoments:
    """The moments of one episode that get vectors."""

    def __init__(
        self,
        episode: Episode,
        path: str,
        options: EmbedOptions,
        embedder: Embedder,
        channels: Channels | None = None,
    ) -> None:
        """`channels` are those of the vectors that the new ones join."""
        self._episode, self._path, self._options = episode, path, options
        is_of_one = options.per == "frame"
        self._vectors = Vectors(
            embedder, options.batch_size, channels or Channels(), path, is_of_one=is_of_one
        )

    def all(self) -> Embedded | str:
        """Vectors and what is known of each, or the reason why it has no vectors."""
        if self._options.per == "frame":
            return self._frames()
        options = self._options
        found = Behaviour.of(self._episode, options.rate_hz, options.clock, options.signals)
        found.signals = self._vectors.channels.ordered(found.signals)
        found.about["file_path"] = self._path
        built_in = self._vectors.built_in
        if built_in is not None:
            found.signals = {n: s for n, s in sorted(found.signals.items()) if built_in.takes(s.row_shape)}
        if not found.signals:
            return f"it has no {'observations' if built_in is None else built_in.wanted}"
        if self._options.window_s is not None:
            made = self._windows(found, self._options.window_s)
        else:
            made = self._steps(found) if self._options.per == "step" else self._window_means(found)
        return made._replace(channels=self._vectors.channels)

    def _steps(self, found: Behaviour) -> Embedded:
        most = self._options.most_steps
        count = found.length if most is None else min(most, found.length)
        steps = np.unique(np.linspace(0, found.length - 1, count).astype(np.int64))
        about = {**found.about, "total_reward": found.total_reward}
        row_bytes = sum(each.meta.row_bytes for each in found.signals.values())
        vectors = [
            self._vectors.of({name: np.asarray(each[_key(block)]) for name, each in found.signals.items()})
            for block in _blocks(steps, row_bytes)
        ]
        rows = [
            file_row(
                EPISODES, f"{found.key}@{step}", {**about, "step": step, "ts_ns": int(found.times_ns[step])}
            )
            for step in steps.tolist()
        ]
        return Embedded(_joined(vectors), rows)

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
        return Embedded(_joined(vectors), rows)

    def _windows(self, found: Behaviour, window_s: float) -> Embedded:
        """One vector for each window of so many seconds, made of all of its steps."""
        spans = window_spans(found.times_ns, window_s, self._options.stride_s or window_s / 2)
        length, times = spans[0][1] - spans[0][0], found.times_ns
        period = int(np.median(np.diff(times))) if len(times) > 1 else 1
        row_bytes = length * sum(each.meta.row_bytes for each in found.signals.values())
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        vectors = [
            self._vectors.of(read_windows(found, spans[at : at + step], list(found.signals)))
            for at in range(0, len(spans), step)
        ]
        rows = []
        for start, end in spans:
            moment = {"window_start": start, "window_end": end, "ts_ns": int(times[start])}
            about = {**found.about, **moment, "end_ns": int(times[end - 1]) + period}
            rows.append(file_row(TIMESTEPS, window_key(about), about))
        return Embedded(_joined(vectors), rows)

    def _frames(self) -> Embedded | str:
        cameras = self._cameras()
        if not cameras:
            return "it has no camera"
        length = None
        with contextlib.suppress(NoStepsError):
            length = self._episode.steps.length
        about = about_episode(self._episode, self._path, length)
        vectors: list[Floats] = []
        rows: list[dict[str, Any]] = []
        for name, signal in cameras.items():
            times = np.asarray(signal.timestamps)
            rate, chosen = self._options.rate_hz, np.arange(len(times))
            if rate is not None:  # those that hold at the moments of the rate
                moments = rate_grid(int(times[0]), int(times[-1]), rate)
                chosen = np.unique(np.searchsorted(times, moments, side="right") - 1)
            vectors += [
                self._vectors.of({name: signal[_key(block)].values()})
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
        return Embedded(_joined(vectors), rows, self._vectors.channels)

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
        return self._vectors.of({name: each[None] for name, each in observation.items()})


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


def _checked(given: Any, count: int) -> Floats:
    found = np.asarray(as_array(given), np.float32)
    if found.ndim != 2 or len(found) != count or not found.shape[1] or not np.isfinite(found).all():
        fact = f"for {count} moments the embedder gave shape {found.shape}"
        raise ValueError(f"{fact}: give a row of finite numbers for each")
    return np.ascontiguousarray(found)


def _joined(vectors: Sequence[Floats]) -> Floats:
    """Vectors of one episode, which have one length."""
    lengths = sorted({each.shape[1] for each in vectors})
    if len(lengths) > 1:
        sizes = " and ".join(map(str, lengths))
        raise ValueError(f"the embedder gave vectors of {sizes} numbers for one episode")
    return np.concatenate(vectors)
