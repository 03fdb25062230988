"""A harvest whose n-th call of a kind fails, and that goes on: nothing acknowledged is lost, every error is ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.failing_calls import CALLS, failing
from tests.sweeps import thinned
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import OutOfSpaceError, WarpError, WriterClosedError

MOST_CALLS = 60
ROWS = 4


def harvest(folder: Path, columns: dict[str, str]) -> tuple[list[int], list[int], int]:
    """Twelve batches whatever happens: which were acknowledged, which failed, and the rows it says it has."""
    writer = CorpusWriter(folder, 3, shard_bytes=2 * ROWS * 12, columns=columns)
    good, failed = [], []
    for value in range(12):
        try:
            writer.append(np.full((ROWS, 3), value), **dict.fromkeys(columns, np.full(ROWS, value)))
            good.append(value)
        except WarpError:
            failed.append(value)
    for _ in range(2):  # whoever closes it again is not told that all is well
        try:
            writer.close()
            break
        except WarpError:
            failed.append(-1)
    return good, failed, writer.total_rows


@pytest.mark.parametrize("columns", [{}, {"token": "i64"}], ids=["rows", "side columns"])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, name: str, columns: dict[str, str]) -> None:
    for number in thinned(range(1, MOST_CALLS), most=12):
        folder = tmp_path / str(number)
        with failing(name, number) as count:
            try:
                good, failed, total = harvest(folder, columns)
            except WarpError:
                continue  # it could not begin
        with CorpusWriter.reopen(folder) as writer:
            assert writer.total_rows == total
        with MmapShardSource.open_dir(folder, dtype="float32") as source:
            found = [int(row[0]) for batch in source for row in batch.rows]
        assert [value for value in found if value not in failed] == [v for v in good for _ in range(ROWS)]
        assert total == len(found)
        if count[0] < number:
            assert not failed
            return


def test_a_writer_that_could_not_finish_a_shard_says_how_to_go_on(tmp_path: Path) -> None:
    writer = CorpusWriter(tmp_path / "c", 3, shard_bytes=2 * ROWS * 12)
    writer.append(np.ones((ROWS, 3)))
    with failing("rename", 1), pytest.raises(OutOfSpaceError):
        writer.append(np.ones((ROWS, 3)))
    for go_on in (lambda: writer.append(np.ones((ROWS, 3))), writer.close):
        with pytest.raises(WriterClosedError, match="acknowledged") as caught:
            go_on()
        assert "reopen" in str(caught.value.hint)
    with CorpusWriter.reopen(tmp_path / "c") as again:
        assert again.total_rows == writer.total_rows == 2 * ROWS
