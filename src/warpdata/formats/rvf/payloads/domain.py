"""PROFILE payloads: which domain the vectors are of, and what that domain says about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from warpdata.bytekit.view import byte_view
from warpdata.errors import BadMagicError, CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads.layout import DomainHead

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class DomainProfile:
    """A domain: dna, text, graph, vision or one of somebody's own (ids 16 to 239)."""

    profile_id: int
    name: str
    version: int = 1
    magic: int = 0
    schema: bytes = field(default=b"", repr=False)
    distance: bytes = field(default=b"", repr=False)
    """How vectors are compared, in the words of the domain; empty for the metric of the store."""
    quantization: bytes = field(default=b"", repr=False)
    preprocessing: bytes = field(default=b"", repr=False)


def encode_domain(profile: DomainProfile) -> bytes:
    """A PROFILE payload."""
    magic = profile.magic or records.DOMAIN_MAGICS.get(profile.profile_id, 0)
    name = profile.name.encode()
    if len(name) > 32:
        raise ValueError(f"the name of a profile has at most 32 bytes, not {len(name)}")
    out = records.DOMAIN_HEAD.pack(magic, profile.version, profile.profile_id, name)
    for text in (profile.schema, profile.distance, profile.quantization, profile.preprocessing):
        out += layout.COUNT_U64.pack(len(text)) + text
    return out


def decode_domain(payload: Buffer, where: str = "") -> DomainProfile:
    """The domain of a PROFILE payload."""
    view = byte_view(payload)
    if view.nbytes < records.DOMAIN_HEAD.size:
        raise TruncatedError("a PROFILE payload is cut off", path=where or None)
    head = DomainHead._make(records.DOMAIN_HEAD.unpack_from(view))
    wanted = records.DOMAIN_MAGICS.get(head.profile_id)
    if wanted is not None and head.profile_magic != wanted:
        raise BadMagicError(f"the profile {head.profile_id} has another magic", path=where or None)
    texts = []
    position = records.DOMAIN_HEAD.size
    for _ in range(4):
        if position + layout.COUNT_U64.size > view.nbytes:
            raise TruncatedError("a PROFILE payload is cut off", path=where or None)
        start = position + layout.COUNT_U64.size
        position = start + layout.COUNT_U64.unpack_from(view, position)[0]
        if position > view.nbytes:
            raise TruncatedError("a PROFILE payload is cut off", path=where or None)
        texts.append(bytes(view[start:position]))
    try:
        name = head.name.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise CorruptLayoutError("the name of a profile is not UTF-8", path=where or None) from None
    return DomainProfile(head.profile_id, name, head.profile_version, head.profile_magic, *texts)
