"""The one interface of every store: named blobs, read by range, written whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeGuard, runtime_checkable

from warpdata.bytekit.io.ranges import Range
from warpdata.errors import BlobChangedError, TruncatedError

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from warpdata.stores.digest import FileDigest

Chunks = Callable[[], "Iterator[Buffer]"]
"""Bytes one piece after the other, from the beginning at each call."""

MAX_KEY_BYTES = 1000
_KEY = re.compile(r"(?:(?!\.{1,2}(?:/|\Z))[^\x00-\x1f\x7f/\\]+(?:/(?!\Z)|\Z))+")


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What a store says about one blob without reading it."""

    key: str
    size: int
    etag: str | None
    modified_s: float


@dataclass(frozen=True, slots=True)
class Blob:
    """The whole of one small blob."""

    data: memoryview
    info: BlobInfo


@runtime_checkable
class BlobStore(Protocol):
    """Named immutable blobs and a few small pointers that move by compare-and-swap."""

    @property
    def address(self) -> str:
        """Where this store is, without credentials: safe to print."""

    @property
    def is_local(self) -> bool:
        """Whether reading needs no network."""

    def head(self, key: str) -> BlobInfo:
        """Size and tag of a blob, or BlobNotFoundError."""

    def get(self, key: str, *, max_bytes: int, unless_etag: str | None = None) -> Blob | None:
        """A whole blob of at most `max_bytes`; None when its tag is still `unless_etag`."""

    def get_ranges(
        self, key: str, ranges: Sequence[Range], *, same_as: BlobInfo | None = None
    ) -> list[memoryview]:
        """Exactly the bytes of each range, in the order asked, or TruncatedError.

        BlobChangedError where the blob is no longer the one that `same_as` tells of.
        """

    def put_if_absent(self, key: str, data: Buffer) -> BlobInfo:
        """Store a small blob under a name nobody has, or ConflictError."""

    def put_file(self, key: str, path: Path, digest: FileDigest) -> None:
        """Store a file under a name that says its hash; a file that changed meanwhile is refused."""

    def put_stream(self, key: str, chunks: Chunks, size: int) -> None:
        """Store `size` bytes chunk by chunk under a name that says their hash, in place of what is there.

        What `chunks()` yields may be asked for again; an error it raises leaves everything as it was.
        """

    def compare_and_swap(self, key: str, data: Buffer, etag: str | None) -> BlobInfo:
        """Replace the blob whose tag is `etag` (None: it must be absent), or ConflictError."""

    def list(self, prefix: str) -> Iterator[BlobInfo]:
        """Every blob whose name begins with `prefix`, in the order of names."""

    def folders(self, prefix: str) -> Sequence[str]:
        """The names directly below `prefix` (empty, or ended by a slash) that have blobs below them, in order.

        Costs what there is directly below it, however many blobs lie deeper. One whose blobs are gone may be shown.
        """

    def delete(self, key: str) -> None:
        """Remove a blob; nothing happens when it is absent."""

    def delete_all(self, keys: Sequence[str]) -> None:
        """Remove many blobs; those that are absent are none."""

    def close(self) -> None:
        """Give back connections."""


def check_key(key: str) -> str:
    """The key itself if it is a safe relative name, else ValueError."""
    if not _KEY.fullmatch(key) or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"not a safe blob name: {key!r}")
    return key


def check_lengths(views: Sequence[memoryview], ranges: Sequence[Range], name: str) -> list[memoryview]:
    """The views if each is as long as its range; a short answer is an error, never short data."""
    for view, (start, end) in zip(views, ranges, strict=True):
        if view.nbytes != end - start:
            raise TruncatedError(f"bytes [{start}, {end}) came back as {view.nbytes} bytes", path=name)
    return list(views)


def is_strong(etag: str | None) -> TypeGuard[str]:
    """Whether equal tags mean equal bytes; a weak tag only says that they mean the same."""
    return etag is not None and not etag.startswith("W/")


def check_same(found: BlobInfo, same_as: BlobInfo | None, name: str) -> None:
    """Raise unless what was found is what was opened, by size and by tag; by time where a store has no tags."""
    if same_as is None:
        return
    if same_as.etag is None or found.etag is None:
        is_same = same_as.modified_s == found.modified_s
    else:
        is_same = same_as.etag == found.etag
    if not is_same or same_as.size != found.size:
        raise BlobChangedError("the blob was replaced since it was opened", path=name)


def blob_name(address: str, key: str) -> str:
    """How a blob is called in messages."""
    return f"{address.rstrip('/')}/{key}"
