"""Keys and signatures. The adapter of cryptography (Ed25519, ML-DSA-65) and pqcrypto (SLH-DSA-SHA2-128s)."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.arrays import byte_view
from warpdata.bytekit.checksum import shake256
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.io.files import check_path
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    MissingExtraError,
    TruncatedError,
    require_word,
)
from warpdata.formats.rvf import container, layout
from warpdata.formats.rvf.container import Root, SignatureFooter, root_message
from warpdata.formats.rvf.layout import Row

if TYPE_CHECKING:
    from typing_extensions import Buffer

ALGORITHMS = tuple(layout.SIGNATURE_IDS)
PROFILE = "generic"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that verifies signatures, and when it is valid (0 = without end)."""

    algorithm: str
    data: bytes
    valid_from_ns: int = 0
    valid_until_ns: int = 0

    @property
    def key_id(self) -> bytes:
        """The 16 bytes that name this key: SHAKE-256 of its bytes."""
        return shake256(self.data, 16)


def encode_crypto(key: PublicKey) -> bytes:
    """A CRYPTO payload that holds a public signing key."""
    number = layout.SIGNATURE_IDS[key.algorithm]
    head = layout.CRYPTO_HEAD.pack(layout.CRYPTO_SIGNING_KEY, number, key.key_id)
    return head + key.data + layout.CRYPTO_TAIL.pack(key.valid_from_ns, key.valid_until_ns)


