"""Epochs as torch IterableDatasets: the same batches for any number of DataLoader workers. The adapter of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from warpdata.errors import MissingExtraError, require_integer
from warpdata.ordering.blocks import stream_key
from warpdata.ordering.epochs import MAX_EPOCH, EpochSetter, EpochStream, LeftOut, Place

_KEY_BITS = 43
_COUNT_BITS = 20
_LAST, _BY_WORKERS, _START = 0, 1, 2
_WORDS = 3
_SLOTS = 1024


def imported_torch() -> Any:
    """The module torch, or MissingExtraError with the command that installs it."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError.for_extra("torch", "torch") from None
    return torch


def worker_info() -> Any:
    """torch's description of the DataLoader worker that this process is; None in any other process."""
    return imported_torch().utils.data.get_worker_info()


class Passes:
    """Counts the passes begun since a start was set, in memory that workers share.

    A DataLoader makes new workers for every pass, each from the same copy of the dataset: only shared memory
    shows them which pass they are in. All workers of one pass have one seed, and pass it on as their key. The first
    of them to begin counts the pass; that two of them do it at once changes nothing, because both write the same.
    """

    def __init__(self, start: Sequence[int] = ()) -> None:
        torch = imported_torch()
        self._n_start = len(start)
        self._board = torch.zeros(_WORDS + len(start) + _SLOTS, dtype=torch.int64).share_memory_()
        self._turn = 0
        self.restart(start)

    def restart(self, start: Sequence[int] = ()) -> None:
        """The next pass is number 0, and begins at `start`."""
        number = self.start_number + 1
        self._board.zero_()
        self._board[_START] = self._known_start = number
        self.move_start(start)

    def move_start(self, start: Sequence[int]) -> None:
        """Pass number 0 would have begun at `start`; the passes begun so far stay counted."""
        for index, word in enumerate(start):
            self._board[_WORDS + index] = word - (1 << 64) if word >= 1 << 63 else word

    @property
    def start_number(self) -> int:
        """Changes with every restart."""
        return int(self._board[_START])

    @property
    def start(self) -> tuple[int, ...]:
        """Where pass number 0 begins."""
        words = self._board[_WORDS : _WORDS + self._n_start].tolist()
        return tuple(int(word) % (1 << 64) for word in words)

    @property
    def is_with_workers(self) -> bool:
        """Whether DataLoader workers gave the last pass: then only they know how far they are."""
        return bool(self._board[_BY_WORKERS])

    def settle(self) -> None:
        """The last pass is over, and this process knows it."""
        self._board[_BY_WORKERS] = 0

    def number(self) -> int:
        """The number of the pass that this process would begin next."""
        return self._next()[0]

    def begin(self) -> int:
        """Begin a pass and return its number."""
        number, key = self._next()
        info = worker_info()
        if info is not None and not self._turn and self._known_start != self.start_number:
            return number  # a worker of an iteration that was dropped before the restart: nothing reads its batches
        self._board[_LAST] = key << _COUNT_BITS | number + 1
        self._board[_BY_WORKERS] = int(info is not None)
        if info is not None:
            self._board[self._slot(info)] = number + 1
            self._turn += 1
        return number

    def _next(self) -> tuple[int, int]:
        """The number and the key of the next pass here."""
        last_key, count = divmod(int(self._board[_LAST]), 1 << _COUNT_BITS)
        info = worker_info()
        if info is None:
            return count, 0
        key = stream_key(info.seed - info.id, self._turn) % (1 << _KEY_BITS) or 1
        has_begun_it = int(self._board[self._slot(info)]) == count
        return (count - 1 if key == last_key and not has_begun_it else count), key

    def _slot(self, info: Any) -> int:
        return _WORDS + self._n_start + int(info.id) % _SLOTS


class StatefulLoader:
    """A DataLoader whose state is after the batch it handed over last, not after what its workers have read ahead.

    The dataset gives batches with their places by `tagged`, and learns what was handed over by `note_begin`, `note` and
    `note_end`.
    """

    def __init__(self, dataset: Any, options: dict[str, Any]) -> None:
        for name in ("batch_size", "dataset", "sampler", "batch_sampler", "shuffle", "drop_last", "in_order"):
            if name in options:
                raise ValueError(f"{name} is not for the loader: the dataset decides it")
        self.dataset = dataset
        self._options = {**options, "collate_fn": _Collate(options.get("collate_fn"))}
        self._loader: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.dataset.note_begin()
        for tag, batch in self._opened():
            self.dataset.note(tag)
            yield batch
        self.dataset.note_end()

    @property
    def sampler(self) -> EpochSetter | None:
        """Where trainers look for `set_epoch`, which they call before every epoch; None if all epochs are alike."""
        return EpochSetter(self.dataset) if hasattr(self.dataset, "set_epoch") else None

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the batch it handed over last."""
        state: dict[str, Any] = self.dataset.state_dict()
        return state

    def load_state_dict(self, state: Any) -> None:
        """Go on from a state the next time it is iterated, with any number of workers."""
        self.dataset.load_state_dict(state)
        self._loader = None  # workers that persist have the state they began with

    def __len__(self) -> int:
        return len(self.dataset)

    def _opened(self) -> Any:
        if self._loader is None:
            data = imported_torch().utils.data
            self._loader = data.DataLoader(_tagged_dataset(self.dataset), batch_size=None, **self._options)
        return self._loader


class _Collate:
    """What a user's collate_fn makes of a batch; its tag stays beside it."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(self, pair: tuple[Any, Any]) -> tuple[Any, Any]:
        tag, batch = pair
        return tag, batch if self._inner is None else self._inner(batch)


