"""What an embedder is given: the observations of a step, of a window or of a whole episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from warpdata.bytekit.arrays import as_array
from warpdata.errors import nearest


class Observation(np.ndarray[Any, Any]):
    """An array: the first channel, flat. Channels are found by name: `obs["joint_pos"]`, `obs.items()`."""

    _channels: dict[str, NDArray[Any]]

    def __new__(cls, channels: Mapping[str, ArrayLike]) -> Observation:
        """The observations of these channels."""
        arrays = {name: as_array(value) for name, value in channels.items()}
        if not arrays:
            raise ValueError("there are no observations to embed")
        made: Observation = np.ravel(next(iter(arrays.values()))).view(cls)
        made._channels = arrays
        return made

    def __array_finalize__(self, obj: Any) -> None:
        """What is computed from observations is an array without names."""
        self._channels = {}

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self._channels:
            return self._channels[key]
        if list(self._channels) == [BARE]:
            raise KeyError(f"no channel {key!r}: a bare array was given; give a dict of channels")
        known = ", ".join(self._channels) or "none"
        raise KeyError(f"no channel {key!r}; there are {known}.{nearest(key, self._channels)}")

    def __contains__(self, key: object) -> bool:
        return key in self._channels if isinstance(key, str) else super().__contains__(key)

    def keys(self) -> list[str]:
        """The names of the channels."""
        return list(self._channels)

    def values(self) -> list[NDArray[Any]]:
        """The arrays of the channels."""
        return list(self._channels.values())

    def items(self) -> list[tuple[str, NDArray[Any]]]:
        """Names and arrays of the channels."""
        return list(self._channels.items())


BARE = ""
"""The name of the one channel of a query that is a bare array."""


def as_observation(query: Mapping[str, ArrayLike] | ArrayLike) -> Observation:
    """A query: channels by name, one array [D], or the mean of several steps [T, D]."""
    if isinstance(query, Observation) and query.keys():
        return query
    if isinstance(query, Mapping):
        return Observation(query)
    array = as_array(query)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub" or not array.size:
        raise ValueError("a query is an array of numbers, or a dict of such arrays by channel")
    return Observation({BARE: array.mean(axis=0) if array.ndim > 1 else np.atleast_1d(array)})
