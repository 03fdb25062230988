"""Checks that a bound column points at things that exist. One of the adapters of pyarrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from warpdata.errors import DatasetError
from warpdata.formats.manifest.model import Binding

_BY_EXTENSION = {
    "image": {"jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm"},
    "audio": {"wav", "flac", "ogg", "mp3", "opus", "aiff"},
    "video": {"mp4", "mkv", "webm", "avi", "mov"},
    "episode": {"wshard"},
}

_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


def default_ref_type(extension: str) -> str:
    """The kind of reference a file extension suggests."""
    last = extension.rpartition(".")[2].lower()
    return next((kind for kind, known in _BY_EXTENSION.items() if last in known), "file")


def check_binding(
    binding: Binding, values: Iterable[pa.Array], members: Iterable[str], shard_sizes: Sequence[int]
) -> None:
    """Every value of the column must name a member, or lie inside a shard; the first bad one is named."""
    known = pa.array(sorted(members), pa.large_string())
    for array in values:
        if binding.addressing == "member":
            _check_names(binding, array, known)
        else:
            _check_ranges(binding, array, shard_sizes)


def _check_names(binding: Binding, values: pa.Array, known: pa.Array) -> None:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not any(test(values.type) for test in _TEXTS):
        raise DatasetError(f"column {binding.column!r} holds {values.type}, not names of members")
    values = values.cast(pa.large_string()).drop_null()
    dangling = values.filter(pc.invert(pc.is_in(values, value_set=known)))
    if len(dangling):
        column = f"{binding.table}.{binding.column}"
        fact = f"{len(dangling)} values of {column} name no member of {binding.artifact!r}"
        raise DatasetError(
            f"{fact}, the first is {dangling[0].as_py()!r}", hint="Correct the column or the files."
        )


def _check_ranges(binding: Binding, values: pa.Array, shard_sizes: Sequence[int]) -> None:
    names = {"shard", "offset", "length"}
    if not pa.types.is_struct(values.type) or not names <= {field.name for field in values.type}:
        raise DatasetError(f"column {binding.column!r} is not a struct of shard, offset and length")
    for value in values.drop_null().to_pylist():
        shard, start, length = value["shard"], value["offset"], value["length"]
        good = None not in (shard, start, length) and 0 <= shard < len(shard_sizes)
        if not good or start < 0 or length < 0 or start + length > shard_sizes[shard]:
            raise DatasetError(
                f"{binding.table}.{binding.column} points outside {binding.artifact!r}: {value}"
            )
