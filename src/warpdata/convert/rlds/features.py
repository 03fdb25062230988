"""features.json: which lists an Example has and what each means."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.convert.rlds.example import Values
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError
from warpdata.formats.episodedir.pictures import is_still

STEPS = "steps"
RAGGED_VALUES, RAGGED_LENGTHS = "ragged_flat_values", "ragged_row_lengths_0"
MAX_PADDED_BYTES = 1 << 30
"""Rows of differing length are handed out padded to the longest; more than this is refused."""

LeafKind = Literal["tensor", "image", "text", "ragged", "unknown"]
_MAX_DEPTH = 32
_MAX_DIGITS = 10
_DEFLATE_RATIO = 1040
"""Deflate cannot expand by more."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One feature: where its values are, and how they are to be read."""

    path: str
    """As in the Example: `steps/observation/state`."""
    kind: LeafKind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of one value; -1 where it is not known."""
    encoding: str = "none"
    is_raw_step: bool = False
    """It has a value per step though its name does not say so, in a set without features.json."""

    @property
    def in_steps(self) -> bool:
        """Whether it has a value per step."""
        return self.is_raw_step or self.path.startswith(STEPS + "/")

    @property
    def name(self) -> str:
        """Its name as a signal."""
        return self.path.removeprefix(STEPS + "/")

    def numpy(self, where: str) -> np.dtype[Any]:
        """Its element type."""
        if self.dtype == "bfloat16":
            return dtype_named("bf16").dtype
        try:
            return dtype_of(np.dtype(self.dtype)).dtype
        except (TypeError, ValueError):
            raise UnsupportedDtypeError(
                f"feature {self.path!r} is of type {self.dtype!r}", path=where
            ) from None


def leaves_of(tree: Any, where: str) -> list[Leaf]:
    """All features of a features.json, in its order."""
    found = list(_walk(tree, "", where, 0))
    if not any(leaf.in_steps for leaf in found):
        raise CorruptLayoutError("the features have no 'steps': these are no episodes", path=where)
    return found


def _walk(node: Any, path: str, where: str, depth: int) -> Iterator[Leaf]:
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        raise CorruptLayoutError(f"feature {path!r} is not described", path=where)
    if isinstance(inner := node.get("featuresDict"), Mapping):
        for name, child in _mapping(inner.get("features", {}), path, where).items():
            yield from _walk(child, f"{path}/{name}" if path else str(name), where, depth + 1)
    elif isinstance(inner := node.get("sequence") or node.get("dataset"), Mapping):
        child = inner.get("feature", {})
        if path == STEPS:
            yield from _walk(child, path, where, depth + 1)
        else:
            yield from (_ragged(leaf, inner) for leaf in _walk(child, path, where, depth + 1))
    elif isinstance(inner := node.get("image"), Mapping):
        yield Leaf(path, "image", str(inner.get("dtype", "uint8")), _shape(inner, path, where))
    elif "text" in node:
        yield Leaf(path, "text", "string")
    elif "classLabel" in node:
        yield Leaf(path, "tensor", "int64")
    elif isinstance(inner := node.get("tensor") or node.get("scalar"), Mapping):
        dtype = str(inner.get("dtype", "float32"))
        kind: LeafKind = "text" if dtype in ("string", "object") else "tensor"
        yield Leaf(path, kind, dtype, _shape(inner, path, where), str(inner.get("encoding", "none")).lower())
    else:
        yield Leaf(path, "unknown")


def _ragged(leaf: Leaf, sequence: Mapping[str, Any]) -> Leaf:
    """A feature inside a sequence: of a fixed length it has one more dimension, else its rows differ."""
    length = str(sequence.get("length", "-1"))
    if leaf.kind == "tensor" and length.isdecimal() and len(length) <= _MAX_DIGITS:
        return Leaf(leaf.path, "tensor", leaf.dtype, (int(length), *leaf.shape), leaf.encoding)
    return Leaf(
        leaf.path, "ragged" if leaf.kind == "tensor" else "unknown", leaf.dtype, leaf.shape, leaf.encoding
    )


def _mapping(value: Any, path: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise CorruptLayoutError(f"feature {path!r} is not described", path=where)
    return value


def _shape(node: Mapping[str, Any], path: str, where: str) -> tuple[int, ...]:
    stated = node.get("shape", {})
    sides = stated.get("dimensions", []) if isinstance(stated, Mapping) else None
    try:
        found = tuple(int(side) for side in sides)  # type: ignore[union-attr]
    except (TypeError, ValueError, OverflowError):
        raise CorruptLayoutError(f"the shape of feature {path!r} is damaged", path=where) from None
    if any(side < -1 or side > 1 << 31 for side in found) or len(found) > 16:
        raise CorruptLayoutError(f"the shape of feature {path!r} is impossible: {list(found)}", path=where)
    return found


def inferred(example: Mapping[str, Values]) -> list[Leaf]:
    """The features of a set without features.json, from an Example of it: flat rows of what there is."""
    is_raw = not any(path.startswith(STEPS + "/") for path in example)
    steps = _inferred_steps(example, "" if is_raw else f"{STEPS}/")
    found = []
    for path, values in example.items():
        in_steps = path.startswith(STEPS + "/") or (is_raw and steps > 1 and len(values) >= steps)
        if in_steps and steps and len(values) % steps:
            in_steps = False
        each = len(values) // steps if in_steps and steps else max(1, len(values))
        shape = () if each == 1 else (each,)
        if values.kind == "bytes":
            found.append(Leaf(path, "unknown", is_raw_step=in_steps))
        elif values.kind != "nothing":
            dtype = "float32" if values.kind == "floats" else "int64"
            found.append(Leaf(path, "tensor", dtype, shape, is_raw_step=in_steps))
    return found


def _inferred_steps(example: Mapping[str, Values], prefix: str) -> int:
    """As many as a list has that has one number or picture per step; else as most lists have."""
    for name in ("is_first", "is_last", "step_type", "reward", "discount", "rewards", "discounts"):
        values = example.get(prefix + name)
        if values is not None and len(values):
            return len(values)
    pictures = [
        len(values)
        for values in example.values()
        if values.kind == "bytes" and len(values) > 1 and is_still(bytes(values.entries[0][:16]))
    ]
    lengths = pictures or [len(values) for values in example.values() if len(values) > 1]
    return max(set(lengths), key=lambda each: (lengths.count(each), each), default=0)


def rows_of(leaf: Leaf, values: Values | None) -> int | None:
    """How many rows a list has by itself; None where it does not tell."""
    if values is None or values.kind == "nothing" or leaf.kind == "ragged":
        return None
    if values.kind == "bytes":
        return len(values.entries)
    size = math.prod(side for side in leaf.shape if side >= 0)
    return None if -1 in leaf.shape or not size else len(values) // size


def numbers_of(leaf: Leaf, values: Values, steps: int, where: str) -> NDArray[Any]:
    """The rows of a feature of numbers, in the type and shape that were declared."""
    dtype = leaf.numpy(where)
    if values.kind == "bytes":
        return _from_bytes(leaf, values, dtype, where)
    shape = _known_shape(leaf, len(values), steps, where)
    return _typed(leaf, values, dtype, where).reshape(steps, *shape)


def _known_shape(leaf: Leaf, count: int, steps: int, where: str) -> tuple[int, ...]:
    sides = leaf.shape
    known = math.prod(side for side in sides if side >= 0) * steps
    if sides.count(-1) == 1 and known and count % known == 0:
        sides = tuple(count // known if side < 0 else side for side in sides)
    if -1 in sides or math.prod(sides) * steps != count:
        raise CorruptLayoutError(
            f"feature {leaf.path!r} has {count} numbers, {steps} steps of {list(leaf.shape)} need another number",
            path=where,
        )
    return sides


def _typed(leaf: Leaf, values: Values, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    numbers = values.numbers
    if dtype.kind in "iub" and values.kind == "floats":
        raise CorruptLayoutError(f"feature {leaf.path!r} is {leaf.dtype} and holds fractions", path=where)
    if dtype == np.uint64:
        return numbers.view(np.uint64)
    found = numbers.astype(dtype, copy=False)
    if dtype.kind in "iub" and dtype != np.int64 and not np.array_equal(found.astype(np.int64), numbers):
        raise CorruptLayoutError(f"feature {leaf.path!r} holds numbers that are no {leaf.dtype}", path=where)
    return found


def _from_bytes(leaf: Leaf, values: Values, dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Numbers that lie as bytes, one entry per row, maybe compressed."""
    if -1 in leaf.shape:
        raise UnsupportedDtypeError(
            f"feature {leaf.path!r} is {leaf.encoding} of unknown shape {list(leaf.shape)}", path=where
        )
    size = math.prod(leaf.shape) * dtype.itemsize
    rows = []
    for row, entry in enumerate(values.entries):
        data = _inflated(entry, size) if leaf.encoding == "zlib" else entry
        if data is None or len(data) != size:
            raise CorruptLayoutError(
                f"row {row} of feature {leaf.path!r} does not hold {leaf.dtype}{list(leaf.shape)}", path=where
            )
        rows.append(data)
    return np.frombuffer(b"".join(rows), dtype).reshape(len(rows), *leaf.shape)


