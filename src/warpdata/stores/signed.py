"""Reading S3 over plain HTTP with signatures made here: after a fork, and where the server's Retry-After counts.

The object-store library has threads that do not survive a fork, and it shows no headers of an answer.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Credentials of one account, never shown."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def found_in(cls, secrets: Mapping[str, Any]) -> S3Keys | None:
        """The keys among secrets, if they are there."""
        if not secrets.get("access_key_id") or not secrets.get("secret_access_key"):
            return None
        token = secrets.get("session_token") or secrets.get("token") or ""
        return cls(secrets["access_key_id"], secrets["secret_access_key"], token)


def s3_host(endpoint: str | None, region: str | None) -> str:
    """The server of a region, unless an endpoint names another one."""
    return (endpoint or f"https://s3.{region or 'us-east-1'}.amazonaws.com").rstrip("/")


def s3_url(bucket: str, prefix: str, endpoint: str | None, region: str | None) -> str:
    """Where the objects of a bucket below a prefix are, by path."""
    return f"{s3_host(endpoint, region)}/{bucket}/{prefix}".rstrip("/")


def signer(
    keys: S3Keys | Callable[[], S3Keys],
    host: str,
    region: str | None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Callable[[str, str], dict[str, str]]:
    """What signs requests without a body: (method, path) -> headers, by AWS signature version 4."""
    region = region or "us-east-1"
    keys_now = keys if callable(keys) else lambda: keys

    def sign(method: str, path: str) -> dict[str, str]:
        keys = keys_now()
        stamp = clock().strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": host, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": stamp}
        if keys.session_token:
            headers["x-amz-security-token"] = keys.session_token
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        request = (
            f"{method}\n{urllib.parse.quote(urllib.parse.unquote(path))}\n\n{lines}\n{names}\n{_EMPTY_SHA256}"
        )
        scope = f"{stamp[:8]}/{region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        signature = _hmac(_day_key(keys, stamp[:8], region), f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}")
        credential = f"{keys.access_key_id}/{scope}"
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature.hex()}"
        )
        del headers["host"]
        return headers

    return sign


def _day_key(keys: S3Keys, day: str, region: str) -> bytes:
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
