"""The example and the demo run, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.waiting import LIMIT_S


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
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bit for bit the same" in done.stdout


_LEFT_OPEN = """
import ctypes, sys
import numpy as np
import warpdata as wd
folder = sys.argv[1]
with wd.CorpusWriter(f"{folder}/corpus", 4) as writer:
    writer.append(np.ones((500, 4)))
source = wd.MmapShardSource.open_dir(f"{folder}/corpus", dtype="float32")
source.next_batch()
cache = wd.corpora.RowWarmCache(f"{folder}/warm", model="m", total_rows=10)
cache.put(wd.corpora.WarmRows.from_rows([1], [[1.0]], [[3]], [7]))
for module in list(sys.modules.values()):  # as large libraries do: such modules are emptied, not collected
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
"""


def test_a_program_that_leaves_them_open_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN, str(tmp_path)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
