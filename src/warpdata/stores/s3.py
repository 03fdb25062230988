"""Clients of S3 servers and of Azure with a SAS token: authorized requests, conditional puts, uploads in parts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import itertools
import re
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    BucketNotFoundError,
    ConflictError,
    PermissionError_,
    StoreError,
    UnavailableError,
)
from warpdata.stores.awskeys import S3Keys
from warpdata.stores.blobstore import BlobInfo, Chunks, check_key, check_size
from warpdata.stores.http import HttpStore, raise_for_status, timestamp_s
from warpdata.stores.webclient import Proxies, Response, host_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_REGION = "us-east-1"
_PART_BYTES = 8 << 20
_PARTS_TOGETHER = 4
MAX_LISTING_BYTES = 16 << 20

_CODE = re.compile(r"<Code>\s*([A-Za-z0-9.]{1,80})\s*</Code>")
_REGION = re.compile(r"<Region>\s*([a-z0-9-]{1,40})\s*</Region>|expecting '([a-z0-9-]{1,40})'")
_WRONG_REGION = (
    *("PermanentRedirect", "TemporaryRedirect"),
    *("AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
)
_PASSING_CODES = {"InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout"}
_KEYS = "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the profile named by AWS_PROFILE)"
_NEW_TOKEN = "Get new temporary credentials (for SSO: `aws sso login`), then run this again."
_CLOCK = "Set the clock of this machine by network time, then run this again."
_REFUSALS: Mapping[str, tuple[type[StoreError], str, str]] = {
    "SignatureDoesNotMatch": (
        AuthenticationError,
        "the secret key does not belong to this access key id",
        f"{_KEYS}: the secret is wrong.",
    ),
    "InvalidAccessKeyId": (
        AuthenticationError,
        "unknown access key id",
        f"{_KEYS}, and that the endpoint is the one they were made for.",
    ),
    "ExpiredToken": (AuthenticationError, "the session token has expired", _NEW_TOKEN),
    "TokenRefreshRequired": (AuthenticationError, "the session token has expired", _NEW_TOKEN),
    "InvalidToken": (
        AuthenticationError,
        "the session token is not valid",
        f"{_NEW_TOKEN} Unset AWS_SESSION_TOKEN if the keys are permanent ones.",
    ),
    "RequestTimeTooSkewed": (AuthenticationError, "the clock of this machine is wrong", _CLOCK),
    "RequestExpired": (AuthenticationError, "the clock of this machine is wrong", _CLOCK),
    "AccessDenied": (
        PermissionError_,
        "the credentials are valid, but may not do this",
        "Request access to this path from the owner of the bucket, or use other credentials. Without permission to"
        " list, a missing name is reported like this too.",
    ),
    "AllAccessDisabled": (PermissionError_, "all access to the bucket is disabled", "Contact its owner."),
    "AccountProblem": (PermissionError_, "the account is suspended", "Contact the owner of the account."),
    "NoSuchBucket": (
        BucketNotFoundError,
        "there is no such bucket",
        "Check the name of the bucket and the endpoint (AWS_ENDPOINT_URL), or create the bucket.",
    ),
    "InvalidBucketName": (
        BucketNotFoundError,
        "invalid bucket name",
        "Check the name of the bucket: small letters, digits, dots and hyphens.",
    ),
}


def sign_request(
    keys: S3Keys, region: str, method: str, url: urllib.parse.SplitResult, body: bytes, now: datetime
) -> dict[str, str]:
    """Headers that authorize a request, by AWS signature version 4."""
    stamp, payload = now.strftime("%Y%m%dT%H%M%SZ"), hashlib.sha256(body).hexdigest()
    headers = {"host": url.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.session_token:
        headers["x-amz-security-token"] = keys.session_token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    path = urllib.parse.quote(urllib.parse.unquote(url.path))
    request = f"{method}\n{path}\n{url.query}\n{lines}\n{names}\n{payload}"
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in (stamp[:8], region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    del headers["host"]
    return headers


@dataclass(frozen=True, slots=True)
class ListingForm:
    """How a kind of server lists: parameters of the request, and paths of elements in the XML of its response."""

    query: Mapping[str, str]
    marker: str
    """The parameter that continues a listing."""
    next_marker: str
    blob: str
    name: str
    size: str
    etag: str
    modified: str
    folder: str
    folder_name: str
    unquote: Callable[[str], str] = str


class BucketStore(HttpStore):
    """Blobs of a bucket below a prefix, over authorized requests to one server; redirects are not followed."""

    _head_fallbacks = (301, 307, 400, 403)
    _listing: ListingForm
    _max_parts: int

    def __init__(
        self, scheme: str, bucket: str, prefix: str, host: str, timeout_s: float, proxies: Proxies | None
    ) -> None:
        self._prefix = f"{prefix}/" if prefix else ""
        address = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        super().__init__(f"{host}/{bucket}", timeout_s=timeout_s, address=address, proxies=proxies)

    def _authorize(
        self, method: str, url: urllib.parse.SplitResult, body: bytes
    ) -> tuple[urllib.parse.SplitResult, Mapping[str, str]]:
        """The address of a request and the headers that authorize it."""
        raise NotImplementedError

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": etag}
        body = bytes(data)
        try:
            response = self._call("PUT", key, body=body, headers=condition)
        except (BlobNotFoundError, BlobChangedError):
            raise ConflictError("the blob is not as expected", path=self._name(key)) from None
        return BlobInfo(key, len(body), response.headers.get("etag"), 0.0)

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        self._call("DELETE", key, statuses={200, 202, 204, 404})

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Upload bytes, large ones in parts; an error of `chunks` ends the upload and nothing appears."""
        part_bytes = max(_PART_BYTES, -(-size // self._max_parts))
        parts = cut_parts(check_size(chunks(), size, self._name(key)), part_bytes)
        if size <= part_bytes:
            self._call("PUT", key, body=b"".join(parts))
        else:
            self._put_large(key, parts)

    def _put_large(self, key: str, parts: Iterator[bytes]) -> None:
        raise NotImplementedError

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        form, blobs = self._listing, []
        for page in self._pages(prefix, {}):
            for entry in page.iter(form.blob):
                key = form.unquote(entry.findtext(form.name, ""))[len(self._prefix) :]
                tag = entry.findtext(form.etag)
                tag = tag if tag is None or tag.endswith('"') else f'"{tag}"'
                modified_s = timestamp_s(entry.findtext(form.modified, ""))
                blobs.append(BlobInfo(key, int(entry.findtext(form.size, "0")), tag, modified_s))
        return iter(sorted(blobs, key=lambda blob: blob.key))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        form, pages = self._listing, self._pages(prefix, {"delimiter": "/"})
        names = [entry.findtext(form.folder_name, "") for page in pages for entry in page.iter(form.folder)]
        return sorted(form.unquote(name).rstrip("/").rpartition("/")[2] for name in names)

    def _pages(self, prefix: str, query: Mapping[str, str]) -> Iterator[ElementTree.Element]:
        """The pages of a listing, without namespaces."""
        parameters = {**self._listing.query, "prefix": f"{self._prefix}{prefix}", **query}
        while True:
            response = self._call("GET", None, query=parameters, max_bytes=MAX_LISTING_BYTES, name=prefix)
            page = parse_xml(response.body, self._name(prefix))
            yield page
            marker = page.findtext(self._listing.next_marker)
            if not marker or page.findtext("IsTruncated") == "false":
                return
            parameters[self._listing.marker] = marker

    def _put_parts(self, parts: Iterator[bytes], put: Callable[[tuple[int, bytes]], str]) -> Sequence[str]:
        """The results of putting numbered parts, a few at a time."""
        results: list[str] = []
        numbered = enumerate(parts, start=1)
        while batch := list(itertools.islice(numbered, _PARTS_TOGETHER)):
            results += self._threads.map(put, batch)
        return results

    def _call(
        self,
        method: str,
        key: str | None,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        statuses: Collection[int] = (200, 201, 204),
        max_bytes: int = 1 << 20,
        name: str | None = None,
    ) -> Response:
        """Send a request about a blob, or about the bucket if there is no `key`; `name` stands in errors."""
        response, url = self._send(method, key, headers or {}, max_bytes, query or {}, body)
        self._check_status(response, name or key or "", statuses, url)
        return response

    def _send(
        self,
        method: str,
        key: str | None,
        headers: Mapping[str, str],
        max_bytes: int,
        query: Mapping[str, str] = MappingProxyType({}),
        body: bytes = b"",
    ) -> tuple[Response, urllib.parse.SplitResult]:
        """Send an authorized request; no other server receives it, because redirects are not followed."""
        path = self._base.path
        if key is not None:
            path += f"/{urllib.parse.quote(self._prefix + check_key(key))}"
        pairs = [f"{name}={urllib.parse.quote(value, safe='-_.~')}" for name, value in sorted(query.items())]
        url = self._base._replace(path=path, query="&".join(pairs))
        target, authorization = self._authorize(method, url, body)
        sent = body if method in ("PUT", "POST") else None
        response = self._client.request(
            method,
            target,
            {**headers, **authorization},
            self._name(key or ""),
            max_bytes=max_bytes,
            body=sent,
        )
        return response, url


class S3Store(BucketStore):
    """Blobs of a bucket of an S3 server."""

    _max_parts = 9_000
    _listing = ListingForm(
        query={"list-type": "2", "encoding-type": "url"},
        marker="continuation-token",
        next_marker="NextContinuationToken",
        blob="Contents",
        name="Key",
        size="Size",
        etag="ETag",
        modified="LastModified",
        folder="CommonPrefixes",
        folder_name="Prefix",
        unquote=urllib.parse.unquote_plus,
    )

    def __init__(
        self,
        bucket: str,
        prefix: str,
        keys: Callable[[], S3Keys],
        *,
        endpoint: str | None = None,
        region: str | None = None,
        timeout_s: float = 20.0,
        proxies: Proxies | None = None,
    ) -> None:
        self.region = region or DEFAULT_REGION
        self._host = (endpoint or f"https://s3.{self.region}.amazonaws.com").rstrip("/")
        self._keys = keys
        self._has_bucket = False
        super().__init__("s3", bucket, prefix, self._host, timeout_s, proxies)

    def _authorize(
        self, method: str, url: urllib.parse.SplitResult, body: bytes
    ) -> tuple[urllib.parse.SplitResult, Mapping[str, str]]:
        return url, sign_request(self._keys(), self.region, method, url, body, datetime.now(UTC))

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        try:
            return super().head(key)
        except BlobNotFoundError:
            if self._has_bucket:
                raise
        try:  # a response to HEAD has no body that could name a missing bucket
            return self._head_by_get(key)
        except BlobNotFoundError:
            self._has_bucket = True
            raise

    def _put_large(self, key: str, parts: Iterator[bytes]) -> None:
        started = self._call("POST", key, query={"uploads": ""})
        upload = {"uploadId": parse_xml(started.body, self._name(key)).findtext("UploadId", "")}

        def put(part: tuple[int, bytes]) -> str:
            query = {"partNumber": str(part[0]), **upload}
            return self._call("PUT", key, query=query, body=part[1]).headers.get("etag", "")

        try:
            tags = self._put_parts(parts, put)
            rows = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(tag)}</ETag></Part>"
                for number, tag in enumerate(tags, start=1)
            )
            body = f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()
            response = self._call("POST", key, query=upload, body=body)
            self._check_text(response, key)  # a failure may come with status 200
        except BaseException:
            with contextlib.suppress(StoreError):  # the first error counts; servers expire unfinished uploads
                self._call("DELETE", key, query=upload, statuses=(200, 204, 404))
            raise

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove up to a thousand blobs in one request."""
        if not keys:
            return
        rows = "".join(f"<Object><Key>{escape(self._prefix + check_key(key))}</Key></Object>" for key in keys)
        body = f"<Delete><Quiet>true</Quiet>{rows}</Delete>".encode()
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": checksum}
        response = self._call("POST", None, query={"delete": ""}, body=body, headers=headers, name=keys[0])
        self._check_text(response, keys[0])

    def _check_status(
        self, response: Response, key: str, statuses: Collection[int], url: urllib.parse.SplitResult
    ) -> None:
        if response.status in statuses:
            return
        self._check_refusal(response, self._name(key))
        if response.status in (301, 307):
            raise self._wrong_region("", "", self._name(key))
        raise_for_status(response, self._name(key), host_of(url))

    def _check_refusal(self, response: Response, name: str) -> None:
        """Raise the error that a response names, if any; its other text is not shown, it may hold secrets."""
        text = response.body.decode("utf-8", "replace")
        code = match[1] if (match := _CODE.search(text)) else ""
        regions = _REGION.search(text)
        region = (regions[1] or regions[2]) if regions else response.headers.get("x-amz-bucket-region", "")
        if code in _WRONG_REGION or (not code and region and region != self.region):
            raise self._wrong_region(code, region, name)
        if code in _REFUSALS:
            kind, fact, hint = _REFUSALS[code]
            raise kind(f"{fact} ({code} from {self._host})", path=name, hint=hint)

    def _check_text(self, response: Response, key: str) -> None:
        """Raise the error in the text of a response with status 200."""
        name = self._name(key)
        codes = set(_CODE.findall(response.body.decode("utf-8", "replace"))) - {"NoSuchKey"}
        if not codes:
            return
        self._check_refusal(response, name)
        kind = UnavailableError if codes & _PASSING_CODES else StoreError
        raise kind(f"{self._host} answered {', '.join(sorted(codes))}", path=name)

    def _wrong_region(self, code: str, region: str, name: str) -> StoreError:
        place = f"region {region!r}" if region else "another region"
        source = f"{code} from {self._host}" if code else self._host
        hint = f"Set AWS_REGION={region or '<the region of the bucket>'}, or add ?region= to the address."
        return StoreError(
            f"the bucket is in {place}, not in {self.region!r} ({source})", path=name, hint=hint
        )


class AzureStore(BucketStore):
    """Blobs of a container of Azure, with a SAS token.

    The library for Azure follows redirects and sends the address of the first request along, token included; this
    client does neither.
    """

    _max_parts = 50_000
    _listing = ListingForm(
        query={"restype": "container", "comp": "list"},
        marker="marker",
        next_marker="NextMarker",
        blob="Blob",
        name="Name",
        size="Properties/Content-Length",
        etag="Properties/Etag",
        modified="Properties/Last-Modified",
        folder="BlobPrefix",
        folder_name="Name",
    )

    def __init__(
        self,
        container: str,
        prefix: str,
        find_token: Callable[[], str],
        endpoint: str,
        *,
        timeout_s: float = 20.0,
        proxies: Proxies | None = None,
    ) -> None:
        self._find_token = find_token
        super().__init__("az", container, prefix, endpoint.rstrip("/"), timeout_s, proxies)

    def _authorize(
        self, method: str, url: urllib.parse.SplitResult, body: bytes
    ) -> tuple[urllib.parse.SplitResult, Mapping[str, str]]:
        del body
        token = self._find_token().lstrip("?")
        headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" and "comp=" not in url.query else {}
        return url._replace(query=f"{url.query}&{token}" if url.query else token), headers

    def _put_large(self, key: str, parts: Iterator[bytes]) -> None:
        def put(part: tuple[int, bytes]) -> str:
            block = base64.b64encode(b"%08d" % part[0]).decode()
            self._call("PUT", key, query={"comp": "block", "blockid": block}, body=part[1])
            return block

        rows = "".join(f"<Latest>{block}</Latest>" for block in self._put_parts(parts, put))
        self._call("PUT", key, query={"comp": "blocklist"}, body=f"<BlockList>{rows}</BlockList>".encode())

    def _check_status(
        self, response: Response, key: str, statuses: Collection[int], url: urllib.parse.SplitResult
    ) -> None:
        if response.headers.get("x-ms-error-code") == "ContainerNotFound":
            hint = "Check the names of the container and of the account, or create the container."
            raise BucketNotFoundError("there is no such container", path=self._name(key), hint=hint)
        super()._check_status(response, key, statuses, url)


def cut_parts(chunks: Iterator[memoryview], part_bytes: int) -> Iterator[bytes]:
    """Chunks as parts of `part_bytes`."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= part_bytes:
            yield bytes(buffer[:part_bytes])
            del buffer[:part_bytes]
    if buffer:
        yield bytes(buffer)


def parse_xml(data: bytes, name: str) -> ElementTree.Element:
    """The root element, with names of tags without their namespace."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        raise StoreError(
            "the response is not XML", path=name, hint="Check that the endpoint is an object store."
        ) from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root
