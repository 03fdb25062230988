"""A read-only catalog behind plain HTTP(S): ranges, tags, redirects, proxies. The adapter of urllib3."""

from __future__ import annotations

import email.utils
import http
import ipaddress
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from warpdata.bytekit.background import ThreadPool
from warpdata.bytekit.forks import tell_in_child
from warpdata.bytekit.ranges import Range
from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    LimitExceededError,
    PermissionError_,
    SettingsError,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.stores.blobstore import (
    Blob,
    BlobInfo,
    Chunks,
    blob_name,
    check_key,
    check_lengths,
    check_same,
    is_strong,
)
from warpdata.stores.causes import connection_cause
from warpdata.stores.digest import FileDigest

if TYPE_CHECKING:
    import urllib3
    from typing_extensions import Buffer

_TIMEOUT_S = 20.0
_CONNECT_S = 10.0
_PATIENCE = 10
"""How many times as long as one step of it a whole answer may take."""

_CONCURRENCY = 16
_REDIRECTS = 5
_MAX_REASON_BYTES = 1 << 16
_TOTAL = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_EMPTY = re.compile(r"bytes \*/0")
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
_FORBIDDEN = "Ask for access to this path; where the address was signed, it may have expired: get a new one."
_READ_ONLY = "Publish to a folder or an object store; an http catalog is read only."


Signer = Callable[[str, str], Mapping[str, str]]
"""Headers that a request for (method, path) needs."""


