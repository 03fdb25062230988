"""The one client of web servers: connections, proxies, time-outs, bounded answers. The adapter of urllib3."""

from __future__ import annotations

import base64
import email.utils
import io
import ipaddress
import re
import socket
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from warpdata.bytekit.process.forks import run_in_child
from warpdata.bytekit.process.threads import call_with_timeout
from warpdata.errors import (
    AuthenticationError,
    LimitExceededError,
    SettingsError,
    StoreError,
    UnavailableError,
)

if TYPE_CHECKING:
    import urllib3

PASSING = {408, 425, 429, 500, 502, 503, 504}
"""What a server answers that is asked again later."""

_PROXY_ASKS = 407
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")
_LOGIN = "Put them into HTTP_PROXY or HTTPS_PROXY: http://user:password@host:port, with % codes for special letters."
_BEHIND = "Ask who runs the proxy, or name this host in NO_PROXY."
_CERTIFICATE = (
    "Check the address, and that this machine knows who issued the certificate (SSL_CERT_FILE names others)."
)

_CONNECT_S = 10.0
_MAX_REASON_BYTES = 1 << 16

_CONNECTIONS = (
    ("name lookup timed out", "no name server answered in time"),
    ("dns error", "its name is not known"),
    ("name resolution", "its name is not known"),
    ("getaddrinfo", "its name is not known"),
    ("name or service not known", "its name is not known"),
    ("connection refused", "nothing listens there"),
    ("too many open files", "this process has too many files open"),
    ("certificate", "its certificate is not trusted"),
    ("network is unreachable", "the network is not reachable"),
    ("no route to host", "the network is not reachable"),
    ("connection reset", "it broke the connection off"),
    ("remotedisconnected", "it broke the connection off"),
    ("incompletemessage", "it broke the connection off"),
    ("incomplete message", "it broke the connection off"),
    ("badstatusline", "what it answers is no HTTP"),
    ("linetoolong", "what it answers is no HTTP"),
    ("got more than", "what it answers is no HTTP"),
    ("parse(", "what it answers is no HTTP"),
    ("invalidheader", "what it answers is no HTTP"),
    ("locationparseerror", "no host can have this name"),
    ("toomanyredirects", "it redirects in a circle"),
    ("incompletebody", "it broke the connection off"),
    ("incompleteread", "it broke the connection off"),
    ("timed out", "it did not answer in time"),
    ("timedout", "it did not answer in time"),
)
"""What the libraries write -> what it means; the first that is found counts."""


