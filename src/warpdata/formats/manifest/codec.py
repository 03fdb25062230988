"""Manifests, pointers and guides as bytes: parse untrusted ones, pack the model."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.checksum import crc32c, sha256_hex
from warpdata.bytekit.io.ranges import RangeReader, retry_damaged
from warpdata.bytekit.jsontext import dump_json, parse_json_object
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    ManifestCorruptedError,
)
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.layout import MAX_INDEXES, MAX_MANIFEST_BYTES, MAX_POINTER_BYTES, MAX_TABLES
from warpdata.formats.manifest.model import (
    ADDRESSINGS,
    DATASET_ID,
    HASH,
    KIND,
    PART_NAME,
    REF_TYPES,
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    PartedShards,
    PartSource,
    S,
    TablePart,
    TableShard,
    blob_json,
    canonical_json,
    count_of,
    dict_of,
    list_of,
    of_type,
    read_blob,
    read_part,
    text_of,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

_REMEMBER_BYTES = 256 << 10


def version_hash(raw: dict[str, Any]) -> str:
    """The hash of a manifest's content: 64 hex digits that do not depend on place, time or notes."""
    hashed = {key: value for key, value in raw.items() if key not in ("version_hash", "metadata")}
    for group in ("tables", "artifacts"):
        if isinstance(hashed.get(group), dict):
            hashed[group] = {name: _without_uris(part) for name, part in hashed[group].items()}
    if isinstance(hashed.get("stats"), dict):
        hashed["stats"] = {key: value for key, value in hashed["stats"].items() if key != "created_at"}
    return sha256_hex(canonical_json(hashed))


def _without_uris(part: Any) -> Any:
    """A table or artifact whose blobs have no address; only blobs lose the key."""

    def bare(blob: Any) -> Any:
        return {k: v for k, v in blob.items() if k != "uri"} if isinstance(blob, dict) else blob

    if not isinstance(part, dict):
        return part
    out = {key: bare(value) if key in ("index", "guide") else value for key, value in part.items()}
    if isinstance(out.get("shards"), list):
        out["shards"] = [bare(shard) for shard in out["shards"]]
    return out


def parse_manifest(
    data: Buffer, *, expected_hash: str | None = None, parts: PartSource | None = None
) -> Manifest:
    """The manifest in `data`; anything but an intact manifest with this hash is ManifestCorruptedError.

    `parts` fetches the parts of long lists of shards when they are read.
    """
    raw = bytes(data)
    manifest = _parse_cached(raw) if len(raw) <= _REMEMBER_BYTES else _parse(raw)
    if expected_hash is not None and manifest.version_hash != expected_hash:
        fact = f"manifest hash mismatch: expected {expected_hash}, got {manifest.version_hash}"
        raise ManifestCorruptedError(fact)
    if parts is None:
        return manifest

    def within_reach(part: Any) -> Any:
        if not isinstance(held := part.shards, PartedShards):
            return part
        return replace(part, shards=PartedShards(held.root, held.kind, parts))

    return replace(
        manifest,
        tables={name: within_reach(part) for name, part in manifest.tables.items()},
        artifacts={name: within_reach(part) for name, part in manifest.artifacts.items()},
    )


def _parse(data: bytes) -> Manifest:
    try:
        raw = parse_json_object(data, max_bytes=MAX_MANIFEST_BYTES)
    except FormatError as error:
        raise ManifestCorruptedError(f"the manifest is not JSON: {error}") from None
    stated = text_of(raw, "version_hash", HASH)
    if (actual := version_hash(raw)) != stated:
        hint = "Try `warp cache gc`; if that does not help, the catalog holds a damaged manifest."
        raise ManifestCorruptedError(f"manifest hash mismatch: expected {stated}, got {actual}", hint=hint)
    stats = dict_of(raw, "stats", optional=True)
    artifacts = dict_of(raw, "artifacts", optional=True, limit=MAX_TABLES)
    manifest = Manifest(
        dataset_id=text_of(raw, "dataset_id", DATASET_ID),
        tables={name: _table(name, part) for name, part in dict_of(raw, "tables", limit=MAX_TABLES).items()},
        artifacts={name: _artifact(name, part) for name, part in artifacts.items()},
        bindings=tuple(_binding(b) for b in list_of(raw, "bindings", optional=True)),
        created_at=stats.get("created_at") if isinstance(stats.get("created_at"), str) else None,
        metadata=dict_of(raw, "metadata", optional=True),
        version_hash=stated,
    )
    for name in [*manifest.tables, *manifest.artifacts]:
        if not PART_NAME.fullmatch(name):
            raise ManifestCorruptedError(f"invalid name of a table or artifact: {name!r}")
    for binding in manifest.bindings:
        table = manifest.tables.get(binding.table)
        columns = {field.get("name") for field in table.fields} if table else set()
        if binding.column not in columns or binding.artifact not in manifest.artifacts:
            target = f"{binding.table}.{binding.column} -> {binding.artifact}"
            raise ManifestCorruptedError(f"a binding points at nothing: {target}")
    for key, total in (("total_rows", manifest.total_rows), ("total_bytes", manifest.total_bytes)):
        if key in stats and stats[key] != total:
            raise ManifestCorruptedError(f"{key} mismatch: expected {total} by the shards, got {stats[key]}")
    return manifest


