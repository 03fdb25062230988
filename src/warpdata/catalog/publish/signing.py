"""Ed25519 signatures of versions, stored beside the manifest. The adapter of cryptography."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.access import DatasetName
from warpdata.errors import ConflictError, FormatError, MissingExtraError, StoreError, UntrustedError
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.stores.blobstore import BlobStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUFFIX = ".sig.json"
PAYLOAD = 2
"""The version of the signed bytes."""
_KEY_HINT = "Make one with: openssl genpkey -algorithm ed25519 -out key.pem"


@dataclass(frozen=True, slots=True)
class Signature:
    """The signer of a version."""

    public_key: str
    """Ed25519, as base64."""
    covers: str = "content and notes"


def signature_file(name: DatasetName, version: str, manifest: Buffer, key: Any) -> bytes:
    """The signature of a manifest as a file."""
    signature = base64.b64encode(key.sign(_signed_bytes(name, version, manifest))).decode()
    fields = {
        "algorithm": "ed25519",
        "public_key": public_text(key),
        "signature": signature,
        "payload": PAYLOAD,
    }
    return dump_json(fields) + b"\n"


def sign_version(store: BlobStore, name: DatasetName, version: str, manifest: bytes, key_file: Path) -> str:
    """Put a signature of a stored manifest beside it and return the public key as base64."""
    key = private_key(key_file)
    body = signature_file(name, version, manifest, key)
    signature_key = name.version_key(version, SUFFIX)
    try:
        store.put_if_absent(signature_key, body)
    except ConflictError:
        held = store.get(signature_key, max_bytes=MAX_POINTER_BYTES)
        if held is None or bytes(held.data) != body:
            hint = "A signature by your own key may be damaged: check it with verify='require'."
            fact = "the version has another signature, by another key or of other bytes"
            raise ConflictError(fact, path=signature_key, hint=hint) from None
    return public_text(key)


def check_signature(
    data: Buffer | None, manifest: Buffer, name: DatasetName, version: str, trusted: tuple[str, ...]
) -> Signature:
    """The signer of a manifest; a missing, wrong or untrusted signature is an UntrustedError."""
    if not trusted:  # any key would do
        signer = "" if data is None else base64.b64encode(_parse(bytes(data), name)[0]).decode()
        fact = "verify='require' is set, but no key is trusted"
        raise UntrustedError(fact, path=name.dataset_id, hint=_trust_hint(signer))
    if data is None:
        raise UntrustedError(f"version {version[:12]} is not signed", path=name.dataset_id)
    public, signature = _parse(bytes(data), name)
    _, ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(
            signature, _signed_bytes(name, version, manifest)
        )
    except (InvalidSignature, ValueError):
        fact = f"the signature of version {version[:12]} is wrong"
        raise UntrustedError(fact, path=name.dataset_id) from None
    public_key = base64.b64encode(public).decode()
    if public_key not in trusted:
        fact = f"version {version[:12]} is signed by an unknown key"
        raise UntrustedError(fact, path=name.dataset_id, hint=_trust_hint(public_key))
    return Signature(public_key)


def seeded_key(seed: bytes) -> Any:
    """The key of 32 bytes, for golden files and for keys that are not kept in files."""
    return _library()[1].Ed25519PrivateKey.from_private_bytes(seed)


def public_text(key: Any) -> str:
    """The public half of a key as base64."""
    serialization, _ = _library()
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return base64.b64encode(key.public_key().public_bytes(*raw)).decode()


def private_key(path: Path) -> Any:
    """The Ed25519 key of a PEM file."""
    serialization, ed25519 = _library()
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm

    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise StoreError(f"the key cannot be read ({error.strerror})", path=path, hint=_KEY_HINT) from None
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError):
        raise StoreError("not an unencrypted PEM key", path=path, hint=_KEY_HINT) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise StoreError("not an Ed25519 key", path=path, hint=_KEY_HINT)
    return key


def _signed_bytes(name: DatasetName, version: str, manifest: Buffer) -> bytes:
    return f"warpdata manifest {PAYLOAD}\n{name.dataset_id}\n{version}\n{sha256_hex(manifest)}\n".encode()


def _trust_hint(public_key: str) -> str:
    setting = f"set WARP_TRUSTED_KEYS={public_key or '<public key>'} (or pass trusted_keys=)"
    return f"Ask the publisher whether this key is theirs; if you trust it, {setting}."


def _parse(data: bytes, name: DatasetName) -> tuple[bytes, bytes]:
    """The public key and the signature of a signature file."""
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        payload = raw.get("payload")
        if raw.get("algorithm") != "ed25519" or type(payload) is not int or payload != PAYLOAD:
            raise ValueError("unknown algorithm or payload; upgrade warpdata")
        public = base64.b64decode(str(raw.get("public_key")), validate=True)
        return public, base64.b64decode(str(raw.get("signature")), validate=True)
    except (FormatError, binascii.Error, ValueError) as error:
        raise UntrustedError(f"the signature is damaged ({error})", path=name.dataset_id) from None


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtraError.for_extra("cryptography", "crypto") from None
    return serialization, ed25519
