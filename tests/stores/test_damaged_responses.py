"""A damaged response of a web server is fetched again, and does not stay in the cache on disk."""

from __future__ import annotations

import hashlib
import http.server
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warpdata as wd
from tests.servers import serving
from warpdata.cli.main import main
from warpdata.errors import FormatError


class _Damaging(http.server.BaseHTTPRequestHandler):
    """Serves the files of a folder by range, with one flipped byte in the first `damages` responses that cover it.

    `position` is where in the file `damaged` the byte is; a share of the file if it is below 1.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.server.folder / urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = path.read_bytes()
        start, _, last = (self.headers.get("Range") or f"bytes=0-{len(data) - 1}")[6:].partition("-")
        body = bytearray(data[int(start) : int(last) + 1])
        at = self.server.position
        position = int(at * len(data) if at < 1 else at) - int(start)
        if self.command == "GET" and path.name.endswith(self.server.damaged) and 0 <= position < len(body):
            self.server.damages -= (hurts := self.server.damages > 0)
            body[position] ^= 0x40 * hurts
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(body) - 1}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name of the library

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def folder_server(tmp_path: Path) -> Iterator[Any]:
    with serving(_Damaging) as server:
        server.folder, server.damages, server.position, server.damaged = tmp_path, 0, 0, ""
        yield server


@pytest.fixture
def damaging(folder_server: Any) -> Any:
    folder_server.values = np.random.default_rng(0).random((40_000, 8))
    wd.save_wshard(_episode(folder_server.values), folder_server.folder / "x.wshard")
    return folder_server


def _episode(values: np.ndarray) -> Any:
    episode = wd.WShardEpisode(id="e", env_id="env", length=len(values))
    episode.observations["obs"] = wd.Channel("obs", data=values)
    return episode


def read(url: str) -> np.ndarray:
    return np.asarray(wd.load_wshard(f"{url}/x.wshard").observations["obs"].data)


@pytest.mark.parametrize("position", [3, 40, 200, 1_500_000])
def test_one_damaged_response_is_fetched_again(damaging: Any, position: int) -> None:
    damaging.position, damaging.damages = position, 1
    assert np.array_equal(read(damaging.url), damaging.values)
    assert damaging.damages == 0


@pytest.mark.parametrize("position", [40, 1_500_000])
def test_damage_that_stays_is_an_error_and_is_not_kept(
    damaging: Any, position: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaging.position, damaging.damages = position, 1 << 30
    with pytest.raises(FormatError):
        read(damaging.url)
    damaging.damages = 0
    assert np.array_equal(read(damaging.url), damaging.values), "also after the pages were kept"


def test_the_cache_is_cleared_by_address(damaging: Any, capsys: pytest.CaptureFixture[str]) -> None:
    damaging.position = 0
    read(damaging.url)
    assert main(["cache", "clear", f"{damaging.url}/x.wshard"]) == 0
    assert "freed" in capsys.readouterr().out
    main(["cache", "show"])
    assert "blobs   0" in capsys.readouterr().out
    read(damaging.url)
    assert main(["cache", "clear"]) == 0
    with pytest.raises(SystemExit):
        main(["cache", "show", "x"])


def write_vectors(folder: Path) -> None:
    with wd.VectorStore.create(folder / "data.rvf", dim=16) as store:
        rows = np.random.default_rng(3).random((3000, 16)).astype(np.float32)
        store.add(rows, metadata=[{"n": n} for n in range(3000)])


def read_vectors(url: str) -> Any:
    with wd.open(f"{url}/data.rvf") as store:
        ids, distances = store.search(np.full(16, 0.5, np.float32), k=3, where="n < 900", exact=True)
        return ids.tolist(), distances.tolist()


def write_corpus(folder: Path) -> None:
    with wd.CorpusWriter(folder / "corpus", width=32, dtype="f32") as writer:
        writer.append(np.random.default_rng(4).random((20_000, 32)).astype(np.float32))


def read_corpus(url: str) -> Any:
    with wd.open_corpus(f"{url}/corpus", batch_rows=700) as source:
        return [batch.rows.tobytes() for batch in source]


def write_episode(folder: Path) -> None:
    with wd.record(folder / "root", static={"task": "pick"}, clock="simulated") as rec:
        for k in range(2000):
            rec.step({"x": np.full(16, k, np.float32)}, {"u": -k}, reward=1.0, ts_ns=k * 1_000_000)
            if k < 40:
                rec.append("cam", np.full((64, 64, 3), k, np.uint8), k * 1_000_000 + 1)


def read_episode(url: str) -> Any:
    episode = wd.open_episode(f"{url}/root/000000000000/000000000000")
    frames = [episode["cam"][number][0].tobytes() for number in range(0, 40, 8)]
    return episode["x"].values().tobytes(), dict(episode.static), frames


KINDS = {
    "vectors": (write_vectors, read_vectors),
    "corpus": (write_corpus, read_corpus),
    "episode": (write_episode, read_episode),
}
PLACES = [
    *(("vectors", "data.rvf", at) for at in (40, 0.3, 0.6, 0.999)),
    *(("corpus", name, at) for name in ("corpus.json", ".shard") for at in (2, 0.5)),
    *(
        ("episode", name, 0.5)
        for name in ("meta.json", "static.json", "x.parquet", "cam.mp4", "frames.parquet")
    ),
]


@pytest.mark.parametrize(("kind", "name", "position"), PLACES)
def test_every_format_fetches_a_damaged_response_again(
    folder_server: Any, kind: str, name: str, position: float
) -> None:
    write, read_all = KINDS[kind]
    write(folder_server.folder)
    expected = read_all(str(folder_server.folder))
    folder_server.damaged, folder_server.position, folder_server.damages = name, position, 1
    assert read_all(folder_server.url) == expected
    assert folder_server.damages == 0
    folder_server.damages = 1 << 30
    assert read_all(folder_server.url) == expected, "what is in the cache now is right"


@pytest.mark.parametrize("position", [2, 0.5, 0.99])
def test_every_blob_of_a_version_is_fetched_again(
    folder_server: Any, position: float, tmp_path: Path
) -> None:
    write_episode(tmp_path)
    catalog = tmp_path / "catalog"
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        builder.add_table("main", pa.table({"n": np.arange(30_000), "s": [str(n) for n in range(30_000)]}))
        builder.add_episodes("episodes", tmp_path / "root").publish()

    def read_all(place: object, cache: Path) -> Any:
        with wd.dataset("ws/x", catalog=place, cache_dir=cache) as dataset:
            table = dataset.table("main")
            rows = [
                table.filter("n % 5000 = 7").arrow().to_pydict(),
                dataset.sql("select sum(n) from main").arrow(),
            ]
            episode = dataset.episodes[0]
            return (
                rows[0],
                rows[1].to_pydict(),
                episode["x"].values().tobytes(),
                episode["cam"][8][0].tobytes(),
            )

    expected = read_all(catalog, tmp_path / "none")
    blobs = [path for path in (catalog / "blobs").rglob("*") if path.is_file()]
    for number, blob in enumerate(blobs):
        folder_server.damaged, folder_server.position, folder_server.damages = blob.name, position, 1
        cache = tmp_path / f"cache-{number}"
        assert read_all(f"{folder_server.url}/catalog", cache) == expected, blob
        folder_server.damages = 0
        assert read_all(f"{folder_server.url}/catalog", cache) == expected, blob


def test_a_file_of_no_known_kind_is_looked_at_again(
    folder_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_vectors(folder_server.folder)
    address = f"{folder_server.url}/data.rvf"
    folder_server.position, folder_server.damages = 1, 1 << 30
    assert main(["verify", address]) == 3
    folder_server.damages = 0
    assert main(["verify", address]) == 0