_parse_cached = functools.lru_cache(maxsize=64)(_parse)
"""The same bytes are the same manifest and need to be checked once."""


def _table(name: str, raw: Any) -> TablePart:
    raw = of_type(raw, dict, f"table {name!r}")
    if raw.get("format") != "parquet":
        raise ManifestCorruptedError(f"table {name!r} has the unknown format {raw.get('format')!r}")
    schema = dict_of(raw, "schema")
    fields = tuple(of_type(field, dict, "a field of a schema") for field in list_of(schema, "fields"))
    guide = read_blob(raw["guide"], BlobRef) if "guide" in raw else None
    ipc = of_type(schema.get("ipc"), str, "the Arrow schema")
    return TablePart(_shards(raw, TableShard), fields, ipc, guide)


def _shards(raw: dict[str, Any], kind: type[S]) -> Sequence[S]:
    if "parts" in raw:
        return PartedShards(read_part(raw["parts"]), kind)
    return tuple(read_blob(shard, kind) for shard in list_of(raw, "shards"))


def _artifact(name: str, raw: Any) -> ArtifactPart:
    raw = of_type(raw, dict, f"artifact {name!r}")
    if "index" in raw and "indexes" in raw:
        raise ManifestCorruptedError("an artifact has one member index and several")
    indexes = [raw["index"]] if "index" in raw else list_of(raw, "indexes", optional=True, limit=MAX_INDEXES)
    refs = tuple(read_blob(index, MemberIndexRef) for index in indexes)
    part = ArtifactPart(text_of(raw, "kind", KIND), _shards(raw, BlobRef), refs)
    if part.is_tar and not part.indexes:
        raise ManifestCorruptedError(f"artifact {name!r} has no member index")
    if not part.is_tar and not isinstance(
        part.shards, PartedShards
    ):  # whose parts are checked when they are read
        names = [shard.name for shard in part.shards]
        if None in names or len(set(names)) != len(names):
            raise ManifestCorruptedError(f"the shards of artifact {name!r} have no unique names")
    return part


def _binding(raw: Any) -> Binding:
    raw = {"addressing": "member", **of_type(raw, dict, "a binding")}
    names = Binding.__dataclass_fields__
    binding = Binding(*[of_type(raw.get(name), str, f"{name} of a binding") for name in names])
    if binding.ref_type not in REF_TYPES or binding.addressing not in ADDRESSINGS:
        kinds = f"{binding.ref_type!r} or addressing {binding.addressing!r}"
        raise ManifestCorruptedError(f"a binding of unknown type {kinds}")
    return binding


def to_json(manifest: Manifest) -> dict[str, Any]:
    """The JSON object of a manifest, its version hash included."""
    raw: dict[str, Any] = {
        "dataset_id": manifest.dataset_id,
        "tables": {name: _part_json(part) for name, part in manifest.tables.items()},
        "artifacts": {name: _part_json(part) for name, part in manifest.artifacts.items()},
        "bindings": [asdict(binding) for binding in manifest.bindings],
        "stats": {"total_rows": manifest.total_rows, "total_bytes": manifest.total_bytes},
        "metadata": dict(manifest.metadata),
    }
    if manifest.created_at is not None:
        raw["stats"]["created_at"] = manifest.created_at
    raw["version_hash"] = version_hash(raw)
    return raw


