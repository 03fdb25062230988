"""A read-only catalog behind plain HTTP(S): ranges, tags, and the server's Retry-After."""

from __future__ import annotations

import email.utils
import http.client
import re
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from warpdata.bytekit.forks import tell_in_child
from warpdata.bytekit.ranges import Range
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.stores.blobstore import Blob, BlobInfo, Chunks, blob_name, check_key, check_lengths
from warpdata.stores.digest import FileDigest

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TIMEOUT_S = 30.0
_PATIENCE = 10
"""How many times as long as one step of it a whole answer may take."""

_CONCURRENCY = 16
_REDIRECTS = 5
_TOTAL = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
_READ_ONLY = "Publish to a folder or an object store; an http catalog is read only."


Signer = Callable[[str, str], Mapping[str, str]]
"""Headers that a request for (method, path) needs."""


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
        self._start()
        tell_in_child(self)

    def _start(self) -> None:
        """Fresh state: a forked child must not use its parent's connections and has none of its threads.

        What was closed starts afresh too: references may outlive their dataset.
        """
        self._is_closed = False
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="warp-http")

    def in_child(self) -> None:
        """Begin anew."""
        self._start()

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        _, headers, _ = self._request("HEAD", key, {}, 0)
        return _info(key, headers, int(headers.get("content-length") or 0))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        condition = {} if unless_etag is None else {"If-None-Match": unless_etag}
        status, headers, body = self._request("GET", key, condition, max_bytes)
        if status == http.client.NOT_MODIFIED:
            return None
        return Blob(memoryview(body), _info(key, headers, len(body)))

    def get_ranges(self, key: str, ranges: Sequence[Range]) -> list[memoryview]:
        """Exactly the bytes of each range, several at a time."""
        if self._is_closed:
            self._start()
        if len(ranges) == 1:
            views = [self._range(key, ranges[0])]
        else:
            views = list(self._pool.map(lambda wanted: self._range(key, wanted), ranges))
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
        self._pool.shutdown(cancel_futures=True)
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        self._is_closed = True

    def __del__(self) -> None:
        for connection in getattr(self, "_idle", ()):
            connection.close()

    def _refuse(self, key: str) -> NoReturn:
        raise StoreError("this catalog is read only", path=self._name(key), hint=_READ_ONLY)

    def _range(self, key: str, wanted: Range) -> memoryview:
        start, end = wanted
        if start == end:
            return memoryview(b"")
        status, headers, body = self._request("GET", key, {"Range": f"bytes={start}-{end - 1}"}, end - start)
        if status == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise TruncatedError(f"bytes [{start}, {end}) lie past the end", path=self._name(key))
        if status != http.client.PARTIAL_CONTENT:
            raise StoreError("the server does not answer range requests", path=self._name(key))
        found = _TOTAL.fullmatch(headers.get("content-range", ""))
        if found is None or int(found[1]) != start:
            raise StoreError("the server answered another range than asked", path=self._name(key))
        return memoryview(body)

    def _request(
        self, method: str, key: str, headers: Mapping[str, str], max_bytes: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        if self._is_closed:
            self._start()
        name = self._name(check_key(key))
        target = urllib.parse.urlsplit(f"{self._base.path.rstrip('/')}/{urllib.parse.quote(key)}").path
        connection = self._connection()
        try:
            for _ in range(_REDIRECTS):
                signed = self._sign(method, target)
                connection.request(method, target, headers={"User-Agent": "warpdata", **headers, **signed})
                answer = connection.getresponse()
                found = {k.lower(): v for k, v in answer.getheaders()}
                body = _body(answer, max_bytes, name, time.monotonic() + _PATIENCE * self._timeout_s)
                target = _redirected(answer.status, found, self._base) or ""
                if not target:
                    break
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnavailableError(f"the connection failed ({type(error).__name__})", path=name) from None
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)
        _check_status(answer.status, found, name)
        return answer.status, found, body

    def _connection(self) -> http.client.HTTPConnection:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        host = self._base.netloc
        if self._base.scheme == "https":
            return http.client.HTTPSConnection(
                host, timeout=self._timeout_s, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(host, timeout=self._timeout_s)

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def _unsigned(method: str, path: str) -> Mapping[str, str]:  # noqa: ARG001
    return {}


def _body(answer: http.client.HTTPResponse, max_bytes: int, name: str, deadline_s: float) -> bytes:
    expected = answer.length
    if expected is not None and expected > max_bytes and answer.status in (200, 206) and max_bytes:
        raise LimitExceededError(f"{expected} bytes where {max_bytes} are allowed", path=name)
    body = _until(answer, max_bytes + 1 if max_bytes else 1 << 16, name, deadline_s)
    if max_bytes and len(body) > max_bytes:
        raise LimitExceededError(f"more than the {max_bytes} bytes allowed", path=name)
    if expected is not None and len(body) < min(expected, max_bytes or expected):
        raise UnavailableError("the connection was cut within the answer", path=name)
    return body


def _until(answer: http.client.HTTPResponse, size: int, name: str, deadline_s: float) -> bytes:
    """At most `size` bytes; a server that sends a few of them now and then is not listened to for ever."""
    pieces: list[bytes] = []
    while size > 0 and (piece := answer.read1(size)):
        pieces.append(piece)
        size -= len(piece)
        if time.monotonic() > deadline_s:
            raise UnavailableError("the answer came too slowly", path=name)
    if not answer.length:
        answer.read(0)  # only this tells the connection that the answer is complete
    return b"".join(pieces)


def _redirected(status: int, headers: Mapping[str, str], base: urllib.parse.SplitResult) -> str | None:
    """The path of a redirect within the same host; another host is not followed."""
    if status not in (301, 302, 307, 308):
        return None
    parts = urllib.parse.urlsplit(headers.get("location", ""))
    if parts.netloc not in ("", base.netloc) or parts.scheme not in ("", base.scheme):
        raise StoreError("the server redirects to another host", path=parts.netloc)
    return parts.path + (f"?{parts.query}" if parts.query else "")


def _check_status(status: int, headers: Mapping[str, str], name: str) -> None:
    if status in (200, 206, 304, 416):
        return
    if status in (404, 410):
        raise BlobNotFoundError("no such blob", path=name)
    if status == 401:
        raise AuthenticationError("the server asks for credentials", path=name)
    if status == 403:
        raise PermissionError_("the server forbids reading this", path=name)
    if status in _RETRY_STATUS:
        error = UnavailableError(f"the server answered {status}", path=name)
        error.retry_after_s = retry_after_s(headers.get("retry-after"))
        raise error
    raise StoreError(f"the server answered {status}", path=name)


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
