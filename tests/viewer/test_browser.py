"""The viewer in a real browser: Chromium, driven by playwright-core. What a person does is in viewer-ui/tests."""

from __future__ import annotations

import contextlib
import functools
import http.server
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import av
import numpy as np
import pytest

import warpdata as wd
from tests.conftest import ROOT
from tests.viewer.conftest import client_of
from tests.viewer.samples import STEPS, numbered_frame, tensor_shard
from tests.waiting import LIMIT_S
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.episodes.sources.cameras import FileVideo, SourceVideo

UI = ROOT / "viewer-ui"
CHROMIUM = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")


def missing() -> str | None:
    if shutil.which("node") is None:
        return "node is not installed"
    if not (UI / "node_modules" / "playwright-core").is_dir():
        return "playwright-core is not installed (make setup)"
    if not any(map(os.path.exists, (os.environ.get("CHROMIUM", ""), *CHROMIUM))):
        return "chromium is not installed (make setup)"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Browser:
    """A browser that plays scenarios, one after the other; one that was left in the middle is not asked again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @contextlib.contextmanager
    def playing(self, scenario: str, viewer: wd.Viewer | str, **options: Any) -> Iterator[Iterator[Any]]:
        """What a scenario tells, line by line; the last one says whether it failed."""
        url = viewer if isinstance(viewer, str) else viewer.url
        if self._process is None:
            self._process = subprocess.Popen(
                ["node", str(UI / "tests" / "scenarios.mjs")], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        process, self._process = self._process, None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps([scenario, url, options]), file=process.stdin, flush=True)
            yield itertools.chain(map(json.loads, process.stdout), [{"failed": "the browser is gone"}])
            self._process = process
        finally:
            if self._process is None:
                _end(process)

    def play(self, scenario: str, viewer: wd.Viewer | str, **options: Any) -> None:
        with self.playing(scenario, viewer, **options) as told:
            last = next(told)
        assert last == {"failed": None}, last["failed"]

    def close(self) -> None:
        if self._process is not None:
            _end(self._process)


def _end(process: subprocess.Popen[str]) -> None:
    """Also where it is busy: it closes its browser."""
    process.terminate()
    with contextlib.suppress(BrokenPipeError), process:
        process.communicate(timeout=LIMIT_S)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with contextlib.closing(Browser()) as running:
        yield running


@pytest.fixture(scope="module")
def viewer(recorded: Path) -> Iterator[wd.Viewer]:
    """For what changes nothing."""
    with wd.view(recorded, open_browser=False) as running:
        yield running


@pytest.mark.parametrize("scenario", ["open", "filter", "scrub", "keyboard", "looks", "theme"])
def test_look(browser: Browser, viewer: wd.Viewer, scenario: str) -> None:
    browser.play(scenario, viewer)


def test_sound_is_played_at_the_cursor(browser: Browser, tmp_path: Path) -> None:
    with wd.record(tmp_path / "root", clock="simulated") as rec:
        rec.declare("mic", kind="sound", rate_hz=8000)
        rec.declare("cloud", ragged=True)
        for step in range(200):
            tone = np.sin((np.arange(160) + 160 * step) / 8000 * 2 * np.pi * 440)
            rec.append("mic", (8000 * tone).astype(np.int16), step * 20_000_000)
            rec.append("cloud", np.full((step % 7, 3), step, np.float32), step * 20_000_000)
    with wd.view(tmp_path / "root", open_browser=False) as running:
        browser.play("sound", running, seconds=4.0)


def test_edit_and_undo_in_two_browsers(browser: Browser, root: Path) -> None:
    with wd.view(root, open_browser=False) as running:
        browser.play("edit", running)
    ops = [each["op"] for each in wd.open_recordings(root).edits.log]
    assert ops == ["drop", "undo", "drop", "undo", "trim", "undo", "drop", "undrop"]
    assert len(wd.open_recordings(root)) == 3
    assert wd.open_recordings(root)[0].steps.length == STEPS


def test_cursors_agree_after_a_trim_and_its_undo(browser: Browser, root: Path) -> None:
    with wd.view(root, open_browser=False) as running:
        browser.play("trimmed", running)


def test_marks_name_and_show_their_episode(browser: Browser, root: Path) -> None:
    with wd.view(root, open_browser=False) as running:
        browser.play("marks", running)
    marked = [each["episode"] for each in wd.open_recordings(root).edits.log if each["op"] == "set_static"]
    assert marked == ["000000000000"] * 2


def test_compared_plots_share_their_axes(browser: Browser, tmp_path: Path) -> None:
    episodes = wd.Episodes.of(
        [
            wd.Episode.of({"x": wd.ArraySignal([0, 10**9], [0.0, high])}, id=name)
            for name, high in (("low", 1.0), ("high", 70.0))
        ]
    )
    with wd.view(episodes, open_browser=False) as running:
        browser.play("compared", running)


def test_findings_of_the_open_episode_follow_its_edits(browser: Browser, tmp_path: Path) -> None:
    with_gap(tmp_path / "root", 30)
    with wd.view(tmp_path / "root", open_browser=False) as running:
        browser.play("findings", running)


def test_findings_of_the_open_episode_are_those_of_the_compared_set(browser: Browser, tmp_path: Path) -> None:
    """Alone, a camera that rests is frozen; beside the others it is not, and a hand that never grips is odd."""
    wd.demo_data(tmp_path / "root", episodes=8)
    with wd.view(f"{tmp_path / 'root'}#000000000003", open_browser=False) as running:
        browser.play("comparedFindings", running)


def test_a_second_browser_follows_the_edits_of_a_draft(
    browser: Browser, published: Path, tmp_path: Path
) -> None:
    with wd.view("lab/arm", catalog=published, draft=tmp_path / "draft", open_browser=False) as running:
        browser.play("draft", running)


def with_gap(root: Path, gap_at: int | None) -> None:
    """One more episode of 40 records, with a pause before one of them."""
    with wd.record(root, clock="simulated") as rec:
        for k in range(40):
            late = gap_at is not None and k >= gap_at
            values = np.array([np.sin(k), np.cos(k)])
            rec.step({"state": values}, {"torque": values}, ts_ns=k * 10_000_000 + (late * 1_000_000_000))


def elsewhere(*arguments: object) -> None:
    """A command in a process of its own."""
    subprocess.run([sys.executable, "-m", "warpdata", *map(str, arguments)], check=True, capture_output=True)


def test_the_list_follows_what_another_program_edits(browser: Browser, tmp_path: Path) -> None:
    root, first, second = tmp_path / "root", "000000000000", "000000000001"
    with_gap(root, None)
    with_gap(root, 30)
    awaited = [
        [[first, []], [second, ["warning"]]],
        [[first, []], [second, []]],
        [[first, []], [second, ["success"]]],
        [[first, []], [second, ["warning"]]],
        [[second, ["warning"]]],
    ]
    with (
        wd.view(root, open_browser=False) as running,
        browser.playing("followed", running, awaited=awaited) as told,
    ):
        assert next(told) == {"seen": True}
        elsewhere("edits", "trim", f"{root}#{second}", "--end", "295ms")
        assert next(told) == {"seen": True}
        elsewhere("edits", "set", f"{root}#{second}", "success=true")
        assert next(told) == {"seen": True}
        elsewhere("edits", "undo", root)
        elsewhere("edits", "undo", root)
        assert next(told) == {"seen": True}
        elsewhere("edits", "drop", root, first)
        assert next(told) == {"seen": True}
        assert next(told) == {"failed": None}


def test_the_list_follows_what_another_program_edits_in_a_draft(browser: Browser, tmp_path: Path) -> None:
    root, catalog, draft = tmp_path / "root", tmp_path / "catalog", tmp_path / "draft"
    with_gap(root, None)
    with_gap(root, 30)
    with wd.DatasetBuilder("lab/gaps", catalog=catalog) as builder:
        builder.add_episodes("demos", root)
        builder.publish()
    first, second = "000000000000", "000000000001"
    awaited = [
        [[first, []], [second, ["warning"]]],
        [[first, []], [second, []]],
        [[second, []]],
    ]
    with wd.view("lab/gaps", catalog=catalog, draft=draft, open_browser=False) as running:
        asked = client_of(running)
        asked.post("check", {})
        with browser.playing("followed", running, awaited=awaited) as told:
            assert next(told) == {"seen": True}
            with wd.view("lab/gaps", catalog=catalog, draft=draft, open_browser=False) as other:
                another = client_of(other)
                another.post("edit", {"op": "trim", "episode": second, "end_ns": "295000000"})
                assert next(told) == {"seen": True}
                another.post("edit", {"op": "drop", "episode": first})
            assert next(told) == {"seen": True}
            assert next(told) == {"failed": None}


def test_what_is_empty_says_so_and_nothing_else_does(
    browser: Browser, viewer: wd.Viewer, tmp_path: Path
) -> None:
    (tmp_path / "root").mkdir()
    with wd.record(tmp_path / "root") as rec:
        rec.append("x", 1.0)
    wd.open_recordings(tmp_path / "root").edits.drop("000000000000")
    with wd.view(tmp_path / "root", open_browser=False) as running:
        browser.play("empty", running)
    browser.play("empty", viewer, rows=True)


def test_moments_like_this(browser: Browser, root: Path) -> None:
    with wd.TrajectoryIngestor(root / "index.rvf", embedder=lambda obs: obs["joints"]) as ingestor:
        ingestor.ingest_episodes(wd.open_recordings(root))
    with wd.view(root, open_browser=False) as running:
        browser.play("moments", running)


def test_an_index_that_is_made_while_the_viewer_runs(browser: Browser, root: Path) -> None:
    with wd.view(root, open_browser=False) as running, browser.playing("moments", running, late=True) as told:
        assert next(told) == {"seen": True}
        wd.embed(root, "state", metric="l2", output=root / "late.rvf")
        assert next(told) == {"failed": None}


def test_raw_tensors_are_painted_and_edits_refused(browser: Browser, tmp_path: Path) -> None:
    shard = tensor_shard(tmp_path / "raw.wshard")
    times = [str(ts) for ts in wd.open_episode(shard)["rgb"].timestamps.tolist()]
    with wd.view(shard, open_browser=False) as running:
        browser.play("tensors", running, times=times)
        browser.play("refused", running)


FOREIGN = {
    "out of order": {"bf": "3", "g": "12", "x264-params": "scenecut=0:open-gop=0"},
    "long groups": {"bf": "0", "g": "250", "x264-params": "scenecut=0"},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_cameras_of_other_programs_show_the_right_frames(browser: Browser, kind: str, tmp_path: Path) -> None:
    count = 70
    path = tmp_path / "camera.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=25, options=FOREIGN[kind])
        stream.width, stream.height, stream.pix_fmt = 160, 64, "yuv420p"
        for number in range(count):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(numbered_frame(number), format="rgb24")))
        out.mux(stream.encode(None))
    times = np.arange(count, dtype=np.int64) * 40_000_000
    video = SourceVideo(functools.partial(FileRangeReader, str(path)), str(path))
    episode = wd.Episode.of({"camera": FileVideo(video, lambda: times, name="camera", clock="steps")}, id="x")
    rows = [0, 5, 13, 14, 2, 41, 40, 39, 69, 12, 11, 30]
    with wd.view(episode, open_browser=False) as running:
        browser.play("foreign", running, times=[str(each) for each in times.tolist()], rows=rows)


def test_a_recording_grows_before_the_eyes(browser: Browser, root: Path) -> None:
    seen = threading.Event()

    def recorder() -> None:
        with wd.record(root, clock="simulated") as rec:
            k = 0
            while not seen.wait(0.01):
                rec.append("state", np.full(2, k, np.float32), k * 10_000_000)
                if k % 3 == 0:
                    rec.append("camera", numbered_frame(k // 3), k * 10_000_000)
                if k in (5, 6):
                    with contextlib.suppress(wd.WarpError):
                        rec.append("state", np.zeros(2, np.float32), 0)  # too late: refused
                k += 1

    thread = threading.Thread(target=recorder)
    with wd.view(root, open_browser=False) as running:
        thread.start()
        try:
            with browser.playing("live", running, rows=4) as told:
                assert next(told) == {"seen": True}
                seen.set()
                assert next(told) == {"failed": None}
        finally:
            seen.set()
            thread.join()


def test_thousands_of_episodes_are_a_short_list(browser: Browser, tmp_path: Path) -> None:
    episodes = wd.Episodes.of([
        wd.Episode.of({"x": wd.ArraySignal([0, 10**9], [1.0, 2.0])}, {"task": "t"}, id=f"e{n:05d}") for n in range(3000)
    ])  # fmt: skip
    with wd.view(episodes, open_browser=False) as running:
        browser.play("many", running, last="e02999")


class Files(http.server.SimpleHTTPRequestHandler):
    """A plain server of files; `ranges` says whether it knows them, `asked` what was asked for and sent."""

    ranges = True
    asked: ClassVar[list[tuple[str, int]]] = []
    shares: ClassVar[dict[str, str]] = {}
    """What it says to pages of another origin: as the CORS rules of a bucket do."""

    def end_headers(self) -> None:
        for name, value in self.shares.items():
            self.send_header(name, value)
        super().end_headers()

    def do_OPTIONS(self) -> None:
        self.asked.append((f"OPTIONS {self.path}", 0))
        self.send_response(204 if self.shares else 403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not wanted or not self.ranges or not path.is_file():
            self.asked.append((self.path, -1))
            super().do_GET()
            return
        whole = path.read_bytes()
        start = int(wanted[1])
        data = whole[start : int(wanted[2]) + 1]
        self.asked.append((self.path, len(data)))
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{len(whole)}"')
        self.send_header("Content-Range", f"bytes {start}-{start + len(data) - 1}/{len(whole)}")
        self.end_headers()
        self.wfile.write(data)


@contextlib.contextmanager
def serving(
    folder: Path, *, ranges: bool = True, shares: dict[str, str] | None = None
) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """The address of such a server, and what it is asked."""
    kind = type("Kind", (Files,), {"ranges": ranges, "asked": [], "shares": shares or {}})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(kind, directory=str(folder))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", kind.asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "whole files"])
def test_an_exported_site_needs_a_server_of_files_only(
    browser: Browser, recorded: Path, tmp_path: Path, ranges: bool
) -> None:
    site = wd.export_site(recorded, tmp_path / "site")
    with serving(site, ranges=ranges) as (url, asked):
        browser.play("site", url, checked=3)
        if ranges:
            browser.play("scrub", url, turns=15)
            assert max(size for _, size in asked) < (site / "e" / "0.bin").stat().st_size


@pytest.fixture(scope="module")
def published(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with the recorded episodes, and with raw tensors."""
    catalog = tmp_path_factory.mktemp("served") / "a catalog"
    with wd.DatasetBuilder("lab/arm", catalog=catalog) as builder:
        builder.add_episodes("demo", recorded).publish()
    shard = tensor_shard(catalog.parent / "raw.wshard")
    episode = wd.load_wshard(shard)
    frames = episode.observations["rgb"].data.copy()
    frames[:, 32:] = np.random.default_rng(0).integers(0, 256, frames[:, 32:].shape, np.uint8)
    episode.observations["rgb"] = frames  # too much for one request
    wd.save_wshard(episode, shard, "zstd-seekable", overwrite=True)
    with wd.DatasetBuilder("lab/raw", catalog=catalog) as builder:
        builder.add_episodes("demo", shard).publish()
    return catalog


