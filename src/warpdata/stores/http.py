"""A read-only catalog behind plain HTTP(S): ranges, tags, redirects."""

from __future__ import annotations

import contextlib
import email.utils
import http
import re
import urllib.parse
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    ConflictError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.stores.blobstore import (
    Blob,
    BlobInfo,
    BlobStore,
    blob_name,
    check_key,
    check_lengths,
    check_same,
    is_strong,
)
from warpdata.stores.webclient import (
    TEMPORARY,
    Proxies,
    Response,
    WebClient,
    host_of,
    redirect_target,
    retry_after_s,
    web_address,
)

_PATIENCE = 10
"""Limit for a whole response, in timeouts of a single read."""

_CONCURRENCY = 32
_REDIRECTS = 5
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,18}")
_EMPTY_RANGE = re.compile(r"bytes \*/0")
_FORBIDDEN = "Request access to this path; if the address was signed, it may have expired: get a new one."
_REDIRECTED = "Pass allow_foreign_uris=True if you trust the publisher of this dataset."
_NO_RANGES = "Serve it with a program that supports range requests (nginx, a bucket); `python -m http.server` does not."


class HttpStore(BlobStore):
    """Blobs below one URL of a web server that supports range requests."""

    is_local = False
    _head_fallbacks: tuple[int, ...] = (403, 405, 501)
    """Statuses after which HEAD is replaced by GET: HEAD is unsupported, or the address was signed for GET only."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 20.0,
        address: str | None = None,
        proxies: Proxies | None = None,
        follow_redirects: bool = True,
    ) -> None:
        parts = web_address(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL")
        plain = (parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")
        self.address = address or urllib.parse.urlunsplit(plain)
        self._base = parts._replace(path=parts.path.rstrip("/"), fragment="")
        self._follow_redirects = follow_redirects
        self._threads = ThreadPool(_CONCURRENCY, "warp-http")
        self._client = WebClient(
            timeout_s=timeout_s, within_s=_PATIENCE * timeout_s, connections=_CONCURRENCY, proxies=proxies
        )

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        if self._base.query:
            return self._head_by_get(key)
        response, url = self._send("HEAD", key, {}, 0)
        if response.status in self._head_fallbacks:
            return self._head_by_get(key)
        self._check_status(response, key, {200}, url)
        length = response.headers.get("content-length")
        if length is None:  # the server generates its responses
            return self._head_by_get(key)
        if not _LENGTH.fullmatch(length):
            raise StoreError("the server sent an invalid Content-Length", path=self._name(key))
        return _info(key, response.headers, int(length))

    def _head_by_get(self, key: str) -> BlobInfo:
        """Size and tag from a request for the first byte: an address that was signed for GET refuses HEAD."""
        response = self._get_range(key, (0, 1), {})
        header = response.headers.get("content-range", "")
        match = _CONTENT_RANGE.fullmatch(header)
        is_empty = _EMPTY_RANGE.fullmatch(header) or (
            response.status == http.HTTPStatus.OK and not response.body
        )
        if match is None and not is_empty:
            raise self._no_ranges(key)
        return _info(key, response.headers, int(match[3]) if match else 0)

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        condition = {} if unless_etag is None else {"If-None-Match": unless_etag}
        statuses = {200} if unless_etag is None else {200, 304}
        response = self._request("GET", key, condition, max_bytes, statuses)
        if response.status == http.HTTPStatus.NOT_MODIFIED:
            return None
        return Blob(memoryview(response.body), _info(key, response.headers, len(response.body)))

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, several requests at a time."""
        if len(ranges) == 1:
            views = [self._read_range(key, ranges[0], same_as)]
        else:
            views = self._threads.map(lambda part: self._read_range(key, part, same_as), ranges)
        return check_lengths(views, ranges, self._name(key))

    def close(self) -> None:
        """Close the connections and the threads."""
        self._threads.close(wait=True)
        self._client.close()

    def _read_range(self, key: str, part: Range, same_as: BlobInfo | None) -> memoryview:
        start, end = part
        if start == end:
            return memoryview(b"")
        condition = {"If-Match": same_as.etag} if same_as is not None and is_strong(same_as.etag) else {}
        response = self._get_range(key, part, condition)
        if response.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if same_as is not None and end <= same_as.size:
                raise BlobChangedError("the blob is shorter than when it was opened", path=self._name(key))
            raise TruncatedError(f"bytes [{start}, {end}) are past the end", path=self._name(key))
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            raise self._no_ranges(key)
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != start:
            raise StoreError("the server sent another range than requested", path=self._name(key))
        if same_as is not None:  # many servers ignore the condition
            check_same(_info(key, response.headers, int(match[3])), same_as, self._name(key))
        return memoryview(response.body)

    def _get_range(self, key: str, part: Range, condition: Mapping[str, str]) -> Response:
        start, end = part
        headers = {"Range": f"bytes={start}-{end - 1}", **condition}
        try:
            return self._request("GET", key, headers, end - start, {200, 206, 416})
        except LimitExceededError:  # the server sends the whole file, or another range
            raise self._no_ranges(key) from None

    def _no_ranges(self, key: str) -> StoreError:
        return StoreError("the server does not support range requests", path=self._name(key), hint=_NO_RANGES)

    def _request(
        self, method: str, key: str, headers: Mapping[str, str], max_bytes: int, statuses: Collection[int]
    ) -> Response:
        """Send a request; a response with another status than these is an error."""
        response, url = self._send(method, key, headers, max_bytes)
        self._check_status(response, key, statuses, url)
        return response

    def _send(
        self, method: str, key: str, headers: Mapping[str, str], max_bytes: int
    ) -> tuple[Response, urllib.parse.SplitResult]:
        """Send a request and follow redirects; the response and the address it came from."""
        name = self._name(check_key(key))
        url = self._base._replace(path=f"{self._base.path}/{urllib.parse.quote(key)}")
        for _ in range(_REDIRECTS + 1):
            response = self._client.request(method, url, headers, name, max_bytes=max_bytes)
            target = redirect_target(response, url, name)
            if target is None:
                return response, url
            if not self._follow_redirects and host_of(target) != host_of(self._base):
                fact = f"{host_of(url)} redirects to another server: {host_of(target)}"
                raise StoreError(fact, path=name, hint=_REDIRECTED)
            url = target
        raise StoreError(f"the server redirects more than {_REDIRECTS} times", path=name)

    def _check_status(
        self, response: Response, key: str, statuses: Collection[int], url: urllib.parse.SplitResult
    ) -> None:
        if response.status not in statuses:
            raise_for_status(response, self._name(key), host_of(url))

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def raise_for_status(response: Response, name: str, host: str) -> NoReturn:
    """Raise the error for a status that is not a success."""
    status = response.status
    if status == 412:
        raise BlobChangedError("the blob was replaced since it was opened", path=name)
    if status == 409:
        raise ConflictError("the blob is not as expected", path=name)
    if status in (404, 410):
        raise BlobNotFoundError("no such blob", path=name)
    if status == 401:
        raise AuthenticationError(f"{host} requires credentials", path=name)
    if status == 403:
        raise PermissionError_(f"{host} forbids reading this", path=name, hint=_FORBIDDEN)
    if status in TEMPORARY:
        error = UnavailableError(f"{host} answered {status}", path=name)
        error.retry_after_s = retry_after_s(response.headers.get("retry-after"))
        raise error
    raise StoreError(f"{host} answered {status}", path=name)


def _info(key: str, headers: Mapping[str, str], size: int) -> BlobInfo:
    return BlobInfo(key, size, headers.get("etag"), timestamp_s(headers.get("last-modified", "")))


def timestamp_s(text: str) -> float:
    """A time as headers or listings have it, in seconds; 0 if it is missing or invalid."""
    for parse in (email.utils.parsedate_to_datetime, datetime.fromisoformat):
        with contextlib.suppress(ValueError, OverflowError):
            return parse(text).timestamp()
    return 0.0
