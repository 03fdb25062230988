"""Small parquet files of our own making: to every reader what Arrow would have written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples, thinned
from warpdata.bytekit.arrays import DTYPE_NAMES, dtype_named
from warpdata.errors import CorruptLayoutError, WarpError
from warpdata.formats.episodedir.signal_file import (
    SMALL_BYTES,
    ParquetFooter,
    TableWriter,
    parse_signal,
    signal_schema,
    table_bytes,
)

SHAPES = ((), (1,), (3,), (2, 3), (1, 1, 9))


def made(dtype: str, shape: tuple[int, ...], rows: int, seed: int) -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(seed)
    kind = dtype_named(dtype).dtype
    values = rng.integers(0, 2, (rows, *shape)) > 0
    if dtype != "bool":
        values = rng.integers(0, 256, (rows, *shape, kind.itemsize), np.uint8).view(kind)[..., 0]
    about = {"kind": "tensor" if shape else "scalar", "dtype": dtype, "shape": list(shape)}
    return about, np.cumsum(rng.integers(1, 1 << 40, rows)) - (1 << 45), values


@settings(deadline=None, max_examples=enough_examples(150))
@given(
    dtype=st.sampled_from(DTYPE_NAMES), shape=st.sampled_from(SHAPES), rows=st.integers(1, 70),
    seed=st.integers(0, 1 << 30),
)  # fmt: skip
def test_what_comes_out_is_what_went_in_bit_for_bit(
    dtype: str, shape: tuple[int, ...], rows: int, seed: int
) -> None:
    about, stamps, values = made(dtype, shape, rows, seed)
    data = bytes(table_bytes(about, stamps, values))
    description, found_stamps, found = parse_signal(data, "it")
    assert description.to_json() == about
    assert np.array_equal(found_stamps, stamps)
    assert (found.dtype, found.shape, found.tobytes()) == (values.dtype, values.shape, values.tobytes())
    assert ParquetFooter(data, "it").bounds("timestamp") == (stamps[0], stamps[-1])
    sink = io.BytesIO()
    writer = TableWriter(sink, signal_schema(about), about)
    writer.write(stamps, values)
    writer.close()
    ours, theirs = (pq.ParquetFile(io.BytesIO(each)) for each in (data, sink.getvalue()))
    assert ours.schema_arrow.equals(theirs.schema_arrow, check_metadata=True)
    assert ours.schema.equals(theirs.schema)


@pytest.mark.parametrize("dtype", [name for name in DTYPE_NAMES if name not in ("f16", "bf16")])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_another_reader_reads_it(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    about, stamps, _ = made(dtype, shape, 20, 1)
    values = np.arange(20 * max(1, int(np.prod(shape)))).reshape(20, *shape).astype(dtype_named(dtype).dtype)
    data = bytes(table_bytes(about, stamps, values))
    (tmp_path / "it.parquet").write_bytes(data)
    rows = duckdb.sql(f"select timestamp, value from '{tmp_path / 'it.parquet'}'").fetchall()
    assert [row[0] for row in rows] == stamps.tolist()
    assert [row[1] for row in rows] == values.tolist()


def test_only_small_tables_of_numbers_are_uncompressed() -> None:
    about = {"kind": "scalar", "dtype": "f64", "shape": []}
    text = {"kind": "text", "dtype": "text", "shape": []}
    rows = SMALL_BYTES // 16
    tables = [
        (table_bytes(about, np.arange(rows), np.zeros(rows)), "UNCOMPRESSED"),
        (table_bytes(about, np.arange(rows + 1), np.zeros(rows + 1)), "ZSTD"),
        (table_bytes(text, np.arange(1), np.array(["a"], object)), "ZSTD"),
    ]
    for data, compression in tables:
        group = pq.ParquetFile(io.BytesIO(bytes(data))).metadata.row_group(0)
        assert {group.column(at).compression for at in range(2)} == {compression}


def test_damage_is_never_another_value() -> None:
    about, stamps, values = made("f32", (3,), 20, 3)
    data = bytes(table_bytes(about, stamps, values))
    refused = 0
    for at in thinned(range(len(data)), 200):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        try:
            _, found_stamps, found = parse_signal(bytes(damaged), "it")
        except WarpError:
            refused += 1
        else:  # names, types and what nobody reads
            assert found_stamps.tobytes() == stamps.tobytes() or at > len(data) - 2000
            assert found.tobytes() == values.tobytes() or at > len(data) - 2000
    assert refused
    for size in thinned(range(len(data)), 50):
        with pytest.raises(CorruptLayoutError):
            parse_signal(data[:size], "it")
