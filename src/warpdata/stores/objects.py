"""S3, Google Cloud Storage and Azure as stores. The adapter of obstore."""

from __future__ import annotations

import contextlib
import functools
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
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
from obstore.store import AzureStore, GCSStore, S3Store

from warpdata.bytekit.io.ranges import Range
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.forks import OwnProcess
from warpdata.bytekit.process.locks import Places
from warpdata.bytekit.process.threads import MOST_AT_ONCE, map_in_threads
from warpdata.errors import (
    AuthenticationError,
    BlobChangedError,
    BlobNotFoundError,
    BucketNotFoundError,
    ConflictError,
    LimitExceededError,
    PermissionError_,
    StoreError,
    TruncatedError,
    UnavailableError,
)
from warpdata.stores import causes
from warpdata.stores.awskeys import KeySource
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
from warpdata.stores.digest import FileDigest, checked_chunks
from warpdata.stores.http import HttpStore
from warpdata.stores.signed import S3Keys, s3_host, s3_url, signer
from warpdata.stores.webclient import PASSING, Proxies

if TYPE_CHECKING:
    from typing_extensions import Buffer

_PART_BYTES = 8 << 20
_PARTS_TOGETHER = 4
_PATIENCE = 10
"""How many times as long as one step of it a whole request may take."""

_TOGETHER = 8
"""The library makes at most ten requests of one call at the same time: more go in calls of their own."""

_connections = Places(4 * MOST_AT_ONCE)
"""Ranges under way at the same time, of all stores: each has a connection, and many readers ask for many ranges."""

_FAILURES = (BaseError, FileNotFoundError)
"""Everything the library raises for a request; a missing object is the builtin error."""

_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CREDENTIAL_HINTS = {
    "s3": "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
}
_GENERATION = "#generation="
_PROVIDERS = {"s3": "AWS", "gs": "Google Cloud", "az": "Azure"}
_HOSTS = {"gs": "https://storage.googleapis.com", "az": "Azure"}
_NOWHERE = "redirect without LOCATION"
_BLIND_WAIT_S = 1.0
"""How long to wait when a store asks for patience and the library does not tell for how long."""

_PATIENCE_S = 60.0
"""How long a store that asked for patience is then read in a way that shows its Retry-After."""

_MACHINES = ("://169.254.", "://metadata.google")
"""Where machines of a cloud get their keys: what is refused there was not refused by the store."""

_MISSING = (*_MACHINES, "InstanceCredentials", "credential")


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A bucket and a prefix in it, and how to reach it; the secrets are never shown."""

    scheme: str
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    find_secrets: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    """Where the secrets are when none are given; asked only when needed."""
    keys: KeySource | None = field(default=None, repr=False)
    """A source of keys that expire."""

    @property
    def text(self) -> str:
        """The address without secrets."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


