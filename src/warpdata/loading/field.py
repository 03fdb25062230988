"""Fields of a sample: a signal or static item, its rows around the anchor, its type and shape."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from warpdata.bytekit.lazy import cached_property
from warpdata.episodes.collection.jobs import code_name
from warpdata.errors import SchemaMismatchError, WarpError, nearest, require_word, suggests
from warpdata.formats.episodedir.scaling import RESIZES, ImageView, view_image
from warpdata.loading.poses import POSES, pose_width
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.sampling import Align, check_align
from warpdata.timeline.signal import Signal
from warpdata.timeline.times import checked_rate

Transform = Callable[[NDArray[Any], np.random.Generator], Any]

IMAGE_SCALES = ("0..1", "-1..1", "imagenet")
MAX_ROWS = 1 << 16
"""More rows than this in one sample are a mistake, not a window."""
_MAX_OFFSET_S = 1e8
_MAX_STEP = 10**9


class FieldRows(NamedTuple):
    """The rows of a field: moments around the anchor, or records counted from the one at the anchor."""

    when: Literal["times", "records"]
    offsets: tuple[int, ...]
    """Nanoseconds, or numbers of records."""
    has_axis: bool = True

    @property
    def outermost(self) -> FieldRows:
        """The first and the last row: no other row reaches further."""
        return self._replace(offsets=(min(self.offsets), max(self.offsets)))


@suggests
@dataclass(frozen=True)
class Field:
    """A signal or a static item as a part of every sample; its rows are chosen in exactly one way.

    Nothing or `at_s`: the value at one moment, no axis of time. `offsets_s`: a row per moment. `past_s` or `future_s`
    (or both) with `rate_hz`: a grid that ends or begins at the anchor. `past=4`: the last four records at or before the
    anchor. `horizon=16`: the record at the anchor and the next fifteen. `offsets=range(-8, 8, 2)`: any records, counted
    from the one at the anchor.

    Images: `crop`, then `size` (`resize="stretch"`, `"pad"` or `"crop"`), `scale` to floats, `layout="chw"`. Actions:
    `relative_to` a signal at the anchor or `delta=True` to the row before, except `except_dims`; with `pose` the first
    numbers are a position and a rotation. Ragged signals and sound: `pad` rows of zeros behind shorter values, which
    the mask (with an axis of rows) hides; longer values are an error, or cut to the first rows with `longer="cut"`.
    """

    signal: str
    _only_by_name: KW_ONLY
    at_s: float | None = None
    offsets_s: Sequence[float] | None = None
    past_s: float | None = None
    future_s: float | None = None
    rate_hz: float | None = None
    past: int | None = None
    horizon: int | None = None
    offsets: Sequence[int] | None = None
    align: Align = "hold"
    max_age_s: float | None = None
    size: Sequence[int] | None = None
    crop: Sequence[int] | None = None
    resize: str = "stretch"
    scale: str | None = None
    layout: str = "hwc"
    relative_to: str | None = None
    delta: bool = False
    pose: str | None = None
    except_dims: Sequence[int] = ()
    pad: int | None = None
    longer: str = "error"
    dtype: DTypeLike | None = None
    transform: Transform | None = None
    transform_name: str | None = field(default=None, repr=False)
    """The name of a transform that is not at hand, as in a saved plan."""

    def __post_init__(self) -> None:
        if not isinstance(self.signal, str) or not self.signal:
            raise TypeError(f"a field names a signal or a static item, not {self.signal!r}")
        if self.transform is not None and not callable(self.transform):
            raise TypeError(f"a transform is a function of (array, rng), not {self.transform!r}")
        for name, check in _CHECKS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check(name, getattr(self, name)))
        require_word("align", self.align, get_args(Align))
        require_word("resize", self.resize, RESIZES)
        require_word("layout", self.layout, ("hwc", "chw"))
        if self.scale is not None:
            require_word("scale", self.scale, IMAGE_SCALES)
        if self.pose is not None:
            require_word("pose", self.pose, POSES)
        require_word("longer", self.longer, ("error", "cut"))
        if self.rows.when == "records" and self.align != "hold":
            raise ValueError(
                f"records counted from the anchor are not aligned: leave align={self.align!r} out"
            )
        if self.delta and (self.relative_to is not None or not self._is_even):
            raise ValueError("delta=True is for evenly spaced rows of a field without relative_to")
        if (self.pose or self.except_dims) and not self.is_relative:
            raise ValueError("pose and except_dims go with relative_to or delta=True")

    @cached_property
    def rows(self) -> FieldRows:
        """The rows of a sample."""
        is_grid = self.past_s is not None or self.future_s is not None
        ways = {
            "at_s": self.at_s is not None,
            "offsets_s": self.offsets_s is not None,
            "past_s/future_s": is_grid,
            "past": self.past is not None,
            "horizon": self.horizon is not None,
            "offsets": self.offsets is not None,
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise ValueError(f"a field chooses its rows in one way, not in {len(given)}: {', '.join(given)}")
        if is_grid != (self.rate_hz is not None):
            raise ValueError("past_s and future_s go with rate_hz, and rate_hz with one of them")
        if self.past is not None:
            return FieldRows("records", tuple(range(1 - self.past, 1)))
        if self.horizon is not None:
            return FieldRows("records", tuple(range(self.horizon)))
        if self.offsets is not None:
            return FieldRows("records", tuple(self.offsets))
        if self.offsets_s is not None:
            return FieldRows("times", tuple(round(offset * 1e9) for offset in self.offsets_s))
        if self.rate_hz is not None:
            return FieldRows("times", _grid(self.past_s or 0.0, self.future_s or 0.0, self.rate_hz))
        return FieldRows("times", (round((self.at_s or 0.0) * 1e9),), has_axis=False)

    @cached_property
    def read_rows(self) -> FieldRows:
        """The rows that are read: for differences also the one before the first."""
        rows = self.rows
        if not self.delta:
            return rows
        if self.rate_hz is not None:
            step = round(1e9 / self.rate_hz)
        else:
            step = rows.offsets[1] - rows.offsets[0] if len(rows.offsets) > 1 else 1
        return rows._replace(offsets=(rows.offsets[0] - step, *rows.offsets))

    @property
    def _is_even(self) -> bool:
        """Whether the rows have a constant distance, so that each has a row before it."""
        if self.rate_hz is not None:
            return True
        rows = self.rows
        steps = {b - a for a, b in itertools.pairwise(rows.offsets)}
        return (
            rows.has_axis
            and (len(steps) == 1 or (rows.when == "records" and not steps))
            and min(steps | {1}) > 0
        )

    @property
    def is_relative(self) -> bool:
        """Whether values are relative to another value."""
        return self.delta or self.relative_to is not None

    @property
    def signals(self) -> list[str]:
        """The names of the signals or static items that are read."""
        return [self.signal] if self.relative_to is None else [self.signal, self.relative_to]

    def to_json(self) -> dict[str, Any]:
        """All options that differ from their defaults, as JSON."""
        stated: dict[str, Any] = {"signal": self.signal}
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name not in ("signal", "transform", "transform_name") and value != option.default:
                stated[option.name] = list(value) if isinstance(value, tuple) else value
        if self.transform is not None:
            stated["transform"] = code_name(self.transform)
        elif self.transform_name is not None:
            stated["transform"] = self.transform_name
        return stated

    @classmethod
    def from_json(cls, stated: dict[str, Any]) -> Field:
        """A field as `to_json` states it; a transform keeps its name and does nothing."""
        given = dict(stated)
        return cls(given.pop("signal"), transform_name=given.pop("transform", None), **given)

    def __repr__(self) -> str:
        more = "".join(f", {name}={value!r}" for name, value in self.to_json().items() if name != "signal")
        return f"Field({self.signal!r}{more})"


def _grid(past_s: float, future_s: float, rate_hz: float) -> tuple[int, ...]:
    """Moments at k / rate around the anchor, itself among them, within the two spans."""
    # A span that is a whole number of pauses up to rounding has its last moment too.
    first, last = math.floor(past_s * rate_hz + 1e-6), math.floor(future_s * rate_hz + 1e-6)
    if first + last + 1 > MAX_ROWS:
        raise ValueError(f"a grid of {first + last + 1} rows is too large; at most {MAX_ROWS}")
    return tuple(round(k * 1e9 / rate_hz) for k in range(-first, last + 1))


def checked_seconds(name: str, value: Any, least: float = 0.0) -> float:
    """A number of seconds in range, or ValueError."""
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not least <= value <= _MAX_OFFSET_S:
        raise ValueError(f"{name} is a number of seconds from {least:g} to {_MAX_OFFSET_S:g}, not {value!r}")
    return float(value)


def _any_seconds(name: str, value: Any) -> float:
    return checked_seconds(name, value, -_MAX_OFFSET_S)


def _moments(name: str, values: Iterable[Any]) -> tuple[float, ...]:
    moments = tuple(_any_seconds(name, value) for value in itertools.islice(values, MAX_ROWS + 1))
    if not 1 <= len(moments) <= MAX_ROWS:
        raise ValueError(f"{name} has from 1 to {MAX_ROWS} moments")
    return moments


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= MAX_ROWS:
        raise ValueError(f"{name} is a number of records from 1 to {MAX_ROWS}, not {value!r}")
    return int(value)


def _steps(name: str, values: Iterable[Any]) -> tuple[int, ...]:
    steps = tuple(itertools.islice(values, MAX_ROWS + 1))
    if not 1 <= len(steps) <= MAX_ROWS:
        raise ValueError(f"{name} has from 1 to {MAX_ROWS} records")
    for step in steps:
        is_whole = isinstance(step, int | np.integer) and not isinstance(step, bool)
        if not is_whole or abs(step) > _MAX_STEP:
            raise ValueError(
                f"{name} counts records from the one at the anchor, not {step!r}; seconds are offsets_s"
            )
    return tuple(int(step) for step in steps)


def _pixels(name: str, value: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(number) for number in value)
    except TypeError:
        raise TypeError(f"{name} is of whole numbers of pixels, not {value!r}") from None
    if name == "size" and (len(numbers) != 2 or min(numbers) < 1):
        raise ValueError(f"size is (height, width), not {value!r}")
    if name == "crop" and (len(numbers) not in (2, 4) or min(numbers) < 0 or min(numbers[-2:]) < 1):
        raise ValueError(
            f"crop is (height, width) of the middle, or (top, left, height, width), not {value!r}"
        )
    return numbers


def checked_dims(name: str, value: Any) -> tuple[int, ...]:
    """Numbers of dimensions, or an error."""
    try:
        dims = tuple(operator.index(number) for number in value)
    except TypeError:
        raise TypeError(f"{name} is a list of dimensions, not {value!r}") from None
    if dims and min(dims) < 0:
        raise ValueError(f"{name} counts dimensions from 0, not {value!r}")
    return tuple(sorted(set(dims)))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "at_s": _any_seconds,
    "offsets_s": _moments,
    "past_s": checked_seconds,
    "future_s": checked_seconds,
    "rate_hz": lambda _, value: checked_rate(value),
    "past": _count,
    "horizon": _count,
    "offsets": _steps,
    "max_age_s": checked_seconds,
    "size": _pixels,
    "crop": _pixels,
    "except_dims": checked_dims,
    "pad": _count,
    "dtype": lambda _, value: np.dtype(value).name,
}


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
    is_ragged: bool = False
    """Whether a row is a value of varying length, padded: the mask has an axis for it."""

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The element type before any transform."""
        if self.field.dtype is not None:
            return np.dtype(self.field.dtype)
        is_float = self.field.scale is not None or (self.field.is_relative and self.stored_dtype.kind != "f")
        return np.dtype(np.float32) if is_float else self.stored_dtype

    @cached_property
    def view(self) -> ImageView | None:
        """How stored images are cropped and scaled."""
        option = self.field
        if option.crop is None and option.size is None:
            return None
        try:
            height, width = self.stored_shape[:2]
            return view_image(height, width, option.crop, option.size, option.resize)
        except ValueError as error:
            raise ValueError(f"field {self.name!r}: {error}") from None

    @cached_property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one row after cropping and scaling, channels last."""
        view = self.view
        return self.stored_shape if view is None else (view.height, view.width, *self.stored_shape[2:])

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row before any transform."""
        shape = self.image_shape
        return (*shape[2:], *shape[:2]) if self.field.layout == "chw" else shape

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row as it is kept: images before they become floats, as decoders have them if they are whole."""
        dtype = self.stored_dtype if self.is_image else self.dtype
        is_whole = self.is_image and self.view is None and self.rows == 1 and self.stored_shape[2:] == (3,)
        return dtype.itemsize * int(np.prod(self.shape, dtype=np.int64)) // (2 if is_whole else 1)

    @cached_property
    def has_axis(self) -> bool:
        """Whether a sample has several rows."""
        return not self.is_static and self.field.rows.has_axis

    @cached_property
    def rows(self) -> int:
        """How many rows a sample has."""
        return 1 if self.is_static else len(self.field.rows.offsets)

    @cached_property
    def mask_shape(self) -> tuple[int, ...]:
        """The shape of the mask of one sample."""
        rows = (self.rows,) if self.has_axis else ()
        return (*rows, self.shape[0]) if self.is_ragged else rows

    @cached_property
    def sample_shape(self) -> tuple[int, ...]:
        """The shape of the field in one sample."""
        return (self.rows, *self.shape) if self.has_axis else self.shape

    @cached_property
    def is_changed(self) -> bool:
        """Whether values are not delivered as they are stored."""
        option = self.field
        is_image_changed = option.crop is not None or option.size is not None or option.layout == "chw"
        is_number_changed = option.scale is not None or option.is_relative
        return is_image_changed or is_number_changed or self.dtype != self.stored_dtype

    @cached_property
    def sample_bytes(self) -> int:
        """Bytes of the field in one sample; of text, of the reference to it."""
        return self.dtype.itemsize * int(np.prod(self.sample_shape, dtype=np.int64))

    def check_relative(self, reference: SignalMeta | None) -> None:
        """Raise unless the values can be relative as the field wants them."""
        option, shape = self.field, self.stored_shape
        if self.is_static or self.is_text or self.stored_dtype.kind not in "fiu" or len(shape) != 1:
            raise ValueError(
                f"field {self.name!r}: only vectors of numbers can be relative, not {list(shape)}"
            )
        if reference is not None and reference.shape != shape:
            raise ValueError(
                f"field {self.name!r} has rows of shape {list(shape)}, {option.relative_to!r} has "
                f"{list(reference.shape)}: relative values need one shape"
            )
        needed = max((max(option.except_dims, default=-1) + 1, pose_width(option.pose)))
        if needed > shape[0]:
            raise ValueError(f"field {self.name!r} has {shape[0]} numbers, its options need {needed}")


def signal_named(episode: Episode, name: str) -> Signal | None:
    """A signal of an episode, also by a name that carries its role; None if there is no such signal."""
    signals = episode.signals
    if name in signals:
        return signals[name]
    older = episode._older_name(name)
    return None if older is None else signals[older]


def find_schema(name: str, field: Field, episode: Episode) -> FieldSchema | None:
    """The schema of a field in an episode; None if the episode has neither signal nor static item of that name."""
    signal = signal_named(episode, field.signal)
    if signal is not None:
        return _signal_schema(name, field, signal.meta, episode)
    if field.signal not in episode.static:
        return None
    value = episode.static[field.signal]
    if field != Field(
        field.signal, dtype=field.dtype, transform=field.transform, transform_name=field.transform_name
    ):
        raise ValueError(
            f"field {name!r}: {field.signal!r} is a static item, which has no time: give only its name"
        )
    if isinstance(value, bool | int | float | np.generic | np.ndarray):
        array = np.asarray(value)
        return FieldSchema(name, field, True, array.dtype, array.shape, is_text=False)
    if field.dtype is not None:
        raise ValueError(f"field {name!r}: {field.signal!r} is no number, and has no dtype")
    return FieldSchema(name, field, True, OBJECT, ())


def _signal_schema(name: str, field: Field, meta: SignalMeta, episode: Episode) -> FieldSchema:
    check_align(field.align, meta)
    if (field.pad is None) != (meta.rows is None):
        if meta.rows is None:
            raise ValueError(
                f"field {name!r}: pad is for ragged signals and sound, {field.signal!r} is {meta}"
            )
        signal = signal_named(episode, field.signal)
        longest = 0 if signal is None or not len(signal) else int(signal._lengths().max())
        raise ValueError(
            f"field {name!r}: the values of {field.signal!r} vary in length (longest in episode {episode.id!r}: "
            f"{longest} rows); give the rows that all are padded to: Field({field.signal!r}, pad={max(1, longest)})"
        )
    if meta.rows is not None and field.pad is not None:
        if field.size is not None or field.crop is not None or field.scale is not None or field.is_relative:
            raise ValueError(
                f"field {name!r}: values of varying length take no size, crop, scale or relative_to"
            )
        shape = (field.pad, *meta.rows.shape)
        return FieldSchema(name, field, False, meta.rows.dtype, shape, is_text=False, is_ragged=True)
    is_image = meta.kind == "image" or (
        meta.dtype == np.uint8 and len(meta.shape) == 3 and meta.shape[2] in (1, 3, 4)
    )
    wants_image = field.size is not None or field.crop is not None or field.layout == "chw"
    if wants_image and len(meta.shape) < 2:
        raise ValueError(
            f"field {name!r}: size, crop and layout are for images, {field.signal!r} has shape {list(meta.shape)}"
        )
    if field.scale is not None and meta.dtype != np.uint8:
        raise ValueError(f"field {name!r}: scale is for images of uint8, {field.signal!r} is {meta.dtype}")
    if meta.is_object and field.dtype is not None:
        raise ValueError(f"field {name!r}: {field.signal!r} holds {meta.kind}, which has no dtype")
    schema = FieldSchema(name, field, False, meta.dtype, meta.shape, is_image, meta.is_object)
    if field.is_relative:
        reference = None if field.relative_to is None else signal_named(episode, field.relative_to)
        schema.check_relative(None if reference is None else reference.meta)
    _ = schema.shape  # a crop that does not fit is an error here
    return schema


def check_same(known: FieldSchema, schema: FieldSchema, episode: str) -> None:
    """Raise unless the values of an episode fit into one batch with those of the others."""
    is_number = known.is_static and schema.is_static
    if is_number and known.stored_dtype.kind == "f" and schema.stored_dtype.kind in "iu":
        return
    if (known.is_static, known.dtype, known.shape) != (schema.is_static, schema.dtype, schema.shape):
        raise SchemaMismatchError(
            f"field {known.name!r} is {schema.dtype}{list(schema.shape)} in episode {episode!r}, "
            f"but {known.dtype}{list(known.shape)} in the first",
            hint="Choose episodes of one kind with where(), or make them alike with size= or dtype=.",
        )


def unknown_signal(name: str, signal: str, known: Sequence[str], damage: WarpError | None) -> Exception:
    """The error for a field that no episode has, or that none has undamaged."""
    return (
        damage
        if damage is not None and signal in known
        else KeyError(
            f"field {name!r}: no episode has a signal or static item {signal!r}; there are "
            f"{', '.join(dict.fromkeys(known)) or 'none'}.{nearest(signal, known)}"
        )
    )
