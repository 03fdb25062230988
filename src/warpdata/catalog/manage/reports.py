"""What `warp inspect` and `warp verify` say about a dataset."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from warpdata.catalog.dataset import Dataset, describe
from warpdata.catalog.read.warm import verify_blobs

if TYPE_CHECKING:
    from warpdata.stores.reliable import Spent


def inspect_dataset(dataset: Dataset) -> tuple[dict[str, Any], list[str]]:
    """Tables, artifacts and bindings, as values and as lines of text."""
    found = describe(dataset)
    lines = [
        f"{found['dataset_id']}@{found['version']}",
        f"{found['total_rows']} rows, {found['total_bytes']} bytes",
    ]
    for name, part in found["tables"].items():
        lines.append(f"table {name}: {part['rows']} rows in {part['shards']} shards ({part['bytes']} bytes)")
        lines += [f"    {column['name']}: {column['type']}" for column in part["columns"]]
    for name, part in found["artifacts"].items():
        shards = f"{part['shards']} {part['kind']} ({part['bytes']} bytes)"
        lines.append(f"artifact {name}: {part['members']} members in {shards}")
    for binding in found["bindings"]:
        target = f"{binding['artifact']} ({binding['ref_type']}, by {binding['addressing']})"
        lines.append(f"binding {binding['table']}.{binding['column']} -> {target}")
    for name, log in _edits(found["metadata"]).items():
        lines += [f"edit of {name}: {json.dumps(edit, ensure_ascii=False)}" for edit in log]
    return found, lines


def _edits(metadata: dict[str, Any]) -> dict[str, list[Any]]:
    """The edits through which the episodes of each artifact are seen."""
    edits = metadata.get("edits")
    return {k: v for k, v in edits.items() if isinstance(v, list)} if isinstance(edits, dict) else {}


def verify_dataset(
    dataset: Dataset, progress: Callable[[int, int], None] | None = None
) -> tuple[dict[str, Any], bool]:
    """Every blob read and compared with its hash: the report, and whether all are intact."""
    blobs, damaged = verify_blobs(dataset, progress)
    spent: Spent = dataset.spent
    report = {
        "dataset_id": dataset.id,
        "version": dataset.version,
        "blobs": blobs,
        "damaged": damaged,
        "bytes_read": spent.bytes_read,
    }
    return report, not damaged
