"""Ed25519 signatures of versions, kept beside the manifest. The adapter of cryptography."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.checksum import sha256_hex
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish.transfer import put_in_place
from warpdata.errors import ConflictError, FormatError, MissingExtraError, StoreError, UntrustedError
from warpdata.formats.manifest.layout import MAX_POINTER_BYTES
from warpdata.stores.blobstore import Blob, BlobStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

SUFFIX = ".sig.json"
_KEY_HINT = "Make one with: openssl genpkey -algorithm ed25519 -out key.pem"

COVERS = {1: "content", 2: "content and notes"}
"""What a signature of each payload answers for; the first was made by releases up to 0.1."""

NEWEST = 2


@dataclass(frozen=True, slots=True)
class Signature:
    """Who signed a version, and what the signature answers for."""

    public_key: str
    """Ed25519, as base64."""
    payload: int

    @property
    def covers(self) -> str:
        """`content`, or `content and notes`: license, message and the rest of the manifest too."""
        return COVERS[self.payload]


def payload(kind: int, name: DatasetName, version: str, manifest: Buffer) -> bytes:
    """The bytes that are signed."""
    if kind == 1:
        return b"warpdata version " + version.encode()
    return f"warpdata manifest 2\n{name.dataset_id}\n{version}\n{sha256_hex(manifest)}\n".encode()


def signature_file(name: DatasetName, version: str, manifest: Buffer, key: Any, kind: int = NEWEST) -> bytes:
    """The file that lies beside a manifest when it is signed."""
    signature = base64.b64encode(key.sign(payload(kind, name, version, manifest))).decode()
    fields: dict[str, Any] = {
        "algorithm": "ed25519", "public_key": public_text(key), "signature": signature,
    }  # fmt: skip
    return dump_json(fields if kind == 1 else {**fields, "payload": kind}) + b"\n"


def sign_version(store: BlobStore, name: DatasetName, version: str, manifest: bytes, key_file: Path) -> str:
    """Put a signature over a stored manifest beside it and return the public key as base64."""
    key = private_key(key_file)
    body = signature_file(name, version, manifest, key)
    signature_key = name.version_key(version, SUFFIX)
    try:
        store.put_if_absent(signature_key, body)
    except ConflictError:
        held = store.get(signature_key, max_bytes=MAX_POINTER_BYTES)
        if held is None or bytes(held.data) != body:
            _replace_older(store, signature_key, held, body, name)
    return public_text(key)


def check_signature(
    data: Buffer | None, manifest: Buffer, name: DatasetName, version: str, trusted: tuple[str, ...]
) -> Signature:
    """Who signed this manifest; a missing, wrong or untrusted signature is an UntrustedError."""
    if data is None:
        raise UntrustedError(f"version {version[:12]} is not signed", path=name.dataset_id)
    found, public, signature = _parsed(bytes(data), name)
    if not _is_valid(public, signature, payload(found.payload, name, version, manifest)):
        raise UntrustedError(f"the signature of version {version[:12]} is wrong", path=name.dataset_id)
    if found.public_key not in trusted:
        fact = f"version {version[:12]} is signed by an unknown key"
        raise UntrustedError(fact, path=name.dataset_id, hint=_trust_hint(found.public_key))
    return found


def check_has_trust(data: Buffer | None, name: DatasetName, trusted: tuple[str, ...]) -> None:
    """To require signatures means to know whose: without trusted keys anybody's would do."""
    if trusted:
        return
    signer = "" if data is None else _parsed(bytes(data), name)[0].public_key
    fact = "verify='require' is set, but no key is trusted"
    raise UntrustedError(fact, path=name.dataset_id, hint=_trust_hint(signer))


def seeded_key(seed: bytes) -> Any:
    """The key made of 32 bytes: for golden files, and for whoever keeps keys elsewhere than in files."""
    _, ed25519 = _library()
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed)


def public_text(key: Any) -> str:
    """The public half of a key as base64."""
    serialization, _ = _library()
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return base64.b64encode(key.public_key().public_bytes(*raw)).decode()


def _trust_hint(public_key: str) -> str:
    how = f"set WARP_TRUSTED_KEYS={public_key or '<public key>'} (or pass trusted_keys=)"
    return f"Ask the publisher whether this key is theirs; if you trust it, {how}."


def _replace_older(store: BlobStore, key: str, held: Blob | None, body: bytes, name: DatasetName) -> None:
    """A signature of ours that covers less gives way; anybody else's stays."""
    ours = _parsed(body, name)[0]
    theirs = None if held is None else _parsed(bytes(held.data), name)[0]
    if held is None or theirs is None or theirs.public_key != ours.public_key:
        raise ConflictError("the version is signed by another key", path=key)
    if theirs.payload >= ours.payload:
        hint = "Its signature may be damaged: check it with verify='require'."
        raise ConflictError("the version is signed already, in another way", path=key, hint=hint)
    put_in_place(store, key, body, held.info)


def _parsed(data: bytes, name: DatasetName) -> tuple[Signature, bytes, bytes]:
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        kind = raw.get("payload", 1)
        if raw.get("algorithm") != "ed25519" or type(kind) is not int or kind not in COVERS:
            raise ValueError("unknown algorithm or payload; upgrade warpdata")
        public = base64.b64decode(str(raw.get("public_key")), validate=True)
        signature = base64.b64decode(str(raw.get("signature")), validate=True)
    except (FormatError, binascii.Error, ValueError) as error:
        raise UntrustedError(f"the signature is damaged ({error})", path=name.dataset_id) from None
    return Signature(base64.b64encode(public).decode(), kind), public, signature


def _is_valid(public: bytes, signature: bytes, signed: bytes) -> bool:
    _, ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


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


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtraError.for_extra("cryptography", "crypto") from None
    return serialization, ed25519
