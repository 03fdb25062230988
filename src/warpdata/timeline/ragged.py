"""Values of varying length: arrays of rows of one type, stored end to end with offsets; sound as blocks of samples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import read_only
from warpdata.bytekit.codec import wav_header
from warpdata.errors import LimitExceededError
from warpdata.timeline.meta import OBJECT, RowType

if TYPE_CHECKING:
    from warpdata.timeline.signal import Signal

_PAUSE_NS = 20_000_000
_MAX_SOUND_BYTES = (1 << 32) - 128
"""What a WAV file can hold."""


def as_objects(values: Iterable[Any]) -> NDArray[Any]:
    """Values as an array of objects, also where they are arrays of one shape."""
    items = list(values)
    out = np.empty(len(items), OBJECT)
    for at, item in enumerate(items):
        out[at] = item
    return out


def split_rows(rows: NDArray[Any], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Views of rows [offsets[k], offsets[k + 1]) for every k."""
    return as_objects(rows[low:high] for low, high in itertools.pairwise(offsets.tolist()))


def join_rows(values: NDArray[Any], kind: RowType) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The rows of all values end to end, and the offset of every value and of the end."""
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    rows = np.concatenate([np.empty((0, *kind.shape), kind.dtype), *values])
    return rows, offsets


def pad_rows(
    values: NDArray[Any], kind: RowType, size: int | None = None
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values as one array with zeros behind the rows of each, and a mask of the rows; cut to `size` rows if given."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    most = int(lengths.max(initial=0)) if size is None else size
    out = np.zeros((len(values), most, *kind.shape), kind.dtype)
    mask = np.arange(most) < lengths[:, None]
    if mask.any():
        out[mask] = np.concatenate([value[:most] for value in values])
    return out, mask


class Sound(NamedTuple):
    """Samples at an even rate."""

    samples: NDArray[Any]
    """[n] or [n, channels]."""
    rate_hz: float
    start_ns: int
    silent: int
    """How many samples fill pauses of the recording."""

    def wav(self) -> bytes:
        """A WAV file of all samples."""
        samples = np.ascontiguousarray(self.samples)
        channels = samples.shape[1] if samples.ndim > 1 else 1
        return wav_header(samples.dtype, channels, self.rate_hz, len(samples)) + samples.tobytes()


def join_sound(signal: Signal) -> Sound:
    """All blocks of a sound signal end to end; pauses are filled with silence.

    A block is late by its own length or 20 ms, whichever is longer, before that is a pause: drivers stamp unevenly.
    """
    kind, rate = signal.meta.rows, signal.meta.rate_hz
    if signal.meta.kind != "sound" or kind is None or not rate:
        raise TypeError(f"not a sound signal: {signal.meta}")
    if not len(signal):
        return Sound(np.empty((0, *kind.shape), kind.dtype), rate, 0, 0)
    lengths = signal._lengths()
    lasted = lengths / rate * 1e9
    late = np.diff(signal.timestamps) - lasted[:-1]
    pauses = np.where(late > np.maximum(lasted[:-1], _PAUSE_NS), np.rint(late * rate / 1e9), 0.0)
    if (pauses.sum() + lengths.sum()) * kind.nbytes > _MAX_SOUND_BYTES:
        raise LimitExceededError(
            f"{pauses.sum() + lengths.sum():.0f} samples with pauses are more than 4 GiB",
            hint="Choose a part in time.",
        )
    zero = 128 if kind.dtype == np.uint8 else 0
    parts = []
    for value, pause in zip(signal.values(), [*pauses.astype(np.int64).tolist(), 0], strict=True):
        parts += [value, np.full((pause, *kind.shape), zero, kind.dtype)] if pause else [value]
    return Sound(read_only(np.concatenate(parts)), rate, signal.first_ts_ns, int(pauses.sum()))
