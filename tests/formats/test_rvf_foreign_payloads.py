"""Payloads as existing programs lay them out: the hash of metadata, overlays, profiles; cut and changed ones."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps import enough_examples
from warpdata.errors import ChecksumError, FormatError, LimitExceededError
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads import meta
from warpdata.formats.rvf.payloads.domain import DomainProfile, decode_domain, encode_domain
from warpdata.formats.rvf.payloads.layout import OverlayRollback, OverlayWitness
from warpdata.formats.rvf.payloads.meta import MetaPayload
from warpdata.formats.rvf.payloads.overlay import (
    CutPartition,
    Edge,
    Overlay,
    decode_overlay,
    encode_overlay,
)

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


ids = st.integers(0, 2**63 - 1)
edges = st.one_of(
    st.builds(Edge, st.just("remove"), ids, ids),
    st.builds(Edge, st.sampled_from(["add", "reweight"]), ids, ids, st.floats(width=32, allow_nan=False)),
)


@settings(max_examples=enough_examples(40), deadline=None)
@given(st.lists(edges, max_size=5), st.integers(0, 3), st.lists(st.tuples(ids, ids), max_size=3))
def test_overlays_come_back_and_every_cut_is_refused(
    changes: list[Edge], parts: int, cut: list[tuple[int, int]]
) -> None:
    partitions = tuple(
        CutPartition(n, 10 + n, 0.5, np.arange(3, dtype=np.float16) + n, n, n + 5) for n in range(parts)
    )
    witness = OverlayWitness(1, 2.5, len(cut), bytes(range(32)))
    overlay = Overlay(
        7, 6, 3, tuple(changes), partitions, 99, 4096, witness, tuple(cut), OverlayRollback(64, b"h" * 16)
    )
    encoded = encode_overlay(overlay)
    found = decode_overlay(encoded, 3)
    assert found.edges == overlay.edges
    assert (found.witness, found.cut_edges, found.rollback) == (witness, overlay.cut_edges, overlay.rollback)
    for mine, theirs in zip(found.partitions, partitions, strict=True):
        assert (mine.partition_id, mine.node_count, mine.id_start, mine.id_end) == (
            theirs.partition_id, theirs.node_count, theirs.id_start, theirs.id_end,
        )  # fmt: skip
        assert np.array_equal(mine.centroid, theirs.centroid)
    for end in range(len(encoded)):
        with pytest.raises(FormatError):
            decode_overlay(encoded[:end], 3)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head._replace(delta_count=2**31), lambda head: head._replace(partition_count=2**31),
        lambda head: head._replace(parent_epoch=7), lambda head: head._replace(delta_count=1),
    ],
)  # fmt: skip
def test_overlays_that_contradict_themselves(change: Any) -> None:
    encoded = bytearray(encode_overlay(Overlay(7, 6, 3)))
    head = records.OverlayHead._make(records.OVERLAY_HEAD.unpack_from(encoded))
    records.OVERLAY_HEAD.pack_into(encoded, 0, *change(head))
    with pytest.raises(FormatError):
        decode_overlay(bytes(encoded), 3)


def test_an_overlay_has_a_largest_size() -> None:
    with pytest.raises(LimitExceededError):
        decode_overlay(bytes((1 << 20) + 1), 3)


def test_profiles_come_back_and_every_cut_is_refused() -> None:
    profile = DomainProfile(1, "dna", 2, 0x52444E41, b"schema", b"", b"q" * 20, b"p")
    encoded = encode_domain(profile)
    assert decode_domain(encoded) == profile
    for end in range(len(encoded)):
        with pytest.raises(FormatError):
            decode_domain(encoded[:end])
    with pytest.raises(FormatError):
        decode_domain(encoded[:4] + b"\0\0\2\0" + encoded[8:])  # another id, the same magic
    own = DomainProfile(0x10, "mine", magic=5)
    assert decode_domain(encode_domain(own)) == own
    with pytest.raises(ValueError, match="32 bytes"):
        encode_domain(DomainProfile(1, "x" * 33))
