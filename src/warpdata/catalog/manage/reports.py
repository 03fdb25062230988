"""Reports about versions: differences, contents, damage, and a generated loader."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from warpdata.catalog.access import access_options
from warpdata.errors import DatasetError
from warpdata.formats.manifest.model import Manifest, PartedShards, VersionPart, differing
from warpdata.settings import Settings
from warpdata.stores.address import plain_address

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset


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

    @property
    def is_empty(self) -> bool:
        """Whether the versions are equal."""
        return self.before == self.after

    def as_dict(self) -> dict[str, Any]:
        """The diff as plain values."""
        return asdict(self)


def diff_manifests(before: Manifest, after: Manifest) -> DatasetDiff:
    """Compare two versions without reading any data."""
    shared, added, removed = _byte_changes(before, after)
    old, new = (
        {f"{b.table}.{b.column} -> {b.artifact} ({b.ref_type})" for b in manifest.bindings}
        for manifest in (before, after)
    )
    return DatasetDiff(
        before=before.version_hash,
        after=after.version_hash,
        tables=_part_changes(before.tables, after.tables),
        artifacts=_part_changes(before.artifacts, after.artifacts),
        bindings_added=tuple(sorted(new - old)),
        bindings_removed=tuple(sorted(old - new)),
        bytes_shared=shared,
        bytes_added=added,
        bytes_removed=removed,
        rows_before=before.total_rows,
        rows_after=after.total_rows,
    )


def _byte_changes(before: Manifest, after: Manifest) -> tuple[int, int, int]:
    """Bytes of both versions, bytes of the new one only, bytes of the old one only.

    Each blob counts once; of long lists only the parts that differ are read.
    """
    sides: list[dict[tuple[str, str], VersionPart]] = [
        {("table", n): p for n, p in m.tables.items()} | {("artifact", n): p for n, p in m.artifacts.items()}
        for m in (before, after)
    ]
    long = {key for side in sides for key, part in side.items() if isinstance(part.shards, PartedShards)}
    old, new = (
        {blob.hash: blob.byte_size for key, part in side.items() if key not in long for blob in part.blobs()}
        for side in sides
    )
    shared = sum(old[sha256] for sha256 in old.keys() & new.keys())
    added, removed = sum(new.values()) - shared, sum(old.values()) - shared
    for key in long:
        was, now = (side.get(key) for side in sides)
        gone, came = differing(was.shards if was else (), now.shards if now else ())
        lost = sum(shard.byte_size for shard in gone)
        added, removed = added + sum(shard.byte_size for shard in came), removed + lost
        shared += was.byte_size - lost if was else 0
    return shared, added, removed


def _part_changes(before: Any, after: Any) -> tuple[PartChange, ...]:
    changes = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        gone, came = differing(old.shards if old else (), new.shards if new else ())
        lost, won = ({s.hash: s.name or s.hash[:12] for s in shards} for shards in (gone, came))
        fields = (getattr(part, "fields", ()) if old and new else () for part in (old, new))
        was, now = ({str(f["name"]): str(f.get("type")) for f in one} for one in fields)
        change = PartChange(
            name=name,
            change="added" if old is None else "removed" if new is None else "changed",
            rows_before=old and old.item_count,
            rows_after=new and new.item_count,
            shards_added=tuple(label for sha256, label in won.items() if sha256 not in lost),
            shards_removed=tuple(label for sha256, label in lost.items() if sha256 not in won),
            columns_added=tuple(sorted(now.keys() - was.keys())),
            columns_removed=tuple(sorted(was.keys() - now.keys())),
            columns_changed=tuple(sorted(c for c in was.keys() & now.keys() if was[c] != now[c])),
        )
        changes.append(change)
    return tuple(changes)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Tables, artifacts and bindings for `warp info` and `warp inspect`."""
    manifest, signature = dataset.manifest, dataset.signature
    return {
        "dataset_id": manifest.dataset_id,
        "version": manifest.version_hash,
        "catalog": dataset.catalog.address,
        "created_at": manifest.created_at,
        "total_rows": manifest.total_rows,
        "total_bytes": manifest.total_bytes,
        "tables": {
            name: {"rows": part.row_count, **_sizes(part), "columns": [dict(field) for field in part.fields]}
            for name, part in manifest.tables.items()
        },
        "artifacts": {
            name: {"kind": part.kind, "members": part.member_count, **_sizes(part)}
            for name, part in manifest.artifacts.items()
        },
        "bindings": [asdict(binding) for binding in manifest.bindings],
        "metadata": dict(manifest.metadata),
        "is_remembered": dataset.is_remembered,
        "signature": None if signature is None else asdict(signature),
    }


