"""Access control of the viewer server: allowed hosts, tokens, cookies and origins."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The token of one server and the hosts it answers to."""

    port: int
    allow_hosts: Collection[str] = ()
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    is_embedded: bool = False
    """Whether pages of this machine, such as a notebook, may show the viewer inside themselves."""

    @property
    def cookie_name(self) -> str:
        """Its own per port: two viewers on one machine do not log each other out."""
        return f"warp-view-{self.port}"

    @property
    def cookie(self) -> str:
        """The cookie that stands for the token; from it the token cannot be found."""
        return self._derived("cookie")

    @property
    def write_token(self) -> str:
        """Second token of requests that change something; only a page of this server has it."""
        return self._derived("write")

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

    def refuse_host(self, host_header: str) -> Refusal | None:
        """A name that another site could point to this machine is refused (DNS rebinding)."""
        host = host_of(host_header)
        is_known = (
            host == "localhost" or host.endswith(".localhost") or host in map(str.lower, self.allow_hosts)
        )
        if is_known or _address_of(host) is not None:
            return None
        return Refusal(
            403, f"the host {host!r} is not allowed; start with --allow-host {host} if it is yours"
        )

    def refuse_caller(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> Refusal | None:
        """Check that a request has the token or its cookie, and does not come from another site."""
        if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            return Refusal(403, "another site may not ask")
        if self.has_token(headers) or _equal(cookies.get(self.cookie_name, ""), self.cookie):
            return None
        return Refusal(401, "open the link that `warp view` printed: it carries the token this page has lost")

    def refuse_write(self, headers: Mapping[str, str]) -> Refusal | None:
        """What changes something is JSON, sent by a page of this server that knows its write token."""
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            return Refusal(415, "changes are sent as application/json")
        origin = headers.get("Origin")
        if origin is not None and origin.partition("://")[2] != headers.get("Host", ""):
            return Refusal(403, "another site may not change anything")
        if self.has_token(headers) or _equal(headers.get(WRITE_HEADER, ""), self.write_token):
            return None
        return Refusal(403, "the request does not carry the write token")

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Whether the token itself is in the request."""
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _equal(given.strip(), self.token)

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


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