class ObjectStore:
    """Blobs of a bucket below a prefix."""

    is_local = False
    _runtime: ClassVar[OwnProcess | None] = None
    """The process whose threads serve all object stores; they do not survive a fork."""

    def __init__(
        self,
        address: ObjectAddress,
        *,
        is_conditional: bool = True,
        timeout_s: float = 20.0,
        proxies: Proxies | None = None,
    ) -> None:
        self.address = address.text
        self.is_conditional = is_conditional
        self._scheme = address.scheme
        self._where = address
        self._timeout_s = timeout_s
        self._proxies = proxies
        self._plain_until_s = 0.0
        self._patient: Any = None
        self._has_bucket = address.scheme != "s3"
        if ObjectStore._runtime is None:
            ObjectStore._runtime = OwnProcess()
        self._opened: Any = None if self._is_forked else _open(address, timeout_s)

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""
        if plain := self._plain_now():
            return plain.head(key)
        try:
            return self._info(obstore.head(self._store, check_key(key)))
        except _FAILURES as error:
            failure = self._mapped(error, key)
        if isinstance(failure, BlobNotFoundError) and not self._has_bucket:
            # An answer to HEAD has no body that could say that it is the bucket which is missing.
            with contextlib.suppress(BlobNotFoundError, LimitExceededError):
                self.get(key, max_bytes=0)
            self._has_bucket = True
        raise failure

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""
        if plain := self._plain_now():
            return plain.get(key, max_bytes=max_bytes, unless_etag=unless_etag)
        options: Any = None if unless_etag is None else {"if_none_match": _split_tag(unless_etag)[0]}
        begun = 0
        try:
            answer = obstore.get(self._store, check_key(key), options=options)
            info = self._info(answer.meta)
            if info.size > max_bytes:
                raise LimitExceededError(
                    f"{info.size} bytes where {max_bytes} are allowed", path=self._name(key)
                )
            begun = info.size
            data = memoryview(answer.bytes())
        except NotModifiedError as error:
            if unless_etag is None:
                raise self._mapped(error, key) from None
            return None
        except _FAILURES as error:
            found = self._mapped(error, key)
            if isinstance(found, UnavailableError):
                found.bytes_received = begun  # at most: the library does not say how much came
            raise found from None
        if data.nbytes != info.size:
            raise TruncatedError(f"{data.nbytes} bytes came back of {info.size}", path=self._name(key))
        return Blob(data, info)

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, all at the same time."""
        if plain := self._plain_now():
            return plain.get_ranges(key, ranges, same_as=same_as)
        wanted = [(start, end) for start, end in ranges if end > start]
        if same_as is not None:
            views = iter(map_in_threads(lambda one: self._get_of(key, one, same_as), wanted))
        else:
            views = iter(self._get_groups(key, wanted))
        every = [next(views) if end > start else memoryview(b"") for start, end in ranges]
        return check_lengths(every, ranges, self._name(key))

    def _get_of(self, key: str, wanted: Range, same_as: BlobInfo) -> memoryview:
        """One range of exactly this object: the library knows no condition for several."""
        options: Any = {"range": wanted}
        if is_strong(same_as.etag):
            options["if_match"] = _split_tag(same_as.etag)[0]
        try:
            with _connections.taken(1):
                answer = obstore.get(self._store, check_key(key), options=options)
                check_same(self._info(answer.meta), same_as, self._name(key))
                return memoryview(answer.bytes()).cast("B")
        except PreconditionError:
            raise BlobChangedError("it was replaced since it was opened", path=self._name(key)) from None
        except _FAILURES as error:
            raise self._mapped(error, key) from None

    def _get_groups(self, key: str, wanted: Sequence[Range]) -> list[memoryview]:
        groups = [wanted[i : i + _TOGETHER] for i in range(0, len(wanted), _TOGETHER)]
        found = map_in_threads(lambda group: self._get_group(key, group), groups)
        return [view for group in found for view in group]

    def _get_group(self, key: str, ranges: Sequence[Range]) -> list[memoryview]:
        starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
        try:
            with _connections.taken(len(ranges)):
                found = obstore.get_ranges(self._store, check_key(key), starts=starts, ends=ends, coalesce=0)
        except _FAILURES as error:
            raise self._mapped(error, key) from None
        except BaseException as error:
            # A start past the end makes the library panic, which is not an Exception.
            if type(error).__name__ != "PanicException":
                raise
            raise TruncatedError("a range lies past the end of the blob", path=self._name(key)) from None
        return [memoryview(piece).cast("B") for piece in found]

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under a name nobody has, or ConflictError."""
        return self._put_under(key, data, None)

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Upload a file in parts; if a byte of it changed, the upload is abandoned and nothing appears."""
        self.put_stream(key, lambda: checked_chunks(path, digest), digest.size)

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Upload bytes, many of them in parts; an error of `chunks` abandons the upload and nothing appears."""
        parts = _exactly(size, (bytes(chunk) for chunk in chunks()), self._name(key))
        self._ask_first(key)
        # An upload in parts is three requests, one after the other, however little there is.
        body = b"".join(parts) if size <= _PART_BYTES else parts
        options: Any = {"chunk_size": _PART_BYTES, "max_concurrency": _PARTS_TOGETHER}
        if isinstance(body, bytes):
            options = {"use_multipart": False}
        try:
            obstore.put(self._uploads, check_key(key), body, **options)
        except _FAILURES as error:
            raise self._mapped(error, key) from None

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""
        return self._put_under(key, data, etag)

    def _put_under(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Put under a condition; where the server knows none, look first and then put without one."""
        if not self.is_conditional:
            if self._tag_now(key) != etag:
                raise ConflictError("the blob is not as expected", path=self._name(key))
            return self._put(key, data, "overwrite")
        if etag is None:
            return self._put(key, data, "create")
        tag, generation = _split_tag(etag)
        return self._put(
            key, data, {"e_tag": tag} if generation is None else {"e_tag": tag, "version": generation}
        )

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""
        folder, _, begin = prefix.rpartition("/")
        # The library lists whole folders: where the name of a file begins as told, from about there.
        offset = prefix[:-1] if len(begin) > 1 else None
        found: list[BlobInfo] = []
        try:
            for page in obstore.list(self._store, folder or None, offset=offset, chunk_size=1000):
                found += (self._info(meta) for meta in page)
                if begin and found and _is_past(prefix, found):
                    break
        except _FAILURES as error:
            raise self._mapped(error, prefix) from None
        return iter(sorted((i for i in found if i.key.startswith(prefix)), key=lambda info: info.key))

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` that have blobs below them, in order."""
        try:
            found = obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
        except _FAILURES as error:
            raise self._mapped(error, prefix) from None
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found)

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""
        try:
            obstore.delete(self._store, check_key(key))
        except (NotFoundError, FileNotFoundError):
            return
        except _FAILURES as error:
            raise self._mapped(error, key) from None

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs, a thousand in one request where the server has that."""
        try:
            obstore.delete(self._store, [check_key(key) for key in keys])
        except (NotFoundError, FileNotFoundError):  # some servers stop there
            map_in_threads(self.delete, keys)
        except _FAILURES as error:
            raise self._mapped(error, keys[0]) from None

    def close(self) -> None:
        """The library closes its connections with the store itself."""
        if plain := self.__dict__.get("_plain"):
            plain.close()

    @property
    def _is_forked(self) -> bool:
        """Whether this process was forked from one that used the library: its threads stayed behind."""
        return not ObjectStore._runtime

    @property
    def _store(self) -> Any:
        """The library's store, unless this process was forked from one that used it."""
        if self._is_forked:
            hint = (
                "Start workers with DataLoader(..., multiprocessing_context='spawn'), or read s3 with keys"
                " from the environment or a profile, which works after a fork too."
            )
            raise StoreError("this object store cannot be used after a fork", path=self.address, hint=hint)
        return self._opened

    @property
    def _uploads(self) -> Any:
        """The same store for large parts: while one of them leaves over a slow link, no answer comes."""
        if self._patient is None and self._store is not None:
            self._patient = _open(self._where, self._timeout_s, is_patient=True)
        return self._patient

    def _plain_now(self) -> HttpStore | None:
        """The plain way to read where the library cannot be used, or should not be for now."""
        if not self._is_forked and time.monotonic() >= self._plain_until_s:
            return None
        return self._plain

    @cached_property
    def _plain(self) -> HttpStore | None:
        where = self._where
        lasting = S3Keys.found_in(where.secrets or where.find_secrets()) if self._scheme == "s3" else None
        keys = (lambda: S3Keys.found_in(source()) or S3Keys("", "")) if (source := where.keys) else lasting
        if keys is None:
            return None
        url = s3_url(where.bucket, where.prefix, where.endpoint, where.region)
        sign = signer(keys, urllib.parse.urlsplit(url).netloc, where.region)
        explain = functools.partial(causes.refusal, place=self._place)
        return HttpStore(
            url,
            timeout_s=self._timeout_s,
            address=self.address,
            sign=sign,
            explain=explain,
            proxies=self._proxies,
        )

    @property
    def _place(self) -> causes.BucketPlace:
        region = self._where.region or "us-east-1"
        return causes.BucketPlace(s3_host(self._where.endpoint, region), region)

    def _ask_first(self, key: str) -> None:
        """Where the store has just asked for patience: whether it still does, and for how long."""
        if not self._is_forked and (plain := self._plain_now()):
            with contextlib.suppress(
                BlobNotFoundError, PermissionError_, AuthenticationError, BucketNotFoundError
            ):
                plain.head(key)

    def _put(self, key: str, data: Buffer, mode: Any) -> BlobInfo:
        body = bytes(data)
        self._ask_first(key)
        try:
            done = obstore.put(self._store, check_key(key), body, mode=mode, use_multipart=False)
        except _FAILURES as error:
            raise self._mapped(error, key) from None
        return BlobInfo(key, len(body), self._tag(done), 0.0)

    def _tag_now(self, key: str) -> str | None:
        try:
            return self.head(key).etag
        except BlobNotFoundError:
            return None

    def _info(self, meta: Any) -> BlobInfo:
        return BlobInfo(meta["path"], meta["size"], self._tag(meta), meta["last_modified"].timestamp())

    def _tag(self, meta: Any) -> str | None:
        """The tag of a blob; Google's conditional writes need the generation as well."""
        tag, generation = meta.get("e_tag"), meta.get("version")
        return f"{tag}{_GENERATION}{generation}" if self._scheme == "gs" and generation else tag

    def _mapped(self, error: Exception, key: str) -> StoreError | TruncatedError:
        name = self._name(key)
        if self._where.keys is not None and self._where.keys.failure is not None:
            return self._where.keys.failure
        is_asked_elsewhere = any(word in str(error) for word in _MACHINES)
        if self._scheme == "s3" and not is_asked_elsewhere and (known := self._refusal(str(error), key)):
            return known
        if isinstance(error, NotFoundError | FileNotFoundError):
            return BlobNotFoundError("no such blob", path=name)
        if isinstance(error, AlreadyExistsError | PreconditionError):
            return ConflictError("the blob is not as expected", path=name)
        status = _status(str(error))  # a list that is refused has no class
        if not is_asked_elsewhere and (isinstance(error, PermissionDeniedError) or status == 403):
            hint = "Check the credentials, or contact the workspace admin for access to this bucket."
            return PermissionError_(f"{self._reached} forbids this", path=name, hint=hint)
        is_unknown = isinstance(error, UnauthenticatedError) or status == 401
        if is_unknown or any(word in str(error) for word in _MISSING):
            hint = _CREDENTIAL_HINTS[self._scheme]
            fact = f"{_PROVIDERS[self._scheme]} credentials not found or not accepted by {self._reached}"
            return AuthenticationError(fact, path=name, hint=hint)
        found = _by_status(str(error), name, self._reached)
        if isinstance(found, UnavailableError) and found.retry_after_s is not None:
            self._plain_until_s = time.monotonic() + _PATIENCE_S
        return found

    @property
    def _reached(self) -> str:
        """Who is asked, in words for an error."""
        return self._place.endpoint if self._scheme == "s3" else self._where.endpoint or _HOSTS[self._scheme]

    def _refusal(self, text: str, key: str) -> StoreError | None:
        """What the server says of a refusal; answers to HEAD and redirects say nothing, so it is asked again."""
        known = causes.refusal(text, self._place, self._name(key))
        if known is not None or not _is_mute(text):
            return known
        return self._asked_again(key.strip("/") or "x") or (
            causes.no_location(self._place, self._name(key)) if _NOWHERE in text else None
        )

    def _asked_again(self, key: str) -> StoreError | None:
        try:
            if self._plain is not None:
                self._plain.get_ranges(key, [(0, 1)])
            else:
                obstore.get_range(self._store, check_key(key), start=0, end=1)
        except _FAILURES as error:
            return causes.refusal(str(error), self._place, self._name(key))
        except (BlobNotFoundError, UnavailableError, TruncatedError):
            return None
        except StoreError as error:
            return error
        return None

    def _name(self, key: str) -> str:
        return blob_name(self.address, key)