class Explainer(Protocol):
    """What an answer that refuses says, if it says anything: (text, name, headers) -> error."""

    def __call__(self, text: str, *, name: str, headers: Mapping[str, str]) -> StoreError | None:
        """The error that the answer names."""


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
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStore:
    """Blobs below one URL of a web server that answers range requests."""

    is_local = False
    is_conditional = False

    def __init__(
        self,
        url: str,
        *,
        concurrency: int = _CONCURRENCY,
        timeout_s: float = _TIMEOUT_S,
        address: str | None = None,
        sign: Signer | None = None,
        explain: Explainer | None = None,
        proxies: Proxies | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL")
        plain = (parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")
        self.address = address or urllib.parse.urlunsplit(plain)
        self._base = parts
        self._timeout_s = timeout_s
        self._concurrency = concurrency
        self._sign = sign or _unsigned
        self._explain = explain
        self._proxies = proxies or Proxies()
        self._threads = ThreadPool(concurrency, "warp-http")
        self._start()
        tell_in_child(self)

    def _start(self) -> None:
        """Fresh state: a forked child must not use its parent's connections and has none of its threads.

        What was closed starts afresh too: references may outlive their dataset.
        """
        self._is_closed = False
        self._managers: dict[str, urllib3.PoolManager] = {}

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        if self._base.query:
            return self._head_by_get(key)
        answer = self._request("HEAD", key, {}, 0)
        return _info(key, answer.headers, int(answer.headers.get("content-length") or 0))

    def _head_by_get(self, key: str) -> BlobInfo:
        """The same by the first byte: who signed an address for GET did not sign it for HEAD."""
        answer = self._request("GET", key, {"Range": "bytes=0-0"}, 1)
        span = answer.headers.get("content-range", "")
        found = _TOTAL.fullmatch(span)
        if found is None and not _EMPTY.fullmatch(span):
            raise StoreError("the server does not answer range requests", path=self._name(key))
        return _info(key, answer.headers, int(found[3]) if found else 0)

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        condition = {} if unless_etag is None else {"If-None-Match": unless_etag}
        answer = self._request("GET", key, condition, max_bytes)
        if answer.status == http.HTTPStatus.NOT_MODIFIED:
            return None
        return Blob(memoryview(answer.body), _info(key, answer.headers, len(answer.body)))

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, several at a time."""
        if self._is_closed:
            self._start()
        if len(ranges) == 1:
            views = [self._range(key, ranges[0], same_as)]
        else:
            views = self._threads.map(lambda wanted: self._range(key, wanted, same_as), ranges)
        return check_lengths(views, ranges, self._name(key))

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:  # noqa: ARG002
        """Refused: the store is read only."""
        self._refuse(key)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:  # noqa: ARG002
        """Refused: the store is read only."""
        self._refuse(key)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:  # noqa: ARG002
        """Refused: the store is read only."""
        self._refuse(key)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:  # noqa: ARG002
        """Refused: the store is read only."""
        self._refuse(key)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Refused: HTTP has no listing."""
        raise StoreError("an http catalog cannot be listed", path=self._name(prefix), hint=_READ_ONLY)

    def delete(self, key: str) -> None:
        """Refused: the store is read only."""
        self._refuse(key)

    def close(self) -> None:
        """Close the connections and the threads."""
        self._threads.close(wait=True)
        for manager in self._managers.values():
            manager.clear()
        self._is_closed = True

    def _refuse(self, key: str) -> NoReturn:
        raise StoreError("this catalog is read only", path=self._name(key), hint=_READ_ONLY)

    def _range(self, key: str, wanted: Range, same_as: BlobInfo | None = None) -> memoryview:
        start, end = wanted
        if start == end:
            return memoryview(b"")
        condition = {"If-Match": same_as.etag} if same_as is not None and is_strong(same_as.etag) else {}
        answer = self._request("GET", key, {"Range": f"bytes={start}-{end - 1}", **condition}, end - start)
        if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if same_as is not None and end <= same_as.size:
                raise BlobChangedError("it is shorter than when it was opened", path=self._name(key))
            raise TruncatedError(f"bytes [{start}, {end}) lie past the end", path=self._name(key))
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            raise StoreError("the server does not answer range requests", path=self._name(key))
        found = _TOTAL.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != start:
            raise StoreError("the server answered another range than asked", path=self._name(key))
        if same_as is not None:  # many servers do not know the condition
            check_same(_info(key, answer.headers, int(found[3])), same_as, self._name(key))
        return memoryview(answer.body)

    def _request(self, method: str, key: str, headers: Mapping[str, str], max_bytes: int) -> _Answer:
        if self._is_closed:
            self._start()
        name = self._name(check_key(key))
        path = f"{self._base.path.rstrip('/')}/{urllib.parse.quote(key)}"
        url = self._base._replace(path=path, fragment="")
        for _ in range(_REDIRECTS + 1):
            signed = self._sign(method, url.path) if _host(url) == _host(self._base) else {}
            answer = self._ask(method, url, {**headers, **signed}, max_bytes, name)
            onward = _redirected(answer, url, name)
            if onward is None:
                break
            url = onward
        else:
            raise StoreError(f"the server redirects more than {_REDIRECTS} times", path=name)
        if self._explain is not None and 300 <= answer.status < 500:
            self._say_why(method, key, answer)
        _check_status(answer.status, answer.headers, name, _host(url))
        return answer

    def _ask(
        self,
        method: str,
        url: urllib.parse.SplitResult,
        headers: Mapping[str, str],
        max_bytes: int,
        name: str,
    ) -> _Answer:
        """One request to one host, answered in bounded time."""
        from urllib3.exceptions import HTTPError

        # As it lies there: of an answer that was compressed on the way, no range would be right.
        every = {"User-Agent": "warpdata", "Accept-Encoding": "identity", **headers}
        deadline_s = time.monotonic() + _PATIENCE * self._timeout_s
        try:
            answer = self._manager(url).request(
                method, url.geturl(), headers=every, redirect=False, retries=False, preload_content=False
            )
            try:
                body = _body(answer, max_bytes, name, deadline_s)
            except BaseException:
                answer.close()
                raise
            answer.release_conn()
        except (HTTPError, OSError) as error:
            cause = connection_cause(f"{type(error).__name__} {error}") or type(error).__name__
            raise UnavailableError(f"the connection to {_host(url)} failed: {cause}", path=name) from None
        return _Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, body)

    def _manager(self, url: urllib.parse.SplitResult) -> urllib3.PoolManager:
        proxy = self._proxies.of(url)
        if proxy not in self._managers:
            self._managers[proxy] = _open_manager(proxy, self._timeout_s, self._concurrency)
        return self._managers[proxy]

    def _say_why(self, method: str, key: str, answer: _Answer) -> None:
        """Raise what the answer names; one to HEAD has no words, so the first byte is asked for instead."""
        assert self._explain is not None
        if method == "HEAD" and answer.status in (301, 400, 403):
            self._range(key, (0, 1))
        text = answer.body.decode("utf-8", "replace")
        if error := self._explain(text, name=self._name(key), headers=answer.headers):
            raise error

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def _unsigned(method: str, path: str) -> Mapping[str, str]:  # noqa: ARG001
    return {}


def _open_manager(proxy: str, timeout_s: float, concurrency: int) -> urllib3.PoolManager:
    import urllib3  # it opens a socket when it is loaded, so only who goes to the network loads it

    options: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=min(_CONNECT_S, timeout_s), read=timeout_s),
        "maxsize": concurrency,
    }
    if not proxy:
        return urllib3.PoolManager(**options)
    parts = urllib.parse.urlsplit(proxy)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(
            f"a proxy is asked by http or https, not by {parts.scheme!r}",
            hint="Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or name this host in NO_PROXY.",
        )
    if parts.username:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        options["proxy_headers"] = urllib3.make_headers(proxy_basic_auth=login)
    return urllib3.ProxyManager(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", **options)


def _host(url: urllib.parse.SplitResult) -> str:
    """The server of an address, without anything secret."""
    return f"{url.scheme}://{url.netloc}"


def _body(answer: urllib3.BaseHTTPResponse, max_bytes: int, name: str, deadline_s: float) -> bytes:
    expected = answer.length_remaining
    if answer.status not in (200, 206):
        return _until(answer, _MAX_REASON_BYTES, name, deadline_s)
    if expected is not None and expected > max_bytes and max_bytes:
        raise LimitExceededError(f"{expected} bytes where {max_bytes} are allowed", path=name)
    body = _until(answer, max_bytes + 1 if max_bytes else _MAX_REASON_BYTES, name, deadline_s)
    if max_bytes and len(body) > max_bytes:
        raise LimitExceededError(f"more than the {max_bytes} bytes allowed", path=name)
    if expected is not None and len(body) < min(expected, max_bytes or expected):
        raise UnavailableError("the connection was cut within the answer", path=name)
    return body


def _until(answer: urllib3.BaseHTTPResponse, size: int, name: str, deadline_s: float) -> bytes:
    """At most `size` bytes; a server that sends a few of them now and then is not listened to for ever."""
    pieces: list[bytes] = []
    while size > 0 and (piece := answer.read1(size, decode_content=False)):
        pieces.append(piece)
        size -= len(piece)
        if time.monotonic() > deadline_s:
            raise UnavailableError("the answer came too slowly", path=name)
    return b"".join(pieces)


def _redirected(answer: _Answer, url: urllib.parse.SplitResult, name: str) -> urllib.parse.SplitResult | None:
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
        raise StoreError(f"{_host(url)} redirects to what is no web address", path=name)
    if url.scheme == "https" and onward.scheme == "http":
        raise StoreError(f"{_host(url)} redirects to {_host(onward)}, which is not encrypted", path=name)
    return onward._replace(fragment="")


def _check_status(status: int, headers: Mapping[str, str], name: str, host: str) -> None:
    if status in (200, 206, 304, 416):
        return
    if status == 412:
        raise BlobChangedError("it was replaced since it was opened", path=name)
    if status in (404, 410):
        raise BlobNotFoundError("no such blob", path=name)
    if status == 401:
        raise AuthenticationError(f"{host} asks for credentials", path=name)
    if status == 403:
        raise PermissionError_(f"{host} forbids reading this", path=name, hint=_FORBIDDEN)
    if status in _RETRY_STATUS:
        error = UnavailableError(f"{host} answered {status}", path=name)
        error.retry_after_s = retry_after_s(headers.get("retry-after"))
        raise error
    raise StoreError(f"{host} answered {status}", path=name)


def retry_after_s(value: str | None) -> float | None:
    """Seconds a Retry-After header asks to wait: a number or a date."""
    if value is None:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _info(key: str, headers: Mapping[str, str], size: int) -> BlobInfo:
    stamp = headers.get("last-modified")
    modified = email.utils.parsedate_to_datetime(stamp).timestamp() if stamp else 0.0
    return BlobInfo(key, size, headers.get("etag"), modified)
