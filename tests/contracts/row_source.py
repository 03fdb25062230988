"""The contract every fixed-order row source keeps; a test class says how to open shards."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.corpora.source import FixedOrderSource
from warpdata.formats.gamsae.shard import encode_shard_bytes

WIDTH = 5
QUIET = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    max_examples=enough_examples(25),
)


def rows_of(first: int, count: int) -> np.ndarray:
    """Rows whose values tell their id."""
    return (np.arange(first, first + count)[:, None] * 10 + np.arange(WIDTH)).astype(np.float64)


def write_shards(folder: Path, sizes: list[int], dtype: str = "f32") -> list[Path]:
    paths, first = [], 0
    for index, size in enumerate(sizes):
        path = folder / f"{index:03d}.shard"
        path.write_bytes(encode_shard_bytes(rows_of(first, size), dtype=dtype))
        paths.append(path)
        first += size
    return paths


class RowSourceContract:
    @abstractmethod
    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource: ...

    @QUIET
    @given(
        sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any),
        batch_rows=st.integers(1, 50),
        prefetch_bytes=st.sampled_from([1, 64, 4096]),
    )
    def test_every_row_once_in_order(
        self, tmp_path: Path, sizes: list[int], batch_rows: int, prefetch_bytes: int
    ) -> None:
        paths = write_shards(tmp_path, sizes)
        with self.open(paths, batch_rows=batch_rows, prefetch_bytes=prefetch_bytes) as source:
            assert (source.total_rows, source.width) == (sum(sizes), WIDTH)
            for _ in range(2):
                batches = list(source)
                assert source.next_batch() is None
                ids = np.concatenate([batch.row_ids for batch in batches])
                assert ids.tolist() == list(range(sum(sizes)))
                assert ids.dtype == np.uint64
                np.testing.assert_array_equal(
                    np.concatenate([b.rows for b in batches]), rows_of(0, sum(sizes))
                )
                assert all(batch.rows.dtype == np.float64 for batch in batches)
                assert self.shards_of(batches, sizes) == len(batches), "a batch crossed a shard boundary"
                source.reset()

    @staticmethod
    def shards_of(batches: list[Any], sizes: list[int]) -> int:
        ends = np.cumsum(sizes)
        first = [np.searchsorted(ends, int(batch.row_ids[0]), "right") for batch in batches]
        last = [np.searchsorted(ends, int(batch.row_ids[-1]), "right") for batch in batches]
        return sum(a == b for a, b in zip(first, last, strict=True))

    @QUIET
    @given(start=st.integers(0, 70), batch_rows=st.integers(1, 30))
    def test_seek_goes_on_anywhere(self, tmp_path: Path, start: int, batch_rows: int) -> None:
        paths = write_shards(tmp_path, [30, 0, 25, 15])
        with self.open(paths, batch_rows=batch_rows, prefetch_bytes=300) as source:
            source.next_batch()
            source.seek(start)
            assert source.position == start
            rows = [batch.rows for batch in source]
            np.testing.assert_array_equal(
                np.concatenate([np.empty((0, WIDTH)), *rows]), rows_of(start, 70 - start)
            )

    def test_float32_and_a_reused_buffer(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [30, 25])
        out = np.zeros((16, WIDTH), np.float32)
        with self.open(paths, dtype="float32") as source:
            found = []
            while (batch := source.next_batch(out)) is not None:
                assert np.shares_memory(batch.rows, out)
                assert len(batch) <= 16
                found.append(batch.rows.copy())
            np.testing.assert_array_equal(np.concatenate(found), rows_of(0, 55))
            source.reset()
            for bad in (np.zeros((4, WIDTH)), np.zeros((4, 3), np.float32), np.zeros((0, WIDTH), np.float32)):
                with pytest.raises(ValueError, match="out must be"):
                    source.next_batch(bad)

    @pytest.mark.parametrize("dtype", ["f16", "bf16"])
    def test_half_precision(self, tmp_path: Path, dtype: str) -> None:
        values = np.array([[1.0, -2.5, 0.0, np.inf, 3.0]])
        (tmp_path / "a.shard").write_bytes(encode_shard_bytes(np.repeat(values, 70, 0), dtype=dtype))
        for asked in ("float64", "float32", "stored"):
            with self.open([tmp_path / "a.shard"], dtype=asked) as source:
                rows = np.concatenate([batch.rows for batch in source])
            np.testing.assert_array_equal(rows.astype(np.float64), np.repeat(values, 70, 0))

    def test_any_bits_are_values(self, tmp_path: Path) -> None:
        """Signalling NaNs included: reading warns about nothing and keeps the kind of every number."""
        bits = np.array([[0x7F800001, 0xFF800001, 0x7F7FFFFF, 0x00000001, 0x80000000]] * 3, "<u4")
        packed = encode_shard_bytes(np.zeros((3, WIDTH)))
        (tmp_path / "a.shard").write_bytes(packed[:32] + bits.tobytes())
        with self.open([tmp_path / "a.shard"]) as source:
            rows = np.concatenate([batch.rows for batch in source])
        assert np.isnan(rows[:, :2]).all()
        assert rows[0, 2:4].tolist() == [float(np.finfo(np.float32).max), 2.0**-149]

    def test_survives_pickling(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [4, 3])
        with self.open(paths, dtype="float32") as source, pickle.loads(pickle.dumps(source)) as again:
            assert [b.rows.tolist() for b in source] == [b.rows.tolist() for b in again]

    def test_wrong_options_are_refused(self, tmp_path: Path) -> None:
        paths = write_shards(tmp_path, [4])
        for bad in ({"dtype": "int8"}, {"batch_rows": 0}, {"prefetch_bytes": 0}):
            with pytest.raises(ValueError, match=r"rows come as|at least 1"):
                self.open(paths, **bad)
        with self.open(paths) as source, pytest.raises(ValueError, match="row 5 of 4"):
            source.seek(5)
