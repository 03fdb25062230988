"""The same vector file on this disk, behind HTTP and on S3: Python and the command line give the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.servers import S3Server, run_http, s3_store, unique
from warpdata.cli.main import main
from warpdata.errors import BlobNotFoundError

DIM, ROWS = 64, 4000


@pytest.fixture(scope="module")
def vectors() -> Any:
    rng = np.random.default_rng(2)
    centers = 3 * rng.normal(size=(40, DIM))
    return (centers[np.arange(ROWS) % 40] + 0.3 * rng.normal(size=(ROWS, DIM))).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, vectors: Any) -> Path:
    made = tmp_path_factory.mktemp("remote")
    with wd.VectorStore.create(made / "v.rvf", dim=DIM) as store:
        store.add(vectors, metadata={"n": range(ROWS)})
        store.build_index("hnsw", ef_construction=40)
    return made


def check(url: str, folder: Path, vectors: Any, capsys: pytest.CaptureFixture[str]) -> None:
    local = wd.open_vectors(folder / "v.rvf")
    size = (folder / "v.rvf").stat().st_size
    with wd.open_vectors(url) as store:
        assert (len(store), store.dim) == (ROWS, DIM)
        opened = store.stats()
        assert (opened["reads"], opened["requests"]) == (
            2,
            2,
        )  # the root with the size and tag, the records before it
        assert store.search(vectors[3], 5)[0].tolist() == local.search(vectors[3], 5)[0].tolist()
        about = store.stats()
        assert about["stage"] == "partitions"
        assert about["requests"] <= 10
        assert about["bytes_read"] <= about["bytes_fetched"] < 0.4 * size
        assert about["retries"] == 0
        assert np.array_equal(store.get([77]), vectors[77:78])
        assert store.search(vectors[3], 5, where=[3, 40, 83])[0].tolist()[0] == 3
        assert store.stats()["bytes_fetched"] < 0.5 * size
        kept = store.snapshot()
        kept.close()
        assert store.verify() == []
    numbers = ",".join(str(each) for each in vectors[3])
    assert main(["vectors", "search", url, numbers, "-k", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["id"] == 3
    assert main(["vectors", "info", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] > 0
    assert main(["vectors", "verify", url]) == 0
    assert main(["vectors", "export", url, str(folder / f"{unique('copy')}.npy")]) == 0
    capsys.readouterr()
    assert main(["vectors", "compact", url]) != 0
    assert "open_vectors" in capsys.readouterr().err
    local.close()


def test_over_http(folder: Path, vectors: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with run_http(folder) as server:
        check(f"http://127.0.0.1:{server.server_port}/v.rvf", folder, vectors, capsys)
        with pytest.raises(BlobNotFoundError):
            wd.open_vectors(f"http://127.0.0.1:{server.server_port}/absent.rvf")


def test_on_s3(
    folder: Path, vectors: Any, s3_server: S3Server, s3_catalog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = s3_catalog.partition("://")[2].partition("/")[2]
    s3_store(s3_server, prefix).put_if_absent("v.rvf", (folder / "v.rvf").read_bytes())
    check(f"{s3_catalog}/v.rvf", folder, vectors, capsys)


def test_first_answer_of_a_published_index(
    tmp_path: Path, s3_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fresh reader of a 20 MB artifact on S3 answers after eight round trips and 3 % of the file at most."""
    rng, rows, dim = np.random.default_rng(4), 20_000, 256
    centers = 3 * rng.normal(size=(200, dim))
    x = (centers[rng.integers(0, 200, rows)] + 0.3 * rng.normal(size=(rows, dim))).astype(np.float32)
    with wd.VectorStore.create(tmp_path / "big.rvf", dim=dim, durable=False) as store:
        store.add(x, metadata={"n": range(rows), "label": [f"label {n % 7}" for n in range(rows)]})
        store.build_index("ivf")
    size = (tmp_path / "big.rvf").stat().st_size
    with wd.DatasetBuilder("lab/vectors", catalog=s3_catalog) as builder:
        builder.add_artifact("vectors-big", tmp_path / "big.rvf", kind="vector_index")
        builder.publish()
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "fresh"))
    with (
        wd.dataset("lab/vectors", catalog=s3_catalog, mode="remote") as published,
        published.vectors() as store,
    ):
        assert store.search(x[5], 1)[0].tolist() == [5]
        about = store.stats()
        assert about["stage"] == "partitions"
        assert about["requests"] <= 8
        assert about["bytes_fetched"] <= 0.03 * size


def test_a_url_is_not_taken_for_a_path() -> None:
    with pytest.raises(ValueError, match="open_vectors"):
        wd.VectorStore.open("s3://bucket/v.rvf")
    with pytest.raises(ValueError, match="open_vectors"):
        wd.open_vectors("s3://bucket/v.rvf", mode="a")
