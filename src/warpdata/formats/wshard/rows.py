"""Rows of a channel: in memory, in a block of a shard, as text, cut, joined; with the checksums of pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, dtype_named
from warpdata.bytekit.checksum import crc32c, join_crc32c
from warpdata.bytekit.jsontext import dump_json, parse_json
from warpdata.errors import (
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    SchemaMismatchError,
)
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.schema import TensorSpec

if TYPE_CHECKING:
    from typing import Self

    from warpdata.formats.wshard.reader import ShardReader


class ChannelRows(Protocol):
    """Where the rows of a channel come from."""

    @property
    def spec(self) -> TensorSpec: ...

    @property
    def length(self) -> int: ...

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end), reading no more than they need."""


_STEPS_AT_ONCE = 64

"""Few enough that long values do not fill the memory: a value has no size before it is encoded."""


class ValueType(DType):
    """What a text or JSON channel holds: a Python value per step, so `.data` is an array of objects."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(object)

    def __reduce__(self) -> tuple[Any, ...]:
        return (value_type, (self.name,))


TEXT, JSON = ValueType("text"), ValueType("json")

CONTENT_TYPES = {"text": layout.CONTENT_TEXT, "json": layout.CONTENT_JSON}


def value_type(name: str) -> ValueType:
    """The type of text or of JSON channels by name."""
    return {"text": TEXT, "json": JSON}[name]


def is_text(dtype: DType) -> bool:
    """Whether a channel holds text or JSON instead of numbers."""
    return isinstance(dtype, ValueType)


def text_spec(name: str) -> TensorSpec:
    """One value per step."""
    return TensorSpec(value_type(name), ())


def encode_value(encoding: str, value: Any) -> bytes:
    """The bytes of one value, or ValueError."""
    if encoding == "text":
        if not isinstance(value, str):
            raise ValueError(f"text was expected, not {type(value).__name__}")
        return value.encode()
    try:
        return dump_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from None


def decode_value(encoding: str, data: bytes, block: str, path: str) -> Any:
    """The value behind the bytes of one step, or CorruptLayoutError."""
    try:
        return data.decode() if encoding == "text" else parse_json(data)
    except UnicodeDecodeError:
        raise CorruptLayoutError("holds text that is not UTF-8", block=block, path=path) from None
    except FormatError as error:
        raise type(error)(error.message, block=block, path=path) from None


class TextRows:
    """Values out of a block of bytes and a block of ends."""

    def __init__(self, data: ChannelRows, ends: ChannelRows, encoding: str, block: str, path: str) -> None:
        self._path = path
        self._data = data
        self._ends = ends
        self._encoding = encoding
        self._block = block
        self.spec = text_spec(encoding)
        self.length = ends.length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Values [start, end), reading only their bytes."""
        out = np.empty(end - start, object)
        if start == end:
            return out
        known = self._ends.rows(max(0, start - 1), end).tolist()
        bounds = known if start else [0, *known]
        whole = self._data.length
        in_order = all(low <= high for low, high in itertools.pairwise(bounds))
        if (
            not in_order
            or bounds[0] < 0
            or bounds[-1] > whole
            or (end == self.length and bounds[-1] != whole)
        ):
            raise CorruptLayoutError(
                "the ends of its values are not those of its bytes", block=self._block, path=self._path
            )
        data = self._data.rows(bounds[0], bounds[-1]).tobytes()
        for index in range(end - start):
            low, high = bounds[index] - bounds[0], bounds[index + 1] - bounds[0]
            out[index] = decode_value(self._encoding, data[low:high], self._block, self._path)
        return out


class EncodedRows:
    """The values of a text or JSON channel as bytes, encoded a window at a time; `ends` says where each ends."""

    spec = TensorSpec(dtype_named("u8"), ())

    def __init__(self, rows: ChannelRows, block: str) -> None:
        self._rows = rows
        self._encoding = str(rows.spec.dtype)
        self._block = block
        sizes = np.zeros(rows.length, np.int64)
        for start in range(0, rows.length, _STEPS_AT_ONCE):
            values = self._encoded(start, min(start + _STEPS_AT_ONCE, rows.length))
            sizes[start : start + len(values)] = [len(each) for each in values]
        self._last: tuple[range, bytes] = range(0), b""
        self.ends = np.cumsum(sizes)
        self.length = int(self.ends[-1]) if rows.length else 0

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Bytes [start, end) of all values joined."""
        if start >= end:
            return np.zeros(0, np.uint8)
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.ends, end, side="left"))
        if self._last[0] != range(first, last + 1):
            self._last = range(first, last + 1), b"".join(self._encoded(first, last + 1))
        offset = int(self.ends[first - 1]) if first else 0
        # One value may be many windows long: it is encoded once for those inside it.
        return np.frombuffer(self._last[1], np.uint8)[start - offset : end - offset]

    def _encoded(self, start: int, end: int) -> list[bytes]:
        try:
            return [encode_value(self._encoding, each) for each in self._rows.rows(start, end).tolist()]
        except ValueError as error:
            raise SchemaMismatchError(str(error), block=self._block) from None


class ArrayRows:
    """Rows of an array in memory."""

    def __init__(self, array: NDArray[Any], spec: TensorSpec) -> None:
        self.array = array
        self.spec = spec
        self.length = len(array)

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) as a view."""
        return self.array[start:end]


