"""How fast a pass is and who waits for whom: shown on a terminal, never in a pipe, and counted rightly."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.loading.episode_reader import EpisodeReader
from warpdata.loading.pace import PaceLine
from warpdata.stores.blobstore import Traffic, traffic


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def episodes_in(root: Path) -> Path:
    for number in range(3):
        with wd.record(root, clock="simulated") as rec:
            for k in range(60):
                rec.append("camera_rows", np.full(4096, k + number, np.float32), k * 10_000_000)
    return root


@pytest.fixture
def windows(tmp_path: Path) -> wd.Windows:
    return wd.Windows(
        wd.open_recordings(episodes_in(tmp_path / "root")), {"x": "camera_rows"}, anchor="camera_rows"
    )


def test_a_terminal_shows_the_pace(windows: wd.Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.delenv("WARP_NO_PROGRESS", raising=False)
    for _ in wd.Loader(windows, batch_size=16, progress=True):
        pass
    text = terminal.getvalue()
    assert "epoch 0 done" in text
    assert "samples/s" in text
    assert "waiting" in text
    assert text.endswith("\n")
    assert "network 0 B, cache 0 B" in text


@pytest.mark.parametrize("case", ["pipe", "off", "unwanted", "early"])
def test_nothing_is_shown_elsewhere(windows: wd.Windows, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    stream = io.StringIO() if case == "pipe" else Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    if case == "off":
        monkeypatch.setenv("WARP_NO_PROGRESS", "1")
    for _ in wd.Loader(windows, batch_size=16, progress=case != "unwanted"):
        if case == "early":
            break
    shown = stream.getvalue()
    assert shown == "" or case == "early"
    assert not shown or shown.endswith("\n"), "whoever stops early finds the cursor on a new line"


def text_of(wait_s: float, elapsed_s: float = 10.0, consumer: str = "model") -> str:
    line = PaceLine("x", "rows", consumer, stream=io.StringIO())
    line.add(400, 2_000_000, wait_s)
    line.add(600, 3_000_000, 0.0)
    return line.text(elapsed_s, Traffic(1500, 64_000_000))


def test_verdicts() -> None:
    assert text_of(9.0).endswith("waiting 90%: the loader is slow")
    assert text_of(0.5, consumer="reader").endswith("waiting 5%: the reader is slow")
    assert text_of(3.0).endswith("both take their time")
    assert text_of(0.5).startswith("100 rows/s, 5.0 MB; network 1.5 kB, cache 64.0 MB; waiting 5%")
    assert text_of(1.0, 0.0).startswith("0 rows/s")


def test_waiting_adds_up() -> None:
    line = PaceLine("x", "samples", stream=io.StringIO())
    line.add(4, 100, 0.25)
    line.add(6, 50, 0.5)
    assert (line.items, line.bytes, line.wait_s) == (10, 150, 0.75)


def test_bytes_of_network_and_cache_are_told_apart(tmp_path: Path) -> None:
    """The first process fetches everything; a second reader of the same cache finds it there."""
    with wd.DatasetBuilder("lab/x", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("e", episodes_in(tmp_path / "root"))
        builder.publish()
    found = []
    with run_http(tmp_path / "catalog") as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        for _ in range(2):
            with wd.dataset("lab/x", catalog=address, cache_dir=tmp_path / "cache") as ds:
                windows = wd.Windows(ds.episodes, {"x": "camera_rows"}, anchor="camera_rows")
                loader = wd.Loader(windows, batch_size=16)
                assert sum(batch.size for batch in loader) == 180
                found.append(loader.report())
    needed = 180 * 4096 * 4
    assert found[0].network_bytes > needed * 0.9
    assert found[0].cache_bytes < needed * 0.1
    assert found[1].network_bytes == 0
    assert found[1].cache_bytes > needed * 0.9
    assert found[1].cache_bytes < needed * 1.5, "a page counts once"
    assert traffic().network >= found[0].network_bytes


def test_what_is_mapped_from_the_cache_is_not_fetched_again(tmp_path: Path, monkeypatch) -> None:
    """A batch of a later epoch has no work for the threads that fetch: all values of its episodes are mapped."""
    made = wd.WShardEpisode(id="x", length=120)
    rng = np.random.default_rng(0)
    made.observations["rgb"] = rng.integers(0, 255, (120, 120, 120, 3), np.uint8)
    made.actions["ctrl"] = rng.normal(size=(120, 3)).astype(np.float32)
    (tmp_path / "root").mkdir()
    wd.save_wshard(made, tmp_path / "root" / "x.wshard", durable=False)
    with wd.DatasetBuilder("lab/x", catalog=tmp_path / "catalog") as builder:
        builder.add_episodes("e", wd.open_episodes(tmp_path / "root"))
        builder.publish()
    asked: list[int] = []
    original = EpisodeReader.prefetch

    def counted(self, anchors, blocks):
        asked.append(len(anchors))
        original(self, anchors, blocks)

    monkeypatch.setattr(EpisodeReader, "prefetch", counted)
    with run_http(tmp_path / "catalog") as server:
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with wd.dataset("lab/x", catalog=address, cache_dir=tmp_path / "cache") as ds:
            windows = wd.Windows(ds.episodes, {"x": wd.Field("rgb", horizon=4), "y": "ctrl"}, anchor="ctrl")
            loader = wd.Loader(windows, batch_size=4, seed=1, threads=1)
            counts = []
            for _ in range(3):
                asked.clear()
                for batch in loader:
                    for sample, image in zip(batch.sample_id.tolist(), batch["x"], strict=True):
                        rows = np.minimum(np.arange(sample, sample + 4), 119)
                        assert np.array_equal(image, made.observations["rgb"].data[rows])
                counts.append(len(asked))
    assert counts[0] > 0
    assert counts[2] == 0