def _inflated(entry: memoryview, size: int) -> bytes | None:
    if size > _DEFLATE_RATIO * len(entry):
        return None
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(entry, size + 1)
    except zlib.error:
        return None
    return found if stream.eof else None


def padded(leaf: Leaf, values: Values, lengths: NDArray[np.int64], steps: int, where: str) -> NDArray[Any]:
    """Rows of differing length, each filled up with zeros to the longest."""
    if len(lengths) != steps:
        raise CorruptLayoutError(f"feature {leaf.path!r} has {len(lengths)} rows, {steps} steps", path=where)
    if lengths.dtype.kind != "i" or (steps and int(lengths.min()) < 0):
        raise CorruptLayoutError(f"feature {leaf.path!r} has rows of no length", path=where)
    longest = int(lengths.max(initial=0))
    if steps * longest > MAX_PADDED_BYTES:  # their sum would not fit
        raise LimitExceededError(f"feature {leaf.path!r} has a row of {longest} values", path=where)
    flat = numbers_of(leaf, values, int(lengths.sum()), where)
    if steps * longest * math.prod(flat.shape[1:]) * flat.itemsize > MAX_PADDED_BYTES:
        raise LimitExceededError(f"feature {leaf.path!r} has a row of {longest} values", path=where)
    out = np.zeros((steps, longest, *flat.shape[1:]), flat.dtype)
    out[np.arange(longest) < lengths[:, None]] = flat
    return out
