"""One numeric, text or bytes signal as a parquet file: described, written in pieces, read whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named, dtype_of
from warpdata.bytekit.io.ranges import RangeFile, RangeReader, retry_damaged
from warpdata.errors import CorruptLayoutError
from warpdata.formats.episodedir import arrow, layout
from warpdata.formats.episodedir.documents import FileSum, read_bytes
from warpdata.formats.episodedir.images import FrameShape

_KINDS = ("scalar", "vector", "tensor", "image", "text", "bytes")
_MAX_FILE_BYTES = 1 << 36
_ABOUT_ROLE = ("role", "of", "model", "clock")


@dataclass(frozen=True, slots=True)
class Description:
    """What one signal holds, as it is stored beside its values."""

    kind: str
    dtype: str
    shape: tuple[int, ...]
    units: str | None = None
    names: tuple[str, ...] | None = None
    role: str | None = None
    of: str | None = None
    model: str | None = None
    clock: str | None = None

    def frame_shape(self) -> FrameShape:
        """The shape of the frames of a camera; ValueError where no frame is like this."""
        return FrameShape.of_values(self.shape, dtype_named(self.dtype).dtype)

    def to_json(self) -> dict[str, Any]:
        """The description as JSON holds it."""
        found: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype, "shape": list(self.shape)}
        if self.units is not None:
            found["units"] = self.units
        if self.names is not None:
            found["names"] = list(self.names)
        stated = {key: getattr(self, key) for key in _ABOUT_ROLE}
        return {**found, **{key: value for key, value in stated.items() if value is not None}}

    @classmethod
    def from_json(cls, found: Any, path: str) -> Description:
        """Check a stored description."""
        try:
            shape = tuple(int(side) for side in found["shape"])
            names = None if found.get("names") is None else tuple(str(name) for name in found["names"])
            about = {key: None if found.get(key) is None else str(found[key]) for key in _ABOUT_ROLE}
            made = cls(str(found["kind"]), str(found["dtype"]), shape, found.get("units"), names, **about)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise CorruptLayoutError("the description of the signal is damaged", path=path) from None
        known = made.dtype in DTYPE_NAMES or (made.kind in ("text", "bytes") and made.dtype == made.kind)
        if made.kind not in _KINDS or not known or any(side < 1 for side in shape):
            raise CorruptLayoutError(f"a signal of kind {made.kind!r}, type {made.dtype!r}", path=path)
        if made.role is not None and made.role not in layout.ROLES:
            raise CorruptLayoutError(f"a signal with the role {made.role!r}", path=path)
        return made


@dataclass(frozen=True, slots=True)
class Summary:
    """What a footer tells: the description, how many records, first and last time."""

    description: Description
    count: int
    first_ts_ns: int | None
    last_ts_ns: int | None


def read_summary(reader: RangeReader) -> Summary:
    """Read only the footer of a signal file."""
    footer = arrow.ParquetFooter(RangeFile(reader), reader.name)
    description = _description(footer)
    bounds = footer.bounds(footer.time_column(layout.TIME_COLUMN))
    if bounds is None and footer.rows:
        stamps, _ = read_signal(reader)
        bounds = (int(stamps[0]), int(stamps[-1]))
    first, last = bounds or (None, None)
    return Summary(description, footer.rows, first, last)


def read_signal(
    reader: RangeReader, expected: FileSum | None = None
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """All timestamps and values of a signal file, verified and read-only."""

    def read() -> tuple[NDArray[np.int64], NDArray[Any]]:
        data = read_bytes(reader, max_bytes=_MAX_FILE_BYTES)
        if expected is not None:
            expected.check(data, reader.name)
        return parse_signal(data, reader.name)[1:]

    return retry_damaged(reader, read)


def parse_signal(data: bytes, path: str) -> tuple[Description, NDArray[np.int64], NDArray[Any]]:
    """Description, timestamps and values from the bytes of a signal file."""
    footer = arrow.ParquetFooter(data, path)
    description = _description(footer)
    column = footer.time_column(layout.TIME_COLUMN)
    found = footer.read([column, layout.VALUE_COLUMN])
    stamps = arrow.int64_of(found[column])
    check_clock(stamps, path)
    if description.kind in ("text", "bytes"):
        values = arrow.objects_of(found[layout.VALUE_COLUMN], description.kind, path)
    else:
        values = arrow.values_of(found[layout.VALUE_COLUMN], description.dtype, description.shape, path)
    stamps.flags.writeable = values.flags.writeable = False
    return description, stamps, values


def check_clock(stamps: NDArray[np.int64], path: str) -> None:
    """Raise unless the timestamps of a file are strictly increasing."""
    wrong = np.flatnonzero(stamps[1:] <= stamps[:-1])
    if len(wrong):
        raise CorruptLayoutError(f"the time of record {int(wrong[0]) + 1} is not increasing", path=path)


def _description(footer: arrow.ParquetFooter) -> Description:
    stated = footer.description
    if stated is not None:
        return Description.from_json(stated, footer.path)
    dtype, is_list = footer.value_dtype()
    if dtype in (str, bytes):
        return Description("text" if dtype is str else "bytes", "text" if dtype is str else "bytes", ())
    shape: tuple[int, ...] = ()
    if is_list:
        shape = arrow.list_shape(footer.read([layout.VALUE_COLUMN])[layout.VALUE_COLUMN], footer.path)
    try:
        name = dtype_of(dtype).name
    except ValueError:
        raise CorruptLayoutError(f"values of type {dtype} are not known", path=footer.path) from None
    return Description("vector" if is_list else "scalar", name, shape)
