"""Rows of a channel: in memory, in a block of a shard, as text, cut, joined; with the checksums of pieces."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType
from warpdata.bytekit.checksum import crc32c, join_crc32c
from warpdata.bytekit.jsontext import dump_json, parse_json
from warpdata.errors import ChecksumError, CorruptLayoutError, FormatError, SchemaMismatchError, add_path
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.schema import ENCODINGS, TensorSpec, tensor_spec

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


class ArrayRows:
    """Rows of an array in memory."""

    def __init__(self, array: NDArray[Any], spec: TensorSpec) -> None:
        self.array = array
        self.spec = spec
        self.length = len(array)

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end) as a view."""
        return self.array[start:end]


@dataclass(frozen=True, slots=True)
class FunctionRows:
    """Rows that a function reads on demand."""

    spec: TensorSpec
    length: int
    rows: Callable[[int, int], NDArray[Any]]
    is_stored: bool = False


def slice_rows(rows: ChannelRows, start: int, end: int) -> ChannelRows:
    """Rows [start, end) of another source."""
    return FunctionRows(rows.spec, end - start, partial(_shifted, rows, start), is_stored(rows))


def _shifted(rows: ChannelRows, offset: int, start: int, end: int) -> NDArray[Any]:
    return rows.rows(offset + start, offset + end)


class JoinedRows:
    """The rows of several chunks one after the other; a chunk is opened when one of its rows is read."""

    is_stored = True

    def __init__(
        self,
        spec: TensorSpec,
        lengths: Sequence[int],
        open_part: Callable[[int], ChannelRows],
        *,
        increases: bool = False,
    ) -> None:
        """`increases`: the rows are times, and a chunk that does not begin after the one before it ends is refused."""
        self.spec, self.increases = spec, increases
        self.starts = [0, *itertools.accumulate(lengths)]
        self.length = self.starts[-1]
        self.open_part = open_part

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); a view where one source holds them all, else a copy."""
        parts = [np.zeros((0, *self.spec.shape), self.spec.dtype.dtype)] if start >= end else []
        while start < end:
            index = bisect.bisect_right(self.starts, start) - 1
            low, high = self.starts[index : index + 2]
            source = self.open_part(index)
            if source.spec != self.spec or source.length != high - low:
                raise CorruptLayoutError(f"chunk {index} does not hold the rows its list promises")
            part = source.rows(start - low, min(end, high) - low)
            if self.increases and parts and part[0] <= parts[-1][-1]:
                raise CorruptLayoutError(
                    f"chunk {index} starts before the one before it ends: at {part[0]} ns, "
                    f"expected a time after {parts[-1][-1]} ns"
                )
            parts.append(part)
            start = high
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def is_stored(rows: ChannelRows) -> bool:
    """Whether rows come from a file: the program that wrote it decided what they hold."""
    return getattr(rows, "is_stored", False)


class ValueType(DType):
    """What a text or JSON channel holds: a Python value per step, so `.data` is an array of objects."""

    __slots__ = ()

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = np.dtype(object)


_VALUES = {name: TensorSpec(ValueType(name), ()) for name in ENCODINGS}
CONTENT_TYPES = {"text": layout.CONTENT_TEXT, "json": layout.CONTENT_JSON}
_VALUES_AT_ONCE = 64
"""Few enough that long values do not fill the memory: a value has no size before it is encoded."""


def is_text(dtype: DType) -> bool:
    """Whether a channel holds text or JSON instead of numbers."""
    return isinstance(dtype, ValueType)


def text_spec(encoding: str) -> TensorSpec:
    """One text or JSON value per step."""
    return _VALUES[encoding]


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
        raise add_path(error, path, block) from None


class TextRows:
    """Values out of a block of bytes and a block of ends."""

    def __init__(self, data: ChannelRows, ends: ChannelRows, encoding: str, block: str, path: str) -> None:
        self.data, self.ends = data, ends
        self._block, self._path = block, path
        self.spec = text_spec(encoding)
        self.length = ends.length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Values [start, end), reading only their bytes."""
        out = np.empty(end - start, object)
        if start == end:
            return out
        bounds = self.ends.rows(max(0, start - 1), end).tolist()
        bounds = bounds if start else [0, *bounds]
        whole, pairs = self.data.length, list(itertools.pairwise(bounds))
        is_valid = bounds[0] >= 0 and bounds[-1] <= whole and all(low <= high for low, high in pairs)
        if not is_valid or (end == self.length and bounds[-1] != whole):
            raise CorruptLayoutError(
                "the ends of its values are not those of its bytes", block=self._block, path=self._path
            )
        data, base = self.data.rows(bounds[0], bounds[-1]).tobytes(), bounds[0]
        for index, (low, high) in enumerate(pairs):
            raw = data[low - base : high - base]
            out[index] = decode_value(str(self.spec.dtype), raw, self._block, self._path)
        return out