def _is_mute(text: str) -> bool:
    """Whether a refusal came without the words that say why."""
    return _NOWHERE in text or (_status(text) in (400, 403) and "<Code>" not in text)


def _status(text: str) -> int:
    """The status a server answered with, as the library tells it; 0 where it tells none."""
    found = _STATUS.search(text)
    return int(found[1]) if found else 0


def _by_status(text: str, name: str, host: str) -> StoreError | TruncatedError:
    """The error for a failure the library gives no class to; its text is not shown, it may hold secrets."""
    status = _status(text)
    if status in (409, 412):
        return ConflictError("the blob is not as expected", path=name)
    if status == 416:
        return TruncatedError("a range lies past the end of the blob", path=name)
    if 0 < status < 500 and status not in PASSING:
        return StoreError(f"{host} answered {status}", path=name)
    if odd := causes.odd_answer(text, host, name):
        return odd
    cause = causes.connection_cause(text)
    failed = f"the connection to {host} failed" + (f": {cause}" if cause else "")
    error = UnavailableError(f"{host} answered {status}" if status else failed, path=name)
    error.retry_after_s = _BLIND_WAIT_S if status in (429, 503) else None
    return error


def _is_past(prefix: str, found: Sequence[BlobInfo]) -> bool:
    """Whether names that come in order have left those that begin with `prefix` behind; some stores have no order."""
    last = found[-1].key
    return last > prefix and not last.startswith(prefix) and all(a.key <= b.key for a, b in pairwise(found))


