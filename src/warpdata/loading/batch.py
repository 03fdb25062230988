"""Samples and batches: arrays by field with masks and ages, as numpy arrays or tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from warpdata.errors import nearest
from warpdata.ordering.torch import imported_torch, worker_info

_NO_DEFAULT = object()


class Named(dict[str, Any]):
    """Arrays by the name of their field; an unknown name is an error, also for `get` without a default."""

    def __init__(self, values: Mapping[str, Any] = {}, what: str = "field") -> None:
        super().__init__(values)
        self._what = what

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"no {self._what} {name!r}; there are {', '.join(self) or 'none'}.{nearest(str(name), self)}"
        )

    def get(self, name: str, default: Any = _NO_DEFAULT) -> Any:
        """The array of a field; without a default an unknown name is an error."""
        return self[name] if default is _NO_DEFAULT else super().get(name, default)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self), self._what))


class Sample(Named):
    """Arrays by field. `.mask` and `.age_ns` have one array per field, `.sample_id` is the number of the sample."""

    def __init__(
        self,
        values: Mapping[str, Any] = {},
        mask: Mapping[str, Any] = {},
        age_ns: Mapping[str, Any] = {},
        sample_id: Any = -1,
        ts_ns: Any = 0,
        episode: Any = -1,
    ) -> None:
        super().__init__(values)
        self.mask = Named(mask, "mask of a field")
        """Which rows are valid: not beyond an edge, not too old."""
        self.age_ns = Named(age_ns, "age of a field")
        """The age of each value at the moment of its row; negative for a later value."""
        self.sample_id = sample_id
        """The number of the sample among its windows."""
        self.ts_ns = ts_ns
        """The time of the anchor."""
        self.episode = episode
        """The position of the episode among those of the windows (of a mixture, of the source)."""

    def loss_mask(self, name: str) -> Any:
        """The mask of a field with as many axes as its values, to multiply a loss with."""
        mask, values = self.mask[name], self[name]
        return mask.reshape(*mask.shape, *(1,) * (len(values.shape) - len(mask.shape)))

    def masked_mean(self, name: str, loss: Any) -> Any:
        """The mean of a loss over the valid rows of a field; see `masked_mean`."""
        return masked_mean(loss, self.mask[name])

    def hide_with_zeros(self, names: Iterable[str]) -> None:
        """Set every value of these fields that a mask hides to 0, or to the empty text."""
        for name in list(names):
            values = self[name]
            hidden = np.logical_not(self.mask[name])
            # A transform may have changed the rows: then the mask does not fit.
            if not hidden.any() or np.shape(values)[: hidden.ndim] != hidden.shape:
                continue
            is_text = not isinstance(values, np.ndarray | np.generic) or values.dtype.hasobject
            if hidden.ndim:
                values[hidden] = "" if is_text else 0
            else:
                self[name] = "" if is_text else np.zeros_like(values)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return (dict(self), dict(self.mask), dict(self.age_ns), self.sample_id, self.ts_ns, self.episode)


class Batch(Sample):
    """Samples of one step: arrays with an axis of samples in front."""

    def __init__(
        self,
        values: Mapping[str, Any] = {},
        mask: Mapping[str, Any] = {},
        age_ns: Mapping[str, Any] = {},
        sample_id: Any = -1,
        ts_ns: Any = 0,
        episode: Any = -1,
        position: int = 0,
        repeated: Any = None,
        source: Any = None,
        dims: Mapping[str, Any] = {},
    ) -> None:
        super().__init__(values, mask, age_ns, sample_id, ts_ns, episode)
        self.position = position
        """Position in the epoch of the step of which this is a part, in samples of all ranks."""
        self.repeated = repeated
        """With tail="pad", which samples only fill the last batch."""
        self.source = source
        """Of a mixture, the number of the source of each sample."""
        self.dims = Named(dims, "dims of a field")
        """Of a mixture, which numbers of each vector its source has; the others are padding."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.sample_id)

    def map(self, change: Callable[[Any], Any]) -> Batch:
        """A batch with every array, masks and ages among them, replaced by the result of `change`."""
        parts = (self, self.mask, self.age_ns, self.dims)
        values, mask, age_ns, dims = ({name: change(each) for name, each in part.items()} for part in parts)
        alone = (self.sample_id, self.ts_ns, self.episode, self.repeated, self.source)
        ids, times, episodes, repeated, source = (None if each is None else change(each) for each in alone)
        return Batch(values, mask, age_ns, ids, times, episodes, self.position, repeated, source, dims)

    def sample(self, row: int) -> Sample:
        """One sample, without the axis of samples."""
        values, mask, age_ns = (
            {name: each[row] for name, each in part.items()} for part in (self, self.mask, self.age_ns)
        )
        numbers = (int(each[row]) for each in (self.sample_id, self.ts_ns, self.episode))
        return Sample(values, mask, age_ns, *numbers)

    def to(self, *where: Any, **options: Any) -> Batch:
        """A copy with every tensor on a device, masks included, as Lightning and accelerate call it."""
        return self.map(lambda each: each.to(*where, **options) if hasattr(each, "to") else each)

    def _parts(self) -> tuple[Any, ...]:
        return (*super()._parts(), self.position, self.repeated, self.source, dict(self.dims))

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {getattr(v, 'dtype', '')}{list(v.shape)}" for name, v in self.items())
        return f"<Batch of {self.size}: {arrays}>"


