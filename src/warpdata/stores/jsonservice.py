"""A service that speaks JSON over HTTP(S): time-outs, retries, bounded answers, errors that name their cause."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.errors import (
    AuthenticationError,
    BlobNotFoundError,
    ConflictError,
    FormatError,
    PermissionError_,
    StoreError,
    UnavailableError,
)
from warpdata.stores.reliable import RetryPolicy
from warpdata.stores.webclient import PASSING, Proxies, Response, WebClient, retry_after_s, web_address

_MAX_RESPONSE_BYTES = 64 << 20
_MAX_REASON_CHARS = 200
_ERRORS: dict[int, type[StoreError]] = {
    401: AuthenticationError, 403: PermissionError_, 404: BlobNotFoundError, 409: ConflictError,
}  # fmt: skip


class JsonService:
    """Requests to one address; every one may be repeated, so only what can be said twice is sent."""

    def __init__(
        self, url: str, *, timeout_s: float = 30.0, headers: Mapping[str, str] | None = None,
        policy: RetryPolicy | None = None, proxies: Proxies | None = None,
    ) -> None:  # fmt: skip
        parts = web_address(url)
        if parts.username or parts.password:
            raise ValueError("credentials do not belong in a URL; give them as headers")
        if not timeout_s > 0:
            raise ValueError(f"a time-out is a positive number of seconds, not {timeout_s!r}")
        self.address = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._parts = parts
        self._headers = dict(headers or {})
        self._client = WebClient(timeout_s=timeout_s, within_s=timeout_s, proxies=proxies)
        self._policy = policy or RetryPolicy()

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        self._client.close()

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
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._headers}
        url = self._parts._replace(path=self._parts.path.rstrip("/") + path, query="", fragment="")
        answer = self._client.request("POST", url, headers, name, max_bytes=_MAX_RESPONSE_BYTES, body=data)
        _check_status(answer, name)
        return _parsed(answer.body, name)


def _check_status(answer: Response, name: str) -> None:
    if answer.status // 100 == 2:
        return
    said = answer.body.decode("utf-8", "replace").strip()[:_MAX_REASON_CHARS]
    fact = f"the server answered {answer.status}" + (f": {said}" if said else "")
    if answer.status in PASSING:
        error = UnavailableError(fact, path=name)
        error.retry_after_s = retry_after_s(answer.headers.get("retry-after"))
        raise error
    raise _ERRORS.get(answer.status, StoreError)(fact, path=name)


def _parsed(body: bytes, name: str) -> dict[str, Any]:
    if not body.strip():
        return {}
    try:
        return parse_json_object(body, max_bytes=_MAX_RESPONSE_BYTES)
    except FormatError as error:
        raise StoreError(f"the answer is not a JSON object ({error.message})", path=name) from None
