"""A channel: named rows of numbers, text or JSON values, in memory or still on disk."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DType, as_array, dtype_of, read_only, select_rows
from warpdata.bytekit.jsontext import plain_json
from warpdata.errors import SchemaMismatchError, StoreError, suggests
from warpdata.formats.wshard.rows import ArrayRows, BlockRows, ChannelRows, encode_value, is_text, text_spec
from warpdata.formats.wshard.schema import TensorSpec, own_copy, tensor_spec

if TYPE_CHECKING:
    from typing import Self


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
        about: dict[str, Any] | None = None,
    ) -> Channel:
        """A channel whose rows stay where they are until they are read."""
        channel = cls.__new__(cls)
        channel.name, channel.about = name, own_copy(about) if about else {}
        channel._rows, channel._data, channel._clock = rows, None, clock
        return channel

    @classmethod
    def text(cls, name: str, values: Iterable[str], **options: Any) -> Self:
        """A channel of one string per step, also of no steps."""
        return cls(name, _values(name, "text", values), **options)

    @classmethod
    def json(cls, name: str, values: Iterable[Any], **options: Any) -> Self:
        """A channel of one JSON value per step: objects, lists, strings, numbers, null."""
        return cls(name, _values(name, "json", values), **options)

    def clone(self) -> Self:
        """A channel of its own with the same rows: arrays are copied, rows in a file stay there."""
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
        """All rows as one array; read-only if they are in a file: a change in place would not be saved."""
        if self._data is None:
            self._data = read_only(self._rows.rows(0, self._rows.length))
        elif isinstance(self._rows, BlockRows):
            with contextlib.suppress(StoreError):  # a closed file, whose arrays stay valid
                self._rows.shard.check_not_truncated()  # touching lost pages would end the process
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
        """All rows as one array; read-only if they are in a file."""
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
        self._clock = ArrayRows(array, tensor_spec("i64"))

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
            return self.data[key]
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
        if self.describe() != other.describe() or self.name != other.name:
            return False
        mine, theirs = self.timestamps_ns, other.timestamps_ns
        same_clock = mine is None or theirs is None or bool(np.array_equal(mine, theirs))
        if is_text(self.dtype):
            return same_clock and bool(self.data.tolist() == other.data.tolist())
        a, b = np.ascontiguousarray(self.data), np.ascontiguousarray(other.data)
        return same_clock and a.tobytes() == b.tobytes()

    def describe(self) -> tuple[Any, ...]:
        """Everything but name and values, in a form that can be compared: dtype, shape, clock and metadata."""
        clock = None if self._clock is None else self._clock.length
        return str(self.dtype), self.shape, clock, plain_json(self.about)

    __hash__ = None  # type: ignore[assignment]

    def __getstate__(self) -> dict[str, Any]:
        """Rows in a file stay there: another process opens the file again instead of receiving its bytes."""
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
    values = array.ravel().tolist() if array.dtype == object else []
    has_text = array.dtype.kind == "U" or (values and all(isinstance(value, str) for value in values))
    if has_text or (values and all(isinstance(value, dict) for value in values)):
        encoding = "text" if has_text else "json"
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
    """Values as an array of objects, each of them checked."""
    try:
        listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
        out = np.empty(len(listed), object)
        for index, value in enumerate(listed):
            encode_value(encoding, value)
            out[index] = plain_json(value)
    except (TypeError, ValueError) as error:
        raise SchemaMismatchError(f"channel {name!r}: {error}") from None
    return ArrayRows(out, text_spec(encoding))
