"""The contract every RangeReader keeps; a test class inherits it and says how to open bytes."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.bytekit.io.ranges import RangeReader
from warpdata.errors import TruncatedError

DATA = bytes(range(256)) * 300


class RangeReaderContract:
    @abstractmethod
    def open(self, data: bytes, folder: Path) -> RangeReader: ...

    def test_knows_its_size_and_name(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        assert isinstance(reader, RangeReader)
        assert reader.size == len(DATA)
        assert reader.name

    @settings(
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
        max_examples=enough_examples(30),
    )
    @given(ranges=st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 5000)), max_size=20))
    def test_reads_exactly_what_was_asked(self, tmp_path: Path, ranges: list[tuple[int, int]]) -> None:
        reader = self.open(DATA, tmp_path)
        wanted = [(start, min(start + length, len(DATA))) for start, length in ranges]
        found = reader.read_many(wanted)
        assert [bytes(view) for view in found] == [DATA[start:end] for start, end in wanted]
        for start, end in wanted:
            view = reader.read(start, end)
            assert view.readonly
            assert bytes(view) == DATA[start:end]

    def test_past_the_end_is_truncated(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        for start, end in [(0, len(DATA) + 1), (len(DATA) + 5, len(DATA) + 6), (2**62, 2**63)]:
            with pytest.raises(TruncatedError, match="past the end"):
                reader.read(start, end)
            with pytest.raises(TruncatedError):
                reader.read_many([(0, 1), (start, end)])

    def test_backward_and_negative_ranges_are_refused(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        for start, end in [(-1, 3), (5, 4)]:
            with pytest.raises(ValueError, match="byte range"):
                reader.read(start, end)

    def test_empty_bytes_can_be_opened(self, tmp_path: Path) -> None:
        reader = self.open(b"", tmp_path)
        assert reader.size == 0
        assert bytes(reader.read(0, 0)) == b""

    def test_views_outlive_the_reader(self, tmp_path: Path) -> None:
        reader = self.open(DATA, tmp_path)
        view = reader.read(10, 20)
        reader.close()
        assert bytes(view) == DATA[10:20]
