"""A service that speaks JSON over HTTP(S): time-outs, retries, bounded answers, errors that name their cause."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    ConflictError,
    FormatError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    UnavailableError,
)
from warpdata.stores.http import retry_after_s
from warpdata.stores.reliable import RetryPolicy

_MAX_ANSWER_BYTES = 64 << 20
_MAX_REASON_CHARS = 200
_PIECE_BYTES = 1 << 16
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_ERRORS: dict[int, type[StoreError]] = {
    401: AuthenticationError, 403: PermissionError_, 404: BlobNotFoundError, 409: ConflictError,
}  # fmt: skip


class JsonService:
    """Requests to one address; every one may be repeated, so only what can be said twice is sent."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:  # fmt: skip
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"a service has an address like http://host:8080, not {url!r}")
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL; give them as headers")
        if not timeout_s > 0:
            raise ValueError(f"a time-out is a positive number of seconds, not {timeout_s!r}")
        self.address = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._parts = parts
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._policy = policy or RetryPolicy()

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to `body`, an empty one as {}; passing failures are tried again."""
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        attempt, began_s = 0, self._policy.clock()
        while True:
            try:
                return self._post(path, data)
            except UnavailableError as error:
                attempt += 1
                asked_s = getattr(error, "retry_after_s", None)
                if attempt >= self._policy.attempts or self._policy.is_over(began_s, attempt, asked_s):
                    raise
                self._policy.wait(attempt, asked_s)

    def _post(self, path: str, data: bytes) -> dict[str, Any]:
        name = f"{self.address}{path}"
        connection = self._connection()
        deadline_s = time.monotonic() + self._timeout_s
        headers = {"User-Agent": "warpdata", "Content-Type": "application/json", "Accept": "application/json"}
        try:
            target = self._parts.path.rstrip("/") + path
            connection.request("POST", target, data, {**headers, **self._headers})
            with connection.getresponse() as answer:
                body = _body(answer, name, deadline_s)
        except TimeoutError:
            raise UnavailableError(f"no answer within {self._timeout_s:g} s", path=name) from None
        except (OSError, http.client.HTTPException) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise UnavailableError(f"the connection failed ({cause})", path=name) from None
        finally:
            connection.close()
        _check_status(answer, body, name)
        return _parsed(body, name)

    def _connection(self) -> http.client.HTTPConnection:
        host = self._parts.netloc
        if self._parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(host, timeout=self._timeout_s)


def _body(answer: http.client.HTTPResponse, name: str, deadline_s: float) -> bytes:
    """The whole answer; one that trickles past the deadline, or never ends, is given up."""
    pieces: list[bytes] = []
    size = 0
    while piece := answer.read1(_PIECE_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_ANSWER_BYTES:
            raise LimitExceededError(f"an answer of more than {_MAX_ANSWER_BYTES} bytes", path=name)
        if time.monotonic() > deadline_s:
            raise TimeoutError
    if answer.length:
        raise UnavailableError("the connection was cut within the answer", path=name)
    return b"".join(pieces)


def _check_status(answer: http.client.HTTPResponse, body: bytes, name: str) -> None:
    if answer.status // 100 == 2:
        return
    said = body.decode("utf-8", "replace").strip()[:_MAX_REASON_CHARS]
    fact = f"the server answered {answer.status}" + (f": {said}" if said else "")
    if answer.status in _PASSING:
        error = UnavailableError(fact, path=name)
        error.retry_after_s = retry_after_s(answer.getheader("retry-after"))
        raise error
    raise _ERRORS.get(answer.status, StoreError)(fact, path=name)


def _parsed(body: bytes, name: str) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        return parse_json_object(body, max_bytes=_MAX_ANSWER_BYTES)
    except FormatError as error:
        raise StoreError(f"the answer is not a JSON object ({error.message})", path=name) from None
