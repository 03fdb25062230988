"""What was done to a store: the witness chain across segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpdata.formats.rvf.layout import SegmentType
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads.layout import WitnessLink
from warpdata.formats.rvf.payloads.witness import decode_witness, extend_chain

if TYPE_CHECKING:
    from warpdata.search.content import Content


def witness_chain(content: Content) -> list[WitnessLink]:
    """The checked chain of a store of our own dialect, oldest first."""
    if content.is_runtime or not content.has_profile:
        return []
    entries = content.snapshot.of_type(SegmentType.WITNESS)
    return decode_witness(content.read(entries[-1]), content.reader.name) if entries else []


def extended_chain(content: Content, action: str, timestamp_ns: int) -> list[WitnessLink]:
    """The chain with one more action, which names the state it was done to."""
    subject = f"{action};manifest={content.snapshot.manifest_hash.hex()}".encode()
    return extend_chain(witness_chain(content), subject, timestamp_ns, records.WITNESS_COMPUTATION)
