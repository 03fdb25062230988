"""A read-only catalog behind plain HTTP(S): ranges, tags, redirects."""

from __future__ import annotations

import email.utils
import http
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol

from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process.threads import ThreadPool
from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    LimitExceededError,
    PermissionError_,
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
from warpdata.stores.digest import FileDigest
from warpdata.stores.webclient import (
    PASSING,
    Answer,
    Proxies,
    WebClient,
    host_of,
    redirected,
    retry_after_s,
    web_address,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_TIMEOUT_S = 20.0
_PATIENCE = 10
"""How many times as long as one step of it a whole answer may take."""

_CONCURRENCY = 16
_REDIRECTS = 5
_NO_HEAD = (403, 405, 501)
"""Answers of servers that know no HEAD, and of addresses they redirect to that were signed for GET only."""

_TOTAL = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,18}")
_EMPTY = re.compile(r"bytes \*/0")
_FORBIDDEN = "Ask for access to this path; where the address was signed, it may have expired: get a new one."
_UNLISTED = "Name what you want, or ask the folder or object store behind this address: that can be listed."
_READ_ONLY = "Publish to a folder or an object store; an http catalog is read only."
_REDIRECTED = "Pass allow_foreign_uris=True if you trust the publisher of this dataset."
_NO_RANGES = (
    "Serve it with a program that answers ranges (nginx, a bucket); `python -m http.server` does not."
)


Signer = Callable[[str, str], Mapping[str, str]]
"""Headers that a request for (method, path) needs."""


