from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.range_reader import DATA, RangeReaderContract
from warpdata.bytekit.io import ranges
from warpdata.bytekit.io.files import FileRangeReader, LocalRangeReader, MmapRangeReader
from warpdata.bytekit.io.ranges import BytesRangeReader, FarRangeReader, RangeReader
from warpdata.errors import BlobNotFoundError, StoreError, TruncatedError


class TestBytes(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        return BytesRangeReader(data)


class TestFar(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        return FarRangeReader(BytesRangeReader(data))

    @given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 90)), min_size=1, max_size=30))
    def test_small_reads_come_out_of_pages_that_are_fetched_once(self, asked: list[tuple[int, int]]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranges, "_FAR_PAGE_BYTES", 64)
            data, fetched = bytes(range(256)) * 3, []
            inner = BytesRangeReader(data)
            read = inner.read
            patch.setattr(inner, "read", lambda start, end: fetched.append((start, end)) or read(start, end))
            reader = FarRangeReader(inner)
            wanted = [(start, min(start + count, len(data))) for start, count in asked]
            for start, end in wanted:
                assert bytes(reader.read(start, end)) == data[start:end]
            small = [start // 64 for start, end in wanted if 0 < end - start < 64]
            assert all(
                fetched.count((page * 64, page * 64 + 64)) <= 1 + wanted.count((page * 64, page * 64 + 64))
                for page in small
            )
            assert [bytes(each) for each in reader.read_many(wanted)] == [
                data[start:end] for start, end in wanted
            ]


class TestFile(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        (folder / "x.bin").write_bytes(data)
        return FileRangeReader(folder / "x.bin")

    def test_a_file_cut_while_open_is_noticed(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        os.truncate(tmp_path / "x.bin", 100)
        with pytest.raises(TruncatedError, match="now ends"):
            reader.read(50, 200)


class TestLocal(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        (folder / "x.bin").write_bytes(data)
        return LocalRangeReader(folder / "x.bin")

    def test_small_ranges_are_copies_and_large_ones_views(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        assert isinstance(reader, LocalRangeReader)
        assert isinstance(reader.read(0, 1000).obj, bytes)
        assert not isinstance(reader.read(0, 70_000).obj, bytes)
        assert bytes(reader.view(3, 9)) == DATA[3:9]


class TestMmap(RangeReaderContract):
    def open(self, data: bytes, folder: Path) -> RangeReader:
        (folder / "x.bin").write_bytes(data)
        return MmapRangeReader(folder / "x.bin")


@pytest.mark.parametrize("kind", [FileRangeReader, LocalRangeReader, MmapRangeReader])
def test_readers_of_files_can_be_pickled(kind: type, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(DATA)
    again = pickle.loads(pickle.dumps(kind(tmp_path / "x")))
    assert bytes(again.read(3, 9)) == DATA[3:9]


@pytest.mark.parametrize("kind", [FileRangeReader, LocalRangeReader, MmapRangeReader])
def test_what_is_not_a_file_is_a_typed_error(kind: type, tmp_path: Path) -> None:
    with pytest.raises(BlobNotFoundError, match="no such file"):
        kind(tmp_path / "absent")
    with pytest.raises(StoreError):
        kind(tmp_path)


RANGES = st.tuples(st.integers(0, 10_000), st.integers(0, 500)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(RANGES, max_size=30), st.integers(0, 300), st.integers(1, 2000))
def test_coalescing_covers_all_within_its_limits(wanted: list[tuple[int, int]], gap: int, span: int) -> None:
    spans = ranges.coalesce(wanted, max_gap_bytes=gap, max_span_bytes=span)
    assert sorted(member for each in spans for member in each.members) == list(range(len(wanted)))
    for each in spans:
        assert all(each.start <= wanted[m][0] and wanted[m][1] <= each.end for m in each.members)
        assert each.end - each.start <= span or len(each.members) == 1
    asked = ranges.total_bytes((each.start, each.end) for each in spans)
    assert asked <= ranges.total_bytes(wanted) + gap * max(0, len(wanted) - 1)
