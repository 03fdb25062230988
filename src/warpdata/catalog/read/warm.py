"""Bring whole blobs into the cache, and check whole blobs against their hashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warpdata.errors import FormatError, ManifestCorruptedError, StoreError
from warpdata.formats.manifest.model import ArtifactPart, BlobRef, TablePart, parts_of
from warpdata.stores.blobs import AnyBlobReader
from warpdata.stores.pagecache import PageCache

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What warming did."""

    shards: int
    bytes_fetched: int
    bytes_present: int
    shards_skipped: int


def warm_blobs(
    dataset: Dataset, chosen: list[tuple[str, int]], max_bytes: int | None, progress: Progress | None
) -> WarmReport:
    """Fetch the chosen shards (and the small blobs they need) until `max_bytes` would be exceeded."""
    readers = [_reader(dataset, part, number) for part, number in chosen]
    small = [each for part in dict.fromkeys(part for part, _ in chosen) for each in _small(dataset, part)]
    everything = small + readers
    total = sum(reader.size for reader in everything)
    done = fetched = present = skipped = 0
    brought: list[AnyBlobReader] = []
    for reader in everything:
        missing = reader.missing_bytes()
        if max_bytes is not None and fetched + missing > max_bytes:
            skipped += 1
            continue
        reader.load_whole()
        brought.append(reader)
        fetched += missing
        present += reader.size - missing
        done += reader.size
        if progress is not None:
            progress(done, total)
    if dataset.access.cache is not None:
        _check_kept(brought, dataset.access.cache)
    return WarmReport(len(everything) - skipped, fetched, present, skipped)


def _check_kept(readers: list[AnyBlobReader], cache: PageCache) -> None:
    """Raise where not all of it is here now: a disk was full, or one shard made room for the next."""
    gone = [reader for reader in readers if reader.missing_bytes()]
    if gone:
        fact = f"{len(gone)} of {len(readers)} blobs did not stay in the cache, the first is {gone[0].name}"
        hint = "Make room on its disk, raise WARP_CACHE_SIZE_GB, or warm fewer shards."
        raise StoreError(fact, path=cache.folder, hint=hint)


def verify_blobs(dataset: Dataset, progress: Progress | None = None) -> tuple[int, list[str]]:
    """How many blobs there are, and the names of those whose bytes are missing or do not have their hash."""
    blobs, damaged = _labelled(dataset)
    total = sum(blob.byte_size for _, blob in blobs)
    done = 0
    for label, blob in blobs:
        try:
            dataset.access.reader(dataset.catalog, blob, label).verify()
        except (FormatError, StoreError) as error:
            damaged.append(str(error))
        done += blob.byte_size
        if progress is not None:
            progress(done, total)
    if not damaged:
        damaged = _mismatched_shards(dataset)
    return len({blob.hash for _, blob in blobs}), damaged


def _mismatched_shards(dataset: Dataset) -> list[str]:
    """What is wrong with shards whose footer has other rows or another schema than the manifest."""
    damaged: list[str] = []
    for name, part in dataset.manifest.tables.items():
        files = dataset.table(name).files
        for number in range(len(part.shards)):
            try:
                _ = files.file(number).metadata
            except (FormatError, StoreError, ManifestCorruptedError) as error:
                damaged.append(str(error))
    return damaged


def _labelled(dataset: Dataset) -> tuple[list[tuple[str, BlobRef]], list[str]]:
    """Every blob and what it is; and what is wrong with lists of which some part cannot be read."""
    found: list[tuple[str, BlobRef]] = []
    damaged: list[str] = []
    manifest = dataset.manifest
    parts: list[tuple[str, TablePart | ArtifactPart]] = [
        *((f"table {name!r}", table) for name, table in manifest.tables.items()),
        *((f"artifact {name!r}", artifact) for name, artifact in manifest.artifacts.items()),
    ]
    for label, part in parts:
        try:
            found += (
                _table_blobs(label, part) if isinstance(part, TablePart) else _artifact_blobs(label, part)
            )
        except (FormatError, StoreError, ManifestCorruptedError) as error:
            damaged.append(f"{label}: {error}")
    return found, damaged


def _table_blobs(label: str, part: TablePart) -> list[tuple[str, BlobRef]]:
    found: list[tuple[str, BlobRef]] = [(f"{label} shard {i}", shard) for i, shard in enumerate(part.shards)]
    found += [(f"guide of {label} shard {i}", s.guide) for i, s in enumerate(part.shards) if s.guide]
    found += [(f"guide of {label}", part.guide)] if part.guide else []
    return found + [(f"a part of the manifest of {label}", ref) for ref in parts_of(part.shards)]


def _artifact_blobs(label: str, part: ArtifactPart) -> list[tuple[str, BlobRef]]:
    found: list[tuple[str, BlobRef]] = [
        (f"{label} shard {s.name or i}", s) for i, s in enumerate(part.shards)
    ]
    found += [(f"member index of {label}", index) for index in part.indexes]
    return found + [(f"a part of the manifest of {label}", ref) for ref in parts_of(part.shards)]


def _reader(dataset: Dataset, part: str, number: int) -> AnyBlobReader:
    kind, _, name = part.partition(":")
    if kind == "artifact":
        return dataset.artifact(name).shard_reader(number)
    shard = dataset.table(name).part.shards[number]
    return dataset.access.reader(dataset.catalog, shard, f"table {name!r} shard {number}")


def _small(dataset: Dataset, part: str) -> list[AnyBlobReader]:
    """Guides of a table, the member index of an artifact, parts of their lists: the shards need them offline."""
    kind, _, name = part.partition(":")
    manifest = dataset.manifest
    held = manifest.tables[name] if kind == "table" else manifest.artifacts[name]
    shards = {shard.hash for shard in held.shards}
    label = f"guide of table {name!r}" if kind == "table" else f"member index of artifact {name!r}"
    return [
        dataset.access.reader(dataset.catalog, blob, label)
        for blob in held.blobs()
        if blob.hash not in shards
    ]
