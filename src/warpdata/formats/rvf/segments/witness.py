"""CRYPTO payloads (public keys) and the WITNESS payload that shipped programs expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import shake256
from warpdata.errors import ChecksumError, TruncatedError
from warpdata.formats.rvf.container import layout
from warpdata.formats.rvf.segments import layout as records

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
