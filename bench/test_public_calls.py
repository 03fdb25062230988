"""The public calls beside the readers behind them. Runs once at a small size in the ordinary test run."""

from __future__ import annotations

from pathlib import Path

from bench.versus import public_calls


def test_every_door_is_measured_beside_its_reader(tmp_path: Path) -> None:
    report = public_calls.run(tmp_path, rounds=1, calls=1)
    names = {name.partition(":")[0] for name in report}
    assert names == {
        "load_wshard",
        "open_episode",
        "open_recordings",
        "open_episode of a directory",
        "open_corpus",
        "open_vectors",
        "dataset",
    }
    assert all(number > 0 for number in report.values())