class Explainer(Protocol):
    """What an answer that refuses says, if it says anything: (text, name, headers) -> error."""

    def __call__(self, text: str, *, name: str, headers: Mapping[str, str]) -> StoreError | None:
        """The error that the answer names."""


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
        follow_redirects: bool = True,
    ) -> None:
        parts = web_address(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL")
        plain = (parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")
        self.address = address or urllib.parse.urlunsplit(plain)
        self._base = parts
        self._sign = sign or _unsigned
        self._explain = explain
        self._follow_redirects = follow_redirects
        self._threads = ThreadPool(concurrency, "warp-http")
        self._client = WebClient(
            timeout_s=timeout_s, within_s=_PATIENCE * timeout_s, connections=concurrency, proxies=proxies
        )

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        if self._base.query:
            return self._head_by_get(key)
        answer, url = self._asked("HEAD", key, {}, 0)
        if answer.status in _NO_HEAD and self._explain is None:
            return self._head_by_get(key)
        self._check(answer, "HEAD", key, {}, url)
        length = answer.headers.get("content-length")
        if length is None:  # a server that makes its answers as it sends them
            return self._head_by_get(key)
        if not _LENGTH.fullmatch(length):
            raise StoreError("the server answers with a length that is none", path=self._name(key))
        return _info(key, answer.headers, int(length))

    def _head_by_get(self, key: str) -> BlobInfo:
        """The same by the first byte: who signed an address for GET did not sign it for HEAD."""
        answer = self._ranged(key, (0, 1), {})
        span = answer.headers.get("content-range", "")
        found = _TOTAL.fullmatch(span)
        is_empty = _EMPTY.fullmatch(span) or (answer.status == http.HTTPStatus.OK and not answer.body)
        if found is None and not is_empty:
            raise self._no_ranges(key)
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
        raise StoreError("an http catalog cannot be listed", path=self._name(prefix), hint=_UNLISTED)

    def folders(self, prefix: str) -> Sequence[str]:
        """Refused: HTTP has no listing."""
        raise StoreError("an http catalog cannot be listed", path=self._name(prefix), hint=_UNLISTED)

    def delete(self, key: str) -> None:
        """Refused: the store is read only."""
        self._refuse(key)

    def delete_all(self, keys: Sequence[str]) -> None:
        """Refused: the store is read only."""
        self._refuse(keys[0] if keys else "")

    def close(self) -> None:
        """Close the connections and the threads."""
        self._threads.close(wait=True)
        self._client.close()

    def _refuse(self, key: str) -> NoReturn:
        raise StoreError("this catalog is read only", path=self._name(key), hint=_READ_ONLY)

    def _range(self, key: str, wanted: Range, same_as: BlobInfo | None = None) -> memoryview:
        start, end = wanted
        if start == end:
            return memoryview(b"")
        condition = {"If-Match": same_as.etag} if same_as is not None and is_strong(same_as.etag) else {}
        answer = self._ranged(key, wanted, condition)
        if answer.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if same_as is not None and end <= same_as.size:
                raise BlobChangedError("it is shorter than when it was opened", path=self._name(key))
            raise TruncatedError(f"bytes [{start}, {end}) lie past the end", path=self._name(key))
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            raise self._no_ranges(key)
        found = _TOTAL.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found[1]) != start:
            raise StoreError("the server answered another range than asked", path=self._name(key))
        if same_as is not None:  # many servers do not know the condition
            check_same(_info(key, answer.headers, int(found[3])), same_as, self._name(key))
        return memoryview(answer.body)

    def _ranged(self, key: str, wanted: Range, condition: Mapping[str, str]) -> Answer:
        start, end = wanted
        try:
            return self._request("GET", key, {"Range": f"bytes={start}-{end - 1}", **condition}, end - start)
        except LimitExceededError:  # it sends the whole file, or another range
            raise self._no_ranges(key) from None

    def _no_ranges(self, key: str) -> StoreError:
        return StoreError("the server does not answer range requests", path=self._name(key), hint=_NO_RANGES)

    def _request(self, method: str, key: str, headers: Mapping[str, str], max_bytes: int) -> Answer:
        answer, url = self._asked(method, key, headers, max_bytes)
        self._check(answer, method, key, headers, url)
        return answer

    def _asked(
        self, method: str, key: str, headers: Mapping[str, str], max_bytes: int
    ) -> tuple[Answer, urllib.parse.SplitResult]:
        """The answer, and the address that gave it at last."""
        name = self._name(check_key(key))
        path = f"{self._base.path.rstrip('/')}/{urllib.parse.quote(key)}"
        url = self._base._replace(path=path, fragment="")
        for _ in range(_REDIRECTS + 1):
            signed = self._sign(method, url.path) if host_of(url) == host_of(self._base) else {}
            answer = self._client.ask(method, url, {**headers, **signed}, name, max_bytes=max_bytes)
            onward = redirected(answer, url, name)
            if onward is None:
                return answer, url
            if not self._follow_redirects and host_of(onward) != host_of(self._base):
                fact = f"{host_of(url)} redirects to another server: {host_of(onward)}"
                raise StoreError(fact, path=name, hint=_REDIRECTED)
            url = onward
        raise StoreError(f"the server redirects more than {_REDIRECTS} times", path=name)

    def _check(
        self, answer: Answer, method: str, key: str, headers: Mapping[str, str], url: urllib.parse.SplitResult
    ) -> None:
        """Raise what an answer says that is no success."""
        if self._explain is not None and 300 <= answer.status < 500:
            self._say_why(method, key, answer)
        if answer.status not in _fitting(headers):
            _refuse_status(answer.status, answer.headers, self._name(key), host_of(url))

    def _say_why(self, method: str, key: str, answer: Answer) -> None:
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


def _fitting(asked: Mapping[str, str]) -> set[int]:
    """Which answers fit what was asked: a part or "unchanged" that nobody asked for would pass for the whole."""
    return (
        {200} | ({206, 416} if "Range" in asked else set()) | ({304} if "If-None-Match" in asked else set())
    )


def _refuse_status(status: int, headers: Mapping[str, str], name: str, host: str) -> NoReturn:
    if status == 412:
        raise BlobChangedError("it was replaced since it was opened", path=name)
    if status in (404, 410):
        raise BlobNotFoundError("no such blob", path=name)
    if status == 401:
        raise AuthenticationError(f"{host} asks for credentials", path=name)
    if status == 403:
        raise PermissionError_(f"{host} forbids reading this", path=name, hint=_FORBIDDEN)
    if status in PASSING:
        error = UnavailableError(f"{host} answered {status}", path=name)
        error.retry_after_s = retry_after_s(headers.get("retry-after"))
        raise error
    raise StoreError(f"{host} answered {status}", path=name)


def _info(key: str, headers: Mapping[str, str], size: int) -> BlobInfo:
    return BlobInfo(key, size, headers.get("etag"), _moment_s(headers.get("last-modified", "")))


def _moment_s(stamp: str) -> float:
    """The time a header names; one that names none says as little as one that is missing."""
    try:
        return email.utils.parsedate_to_datetime(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
