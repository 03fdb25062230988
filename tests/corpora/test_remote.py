"""Activation corpora in a real S3 server and behind HTTP: the same rows, ids, shuffle and checks as on this disk."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.conftest import shared_golden
from tests.contracts.row_source import RowSourceContract, rows_of
from tests.servers import BUCKET, S3Server, run_http, s3_store, unique
from tests.sweeps import SOAK
from warpdata._api import connect
from warpdata.cli.main import main
from warpdata.corpora.source import FixedOrderSource, StoreShardSource
from warpdata.errors import BlobNotFoundError, ChecksumError, StoreError, TruncatedError
from warpdata.formats.gamsae.shard import encode_shard_bytes
from warpdata.stores.blobs import StoreFolder

WIDTH = 33
VALUES = np.random.default_rng(0).standard_normal((5000, WIDTH)).astype(np.float32)
Serve = Callable[[Path], str]


@pytest.fixture(params=["s3", "http"])
def serve(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Put the files of a folder behind a URL."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield lambda folder: uploaded(server, folder)
        return
    servers = []
    try:
        yield lambda folder: servers.append(run_http(folder)) or servers[-1].__enter__().url
    finally:
        for server in servers:
            server.__exit__(None, None, None)


def uploaded(server: S3Server, folder: Path) -> str:
    prefix = unique("corpus")
    store = s3_store(server, prefix)
    for path in folder.iterdir():
        store.put_if_absent(path.name, path.read_bytes())
    store.close()
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    with wd.CorpusWriter(tmp_path / "c", WIDTH, shard_bytes=200_000) as writer:
        for start in range(0, len(VALUES), 500):
            writer.append(VALUES[start : start + 500])
    return tmp_path / "c"


def all_rows(source: FixedOrderSource) -> np.ndarray:
    batches = list(source)
    np.testing.assert_array_equal(np.concatenate([b.row_ids for b in batches]), np.arange(source.total_rows))
    return np.concatenate([batch.rows for batch in batches])


def bits(batches: Iterator[wd.RowBatch]) -> list[tuple[bytes, bytes]]:
    return [(batch.row_ids.tobytes(), batch.rows.tobytes()) for batch in batches]


def test_a_corpus_by_its_url(serve: Serve, corpus: Path) -> None:
    url = serve(corpus)
    with wd.open_corpus(url, dtype="float32", batch_rows=700) as source:
        assert isinstance(source, StoreShardSource)
        assert source.shards.run_crcs is not None, "rows are checked against corpus.json"
        assert len(source.shards.shards) > 2
        np.testing.assert_array_equal(all_rows(source), VALUES)
        again = pickle.loads(pickle.dumps(source))
        np.testing.assert_array_equal(all_rows(again), VALUES)


def test_the_shuffle_is_the_one_of_the_local_corpus(serve: Serve, corpus: Path) -> None:
    options: dict[str, Any] = {"seed": 3, "batch_size": 256, "block_rows": 64}
    with wd.open_corpus(corpus) as here, wd.open_corpus(serve(corpus)) as there:
        local, remote = wd.ShuffledRows(here, **options), wd.ShuffledRows(there, **options)
        first = [next(iter(local)) for _ in range(5)]
        remote.load_state_dict(local.state_dict())
        assert bits(iter(remote)) == bits(iter(local))
        remote.set_epoch(0)
        assert bits(iter(remote))[:5] == bits(iter(first))
        local.close()
        remote.close()


def test_a_damaged_shard_in_a_store_is_found(serve: Serve, corpus: Path, tmp_path: Path) -> None:
    shard = sorted(corpus.glob("*.shard"))[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    url = serve(corpus)
    with wd.open_corpus(url) as source, pytest.raises(ChecksumError):
        list(source)
    with (
        wd.open_corpus(url) as source,
        wd.ShuffledRows(source, batch_size=64) as rows,
        pytest.raises(ChecksumError),
    ):
        list(rows)
    assert main(["corpus", "verify", url]) == 3


def test_shards_without_a_description(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    for index, name in enumerate(("b.shard", "a.shard")):
        (folder / name).write_bytes(encode_shard_bytes(rows_of(index * 10, 10)))
    (folder / "notes.txt").write_text("not a shard")
    url = serve(folder)
    names = [f"{url}/b.shard", f"{url}/a.shard"]
    with wd.open_corpus(names) as source:
        np.testing.assert_array_equal(all_rows(source), rows_of(0, 20))
    with wd.open_corpus(names[1]) as source:
        np.testing.assert_array_equal(all_rows(source), rows_of(10, 10))
    if url.startswith("http"):
        with pytest.raises(StoreError, match="listed"):
            wd.open_corpus(url)
    else:
        with wd.open_corpus(url) as source:
            np.testing.assert_array_equal(all_rows(source)[:10], rows_of(10, 10))


def test_the_bf16_directory_by_its_url(serve: Serve) -> None:
    folder = shared_golden("residual_bf16")
    with wd.open_corpus(folder) as here, wd.open_corpus(serve(folder)) as there:
        assert there.shards.dtype == "bf16"
        np.testing.assert_array_equal(all_rows(there), all_rows(here))


def test_the_command_reads_urls(serve: Serve, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(corpus)
    capsys.readouterr()
    for verb, more in (
        ("info", []), ("stats", ["--recompute"]), ("stats", []), ("head", ["-n", "3", "--start", "1234"]),
        ("sample", ["-n", "4", "--seed", "9"]), ("sample", ["-n", "4", "--fraction", "0.1"]), ("verify", []),
    ):  # fmt: skip
        found = []
        for place in (str(corpus), url):
            assert main(["corpus", verb, place, *more, "--json"]) == 0, (verb, place)
            found.append(json.loads(capsys.readouterr().out))
        assert found[0] == found[1], verb


def test_what_is_not_there(serve: Serve, corpus: Path) -> None:
    url = serve(corpus)
    with pytest.raises(BlobNotFoundError):
        wd.open_corpus(f"{url}/missing.shard")
    assert main(["corpus", "info", f"{url}/missing.shard"]) == 1


def test_a_cut_shard_in_a_store(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.shard").write_bytes(encode_shard_bytes(rows_of(0, 10))[:-1])
    with pytest.raises(TruncatedError) as caught:
        wd.open_corpus(f"{serve(tmp_path / 'cut')}/a.shard")
    assert (caught.value.expected, caught.value.actual) == (232, 231)


def test_a_failing_server_is_asked_again_and_no_row_is_skipped(corpus: Path) -> None:
    with run_http(corpus) as server, wd.open_corpus(server.url, dtype="float32") as source:
        found = []
        for number, batch in enumerate(source):
            found.append(batch.rows)
            if number % 2:
                server.failures += [(503, {"Retry-After": "0"})] * 2
        np.testing.assert_array_equal(np.concatenate(found), VALUES)


@pytest.mark.parametrize(
    "serve",
    ["s3", pytest.param("http", marks=pytest.mark.skipif(not SOAK, reason="make soak"))],
    indirect=True,
)
def test_spawned_torch_workers_read_a_store(serve: Serve, corpus: Path) -> None:
    torch = pytest.importorskip("torch")
    with wd.open_corpus(serve(corpus), dtype="float32") as source:
        alone = [batch.rows.numpy().tobytes() for batch in source.to_torch(batch_size=512, seed=2)]
        loader = torch.utils.data.DataLoader(
            source.to_torch(batch_size=512, seed=2), batch_size=None, num_workers=2 if SOAK else 1,
            multiprocessing_context="spawn",
        )  # fmt: skip
        assert [batch.rows.numpy().tobytes() for batch in loader] == alone


class TestStoreFolder(RowSourceContract):
    def open(self, paths: list[Path], **options: Any) -> FixedOrderSource:
        folder = StoreFolder(str(paths[0].parent), connect)
        return StoreShardSource.open([folder.open(path.name) for path in paths], **options)
