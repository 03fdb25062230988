"""Ed25519 signatures over version hashes, kept beside the manifest. The door of cryptography."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.names import DatasetName
from warpdata.errors import (
    BlobNotFoundError,
    ConflictError,
    FormatError,
    ManifestCorruptedError,
    MissingExtraError,
    StoreError,
)
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.stores.blobstore import BlobStore

SUFFIX = ".sig.json"
_CONTEXT = b"warpdata version "
_KEY_HINT = "Make one with: openssl genpkey -algorithm ed25519 -out key.pem"


def sign_version(store: BlobStore, name: DatasetName, version: str, key_file: Path) -> str:
    """Put a signature over the version beside its manifest and return the public key as base64."""
    serialization, _ = _library()
    key = _private_key(key_file)
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    public = base64.b64encode(key.public_key().public_bytes(*raw)).decode()
    signature = base64.b64encode(key.sign(_CONTEXT + version.encode())).decode()
    body = dump_json({"algorithm": "ed25519", "public_key": public, "signature": signature}) + b"\n"
    signature_key = name.version_key(version, SUFFIX)
    try:
        store.put_if_absent(signature_key, body)
    except ConflictError:
        held = store.get(signature_key, max_bytes=MAX_POINTER_BYTES)
        if held is None or bytes(held.data) != body:
            raise ConflictError("the version is signed by another key", path=signature_key) from None
    return public


def check_signature(
    store: BlobStore, name: DatasetName, version: str, policy: str, trusted: tuple[str, ...]
) -> str | None:
    """The key that signed a version; a wrong, untrusted or (if required) missing signature is an error."""
    if policy == "if-present" and not trusted:
        # Nobody to trust means nothing to learn: do not spend a request on every version.
        return None
    try:
        blob = store.get(name.version_key(version, SUFFIX), max_bytes=MAX_POINTER_BYTES)
    except BlobNotFoundError:
        if policy == "require":
            raise ManifestCorruptedError(
                f"version {version[:12]} is not signed", path=name.dataset_id
            ) from None
        return None
    assert blob is not None
    public, signature = _parsed(bytes(blob.data), name)
    if not _is_valid(public, signature, version):
        raise ManifestCorruptedError(
            f"the signature of version {version[:12]} is wrong", path=name.dataset_id
        )
    if trusted and base64.b64encode(public).decode() not in trusted:
        raise ManifestCorruptedError(
            f"version {version[:12]} is signed by an unknown key", path=name.dataset_id
        )
    return base64.b64encode(public).decode()


def _parsed(data: bytes, name: DatasetName) -> tuple[bytes, bytes]:
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        if raw.get("algorithm") != "ed25519":
            raise ValueError("unknown algorithm")
        public = base64.b64decode(str(raw.get("public_key")), validate=True)
        return public, base64.b64decode(str(raw.get("signature")), validate=True)
    except (FormatError, binascii.Error, ValueError) as error:
        raise ManifestCorruptedError(f"the signature is damaged ({error})", path=name.dataset_id) from None


def _is_valid(public: bytes, signature: bytes, version: str) -> bool:
    _, ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, _CONTEXT + version.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _private_key(path: Path) -> Any:
    serialization, ed25519 = _library()
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise StoreError(f"the key cannot be read ({error.strerror})", path=path, hint=_KEY_HINT) from None
    except (ValueError, TypeError):
        raise StoreError("not an unencrypted PEM key", path=path, hint=_KEY_HINT) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise StoreError("not an Ed25519 key", path=path, hint=_KEY_HINT)
    return key


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtraError.for_extra("cryptography", "crypto") from None
    return serialization, ed25519