def test_a_site_of_a_published_dataset_reads_the_published_blobs(browser: Browser, published: Path) -> None:
    with wd.dataset("lab/arm", catalog=published) as dataset:
        site = wd.export_site(dataset, published.parent / "site")
        size = dataset.episodes[0].stored_bytes
    assert (site / "e" / "0.bin").stat().st_size < size / 2, "derived levels, no copies"
    with serving(published.parent) as (url, asked):
        browser.play("site", f"{url}site/")
        browser.play("scrub", f"{url}site/", turns=15)
    blobs = [sent for path, sent in asked if "catalog" in path]
    assert blobs
    assert min(blobs) > 0, "only ranges are asked for"
    assert sum(blobs) <= 2 * size, "nothing is read twice"


def test_raw_tensors_are_painted_from_their_blob(browser: Browser, published: Path) -> None:
    with wd.dataset("lab/raw", catalog=published) as dataset:
        wd.export_site(dataset, published.parent / "tensors")
        times = [str(ts) for ts in dataset.episodes[0]["rgb"].timestamps.tolist()]
    with serving(published.parent) as (url, asked):
        browser.play("tensors", f"{url}tensors/", times=times)
    blobs = [sent for path, sent in asked if "catalog" in path]
    assert len(blobs) > 3
    assert min(blobs) > 0, "only ranges are asked for"
    assert max(blobs) < 200_000
    # Of its own files the page reads the thumbnail, the times, and the levels of the plots.
    own = (published.parent / "tensors" / "e" / "0.bin").stat().st_size
    assert own < 40 * 64 * 160, "less than one camera"


CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "Range",
    "Access-Control-Expose-Headers": "Content-Range, ETag",
}
"""What docs/howto/view.md says a bucket of another origin must send."""


def test_a_site_reads_blobs_of_another_origin(browser: Browser, published: Path) -> None:
    bucket, site = published, published.parent / "sites" / "far"
    with serving(bucket, shares=CORS) as (data_url, blobs), wd.dataset("lab/arm", catalog=bucket) as dataset:
        wd.export_site(dataset, site, data_url=data_url)
        with serving(site.parent) as (url, own):
            browser.play("site", f"{url}far/", data=data_url.split("/")[2])
            browser.play("scrub", f"{url}far/", turns=15, data=data_url.split("/")[2])
    assert not any("blobs" in path for path, _ in own)
    read = [sent for path, sent in blobs if not path.startswith("OPTIONS")]
    assert read
    assert min(read) > 0, "only ranges are asked for"


@pytest.mark.parametrize("missing", ["Access-Control-Allow-Origin", "Access-Control-Expose-Headers"])
def test_a_site_says_what_a_bucket_of_another_origin_must_send(
    browser: Browser, published: Path, missing: str
) -> None:
    shares = {name: value for name, value in CORS.items() if name != missing}
    site = published.parent / "sites" / missing.lower()
    with (
        serving(published, shares=shares) as (data_url, _),
        wd.dataset("lab/arm", catalog=published) as dataset,
    ):
        wd.export_site(dataset, site, data_url=data_url)
        with serving(site.parent) as (url, _):
            browser.play("unshared", f"{url}{site.name}/", data=data_url.split("/")[2])


def test_a_site_says_when_its_data_cannot_be_read(browser: Browser, published: Path) -> None:
    with wd.dataset("lab/arm", catalog=published) as dataset:
        wd.export_site(dataset, published.parent / "astray", data_url="nowhere")
        wd.export_site(dataset, published.parent / "copied", copy=True)
    with serving(published.parent) as (url, asked):
        browser.play("astray", f"{url}astray/")
        del asked[:]
        browser.play("site", f"{url}copied/")
        assert not any("catalog" in path for path, _ in asked)
