"""The grown catalog at a small size: it runs, and what can be counted holds."""

from __future__ import annotations

from bench.scale_catalog import Sizes, run


def test_ten_episodes_cost_what_is_added() -> None:
    found = run(Sizes(episodes=1500, files=10, versions=20, rounds=1, frames=90))
    assert found["bars"]["the same, bytes both ways"]["holds"]
    assert found["parts"]["manifest_bytes"] < 10_000 < found["one list"]["manifest_bytes"]
    assert found["parts"]["open"]["requests"] == 2
    assert found["parts"]["open, first window"]["requests"] <= 12
