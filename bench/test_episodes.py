"""The bars of recording and reading in time, shrunk so that they run with the tests; ratios, not seconds."""

from __future__ import annotations

from pathlib import Path

from bench.versus import recording


def test_appending_vectors(tmp_path: Path) -> None:
    found = recording.vectors(tmp_path, 10_000, 2)
    assert found["p50_ratio_to_mcap"] <= 2.0
    assert found["ours_us"]["p99.9"] < 1000
    assert found["bytes_per_record"] <= 32


def test_appending_frames(tmp_path: Path) -> None:
    found = recording.cameras(tmp_path, 2)
    assert found["dropped"] == 0
    # The bar is 3 copies on a quiet machine; other tests run beside this one.
    assert found["p50_in_copies"] < 8
    assert found["close_s"] < 2


def test_lookup_by_time(tmp_path: Path) -> None:
    assert recording.lookups(tmp_path, 5000)["time_us"]["p50"] < 12


def test_windows_through_the_dataset(tmp_path: Path) -> None:
    assert recording.windows(tmp_path, 5, 500)["windows_per_cpu_s"] > 1000


def test_random_frames(tmp_path: Path) -> None:
    assert recording.random_frames(tmp_path, 60, 40)["ratio"] > 1.5


def test_listing_a_second_time(tmp_path: Path) -> None:
    found = recording.listing(tmp_path, 300)
    assert found["second_s"] < 0.1
