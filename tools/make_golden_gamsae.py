"""Make the golden files of activation shards: `python tools/make_golden_gamsae.py [folder]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from warpdata.bytekit.checksum import sha256_hex
from warpdata.corpora.source import MmapShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.formats.gamsae.shard import encode_shard_bytes

HERE = Path(__file__).resolve().parent.parent


def matrix(n_rows: int, width: int) -> np.ndarray:
    """Values with no pattern that any machine computes alike: halves of small integers, and the odd ones."""
    cells = np.arange(n_rows * width, dtype=np.int64)
    values = ((cells * 7919) % 1009 - 504).astype(np.float64) / 8
    values[::37] = 1e-40
    return values.reshape(n_rows, width)


def make(folder: Path) -> None:
    """Write every golden file and the JSON that says what must be read from it."""
    folder.mkdir(parents=True, exist_ok=True)
    for dtype in ("f32", "f16", "bf16"):
        (folder / f"rows_{dtype}.shard").write_bytes(encode_shard_bytes(matrix(5, 7), dtype=dtype))
    corpus = folder / "corpus"
    with CorpusWriter(
        corpus,
        6,
        dtype="bf16",
        shard_bytes=360,
        columns={"token_id": "i64", "position": "i32"},
        provenance={"model": "tiny", "layer": 3},
    ) as writer:
        for start in range(0, 60, 10):
            ids = np.arange(start, start + 10)
            writer.append(matrix(60, 6)[start : start + 10], token_id=ids * 3, position=ids % 4)
    (folder / "expected.json").write_text(json.dumps(expected(folder), indent=1) + "\n")


def expected(folder: Path) -> dict[str, object]:
    """What the files hold: the hash of the bytes, and the rows as numbers."""
    found: dict[str, object] = {}
    for path in sorted(folder.glob("*.shard")):
        with MmapShardSource.open([path]) as source:
            rows = np.concatenate([batch.rows for batch in source])
        found[path.name] = {"sha256": sha256_hex(path.read_bytes()), "rows": rows.tolist()}
    with MmapShardSource.open_dir(folder / "corpus") as source:
        rows = np.concatenate([batch.rows for batch in source])
        shards = [Path(shard.name).name for shard in source.shards.shards]
    found["corpus"] = {"shards": shards, "rows": rows.tolist()}
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tests" / "golden" / "gamsae")