class EncodedRows:
    """The values of a text or JSON channel as bytes, encoded a window at a time; value k ends at `ends[k]`."""

    spec = tensor_spec("u8")

    def __init__(self, rows: ChannelRows, block: str) -> None:
        self._rows, self._block = rows, block
        sizes = np.zeros(rows.length, np.int64)
        for start in range(0, rows.length, _VALUES_AT_ONCE):
            values = self._encoded(start, min(start + _VALUES_AT_ONCE, rows.length))
            sizes[start : start + len(values)] = [len(value) for value in values]
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
        encoding = str(self._rows.spec.dtype)
        try:
            return [encode_value(encoding, value) for value in self._rows.rows(start, end).tolist()]
        except ValueError as error:
            raise SchemaMismatchError(str(error), block=self._block) from None


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
        return cls(rows, np.frombuffer(bytes(data[size:]), "<u4"))

    def pack(self) -> bytes:
        """The bytes of an `aux/crc32c/…` block."""
        return layout.PIECES_HEADER.pack(self.rows) + self.checksums.astype("<u4").tobytes()

    def is_checked(self, start_row: int = 0, end_row: int | None = None) -> bool:
        """Whether every piece of these rows, by default of all, was checked by this reader."""
        end = len(self._checked) if end_row is None else -(-end_row // self.rows)
        return self._checked.find(0, start_row // self.rows, end) < 0

    def join(self, piece_bytes: int, raw_size: int) -> int:
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
    _mapped: NDArray[Any] | None = None
    _is_checked = False
    _pieces: PieceChecksums | None = None

    def __init__(self, shard: ShardReader, block: str, spec: TensorSpec, length: int) -> None:
        self.shard = shard
        self.block = block
        self.spec = spec
        self.length = length

    def rows(self, start: int, end: int) -> NDArray[Any]:
        """Rows [start, end); all of them come verified against the checksum of the block."""
        if start == 0 and end == self.length:
            return self._shaped(self.shard.whole(self.block))
        mapped = self.mapped_rows()
        if mapped is None:
            return self.shard.rows_as(self.block, self.spec, start, end)
        rows, check = mapped
        if check is not None:
            check(start, end)
        return rows[start:end]

    def _shaped(self, data: memoryview) -> NDArray[Any]:
        return np.frombuffer(data, self.spec.dtype.dtype).reshape(self.length, *self.spec.shape)

    def read_windows(
        self, starts: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64] | None = None
    ) -> None:
        """Rows from each start on, as many as a row of `out` holds, into that row of it (or the one `places` names).

        All of them in one call: a raw block is copied from its mapping, a frame of a compressed one is decoded once.
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
        elif self.shard.block(self.block).is_seekable and out.flags.c_contiguous:
            size = self.spec.row_bytes
            parts = out.reshape(len(out), -1).view(np.uint8)
            for start, place in zip(starts.tolist(), targets, strict=True):
                self.shard.copy_frames(self.block, start * size, parts[place])
        else:
            for low, high, members in _near_together(starts, width, self._gap_rows()):
                run = self.rows(low, high)
                for member in members:
                    start = int(starts[member]) - low
                    out[targets[member]] = run[start : start + width]

    def rows_kept(self, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Single rows of a block in frames, which are kept for neighbours; None of any other block."""
        if not self.shard.block(self.block).is_seekable:
            return None
        out = np.empty((len(rows), 1, *self.spec.shape), self.spec.dtype.dtype)
        self.read_windows(rows, out)
        return out[:, 0]

    def mapped_rows(self) -> tuple[NDArray[Any], Callable[[int, int], bool] | None] | None:
        """All rows in place, and a function that checks a run of them before use; None if they are not mapped."""
        if self._mapped is None:
            data = self.shard.map_block(self.block) if self.spec.row_bytes and self.length else None
            if data is None:
                return None
            self._mapped = self._shaped(data)
        else:
            self.shard.check_not_truncated()
        return self._mapped, None if self._is_checked else self._check

    def _check(self, start: int, end: int) -> bool:
        """Raise unless these rows are as they were written; returns whether that is known of all rows now."""
        if not self._is_checked and (self._pieces is None or not self._pieces.is_checked(start, end)):
            self.shard.verify_rows(self.block, self.spec.row_bytes, start, end)
            self._is_checked = self.shard.is_verified(self.block)
            self._pieces = None if self._is_checked else self.shard.pieces(self.block, self.spec.row_bytes)
        return self._is_checked

    @property
    def is_far(self) -> bool:
        """Whether reading waits for a network."""
        return not self.shard.is_local

    def bring(self, rows: NDArray[np.int64]) -> None:
        """Fetch the bytes of these rows into a cache, if there is one and they are remote."""
        if self.is_far and self.spec.row_bytes:
            runs = [(low, high) for low, high, _ in _near_together(np.unique(rows), 1, self._gap_rows())]
            self.shard.bring(self.block, self.spec.row_bytes, runs)

    def _gap_rows(self) -> int:
        """How many rows between two windows are read along with them rather than apart."""
        return _GAP_BYTES // max(1, self.spec.row_bytes)

    def checksum(self) -> int:
        """CRC-32C of all rows, as the file states it."""
        return self.shard.block(self.block).crc32c

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mapped": None, "_is_checked": False, "_pieces": None}


def read_numbers(rows: ChannelRows) -> NDArray[np.int64]:
    """All times or offsets of a source, in memory."""
    return rows.shard.numbers(rows.block) if isinstance(rows, BlockRows) else rows.rows(0, rows.length)


def _near_together(starts: NDArray[np.int64], width: int, gap: int) -> Iterator[tuple[int, int, list[int]]]:
    """Windows joined where they overlap or nearly touch: first row, end, and the windows inside."""
    order = np.argsort(starts, kind="stable")
    firsts = starts[order]
    cuts = np.flatnonzero(firsts[1:] > np.maximum.accumulate(firsts[:-1] + width) + gap) + 1
    for members in np.split(order, cuts):
        if len(members):
            yield int(starts[members[0]]), int(starts[members[-1]]) + width, members.tolist()
