"""Access control of the viewer server: allowed hosts, tokens, cookies and origins."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from typing import NamedTuple

LEAST_TOKEN = 16
WRITE_HEADER = "X-Warp-Write"

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors "
)


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    why: str


class AccessRules:
    """The token of one server and the hosts it answers to."""

    def __init__(
        self,
        port: int,
        allow_hosts: Collection[str] = (),
        token: str | None = None,
        *,
        is_embedded: bool = False,
    ) -> None:
        self.allow_hosts = allow_hosts
        self.token = secrets.token_urlsafe(24) if token is None else token
        self.is_embedded = is_embedded
        """Whether pages of this machine, such as a notebook, may show the viewer inside themselves."""
        self.cookie_name = f"warp-view-{port}"
        """Its own per port: two viewers on one machine do not log each other out."""
        self.cookie, self.write_token = (
            hmac.new(self.token.encode(), purpose, hashlib.sha256).hexdigest()
            for purpose in (b"cookie", b"write")
        )
        """What stands for the token, which cannot be found from them; changes need the second too."""

    def headers(self) -> dict[str, str]:
        """The headers of every answer."""
        frames = "http://localhost:* http://127.0.0.1:*" if self.is_embedded else "'none'"
        return {
            "Content-Security-Policy": _PAGE_POLICY + frames,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Embedder-Policy": "require-corp",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }

    def refusal(
        self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str], *, needs_token: bool
    ) -> Refusal | None:
        """Why a request is not answered; None if it is.

        The host is no name that another site could point to this machine (DNS rebinding). The caller has the token or
        its cookie, and is no other site. What changes something is JSON from a page that has the write token.
        """
        host, has_token = host_of(headers.get("Host", "")), self.has_token(headers)
        is_known = host == "localhost" or host.endswith(".localhost")
        if not is_known and host not in map(str.lower, self.allow_hosts) and _address_of(host) is None:
            why = f"the host {host!r} is not allowed; start with --allow-host {host} if it is yours"
            return Refusal(403, why)
        if needs_token and headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return Refusal(403, "another site may not ask")
        if needs_token and not has_token and not _equal(cookies.get(self.cookie_name, ""), self.cookie):
            why = "open the link that `warp view` printed: it carries the token this page has lost"
            return Refusal(401, why)
        if method in ("GET", "HEAD"):
            return None
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "changes are sent as application/json")
        origin = headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != headers.get("Host", ""):
            return Refusal(403, "another site may not change anything")
        if not has_token and not _equal(headers.get(WRITE_HEADER, ""), self.write_token):
            return Refusal(403, "the request does not carry the write token")
        return None

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether the token itself is in the request."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _equal(given.strip(), self.token)


def check_binding(host: str, token: str | None) -> None:
    """Raise ValueError where others could reach the server and no token was chosen for it."""
    if token is not None and len(token) < LEAST_TOKEN:
        raise ValueError(f"a token has at least {LEAST_TOKEN} characters")
    if token is None and not is_loopback(host):
        raise ValueError(
            f"{host} can be reached from other machines: set --token TEXT, or use the default 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    address = _address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def host_of(header: str) -> str:
    """The host of a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
