"""What changed between two versions of a dataset, from their manifests alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from warpdata.formats.manifest.model import ArtifactPart, LongList, Manifest, TablePart
from warpdata.formats.manifest.parts import differing


@dataclass(frozen=True, slots=True)
class PartChange:
    """How one table or artifact changed."""

    name: str
    change: str
    """added, removed or changed."""
    rows_before: int | None = None
    rows_after: int | None = None
    shards_added: tuple[str, ...] = ()
    shards_removed: tuple[str, ...] = ()
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    columns_changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """What changed from one version to another."""

    before: str
    after: str
    tables: tuple[PartChange, ...] = ()
    artifacts: tuple[PartChange, ...] = ()
    bindings_added: tuple[str, ...] = ()
    bindings_removed: tuple[str, ...] = ()
    bytes_shared: int = 0
    bytes_added: int = 0
    bytes_removed: int = 0
    rows_before: int = 0
    rows_after: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether the versions hold the same."""
        return self.before == self.after

    def as_dict(self) -> dict[str, Any]:
        """The diff as plain values."""
        return asdict(self)


def diff_manifests(before: Manifest, after: Manifest) -> DatasetDiff:
    """Compare two versions without reading any data."""
    sizes = _sizes(before, after)
    bindings_before = {_binding(b) for b in before.bindings}
    bindings_after = {_binding(b) for b in after.bindings}
    return DatasetDiff(
        before=before.version_hash,
        after=after.version_hash,
        tables=tuple(_tables(before, after)),
        artifacts=tuple(_artifacts(before, after)),
        bindings_added=tuple(sorted(bindings_after - bindings_before)),
        bindings_removed=tuple(sorted(bindings_before - bindings_after)),
        bytes_shared=sizes[0],
        bytes_added=sizes[1],
        bytes_removed=sizes[2],
        rows_before=before.total_rows,
        rows_after=after.total_rows,
    )


def _sizes(before: Manifest, after: Manifest) -> tuple[int, int, int]:
    """Bytes both have, bytes only the new one has, bytes only the old one has.

    Each blob counts once; those of long lists by their places, because only the parts that differ are read.
    """
    parts = [_parts(before), _parts(after)]
    long = {key for each in parts for key, part in each.items() if isinstance(part.shards, LongList)}
    old, new = (
        {blob.hash: blob.byte_size for key, part in each.items() if key not in long for blob in part.blobs()}
        for each in parts
    )
    shared = sum(old[sha256] for sha256 in old.keys() & new.keys())
    added, removed = sum(new.values()) - shared, sum(old.values()) - shared
    for key in long:
        was, now = (each.get(key) for each in parts)
        gone, came = differing(was.shards if was else (), now.shards if now else ())
        lost = sum(shard.byte_size for shard in gone)
        added, removed = added + sum(shard.byte_size for shard in came), removed + lost
        shared += was.byte_size - lost if was else 0
    return shared, added, removed


def _parts(manifest: Manifest) -> dict[tuple[str, str], TablePart | ArtifactPart]:
    """Tables and artifacts by kind and name."""
    tables = {("table", name): part for name, part in manifest.tables.items()}
    return {**tables, **{("artifact", name): part for name, part in manifest.artifacts.items()}}


def _tables(before: Manifest, after: Manifest) -> list[PartChange]:
    changes = []
    for name in sorted(before.tables.keys() | after.tables.keys()):
        old, new = before.tables.get(name), after.tables.get(name)
        if old != new:
            changes.append(_table_change(name, old, new))
    return [change for change in changes if change is not None]


def _table_change(name: str, old: TablePart | None, new: TablePart | None) -> PartChange:
    kind = "added" if old is None else "removed" if new is None else "changed"
    columns = [
        {str(f["name"]): str(f.get("type")) for f in part.fields} if part else {} for part in (old, new)
    ]
    both = columns[0].keys() & columns[1].keys()
    added, removed = _shard_changes(old, new)
    return PartChange(
        name, kind,
        rows_before=old.row_count if old else None, rows_after=new.row_count if new else None,
        shards_added=added, shards_removed=removed,
        columns_added=tuple(sorted(columns[1].keys() - columns[0].keys())) if old and new else (),
        columns_removed=tuple(sorted(columns[0].keys() - columns[1].keys())) if old and new else (),
        columns_changed=tuple(sorted(c for c in both if columns[0][c] != columns[1][c])),
    )  # fmt: skip


def _artifacts(before: Manifest, after: Manifest) -> list[PartChange]:
    changes = []
    for name in sorted(before.artifacts.keys() | after.artifacts.keys()):
        old, new = before.artifacts.get(name), after.artifacts.get(name)
        if old == new:
            continue
        kind = "added" if old is None else "removed" if new is None else "changed"
        added, removed = _shard_changes(old, new)
        changes.append(
            PartChange(name, kind, _members(old), _members(new), shards_added=added, shards_removed=removed)
        )
    return changes


def _members(part: ArtifactPart | None) -> int | None:
    return None if part is None else part.member_count


def _shard_changes(
    old: TablePart | ArtifactPart | None, new: TablePart | ArtifactPart | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    gone, came = differing(old.shards if old else (), new.shards if new else ())
    before = {s.hash: s.name or s.hash[:12] for s in gone}
    after = {s.hash: s.name or s.hash[:12] for s in came}
    added = tuple(label for h, label in after.items() if h not in before)
    return added, tuple(label for h, label in before.items() if h not in after)


def _binding(binding: Any) -> str:
    return f"{binding.table}.{binding.column} -> {binding.artifact} ({binding.ref_type})"