class WatchedRows:
    """Rows of another source, with a call for every stretch that was read: how many bytes it had."""

    def __init__(self, rows: ChannelRows, on_bytes: Callable[[int], None]) -> None:
        self._rows = rows
        self._on_bytes = on_bytes
        self.spec = rows.spec
        self.length = rows.length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end)."""
        self._on_bytes((end - start) * self.spec.row_bytes)
        return self._rows.rows(start, end)


class SlicedRows:
    """Rows [start, end) of another source."""

    def __init__(self, rows: ChannelRows, start: int, end: int) -> None:
        self.source = rows
        self._start = start
        self.spec = rows.spec
        self.length = end - start

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) counted from the start of the slice."""
        return self.source.rows(self._start + start, self._start + end)


class JoinedRows:
    """The rows of several chunks one after the other; each is opened when one of its rows is asked for."""

    is_stored = True

    def __init__(
        self, spec: TensorSpec, lengths: Sequence[int], opened: Callable[[int], ChannelRows]
    ) -> None:
        self.spec = spec
        self._starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
        self.length = int(self._starts[-1])
        self._opened = opened

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); a view where one source holds them all, else a copy."""
        if start >= end:
            return np.zeros((0, *self.spec.shape), self.spec.dtype.dtype)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, end, side="left"))
        parts = [self._part(index, start, end) for index in range(first, last)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, index: int, start: int, end: int) -> NDArray[Any]:
        low, high = int(self._starts[index]), int(self._starts[index + 1])
        source = self._opened(index)
        if source.spec != self.spec or source.length != high - low:
            raise CorruptLayoutError(f"chunk {index} does not hold the rows its list promises")
        return source.rows(max(start, low) - low, min(end, high) - low)


def is_stored(rows: ChannelRows) -> bool:
    """Whether rows come from a file as they are: whoever wrote it decided what they hold."""
    return is_stored(rows.source) if isinstance(rows, SlicedRows) else getattr(rows, "is_stored", False)


def rows_per_piece(row_bytes: int) -> int:
    """How many rows one checksum covers."""
    return max(1, layout.PIECE_BYTES // max(1, row_bytes))


class PieceChecksums:
    """One CRC32C per piece of a raw block, and which pieces this reader has checked already."""

    def __init__(self, rows: int, checksums: NDArray[np.uint32]) -> None:
        self.rows = rows
        self.checksums = checksums
        self._checked = bytearray(len(checksums))

    @classmethod
    def unpack(cls, data: memoryview, path: str) -> Self:
        """Read an `aux/crc32c/…` block."""
        size = layout.PIECES_HEADER.size
        if len(data) < size or len(data) % 4:
            raise CorruptLayoutError("a list of piece checksums has an odd size", path=path)
        (rows,) = layout.PIECES_HEADER.unpack(data[:size])
        if rows == 0:
            raise CorruptLayoutError("a list of piece checksums has pieces of no rows", path=path)
        return cls(rows, np.frombuffer(data[size:], "<u4"))

    def pack(self) -> bytes:
        """The bytes of an `aux/crc32c/…` block."""
        return layout.PIECES_HEADER.pack(self.rows) + self.checksums.astype("<u4").tobytes()

    def is_checked(self, start_row: int, end_row: int) -> bool:
        """Whether every piece of these rows was checked by this reader."""
        return self._checked.find(0, start_row // self.rows, -(-end_row // self.rows)) < 0

    @property
    def is_all_checked(self) -> bool:
        """Whether every piece was checked by this reader."""
        return self._checked.find(0) < 0

    def joined(self, piece_bytes: int, raw_size: int) -> int:
        """The checksum of the whole block, from those of its pieces."""
        *full, last = self.checksums.tolist()
        whole = 0
        for checksum in full:
            whole = join_crc32c(whole, checksum, piece_bytes)
        return join_crc32c(whole, last, raw_size - len(full) * piece_bytes)

    def span(self, start: int, end: int, row_bytes: int, raw_size: int) -> tuple[int, int]:
        """The bytes to read so that [start, end) is covered by whole unchecked pieces."""
        piece = self.rows * row_bytes
        first, last = start // piece, -(-end // piece)
        if self._checked.find(0, first, last) < 0:
            return start, end
        return first * piece, min(last * piece, raw_size)

    def check(self, data: memoryview, offset: int, row_bytes: int, block: str, path: str) -> None:
        """Verify the pieces that `data`, which begins at `offset` of the block, covers."""
        piece = self.rows * row_bytes
        if offset % piece:
            return
        for start in range(0, len(data), piece):
            index = (offset + start) // piece
            if not self._checked[index]:
                if crc32c(data[start : start + piece]) != self.checksums[index]:
                    raise ChecksumError(f"piece {index} does not match its checksum", block=block, path=path)
                self._checked[index] = 1


_GAP_BYTES = 64 << 10


class BlockRows:
    """Rows of a block that stays in its shard."""

    is_stored = True
    _array: NDArray[Any] | None = None
    _mapped: NDArray[Any] | None = None
    _is_checked = False
    _pieces: PieceChecksums | None = None

    def __init__(self, shard: ShardReader, block: str, spec: TensorSpec, length: int) -> None:
        self._shard = shard
        self.block = block
        self.spec = spec
        self.length = length

    @property
    def shard(self) -> ShardReader:
        """Where the block lies."""
        return self._shard

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); all of them come verified against the checksum of the block."""
        if start == 0 and end == self.length:
            data = np.frombuffer(self._shard.whole(self.block), self.spec.dtype.dtype)
            return data.reshape(self.length, *self.spec.shape)
        if self._array is not None:
            self._shard.check_not_truncated()
            self._shard.verify_rows(self.block, self.spec.row_bytes, start, end)
            return self._array[start:end]
        if (mapped := self._shard.mapped(self.block)) is not None:
            self._array = np.frombuffer(mapped, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
            return self.rows(start, end)
        return self._shard.rows_as(self.block, self.spec, start, end)

    def read_windows(
        self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64] | None = None
    ) -> None:
        """Rows from each start on, as many as a row of `out` holds, into that row of it (or the one `places` names).

        All of them in one call: a raw block is copied from where it lies, a frame of a compressed one is decoded once.
        """
        width = out.shape[1]
        if len(starts) and (int(starts.min()) < 0 or int(starts.max()) + width > self.length):
            raise IndexError(
                f"windows of {width} rows outside the {self.length} rows of block {self.block!r}"
            )
        targets = range(len(starts)) if places is None else places.tolist()
        mapped = self.mapped_rows()
        if mapped is not None:
            rows, check = mapped
            for start, place in zip(starts.tolist(), targets, strict=True):
                if check is not None:
                    check(start, start + width)
                out[place] = rows[start : start + width]
            return
        if self._shard.is_seekable(self.block) and out.flags.c_contiguous:
            size = self.spec.row_bytes
            parts = out.reshape(len(out), -1).view(np.uint8)
            for start, place in zip(starts.tolist(), targets, strict=True):
                self._shard.copy_frames(self.block, start * size, parts[place])
            return
        for low, high, members in _near_together(starts, width, self._gap_rows()):
            run = self.rows(low, high)
            for member in members:
                start = int(starts[member]) - low
                out[targets[member]] = run[start : start + width]

    def rows_kept(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Single rows of a block in frames, which are kept for neighbours; None of any other block."""
        if not self._shard.is_seekable(self.block):
            return None
        out = np.empty((len(rows), 1, *self.spec.shape), self.spec.dtype.dtype)
        self.read_windows(rows, out)
        return out[:, 0]

    def mapped_rows(self) -> tuple[NDArray[Any], Callable[[int, int], bool] | None] | None:
        """All rows in place, and a function that checks a run of them before use; None if they are not mapped."""
        if self._mapped is None:
            if not self.spec.row_bytes or not self.length:
                return None
            found = self._shard.mapped(self.block) or self._shard.small_view(self.block)
            if found is None:
                return None
            self._mapped = np.frombuffer(found, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)
        else:
            self._shard.check_not_truncated()
        return self._mapped, None if self._is_checked else self._check

    def _check(self, start: int, end: int) -> bool:
        """Raise unless these rows are as they were written; returns whether that is known of all rows now."""
        if not self._is_checked and (self._pieces is None or not self._pieces.is_checked(start, end)):
            self._shard.verify_rows(self.block, self.spec.row_bytes, start, end)
            self._is_checked = self._shard.is_verified(self.block)
            self._pieces = None if self._is_checked else self._shard.pieces(self.block, self.spec.row_bytes)
        return self._is_checked

    @property
    def is_far(self) -> bool:
        """Whether reading waits for a network."""
        return not self._shard.is_local

    def bring(self, rows: NDArray[np.int64]) -> None:
        """Fetch the bytes of these rows into a cache, if there is one and they are remote."""
        if self.is_far and self.spec.row_bytes:
            runs = [(low, high) for low, high, _ in _near_together(np.unique(rows), 1, self._gap_rows())]
            self._shard.bring(self.block, self.spec.row_bytes, runs)

    def _gap_rows(self) -> int:
        """How many rows between two windows are read along with them rather than apart."""
        return _GAP_BYTES // max(1, self.spec.row_bytes)

    def checksum(self) -> int:
        """CRC-32C of all rows, as the file states it."""
        return self._shard.block(self.block).crc32c

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_array": None, "_mapped": None, "_is_checked": False, "_pieces": None}


def _near_together(starts: NDArray[np.int64], width: int, gap: int) -> Iterator[tuple[int, int, list[int]]]:
    """Windows joined where they overlap or nearly touch: first row, end, and the windows inside."""
    order = np.argsort(starts, kind="stable")
    firsts = starts[order]
    cuts = np.flatnonzero(firsts[1:] > np.maximum.accumulate(firsts[:-1] + width) + gap) + 1
    for members in np.split(order, cuts):
        if len(members):
            yield int(starts[members[0]]), int(starts[members[-1]]) + width, members.tolist()
