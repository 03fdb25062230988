"""The catalog's speed table, shrunk: counts are exact, ratios have room for a busy machine."""

from __future__ import annotations

from typing import Any

import pytest

from bench.versus.streaming import QUICK, ratios, run

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""A peer leaves files open."""


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    results: dict[str, Any] = run(QUICK, ("core",))
    return ratios(results)


def value(found: dict[str, float], name: str) -> float:
    return next(number for key, number in found.items() if key.startswith(name))


def test_a_dataset_opens_in_few_requests(found: dict[str, float]) -> None:
    assert value(found, "schema requests") <= 3
    assert value(found, "first batch S3 round trips") <= 12


def test_one_lookup_is_few_requests_and_few_bytes(found: dict[str, float]) -> None:
    assert value(found, "lookup requests") <= 4
    assert value(found, "lookup bytes") < 256 << 10


def test_scans_keep_up_with_raw_engines(found: dict[str, float]) -> None:
    assert value(found, "scan local") > 0.25
    assert value(found, "scan S3") > 0.5
    assert value(found, "first batch local") < 6


def test_pictures_come_together(found: dict[str, float]) -> None:
    assert value(found, "random pictures") > 8
    assert value(found, "cached pictures / webdataset (>= 1), decoded") > 0.4


def test_publishing_is_not_much_slower_than_hashing(found: dict[str, float]) -> None:
    assert value(found, "publish") > 0.1
