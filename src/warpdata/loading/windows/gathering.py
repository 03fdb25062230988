"""A batch, planned and read: samples by episode, one call per episode and field, into one buffer per field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.bytekit.process.threads import ThreadPool
from warpdata.errors import WarpError
from warpdata.loading.windows.aligning import Int64s
from warpdata.loading.windows.batch import Batch, Sample
from warpdata.loading.windows.open_episode import (
    FieldOut,
    OpenEpisode,
    SampleGroup,
    SignalReader,
    named_fault,
)

if TYPE_CHECKING:
    from warpdata.loading.windows.windows import Windows


Together = tuple[ThreadPool, int] | None


def group_samples(windows: Windows, samples: Int64s) -> list[SampleGroup]:
    """The samples of a batch by episode."""
    return _grouped(*windows.table.locate(samples))


def _grouped(episodes: Int64s, anchors: Int64s) -> list[SampleGroup]:
    groups: dict[int, list[tuple[int, int]]] = {}
    for place, (episode, anchor) in enumerate(zip(episodes.tolist(), anchors.tolist(), strict=True)):
        groups.setdefault(episode, []).append((anchor, place))
    return [SampleGroup(episode, groups[episode]) for episode in sorted(groups)]


def gather(windows: Windows, samples: Int64s, together: Together = None) -> Batch:
    """Read samples, by several threads where they are given and how many of them are to take part."""
    out = _Buffers(windows, len(samples))

    def read(groups: list[SampleGroup]) -> None:
        for group in groups:
            _read_group(_open_at(windows, group.episode), group, out)

    out.episodes, anchors = windows.table.locate(samples)
    groups = _grouped(out.episodes, anchors)
    if together is None:
        read(groups)
    else:
        threads, count = together
        threads.map(read, [groups[number::count] for number in range(count)])
    return out.batch(samples)


def gather_at(windows: Windows, sample: int, episode: int, ts_ns: int) -> Batch:
    """One sample at any time of an episode."""
    out = _Buffers(windows, 1)
    _read_at(windows.open_at(episode), ts_ns, out)
    out.times, out.episodes = [ts_ns], np.array([episode], np.int64)
    return out.batch(np.array([sample], np.int64))


def read_one(windows: Windows, sample: int) -> Sample:
    """One sample as `windows[i]` gives it, without the cost of a batch of one."""
    episode, anchor = windows.table.place_of(sample)
    opened = _open_at(windows, episode)
    values, masks, ages = {}, {}, {}
    for name, reader in opened.fields.items():
        try:
            found = reader.read_one(anchor)
        except WarpError as error:
            raise _near(error, opened, anchor, name) from None
        values[name], masks[name], ages[name] = found
    made = Sample(values, masks, ages, sample, opened.times.item(anchor), episode)
    if windows.edges == "zero":
        hide_with_zeros(made)
    return made


def hide_with_zeros(found: Sample) -> None:
    """What the mask hides becomes 0, or the empty text."""
    for name, values in found.items():
        hidden = np.logical_not(found.mask[name])
        if (
            not hidden.any() or np.shape(values)[: hidden.ndim] != hidden.shape
        ):  # a transform changed what a row is
            continue
        if not hidden.ndim:
            found[name] = "" if _is_text(values) else np.zeros_like(values)
        else:
            values[hidden] = "" if _is_text(values) else 0


def _is_text(values: Any) -> bool:
    return not isinstance(values, np.ndarray | np.generic) or values.dtype.hasobject


def _near(error: WarpError, opened: OpenEpisode, anchor: int, field: str) -> WarpError:
    at = int(opened.times[anchor])
    return named_fault(error, f"episode {opened.episode.id!r} near {at}, field {field!r}")


def _read_group(opened: OpenEpisode, group: SampleGroup, out: _Buffers) -> None:
    times, time_of = out.times, opened.times.item
    for anchor, place in group.pairs:
        times[place] = time_of(anchor)
    for name, reader in opened.fields.items():
        like = opened.same_rows.get(name)
        if like is not None:
            out.copied.setdefault((name, like), []).extend(place for _, place in group.pairs)
        try:
            reader.read(group, out.fields[name], marks=like is None)
        except WarpError as error:
            raise _near(error, opened, group.pairs[0][0], name) from None


def _open_at(windows: Windows, position: int) -> OpenEpisode:
    try:
        return windows.open_at(position)
    except WarpError as error:
        raise named_fault(error, f"episode {windows.episodes.ids[position]!r}") from None


def _read_at(opened: OpenEpisode, ts_ns: int, out: _Buffers) -> None:
    for name, reader in opened.fields.items():
        if isinstance(reader, SignalReader):
            at = reader.rows.at(np.array([ts_ns], np.int64))
            reader.write(at, np.zeros(1, np.int64), out.fields[name])
        else:
            reader.read(SampleGroup(0, [(0, 0)]), out.fields[name])


class _Buffers:
    """The arrays of a batch while it is read."""

    def __init__(self, windows: Windows, count: int) -> None:
        self._schema = windows.schema
        self._hides = windows.edges == "zero"
        self.fields = {name: FieldOut(each, count) for name, each in self._schema.items()}
        self.times = [0] * count
        self.episodes = np.full(count, -1, np.int64)
        self.copied: dict[tuple[str, str], list[int]] = {}
        """Samples whose mask and ages of a field are those of another, by their places."""

    def batch(self, samples: Int64s) -> Batch:
        """The arrays as they are handed over: a field without an axis of time has none."""
        fields = self.fields
        for (name, like), places in self.copied.items():
            # Nearly always everywhere: fields that share a clock share it in every episode.
            where = slice(None) if len(places) == len(samples) else np.array(places, np.int64)
            fields[name].mask[where] = fields[like].mask[where]
            fields[name].age_ns[where] = fields[like].age_ns[where]
        flat = [name for name, each in self._schema.items() if not each.has_axis and not each.is_static]
        for name in flat:
            each = fields[name]
            each.values, each.mask, each.age_ns = each.values[:, 0], each.mask[:, 0], each.age_ns[:, 0]
        made = Batch(
            {name: each.values for name, each in fields.items()},
            {name: each.mask for name, each in fields.items()},
            {name: each.age_ns for name, each in fields.items()},
            samples,
            np.array(self.times, np.int64),
            episode=self.episodes,
        )
        if self._hides:
            hide_with_zeros(made)
        return made


def first_sample(batch: Batch) -> Sample:
    """The first sample of a batch, without the axis of samples."""
    return Sample(
        {name: each[0] for name, each in batch.items()},
        {name: each[0] for name, each in batch.mask.items()},
        {name: each[0] for name, each in batch.age_ns.items()},
        int(batch.sample_id[0]),
        int(batch.ts_ns[0]),
        int(batch.episode[0]),
    )
