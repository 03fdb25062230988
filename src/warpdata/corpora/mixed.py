"""Several shuffled corpora as one stream: a fixed schedule chooses the source of every batch."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdata.corpora.batch import RowBatch, Rows
from warpdata.corpora.shuffled import ShuffledRows
from warpdata.errors import require_kind
from warpdata.ordering.mixture import WeightSchedule, mixture_shares
from warpdata.ordering.state import checked_integer

STATE_VERSION = 2
MAX_BATCHES = 10**15


@dataclass(frozen=True, slots=True, eq=False)
class MixedBatch(RowBatch):
    """A batch, and which of the streams it came from."""

    source: int = 0


class MixedRows:
    """Batches of several ShuffledRows by weight, without end: a stream that is used up begins its next epoch.

    The schedule is that of `wd.Mixture`: it depends on the weights alone, so ranks agree on it and every stream keeps
    its own order.
    """

    def __init__(self, streams: Sequence[ShuffledRows], weights: Sequence[float]) -> None:
        for stream in streams:
            require_kind("a stream of a mixture", stream, ShuffledRows, "a ShuffledRows")
        if len(streams) != len(weights):
            raise ValueError(f"{len(streams)} streams and {len(weights)} weights")
        self.streams = tuple(streams)
        self._shares = mixture_shares(weights)
        widths = {stream.source.width for stream in streams}
        if len(widths) != 1:
            raise ValueError(f"streams of a mixture have one width, not {sorted(widths)}")
        if not all(stream.batches_per_epoch() for stream in streams):
            raise ValueError("every stream of a mixture has at least one batch")
        self._first = [(stream.epoch, stream.position) for stream in streams]
        if any(position for _, position in self._first):
            raise ValueError("a mixture begins with streams at the beginning of an epoch")
        self._schedule = WeightSchedule([(0, weights)])
        self._position = 0
        """Batches that all streams together have given."""

    def next_batch(self, out: Rows | None = None) -> MixedBatch:
        """The next batch of the schedule."""
        source = int(self._schedule.at(np.array([self._position], np.int64))[0][0])
        stream = self.streams[source]
        batch = stream.next_batch(out)
        if batch is None:  # the end of an epoch: the next begins
            batch = stream.next_batch(out)
        assert batch is not None
        self._position += 1
        return MixedBatch(batch.rows, batch.row_ids, source)

    def __iter__(self) -> Iterator[MixedBatch]:
        while True:
            yield self.next_batch()

    def state_dict(self) -> dict[str, Any]:
        """Where the mixture stands, the same on every rank: how many batches it has given."""
        return {"v": STATE_VERSION, "position": self._position, "plan": self._plan()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches of another mixture of the same streams and weights, of any rank and world."""
        if not isinstance(state, Mapping) or state.get("v") != STATE_VERSION:
            raise ValueError(f"not a state of a mixture of version {STATE_VERSION}: {state!r}")
        if state.get("plan") != self._plan():
            raise ValueError("the state belongs to other streams, weights or seeds")
        position = checked_integer("position of a state", state.get("position"), MAX_BATCHES)
        for index, count in enumerate(self._schedule.given(position).tolist()):
            self._place(index, count)
        self._position = position

    def _place(self, index: int, count: int) -> None:
        """Put one stream where it stands after so many batches."""
        stream = self.streams[index]
        epochs, batches = divmod(count, stream.batches_per_epoch())
        stream.set_epoch(self._first[index][0] + epochs)
        stream.load_state_dict({**stream.state_dict(), "position": batches * stream.batch_size})

    def _plan(self) -> str:
        seeds = [stream.seed for stream in self.streams]
        plans = [stream.shape.fingerprint() for stream in self.streams]
        tails = [stream.tail for stream in self.streams]
        text = repr(
            (plans, seeds, tails, [epoch for epoch, _ in self._first], [str(s) for s in self._shares])
        )
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:6]).decode()

    def close(self) -> None:
        """Stop reading ahead; the sources stay open."""
        for stream in self.streams:
            stream.close()
