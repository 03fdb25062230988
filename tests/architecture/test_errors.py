"""The error tree: drawn as it is, stable codes, picklable, and usable as the builtins it doubles."""

from __future__ import annotations

import inspect
import pickle

import pytest

from warpdata import errors
from warpdata.errors import WarpError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, WarpError)]

CODES = {
    "warp", "format", "bad_magic", "unsupported_version", "truncated", "checksum", "corrupt_layout",
    "limit_exceeded", "store", "not_found", "authentication", "permission", "conflict", "out_of_space",
    "unavailable", "dataset", "dataset_not_found", "manifest_corrupted", "offline", "recording",
    "timestamp_order", "schema_mismatch", "writer_closed", "journal_in_use", "time_range", "missing_extra",
}  # fmt: skip
"""Codes are append-only: programs match on them."""


def test_codes_are_unique_and_stable() -> None:
    codes = [c.code for c in CLASSES]
    assert len(codes) == len(set(codes))
    assert set(codes) >= CODES


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_errors_carry_facts_and_survive_pickling(kind: type[WarpError]) -> None:
    error = kind("it broke", block="signal/rgb", path="a/b.wshard", hint="Do this.")
    again = pickle.loads(pickle.dumps(error))
    for each in (error, again):
        assert str(each) == "block 'signal/rgb': it broke: a/b.wshard"
        assert (each.hint, each.block, each.path) == ("Do this.", "signal/rgb", "a/b.wshard")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_every_class_is_drawn_in_the_tree(kind: type[WarpError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.BlobNotFoundError, FileNotFoundError),
        (errors.PermissionError_, PermissionError),
        (errors.OutOfSpaceError, OSError),
        (errors.DatasetNotFoundError, LookupError),
        (errors.TimestampOrderError, ValueError),
        (errors.SchemaMismatchError, ValueError),
        (errors.WriterClosedError, RuntimeError),
        (errors.TimeRangeError, KeyError),
        (errors.MissingExtraError, ImportError),
    ],
)
def test_doubles_as_a_builtin(kind: type[WarpError], builtin: type[Exception]) -> None:
    with pytest.raises(builtin):
        raise kind("x")
