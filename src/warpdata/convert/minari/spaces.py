"""Gymnasium's spaces as Minari states them: what lies below which name, and spaces for signals that have none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.timeline.meta import SignalMeta

MAX_SPACE_BYTES = 64 << 20
_MAX_DEPTH = 32
_SMALLEST_IMAGE = 32


def parse_space(text: Any, what: str, place: str) -> dict[str, Any] | None:
    """A space from the JSON text of the metadata; None where there is none."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise CorruptLayoutError(f"the {what} of the metadata is no text", path=place)
    try:
        return parse_json_object(
            text.encode("utf-8", "surrogatepass"), max_bytes=MAX_SPACE_BYTES, allow_nan=True
        )
    except FormatError as error:
        raise CorruptLayoutError(
            f"the {what} of the metadata is damaged: {error.message}", path=place
        ) from None


def leaves(
    space: Mapping[str, Any] | None, name: str, depth: int = 0
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every space that is no Dict or Tuple, by its path: `observations/goal/0`."""
    if not isinstance(space, Mapping) or depth > _MAX_DEPTH:
        return
    inner = space.get("subspaces")
    if space.get("type") == "Dict" and isinstance(inner, Mapping):
        for key, each in inner.items():
            yield from leaves(each, f"{name}/{key}", depth + 1)
    elif space.get("type") == "Tuple" and isinstance(inner, list):
        for number, each in enumerate(inner):
            yield from leaves(each, f"{name}/{number}", depth + 1)
    else:
        yield name, space


def box_shape(space: Mapping[str, Any] | None) -> tuple[int, ...] | None:
    """The shape of one value, where the space says it."""
    if space is None:
        return None
    kind, shape = space.get("type"), space.get("shape")
    if (
        kind == "Box"
        and isinstance(shape, list)
        and all(isinstance(side, int) and side >= 0 for side in shape)
    ):
        return tuple(shape)
    if kind == "MultiDiscrete" and isinstance(space.get("nvec"), list):
        return tuple(int(side) for side in np.shape(space["nvec"]))
    if kind == "MultiBinary":
        count = space.get("n")
        return (count,) if isinstance(count, int) else tuple(count) if isinstance(count, list) else None
    return () if kind == "Discrete" else None


def is_image_space(space: Mapping[str, Any] | None) -> bool:
    """Whether Minari stores values of this space as JPEG: bytes from 0 to 255, at least 32 x 32, two or three axes."""
    shape = box_shape(space)
    if space is None or shape is None or space.get("type") != "Box" or space.get("dtype") != "uint8":
        return False
    if (
        len(shape) not in (2, 3)
        or min(shape[:2]) < _SMALLEST_IMAGE
        or (len(shape) == 3 and shape[2] not in (1, 3, 4))
    ):
        return False
    return _all_equal(space.get("low"), 0) and _all_equal(space.get("high"), 255)


def _all_equal(bounds: Any, value: int) -> bool:
    try:
        return bool((np.asarray(bounds) == value).all())
    except ValueError:
        return False


def space_of(meta: SignalMeta) -> dict[str, Any]:
    """A space that holds every value of a signal."""
    if meta.is_object:
        return {
            "type": "Text",
            "max_length": 1 << 16,
            "min_length": 0,
            "charset": "".join(map(chr, range(32, 127))),
        }
    dtype = meta.dtype
    low: Any
    high: Any
    if dtype.kind == "f":
        low, high = -np.inf, np.inf
    elif dtype.kind == "b":
        return {"type": "Box", "dtype": "bool", "shape": list(meta.shape), **_bounds(meta.shape, False, True)}
    else:
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return {"type": "Box", "dtype": str(dtype), "shape": list(meta.shape), **_bounds(meta.shape, low, high)}


def _bounds(shape: tuple[int, ...], low: Any, high: Any) -> dict[str, Any]:
    return {"low": np.full(shape, low, object).tolist(), "high": np.full(shape, high, object).tolist()}


def nested_space(spaces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Spaces by path as one: a Dict of Dicts; the one without a name is itself."""
    if set(spaces) == {""}:
        return dict(spaces[""])
    found: dict[str, Any] = {"type": "Dict", "subspaces": {}}
    for path, space in spaces.items():
        at = found
        *above, last = path.split("/")
        for part in above:
            at = at["subspaces"].setdefault(part, {"type": "Dict", "subspaces": {}})
        at["subspaces"][last] = dict(space)
    return found
