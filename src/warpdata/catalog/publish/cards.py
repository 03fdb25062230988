"""A card and Croissant metadata of a version, for people and search engines."""

from __future__ import annotations

import json
from typing import Any

from warpdata.formats.manifest.model import LongList, Manifest

_CROISSANT_TYPES = {
    "bool": "sc:Boolean",
    "string": "sc:Text",
    "large_string": "sc:Text",
    "double": "sc:Float",
    "float": "sc:Float",
    "halffloat": "sc:Float",
}


def make_cards(manifest: Manifest) -> dict[str, bytes]:
    """The card and the metadata of a version, by the suffix of their names beside the manifest."""
    metadata = json.dumps(_croissant(manifest), indent=1)
    return {".card.md": _card(manifest).encode() + b"\n", ".croissant.json": metadata.encode() + b"\n"}


def _card(manifest: Manifest) -> str:
    """A page about the version in Markdown."""
    notes = manifest.metadata
    lines = [f"# {manifest.dataset_id}", "", str(notes.get("description", "")), ""]
    lines += [f"- version: `{manifest.version_hash}`", f"- rows: {manifest.total_rows}"]
    lines += [f"- bytes: {manifest.total_bytes}", f"- license: {notes.get('license', 'not stated')}", ""]
    for table, part in manifest.tables.items():
        lines += [f"## Table {table}: {part.row_count} rows", "", "| column | type |", "|---|---|"]
        lines += [f"| {field['name']} | {field['type']} |" for field in part.fields]
        lines.append("")
    for artifact, raw in manifest.artifacts.items():
        lines += [f"## Artifact {artifact}", "", f"{len(raw.shards)} shards of {raw.kind}", ""]
    lines += ["## Use", "", "```python", "import warpdata as wd", ""]
    lines += [f'ds = wd.dataset("{manifest.dataset_id}@{manifest.version_hash[:12]}")', "```"]
    return "\n".join(lines)


def _croissant(manifest: Manifest) -> dict[str, Any]:
    """MLCommons Croissant metadata of the version; the files of long lists are left out."""
    notes = manifest.metadata
    shards = {n: () if isinstance(t.shards, LongList) else t.shards for n, t in manifest.tables.items()}
    return {
        "@context": {
            "@vocab": "https://schema.org/",
            "sc": "https://schema.org/",
            "cr": "http://mlcommons.org/croissant/",
            "conformsTo": "http://purl.org/dc/terms/conformsTo",
        },
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.dataset_id,
        "version": manifest.version_hash,
        "description": notes.get("description", ""),
        "license": notes.get("license", ""),
        "datePublished": manifest.created_at,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": blob.hash,
                "contentUrl": blob.uri or blob.key,
                "contentSize": f"{blob.byte_size} B",
                "sha256": blob.hash,
                "encodingFormat": "application/x-parquet",
            }
            for blobs in shards.values()
            for blob in blobs
        ],
        "cr:recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": name,
                "cr:field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"{name}/{field['name']}",
                        "dataType": _croissant_type(str(field["type"])),
                        "source": [
                            {"fileObject": {"@id": shard.hash}, "extract": {"column": field["name"]}}
                            for shard in shards[name][:1]
                        ],
                    }
                    for field in part.fields
                ],
            }
            for name, part in manifest.tables.items()
        ],
    }


def _croissant_type(kind: str) -> str:
    return _CROISSANT_TYPES.get(kind, "sc:Integer" if "int" in kind else "sc:Text")
