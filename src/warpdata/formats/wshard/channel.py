"""A channel: named rows of numbers, text or JSON values, in memory or still on disk."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, as_array, dtype_named, dtype_of, read_only, select_rows
from warpdata.bytekit.jsontext import dump_json, parse_json, plain_json
from warpdata.errors import CorruptLayoutError, FormatError, SchemaMismatchError, suggests
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.block_rows import BlockRows
from warpdata.formats.wshard.schema import ChannelRows, TensorSpec

if TYPE_CHECKING:
    from typing import Self

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


def guess_encoding(array: NDArray[Any]) -> str | None:
    """`text` for strings and `json` for objects, where every value is one; else None."""
    if array.dtype.kind == "U":
        return "text"
    values = array.ravel().tolist() if array.dtype == object else []
    if values and all(isinstance(each, str) for each in values):
        return "text"
    return "json" if values and all(isinstance(each, dict) for each in values) else None


def value_array(encoding: str, values: Iterable[Any]) -> NDArray[Any]:
    """Values as an array of objects, each of them checked; ValueError if one cannot be stored."""
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    out = np.empty(len(listed), object)
    for index, each in enumerate(listed):
        encode_value(encoding, each)
        out[index] = plain_json(each)
    return out


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


class Channel:
    """Named rows over time; `data` is read when first touched, `channel[a:b]` reads only those rows.

    Strings make a text channel and dicts a JSON channel: one value of any length per step.
    """

    @suggests
    def __init__(
        self,
        name: str,
        data: Any,
        *,
        timestamps_ns: Any = None,
        about: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        rows = _checked(name, data)
        self.name = name
        self.about: dict[str, Any] = {**(about or {}), **more}
        self._rows: ChannelRows = rows
        self._data: NDArray[Any] | None = rows.array
        self._clock: ChannelRows | None = None
        if timestamps_ns is not None:
            self.timestamps_ns = timestamps_ns

    @classmethod
    def over(
        cls,
        name: str,
        rows: ChannelRows,
        *,
        clock: ChannelRows | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Channel:
        """A channel whose rows stay where they are until they are asked for."""
        channel = cls.__new__(cls)
        channel.name, channel.about = name, dict(about or {})
        channel._rows, channel._data, channel._clock = rows, None, clock
        return channel

    @classmethod
    def text(cls, name: str, values: Iterable[str], **options: Any) -> Self:
        """A channel of one string per step, also where there are none to tell by."""
        return cls(name, _values(name, "text", values), **options)

    @classmethod
    def json(cls, name: str, values: Iterable[Any], **options: Any) -> Self:
        """A channel of one JSON value per step: objects, lists, strings, numbers, null."""
        return cls(name, _values(name, "json", values), **options)

    def clone(self) -> Self:
        """A channel of its own with the same rows: arrays are copied, what lies in a file stays there."""
        made = copy.copy(self)
        made.about = copy.deepcopy(self.about)
        if isinstance(self._rows, ArrayRows):
            made._rows = ArrayRows(copy.deepcopy(self._rows.array), self._rows.spec)
            made._data = made._rows.array
        if isinstance(self._clock, ArrayRows):
            made._clock = ArrayRows(self._clock.array.copy(), self._clock.spec)
        return made

    @property
    def data(self) -> NDArray[Any]:
        """All rows as one array; read-only where they lie in a file: a change in place would not be saved."""
        if self._data is None:
            self._data = read_only(self._rows.rows(0, self._rows.length))
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        rows = _checked(self.name, value)
        self._rows, self._data = rows, rows.array

    @property
    def dtype(self) -> DType:
        """The element type; equal to its short name (`"f32"`) and to its numpy dtype."""
        return self._rows.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The whole shape, time first."""
        return (self._rows.length, *self._rows.spec.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return self._rows.spec.shape

    def to_numpy(self) -> NDArray[Any]:
        """All rows as one array; read-only where they lie in a file."""
        return self.data

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self._rows.length

    @property
    def row_source(self) -> ChannelRows:
        """Where the rows come from; for writers that stream them."""
        return self._rows

    @property
    def clock_source(self) -> ChannelRows | None:
        """Where the timestamps of a channel with its own clock come from."""
        return self._clock

    @property
    def timestamps_ns(self) -> NDArray[np.int64] | None:
        """The channel's own clock, one int64 per row, or None if it follows the episode."""
        return None if self._clock is None else self._clock.rows(0, self._clock.length)

    @timestamps_ns.setter
    def timestamps_ns(self, value: Any) -> None:
        if value is None:
            self._clock = None
            return
        array = _array(self.name, value)
        if array.dtype != np.int64 or array.shape != (self.length,):
            raise SchemaMismatchError(
                f"the clock of {self.name!r} is {array.dtype}{list(array.shape)}, "
                f"int64[{self.length}] was expected"
            )
        self._clock = ArrayRows(array, TensorSpec(dtype_of("i64"), ()))

    def __getattr__(self, name: str) -> Any:
        # What is known about a channel (unit, modality, semantics …) reads like an attribute.
        if not name.startswith("_") and name in self.__dict__.get("about", {}):
            return self.about[name]
        if name in ("unit", "semantics", "modality", "description", "sampling_rate_hz", "content_type"):
            return None
        raise AttributeError(f"channel has no attribute {name!r}")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: Any) -> Any:
        if self._data is not None:
            return self._data[key]
        rows = self._rows
        spec = rows.spec
        bring = rows.bring if isinstance(rows, BlockRows) else None
        return select_rows(key, (rows.length, *spec.shape), rows.rows, spec.dtype.itemsize, bring)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if dtype is None and not copy:
            return self.data
        return np.array(self.data, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Channel):
            return NotImplemented
        same = (self.name, self.dtype, self.shape) == (other.name, other.dtype, other.shape)
        same = same and plain_json(self.about) == plain_json(other.about)
        return same and _same_values(self.data, other.data, self.dtype) and _same_clock(self, other)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        """What lies in a file stays there: another process opens the file again instead of receiving its bytes."""
        keep = isinstance(self._rows, ArrayRows)
        return {**self.__dict__, "_data": self._data if keep else None}

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        clock = ", own clock" if self._clock is not None else ""
        return f"Channel({self.name!r}, {self.dtype}[{shape}]{clock})"