def _exactly(size: int, parts: Iterator[bytes], name: str) -> Iterator[bytes]:
    """The parts, which must be `size` bytes together: anything else ends the upload with an error."""
    found = 0
    for part in parts:
        found += len(part)
        if found > size:
            break
        yield part
    if found != size:
        raise TruncatedError(f"{found} bytes came of {size}", path=name)


def _split_tag(tag: str) -> tuple[str, str | None]:
    """A tag as the library wants it: the server's own, and the generation where there is one."""
    own, mark, generation = tag.partition(_GENERATION)
    return own, generation if mark else None


def _limits(timeout_s: float, *, is_patient: bool) -> dict[str, Any]:
    """How long to connect, to wait for the next bytes, and for a whole request: slow links take their time."""
    whole = timedelta(seconds=timeout_s * _PATIENCE)
    step = {} if is_patient else {"read_timeout": timedelta(seconds=timeout_s)}
    connect = timedelta(seconds=min(10.0, timeout_s))
    return {"timeout": whole, "connect_timeout": connect, "pool_max_idle_per_host": str(MOST_AT_ONCE), **step}


def _open(address: ObjectAddress, timeout_s: float, *, is_patient: bool = False) -> Any:
    options: dict[str, Any] = {
        "client_options": _limits(timeout_s, is_patient=is_patient),
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
        "prefix": address.prefix or None,
    }
    if address.endpoint and address.endpoint.startswith("http://"):
        options["client_options"]["allow_http"] = True
    secrets: dict[str, Any] = dict(address.secrets)
    try:
        if address.scheme == "s3":
            return _open_s3(address, options)
        if address.scheme == "gs":
            place: dict[str, Any] = {"base_url": address.endpoint} if address.endpoint else {}
            return GCSStore(address.bucket, **options, **place, **secrets)
        place = {"endpoint": address.endpoint} if address.endpoint else {}
        return AzureStore(address.bucket, **options, **place, **secrets)
    except _FAILURES as error:
        fact = f"cannot open the store ({type(error).__name__}): a setting is wrong or missing"
        raise StoreError(fact, path=address.text, hint=_CREDENTIAL_HINTS[address.scheme]) from None


def _open_s3(address: ObjectAddress, options: dict[str, Any]) -> Any:
    options["region"] = address.region or "us-east-1"
    if address.endpoint is not None:  # an empty one: the variable is there, and the library would take it
        endpoint = s3_host(address.endpoint, address.region)
        options |= {"endpoint": endpoint, "virtual_hosted_style_request": False}
    if address.keys is not None:
        options["credential_provider"] = address.keys
    elif keys := S3Keys.found_in(address.secrets):
        # Given one by one, the library would put a token of the environment beside them, which is of other keys.
        options["credential_provider"] = functools.partial(_lasting, keys)
    return S3Store(address.bucket, **options)


def _lasting(keys: S3Keys) -> dict[str, Any]:
    """Keys as the library wants them of a provider."""
    return {
        "access_key_id": keys.access_key_id,
        "secret_access_key": keys.secret_access_key,
        "token": keys.session_token or None,
        "expires_at": None,
    }
