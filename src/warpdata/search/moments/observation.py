"""Observations that an embedder gets: channels by name, of a step, a window or a whole episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import nearest

T = TypeVar("T")


class Observation(np.ndarray[Any, Any]):
    """An array: the first channel, flat. Channels are read by name: `obs["joint_pos"]`, `obs.items()`."""

    channels: dict[str, NDArray[Any]]
    """All channels; reading them here does not count as use."""
    _used: set[str]

    def __new__(cls, channels: Mapping[str, ArrayLike]) -> Observation:
        """Observations of these channels."""
        arrays = {name: as_array(value) for name, value in channels.items()}
        if not arrays:
            raise ValueError("there are no observations to embed")
        made: Observation = np.ravel(next(iter(arrays.values()))).view(cls)
        made.channels = arrays
        made._used = set()
        return made

    def __array_finalize__(self, obj: Any) -> None:
        """Arrays computed from observations have no names."""
        self.channels, self._used = {}, set()

    @property
    def used(self) -> list[str]:
        """Channels that were read by name; the first one where none was."""
        return [name for name in self.channels if name in self._used] or list(self.channels)[:1]

    @property
    def is_named(self) -> bool:
        """Whether a channel was read by name."""
        return bool(self._used)

    def use(self, names: Sequence[str]) -> None:
        """Count these channels as read."""
        self._used.update(names)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self.channels:
            self._used.add(key)
            return self.channels[key]
        if list(self.channels) == [BARE]:
            raise KeyError(f"no channel {key!r}: a bare array was given; give a dict of channels")
        known = ", ".join(self.channels) or "none"
        raise KeyError(f"no channel {key!r}; there are {known}.{nearest(key, self.channels)}")

    def __contains__(self, key: object) -> bool:
        return key in self.channels if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """Names of the channels."""
        return list(self.channels)

    def values(self) -> list[NDArray[Any]]:
        """Arrays of the channels."""
        self._used.update(self.channels)
        return list(self.channels.values())

    def items(self) -> list[tuple[str, NDArray[Any]]]:
        """Names and arrays of the channels."""
        self._used.update(self.channels)
        return list(self.channels.items())


BARE = ""
"""The name of the one channel of a query that is a bare array."""
_ROW_KEY = "observations"


@dataclass(frozen=True, slots=True)
class Channels:
    """Names of the channels of an index: all of them in their order, and those its vectors were made of."""

    names: tuple[str, ...] = ()
    used: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str | None) -> Channels:
        """Channels from a note of the file; none for files that do not record them."""
        if not text:
            return cls()
        body = parse_json_object(text.encode())
        return cls(tuple(map(str, body["names"])), tuple(map(str, body["used"])))

    def to_text(self) -> str:
        """The note of the file."""
        return dump_json({"names": list(self.names), "used": list(self.used)}).decode()

    def ordered(self, named: Mapping[str, T]) -> dict[str, T]:
        """A mapping by channel in the order of the index; channels it does not have come last."""
        known = {name: named[name] for name in self.names if name in named}
        return known | {name: each for name, each in named.items() if name not in known}

    def joined(self, observation: Observation, where: str) -> Channels:
        """With the channels of an embedded observation, which must have used the same ones."""
        used = tuple(observation.used)
        if self.used and set(used) != set(self.used):
            raise ValueError(
                f"channel mismatch: expected {', '.join(self.used)}, got {', '.join(used)}: {where}. "
                "All episodes of an index are embedded from the same channels"
            )
        names = (*self.names, *(name for name in observation.channels if name not in self.names))
        return Channels(names, self.used or used)

    def query(self, query: Mapping[str, Any] | ArrayLike) -> Observation:
        """A query: channels by name, a row of `episode.steps`, one array [D], or the mean of several steps [T, D].

        Channels are matched by name. One that the index does not have is refused, and so is a query without one that
        the vectors were made of.
        """
        if isinstance(query, Mapping) and isinstance(query.get(_ROW_KEY), Mapping):
            row: Mapping[str, Any] = query[_ROW_KEY]
            query = {name: each for name, each in row.items() if not self.names or name in self.names}
        if isinstance(query, Observation) and query.channels:
            query = query.channels
        if not isinstance(query, Mapping):
            return _bare(query)
        for name in query if self.names else ():
            if name not in self.names:
                known = ", ".join(self.names)
                raise ValueError(
                    f"unknown channel {name!r}: the index has {known}.{nearest(str(name), self.names)}"
                )
        missing = [name for name in self.used if name not in query]
        if missing:
            raise ValueError(
                f"missing channel {missing[0]!r}: the vectors were made of {', '.join(self.used)}"
            )
        return Observation(self.ordered(query))


def _bare(query: ArrayLike) -> Observation:
    array = as_array(query)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub" or not array.size:
        raise ValueError("a query is an array of numbers, or a dict of such arrays by channel")
    return Observation({BARE: array.mean(axis=0) if array.ndim > 1 else np.atleast_1d(array)})
