"""Statistics of exactly the samples' valid values, and normalising with them."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.io.commit import write_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.episodes.collection.facts import recorded_statistics
from warpdata.episodes.statistics import MAX_CHANNELS, QUANTILES, RELATIVE_ERROR, ValueStatistics
from warpdata.errors import SchemaMismatchError, WarpError, nearest, require_word, suggests
from warpdata.loading.field import Field, checked_dims
from warpdata.loading.pace import PaceLine
from warpdata.loading.poses import accumulate, add
from warpdata.settings import Settings

if TYPE_CHECKING:
    from warpdata.loading.source import Delivered, RowSource

How = Literal["mean_std", "min_max", "q01_q99"]
_SMALLEST = 1e-12
_READ_BYTES = 32 << 20
_NUMBERS = ("mean", "std", "min", "max", "q01", "q99")


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """Of the valid values of a field, per channel: of a colour image per colour, of up to 64 numbers per number."""

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    q01: NDArray[np.float64]
    q99: NDArray[np.float64]
    quantile_error: float = RELATIVE_ERROR
    """How far a quantile may be off, relative to its value."""
    was_read: bool = True
    """Whether the data was read; otherwise recorded statistics were merged."""

    def to_json(self) -> dict[str, Any]:
        """As JSON; `from_json` returns the same numbers."""
        numbers: dict[str, Any] = {name: getattr(self, name).tolist() for name in ("count", *_NUMBERS)}
        return {**numbers, "quantile_error": self.quantile_error, "was_read": self.was_read}

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> FieldStatistics:
        """Statistics as JSON states them."""
        numbers: dict[str, Any] = {name: np.array(stated[name], np.float64) for name in _NUMBERS}
        numbers |= {"quantile_error": float(stated["quantile_error"]), "was_read": bool(stated["was_read"])}
        return cls(np.array(stated["count"], np.int64), **numbers)


def channel_shape(delivered: Delivered) -> tuple[int, ...]:
    """The axes of a row with statistics of their own: colours of an image, all numbers of a small row, else none."""
    shape = delivered.row_shape[1:] if delivered.is_ragged else delivered.row_shape
    if delivered.is_image:
        return (shape[0], 1, 1) if delivered.is_chw and len(shape) == 3 else shape[2:]
    return shape if 0 < int(np.prod(shape, dtype=np.int64)) <= MAX_CHANNELS else ()


def source_statistics(
    parts: Sequence[tuple[RowSource, float | None]], names: Sequence[str], *, progress: bool = False
) -> dict[str, FieldStatistics]:
    """Statistics of fields over all samples of some sources: kept ones, merged from recordings, or from one pass.

    Each source counts by its share, or without one by its number of values.
    """
    found = []
    for source, share in parts:
        own = names if len(parts) == 1 else [name for name in names if name in source.schema]
        if len(source) or len(parts) == 1:
            found.append((running_statistics(source, own, progress=progress), source, share))
    out = {}
    for name in names:
        having = [(running[name], source, share) for running, source, share in found if name in running]
        if len({source.delivered[name].row_shape for _, source, _ in having}) > 1:
            raise SchemaMismatchError(
                f"field {name!r} has several widths, and no statistics of all sources together",
                hint='Normalise it with normalize_by="source".',
            )
        merged: ValueStatistics | None = None
        for (values, _), _, share in having:
            if share is not None and len(parts) > 1:
                if not share:
                    continue
                values.scale(max(1, round(share * (1 << 30) / max(1, int(values.count.max(initial=0))))))
            if merged is None:
                merged = values
            else:
                merged.merge(values)
        if merged is not None:
            was_read = any(each for (_, each), _, _ in having)
            out[name] = finish_statistics(merged, having[0][1].delivered[name], was_read=was_read)
    return out


def running_statistics(
    source: RowSource, names: Sequence[str], *, progress: bool = False
) -> dict[str, tuple[ValueStatistics, bool]]:
    """Running statistics, to be merged with others, and whether data was read for them."""
    for name in names:
        if name not in source.schema:
            raise KeyError(f"no field {name!r}.{nearest(name, source.schema)}")
        if source.delivered[name].dtype.kind not in "fiub":
            raise ValueError(f"field {name!r} holds no numbers")
    path = (
        Path(os.path.expanduser(Settings.from_env().cache_dir)) / "windows" / f"{source.id}.statistics.json"
    )
    known = _load(path, source)
    count, missing = len(known), []
    for name in names:
        if name not in known:
            recorded = _merge_recorded(source, name)
            if recorded is None:
                missing.append(name)
            else:
                known[name] = {"was_read": False, "values": recorded.to_json()}
    for name, values in (_read_all(source, missing, progress) if missing else {}).items():
        known[name] = {"was_read": True, "values": values.to_json()}
    if len(known) > count:
        with suppress(OSError, WarpError):  # a cache that cannot be written
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, dump_json(known), durable=False)
    out = {}
    for name in names:  # always from the stored form: the same bits the first time and later
        parsed = ValueStatistics.from_json(known[name]["values"])
        assert parsed is not None
        out[name] = (parsed, bool(known[name]["was_read"]))
    return out


def _load(path: Path, source: RowSource) -> dict[str, Any]:
    """Statistics made before; damaged ones are made again."""
    try:
        return {
            name: each
            for name, each in json.loads(path.read_bytes()).items()
            if name in source.schema and ValueStatistics.from_json(each["values"]) is not None
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _merge_recorded(source: Any, name: str) -> ValueStatistics | None:
    """Merged from the recorded statistics of each episode, if the samples have every record exactly once."""
    schema = source.schema[name]
    is_all = (
        hasattr(source, "episodes")
        and source.anchors.signal == schema.field.signal
        and source.anchors.stride == 1
        and source.where is None
        and source.keeps_all
        and not (schema.is_static or schema.is_changed or schema.is_image)
        and schema.field.transform is None
        and schema.field.rows.offsets == (0,)
    )
    if not is_all:
        return None
    merged = ValueStatistics(channel_shape(source.delivered[name]))
    for episode in source.episodes:
        recorded = recorded_statistics(episode, schema.field.signal)
        if recorded is None or recorded.channels != merged.channels:
            return None
        merged.merge(recorded)
    return merged


def _read_all(source: RowSource, names: Sequence[str], progress: bool) -> dict[str, ValueStatistics]:
    """One pass over all samples in stored order, with these fields only, after their transforms."""
    narrow = source.only(names)
    sample_bytes = max(1, sum(narrow.schema[name].sample_bytes for name in names))
    step = max(1, _READ_BYTES // sample_bytes)
    running = {name: ValueStatistics(channel_shape(narrow.delivered[name])) for name in names}
    with closing(PaceLine("statistics", "samples", "counting", show=progress)) as line:
        for start in range(0, len(narrow), step):
            numbers, began = np.arange(start, min(start + step, len(narrow)), dtype=np.int64), monotonic()
            batch = narrow.read(numbers, defaultdict(float))
            narrow.transform(batch, np.zeros(len(numbers), np.int64), 0)
            waited = monotonic() - began
            line.add(len(numbers), len(numbers) * sample_bytes, waited, f" {start}/{len(narrow)}")
            for name in names:
                values, mask = batch[name], batch.mask[name]
                if narrow.delivered[name].is_chw and narrow.delivered[name].is_image:
                    values = np.moveaxis(values, -3, -1)
                valid = values[mask] if values.shape[: mask.ndim] == mask.shape else values
                running[name].add(valid.reshape(-1, running[name].channels) if valid.size else valid)
    return running


def finish_statistics(values: ValueStatistics, delivered: Delivered, *, was_read: bool) -> FieldStatistics:
    """The numbers of running statistics, in the shape of the channels."""
    some = np.maximum(values.count, 1)
    quantiles = dict(zip(QUANTILES, values.sketch.quantiles(list(QUANTILES)), strict=True))
    low, high = (np.where(values.count > 0, each, 0.0) for each in (values.low, values.high))
    # A quantile from a sketch is off by up to 2 %: never beyond the extremes.
    q01, q99 = (np.clip(quantiles[q], low, high) for q in (0.01, 0.99))
    shape = channel_shape(delivered)
    mean, std, low, high, q01, q99 = (
        each.reshape(shape) for each in (values.mean, np.sqrt(values.m2 / some), low, high, q01, q99)
    )
    return FieldStatistics(values.count.reshape(shape), mean, std, low, high, q01, q99, was_read=was_read)


@suggests
@dataclass(frozen=True)
class Normalize:
    """How one field is normalised: `mean_std`, `min_max` or `q01_q99`, except for some dimensions."""

    how: str
    except_dims: Sequence[int] = ()

    def __post_init__(self) -> None:
        require_word("normalize", self.how, get_args(How))
        object.__setattr__(self, "except_dims", checked_dims("except_dims", self.except_dims))


class Normalizer:
    """value -> (value - offset) / scale, per channel, and back."""

    def __init__(self, way: Normalize, statistics: FieldStatistics) -> None:
        if way.how == "mean_std":
            offset, scale = statistics.mean, statistics.std
        else:
            is_extreme = way.how == "min_max"
            low, high = (statistics.min, statistics.max) if is_extreme else (statistics.q01, statistics.q99)
            offset, scale = (low + high) / 2, (high - low) / 2
        # A constant dimension is only moved: its values stay finite.
        scale = np.where(np.abs(scale) < _SMALLEST, 1.0, scale)
        if way.except_dims:
            if offset.ndim != 1 or max(way.except_dims) >= len(offset):
                raise ValueError(
                    f"except_dims {list(way.except_dims)} of a field of {list(offset.shape)} numbers"
                )
            offset, scale = offset.copy(), scale.copy()
            offset[list(way.except_dims)], scale[list(way.except_dims)] = 0.0, 1.0
        self.offset, self.scale = offset, scale

    def apply(self, values: Any) -> Any:
        """Normalised values: float64 of float64, float32 of all else; tensors stay tensors."""
        if hasattr(values, "new_tensor"):
            as_float = values if values.is_floating_point() else values.float()
            return (as_float - as_float.new_tensor(self.offset)) / as_float.new_tensor(self.scale)
        values = np.asarray(values)
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        return ((values - self.offset) / self.scale).astype(dtype)

    def undo(self, values: Any) -> Any:
        """The original values, of the given type."""
        if hasattr(values, "new_tensor"):  # torch, on any device
            return values * values.new_tensor(self.scale) + values.new_tensor(self.offset)
        array = np.asarray(values)
        dtype = array.dtype if array.dtype.kind == "f" else np.float64
        return (array * self.scale + self.offset).astype(dtype)


class Normalization:
    """How fields are normalised, without the data: for the checkpoint, where a policy needs it again.

    `groups` has the statistics of each source (or of each value of a static item), or of all together under "".
    `relative` has the fields whose values are relative, and to what. `Loader(..., normalize=this)` normalises other
    data the same way.
    """

    def __init__(
        self,
        ways: Mapping[str, Normalize],
        groups: Mapping[str, Mapping[str, FieldStatistics]],
        by: str | None = None,
        relative: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.ways = dict(ways)
        self.groups = {group: dict(statistics) for group, statistics in groups.items()}
        self.by = by
        self.relative = {name: dict(options) for name, options in (relative or {}).items()}
        self._normalizers = {
            group: {name: Normalizer(self.ways[name], each) for name, each in statistics.items()}
            for group, statistics in self.groups.items()
        }

    @property
    def statistics(self) -> dict[str, Any]:
        """The statistics by field, or by group and field if there are several groups."""
        groups: dict[str, Any] = self.groups
        return groups if self.by is not None else groups.get("", {})

    def _normalizer(self, name: str, source: Any) -> Normalizer | None:
        if name not in self.ways:
            return None
        group = str(source) if self.by is not None and source is not None else ""
        if self.by is not None and source is None and len(self.groups) == 1:
            group = next(iter(self.groups))
        if group not in self.groups:
            known = ", ".join(self.groups)
            raise KeyError(f"normalised by {self.by}: give source= (one of {known}), not {source!r}")
        return self._normalizers[group].get(name)

    def apply(self, name: str, values: Any, *, source: Any = None) -> Any:
        """Values of a field as a loader delivers them; unchanged if the field is not normalised."""
        normalizer = self._normalizer(name, source)
        if normalizer is None:
            return values
        channels = normalizer.offset.shape
        rest = tuple(values.shape[len(values.shape) - len(channels) :])
        if len(rest) != len(channels) or any(a not in (1, b) for a, b in zip(channels, rest, strict=True)):
            raise SchemaMismatchError(
                f"field {name!r} has values of shape {list(values.shape)}, its statistics are of {list(channels)}"
            )
        return normalizer.apply(values)

    def undo(self, name: str, values: Any, *, source: Any = None, reference: Any = None) -> Any:
        """Values of a field, or a model's output in its place, in the recorded units.

        Padding to the widest source is cut off. `reference` makes relative values absolute again: the value of the
        signal they are relative to at the anchor, or with delta=True the row before the first.
        """
        normalizer = self._normalizer(name, source)
        if normalizer is not None:
            channels = normalizer.offset.shape
            if len(channels) == 1 and values.shape[-1] > channels[0]:
                values = values[..., : channels[0]]
            values = normalizer.undo(values)
        options = self.relative.get(name)
        if options is None or reference is None:
            return values
        pose, dims = options.get("pose"), tuple(options.get("except_dims", ()))
        is_tensor = hasattr(values, "new_tensor")
        array, base = (
            each.detach().cpu().numpy() if hasattr(each, "detach") else np.asarray(each)
            for each in (values, reference)
        )
        if options.get("delta"):
            absolute = accumulate(array, base, pose, dims)
        else:
            absolute = add(array, base[..., None, :] if array.ndim > base.ndim else base, pose, dims)
        return values.new_tensor(absolute) if is_tensor else absolute.astype(array.dtype)

    def check(self, delivered: Mapping[str, Delivered], group: str) -> None:
        """Raise unless the fields of a source can be normalised with the statistics of a group."""
        for name, statistics in self.groups.get(group, {}).items():
            if name not in delivered:
                if self.by is None:
                    raise KeyError(f"normalize names no field {name!r}.{nearest(name, delivered)}")
                continue
            channels = channel_shape(delivered[name])
            if statistics.mean.shape != channels:
                raise SchemaMismatchError(
                    f"field {name!r} has channels {list(channels)}, "
                    f"its statistics are of {list(statistics.mean.shape)}"
                )

    def to_json(self) -> dict[str, Any]:
        """As JSON, for a checkpoint; `from_json` returns the same numbers."""
        return {
            "by": self.by,
            "fields": {n: {"how": w.how, "except_dims": list(w.except_dims)} for n, w in self.ways.items()},
            "groups": {g: {n: each.to_json() for n, each in s.items()} for g, s in self.groups.items()},
            "relative": self.relative,
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Normalization:
        """As JSON states it, or ValueError."""
        try:
            ways = {n: Normalize(each["how"], each["except_dims"]) for n, each in stated["fields"].items()}
            groups = {
                str(group): {name: FieldStatistics.from_json(each) for name, each in fields.items()}
                for group, fields in stated["groups"].items()
            }
            return cls(ways, groups, stated["by"], stated["relative"])
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a normalisation: {error!r}") from None

    def __repr__(self) -> str:
        ways = {name: way.how for name, way in self.ways.items()}
        return f"Normalization({ways!r})" if self.by is None else f"Normalization({ways!r}, by {self.by})"


def relative_options(fields: Mapping[str, Field]) -> dict[str, dict[str, Any]]:
    """The options of relative fields that their inverse needs."""
    names = ("relative_to", "delta", "pose", "except_dims")
    return {
        name: {key: value for key, value in field.to_json().items() if key in names}
        for name, field in fields.items()
        if field.is_relative
    }


def choose_ways(fields: Mapping[str, Delivered], static: set[str], normalize: Any) -> dict[str, Normalize]:
    """Which fields are normalised, and how."""
    if normalize is None:
        return {}
    if isinstance(normalize, str | Normalize):
        way = "mean_std" if normalize == "auto" else normalize
        chosen = way if isinstance(way, Normalize) else Normalize(way)
        return {n: chosen for n, each in fields.items() if each.dtype.kind == "f" and n not in static}
    if not isinstance(normalize, Mapping):
        raise TypeError(f"normalize is a word or {{field: word}}, not {normalize!r}")
    for name in normalize:
        if name not in fields:
            raise KeyError(f"normalize names no field {name!r}.{nearest(name, fields)}")
    return {
        name: way if isinstance(way, Normalize) else Normalize(way)
        for name, way in normalize.items()
        if way is not None
    }
