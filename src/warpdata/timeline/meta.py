"""What a signal is, known without reading its values: element type, shape, kind, and its role in the episode."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from warpdata.errors import nearest

Kind = Literal["scalar", "vector", "tensor", "image", "text", "bytes", "ragged", "sound"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Role = Literal[
    "observation",
    "action",
    "reward",
    "terminated",
    "truncated",
    "event",
    "prediction",
    "uncertainty",
    "residual",
    "other",
]
ROLES: tuple[Role, ...] = get_args(Role)
ABOUT_OTHERS: tuple[Role, ...] = ("prediction", "uncertainty", "residual")
"""Roles of signals that speak of another signal: `of` names it, `model` their maker."""

OBJECT = np.dtype(object)
_OBJECTS = ("text", "bytes", "ragged", "sound")
_RESIDUALS = ("sign2nddiff", "error")

_NAMES_OF_ROLE: dict[Role, tuple[str, ...]] = {
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "done"),
    "truncated": ("truncated",),
    "prediction": ("omen", "prediction"),
    "uncertainty": ("uncert", "uncertainty"),
    "residual": ("residual",),
}
_ROLE_OF_NAME: dict[str, Role] = {name: role for role, names in _NAMES_OF_ROLE.items() for name in names}


class RowType(NamedTuple):
    """Element type and shape of one row of a value of varying length."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, ('n', *self.shape)))}]"


@dataclass(frozen=True, slots=True)
class SignalMeta:
    """Element type, shape of one value, kind, role, units and axis names."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    kind: Kind
    units: str | None = None
    names: tuple[str, ...] | None = None
    role: Role = "observation"
    of: str | None = None
    """The signal that a prediction, an uncertainty or a residual is about."""
    model: str | None = None
    """Who made a prediction, an uncertainty or a residual."""
    clock: str | None = None
    """Signals of one clock have the same times; None is a clock of the signal's own."""
    rows: RowType | None = None
    """Of ragged signals and sound: a value is an array of any number of such rows."""
    rate_hz: float | None = None
    """Of sound: samples in a second."""

    @property
    def is_object(self) -> bool:
        """Whether values are Python objects (text, bytes, arrays of varying length) instead of numbers of one shape."""
        return self.kind in _OBJECTS

    def __str__(self) -> str:
        if self.is_object:
            return self.kind if self.rows is None else f"{self.kind} {self.rows}"
        return f"{self.kind} {self.dtype}{list(self.shape)}"

    @property
    def row_bytes(self) -> int:
        """Bytes of one value; of objects, of the reference to it."""
        return self.dtype.itemsize * math.prod(self.shape)

    def same_values(self, other: SignalMeta) -> bool:
        """Whether values of both can stand in one batch."""
        own = (self.dtype, self.shape, self.kind, self.rows, self.rate_hz)
        return own == (other.dtype, other.shape, other.kind, other.rows, other.rate_hz)


class SignalRole(NamedTuple):
    """The part a signal plays: its role and, for predictions of a model, the signal they are about and the model."""

    role: Role
    of: str | None = None
    model: str | None = None


def guess_role(name: str, kind: str) -> SignalRole:
    """The role of a signal by its name: `action/…`, `reward`, `omen/joints/dreamer`, …"""
    first, _, rest = name.partition("/")
    role = _ROLE_OF_NAME.get(first)
    if role is not None and role in ABOUT_OTHERS:
        parts = [part for part in rest.split("/") if part]
        if role == "uncertainty" and len(parts) > 2:
            parts = parts[:-1]
        if role == "residual":
            encoding = next((at for at, part in enumerate(parts) if at and part in _RESIDUALS), len(parts))
            model = "/".join(parts[encoding + 1 :]) or None
            return SignalRole(role, "/".join(parts[:encoding]) or None, model)
        if len(parts) < 2:
            return SignalRole(role, parts[0] if parts else None)
        return SignalRole(role, "/".join(parts[:-1]), parts[-1])
    if role == "action" or (role is not None and not rest):
        return SignalRole(role)
    return SignalRole("event" if kind in ("text", "bytes") else "observation")


def numeric_kind(shape: tuple[int, ...]) -> Kind:
    """The kind of a number or array of numbers by the shape of one value."""
    return KINDS[min(len(shape), 2)]


def as_kind(name: str) -> Kind:
    """A kind by name, or ValueError."""
    if name not in KINDS:
        raise ValueError(f"unknown kind {name!r}; use one of {', '.join(KINDS)}.{nearest(str(name), KINDS)}")
    return KINDS[KINDS.index(name)]


def as_role(name: str) -> Role:
    """A role by name, or ValueError."""
    if name not in ROLES:
        raise ValueError(f"unknown role {name!r}; use one of {', '.join(ROLES)}.{nearest(str(name), ROLES)}")
    return ROLES[ROLES.index(name)]
