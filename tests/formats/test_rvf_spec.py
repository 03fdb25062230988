"""SPEC.md and layout.py agree, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import warpdata.formats.rvf as room
from tests.formats.spec_tables import assert_spec_matches
from warpdata.formats.rvf import layout

SPEC = Path(room.__file__).parent / "SPEC.md"

TABLES = {
    "Segment header": layout.HEADER,
    "Signature footer": layout.FOOTER_HEAD,
    "Block entry": layout.BLOCK_ENTRY,
    "Id map head": layout.ID_MAP_HEAD,
    "Id directory": layout.ID_DIRECTORY_HEAD,
    "Index header": layout.INDEX_HEADER,
    "Restart head": layout.RESTART_HEAD,
    "Prefetch hint": layout.PREFETCH_HINT,
    "RVIX trailer": layout.INDEX_TRAILER,
    "Layer A": layout.ENTRY_POINT,
    "Centroid head": layout.CENTROID_HEAD,
    "Partition": layout.PARTITION,
    "Hot header": layout.HOT_HEADER,
    "Quant header": layout.QUANT_HEADER,
    "PQ shape": layout.PQ_SHAPE,
    "Residual shape": layout.RESIDUAL_SHAPE,
    "Sketch header": layout.SKETCH_HEADER,
    "Record head": layout.TLV_HEAD,
    "Directory entry": layout.DIRECTORY_ENTRY,
    "Chain": layout.OVERLAY_CHAIN,
    "Root": layout.ROOT,
    "File identity": layout.FILE_IDENTITY,
    "Deletion bitmap": layout.CONTAINER_ENTRY,
    "Journal header": layout.JOURNAL_HEADER,
    "Log head": layout.LOG_HEAD,
    "Log piece": layout.LOG_PIECE,
    "Meta header": layout.META_HEADER,
    "Columns head": layout.COLUMNS_HEAD,
    "Column piece": layout.COLUMN_PIECE,
    "Crypto head": layout.CRYPTO_HEAD,
    "Writer lock": layout.WRITER_LOCK,
    "Runtime manifest head": layout.RUNTIME_MANIFEST_HEAD,
    "Runtime segment": layout.RUNTIME_SEGMENT,
}


@pytest.mark.parametrize("heading", TABLES)
def test_spec_matches_layout(heading: str) -> None:
    record: Any = TABLES[heading]
    assert_spec_matches(SPEC, heading, record, record)


def test_numbers_in_the_text() -> None:
    text = SPEC.read_text()
    assert layout.SEGMENT_MAGIC.hex(" ").upper() in text
    assert layout.ROOT_MAGIC.hex(" ").upper() in text
    for seg_type in layout.SegmentType:
        assert seg_type is layout.SegmentType.INVALID or f"{seg_type:02X}" in text
    for flag in layout.Flag:
        assert f"{flag:04X} {flag.name}" in text
    assert (layout.HEADER.size, layout.ROOT.size, layout.DIRECTORY_ENTRY.size) == (64, 148, 64)
