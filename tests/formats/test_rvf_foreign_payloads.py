"""Payloads as existing programs lay them out: the hash of metadata."""

from __future__ import annotations

import hashlib

import pytest

from warpdata.errors import ChecksumError, FormatError
from warpdata.formats.rvf import meta
from warpdata.formats.rvf.meta import MetaPayload

PAYLOAD = MetaPayload(3, 2, {"a": "i64", "b": "str"}, {"by": "me"}, {4: {"a": 5, "b": "x"}, 9: None})


def test_the_hash_covers_what_is_before_the_end_mark() -> None:
    encoded = meta.encode_meta(PAYLOAD)
    body, mark, digest = encoded[:-40], encoded[-40:-32], encoded[-32:]
    assert mark == b"RVFDONE\0"
    assert digest == hashlib.sha256(body).digest()
    assert meta.decode_meta(encoded) == PAYLOAD


def test_files_of_the_first_release_hashed_the_mark_too() -> None:
    body = meta.encode_meta(PAYLOAD)[:-32]
    assert meta.decode_meta(body + hashlib.sha256(body).digest()) == PAYLOAD


def test_every_flipped_bit_of_metadata_is_found() -> None:
    encoded = bytearray(meta.encode_meta(PAYLOAD))
    for byte in range(len(encoded)):
        encoded[byte] ^= 1 << byte % 8
        with pytest.raises(FormatError):
            meta.decode_meta(bytes(encoded))
        encoded[byte] ^= 1 << byte % 8
    with pytest.raises(ChecksumError):
        meta.decode_meta(bytes(encoded[:-1]) + bytes([encoded[-1] ^ 1]))
