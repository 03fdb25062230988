"""Google Cloud Storage and Azure as stores. The adapter of obstore."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore

from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.process.forks import OwnProcess
from warpdata.bytekit.process.threads import MOST_AT_ONCE, map_in_threads
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
    Chunks,
    blob_name,
    check_key,
    check_lengths,
    check_same,
    check_size,
    is_strong,
)
from warpdata.stores.webclient import TEMPORARY, connection_cause

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PART_BYTES = 8 << 20
_PARTS_TOGETHER = 4
_PATIENCE = 10
"""Limit for a whole request, in timeouts of a single read."""

_FAILURES = (BaseError, FileNotFoundError)
"""Everything the library raises for a request; a missing object is the builtin error."""

_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CREDENTIAL_HINTS = {
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
_GENERATION = "#generation="
_PROVIDERS = {"gs": "Google Cloud", "az": "Azure"}
_HOSTS = {"gs": "https://storage.googleapis.com", "az": "Azure"}
_RETRY_AFTER_S = 1.0
"""Wait after 429 and 503: the library does not show the Retry-After header."""

_METADATA_SERVERS = ("://169.254.", "://metadata.google")
"""Servers that give credentials to machines of a cloud: a refusal there is not a refusal of the store."""

_NO_CREDENTIALS = (*_METADATA_SERVERS, "InstanceCredentials", "credential")
_ODD_RESPONSES = (
    ("NotPartial", "it does not support range requests"),
    ("UnexpectedRange", "it sent another range than requested"),
    ("ContentRange", "Content-Range is missing or invalid"),
    ("source: Header {", "a header of its response is missing or invalid"),
)
"""Texts of the library for responses that no object store gives; retrying does not help."""


class ObjectStore(BlobStore):
    """Blobs of a bucket below a prefix."""

    is_local = False
    _runtime: ClassVar[OwnProcess | None] = None
    """The process whose threads serve all object stores; they do not survive a fork."""

    def __init__(
        self,
        scheme: str,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        secrets: Mapping[str, str] | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self.address = f"{scheme}://{bucket}/{prefix}".rstrip("/")
        self._scheme, self._bucket, self._endpoint, self._timeout_s = scheme, bucket, endpoint, timeout_s
        self._options: dict[str, Any] = {"prefix": prefix or None, **(secrets or {})}
        if endpoint:
            self._options["base_url" if scheme == "gs" else "endpoint"] = endpoint
        self._upload_store: Any = None
        if ObjectStore._runtime is None:
            ObjectStore._runtime = OwnProcess()
        self._opened: Any = self._open() if ObjectStore._runtime else None

    def _open(self, *, has_read_timeout: bool = True) -> Any:
        limits: dict[str, Any] = {
            "timeout": timedelta(seconds=self._timeout_s * _PATIENCE),
            "connect_timeout": timedelta(seconds=min(10.0, self._timeout_s)),
            "pool_max_idle_per_host": str(MOST_AT_ONCE),
        }
        if has_read_timeout:
            limits["read_timeout"] = timedelta(seconds=self._timeout_s)
        if self._endpoint and self._endpoint.startswith("http://"):
            limits["allow_http"] = True
        retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=self._timeout_s)}
        kind: Any = GCSStore if self._scheme == "gs" else AzureStore
        try:
            return kind(self._bucket, client_options=limits, retry_config=retries, **self._options)
        except _FAILURES as error:
            fact = f"cannot open the store ({type(error).__name__}): a setting is wrong or missing"
            raise StoreError(fact, path=self.address, hint=_CREDENTIAL_HINTS[self._scheme]) from None

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        with self._errors_of(key):
            return self._info(obstore.head(self._store, check_key(key)))

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        options: Any = None if unless_etag is None else {"if_none_match": _split_tag(unless_etag)[0]}
        size = 0
        try:
            response = obstore.get(self._store, check_key(key), options=options)
            info = self._info(response.meta)
            if info.size > max_bytes:
                raise LimitExceededError(
                    f"{info.size} bytes where {max_bytes} are allowed", path=self._name(key)
                )
            size = info.size
            data = memoryview(response.bytes())
        except NotModifiedError as error:
            if unless_etag is None:
                raise self._translate(error, key) from None
            return None
        except _FAILURES as error:
            failure = self._translate(error, key)
            if isinstance(failure, UnavailableError):
                failure.bytes_received = size  # at most: the library does not show how much was received
            raise failure from None
        if data.nbytes != info.size:
            raise TruncatedError(f"expected {info.size} bytes, got {data.nbytes}", path=self._name(key))
        return Blob(data, info)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, several requests at a time."""
        views = map_in_threads(lambda part: self._get_range(key, part, same_as), ranges)
        return check_lengths(views, ranges, self._name(key))

    def _get_range(self, key: str, part: Range, same_as: BlobInfo | None) -> memoryview:
        if part[0] == part[1]:
            return memoryview(b"")
        options: Any = {"range": part}
        if same_as is not None and is_strong(same_as.etag):
            options["if_match"] = _split_tag(same_as.etag)[0]
        try:
            response = obstore.get(self._store, check_key(key), options=options)
            check_same(self._info(response.meta), same_as, self._name(key))
            return memoryview(response.bytes()).cast("B")
        except PreconditionError:
            raise BlobChangedError(
                "the blob was replaced since it was opened", path=self._name(key)
            ) from None
        except _FAILURES as error:
            raise self._translate(error, key) from None

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Upload bytes, large ones in parts; an error of `chunks` aborts the upload and nothing appears."""
        parts = (bytes(chunk) for chunk in check_size(chunks(), size, self._name(key)))
        body: Any = parts
        options: Any = {"chunk_size": _PART_BYTES, "max_concurrency": _PARTS_TOGETHER}
        if size <= _PART_BYTES:  # an upload in parts is at least three requests
            body, options = b"".join(parts), {"use_multipart": False}
        with self._errors_of(key):
            obstore.put(self._uploads, check_key(key), body, **options)

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        mode: Any = "create"
        if etag is not None:
            tag, generation = _split_tag(etag)
            mode = {"e_tag": tag} if generation is None else {"e_tag": tag, "version": generation}
        body = bytes(data)
        with self._errors_of(key):
            result = obstore.put(self._store, check_key(key), body, mode=mode, use_multipart=False)
        return BlobInfo(key, len(body), self._tag(result), 0.0)

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        folder, _, begin = prefix.rpartition("/")
        # The library lists whole folders: start shortly before the first name with this prefix.
        offset = prefix[:-1] if len(begin) > 1 else None
        blobs: list[BlobInfo] = []
        with self._errors_of(prefix):
            for page in obstore.list(self._store, folder or None, offset=offset, chunk_size=1000):
                blobs += (self._info(meta) for meta in page)
                last = blobs[-1].key if begin and blobs else ""
                is_sorted = all(a.key <= b.key for a, b in pairwise(blobs))  # some stores do not sort
                if is_sorted and last > prefix and not last.startswith(prefix):
                    break
        return iter(sorted((i for i in blobs if i.key.startswith(prefix)), key=lambda info: info.key))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        with self._errors_of(prefix):
            prefixes = obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
        return sorted(name.rstrip("/").rpartition("/")[2] for name in prefixes)

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        try:
            obstore.delete(self._store, check_key(key))
        except (NotFoundError, FileNotFoundError):
            return
        except _FAILURES as error:
            raise self._translate(error, key) from None

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs, a thousand in one request where the server supports that."""
        try:
            obstore.delete(self._store, [check_key(key) for key in keys])
        except (NotFoundError, FileNotFoundError):  # some servers stop there
            map_in_threads(self.delete, keys)
        except _FAILURES as error:
            raise self._translate(error, keys[0]) from None

    def close(self) -> None:
        """Nothing to do: the library closes its connections with the store itself."""

    @property
    def _store(self) -> Any:
        """The library's store, unless this process was forked from one that used it."""
        if not ObjectStore._runtime:
            hint = "Start workers with DataLoader(..., multiprocessing_context='spawn')."
            raise StoreError("this object store cannot be used after a fork", path=self.address, hint=hint)
        return self._opened

    @property
    def _uploads(self) -> Any:
        """A store without read timeout: while a large part is sent over a slow link, no response comes."""
        if self._upload_store is None and self._store is not None:
            self._upload_store = self._open(has_read_timeout=False)
        return self._upload_store

    def _info(self, meta: Any) -> BlobInfo:
        return BlobInfo(meta["path"], meta["size"], self._tag(meta), meta["last_modified"].timestamp())

    def _tag(self, meta: Any) -> str | None:
        """The tag of a blob; Google's conditional writes need the generation as well."""
        tag, generation = meta.get("e_tag"), meta.get("version")
        return f"{tag}{_GENERATION}{generation}" if self._scheme == "gs" and generation else tag

    @contextlib.contextmanager
    def _errors_of(self, key: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            raise self._translate(error, key) from None

    def _translate(self, error: Exception, key: str) -> StoreError | TruncatedError:
        """Our error for an error of the library; its text is not shown, it may hold secrets."""
        name, text = self._name(key), str(error)
        host = self._endpoint or _HOSTS[self._scheme]
        is_metadata = any(word in text for word in _METADATA_SERVERS)
        if isinstance(error, NotFoundError | FileNotFoundError):
            return BlobNotFoundError("no such blob", path=name)
        if isinstance(error, AlreadyExistsError | PreconditionError):
            return ConflictError("the blob is not as expected", path=name)
        match = _STATUS.search(text)
        status = int(match[1]) if match else 0
        if not is_metadata and (isinstance(error, PermissionDeniedError) or status == 403):
            hint = "Check the credentials, or contact the workspace admin for access to this bucket."
            return PermissionError_(f"{host} forbids this", path=name, hint=hint)
        is_unknown = isinstance(error, UnauthenticatedError) or status == 401
        if is_unknown or any(word in text for word in _NO_CREDENTIALS):
            fact = f"{_PROVIDERS[self._scheme]} credentials not found or not accepted by {host}"
            return AuthenticationError(fact, path=name, hint=_CREDENTIAL_HINTS[self._scheme])
        return _by_status(status, text, name, host)

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def _by_status(status: int, text: str, name: str, host: str) -> StoreError | TruncatedError:
    """The error for a failure without a class of its own in the library."""
    if status in (409, 412):
        return ConflictError("the blob is not as expected", path=name)
    if status == 416:
        return TruncatedError("a range is past the end of the blob", path=name)
    if 0 < status < 500 and status not in TEMPORARY:
        return StoreError(f"{host} answered {status}", path=name)
    if odd := next((meaning for word, meaning in _ODD_RESPONSES if word in text), ""):
        hint = "Check that the endpoint is an object store."
        return StoreError(f"invalid response of {host}: {odd}", path=name, hint=hint)
    cause = connection_cause(text)
    failed = f"the connection to {host} failed" + (f": {cause}" if cause else "")
    error = UnavailableError(f"{host} answered {status}" if status else failed, path=name)
    error.retry_after_s = _RETRY_AFTER_S if status in (429, 503) else None
    return error


def _split_tag(tag: str) -> tuple[str, str | None]:
    """The server's own tag, and the generation of the object if there is one."""
    own, mark, generation = tag.partition(_GENERATION)
    return own, generation if mark else None
