"""Samples and batches: arrays by field with masks and ages, as numpy arrays or tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from warpdata.corpora.torch import imported_torch, worker_info
from warpdata.errors import nearest

_NONE = object()


class Named(dict[str, Any]):
    """Arrays by the name of their field; a name that is not there is an error, also for `get` without a default."""

    def __init__(self, values: Mapping[str, Any] = {}, what: str = "field") -> None:
        super().__init__(values)
        self._what = what

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"no {self._what} {name!r}; there are {', '.join(self) or 'none'}.{nearest(str(name), self)}"
        )

    def get(self, name: str, default: Any = _NONE) -> Any:
        """The array of a field; without a default a name that is not there is an error."""
        return self[name] if default is _NONE else super().get(name, default)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self), self._what))


class Sample(Named):
    """Arrays by field. `.mask` and `.age_ns` have one array per field, `.sample_id` names the sample for ever."""

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
        """The age of each value at the moment of its row; negative where it came later."""
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
        """The mean of a loss over what is valid of a field; see `masked_mean`."""
        return masked_mean(loss, self.mask[name])

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
    ) -> None:
        super().__init__(values, mask, age_ns, sample_id, ts_ns, episode)
        self.position = position
        """Where in the epoch the step of which this is a part begins, in samples of all ranks."""
        self.repeated = repeated
        """With tail="pad", which samples only fill the last batch."""
        self.source = source
        """Of a mixture, which source each sample came from."""

    @property
    def size(self) -> int:
        """How many samples there are."""
        return len(self.sample_id)

    def map(self, change: Callable[[Any], Any]) -> Batch:
        """A batch whose arrays, masks and ages among them, are what `change` makes of them."""
        values, mask, age_ns = (
            {name: change(each) for name, each in part.items()} for part in (self, self.mask, self.age_ns)
        )
        alone = (self.sample_id, self.ts_ns, self.episode, self.repeated, self.source)
        sample_id, ts_ns, episode, repeated, source = (
            None if each is None else change(each) for each in alone
        )
        return Batch(values, mask, age_ns, sample_id, ts_ns, episode, self.position, repeated, source)

    @classmethod
    def joined(cls, parts: Sequence[Batch], order: Any) -> Batch:
        """Several batches as one, with the samples in another order."""

        def join(arrays: Iterable[Any]) -> Any:
            return np.concatenate(list(arrays))[order]

        return cls(
            {name: join(part[name] for part in parts) for name in parts[0]},
            {name: join(part.mask[name] for part in parts) for name in parts[0]},
            {name: join(part.age_ns[name] for part in parts) for name in parts[0]},
            join(part.sample_id for part in parts),
            join(part.ts_ns for part in parts),
            join(part.episode for part in parts),
        )

    def to(self, *where: Any, **options: Any) -> Batch:
        """A copy with every tensor on a device, masks included, as Lightning and accelerate call it."""
        return self.map(lambda each: each.to(*where, **options) if hasattr(each, "to") else each)

    def _parts(self) -> tuple[Any, ...]:
        return (*super()._parts(), self.position, self.repeated, self.source)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name}: {getattr(v, 'dtype', '')}{list(v.shape)}" for name, v in self.items())
        return f"<Batch of {self.size}: {arrays}>"


def masked_mean(values: Any, mask: Any) -> Any:
    """The mean of values where a mask holds, 0 where it holds nowhere; numpy, torch and JAX alike.

    The mask has the first axes of the values, all of them or fewer: any other shape is an error, not a broadcast.
    """
    shape, wanted = tuple(mask.shape), tuple(values.shape)
    if shape != wanted[: len(shape)] and not _fits(shape, wanted):
        raise ValueError(f"a mask of shape {list(shape)} does not fit values of shape {list(wanted)}")
    mask = mask.reshape(*shape, *(1,) * (len(wanted) - len(shape)))
    # What the mask hides may be NaN: it is left out, not multiplied by zero.
    if hasattr(values, "masked_fill"):  # torch
        hidden = values.new_tensor(~np.asarray(mask)).bool() if isinstance(mask, np.ndarray) else ~mask.bool()
        kept, count = values.masked_fill(hidden, 0), (~hidden).expand_as(values).sum()
        return kept.sum() / count.clamp(min=1)
    arrays = values.__array_namespace__() if hasattr(values, "__array_namespace__") else np
    shown = arrays.broadcast_to(arrays.asarray(mask, dtype=bool), values.shape)
    return arrays.where(shown, values, 0).sum() / max(1, int(shown.sum()))


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a mask is one that `loss_mask` gave: as many axes, the last ones of length one."""
    return len(shape) == len(wanted) and all(a in (1, b) for a, b in zip(shape, wanted, strict=True))


def as_tensors(batch: Batch) -> Batch:
    """A batch whose arrays are tensors over the same memory; text stays as lists."""
    return batch.map(_tensor)


def _tensor(array: Any) -> Any:
    if array.dtype.hasobject:
        return array.tolist()
    torch = imported_torch()
    found = torch.from_numpy(np.ascontiguousarray(array))
    # Pinned memory goes to the device while the program goes on; in a worker it would have to cross a process.
    return found.pin_memory() if torch.cuda.is_available() and worker_info() is None else found


def teach_collate() -> None:
    """Tell torch, once it is loaded, how samples become a batch: by itself it keeps the masks of the first only."""
    collate = sys.modules.get("torch.utils.data._utils.collate")
    if collate is not None:
        collate.default_collate_fn_map.setdefault(Sample, _collated)


def _collated(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Batch:
    """Samples of `windows[i]` as `windows.batch` gives them, as tensors."""
    _ = collate_fn_map
    names = list(samples[0])
    return as_tensors(
        Batch(
            {name: _stacked([each[name] for each in samples]) for name in names},
            {name: _stacked([each.mask[name] for each in samples]) for name in names},
            {name: _stacked([each.age_ns[name] for each in samples]) for name in names},
            _stacked([each.sample_id for each in samples]),
            _stacked([each.ts_ns for each in samples]),
            _stacked([each.episode for each in samples]),
        )
    )


def _stacked(rows: list[Any]) -> Any:
    """Arrays or numbers with an axis in front; anything else as objects."""
    if isinstance(rows[0], np.ndarray | np.generic | int | float):
        return np.stack(rows)
    found = np.empty(len(rows), object)
    found[:] = rows
    return found