def _sizes(part: VersionPart) -> dict[str, int]:
    return {"bytes": part.byte_size, "shards": len(part.shards)}


def inspect_dataset(dataset: Dataset) -> tuple[dict[str, Any], list[str]]:
    """Tables, artifacts and bindings, as values and as lines of text."""
    report = describe(dataset)
    lines = [
        f"{report['dataset_id']}@{report['version']}",
        f"{report['total_rows']} rows, {report['total_bytes']} bytes",
    ]
    for name, part in report["tables"].items():
        lines.append(f"table {name}: {part['rows']} rows in {part['shards']} shards ({part['bytes']} bytes)")
        lines += [f"    {column['name']}: {column['type']}" for column in part["columns"]]
    for name, part in report["artifacts"].items():
        shards = f"{part['shards']} {part['kind']} ({part['bytes']} bytes)"
        lines.append(f"artifact {name}: {part['members']} members in {shards}")
    for binding in report["bindings"]:
        target = f"{binding['artifact']} ({binding['ref_type']}, by {binding['addressing']})"
        lines.append(f"binding {binding['table']}.{binding['column']} -> {target}")
    edits = report["metadata"].get("edits")
    for name, log in edits.items() if isinstance(edits, dict) else ():
        lines += [
            f"edit of {name}: {json.dumps(e, ensure_ascii=False)}" for e in log if isinstance(log, list)
        ]
    return report, lines


_DECODERS = {
    "image": "ref.as_numpy()",
    "audio": "ref.as_array()",
    "video": "ref.frame(0.0)",
    "episode": "ref.local_path()",
    "file": "ref.read_bytes()",
}

_LOADER = '''"""Loader of {dataset_id}, made by `warp init`. Run it for a smoke test; import it to train."""

import warpdata as wd

VERSION = "{version}"
CATALOG = {catalog!r}  # None: the one of WARP_CATALOG


def get_dataset(**options):
    """The version this loader was made for; `wd.dataset("{dataset_id}")` is the latest."""
    return wd.dataset(f"{dataset_id}@{{VERSION}}", **{{"catalog": CATALOG, **options}})


def decode(batch):
    """A batch with its references read and decoded."""
{decoders}
    return batch


def train_stream(batch_size=1000, shard="auto"):
    """Decoded batches, split over the ranks of a training run."""
    table = get_dataset().table("{table}")
    for batch in table.batch_dicts(batch_size, shard=shard):
        yield decode(batch)


if __name__ == "__main__":
    for i, batch in enumerate(train_stream(batch_size=10)):
        rows = len(next(iter(batch.values())))
        print(f"Batch {{i}}: {{rows}} rows of {{', '.join(batch)}}")
        if i >= 2:
            break
    print("Smoke test passed!")
'''


def loader_code(dataset: Dataset, table: str | None = None) -> str:
    """The source of a loader that runs as it is, with decoders for the bound columns."""
    if not dataset.tables:
        hint = "Read its artifacts: ds.artifact(name)."
        raise DatasetError(f"{dataset.id} has no table to stream", hint=hint)
    name = table or ("main" if "main" in dataset.tables else dataset.tables[0])
    dataset.table(name)
    lines = [
        f"    batch[{b.column!r}] = [None if ref is None else {_DECODERS[b.ref_type]} for ref in batch[{b.column!r}]]"
        for b in dataset.manifest.bindings
        if b.table == name
    ]
    given = dataset.access.options.catalogs
    is_default = given == access_options(Settings.from_env()).catalogs
    return _LOADER.format(
        dataset_id=dataset.id,
        version=dataset.version,
        table=name,
        catalog=None if is_default else ",".join(map(plain_address, given)),
        decoders="\n".join(lines) or "    # no bound columns",
    )
