"""Appends of any size: shards keep their size, and every acknowledged row is there after a reopening."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bytekit.test_read_at import short_reads
from tests.sweeps import enough_examples
from warpdata.corpora.side_table import SideTable
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import CorruptLayoutError
from warpdata.formats.gamsae import layout, shard
from warpdata.formats.gamsae.corpus import verify_folder
from warpdata.formats.gamsae.shard import encode_shard_bytes

WIDTH = 3
ROW_BYTES = WIDTH * 4
QUIET = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=enough_examples(12)
)


def values(first: int, count: int) -> np.ndarray:
    return np.arange(first * WIDTH, (first + count) * WIDTH, dtype=np.float32).reshape(count, WIDTH)


def check(folder: Path, rows: int) -> tuple[int, ...]:
    """Exactly the first rows, with their side column; returns the rows of each shard."""
    assert verify_folder(folder) == []
    with MmapShardSource.open_dir(folder, dtype="float32") as source:
        np.testing.assert_array_equal(np.concatenate([b.rows for b in source]), values(0, rows))
        shard_rows = source.shards.shard_rows
    assert SideTable(folder).column("n").tolist() == list(range(rows))
    return shard_rows


@QUIET
@given(
    appends=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    shard_bytes=st.integers(8 * ROW_BYTES, 40 * ROW_BYTES),
    reopen=st.booleans(),
)
def test_no_shard_is_larger_than_asked(
    tmp_path_factory: pytest.TempPathFactory, appends: list[int], shard_bytes: int, reopen: bool
) -> None:
    folder = tmp_path_factory.mktemp("a") / "c"
    most = max(1, shard_bytes // ROW_BYTES)
    writer = CorpusWriter(folder, WIDTH, columns={"n": "i64"}, shard_bytes=shard_bytes)
    rows = 0
    for count in appends:
        assert writer.append(values(rows, count), n=np.arange(rows, rows + count)) == rows
        rows += count
        if reopen:
            writer.abandon()
            writer = CorpusWriter.reopen(folder, shard_bytes=shard_bytes)
        assert writer.total_rows == rows
    writer.close()
    shard_rows = check(folder, rows)
    assert max(shard_rows) <= most
    assert len(appends) > 1 or len(shard_rows) == -(-rows // most)


def test_an_append_that_is_read_in_pieces_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives at most 2 GiB at a time: nothing acknowledged may be cut off because of it."""
    writer = CorpusWriter(tmp_path / "c", WIDTH, columns={"n": "i64"})
    writer.append(values(0, 1000), n=np.arange(1000))
    writer.abandon()
    monkeypatch.setattr(shard, "_READ_BYTES", 5000)
    short_reads(monkeypatch, 700)
    with CorpusWriter.reopen(tmp_path / "c") as writer:
        assert writer.total_rows == 1000
        assert writer.statistics()["rows"] == 1000
    check(tmp_path / "c", 1000)


def test_side_columns_beyond_one_frame_are_cut_into_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "MAX_JOURNAL_FRAME_BYTES", 100)
    writer = CorpusWriter(tmp_path / "c", WIDTH, columns={"n": "i64"})
    writer.append(values(0, 50), n=np.arange(50))
    writer.abandon()
    with CorpusWriter.reopen(tmp_path / "c") as writer:
        assert writer.total_rows == 50
    check(tmp_path / "c", 50)


@pytest.mark.parametrize("foreign", [np.ones((2, WIDTH + 1)), np.ones((2, WIDTH))])
def test_a_foreign_shard_in_the_way_is_named(tmp_path: Path, foreign: np.ndarray) -> None:
    CorpusWriter(tmp_path / "c", WIDTH).abandon()
    tail = b"" if foreign.shape[1] != WIDTH else b"tail"
    (tmp_path / "c" / "shard-000000.shard").write_bytes(encode_shard_bytes(foreign) + tail)
    with pytest.raises(CorruptLayoutError, match="not of the harvest"):
        CorpusWriter.reopen(tmp_path / "c")