def _tagged_dataset(dataset: Any) -> Any:
    class Tagged(imported_torch().utils.data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            yield from dataset.tagged()

        def __reduce__(self) -> tuple[Any, ...]:
            return _tagged_dataset, (dataset,)

    return Tagged()


Tag = tuple[Place, LeftOut]


def torch_epochs(source: EpochStream) -> Any:
    """An IterableDataset over the batches of a source; use its `loader()`, or DataLoader(dataset, batch_size=None)."""
    return as_iterable_dataset(TorchEpochs)(source)


@cache
def as_iterable_dataset(kind: type[TorchEpochs]) -> Any:
    """The same class as one of torch's iterable datasets."""
    base = imported_torch().utils.data.IterableDataset
    return type(kind.__name__, (kind, base), {"__doc__": kind.__doc__, "__module__": kind.__module__})


class TorchEpochs:
    """Every iteration is the rest of an epoch, then the next ones follow; worker w gives every n-th batch from w on.

    `set_epoch` chooses the next epoch. Workers, ranks and seeds of torch do not change the order.
    """

    _hint = "iterate dataset.loader(num_workers=…) and use its state_dict(), or use torchdata's StatefulDataLoader"

    def __init__(self, source: EpochStream) -> None:
        self._source = source
        self._passes = Passes(source.place)
        self._own: Place | None = None
        """Where this worker continues, if its DataLoader keeps a state for each worker."""
        self._now: Place | None = None
        """Where this process is, once it has given or noted a batch."""

    def __iter__(self) -> Iterator[Any]:
        return (batch for _, batch in self.tagged())

    def tagged(self) -> Iterator[tuple[Tag, Any]]:
        """Batches, each with the place of its source after it, and the damage it was cut without."""
        first = self._begin()
        info = worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for step, batch in self._source.read_steps(first, worker, workers):
            self._now = (first[0], step.after if info is None else step.settled)
            self._source.note(step.left_out)
            yield ((first[0], step.after), step.left_out), self._source.to_tensors(step, batch)
        self._now = None if info is None else (first[0], self._source.total)

    def _begin(self) -> Place:
        """Begin a pass: where it starts."""
        first = self._next_start()
        number = self._passes.begin()
        if self._own is not None:  # the passes after this one follow from here
            self._passes.move_start((first[0] - number, 0))
        self._own, self._now = None, None
        return first

    def _next_start(self) -> Place:
        """Where the next pass of this process starts."""
        if self._own is not None:
            return self._own
        number = self._passes.number()
        epoch, position = self._passes.start
        return ((epoch + number) % (1 << 64), 0 if number else position)

    def __len__(self) -> int:
        """Steps of a whole epoch, also where the next iteration gives the rest of one: trainers count from there."""
        return self._source.steps_left(0)

    def loader(self, **options: Any) -> StatefulLoader:
        """A DataLoader (its options are `options`) whose `state_dict` is after the batch handed over last."""
        return StatefulLoader(self, options)

    @property
    def epoch(self) -> int:
        """The epoch of the batch given last, or of the next one."""
        return (self._now or self._next_start())[0]

    def set_epoch(self, epoch: int) -> None:
        """Iterate from the beginning of an epoch next; without it every iteration is the next epoch."""
        self._restart((require_integer("epoch", epoch, MAX_EPOCH), 0))

    def state_dict(self) -> dict[str, Any]:
        """Where the dataset is: after the batch given last, or at the beginning of the next epoch."""
        info = worker_info()
        if info is None and self._now is None and self._passes.is_with_workers:
            raise RuntimeError(f"DataLoader workers read this data, and only they know how far: {self._hint}")
        state = self._source.state_at(self._now or self._next_start(), is_worker=info is not None)
        return state if info is None else {**state, "worker": info.id, "workers": info.num_workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batch the state was taken at."""
        info = worker_info()
        mine = None if info is None else (info.id, info.num_workers)
        if (
            isinstance(state, Mapping)
            and "worker" in state
            and (state["worker"], state.get("workers")) != mine
        ):
            raise ValueError(f"this is the state of worker {state['worker']} of {state.get('workers')} alone")
        start = self._source.checked_state(state)
        if info is not None:
            self._own, self._now = start, None
        else:
            self._restart(start)

    def _restart(self, start: Place) -> None:
        self._passes.restart(start)
        self._own, self._now = None, None

    def note_begin(self) -> None:
        """A DataLoader begins an epoch."""
        self._now = None

    def note(self, tag: Tag) -> None:
        """The batch before this position was handed over."""
        self._now, left_out = tag
        self._source.note(left_out)

    def note_end(self) -> None:
        """The epoch is over: the next one begins."""
        self._now = None
        self._passes.settle()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self._kind(), self._source, self._passes))

    @classmethod
    def _kind(cls) -> type[TorchEpochs]:
        """The class before it was made one of torch's."""
        return next(each for each in cls.__mro__[1:] if issubclass(each, TorchEpochs))


def _restored(kind: Any, source: EpochStream, passes: Passes) -> Any:
    dataset = as_iterable_dataset(kind)(source)
    dataset._passes = passes
    return dataset
