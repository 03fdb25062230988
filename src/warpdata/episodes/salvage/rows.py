"""The records of one signal over all journals of an unfinished recording."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.dtype import dtype_named
from warpdata.episodes.salvage.unfinished import OpenJournal
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir.signal_file import Description

_ROWS = 8192


class JournaledRows:
    """The records of one stream over all journals, in the order they were made."""

    def __init__(self, journals: list[OpenJournal], stream: int) -> None:
        self._journals = journals
        picked = [journal.records.of_stream(stream) for journal in journals]
        self._step = np.concatenate([np.empty(0, np.int64), *(each.first_step for each in picked)])
        self._where = np.repeat(np.arange(len(picked)), [len(each) for each in picked])
        offset, size, ts_ns = (
            np.concatenate([np.empty(0, np.int64), *(getattr(each, name) for each in picked)])
            for name in ("payload_offset", "payload_bytes", "ts_ns")
        )
        # Of two records of one number the later one holds: Ctrl-C came before the earlier one was acknowledged.
        _, order = np.unique(self._step[::-1], return_index=True)
        order = len(self._step) - 1 - order
        self._step, self._where = self._step[order], self._where[order]
        self._offset, self._size, self._ts = offset[order], size[order], ts_ns[order]
        if (self._ts[1:] <= self._ts[:-1]).any():
            raise CorruptLayoutError(f"the times of stream {stream} do not increase", path=_path(journals))

    @property
    def steps(self) -> NDArray[np.int64]:
        """The number of each record among those of its signal."""
        return self._step

    @property
    def missing(self) -> int:
        """How many records there were before the last one that are not here."""
        return int(self._step[-1]) + 1 - len(self) if len(self) else 0

    def fits(self, step: int, ts_ns: int) -> bool:
        """Whether the record of this number can have been made at this time, by the times of the others."""
        at = int(np.searchsorted(self._step, step))
        if at < len(self) and self._step[at] == step:
            return int(self._ts[at]) == ts_ns
        return (at == 0 or self._ts[at - 1] < ts_ns) and (at == len(self) or bool(ts_ns < self._ts[at]))

    def __len__(self) -> int:
        return len(self._step)

    def numbers(self, description: Description) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, values) in blocks."""
        dtype = dtype_named(description.dtype).dtype
        row_bytes = dtype.itemsize * math.prod(description.shape)
        if (self._size != row_bytes).any():
            raise CorruptLayoutError("records of the wrong size", path=_path(self._journals))
        step = max(1, min(_ROWS, (4 << 20) // max(1, row_bytes)))
        for start in range(0, len(self), step):
            chosen = slice(start, start + step)
            raw = self._gather(self._where[chosen], self._offset[chosen], row_bytes)
            yield self._ts[chosen], raw.view(dtype).reshape(-1, *description.shape)

    def _gather(self, where: NDArray[Any], offset: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint8]:
        out = np.empty((len(where), row_bytes), np.uint8)
        for number in np.unique(where):
            reader = self._journals[number].reader.reader
            rows = np.flatnonzero(where == number)
            low, high = int(offset[rows].min()), int(offset[rows].max()) + row_bytes
            area = np.frombuffer(reader.read(low, high), np.uint8)
            out[rows] = area[(offset[rows] - low)[:, None] + np.arange(row_bytes)]
        return out

    def events(self, kind: str) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """(timestamps, text or bytes) in blocks."""
        block: list[Any] = []
        stamps: list[int] = []
        for ts_ns, payload in self.payloads():
            stamps.append(ts_ns)
            block.append(bytes(payload).decode() if kind == "text" else bytes(payload))
            if len(block) == _ROWS:
                yield _events(stamps, block)
                stamps, block = [], []
        if block:
            yield _events(stamps, block)

    def payloads(self) -> Iterator[tuple[int, memoryview]]:
        """(time, bytes) of each record, one at a time."""
        for position in range(len(self)):
            yield self.payload(position)

    def payload(self, position: int) -> tuple[int, memoryview]:
        """(time, bytes) of one record."""
        reader = self._journals[int(self._where[position])].reader.reader
        offset, size = int(self._offset[position]), int(self._size[position])
        return int(self._ts[position]), reader.read(offset, offset + size)


def _events(stamps: list[int], values: list[Any]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    out = np.empty(len(values), object)
    out[:] = values
    return np.array(stamps, np.int64), out


def _path(journals: list[OpenJournal]) -> str:
    return journals[0].reader.name if journals else ""
