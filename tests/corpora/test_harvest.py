"""Harvesting: side columns, rolling shards, statistics, kill -9 at any moment, full disks, two writers."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.corpora.harvesting import BATCH_ROWS, WIDTH, append, batch_of, side_of
from tests.sweeps import enough_examples
from warpdata.corpora.side_table import SideTable
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.warm_cache import RowWarmCache
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    CorruptLayoutError,
    JournalInUseError,
    OutOfSpaceError,
    SchemaMismatchError,
    WriterClosedError,
)
from warpdata.formats.gamsae.corpus import load_corpus, verify_folder

COLUMNS = {"token_id": "i64", "position": "i32"}


def check(folder: Path, rows: int) -> None:
    """The corpus holds exactly the first `rows` rows, sound, with their side columns and statistics."""
    assert verify_folder(folder) == []
    with MmapShardSource.open_dir(folder) as source:
        assert source.total_rows == rows
        found = np.concatenate([batch.rows for batch in source])
        record = source.shards.record
    np.testing.assert_array_equal(found, batch_of(0, rows))
    table = SideTable(folder)
    assert len(table) == rows
    for name, wanted in side_of(0, rows).items():
        np.testing.assert_array_equal(table.column(name), wanted)
    assert record is not None
    assert record.is_complete
    assert record.statistics is not None
    assert record.statistics["rows"] == rows
    np.testing.assert_allclose(record.statistics["mean"], found.mean(0), rtol=1e-9)
    np.testing.assert_allclose(record.statistics["rms"], np.sqrt((found**2).mean(0)), rtol=1e-9)
    norms = np.linalg.norm(found, axis=1)
    np.testing.assert_allclose(record.statistics["norm_max"], norms.max())
    np.testing.assert_allclose(record.statistics["norm_mean"], norms.mean())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=enough_examples(12))
@given(
    steps=st.lists(st.sampled_from(["append", "big", "close", "abandon"]), max_size=14),
    shard_bytes=st.sampled_from([640, 2000, 10**6]),
)
def test_any_history_of_appends_closes_and_deaths(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], shard_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("h") / "corpus"
    writer = CorpusWriter(folder, WIDTH, columns=COLUMNS, shard_bytes=shard_bytes)
    rows = 0
    for step in [*steps, "append", "close"]:
        if step in ("append", "big"):
            append(writer, count := 3 if step == "append" else 40)
            rows += count
        else:
            writer.close() if step == "close" else writer.abandon()
            writer = CorpusWriter.reopen(folder, shard_bytes=shard_bytes)
        assert writer.total_rows == rows
    writer.close()
    check(folder, rows)


def test_kill_dash_nine_loses_nothing_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    CorpusWriter(folder, WIDTH, columns=COLUMNS).abandon()
    acknowledged = 0
    for round_number in range(4):
        command = [sys.executable, "-m", "tests.corpora.harvesting", str(folder)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            first = int(child.stdout.readline())
            assert first >= acknowledged, "acknowledged rows were lost"
            assert first % BATCH_ROWS == 0, "half a batch survived"
            for _ in range(2 + 5 * round_number):
                acknowledged = int(child.stdout.readline())
            child.kill()  # somewhere in a later append
            told = child.stdout.read().split("\n")[:-1]  # the last one may be half a line
            acknowledged = max([acknowledged, *map(int, told)])
    with CorpusWriter.reopen(folder) as writer:
        rows = writer.total_rows
    assert acknowledged <= rows <= acknowledged + BATCH_ROWS
    check(folder, rows)


def test_a_torn_append_is_cut_off(tmp_path: Path) -> None:
    """Whatever a crash leaves after the last acknowledged batch, in either file, disappears."""
    for tear in ("rows", "journal", "both", "flip"):
        folder = tmp_path / tear
        writer = CorpusWriter(folder, WIDTH, columns=COLUMNS)
        append(writer, 10)
        append(writer, 10)
        writer.abandon()
        (rows,), (journal,) = folder.glob("*.partial"), folder.glob("*.journal")
        if tear in ("rows", "both"):
            rows.write_bytes(rows.read_bytes() + b"torn")
        if tear in ("journal", "both"):
            journal.write_bytes(journal.read_bytes() + b"GAMSAEJ1torn")
        if tear == "flip":
            data = bytearray(rows.read_bytes())
            data[-1] ^= 1
            rows.write_bytes(data)
        with CorpusWriter.reopen(folder) as writer:
            assert writer.total_rows == (10 if tear == "flip" else 20)
            append(writer, 5)
        check(folder, 15 if tear == "flip" else 25)


def test_every_truncation_of_a_journal_keeps_whole_appends(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    writer = CorpusWriter(folder, WIDTH, columns=COLUMNS)
    for _ in range(3):
        append(writer, 4)
    writer.abandon()
    (journal,), (rows,) = folder.glob("*.journal"), folder.glob("*.partial")
    good, payload = journal.read_bytes(), rows.read_bytes()
    frame = len(good) // 3
    for size in range(len(good) + 1):
        journal.write_bytes(good[:size])
        rows.write_bytes(payload)
        again = CorpusWriter.reopen(folder)
        assert again.total_rows == size // frame * 4
        again.abandon()
        journal.write_bytes(good)


def test_a_shard_named_but_not_listed_is_adopted(tmp_path: Path) -> None:
    """The moment between the rename of a shard and the update of corpus.json."""
    folder = tmp_path / "c"
    writer = CorpusWriter(folder, WIDTH, columns=COLUMNS, shard_bytes=10 * WIDTH * 4)
    append(writer, 10)
    before = (folder / "corpus.json").read_bytes()
    append(writer, 10)
    writer.abandon()
    (folder / "corpus.json").write_bytes(before)
    with MmapShardSource.open_dir(folder) as source:
        assert source.total_rows == 10, "a reader of a running harvest sees what is listed"
    with CorpusWriter.reopen(folder) as writer:
        assert writer.total_rows == 20
        append(writer, 1)
    check(folder, 21)


def test_a_complete_corpus_refuses_shards_it_does_not_know(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with CorpusWriter(folder, WIDTH) as writer:
        writer.append(batch_of(0, 3))
    shard = next(folder.glob("*.shard"))
    (folder / "zzz.shard").write_bytes(shard.read_bytes())
    with pytest.raises(CorruptLayoutError, match=r"does not list zzz\.shard"):
        MmapShardSource.open_dir(folder)
    assert [each.code for each in verify_folder(folder)] == ["unlisted"]


def test_only_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    writer = CorpusWriter(folder, WIDTH)
    with pytest.raises(JournalInUseError):
        CorpusWriter.reopen(folder)
    writer.close()
    with pytest.raises(ConflictError):
        CorpusWriter(folder, WIDTH)
    with pytest.raises(WriterClosedError):
        writer.append(batch_of(0, 1))
    with pytest.raises(BlobNotFoundError):
        CorpusWriter.reopen(tmp_path / "absent")
    assert sorted(each.name for each in folder.iterdir()) == ["corpus.json"]


@pytest.mark.parametrize(
    ("rows", "side"),
    [
        (np.ones((2, WIDTH + 1)), {}),
        (np.ones(WIDTH), {}),
        (np.array([["a"] * WIDTH]), {}),
        (np.ones((2, WIDTH)), {"token_id": [1]}),
        (np.ones((2, WIDTH)), {"token_id": [1.5, 2.5]}),
        (np.ones((2, WIDTH)), {"other": [1, 2]}),
        (np.ones((2, WIDTH)), {"token_id": [1, 2], "other": [1, 2]}),
    ],
)
def test_wrong_rows_and_columns_change_nothing(tmp_path: Path, rows: Any, side: dict[str, Any]) -> None:
    with CorpusWriter(tmp_path / "c", WIDTH, columns={"token_id": "i32"} if side else {}) as writer:
        with pytest.raises(SchemaMismatchError):
            writer.append(rows, **side)
        assert writer.total_rows == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("i8", np.int64(300), np.int64(100)), ("i64", np.uint64(2**63), np.uint64(2**63 - 1)),
        ("f16", np.float64(70000), np.float64(0.1)), ("f32", np.float64(1e300), np.float64("inf")),
        ("f32", np.int64(2**24 + 1), np.int64(2**24)), ("f32", np.uint64(2**60 + 1), np.uint64(2**53)),
        ("f64", np.int64(2**53 + 1), np.int64(-(2**53))), ("f64", np.uint64(2**64 - 1), np.float64("nan")),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_a_column_are_refused(tmp_path: Path, kind: str, bad: Any, good: Any) -> None:
    with CorpusWriter(tmp_path / "c", 1, columns={"small": kind}) as writer:
        with pytest.raises(SchemaMismatchError, match="do not fit"):
            writer.append([[1.0]], small=np.array([bad]))
        writer.append([[1.0]], small=np.array([good]))
        assert writer.total_rows == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("dtype", "largest", "beyond"), [("f16", 65504, 70_000), ("f32", 1e38, 1e39), ("bf16", 3e38, 1e39)]
)
def test_rows_beyond_the_range_of_their_type_are_refused(tmp_path: Path, dtype: str, largest, beyond) -> None:
    with CorpusWriter(tmp_path / "c", 2, dtype=dtype) as writer:
        with pytest.raises(SchemaMismatchError, match=f"is out of range for {dtype}"):
            writer.append(np.array([[1.0, 2.0], [3.0, beyond]]))
        writer.append(np.array([[largest, np.inf]]))
        assert writer.total_rows == 1


def test_a_reopened_harvest_keeps_its_options(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", 4, shard_bytes=160, sync_appends=True) as writer:
        writer.append(np.ones((4, 4)))
    for changes in ({}, {"shard_bytes": 320, "sync_appends": False}, {}):
        with CorpusWriter.reopen(tmp_path / "c", **changes) as writer:
            assert writer._record.harvest["sync_appends"] == (writer._shard_rows == 10)
            writer.append(np.ones((40, 4)))
    rows = [shard.n_rows for shard in load_corpus(tmp_path / "c").shards]
    assert rows == [4, *[10] * 4, *[20] * 4]


def test_a_full_disk_leaves_what_was_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = CorpusWriter(folder, WIDTH)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        writer.append(batch_of(0, 10))
        try:
            writer.append(batch_of(10, 500))
        except OutOfSpaceError:
            os._exit(17 if writer.total_rows == 10 else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 17
    with CorpusWriter.reopen(folder) as writer:
        assert writer.total_rows == 10


def test_rows_that_are_not_finite_are_counted_apart(tmp_path: Path) -> None:
    values = np.ones((4, 3))
    values[1, 0], values[2, 2] = np.nan, np.inf
    with CorpusWriter(tmp_path / "c", 3) as writer:
        writer.append(values)
        found = writer.statistics()
    assert (found["rows"], found["nonfinite_rows"], found["mean"]) == (2, 2, [1.0, 1.0, 1.0])
    with MmapShardSource.open_dir(tmp_path / "c") as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), values)


def test_side_table_errors(tmp_path: Path) -> None:
    with CorpusWriter(tmp_path / "c", 1, columns={"a": "i32"}) as writer:
        writer.append([[1.0]], a=[5])
    table = SideTable(tmp_path / "c")
    assert table.take([0, 0])["a"].tolist() == [5, 5]
    with pytest.raises(KeyError, match="no side column"):
        table.column("b")
    with pytest.raises(ValueError, match="row ids"):
        table.take([1])
    (tmp_path / "c" / "rows.parquet").write_bytes(b"PAR1junk")
    with pytest.raises(CorruptLayoutError):
        SideTable(tmp_path / "c")
    with pytest.raises(BlobNotFoundError):
        SideTable(tmp_path)
    for bad in ({"row_id": "i64"}, {"a b": "i64"}, {"a": "bf16"}):
        with pytest.raises(ValueError, match="side column"):
            CorpusWriter(tmp_path / "d", 1, columns=bad)
    with pytest.raises(ValueError, match="too wide"):
        CorpusWriter(tmp_path / "d", 2**50)


def test_a_writer_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    for wrong in ({"x": object()}, {"x": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            CorpusWriter(folder, 4, provenance=wrong)
    for size in (0, -1, 1.5, "4"):
        with pytest.raises((TypeError, ValueError)):
            CorpusWriter(folder, 4, shard_bytes=size)  # type: ignore[arg-type]
    with CorpusWriter(folder, np.int64(4)) as writer:  # type: ignore[arg-type]
        writer.append(np.ones((3, 4)))
    assert writer.width == 4


def test_paths_keep_their_meaning_when_the_program_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with CorpusWriter("c", 4, shard_bytes=64) as writer:
        for step in range(4):
            monkeypatch.chdir(tmp_path / "elsewhere")
            writer.append(np.full((5, 4), step))
    assert not list((tmp_path / "elsewhere").iterdir())
    monkeypatch.chdir(tmp_path)
    names = sorted(path.name for path in (tmp_path / "c").glob("*.shard"))
    sources = [MmapShardSource.open_dir("c"), MmapShardSource.open([Path("c") / name for name in names])]
    monkeypatch.chdir(tmp_path / "elsewhere")
    for source in sources:
        with source:
            assert sum(len(batch) for batch in source) == 20


def test_what_killed_writers_left_half_written_goes(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with CorpusWriter(folder, 2, columns={"t": "i64"}) as writer:
        writer.append(np.ones((3, 2)), t=[1, 2, 3])
    left = [folder / f".{name}.tmp-0123456789ab" for name in ("corpus.json", "rows.parquet")]
    other = folder / ".notes.tmp-0123456789ab"
    for path in (*left, other):
        path.write_bytes(b"half")
    with CorpusWriter.reopen(folder) as writer:
        assert writer.total_rows == 3
    assert not any(path.exists() for path in left)
    assert other.exists()
    with RowWarmCache(tmp_path / "w", model="m", total_rows=3) as cache:
        half = cache.folder / ".checkpoint.tmp-0123456789ab"
    half.write_bytes(b"half")
    RowWarmCache(tmp_path / "w", model="m", total_rows=3).close()
    assert not half.exists()
