"""A decoder written from the tables of SPEC.md alone: no import of our reader, layout or toolbox."""

from __future__ import annotations

from typing import Any

import lz4.block
import zstandard

CRC_TABLE = []
for _index in range(256):
    _value = _index
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    CRC_TABLE.append(_value)


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = CRC_TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def number(data: bytes, offset: int, size: int) -> int:
    return int.from_bytes(data[offset : offset + size], "little")


def table(data: bytes) -> tuple[dict[str, int], list[dict[str, Any]]]:
    assert data[:4] == b"SHRD"
    assert data[4] == 2
    header = {
        "role": data[0x05], "flags": number(data, 0x06, 2), "alignment": data[0x08],
        "entry_count": number(data, 0x0C, 4), "string_table_offset": number(data, 0x10, 8),
        "data_section_offset": number(data, 0x18, 8), "total_file_size": number(data, 0x28, 8),
    }  # fmt: skip
    if data[0x30:0x34] == b"WDC1":
        covered = data[:0x30] + data[0x40 : header["data_section_offset"]]
        assert crc32c(covered) == number(data, 0x34, 4)
    entries = []
    for index in range(header["entry_count"]):
        at = 64 + 48 * index
        name_at = header["string_table_offset"] + number(data, at + 0x08, 4)
        entries.append(
            {
                "name": data[name_at : name_at + number(data, at + 0x0C, 2)].decode(),
                "flags": number(data, at + 0x0E, 2),
                "data_offset": number(data, at + 0x10, 8),
                "disk_size": number(data, at + 0x18, 8),
                "raw_size": number(data, at + 0x20, 8),
                "crc32c": number(data, at + 0x28, 4),
                "content_type": number(data, at + 0x2C, 2),
            }
        )
    return header, entries


def decode(data: bytes) -> dict[str, bytes]:
    """Every block by name, decompressed and checked."""
    _, entries = table(data)
    blocks = {}
    for entry in entries:
        stored = data[entry["data_offset"] : entry["data_offset"] + entry["disk_size"]]
        if entry["flags"] & 0x2:
            with zstandard.ZstdDecompressor().stream_reader(stored, read_across_frames=True) as stream:
                stored = stream.read()
        elif entry["flags"] & 0x4:
            stored = lz4.block.decompress(stored, uncompressed_size=entry["raw_size"])
        assert len(stored) == entry["raw_size"]
        assert crc32c(stored) == entry["crc32c"], entry["name"]
        blocks[entry["name"]] = stored
    return blocks