def masked_mean(values: Any, mask: Any) -> Any:
    """The mean of values where a mask is true, 0 if it is true nowhere; numpy, torch and JAX alike.

    The mask has the first axes of the values, all of them or fewer: any other shape is an error, not a broadcast.
    """
    shape, wanted = tuple(mask.shape), tuple(values.shape)
    # A mask from `loss_mask` has all axes, the last ones of length one.
    is_loss_mask = len(shape) == len(wanted) and all(a in (1, b) for a, b in zip(shape, wanted, strict=True))
    if shape != wanted[: len(shape)] and not is_loss_mask:
        raise ValueError(f"a mask of shape {list(shape)} does not fit values of shape {list(wanted)}")
    mask = mask.reshape(*shape, *(1,) * (len(wanted) - len(shape)))
    # Hidden values may be NaN: they are left out, not multiplied by zero.
    if hasattr(values, "masked_fill"):  # torch
        hidden = values.new_tensor(~np.asarray(mask)).bool() if isinstance(mask, np.ndarray) else ~mask.bool()
        kept, count = values.masked_fill(hidden, 0), (~hidden).expand_as(values).sum()
        return kept.sum() / count.clamp(min=1)
    arrays = values.__array_namespace__() if hasattr(values, "__array_namespace__") else np
    shown = arrays.broadcast_to(arrays.asarray(mask, dtype=bool), values.shape)
    return arrays.where(shown, values, 0).sum() / max(1, int(shown.sum()))


def as_tensors(batch: Batch) -> Batch:
    """A batch with tensors over the same memory; text stays as lists."""
    torch = imported_torch()
    # Pinned memory goes to the device while the program continues; in a worker it would have to cross a process.
    pins = torch.cuda.is_available() and worker_info() is None

    def tensor(array: Any) -> Any:
        if array.dtype.hasobject:
            return array.tolist()
        made = torch.from_numpy(np.ascontiguousarray(array))
        return made.pin_memory() if pins else made

    return batch.map(tensor)


def register_collate() -> None:
    """Teach torch, once it is loaded, to collate samples: its default keeps the masks of the first only."""
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is not None:
        collate.default_collate_fn_map.setdefault(Sample, _collate)


def _collate(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Batch:  # noqa: ARG001
    """Samples of `windows[i]` as `windows.batch` returns them, as tensors."""

    def stack(rows: list[Any]) -> Any:
        if isinstance(rows[0], np.ndarray | np.generic | int | float):
            return np.stack(rows)
        objects = np.empty(len(rows), object)
        objects[:] = rows
        return objects

    parts = [[each, each.mask, each.age_ns] for each in samples]
    values, mask, ages = (
        {name: stack([part[n][name] for part in parts]) for name in samples[0]} for n in range(3)
    )
    numbers = (stack([getattr(each, name) for each in samples]) for name in ("sample_id", "ts_ns", "episode"))
    return as_tensors(Batch(values, mask, ages, *numbers))
