"""What the catalog's tests share: servers, datasets, and an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.servers import BUCKET, S3Server, run_s3, unique


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with run_s3() as server:
        yield server


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WARP_CATALOG", "WARP_MODE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def s3_catalog(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty catalog on the real S3 server."""
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{unique('cat')}"


@pytest.fixture
def local_catalog(tmp_path: Path) -> str:
    return str(tmp_path / "catalog")


@pytest.fixture
def picture_folder(tmp_path: Path) -> Path:
    from PIL import Image

    folder = tmp_path / "pictures"
    (folder / "a").mkdir(parents=True)
    for i in range(40):
        Image.fromarray(np.full((8, 8, 3), i * 5, np.uint8)).save(folder / "a" / f"{i:03d}.png")
    return folder


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
