"""The client of web servers: connections, proxies, timeouts, bounded responses; JSON services. Adapter of urllib3."""

from __future__ import annotations

import base64
import email.utils
import io
import ipaddress
import json
import re
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.forks import PerProcess
from warpdata.bytekit.process.threads import call_with_timeout
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    ConflictError,
    FormatError,
    LimitExceededError,
    PermissionError_,
    SettingsError,
    StoreError,
    UnavailableError,
)
from warpdata.stores.blobstore import RetryPolicy

if TYPE_CHECKING:
    import urllib3

TEMPORARY = {408, 425, 429, 500, 502, 503, 504}
"""Statuses after which a request is retried."""

_PROXY_LOGIN_REQUIRED = 407
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")
_LOGIN = "Put them into HTTP_PROXY or HTTPS_PROXY: http://user:password@host:port, with % codes for special letters."
_BEHIND = "Contact the operator of the proxy, or name this host in NO_PROXY."
_CERTIFICATE = (
    "Check the address, and that this machine trusts the issuer of the certificate (SSL_CERT_FILE)."
)
_CONNECT_S = 10.0
_MAX_REASON_BYTES = 1 << 16
_MAX_REASON_CHARS = 200
_PIECE_BYTES = 1 << 20
"""Memory is taken for so many bytes at once, of which the system has most often fewer."""
_MAX_JSON_BYTES = 64 << 20

_CAUSES = {
    "no name server answered in time": ("name lookup timed out",),
    "its name is not known": ("dns error", "name resolution", "getaddrinfo", "name or service not known"),
    "nothing listens there": ("connection refused",),
    "this process has too many files open": ("too many open files",),
    "its certificate is not trusted": ("certificate",),
    "the network is not reachable": ("network is unreachable", "no route to host"),
    "it broke the connection off": (
        "connection reset",
        "remotedisconnected",
        "incompletemessage",
        "incomplete message",
        "incompletebody",
        "incompleteread",
    ),
    "its response is not HTTP": ("badstatusline", "linetoolong", "got more than", "parse(", "invalidheader"),
    "no host can have this name": ("locationparseerror",),
    "it redirects in a circle": ("toomanyredirects",),
    "it did not answer in time": ("timed out", "timedout"),
}
"""Causes of failed connections, and the words of the libraries for them; the first match counts."""


def connection_cause(text: str) -> str:
    """Why a connection failed, from the message of a library; empty if it is unknown."""
    lower = text.lower()
    return next((cause for cause, words in _CAUSES.items() if any(word in lower for word in words)), "")


