"""A damaged response of a web server is fetched again, and does not stay in the cache on disk."""

from __future__ import annotations

import hashlib
import http.server
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.servers import serving
from warpdata.cli.main import main
from warpdata.errors import FormatError


class _Damaging(http.server.BaseHTTPRequestHandler):
    """Serves one file by range, with one flipped byte in the first `damages` responses that cover it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        data = self.server.data
        start, _, last = (self.headers.get("Range") or f"bytes=0-{len(data) - 1}")[6:].partition("-")
        body = bytearray(data[int(start) : int(last) + 1])
        position = self.server.position - int(start)
        if self.command == "GET" and self.server.damages and 0 <= position < len(body):
            self.server.damages -= 1
            body[position] ^= 0x40
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
def damaging(tmp_path: Path) -> Iterator[Any]:
    values = np.random.default_rng(0).random((40_000, 8))
    path = tmp_path / "x.wshard"
    wd.save_wshard(_episode(values), path)
    with serving(_Damaging) as server:
        server.data, server.damages, server.values = path.read_bytes(), 0, values
        yield server


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
    main(["cache", "stats"])
    assert "blobs   0" in capsys.readouterr().out
    read(damaging.url)
    assert main(["cache", "clear"]) == 0
    assert main(["cache", "stats", "x"]) != 0
