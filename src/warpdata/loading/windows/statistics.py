"""Statistics of exactly the samples' valid values, and what normalising with them means."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import closing
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
from warpdata.errors import SchemaMismatchError, WarpError, nearest
from warpdata.loading.pace import NoLine, PaceLine
from warpdata.loading.windows.field import FieldSchema
from warpdata.loading.windows.gathering import gather
from warpdata.settings import Settings

if TYPE_CHECKING:
    from warpdata.loading.windows.windows import Windows

How = Literal["mean_std", "min_max", "q01_q99"]
_SMALLEST = 1e-12
_READ_BYTES = 32 << 20


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
    """Whether the data had to be read; otherwise it was merged from what was recorded."""

    def to_json(self) -> dict[str, Any]:
        """As JSON; `from_json` gives the same numbers back."""
        names = ("count", "mean", "std", "min", "max", "q01", "q99")
        found: dict[str, Any] = {name: getattr(self, name).tolist() for name in names}
        return {**found, "quantile_error": self.quantile_error, "was_read": self.was_read}

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> FieldStatistics:
        """Statistics as JSON states them."""
        names = ("mean", "std", "min", "max", "q01", "q99")
        arrays = {name: np.array(stated[name], np.float64) for name in names}
        return cls(
            np.array(stated["count"], np.int64),
            **arrays,
            quantile_error=float(stated["quantile_error"]),
            was_read=bool(stated["was_read"]),
        )


def channel_shape(schema: FieldSchema) -> tuple[int, ...]:
    """The axes of a row with statistics of their own: colours of an image, all numbers of a small row, else none."""
    if schema.is_image:
        return schema.shape[2:]
    return schema.shape if 0 < int(np.prod(schema.shape, dtype=np.int64)) <= MAX_CHANNELS else ()


def window_statistics(
    windows: Windows, names: Sequence[str], *, progress: bool = False
) -> dict[str, FieldStatistics]:
    """Statistics of these fields over all samples, from last time, from what was recorded, or from one pass."""
    running = running_statistics(windows, names, progress=progress)
    return {
        name: finished(found, windows.schema[name], was_read=read) for name, (found, read) in running.items()
    }


def running_statistics(
    windows: Windows, names: Sequence[str], *, progress: bool = False
) -> dict[str, tuple[ValueStatistics, bool]]:
    """What statistics are made of, to be merged with others, and whether data had to be read for it."""
    names = [names] if isinstance(names, str) else names
    known = _kept(windows)
    missing = []
    for name in names:
        if name not in windows.schema:
            raise KeyError(f"no field {name!r}.{nearest(name, windows.schema)}")
        if windows.schema[name].dtype.kind not in "fiub":
            raise ValueError(f"field {name!r} holds no numbers")
        if name not in known:
            found = _from_recordings(windows, name)
            if found is None:
                missing.append(name)
            else:
                known[name] = {"was_read": False, "values": found.to_json()}
    for name, found in (_from_pass(windows, missing, progress) if missing else {}).items():
        known[name] = {"was_read": True, "values": found.to_json()}
    _keep(windows, known)
    out = {}
    for name in names:  # always from what is kept: the same bits the first time and later
        found = ValueStatistics.from_json(known[name]["values"])
        assert found is not None
        out[name] = (found, bool(known[name]["was_read"]))
    return out


def _from_recordings(windows: Windows, name: str) -> ValueStatistics | None:
    """Merged from what each episode recorded, where the samples have every record of the signal exactly once."""
    schema = windows.schema[name]
    is_all = (
        windows.anchors.signal == schema.field.signal
        and windows.anchors.stride == 1
        and windows.where is None
        and windows.keeps_all
        and not schema.is_static
        and not schema.is_changed
        and not schema.is_image
        and schema.rows == 1
        and (schema.field.rows.steps or schema.field.rows.offsets_ns) == (0,)
    )
    if not is_all:
        return None
    merged = ValueStatistics(channel_shape(schema))
    for episode in windows.episodes:
        found = recorded_statistics(episode, schema.field.signal)
        if found is None or found.channels != merged.channels:
            return None
        merged.merge(found)
    return merged


def _from_pass(windows: Windows, names: Sequence[str], progress: bool) -> dict[str, ValueStatistics]:
    """One pass over all samples in stored order, with these fields only."""
    narrow = windows.only(names)
    sample_bytes = max(1, sum(each.sample_bytes for each in narrow.schema.values()))
    step = max(1, _READ_BYTES // sample_bytes)
    running = {name: ValueStatistics(channel_shape(narrow.schema[name])) for name in names}
    with closing(PaceLine("statistics", "samples", "counting") if progress else NoLine()) as line:
        for start in range(0, len(narrow), step):
            numbers, began = np.arange(start, min(start + step, len(narrow)), dtype=np.int64), monotonic()
            batch = gather(narrow, numbers)
            line.add(
                len(numbers), len(numbers) * sample_bytes, monotonic() - began, f" {start}/{len(narrow)}"
            )
            for name in names:
                valid = batch[name][batch.mask[name]]
                running[name].add(valid.reshape(-1, running[name].channels) if valid.size else valid)
    return running


def finished(found: ValueStatistics, schema: FieldSchema, *, was_read: bool) -> FieldStatistics:
    """The numbers of running statistics, in the shape of the channels."""
    shape = channel_shape(schema)
    some = np.maximum(found.count, 1)
    quantiles = dict(zip(QUANTILES, found.sketch.quantiles(list(QUANTILES)), strict=True))
    # A quantile from a sketch is off by up to 2 %: never beyond what was seen.
    low, high = (np.where(found.count > 0, each, 0.0) for each in (found.low, found.high))
    q01, q99 = (np.clip(quantiles[q], low, high) for q in (0.01, 0.99))
    mean, std = found.mean.reshape(shape), np.sqrt(found.m2 / some).reshape(shape)
    low, high, q01, q99 = (each.reshape(shape) for each in (low, high, q01, q99))
    return FieldStatistics(found.count.reshape(shape), mean, std, low, high, q01, q99, was_read=was_read)


def _path(windows: Windows) -> Path:
    folder = os.path.expanduser(Settings.from_env().cache_dir)
    return Path(folder) / "windows" / f"{windows.id}.statistics.json"


def _kept(windows: Windows) -> dict[str, Any]:
    """Statistics made before; what cannot be trusted is made again."""
    try:
        stated = json.loads(_path(windows).read_bytes())
        return {
            name: each
            for name, each in stated.items()
            if name in windows.schema and ValueStatistics.from_json(each["values"]) is not None
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _keep(windows: Windows, known: Mapping[str, Any]) -> None:
    """Keep statistics for next time; where the cache cannot be written they are made again then."""
    try:
        path = _path(windows)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, dump_json(dict(known)), durable=False)
    except (OSError, WarpError):
        return


class Normalizer:
    """value -> (value - offset) / scale, per channel, and back."""

    def __init__(self, how: How, found: FieldStatistics) -> None:
        self.how = how
        if how == "mean_std":
            offset, scale = found.mean, found.std
        else:
            low, high = (found.min, found.max) if how == "min_max" else (found.q01, found.q99)
            offset, scale = (low + high) / 2, (high - low) / 2
        self.offset = offset
        self.scale = np.where(np.abs(scale) < _SMALLEST, 1.0, scale)

    def apply(self, values: Any) -> Any:
        """Normalised values: float64 of float64, float32 of all else; tensors stay tensors."""
        if hasattr(values, "new_tensor"):
            as_float = values if values.is_floating_point() else values.float()
            return (as_float - as_float.new_tensor(self.offset)) / as_float.new_tensor(self.scale)
        values = np.asarray(values)
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        return ((values - self.offset) / self.scale).astype(dtype)

    def undo(self, values: Any) -> Any:
        """The values as they were, of the type that was given."""
        if hasattr(values, "new_tensor"):  # torch, on any device
            return values * values.new_tensor(self.scale) + values.new_tensor(self.offset)
        array = np.asarray(values)
        return (array * self.scale + self.offset).astype(
            array.dtype if array.dtype.kind == "f" else np.float64
        )


class Normalization:
    """How fields are normalised, without the data: what a policy needs again where it runs, kept in its checkpoint.

    `Loader(..., normalize=this)` normalises other data the same way.
    """

    def __init__(self, ways: Mapping[str, str], statistics: Mapping[str, FieldStatistics]) -> None:
        self.ways = {name: _way(how) for name, how in ways.items()}
        self.statistics = {name: statistics[name] for name in self.ways}
        self._each = {name: Normalizer(how, statistics[name]) for name, how in self.ways.items()}

    def apply(self, name: str, values: Any) -> Any:
        """Values of a field as a loader hands them over; as they are, if it is not normalised."""
        if name not in self._each:
            return values
        channels = self.statistics[name].mean.shape
        if tuple(values.shape[len(values.shape) - len(channels) :]) != channels:
            raise SchemaMismatchError(
                f"field {name!r} has values of shape {list(values.shape)}, its statistics are of {list(channels)}",
                hint="A transform that changes what a value is goes with normalize={…: None} for its field.",
            )
        return self._each[name].apply(values)

    def undo(self, name: str, values: Any) -> Any:
        """Values of a field, or a model's answers in its place, in the units they were recorded in."""
        return self._each[name].undo(values) if name in self._each else values

    def check(self, schema: Mapping[str, FieldSchema]) -> None:
        """Raise unless these fields can be normalised so."""
        for name, found in self.statistics.items():
            if name not in schema:
                raise KeyError(f"normalize names no field {name!r}.{nearest(name, schema)}")
            if found.mean.shape != channel_shape(schema[name]):
                raise SchemaMismatchError(
                    f"field {name!r} has channels {list(channel_shape(schema[name]))}, "
                    f"its statistics are of {list(found.mean.shape)}"
                )

    def to_json(self) -> dict[str, Any]:
        """As JSON, for a checkpoint; `from_json` gives the same numbers back."""
        return {
            name: {"how": how, **self.statistics[name].to_json()} for name, how in sorted(self.ways.items())
        }

    @classmethod
    def from_json(cls, stated: Mapping[str, Mapping[str, Any]]) -> Normalization:
        """As JSON states it, or ValueError."""
        try:
            ways = {name: str(each["how"]) for name, each in stated.items()}
            return cls(ways, {name: FieldStatistics.from_json(each) for name, each in stated.items()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no normalisation: {error!r}") from None

    def __repr__(self) -> str:
        return f"Normalization({self.ways!r})"


def chosen_ways(
    schema: Mapping[str, FieldSchema], normalize: str | Mapping[str, str | None] | None
) -> dict[str, How]:
    """Which fields are normalised, and how."""
    if normalize is None:
        return {}
    if isinstance(normalize, str):
        if normalize != "auto":
            return {name: _way(normalize) for name, each in schema.items() if _is_float(each)}
        return {name: "mean_std" for name, each in schema.items() if _is_float(each)}
    if not isinstance(normalize, Mapping):
        raise TypeError(f"normalize is a word or {{field: word}}, not {normalize!r}")
    for name in normalize:
        if name not in schema:
            raise KeyError(f"normalize names no field {name!r}.{nearest(name, schema)}")
    return {name: _way(how) for name, how in normalize.items() if how is not None}


def _is_float(schema: FieldSchema) -> bool:
    return schema.dtype.kind == "f" and not schema.is_static


def _way(how: str) -> How:
    for known in get_args(How):
        if how == known:
            return known  # type: ignore[no-any-return]
    known_ways = ("auto", *get_args(How))
    raise ValueError(
        f"normalize is {', '.join(known_ways)} or None, not {how!r}.{nearest(str(how), known_ways)}"
    )
