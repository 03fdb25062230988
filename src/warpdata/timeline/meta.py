"""What a signal is, known without reading its values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["scalar", "vector", "tensor", "image", "text", "bytes"]
KINDS: tuple[Kind, ...] = ("scalar", "vector", "tensor", "image", "text", "bytes")

OBJECT = np.dtype(object)


@dataclass(frozen=True, slots=True)
class SignalMeta:
    """Element type, shape of one value, kind, and what the caller said about units and axis names."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: Kind
    units: str | None = None
    names: tuple[str, ...] | None = None

    @property
    def is_object(self) -> bool:
        """Whether values are Python strings or bytes instead of numbers."""
        return self.kind in ("text", "bytes")

    @property
    def row_bytes(self) -> int:
        """Bytes of one value; of text and bytes, of the reference to it."""
        return self.dtype.itemsize * math.prod(self.shape)

    def same_values(self, other: SignalMeta) -> bool:
        """Whether values of both can stand in one batch."""
        return (self.dtype, self.shape, self.kind) == (other.dtype, other.shape, other.kind)


def numeric_kind(shape: tuple[int, ...]) -> Kind:
    """The kind of a number or array of numbers by the shape of one value."""
    return KINDS[min(len(shape), 2)]


def as_kind(name: str) -> Kind:
    """A kind by name, or ValueError."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise ValueError(f"unknown kind {name!r}; use one of {', '.join(KINDS)}")
