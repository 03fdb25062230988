"""Fields of a sample: a signal or static item, its rows around the anchor, its type and shape."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.collection.jobs import code_name
from warpdata.errors import SchemaMismatchError, nearest, suggests
from warpdata.loading.windows.images import crop_box
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.sampling import Align, check_align
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import checked_rate

T = TypeVar("T")
Transform = Callable[[NDArray[Any], np.random.Generator], Any]
When = Literal["times", "records"]

MAX_ROWS = 1 << 16
"""More rows than this in one sample are a mistake, not a window."""
_MAX_OFFSET_S = 1e8
_MAX_STEP = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    at_s: float | None = None
    offsets_s: tuple[float, ...] | None = None
    past_s: float | None = None
    future_s: float | None = None
    rate_hz: float | None = None
    past: int | None = None
    horizon: int | None = None
    offsets: tuple[int, ...] | None = None
    align: Align = "hold"
    max_age_s: float | None = None
    size: tuple[int, int] | None = None
    crop: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class FieldRows:
    """Which rows of a signal a field has: moments around the anchor, or records counted from the one at the anchor."""

    when: When
    offsets_ns: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    has_axis: bool = True

    @property
    def count(self) -> int:
        """How many rows a sample has."""
        return len(self.offsets_ns) if self.when == "times" else len(self.steps)

    @property
    def outermost(self) -> FieldRows:
        """The first and the last moment, or record: no other row reaches further."""
        if self.when == "times":
            return replace(self, offsets_ns=(min(self.offsets_ns), max(self.offsets_ns)))
        return replace(self, steps=(min(self.steps), max(self.steps)))


class Field:
    """A signal or a static item as a part of every sample; its rows are chosen in exactly one way.

    Nothing or `at_s`: the value at one moment, no axis of time. `offsets_s`: a row per moment. `past_s` or `future_s`
    (or both) with `rate_hz`: a grid that ends or begins at the anchor. `past=4`: the last four records at or before the
    anchor. `horizon=16`: the record at the anchor and the next fifteen. `offsets=range(-8, 8, 2)`: any records, counted
    from the one at the anchor.
    """

    __slots__ = ("_options", "_rows", "_said", "signal", "transform")

    @suggests
    def __init__(
        self,
        signal: str,
        *,
        at_s: float | None = None,
        offsets_s: Sequence[float] | None = None,
        past_s: float | None = None,
        future_s: float | None = None,
        rate_hz: float | None = None,
        past: int | None = None,
        horizon: int | None = None,
        offsets: Sequence[int] | None = None,
        align: Align = "hold",
        max_age_s: float | None = None,
        size: Sequence[int] | None = None,
        crop: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        transform: Transform | None = None,
    ) -> None:
        if not isinstance(signal, str) or not signal:
            raise TypeError(f"a field names a signal or a static item, not {signal!r}")
        if transform is not None and not callable(transform):
            raise TypeError(f"a transform is a function of (array, rng), not {transform!r}")
        self.signal = signal
        self.transform = transform
        self._said: str | None = None
        self._options = _Options(
            at_s=None if at_s is None else _seconds("at_s", at_s),
            offsets_s=None if offsets_s is None else tuple(_seconds("offsets_s", x) for x in _few(offsets_s)),
            past_s=None if past_s is None else _seconds("past_s", past_s, positive=True),
            future_s=None if future_s is None else _seconds("future_s", future_s, positive=True),
            rate_hz=None if rate_hz is None else checked_rate(rate_hz),
            past=None if past is None else _count("past", past),
            horizon=None if horizon is None else _count("horizon", horizon),
            offsets=None if offsets is None else _steps(offsets),
            align=_checked_align(align),
            max_age_s=None if max_age_s is None else _seconds("max_age_s", max_age_s, positive=True),
            size=None if size is None else _size(size),
            crop=None if crop is None else _crop(crop),
            dtype=None if dtype is None else np.dtype(dtype).name,
        )
        self._rows = _rows_of(self._options)
        if self._rows.when == "records" and align != "hold":
            raise ValueError(f"records counted from the anchor are not aligned: leave align={align!r} out")

    @property
    def rows(self) -> FieldRows:
        """Which rows a sample has."""
        return self._rows

    @property
    def align(self) -> Align:
        """How a moment finds its value."""
        return self._options.align

    @property
    def max_age_s(self) -> float | None:
        """How old a value may be."""
        return self._options.max_age_s

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that images are scaled to."""
        return self._options.size

    @property
    def crop(self) -> tuple[int, ...] | None:
        """What is cut out of images before scaling: (height, width) of the middle, or (top, left, height, width)."""
        return self._options.crop

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The element type values are delivered in; None for their own."""
        return None if self._options.dtype is None else np.dtype(self._options.dtype)

    @property
    def is_plain(self) -> bool:
        """Whether only the signal is given."""
        return self._options == _Options() and self.transform is None

    def without_transform(self) -> Field:
        """The same values, not transformed."""
        return Field.from_json({name: each for name, each in self.to_json().items() if name != "transform"})

    def to_json(self) -> dict[str, Any]:
        """All options that differ from their defaults, as JSON."""
        default = _Options()
        found: dict[str, Any] = {"signal": self.signal}
        for each in fields(_Options):
            value = getattr(self._options, each.name)
            if value != getattr(default, each.name):
                found[each.name] = list(value) if isinstance(value, tuple) else value
        if self.transform is not None or self._said is not None:
            found["transform"] = self._said if self.transform is None else code_name(self.transform)
        return found

    @classmethod
    def from_json(cls, stated: dict[str, Any]) -> Field:
        """A field as `to_json` states it; a transform keeps its name and does nothing."""
        given = dict(stated)
        said = given.pop("transform", None)
        made = cls(given.pop("signal"), **given)
        made._said = said
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Field) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.signal, self._options))

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.to_json().items() if name != "signal")
        return f"Field({self.signal!r}{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_field_again, (self.signal, self._options, self.transform, self._said))


def _field_again(signal: str, options: _Options, transform: Transform | None, said: str | None) -> Field:
    given = {each.name: getattr(options, each.name) for each in fields(_Options)}
    made = Field(signal, **given, transform=transform)
    made._said = said
    return made


def _rows_of(options: _Options) -> FieldRows:
    """The rows of a field, or ValueError unless exactly one way to choose them is given."""
    is_grid = options.past_s is not None or options.future_s is not None
    ways = {
        "at_s": options.at_s is not None,
        "offsets_s": options.offsets_s is not None,
        "past_s/future_s": is_grid,
        "past": options.past is not None,
        "horizon": options.horizon is not None,
        "offsets": options.offsets is not None,
    }
    said = [name for name, is_said in ways.items() if is_said]
    if len(said) > 1:
        raise ValueError(f"a field chooses its rows in one way, not in {len(said)}: {', '.join(said)}")
    if is_grid != (options.rate_hz is not None):
        raise ValueError("past_s and future_s go with rate_hz, and rate_hz with one of them")
    if options.past is not None:
        return FieldRows("records", steps=tuple(range(1 - options.past, 1)))
    if options.horizon is not None:
        return FieldRows("records", steps=tuple(range(options.horizon)))
    if options.offsets is not None:
        return FieldRows("records", steps=options.offsets)
    if options.offsets_s is not None:
        if not options.offsets_s or len(options.offsets_s) > MAX_ROWS:
            raise ValueError(f"offsets_s has from 1 to {MAX_ROWS} moments")
        return FieldRows("times", tuple(round(each * 1e9) for each in options.offsets_s))
    if is_grid and options.rate_hz is not None:
        return FieldRows("times", _grid(options.past_s or 0.0, options.future_s or 0.0, options.rate_hz))
    return FieldRows("times", (round((options.at_s or 0.0) * 1e9),), has_axis=False)


def _grid(past_s: float, future_s: float, rate_hz: float) -> tuple[int, ...]:
    """Moments at k / rate around the anchor, itself among them, within the two spans."""
    # A span that is a whole number of pauses up to rounding has its last moment too.
    first, last = math.floor(past_s * rate_hz + 1e-6), math.floor(future_s * rate_hz + 1e-6)
    if first + last + 1 > MAX_ROWS:
        raise ValueError(f"a grid of {first + last + 1} rows is too large; at most {MAX_ROWS}")
    return tuple(round(k * 1e9 / rate_hz) for k in range(-first, last + 1))


def _seconds(name: str, value: Any, *, positive: bool = False) -> float:
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not abs(value) <= _MAX_OFFSET_S or (positive and value < 0):
        span = f"from {'0' if positive else f'-{_MAX_OFFSET_S:g}'} to {_MAX_OFFSET_S:g}"
        raise ValueError(f"{name} is a number of seconds {span}, not {value!r}")
    return float(value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= MAX_ROWS:
        raise ValueError(f"{name} is a number of records from 1 to {MAX_ROWS}, not {value!r}")
    return int(value)


def _few(given: Iterable[T]) -> Iterator[T]:
    """One more than there may be, at most: enough to know that there are too many."""
    return itertools.islice(given, MAX_ROWS + 1)


def _steps(given: Sequence[int]) -> tuple[int, ...]:
    found = tuple(_few(given))
    if not 1 <= len(found) <= MAX_ROWS:
        raise ValueError(f"offsets has from 1 to {MAX_ROWS} records")
    for each in found:
        is_whole = isinstance(each, int | np.integer) and not isinstance(each, bool)
        if not is_whole or abs(each) > _MAX_STEP:
            raise ValueError(
                f"offsets counts records from the one at the anchor, not {each!r}; seconds are offsets_s"
            )
    return tuple(int(each) for each in found)


def _whole_numbers(name: str, value: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(each) for each in value)
    except TypeError:
        raise TypeError(f"{name} is of whole numbers of pixels, not {value!r}") from None


def _size(value: Sequence[int]) -> tuple[int, int]:
    numbers = _whole_numbers("size", value)
    if len(numbers) != 2 or min(numbers) < 1:
        raise ValueError(f"size is (height, width), not {value!r}")
    return numbers[0], numbers[1]


def _crop(value: Sequence[int]) -> tuple[int, ...]:
    numbers = _whole_numbers("crop", value)
    if len(numbers) not in (2, 4) or min(numbers) < 0 or min(numbers[-2:]) < 1:
        raise ValueError(
            f"crop is (height, width) of the middle, or (top, left, height, width), not {value!r}"
        )
    return numbers


def _checked_align(align: str) -> Align:
    for known in get_args(Align):
        if align == known:
            return align  # type: ignore[return-value]
    raise ValueError(
        f"align is one of {', '.join(get_args(Align))}, not {align!r}.{nearest(str(align), get_args(Align))}"
    )


@dataclass(frozen=True)
class FieldSchema:
    """Type and shape of one field of every sample; derived values are computed once."""

    name: str
    field: Field
    is_static: bool
    stored_dtype: np.dtype[Any]
    stored_shape: tuple[int, ...]
    is_image: bool = False
    is_text: bool = True

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The element type that is delivered, before any transform."""
        return self.field.dtype or self.stored_dtype

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row that is delivered, before any transform."""
        shape = self.stored_shape
        if self.field.crop is not None:
            rows, columns = crop_box(shape, self.field.crop, self.name)
            shape = (rows.stop - rows.start, columns.stop - columns.start, *shape[2:])
        return shape if self.field.size is None else (*self.field.size, *shape[2:])

    @cached_property
    def has_axis(self) -> bool:
        """Whether a sample has several rows."""
        return not self.is_static and self.field.rows.has_axis

    @cached_property
    def rows(self) -> int:
        """How many rows a sample has."""
        return 1 if self.is_static else self.field.rows.count

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of the field in one sample."""
        return (self.rows, *self.shape) if self.has_axis else self.shape

    @cached_property
    def is_changed(self) -> bool:
        """Whether values are not delivered as they are stored."""
        return self.field.crop is not None or self.field.size is not None or self.dtype != self.stored_dtype

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of the field in one sample; of text, of the reference to it."""
        return self.dtype.itemsize * int(np.prod(self.sample_shape, dtype=np.int64))


def signal_schema(name: str, field: Field, meta: SignalMeta) -> FieldSchema:
    """The schema of a field over a signal, or ValueError where the field cannot be had of it."""
    check_align(field.align, meta)
    is_image = meta.kind == "image" or (
        meta.dtype == np.uint8 and len(meta.shape) == 3 and meta.shape[2] in (1, 3, 4)
    )
    if (field.size is not None or field.crop is not None) and len(meta.shape) < 2:
        raise ValueError(
            f"field {name!r}: size and crop are for images, {field.signal!r} has shape {list(meta.shape)}"
        )
    if meta.is_object and field.dtype is not None:
        raise ValueError(f"field {name!r}: {field.signal!r} holds {meta.kind}, which has no dtype")
    found = FieldSchema(name, field, False, meta.dtype, meta.shape, is_image, meta.is_object)
    _ = found.shape  # a crop that does not fit is an error here
    return found


def static_schema(name: str, field: Field, value: Any) -> FieldSchema:
    """The schema of a field over a static item."""
    rows = field.rows
    if rows.has_axis or rows.offsets_ns != (0,) or field.align != "hold" or field.size or field.crop:
        raise ValueError(
            f"field {name!r}: {field.signal!r} is a static item, which has no time: say only its name"
        )
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        return FieldSchema(name, field, True, array.dtype, array.shape, is_text=False)
    if field.dtype is not None:
        raise ValueError(f"field {name!r}: {field.signal!r} is no number, and has no dtype")
    return FieldSchema(name, field, True, OBJECT, ())


def signal_named(episode: Episode, name: str) -> Signal | None:
    """A signal of an episode, also by a name that carries its role; None where it has none."""
    signals = episode.signals
    if name in signals:
        return signals[name]
    older = episode._older_name(name)
    return None if older is None else signals[older]


def find_schema(
    name: str, field: Field, episode: Episode, signal: Signal | None = None
) -> FieldSchema | None:
    """The schema of a field as an episode has it; None where the episode has neither signal nor static item."""
    signal = signal_named(episode, field.signal) if signal is None else signal
    if signal is not None:
        return signal_schema(name, field, signal.meta)
    if field.signal in episode.static:
        return static_schema(name, field, episode.static[field.signal])
    return None


def check_same(known: FieldSchema, found: FieldSchema, episode: str) -> None:
    """Raise unless the values of an episode can stand in one batch with those of the others."""
    if (
        known.is_static
        and found.is_static
        and known.stored_dtype.kind == "f"
        and found.stored_dtype.kind in "iu"
    ):
        return
    same = (known.is_static, known.dtype, known.shape) == (found.is_static, found.dtype, found.shape)
    if not same:
        hint = "Choose episodes of one kind with where(), or make them alike with size= or dtype=."
        raise SchemaMismatchError(
            f"field {known.name!r} is {found.dtype}{list(found.shape)} in episode {episode!r}, "
            f"but {known.dtype}{list(known.shape)} in the first",
            hint=hint,
        )


def unknown_signal(
    name: str, field: Field, episode: Episode | None, known: Mapping[str, Any] | None = None
) -> KeyError:
    """The error for a field that no episode has."""
    names = [*(episode.keys if episode is not None else ()), *(known or ())]
    return KeyError(
        f"field {name!r}: no episode has a signal or static item {field.signal!r}; there are "
        f"{', '.join(dict.fromkeys(names)) or 'none'}.{nearest(field.signal, names)}"
    )
