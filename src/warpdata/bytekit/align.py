"""Alignment of offsets and the zero bytes that fill the gap."""

from __future__ import annotations


def align_up(offset: int, alignment: int) -> int:
    """The first multiple of `alignment` at or after `offset`; an alignment of 0 or 1 means none."""
    if alignment <= 1:
        return offset
    return -(-offset // alignment) * alignment


def padding(offset: int, alignment: int) -> bytes:
    """The zero bytes that bring `offset` to the next multiple of `alignment`."""
    return bytes(align_up(offset, alignment) - offset)
