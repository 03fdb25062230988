"""Batches decoded ahead by a second thread: the same rows, whatever the caller does between two batches."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.row_source import QUIET, WIDTH, RowSourceContract, rows_of, write_shards
from tests.waiting import LIMIT_S
from warpdata.bytekit.process.threads import TaskThread
from warpdata.corpora import decode_ahead, fixed_order
from warpdata.corpora.source import FixedOrderSource, MmapShardSource
from warpdata.errors import TruncatedError
from warpdata.formats.gamsae.writer import encode_shard_bytes

ROW_BYTES = WIDTH * 4


def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode ahead from the first batch on, however small and however busy the machine."""
    monkeypatch.setattr(fixed_order, "MIN_BYTES", 0)
    monkeypatch.setattr(decode_ahead, "FIRST_BATCH", 0)
    monkeypatch.setattr(decode_ahead, "_CORES", 2)
    monkeypatch.setattr(decode_ahead, "has_idle_core", lambda _: True)


def decode_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "warpdata-decode"]


class TestDecodedAhead(RowSourceContract):
    @pytest.fixture(autouse=True)
    def _eager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        eager(monkeypatch)

    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource:
        return MmapShardSource.open(paths, **{"io": "mmap", **options})

    @QUIET
    @given(
        steps=st.lists(
            st.one_of(
                st.tuples(st.just("next"), st.integers(1, 6)),
                st.tuples(st.just("out"), st.integers(1, 30)),
                st.tuples(st.just("seek"), st.integers(0, 700)),
                st.tuples(st.just("size"), st.integers(1, 60)),
            ),
            min_size=3,
            max_size=25,
        )
    )
    def test_whatever_is_asked_for_next(self, tmp_path: Path, steps: list[tuple[str, int]]) -> None:
        paths = write_shards(tmp_path, [300, 0, 250, 150])
        kept = []
        with self.open(paths, batch_rows=20) as source:
            for step, value in steps:
                if step == "seek":
                    source.seek(value)
                elif step == "size":
                    source.batch_rows = value
                out = np.empty((value, WIDTH)) if step == "out" else None
                for _ in range(value if step == "next" else 1):
                    batch = source.next_batch(out)
                    if batch is not None:
                        kept.append((batch, batch.rows.copy()) if out is None else (batch, batch.rows))
                        np.testing.assert_array_equal(batch.rows, rows_of(int(batch.row_ids[0]), len(batch)))
                    assert source.position == (700 if batch is None else batch.row_ids[-1] + 1)
        for batch, seen in kept:
            np.testing.assert_array_equal(batch.rows, seen)  # nothing is written twice

    def test_it_is_really_used_and_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []
        send = TaskThread.send
        monkeypatch.setattr(TaskThread, "send", lambda runner, job: (sent.append(1), send(runner, job))[1])
        paths = write_shards(tmp_path, [1000])
        with self.open(paths, batch_rows=10, prefetch_bytes=40 * ROW_BYTES) as source:
            assert len(list(source)) == 100
        assert 40 <= len(sent) <= 50  # every second one
        sent.clear()
        with self.open(paths, batch_rows=10, prefetch_bytes=40 * ROW_BYTES - 1) as source:
            assert len(list(source)) == 100
        assert not sent  # farther ahead than the caller allows

    def test_a_file_cut_at_any_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """At any time but within one decode: then the mapping itself is gone, and no program survives that."""
        runners: list[TaskThread] = []
        send = TaskThread.send
        monkeypatch.setattr(TaskThread, "send", lambda one, job: (runners.append(one), send(one, job))[1])
        for before in range(1, 6):
            paths = write_shards(tmp_path, [60_000])
            with self.open(paths, batch_rows=1000) as source:
                for _ in range(before):
                    assert source.next_batch() is not None
                for runner in runners[-1:]:
                    send(runner, lambda: None).wait()  # what was sent before it is done
                os.truncate(paths[0], 5000)
                with pytest.raises(TruncatedError, match="cut after it was opened"):
                    list(source)  # rows decoded before the cut may still come, nothing after them
                write_shards(tmp_path, [60_000])
                at = source.position
                batch = source.next_batch()
                assert batch is not None
                np.testing.assert_array_equal(batch.rows, rows_of(at, len(batch)))

    def test_the_thread_ends_with_the_source(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [500])
        before = len(decode_threads())
        source = self.open(paths, batch_rows=10)
        for _ in range(5):
            source.next_batch()
        assert len(decode_threads()) == before + 1
        source.close()
        assert len(decode_threads()) == before
        source = self.open(paths, batch_rows=10)
        for _ in range(5):
            source.next_batch()
        del source
        gc.collect()
        assert len(decode_threads()) == before

    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child_goes_on_where_it_stood(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [500])
        with self.open(paths, batch_rows=10) as source:
            for _ in range(5):
                source.next_batch()
            pid = os.fork()
            if pid == 0:
                try:
                    found = np.concatenate([batch.rows for batch in source])
                    os._exit(0 if np.array_equal(found, rows_of(50, 450)) else 1)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), rows_of(50, 450))


PROGRAM = """
import sys
import warpdata as wd
from warpdata.corpora import decode_ahead
decode_ahead.has_idle_core = lambda _: True
decode_ahead._CORES = 2
source = wd.MmapShardSource.open_dir(sys.argv[1], batch_rows=1024)
for _ in range(int(sys.argv[2])):
    source.next_batch()
"""


@pytest.mark.parametrize("batches", [3, 12])
def test_a_program_that_closes_nothing_ends(tmp_path: Path, batches: int) -> None:
    (tmp_path / "a.shard").write_bytes(encode_shard_bytes(np.ones((20 * 1024, 128))))
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), str(batches)], check=True, timeout=LIMIT_S)