@dataclass(frozen=True, slots=True)
class Proxies:
    """Which proxy to ask for which address; their passwords are never shown."""

    by_scheme: Mapping[str, str] = field(default_factory=dict, repr=False)
    """For http and https: the address of a proxy."""
    without: str = ""
    """Hosts that are asked directly, as NO_PROXY lists them."""

    def of(self, url: urllib.parse.SplitResult) -> str:
        """The proxy for an address, or nothing."""
        proxy = self.by_scheme.get(url.scheme, "")
        if not proxy or any(_covers(each.strip().lower(), url) for each in self.without.split(",")):
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
    """Asks web servers, through the proxy for each; connections are kept, and made anew in a forked child.

    What was closed starts afresh when it is asked again: references may outlive their dataset. A server that sends
    nothing for `timeout_s` has failed, and so has one whose whole answer takes longer than `within_s`.
    """

    def __init__(
        self, *, timeout_s: float, within_s: float, connections: int = 1, proxies: Proxies | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._within_s = within_s
        self._connections = connections
        self._proxies = proxies or Proxies()
        self.in_child()
        run_in_child(self.in_child)

    def in_child(self) -> None:
        """Begin anew: a forked child must not use its parent's connections."""
        self._managers: dict[str, urllib3.PoolManager] = {}

    def close(self) -> None:
        """Close the connections."""
        managers = self._managers
        self.in_child()
        for manager in managers.values():
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
        """One request to one host, answered in bounded time; where it redirects to is not followed.

        Of an answer that refuses only the beginning is read. `name` is what errors call it.
        """
        from urllib3.exceptions import HTTPError

        # As it lies there: of an answer that was compressed on the way, no range would be right.
        pieces: list[bytes] = []
        every = {"User-Agent": "warpdata", "Accept-Encoding": "identity", **headers}
        try:
            answer = self._manager(url).request(
                method, url.geturl(), headers=every, body=body, redirect=False, retries=False,
                preload_content=False,
            )  # fmt: skip
            try:
                found = _body(answer, max_bytes, name, pieces)
            except BaseException:
                answer.close()
                raise
            answer.release_conn()
        except (HTTPError, OSError) as error:
            raise _failure(error, url, self._proxies.of(url), name, pieces) from None
        except _TooSlowError:
            raise _broken_off(f"the answer of {host_of(url)} came too slowly", name, pieces) from None
        if answer.status == _PROXY_ASKS and (proxy := self._proxies.of(url)):
            raise _proxy_refuses(answer.status, url, proxy, name)
        return Response(answer.status, {k.lower(): v for k, v in answer.headers.items()}, found)

    def _manager(self, url: urllib.parse.SplitResult) -> urllib3.PoolManager:
        proxy = self._proxies.of(url)
        if proxy not in self._managers:
            self._managers[proxy] = _open_manager(proxy, self._timeout_s, self._within_s, self._connections)
        return self._managers[proxy]


def _open_manager(proxy: str, timeout_s: float, within_s: float, connections: int) -> urllib3.PoolManager:
    import urllib3  # it opens a socket when it is loaded, so only who goes to the network loads it

    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=min(_CONNECT_S, timeout_s), read=timeout_s),
        "maxsize": connections,
    }
    if not proxy:
        return _bounded(urllib3.PoolManager(**options), within_s)
    try:
        parts = web_address(proxy)
    except ValueError:
        scheme = proxy.partition("://")[0]
        fact = f"a proxy is asked by http or https, not by {scheme!r}"
        if scheme in ("http", "https"):
            fact = "the address of a proxy is none"  # which may hold a password
        raise SettingsError(
            fact, hint="Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or name this host in NO_PROXY."
        ) from None
    if parts.username:
        login = b":".join(
            urllib.parse.unquote_to_bytes(each or "") for each in (parts.username, parts.password)
        )
        options["proxy_headers"] = {"Proxy-Authorization": f"Basic {base64.b64encode(login).decode()}"}
    return _bounded(urllib3.ProxyManager(_without_login(parts), **options), within_s)


def _bounded(manager: urllib3.PoolManager, within_s: float) -> urllib3.PoolManager:
    """Its new connections wait for a name server no longer than for the server (the system would, for minutes).

    And for the whole of an answer, headers and all, no longer than `within_s`: the time-out is for each piece of it.
    """

    def bounded(kind: Any) -> Any:
        changes = {"_new_conn": _connected, "response_class": _timed(kind.response_class, within_s)}
        return type(f"Bounded{kind.__name__}", (kind,), changes)

    pools: dict[str, Any] = manager.pool_classes_by_scheme
    manager.pool_classes_by_scheme = {
        scheme: type(pool.__name__, (pool,), {"ConnectionCls": bounded(pool.ConnectionCls)})
        for scheme, pool in pools.items()
    }
    return manager


def _timed(kind: Any, within_s: float) -> Any:
    """A class of answers like http.client's, of which not one byte is read later than `within_s` after the request."""

    def begin(answer: Any, sock: Any, *args: Any, **options: Any) -> None:
        kind.__init__(answer, sock, *args, **options)
        answer.fp.close()
        answer.fp = io.BufferedReader(_TimedBytes(sock.makefile("rb", buffering=0), within_s))

    return type(f"Timed{kind.__name__}", (kind,), {"__init__": begin})


class _TooSlowError(Exception):
    """Kept apart from the time-outs of single pieces, which urllib3 knows."""


class _TimedBytes(io.RawIOBase):
    """What a socket receives, until the time is over: each byte of a drip would begin its time-out anew."""

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


def _connected(connection: Any) -> socket.socket:
    """A socket to the first address of a host that answers, made as urllib3 does once the name is known."""
    from urllib3.exceptions import (
        ConnectTimeoutError,
        HTTPError,
        LocationParseError,
        NameResolutionError,
    )

    name, timeout_s = connection._dns_host, connection.timeout
    try:
        addresses = call_with_timeout(partial(_addresses, name, connection.port), timeout_s, "name lookup")
    except UnicodeError:  # a part of the name that is empty or too long
        raise LocationParseError(name) from None
    except socket.gaierror as error:
        raise NameResolutionError(name, connection, error) from error
    except TimeoutError as error:
        raise ConnectTimeoutError(connection, str(error)) from error
    failed: HTTPError | None = None
    for address in addresses:
        # Together they get the time of one: a host whose addresses all hang has failed as soon as any other.
        connection._dns_host, connection.timeout = address, timeout_s / len(addresses)
        try:
            opened: socket.socket = super(type(connection), connection)._new_conn()
            return opened
        except HTTPError as error:
            failed = error
        finally:
            connection._dns_host, connection.timeout = name, timeout_s
    assert failed is not None, "a name that is found has an address"
    raise failed


