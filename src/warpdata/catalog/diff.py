"""What changed between two versions of a dataset, from their manifests alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from warpdata.formats.manifest.model import ArtifactPart, Manifest, TablePart


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
    old, new = before.blobs(), after.blobs()
    shared = sum(old[h].byte_size for h in old.keys() & new.keys())
    bindings_before = {_binding(b) for b in before.bindings}
    bindings_after = {_binding(b) for b in after.bindings}
    return DatasetDiff(
        before=before.version_hash,
        after=after.version_hash,
        tables=tuple(_tables(before, after)),
        artifacts=tuple(_artifacts(before, after)),
        bindings_added=tuple(sorted(bindings_after - bindings_before)),
        bindings_removed=tuple(sorted(bindings_before - bindings_after)),
        bytes_shared=shared,
        bytes_added=sum(b.byte_size for b in new.values()) - shared,
        bytes_removed=sum(b.byte_size for b in old.values()) - shared,
        rows_before=before.total_rows,
        rows_after=after.total_rows,
    )


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
    if part is None:
        return None
    return part.index.member_count if part.index else len(part.shards)


def _shard_changes(
    old: TablePart | ArtifactPart | None, new: TablePart | ArtifactPart | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    before = {s.hash: s.name or s.hash[:12] for s in old.shards} if old else {}
    after = {s.hash: s.name or s.hash[:12] for s in new.shards} if new else {}
    added = tuple(label for h, label in after.items() if h not in before)
    return added, tuple(label for h, label in before.items() if h not in after)


def _binding(binding: Any) -> str:
    return f"{binding.table}.{binding.column} -> {binding.artifact} ({binding.ref_type})"
