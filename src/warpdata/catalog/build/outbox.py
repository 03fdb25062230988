"""Files of a builder's own on their way to a catalog elsewhere: beyond a bound they go there while the rest is made.

So the disk of this machine need not hold what is published. As with episodes that workers store, nothing is visible
before a version names it, and what no version ever names is removed by `warp gc-remote`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from warpdata.catalog.access import Access, AccessOptions, writable_catalog
from warpdata.catalog.publish.transfer import Upload, send, upload_file
from warpdata.catalog.read.rowgroups import ShardFile
from warpdata.formats.manifest.model import BlobRef
from warpdata.stores.address import is_remote
from warpdata.stores.blobs import AnyBlobReader
from warpdata.stores.blobstore import DigestedFile, FileDigest

STAGED_BYTES = 1 << 30
"""What may wait on this disk for a catalog elsewhere; into one on this disk files move without a copy."""

_COLUMN_ROWS = 65_536


class Outbox:
    """Finished files that are staged; close it when done."""

    def __init__(self, options: AccessOptions) -> None:
        self._options = options
        self._waits = is_remote(options.catalogs[0])
        self._access: Access | None = None
        self._waiting: dict[Path, FileDigest] = {}
        self._gone: set[Path] = set()
        self.sent: list[Upload] = []
        """What was sent before it was published, and was not there."""

    def put(self, path: Path, digest: FileDigest) -> None:
        """A finished file; it may be gone from this disk from here on."""
        if not self._waits:
            return
        self._gone.discard(path)
        self._waiting[path] = digest
        if sum(each.size for each in self._waiting.values()) > STAGED_BYTES:
            self._send()

    def is_gone(self, path: Path) -> bool:
        """Whether a file is in the catalog and no longer here."""
        return path in self._gone

    def read(self, path: Path, digest: FileDigest, start: int, end: int) -> bytes:
        """A range of a file, here or there."""
        if self.is_gone(path):
            return bytes(self._reader(digest).read(start, end))
        with DigestedFile(path, digest) as reader:
            return bytes(reader.read(start, end))

    def batches(self, digest: FileDigest, tail: bytes, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The rows of a parquet file that was sent already, as Arrow batches."""
        file = ShardFile(self._reader(digest), tail)
        for group in range(len(file.group_rows)):
            yield from file.stream(group, columns, _COLUMN_ROWS)

    def close(self) -> None:
        """Close the catalog."""
        if self._access is not None:
            self._access.close()
            self._access = None

    def _opened(self) -> Access:
        if self._access is None:
            self._access = Access(self._options)
        return self._access

    def _reader(self, digest: FileDigest) -> AnyBlobReader:
        access = self._opened()
        blob = BlobRef(digest.sha256, digest.size)
        return access.reader(writable_catalog(access), blob, "a file that was sent", digest.page_sums)

    def _send(self) -> None:
        store = writable_catalog(self._opened()).store
        assert store is not None
        uploads = [upload_file(path, digest, is_staged=True) for path, digest in self._waiting.items()]
        self.sent += send(store, uploads).uploads
        for path in self._waiting:
            path.unlink()
        self._gone.update(self._waiting)
        self._waiting.clear()
