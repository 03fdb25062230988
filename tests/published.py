"""A small published dataset for tests: rows, pictures, and the binding between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def rows(count: int, first: int = 0):
    import pyarrow as pa

    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "value": ids * 0.5,
            "name": [f"row {i}" for i in ids],
            "image": [f"a/{i % 40:03d}.png" for i in ids],
        }
    )


def publish_demo(
    catalog: str,
    picture_folder: Path,
    *,
    count: int = 1000,
    shards: int = 4,
    name: str = "ws/demo",
    **options,
):
    """A table of several parquet files, pictures, and the binding between them."""
    import pyarrow.parquet as pq

    import warpdata as wd

    folder = picture_folder.parent / f"parquet-{count}-{shards}"
    folder.mkdir(exist_ok=True)
    paths = []
    for i in range(shards):
        path = folder / f"{i:03d}.parquet"
        size = count // shards
        pq.write_table(rows(size, i * size), path, row_group_size=max(1, size // 3))
        paths.append(path)
    with wd.DatasetBuilder(name, catalog=catalog) as builder:
        builder.add_table("main", paths)
        builder.add_artifact("pictures", picture_folder)
        builder.bind("main", "image", "pictures", "image")
        return builder.publish(**options)
