from __future__ import annotations

from warpdata.settings import Settings


def test_defaults_and_each_variable() -> None:
    assert Settings.from_env({}) == Settings()
    assert Settings.from_env({"WARP_DEBUG": "1"}).debug
    assert not Settings.from_env({"WARP_DEBUG": "no"}).debug
    assert not Settings.from_env({"NO_COLOR": "x"}).color
    assert not Settings.from_env({"WARP_NO_PROGRESS": "true"}).progress
