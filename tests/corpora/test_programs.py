"""The example and the demo run, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def test_the_demo_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tools.demo_corpus import main

    main(tmp_path)
    printed = capsys.readouterr().out
    assert "6000 rows survived" in printed
    assert "same batches" in printed


def test_the_sparse_autoencoder_example(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/corpus_sae.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bit for bit the same" in done.stdout
