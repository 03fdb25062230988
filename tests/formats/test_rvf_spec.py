"""SPEC.md and the two layouts say the same, field by field."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import warpdata.formats.rvf as room
from tests.formats.spec_tables import assert_spec_matches
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records

SPEC = Path(room.__file__).parent / "SPEC.md"

TABLES = [
    ("Segment header", layout.SegmentHeader, layout.HEADER),
    ("Signature footer", layout.FooterHead, layout.FOOTER_HEAD),
    ("Block entry", records.BlockEntry, records.BLOCK_ENTRY),
    ("Id map head", records.IdMapHead, records.ID_MAP_HEAD),
    ("Id directory", records.IdDirectoryHead, records.ID_DIRECTORY_HEAD),
    ("Index header", records.IndexHeader, records.INDEX_HEADER),
    ("Restart head", records.RestartHead, records.RESTART_HEAD),
    ("Prefetch hint", records.PrefetchHint, records.PREFETCH_HINT),
    ("RVIX trailer", records.IndexTrailer, records.INDEX_TRAILER),
    ("Layer A", records.EntryPoint, records.ENTRY_POINT),
    ("Centroid head", records.CentroidHead, records.CENTROID_HEAD),
    ("Partition", records.Partition, records.PARTITION),
    ("Hot header", records.HotHeader, records.HOT_HEADER),
    ("Quant header", records.QuantHeader, records.QUANT_HEADER),
    ("PQ shape", records.PqShape, records.PQ_SHAPE),
    ("Residual shape", records.ResidualShape, records.RESIDUAL_SHAPE),
    ("Sketch header", records.SketchHeader, records.SKETCH_HEADER),
    ("Record head", layout.TlvHead, layout.TLV_HEAD),
    ("Directory entry", layout.DirectoryEntry, layout.DIRECTORY_ENTRY),
    ("Chain", layout.OverlayChain, layout.OVERLAY_CHAIN),
    ("Root", layout.RootFields, layout.ROOT),
    ("File identity", layout.FileIdentity, layout.FILE_IDENTITY),
    ("Deletion bitmap", layout.ContainerEntry, layout.CONTAINER_ENTRY),
    ("Journal header", records.JournalHeader, records.JOURNAL_HEADER),
    ("Meta header", records.MetaHeader, records.META_HEADER),
    ("Crypto head", records.CryptoHead, records.CRYPTO_HEAD),
    ("Writer lock", layout.WriterLockRecord, layout.WRITER_LOCK),
    ("Runtime manifest head", records.RuntimeManifestHead, records.RUNTIME_MANIFEST_HEAD),
    ("Runtime segment", records.RuntimeSegment, records.RUNTIME_SEGMENT),
]


@pytest.mark.parametrize(("heading", "record", "form"), TABLES, ids=[t[0] for t in TABLES])
def test_spec_matches_layout(heading: str, record: type, form: struct.Struct) -> None:
    assert_spec_matches(SPEC, heading, record, form)


def test_numbers_in_the_text() -> None:
    text = SPEC.read_text()
    assert layout.SEGMENT_MAGIC.hex(" ").upper() in text
    assert layout.ROOT_MAGIC.hex(" ").upper() in text
    for seg_type in layout.SegmentType:
        assert seg_type is layout.SegmentType.INVALID or f"{seg_type:02X}" in text
    for flag in layout.Flag:
        assert f"{flag:04X} {flag.name}" in text
    assert (layout.HEADER.size, layout.ROOT.size, layout.DIRECTORY_ENTRY.size) == (64, 148, 64)
