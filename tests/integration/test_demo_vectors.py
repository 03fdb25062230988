from __future__ import annotations

from pathlib import Path

import pytest
from tools.demo_vectors import main


def test_the_demo_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path).exists()
    assert "0 damaged" in capsys.readouterr().out
