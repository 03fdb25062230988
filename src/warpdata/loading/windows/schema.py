"""What the arrays of a batch are: element type and shape of every field, from the first episode that has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdata.bytekit.lazy import cached_property
from warpdata.errors import SchemaMismatchError, nearest
from warpdata.loading.windows.field import Field
from warpdata.loading.windows.images import crop_box
from warpdata.timeline.episode import Episode
from warpdata.timeline.meta import OBJECT, SignalMeta
from warpdata.timeline.sampling import check_align
from warpdata.timeline.signal import Signal


@dataclass(frozen=True)
class FieldSchema:
    """One field of every sample; what is asked for every batch is worked out once."""

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
