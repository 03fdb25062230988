from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tools.demo_vectors import main


def test_the_demo_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path).exists()
    assert "0 damaged" in capsys.readouterr().out


def test_the_demo_runs_without_the_extras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adding and exact search need no optional library; what does says which one."""
    for name in ("faiss", "cryptography", "cryptography.hazmat.primitives.asymmetric"):
        monkeypatch.setitem(sys.modules, name, None)
    main(tmp_path)
    text = capsys.readouterr().out
    assert "warpdata[index]" in text
    assert "warpdata[crypto]" in text
    assert "first     [7," in text
