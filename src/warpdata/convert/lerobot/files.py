"""The data and video files of an exported set: many episodes each (v3.0), or one (v2.1); frames are copied."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from warpdata.convert.lerobot.tables import RowsFile
from warpdata.formats.episodedir.containers import HEAD_BYTES, file_head, wrapped


class VideoOut:
    """A video file that grows by encoded frames; its tables are written when it is closed."""

    def __init__(self, path: Path, entry: bytes, rate: Fraction) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.entry = entry
        self._rate = rate
        self._file = open(path, "xb")  # noqa: SIM115 - closed by `close`
        self._file.write(file_head(0))
        self._sizes: list[int] = []
        self._keys: list[bool] = []
        self._shows: list[int] = []
        self.bytes = HEAD_BYTES

    @property
    def frames(self) -> int:
        """How many frames it has."""
        return len(self._sizes)

    def add(self, packets: Iterable[bytes], keyframe: Sequence[bool], shows: Sequence[int]) -> None:
        """Append frames in decoding order; `shows` counts from the first of them."""
        first = self.frames
        for data in packets:
            self._file.write(data)
            self._sizes.append(len(data))
            self.bytes += len(data)
        self._keys += keyframe
        self._shows += [first + number for number in shows]

    def close(self) -> None:
        """Write the tables, and how long the frames are."""
        size = np.array(self._sizes, np.int64)
        around = wrapped(
            self.entry, size, np.array(self._shows, np.int64), np.array(self._keys, np.bool_), self._rate
        )
        self._file.write(around.tail)
        self._file.seek(0)
        self._file.write(around.head)
        self._file.close()

    def discard(self) -> None:
        """Let go of an unfinished file."""
        self._file.close()


class Numbers:
    """Chunk and file numbers as LeRobot counts them."""

    def __init__(self, chunks_size: int) -> None:
        self._chunks_size = chunks_size
        self.chunk, self.file = 0, -1

    def next(self) -> tuple[int, int]:
        """The numbers of the next file."""
        self.file += 1
        if self.file >= self._chunks_size:
            self.chunk, self.file = self.chunk + 1, 0
        return self.chunk, self.file


class DataOut:
    """The data files of a set: a new one when the next episode would make it too large, or for every episode."""

    def __init__(self, limit_bytes: int | None, numbers: Numbers) -> None:
        self._limit = limit_bytes
        self._numbers = numbers
        self._path: Path | None = None
        self._out: RowsFile | None = None

    def write(self, place: Any, schema: Any, columns: Mapping[str, Any]) -> tuple[int, int]:
        """Add the rows of an episode; `place(chunk, file)` names files. Returns where they are."""
        size = sum(column.nbytes for column in columns.values())
        if self._out is None or self._limit is None or self._used() + size >= self._limit:
            self.close()
            self._path = Path(place(*self._numbers.next()))
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._out = RowsFile(str(self._path), schema)
        self._out.write(columns)
        return self._numbers.chunk, self._numbers.file

    def _used(self) -> int:
        return os.path.getsize(self._path) if self._path is not None else 0

    def close(self) -> None:
        """Finish the file that is open."""
        if self._out is not None:
            self._out.close()
            self._out = None