def decode_crypto(payload: Buffer, where: str = "") -> PublicKey | None:
    """The public signing key of a CRYPTO payload; None for other kinds of key material."""
    view = byte_view(payload)
    end = view.nbytes - layout.CRYPTO_TAIL.size
    if end < layout.CRYPTO_HEAD.size:
        raise TruncatedError("a CRYPTO payload is cut off", path=where or None)
    key_type, algorithm, key_id = layout.CRYPTO_HEAD.unpack_from(view)
    name = layout.SIGNATURE_NAMES.get(algorithm)
    if key_type != layout.CRYPTO_SIGNING_KEY or name is None:
        return None
    data = bytes(view[layout.CRYPTO_HEAD.size : end])
    key = PublicKey(name, data, *layout.CRYPTO_TAIL.unpack_from(view, end))
    if len(data) != layout.PUBLIC_KEY_BYTES[name] or key.key_id != key_id:
        raise ChecksumError("a public key does not match its id", path=where or None)
    return key


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key: Ed25519 and ML-DSA-65 by their 32-byte seed, SLH-DSA-128s by its 64 bytes."""

    algorithm: str
    private: bytes
    public: PublicKey

    def __repr__(self) -> str:
        return f"SigningKey({self.algorithm!r}, key_id={self.public.key_id.hex()})"

    @classmethod
    def generate(cls, algorithm: str = "ed25519") -> SigningKey:
        """A new key of one of the three algorithms."""
        require_word("the signature algorithm", algorithm, ALGORITHMS)
        if algorithm == "slh-dsa-128s":
            public, private = _slh().keygen()
            return cls(algorithm, bytes(private), PublicKey(algorithm, bytes(public)))
        return cls.from_private(algorithm, secrets.token_bytes(32))

    @classmethod
    def from_private(cls, algorithm: str, private: bytes) -> SigningKey:
        """The key with these private bytes."""
        require_word("the signature algorithm", algorithm, ALGORITHMS)
        if algorithm == "slh-dsa-128s":
            return cls(algorithm, private, PublicKey(algorithm, private[32:]))
        public = _private(algorithm, private).public_key().public_bytes_raw()
        return cls(algorithm, private, PublicKey(algorithm, public))

    def sign(self, message: bytes) -> SignatureFooter:
        """The signature of a message."""
        if self.algorithm == "slh-dsa-128s":
            return SignatureFooter(self.algorithm, bytes(_slh().sign(self.private, message)))
        return SignatureFooter(self.algorithm, _private(self.algorithm, self.private).sign(message))

    def sign_segment(self, header: Row) -> SignatureFooter:
        """The signature footer of a segment."""
        return self.sign(segment_message(header))

    def sign_root(self, root: Root, records: bytes) -> SignatureFooter:
        """The signature of a root and of the records before it."""
        return self.sign(root_message(root, shake256(records, 32)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key as JSON that only its owner may read."""
        body = {"algorithm": self.algorithm, "private": self.private.hex(), "public": self.public.data.hex()}
        with commit_file(path, replace=False) as out:
            os.fchmod(out.fd, 0o600)
            out.write(dump_json(body) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SigningKey:
        """Read a key that `save` wrote."""
        body = _key_file(path)
        try:
            return cls.from_private(str(body["algorithm"]), bytes.fromhex(body["private"]))
        except (KeyError, ValueError, TypeError) as error:
            raise CorruptLayoutError(f"not a private key ({error})", path=path) from None


def load_public(path: str | os.PathLike[str]) -> PublicKey:
    """The public key of a key file, private or public."""
    body = _key_file(path)
    try:
        algorithm, data = str(body["algorithm"]), bytes.fromhex(body["public"])
        require_word("the signature algorithm", algorithm, ALGORITHMS)
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptLayoutError(f"not a public key ({error})", path=path) from None
    return PublicKey(algorithm, data)


def save_public(key: PublicKey, path: str | os.PathLike[str]) -> None:
    """Write a public key as JSON."""
    with commit_file(path, replace=False) as out:
        out.write(json.dumps({"algorithm": key.algorithm, "public": key.data.hex()}).encode() + b"\n")


def segment_message(header: Row, profile: str = PROFILE) -> bytes:
    """The bytes that the signature of a segment covers, in a file of this profile."""
    context = f"RVF-v1-{layout.segment_name(header.seg_type)}_SEG-{profile}".encode()
    packed = container.pack_header(header)[: layout.SIGNED_PREFIX_BYTES]
    return bytes(packed + header.content_hash + header.segment_id.to_bytes(8, "little") + context)


def shipped_message(header: Row, payload: Buffer) -> bytes:
    """The bytes that a signature of the shipped library covers; accepted when verifying."""
    packed = container.pack_header(header)[: layout.SIGNED_PREFIX_BYTES]
    tail = b"RVF-v1-segment" + header.segment_id.to_bytes(8, "little") + shake256(payload, 16)
    return bytes(packed + header.content_hash + tail)


def is_valid(key: PublicKey, message: bytes, footer: SignatureFooter) -> bool:
    """Whether a signature was made by the owner of this key."""
    if footer.algorithm != key.algorithm:
        return False
    if key.algorithm == "slh-dsa-128s":
        try:
            _slh().verify(key.data, message, footer.signature)
        except ValueError:
            return False
        return True
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519, mldsa
    except ImportError:
        raise MissingExtraError.for_extra("cryptography", "crypto") from None
    library = ed25519.Ed25519PublicKey if key.algorithm == "ed25519" else mldsa.MLDSA65PublicKey
    try:
        library.from_public_bytes(key.data).verify(footer.signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _key_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return parse_json_object(Path(check_path(path)).read_bytes(), max_bytes=1 << 20)
    except FileNotFoundError:
        raise BlobNotFoundError("no such key file", path=path) from None


def _private(algorithm: str, private: bytes) -> Any:
    """The private key object of cryptography."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519, mldsa
    except ImportError:
        raise MissingExtraError.for_extra("cryptography", "crypto") from None
    if algorithm == "ed25519":
        return ed25519.Ed25519PrivateKey.from_private_bytes(private)
    return mldsa.MLDSA65PrivateKey.from_seed_bytes(private)


def _slh() -> Any:
    try:
        from pqcrypto.sign import slh_dsa_sha2_128s
    except ImportError:
        raise MissingExtraError.for_extra("pqcrypto", "crypto") from None
    return slh_dsa_sha2_128s