@dataclass(frozen=True, slots=True)
class Proxies:
    """Proxies by scheme; their passwords are never shown."""

    by_scheme: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For http and https: the address of a proxy."""
    without: str = ""
    """Hosts that are reached directly, as NO_PROXY lists them."""

    def of(self, url: urllib.parse.SplitResult) -> str:
        """The proxy for an address, or nothing."""
        proxy = self.by_scheme.get(url.scheme, "")
        if not proxy or any(_covers(entry.strip().lower(), url) for entry in self.without.split(",")):
            return ""
        return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, url: urllib.parse.SplitResult) -> bool:
    """Whether an entry of NO_PROXY means this host: all, a host, those below it, host:port, or a network."""
    host = url.hostname or ""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        bare = entry.removeprefix("*").lstrip(".")
        return entry == "*" or (bare != "" and (bare in (host, url.netloc) or host.endswith(f".{bare}")))


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WebClient:
    """Sends requests, through the proxy for each server; connections are kept, and new ones made in a forked child.

    A closed client connects again on the next request. A server that sends nothing for `timeout_s` has failed, and so
    has one whose whole response takes longer than `within_s`.
    """

    def __init__(
        self, *, timeout_s: float, within_s: float, connections: int = 1, proxies: Proxies | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._within_s = within_s
        self._connections = connections
        self._proxies = proxies or Proxies()
        self._managers: PerProcess[dict[str, urllib3.PoolManager]] = PerProcess(dict)

    def close(self) -> None:
        """Close the connections."""
        for manager in (self._managers.reset() or {}).values():
            manager.clear()

    def request(
        self,
        method: str,
        url: urllib.parse.SplitResult,
        headers: Mapping[str, str],
        name: str,
        *,
        max_bytes: int,
        body: bytes | None = None,
    ) -> Response:
        """Send one request to one host, answered in bounded time; redirects are not followed.

        Only the beginning of the response to a failed request is read. `name` stands in errors.
        """
        from urllib3.exceptions import HTTPError

        pieces: list[bytes] = []
        proxy, managers = self._proxies.of(url), self._managers()
        # A compressed response would make every range wrong.
        headers = {"User-Agent": "warpdata", "Accept-Encoding": "identity", **headers}
        try:
            if proxy not in managers:
                managers[proxy] = self._open_manager(proxy)
            response = managers[proxy].request(
                method,
                url.geturl(),
                headers=headers,
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
            )
            try:
                _read_body(response, max_bytes, name, pieces)
            except BaseException:
                response.close()
                raise
            response.release_conn()
        except (HTTPError, OSError) as error:
            raise _failure(error, url, proxy, name, pieces) from None
        except _TooSlowError:
            raise _cut_off(f"the response of {host_of(url)} came too slowly", name, pieces) from None
        if response.status == _PROXY_LOGIN_REQUIRED and proxy:
            raise _proxy_failure(response.status, url, proxy, name)
        lower = {header.lower(): value for header, value in response.headers.items()}
        return Response(response.status, lower, b"".join(pieces))

    def _open_manager(self, proxy: str) -> urllib3.PoolManager:
        import urllib3  # it opens a socket when it is loaded, so only network access loads it

        options: dict[str, Any] = {
            "timeout": urllib3.Timeout(connect=min(_CONNECT_S, self._timeout_s), read=self._timeout_s),
            "maxsize": self._connections,
        }
        if not proxy:
            return _limit_times(urllib3.PoolManager(**options), self._within_s)
        try:
            parts = web_address(proxy)
        except ValueError:
            scheme = proxy.partition("://")[0]
            fact = f"unsupported proxy scheme {scheme!r}: expected http or https"
            if scheme in ("http", "https"):
                fact = "invalid address of a proxy"  # which may hold a password
            hint = "Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or name this host in NO_PROXY."
            raise SettingsError(fact, hint=hint) from None
        if parts.username:
            login = b":".join(
                urllib.parse.unquote_to_bytes(x or "") for x in (parts.username, parts.password)
            )
            options["proxy_headers"] = {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"}
        return _limit_times(urllib3.ProxyManager(_without_login(parts), **options), self._within_s)


def _limit_times(manager: urllib3.PoolManager, within_s: float) -> urllib3.PoolManager:
    """Bound name lookups by the connection timeout, and whole responses, headers included, by `within_s`.

    The timeouts of the library are per piece, and the system looks up names for minutes.
    """

    def limited(kind: Any) -> Any:
        def begin(response: Any, sock: Any, *args: Any, **options: Any) -> None:
            kind.response_class.__init__(response, sock, *args, **options)
            response.fp.close()
            response.fp = io.BufferedReader(_TimedBytes(sock.makefile("rb", buffering=0), within_s))

        timed = type(f"Timed{kind.response_class.__name__}", (kind.response_class,), {"__init__": begin})
        return type(f"Bounded{kind.__name__}", (kind,), {"_new_conn": _connect, "response_class": timed})

    pools: dict[str, Any] = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: type(pool.__name__, (pool,), {"ConnectionCls": limited(pool.ConnectionCls)})
        for scheme, pool in pools.items()
    }
    return manager


class _TooSlowError(Exception):
    """Separate from the timeouts of single pieces, which urllib3 handles."""


class _TimedBytes(io.RawIOBase):
    """Bytes of a socket until a deadline: each byte of a slow drip would start the timeout again."""

    def __init__(self, received: io.RawIOBase, within_s: float) -> None:
        self._received = received
        self._deadline_s = time.monotonic() + within_s

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        if time.monotonic() > self._deadline_s:
            raise _TooSlowError
        return self._received.readinto(target)

    def close(self) -> None:
        self._received.close()
        super().close()


def _connect(connection: Any) -> socket.socket:
    """A socket to the first address of a host that answers, as urllib3 makes it once the name is known."""
    from urllib3.exceptions import ConnectTimeoutError, HTTPError, LocationParseError, NameResolutionError

    name, timeout_s = connection._dns_host, connection.timeout
    look_up = partial(socket.getaddrinfo, name.strip("[]"), connection.port, type=socket.SOCK_STREAM)
    try:
        infos = call_with_timeout(look_up, timeout_s, "name lookup")
    except UnicodeError:  # a part of the name that is empty or too long
        raise LocationParseError(name) from None
    except socket.gaierror as error:
        raise NameResolutionError(name, connection, error) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, str(error)) from error
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    failure: HTTPError | None = None
    for address in addresses:
        # Together they get the time of one: a host whose addresses all hang fails as soon as any other.
        connection._dns_host, connection.timeout = address, timeout_s / len(addresses)
        try:
            opened: socket.socket = super(type(connection), connection)._new_conn()
            return opened
        except HTTPError as error:
            failure = error
        finally:
            connection._dns_host, connection.timeout = name, timeout_s
    assert failure is not None, "a name that resolves has an address"
    raise failure


def web_address(url: str) -> urllib.parse.SplitResult:
    """A web address in its parts, or ValueError, which shows nothing of it that may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # an invalid port, or half of an IPv6 address
    shown = url.partition("?")[0].rpartition("@")[2]
    raise ValueError(f"invalid web address {shown!r}: expected https://host/path")


