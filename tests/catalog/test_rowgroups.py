"""Row groups in pieces: whatever two threads decode of them is what one does."""

from __future__ import annotations

import io
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpdata.catalog import rowgroups
from warpdata.errors import CorruptLayoutError
from warpdata.stores.blobs import BlobAddress, LocalBlobReader
from warpdata.stores.local import LocalStore

COLUMNS = ("numbers", "words", "labels", "flags", "wide")


def a_table(rows: int, seed: int) -> pa.Table:
    """Columns that Arrow cuts in different ways: labels in the pieces of their dictionaries, others as asked for."""
    random = np.random.default_rng(seed)
    words = [None if n % 7 == 0 else "x" * (n % 90) for n in random.integers(0, 1000, rows)]
    return pa.table(
        {
            "numbers": random.normal(size=rows),
            "words": pa.array(words, pa.string()),
            "labels": pa.array([f"label {n}" for n in random.integers(0, 5000, rows)]).dictionary_encode(),
            "flags": random.integers(0, 2, rows).astype(bool),
            "wide": pa.array([bytes([n % 251]) * 40 for n in range(rows)], pa.binary(40)),
        }
    ).replace_schema_metadata({"about": "made"})


def shard_of(folder: Path, data: bytes) -> rowgroups.ShardFile:
    digest = sha256(data).hexdigest()
    (folder / digest).write_bytes(data)
    return rowgroups.ShardFile(
        LocalBlobReader(BlobAddress(digest, len(data), digest, "a shard"), LocalStore(folder))
    )


@given(
    st.integers(1, 4000), st.integers(1, 1500), st.integers(200, 3000),
    st.none() | st.lists(st.sampled_from(COLUMNS), unique=True), st.integers(0, 9),
)  # fmt: skip
def test_columns_begun_by_two_threads_are_those_of_one(
    tmp_path_factory: Any, rows: int, piece: int, page_bytes: int, columns: list[str] | None, seed: int
) -> None:
    out = io.BytesIO()
    pq.write_table(a_table(rows, seed), out, row_group_size=1700, data_page_size=page_bytes)
    shard = shard_of(tmp_path_factory.mktemp("shard"), out.getvalue())
    for group in range(shard.metadata.num_row_groups):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rowgroups, "_SHARED_BYTES", 0)
            shared = list(shard.stream(group, columns, piece))
            patch.setattr(rowgroups, "_SHARED_BYTES", 1 << 40)
            alone = list(shard.stream(group, columns, piece))
        assert max(batch.num_rows for batch in shared) <= piece
        assert shared[0].schema.equals(alone[0].schema, check_metadata=True)
        whole = shard.read(group, columns, shard.fetch(group, columns))
        assert pa.Table.from_batches(shared) == pa.Table.from_batches(alone) == whole
    shard.reader.close()


@pytest.mark.parametrize("column", COLUMNS[:2])
def test_damage_that_either_thread_meets_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(rowgroups, "_SHARED_BYTES", 0)
    out = io.BytesIO()
    pq.write_table(a_table(3000, 0), out, write_page_checksum=True)
    data = bytearray(out.getvalue())
    place = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(COLUMNS.index(column))
    data[place.dictionary_page_offset + place.total_compressed_size // 2] ^= 0xFF
    with pytest.raises(CorruptLayoutError, match="damaged parquet shard"):
        list(shard_of(tmp_path, bytes(data)).stream(0, list(COLUMNS[:2]), 64))
