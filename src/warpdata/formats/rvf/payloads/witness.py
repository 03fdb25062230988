"""WITNESS payloads: a hash chain of what was done to the file; and CRYPTO payloads: public keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpdata.bytekit.checksum import shake256
from warpdata.bytekit.view import byte_view
from warpdata.errors import ChecksumError, CorruptLayoutError, TruncatedError
from warpdata.formats.rvf import layout
from warpdata.formats.rvf.payloads import layout as records
from warpdata.formats.rvf.payloads.layout import WitnessLink

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ZERO = bytes(32)


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures, and when it holds (0 = without end)."""

    algorithm: str
    data: bytes
    valid_from_ns: int = 0
    valid_until_ns: int = 0

    @property
    def key_id(self) -> bytes:
        """The 16 bytes that name this key: SHAKE-256 of its bytes."""
        return shake256(self.data, 16)


def link_hash(link: WitnessLink) -> bytes:
    """What the next link of the chain must repeat."""
    return shake256(records.WITNESS_LINK.pack(*link), 32)


def extend_chain(
    chain: Sequence[WitnessLink], action: bytes, timestamp_ns: int, witness_type: int
) -> list[WitnessLink]:
    """The chain with one more action."""
    previous = link_hash(chain[-1]) if chain else _ZERO
    return [*chain, WitnessLink(previous, shake256(action, 32), timestamp_ns, witness_type)]


def encode_witness(chain: Sequence[WitnessLink]) -> bytes:
    """A WITNESS payload: 73 bytes per link."""
    return b"".join(records.WITNESS_LINK.pack(*link) for link in chain)


def decode_witness(payload: Buffer, where: str = "") -> list[WitnessLink]:
    """The links of a WITNESS payload; a link that does not repeat the hash of the one before is an error."""
    view = byte_view(payload)
    if view.nbytes % records.WITNESS_LINK.size:
        raise CorruptLayoutError("a WITNESS payload is not a whole number of links", path=where or None)
    chain = [WitnessLink._make(each) for each in records.WITNESS_LINK.iter_unpack(view)]
    expected = _ZERO
    for link in chain:
        if link.prev_hash != expected:
            raise ChecksumError("a link of the witness chain does not fit the one before", path=where or None)
        expected = link_hash(link)
    return chain


def runtime_fold(payload: bytes) -> bytes:
    """The 32-byte mix that shipped programs chain their witness records with (it has no security value)."""
    out = bytearray(32)
    for index, byte in enumerate(payload):
        low, high = index % 32, (index + 13) % 32
        out[low] = (out[low] + byte) & 0xFF
        turned = ((out[low] << 3) | (out[low] >> 5)) & 0xFF
        out[high] = (out[high] + turned) & 0xFF
    return bytes(out)


def encode_runtime_witness(text: str, timestamp_ns: int, witness_type: int, previous: bytes | None) -> bytes:
    """The witness payload of shipped programs; `previous` is the payload before it."""
    head = records.RUNTIME_WITNESS_HEAD.pack(witness_type, timestamp_ns, len(text))
    return head + text.encode("ascii") + (_ZERO if previous is None else runtime_fold(previous))


def encode_crypto(key: PublicKey) -> bytes:
    """A CRYPTO payload that holds a public signing key."""
    number = layout.SIGNATURE_IDS[key.algorithm]
    head = records.CRYPTO_HEAD.pack(records.CRYPTO_SIGNING_KEY, number, key.key_id)
    return head + key.data + records.CRYPTO_TAIL.pack(key.valid_from_ns, key.valid_until_ns)


def decode_crypto(payload: Buffer, where: str = "") -> PublicKey | None:
    """The public signing key of a CRYPTO payload; None for other kinds of key material."""
    view = byte_view(payload)
    fixed = records.CRYPTO_HEAD.size + records.CRYPTO_TAIL.size
    if view.nbytes < fixed:
        raise TruncatedError("a CRYPTO payload is cut off", path=where or None)
    key_type, algorithm, key_id = records.CRYPTO_HEAD.unpack_from(view)
    name = layout.SIGNATURE_NAMES.get(algorithm)
    if key_type != records.CRYPTO_SIGNING_KEY or name is None:
        return None
    data = bytes(view[records.CRYPTO_HEAD.size : view.nbytes - records.CRYPTO_TAIL.size])
    valid = records.CRYPTO_TAIL.unpack_from(view, view.nbytes - records.CRYPTO_TAIL.size)
    key = PublicKey(name, data, *valid)
    if len(data) != layout.PUBLIC_KEY_BYTES[name] or key.key_id != key_id:
        raise ChecksumError("a public key does not match its id", path=where or None)
    return key
