"""Datasets for the catalog's benchmarks: a wide table, small pictures in tars, and a million members."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import warpdata as wd

COLUMNS = 20
WANTED = ["c00", "c07", "label"]


def write_table(folder: Path, rows: int, shards: int) -> list[Path]:
    """Parquet files of 20 columns: floats, integers, a label and text."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    paths = []
    for shard in range(shards):
        size = rows // shards
        columns = {f"c{i:02d}": random.random(size) for i in range(14)}
        columns |= {f"i{i:02d}": random.integers(0, 1_000_000, size) for i in range(3)}
        columns["id"] = np.arange(shard * size, (shard + 1) * size)
        columns["label"] = random.integers(0, 10, size)
        table = pa.table(columns).append_column(
            "text", pa.array([f"row {i} of shard {shard}" for i in range(size)])
        )
        path = folder / f"part-{shard:03d}.parquet"
        pq.write_table(table, path, row_group_size=65_536, compression="zstd")
        paths.append(path)
    return paths


def write_pictures(folder: Path, count: int) -> Path:
    """Small jpegs of varied content."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    for i in range(count):
        base = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        out = io.BytesIO()
        Image.fromarray(base).resize((64, 64)).save(out, "jpeg", quality=85)
        (folder / f"{i:06d}.jpg").write_bytes(out.getvalue())
    return folder


def publish_table(catalog: str, paths: list[Path], name: str = "bench/table") -> None:
    """The table as a dataset."""
    with wd.DatasetBuilder(name, catalog=catalog) as builder:
        builder.add_table("main", paths).publish()


def publish_pictures(catalog: str, folder: Path, name: str = "bench/pictures", *, mixed: bool = True) -> None:
    """The pictures with a table that names them, in random order or in that of the tars."""
    from warpdata.formats.tarshard.writer import PackOptions

    names = [path.name for path in sorted(folder.iterdir())]
    order = np.random.default_rng(2).permutation(len(names)) if mixed else np.arange(len(names))
    with wd.DatasetBuilder(name, catalog=catalog) as builder:
        builder.add_artifact("raw", folder, options=PackOptions(shard_bytes=4 << 20))
        builder.add_table("main", {"image": [names[i] for i in order], "n": order.tolist()})
        builder.bind("main", "image", "raw", "image").publish()