def _checked(name: str, data: Any) -> ArrayRows:
    """The rows a caller gave, if they are of a type that can be stored."""
    if isinstance(data, ArrayRows):
        return data
    array = _array(name, data)
    if array.ndim == 0:
        raise SchemaMismatchError(f"channel {name!r} has no time axis", hint="Give an array of shape [T, …].")
    encoding = guess_encoding(array)
    if encoding is not None:
        if array.ndim != 1:
            raise SchemaMismatchError(f"channel {name!r} has more than one {encoding} per step")
        return _values(name, encoding, array)
    try:
        return ArrayRows(array, TensorSpec(dtype_of(array.dtype), array.shape[1:]))
    except ValueError as error:
        hint = "Convert it with .astype() first; Channel.json() stores any JSON value."
        raise SchemaMismatchError(f"channel {name!r}: {error}", hint=hint) from None


def _array(name: str, value: Any) -> NDArray[Any]:
    try:
        return as_array(value)
    except ValueError as error:
        raise SchemaMismatchError(f"channel {name!r} is {error}") from None


def _values(name: str, encoding: str, values: Iterable[Any]) -> ArrayRows:
    try:
        return ArrayRows(value_array(encoding, values), text_spec(encoding))
    except (TypeError, ValueError) as error:
        raise SchemaMismatchError(f"channel {name!r}: {error}") from None


def _same_values(a: NDArray[Any], b: NDArray[Any], dtype: DType) -> bool:
    if is_text(dtype):
        return bool(a.tolist() == b.tolist())
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def _same_clock(a: Channel, b: Channel) -> bool:
    if a.timestamps_ns is None or b.timestamps_ns is None:
        return a.timestamps_ns is b.timestamps_ns
    return bool(np.array_equal(a.timestamps_ns, b.timestamps_ns))