def host_of(url: urllib.parse.SplitResult) -> str:
    """The server of an address, without anything secret."""
    return f"{url.scheme}://{url.netloc}"


def _without_login(parts: urllib.parse.SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _failure(
    error: Exception, url: urllib.parse.SplitResult, proxy: str, name: str, pieces: list[bytes]
) -> StoreError:
    """The error for a request without a response."""
    text = f"{type(error).__name__} {error}"
    if match := _TUNNEL.search(text):
        return _proxy_failure(int(match[1]), url, proxy, name)
    cause = connection_cause(text) or type(error).__name__
    if "ProxyError" in text:
        cause = f"the proxy {_without_login(urllib.parse.urlsplit(proxy))} failed: {cause}"
    fact = f"the connection to {host_of(url)} failed: {cause}"
    if "certificate" in text.lower():  # no retry changes this
        return StoreError(fact, path=name, hint=_CERTIFICATE)
    if "LocationParseError" in text:
        return StoreError(fact, path=name)
    return _cut_off(fact, name, pieces)


def _proxy_failure(status: int, url: urllib.parse.SplitResult, proxy: str, name: str) -> StoreError:
    shown = f"the proxy {_without_login(urllib.parse.urlsplit(proxy))}"
    if status == _PROXY_LOGIN_REQUIRED:
        return AuthenticationError(f"{shown} requires credentials, or other ones", path=name, hint=_LOGIN)
    fact = f"{shown} does not connect to {host_of(url)}: it answered {status}"
    if status in TEMPORARY:
        return UnavailableError(fact, path=name)
    return StoreError(fact, path=name, hint=_BEHIND)


def _cut_off(fact: str, name: str, pieces: list[bytes]) -> UnavailableError:
    error = UnavailableError(fact, path=name)
    error.bytes_received = sum(map(len, pieces))
    return error


def _read_body(response: urllib3.BaseHTTPResponse, max_bytes: int, name: str, pieces: list[bytes]) -> None:
    """Append the bytes of a response to `pieces`, so that those before a failure can be counted."""
    is_success, expected = response.status // 100 == 2, response.length_remaining
    if is_success and expected is not None and expected > max_bytes:
        raise LimitExceededError(f"{expected} bytes where {max_bytes} are allowed", path=name)
    left = max_bytes + 1 if is_success else _MAX_REASON_BYTES
    while left > 0 and (piece := response.read1(min(left, _PIECE_BYTES), decode_content=False)):
        pieces.append(piece)
        left -= len(piece)
    if is_success and left <= 0:
        raise LimitExceededError(f"more than the {max_bytes} bytes allowed", path=name)
    if is_success and expected is not None and max_bytes + 1 - left < expected:
        raise _cut_off("the connection was cut within the response", name, pieces)


def redirect_target(
    response: Response, url: urllib.parse.SplitResult, name: str
) -> urllib.parse.SplitResult | None:
    """The target of a redirect: another host is allowed, another scheme or an unencrypted one is not."""
    target = response.headers.get("location")
    if response.status not in (301, 302, 303, 307, 308) or not target:
        return None
    try:
        onward = urllib.parse.urlsplit(urllib.parse.urljoin(url.geturl(), target))
        is_web = onward.scheme in ("http", "https") and onward.hostname and onward.port != 0
    except ValueError:
        is_web = False
    if not is_web or onward.username:
        raise StoreError(f"{host_of(url)} redirects to an invalid web address", path=name)
    if url.scheme == "https" and onward.scheme == "http":
        raise StoreError(f"{host_of(url)} redirects to {host_of(onward)}, which is not encrypted", path=name)
    return onward._replace(fragment="")


def retry_after_s(value: str | None) -> float | None:
    """Seconds to wait by a Retry-After header: a number or a date."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


_JSON_ERRORS: dict[int, type[StoreError]] = {
    401: AuthenticationError,
    403: PermissionError_,
    404: BlobNotFoundError,
    409: ConflictError,
}


class JsonService:
    """Requests to one address, retried after temporary failures; `timeout_s` limits a call with all its retries."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        policy: RetryPolicy | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        parts = web_address(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL; give them as headers")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be a positive number of seconds, got {timeout_s!r}")
        self._url = parts._replace(path=parts.path.rstrip("/"), query="", fragment="")
        self.address = self._url.geturl()
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})}
        self._client = WebClient(timeout_s=timeout_s, within_s=timeout_s, proxies=proxies)
        self._policy = policy or RetryPolicy()

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """The response to a GET request, sent once."""
        return self._call("GET", path, None, is_retried=False)

    def post(self, path: str, body: Mapping[str, Any], *, is_repeatable: bool = True) -> dict[str, Any]:
        """The response to `body`, {} if it is empty.

        Temporary failures are retried; of a request that is not repeatable only those that the server refused.
        """
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        return self._call("POST", path, data, is_repeatable=is_repeatable)

    def _call(
        self,
        method: str,
        path: str,
        data: bytes | None,
        *,
        is_retried: bool = True,
        is_repeatable: bool = True,
    ) -> dict[str, Any]:
        def is_final(error: Exception, _: int) -> bool:
            is_refused = not getattr(error, "is_no_response", False)
            return not is_retried or not (is_repeatable or is_refused)

        run = partial(self._policy.run, partial(self._send, method, path, data), is_final)
        try:
            return call_with_timeout(run, self._timeout_s, "request")
        except TimeoutError:
            self._client.close()
            error = UnavailableError("the server did not answer in time", path=f"{self.address}{path}")
            error.is_no_response = True  # type: ignore[attr-defined]
            raise error from None

    def _send(self, method: str, path: str, data: bytes | None) -> dict[str, Any]:
        name, url = f"{self.address}{path}", self._url._replace(path=self._url.path + path)
        try:
            response = self._client.request(
                method, url, self._headers, name, max_bytes=_MAX_JSON_BYTES, body=data
            )
        except UnavailableError as error:
            error.is_no_response = True  # type: ignore[attr-defined]
            raise
        if response.status // 100 == 2:
            try:
                body = response.body
                return parse_json_object(body, max_bytes=_MAX_JSON_BYTES) if body.strip() else {}
            except FormatError as error:
                fact = f"the response is not a JSON object ({error.message})"
                raise StoreError(fact, path=name) from None
        reason = response.body.decode("utf-8", "replace").strip()[:_MAX_REASON_CHARS]
        fact = f"the server answered {response.status}" + (f": {reason}" if reason else "")
        if response.status not in TEMPORARY:
            raise _JSON_ERRORS.get(response.status, StoreError)(fact, path=name)
        refusal = UnavailableError(fact, path=name)
        refusal.retry_after_s = retry_after_s(response.headers.get("retry-after"))
        raise refusal