def pack_manifest(manifest: Manifest) -> bytes:
    """The file of a manifest: readable JSON with sorted keys."""
    return json.dumps(to_json(manifest), indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _part_json(part: TablePart | ArtifactPart) -> dict[str, Any]:
    shards = part.shards
    raw: dict[str, Any] = (
        {"parts": blob_json(shards.root)}
        if isinstance(shards, PartedShards)
        else {"shards": [_placed_json(shard) for shard in shards]}
    )
    if isinstance(part, TablePart):
        schema = {"fields": [dict(field) for field in part.fields], "ipc": part.schema_ipc}
        raw |= {"format": part.format, "schema": schema}
        return raw if part.guide is None else {**raw, "guide": _placed_json(part.guide)}
    raw["kind"] = part.kind
    if len(part.indexes) == 1:
        raw["index"] = _placed_json(part.indexes[0])
    elif part.indexes:
        raw["indexes"] = [blob_json(index) for index in part.indexes]
    return raw


def _placed_json(blob: BlobRef) -> dict[str, Any]:
    return {"uri": blob.uri or blob.key, **blob_json(blob)}


@dataclass(frozen=True, slots=True)
class Pointer:
    """The version a name points at; `sequence` grows with every move."""

    version: str
    sequence: int
    previous: str | None = None


def pack_pointer(pointer: Pointer) -> bytes:
    """The JSON of a pointer."""
    return dump_json(asdict(pointer)) + b"\n"


def unpack_pointer(data: memoryview | bytes, path: str) -> Pointer:
    """A pointer from untrusted bytes."""
    try:
        raw = parse_json_object(data, max_bytes=MAX_POINTER_BYTES)
        previous = None if raw.get("previous") is None else text_of(raw, "previous", HASH)
        return Pointer(text_of(raw, "version", HASH), count_of(raw, "sequence"), previous)
    except (FormatError, ManifestCorruptedError) as error:
        hint = (
            "Delete this file, then publish again or set the tag again; versions still open by their hashes."
        )
        raise ManifestCorruptedError(f"the pointer is damaged: {error}", path=path, hint=hint) from None


def directory_end(shard_count: int) -> int:
    """Where the sections of a guide of so many shards begin."""
    return layout.GUIDE_HEADER.size + shard_count * layout.GUIDE_ENTRY.size


@dataclass(frozen=True, slots=True)
class ShardGuide:
    """What is known of one shard before any of it is read."""

    page_sums: NDArray[np.uint32]
    tail: bytes


def pack_guide(shards: Sequence[ShardGuide]) -> bytes:
    """The bytes of a guide."""
    sections, entries = [], []
    position = directory_end(len(shards))
    for shard in shards:
        sums = shard.page_sums.astype("<u4").tobytes()
        places = (position, len(shard.page_sums), position + len(sums), len(shard.tail))
        entries.append(layout.GuideEntry(*places, crc32c(sums), crc32c(shard.tail)))
        sections += [sums, shard.tail]
        position += len(sums) + len(shard.tail)
    directory = b"".join(layout.GUIDE_ENTRY.pack(*entry) for entry in entries)
    header = layout.GuideHeader(
        layout.GUIDE_MAGIC, layout.GUIDE_PAGE_BYTES, crc32c(directory), len(shards), position
    )
    return layout.GUIDE_HEADER.pack(*header) + directory + b"".join(sections)


class Guide:
    """A guide being read: small ones at once, large ones shard by shard."""

    def __init__(self, reader: RangeReader, shard_count: int) -> None:
        self._reader = reader
        end = reader.size if reader.size <= layout.GUIDE_AT_ONCE_BYTES else directory_end(shard_count)

        def read() -> list[layout.GuideEntry]:
            self._head = reader.read(0, min(end, reader.size))
            return _directory(self._head, reader, shard_count)

        self._entries = retry_damaged(reader, read)

    def shard(self, number: int) -> ShardGuide:
        """What is known of shard `number`."""
        entry = self._entries[number]

        def read() -> ShardGuide:
            sums, tail = self._sections(entry)
            if crc32c(sums) != entry.sums_crc32c or crc32c(tail) != entry.tail_crc32c:
                self._head = memoryview(b"")  # sections are read one by one from now on
                raise ChecksumError(f"the guide to shard {number} is damaged", path=self._reader.name)
            return ShardGuide(np.frombuffer(sums, "<u4"), bytes(tail))

        return retry_damaged(self._reader, read, [(entry.sums_offset, entry.tail_offset + entry.tail_bytes)])

    def _sections(self, entry: layout.GuideEntry) -> tuple[memoryview, memoryview]:
        sums_end = entry.sums_offset + 4 * entry.page_count
        tail_end = entry.tail_offset + entry.tail_bytes
        if tail_end <= self._head.nbytes:
            return self._head[entry.sums_offset : sums_end], self._head[entry.tail_offset : tail_end]
        both = self._reader.read(entry.sums_offset, tail_end)
        return both[: sums_end - entry.sums_offset], both[entry.tail_offset - entry.sums_offset :]


def _directory(head: memoryview, reader: RangeReader, shard_count: int) -> list[layout.GuideEntry]:
    end = directory_end(shard_count)
    if head.nbytes < end:
        raise CorruptLayoutError("the guide is too short for its shards", path=reader.name)
    header = layout.GuideHeader(*layout.GUIDE_HEADER.unpack(head[: layout.GUIDE_HEADER.size]))
    if header.magic != layout.GUIDE_MAGIC:
        raise BadMagicError("not a guide", path=reader.name)
    good = (layout.GUIDE_PAGE_BYTES, shard_count, reader.size)
    if (header.page_bytes, header.shard_count, header.file_bytes) != good:
        raise CorruptLayoutError("the guide does not fit its table", path=reader.name)
    directory = bytes(head[layout.GUIDE_HEADER.size : end])
    if crc32c(directory) != header.directory_crc32c:
        raise ChecksumError("the directory of the guide is damaged", path=reader.name)
    entries = [layout.GuideEntry(*fields) for fields in layout.GUIDE_ENTRY.iter_unpack(directory)]
    position = end  # sections follow each other without holes and overlaps, and end where the guide ends
    for entry in entries:
        if entry.tail_bytes > layout.MAX_TAIL_BYTES:
            raise LimitExceededError("a tail in the guide is too large", path=reader.name)
        if entry.sums_offset != position or entry.tail_offset != position + 4 * entry.page_count:
            raise CorruptLayoutError("the sections of the guide are out of place", path=reader.name)
        position = entry.tail_offset + entry.tail_bytes
    if position != reader.size:
        raise CorruptLayoutError("the guide does not end where its sections do", path=reader.name)
    return entries
