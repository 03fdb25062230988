"""Write the golden files of the manifest format: a manifest, a guide, and what must be read from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.catalog.access import parse_name
from warpdata.catalog.publish.signing import public_text, seeded_key, signature_file
from warpdata.formats.manifest.codec import ShardGuide, pack_guide, pack_manifest, to_json
from warpdata.formats.manifest.model import (
    ArtifactPart,
    Binding,
    BlobRef,
    Manifest,
    MemberIndexRef,
    TablePart,
    TableShard,
    packed_shards,
)


def example() -> Manifest:
    """A manifest with one of everything."""
    table = TablePart(
        (TableShard("a" * 64, 1000, row_count=10), TableShard("b" * 64, 900, row_count=7)),
        (
            {"name": "id", "type": "int64", "nullable": True},
            {"name": "bild", "type": "string", "nullable": True},
        ),
        "aXBj",
        BlobRef("c" * 64, 300),
    )
    tar = ArtifactPart(
        "tar_shards",
        (BlobRef("d" * 64, 4096),),
        (MemberIndexRef("e" * 64, 8192, bucket_count=1, member_count=3),),
    )
    episodes = ArtifactPart("wshard_episodes", (BlobRef("f" * 64, 77, name="ep/0001.wshard"),))
    return Manifest(
        "ws/größe".replace("ö", "o").replace("ß", "ss"),
        {"main": table},
        {"raw": tar, "episodes": episodes},
        (Binding("main", "bild", "raw", "image"),),
        created_at="2026-01-02T03:04:05+00:00",
        metadata={"description": "Größe ✓", "ratio": 0.5},
    )


def long_example() -> tuple[Manifest, dict[str, bytes]]:
    """A manifest whose lists are long, in order and in none, and the parts they lie in."""
    episodes = packed_shards(tuple(_shard(f"ep/{number:04d}.wshard", number) for number in range(600)))
    files = packed_shards(tuple(_shard(f"{number * 7919 % 300:03d}", number) for number in range(300)))
    rows = packed_shards(
        tuple(
            TableShard(sha256_hex(f"rows {n}".encode()), 100 + n, row_count=n, guide=BlobRef("c" * 64, 300))
            for n in range(300)
        ),
    )
    fields = ({"name": "id", "type": "int64", "nullable": True},)
    manifest = Manifest(
        "ws/long",
        {"main": TablePart(rows.shards, fields, "aXBj")},
        {
            "episodes": ArtifactPart("wshard_episodes", episodes.shards),
            "files": ArtifactPart("files", files.shards),
        },
        created_at="2026-01-02T03:04:05+00:00",
    )
    return manifest, {**episodes.blobs, **files.blobs, **rows.blobs}


def indexed_example() -> Manifest:
    """A manifest of tar files that were added to: several member indexes."""
    shards = tuple(BlobRef(sha256_hex(f"tar {n}".encode()), 4096 + n) for n in range(3))
    indexes = tuple(
        MemberIndexRef(sha256_hex(f"index {n}".encode()), 8192, bucket_count=1, member_count=3 - n)
        for n in range(2)
    )
    raw = ArtifactPart("tar_shards", shards, indexes)
    return Manifest("ws/indexed", {}, {"raw": raw}, created_at="2026-01-02T03:04:05+00:00")


def _shard(name: str, size: int) -> BlobRef:
    return BlobRef(sha256_hex(name.encode()), size, name=name)


SEED = bytes(range(32))
"""The private half of the key that signs the golden manifest: no secret."""


def guide_shards() -> list[ShardGuide]:
    """Two shards of a guide."""
    return [
        ShardGuide(np.array([1, 2, 0xFFFFFFFF], np.uint32), b"tail one"),
        ShardGuide(np.array([], np.uint32), b""),
    ]


def _names_hash(part: ArtifactPart) -> str:
    return sha256_hex("\n".join(str(shard.name) for shard in part.shards).encode())


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = example()
    packed = pack_manifest(manifest)
    version = to_json(manifest)["version_hash"]
    (folder / "manifest.json").write_bytes(packed)
    name, key = parse_name(manifest.dataset_id), seeded_key(SEED)
    (folder / "notes.sig.json").write_bytes(signature_file(name, version, packed, key))
    (folder / "guide.bin").write_bytes(pack_guide(guide_shards()))
    long, parts = long_example()
    (folder / "long.json").write_bytes(pack_manifest(long))
    texts = {sha256: data.decode() for sha256, data in sorted(parts.items())}
    (folder / "long.parts.json").write_text(json.dumps(texts, indent=1) + "\n")
    indexed = indexed_example()
    (folder / "indexed.json").write_bytes(pack_manifest(indexed))
    expected = {
        "version_hash": version,
        "public_key": public_text(key),
        "total_rows": manifest.total_rows,
        "total_bytes": manifest.total_bytes,
        "blobs": sorted(manifest.blobs()),
        "long": {
            "version_hash": to_json(long)["version_hash"],
            "total_rows": long.total_rows,
            "total_bytes": long.total_bytes,
            "names": {name: _names_hash(part) for name, part in long.artifacts.items()},
        },
        "indexed": {
            "version_hash": to_json(indexed)["version_hash"],
            "blobs": sorted(indexed.blobs()),
            "members": indexed.artifacts["raw"].member_count,
        },
        "guide": [{"sums": s.page_sums.tolist(), "tail": s.tail.decode()} for s in guide_shards()],
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/manifest"))
