"""A forked process searches on, though it has none of its parent's threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORKED = """
import os, signal, sys, threading, numpy as np
import faiss
faiss.omp_set_num_threads(2)
from warpdata.search.store import VectorStore
x = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
path = sys.argv[1]
with VectorStore.create(path, dim=16, durable=False) as store:
    store.add(x)
    store.build_index("hnsw", ef_construction=40)
store = VectorStore.open(path)
store.warm()
expected = store.search(x[:100], 3)[0]
held, go = threading.Event(), threading.Event()
def hold():
    with store._turn:
        held.set()
        go.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(240)
    assert np.array_equal(store.search(x[:100], 3)[0], expected)
    assert np.array_equal(store.search(x[0], 3)[0], expected[0])
    assert len(store.ids) == 600
    with VectorStore.create(path + ".child", dim=16, durable=False) as mine:
        mine.add(x[:100])
        mine.build_index("hnsw", ef_construction=40)
        assert mine.search(x[7], 1)[0][0] == 7
    os._exit(0)
go.set()
thread.join()
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_child_searches_after_its_parent_did(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(tmp_path / "f.rvf")], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
