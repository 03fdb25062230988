"""The two hashes of the container, by the names its users know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpdata.bytekit.checksum import crc32c, xxh64

if TYPE_CHECKING:
    from typing_extensions import Buffer


def compute_crc32(data: Buffer) -> int:
    """The checksum of a block: CRC-32C (Castagnoli) of its uncompressed bytes."""
    return crc32c(data)


def name_hash(name: str) -> int:
    """The hash of a block name in the table: XXH64 of its UTF-8 bytes."""
    return xxh64(name.encode())
