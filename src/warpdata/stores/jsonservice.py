"""A JSON service over HTTP(S): timeouts, retries, bounded responses, typed errors."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from functools import partial
from typing import Any

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.process.threads import call_with_timeout
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
        self.address = urllib.parse.urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._parts = parts
        self._timeout_s = timeout_s
        self._headers = dict(headers or {})
        self._client = WebClient(timeout_s=timeout_s, within_s=timeout_s, proxies=proxies)
        self._policy = policy or RetryPolicy()

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """The response to a GET request, sent once."""
        return self._call("GET", path, None, attempts=1)

    def post(self, path: str, body: Mapping[str, Any], *, is_repeatable: bool = True) -> dict[str, Any]:
        """The response to `body`, {} if it is empty.

        Temporary failures are retried; of a request that is not repeatable only those that the server refused.
        """
        data = json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
        return self._call("POST", path, data, attempts=self._policy.attempts, is_repeatable=is_repeatable)

    def _call(
        self, method: str, path: str, data: bytes | None, *, attempts: int, is_repeatable: bool = True
    ) -> dict[str, Any]:
        name = f"{self.address}{path}"
        call = partial(self._retry, method, path, data, attempts, is_repeatable)
        try:
            return call_with_timeout(call, self._timeout_s, "request")
        except TimeoutError:
            self._client.close()
            error = UnavailableError("the server did not answer in time", path=name)
            error.is_no_response = True  # type: ignore[attr-defined]
            raise error from None

    def _retry(
        self, method: str, path: str, data: bytes | None, attempts: int, is_repeatable: bool
    ) -> dict[str, Any]:
        attempt, began_s = 0, self._policy.clock()
        while True:
            try:
                return self._send(method, path, data)
            except UnavailableError as error:
                attempt += 1
                wait_s = getattr(error, "retry_after_s", None)
                is_refused = not getattr(error, "is_no_response", False)
                if attempt >= attempts or not (is_repeatable or is_refused):
                    raise
                if self._policy.is_over(began_s, attempt, wait_s):
                    raise
                self._policy.wait(attempt, wait_s)

    def _send(self, method: str, path: str, data: bytes | None) -> dict[str, Any]:
        name = f"{self.address}{path}"
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._headers}
        url = self._parts._replace(path=self._parts.path.rstrip("/") + path, query="", fragment="")
        try:
            response = self._client.request(
                method, url, headers, name, max_bytes=_MAX_RESPONSE_BYTES, body=data
            )
        except UnavailableError as error:
            error.is_no_response = True  # type: ignore[attr-defined]
            raise
        _check_status(response, name)
        return _parsed(response.body, name)


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
