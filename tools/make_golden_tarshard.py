"""Write the golden files of the tar shard format: shards, their index, and what must be read from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from warpdata.formats.tarshard.member_index import pack_index
from warpdata.formats.tarshard.writer import PackOptions, pack_shards

FILES = {
    "a/one.txt": b"first",
    "a/two.bin": bytes(range(256)) * 5,
    "empty": b"",
    "größe/äöü ✓.txt": b"Umlaute",
    "long/" + "x" * 150 + ".txt": b"a long name",
}


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    expected: dict[str, object] = {"files": {name: data.hex() for name, data in FILES.items()}}
    for label, options in (
        ("plain", PackOptions(shard_bytes=3000)),
        ("zstd", PackOptions(compression="zstd")),
    ):
        sub = folder / label
        sub.mkdir(exist_ok=True)
        files = [(name, lambda data=data: data) for name, data in sorted(FILES.items())]
        packed = list(pack_shards(files, sub, options))
        members = [member for _, some in packed for member in some]
        index, buckets = pack_index(members)
        (sub / "index.bin").write_bytes(index)
        expected[label] = {
            "bucket_count": buckets,
            "shards": [path.name for path, _ in packed],
            "members": {
                m.name: [m.shard, m.offset, m.length, m.crc32c, m.frame_bytes, m.inner_offset]
                for m in members
            },
        }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tarshard"))