def _addresses(name: str, port: int) -> list[str]:
    """The addresses of a host, each once, in the order they are to be tried."""
    found = socket.getaddrinfo(name.strip("[]"), port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def web_address(url: str) -> urllib.parse.SplitResult:
    """An address of the web in its parts, or ValueError, which shows nothing of it that may be secret."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass  # a port that is none, or half of an IPv6 address
    shown = url.partition("?")[0].rpartition("@")[2]
    raise ValueError(f"not an address of the web: {shown!r}; it looks like https://host/path")


def _without_login(parts: urllib.parse.SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _failure(
    error: Exception, url: urllib.parse.SplitResult, proxy: str, name: str, pieces: list[bytes]
) -> StoreError:
    """Why a request was not answered."""
    text = f"{type(error).__name__} {error}"
    if refused := _TUNNEL.search(text):
        return _proxy_refuses(int(refused[1]), url, proxy, name)
    cause = connection_cause(text) or type(error).__name__
    if "ProxyError" in text:
        cause = f"the proxy {_without_login(urllib.parse.urlsplit(proxy))} failed: {cause}"
    fact = f"the connection to {host_of(url)} failed: {cause}"
    if "certificate" in text.lower():  # which no second attempt changes
        return StoreError(fact, path=name, hint=_CERTIFICATE)
    if "LocationParseError" in text:  # nor this
        return StoreError(fact, path=name)
    return _broken_off(fact, name, pieces)


def _proxy_refuses(status: int, url: urllib.parse.SplitResult, proxy: str, name: str) -> StoreError:
    who = f"the proxy {_without_login(urllib.parse.urlsplit(proxy))}"
    if status == _PROXY_ASKS:
        return AuthenticationError(f"{who} requires credentials, or other ones", path=name, hint=_LOGIN)
    fact = f"{who} does not connect to {host_of(url)}: it answered {status}"
    return (
        UnavailableError(fact, path=name) if status in PASSING else StoreError(fact, path=name, hint=_BEHIND)
    )


def connection_cause(text: str) -> str:
    """Why a connection failed, by what the library says of it: plain words, or nothing."""
    lower = text.lower()
    return next((meaning for word, meaning in _CONNECTIONS if word in lower), "")


def host_of(url: urllib.parse.SplitResult) -> str:
    """The server of an address, without anything secret."""
    return f"{url.scheme}://{url.netloc}"


def _body(answer: urllib3.BaseHTTPResponse, max_bytes: int, name: str, pieces: list[bytes]) -> bytes:
    """The bytes of an answer, collected in `pieces` for whoever asks what came before it failed."""
    expected = answer.length_remaining
    if answer.status // 100 != 2:
        return _read(answer, _MAX_REASON_BYTES, pieces)
    if expected is not None and expected > max_bytes:
        raise LimitExceededError(f"{expected} bytes where {max_bytes} are allowed", path=name)
    body = _read(answer, max_bytes + 1, pieces)
    if len(body) > max_bytes:
        raise LimitExceededError(f"more than the {max_bytes} bytes allowed", path=name)
    if expected is not None and len(body) < expected:
        raise _broken_off("the connection was cut within the response", name, pieces)
    return body


def _read(answer: urllib3.BaseHTTPResponse, size: int, pieces: list[bytes]) -> bytes:
    """At most `size` bytes."""
    while size > 0 and (piece := answer.read1(size, decode_content=False)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _broken_off(fact: str, name: str, pieces: list[bytes]) -> UnavailableError:
    error = UnavailableError(fact, path=name)
    error.bytes_received = sum(map(len, pieces))
    return error


def redirect_target(
    answer: Response, url: urllib.parse.SplitResult, name: str
) -> urllib.parse.SplitResult | None:
    """Where a redirect leads: another host is fine, another kind of address or an open line is not."""
    target = answer.headers.get("location")
    if answer.status not in (301, 302, 303, 307, 308) or not target:
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
    """Seconds a Retry-After header asks to wait: a number or a date."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
