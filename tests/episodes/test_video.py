"""Real video: random access, threads, forks, odd sizes, other people's files, damage."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import warpdata as wd
from tests.sweeps import SOAK
from warpdata.bytekit.process.system import kept_scheduling
from warpdata.convert.lerobot.write import CODEC
from warpdata.errors import FormatError
from warpdata.formats.episodedir.documents import FrameShape
from warpdata.formats.episodedir.signal_file import write_columns
from warpdata.formats.episodedir.video import _SVT_4_SINCE, VideoDecoder, _codec_options, _version

COUNT = 60


def scene(i: int, height: int = 64, width: int = 96) -> np.ndarray[Any, Any]:
    """A moving bright block on a gradient; its column tells the number of the frame."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 2] = np.linspace(0, 120, width).astype(np.uint8)
    image[:, i : i + 8, 0] = 250
    return image


def number_in(frame: np.ndarray[Any, Any]) -> int:
    """Which scene the frame is most like, whatever the codec made of it."""
    red = frame[..., 0].astype(float)
    return int(np.argmin([np.abs(red - scene(i, *red.shape)[..., 0]).sum() for i in range(red.shape[1] - 8)]))


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> wd.VideoSignal:
    folder = tmp_path_factory.mktemp("video")
    with wd.VideoSignalWriter(folder / "v.mp4", folder / "v.frames.parquet") as writer:
        for i in range(COUNT):
            writer.append(scene(i), i * 1000)
    return wd.VideoSignal(folder / "v.mp4", folder / "v.frames.parquet")


def test_any_order_gives_the_same_frames(video: wd.VideoSignal) -> None:
    whole = video.values()
    assert [number_in(frame) for frame in whole] == list(range(COUNT))
    rng = np.random.default_rng(0)
    for _ in range(5):
        picks = rng.integers(0, COUNT, 25)
        assert np.array_equal(video[picks].values(), whole[picks])
    for i in (0, 59, 30, 29, 31, 9, 10, 11, 0):
        assert np.array_equal(video[i][0], whole[i])
    assert number_in(video.time[29_500][0]) == 29


def test_a_batch_decodes_each_group_once(video: wd.VideoSignal, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    original = VideoDecoder.feed

    def counted(self: VideoDecoder, number: int, packet: bytes) -> Any:
        fed.append(number)
        return original(self, number, packet)

    monkeypatch.setattr(VideoDecoder, "feed", counted)
    fresh = wd.VideoSignal(video.path, video.frames_path)
    fresh[[25, 3, 27, 22, 3, 25]].values()
    assert fed == [0, 1, 2, 3, 20, 21, 22, 23, 24, 25, 26, 27]
    fed.clear()
    for i in (*range(28, 40), 33, 21):
        assert not fresh[i][0].flags.writeable
    assert fed == [*range(28, 40), *range(30, 34), 20, 21], (
        "a decoder goes on, or begins at the group of the frame"
    )


def test_threads_and_forks(video: wd.VideoSignal) -> None:
    whole = video.values()
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, COUNT, 60).tolist():
            if not np.array_equal(video[i][0], whole[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    children = []
    for n in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                ok = all(np.array_equal(video[i][0], whole[i]) for i in (3, 50, 17 + n))
                os._exit(0 if ok else 1)
            finally:
                os._exit(2)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    assert np.array_equal(video[17][0], whole[17])


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (17, 2), (63, 95), (64, 96)])
@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_odd_sizes(tmp_path: Path, shape: tuple[int, int], codec: str) -> None:
    if codec == "hevc" and min(shape) < 16:
        pytest.skip("x265 encodes no image smaller than 16 pixels")
    with wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "f.parquet", codec=codec) as writer:
        for i in range(12):
            writer.append(np.full((*shape, 3), 20 * i, np.uint8), i)
    values = wd.VideoSignal(tmp_path / "v.mp4", tmp_path / "f.parquet").values()
    assert values.shape == (12, *shape, 3)
    assert np.abs(values.astype(int) - 20 * np.arange(12)[:, None, None, None]).max() < 12


@pytest.mark.parametrize(
    ("codec", "suffix"), [("h264", ".mp4"), ("hevc", ".mp4"), ("av1", ".mp4"), ("ffv1", ".mkv")]
)
def test_codecs(tmp_path: Path, codec: str, suffix: str) -> None:
    with wd.VideoSignalWriter(
        tmp_path / f"v{suffix}", tmp_path / "f.parquet", codec=codec, gop_size=5
    ) as writer:
        for i in range(22):
            writer.append(scene(i), i)
    signal = wd.VideoSignal(tmp_path / f"v{suffix}", tmp_path / "f.parquet")
    assert [number_in(signal[i][0]) for i in (21, 0, 13)] == [21, 0, 13]
    if codec == "ffv1":
        assert np.array_equal(signal[13][0], scene(13))


@pytest.mark.parametrize("count", [1, 2, 31])
def test_av1_in_groups_of_two_waits_for_later_frames_and_loses_none(tmp_path: Path, count: int) -> None:
    with wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "f", codec="av1", gop_size=2) as writer:
        for i in range(count):
            writer.append(scene(i), i)
    assert [number_in(frame) for frame, _ in wd.VideoSignal(tmp_path / "v.mp4", tmp_path / "f")] == list(
        range(count)
    )


def test_av1_as_lerobot_encodes_it_is_neither_larger_nor_worse_than_the_plain_encoder(tmp_path: Path) -> None:
    """Whichever release of the encoder is here: one of them makes groups of two large at the settings of LeRobot."""
    rng = np.random.default_rng(0)
    still = rng.integers(0, 90, (30, 40, 3)).repeat(8, 0).repeat(8, 1).astype(np.uint8)
    frames = [still + rng.integers(0, 6, still.shape, np.uint8) for _ in range(8)]

    def made(name: str, options: dict[str, str]) -> tuple[int, float]:
        path = tmp_path / name
        # The encoder would leave this thread real-time, and so every test that follows.
        with kept_scheduling(), av.open(str(path), "w", format="mp4") as out:
            stream = out.add_stream("libsvtav1", rate=20, options=options)
            stream.height, stream.width, stream.pix_fmt = *still.shape[:2], "yuv420p"
            with kept_scheduling():
                stream.codec_context.open()
            for frame in [*(av.VideoFrame.from_ndarray(each, "rgb24") for each in frames), None]:
                out.mux(stream.encode(frame))
        with av.open(str(path)) as found:
            shown = [each.to_ndarray(format="rgb24").astype(float) for each in found.decode(video=0)]
        return path.stat().st_size, float(np.mean((np.array(shown) - np.array(frames)) ** 2))

    shape = FrameShape(*still.shape, "uint8")
    plain = made("plain.mp4", {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=1"})
    ours = made("ours.mp4", _codec_options("av1", CODEC, shape))
    if _version(av) >= _SVT_4_SINCE:
        assert ours[0] < plain[0] * 0.9
        assert ours[1] < plain[1]
    else:
        assert ours == plain


@pytest.mark.timeout(600)
def test_the_av1_encoder_never_waits_for_itself(tmp_path: Path) -> None:
    """Four at once, each many short files: threads of the encoder that wait for each other never come back."""
    program = (
        "import sys, warpdata as wd\n"
        "from tests.episodes.test_video import scene\n"
        f"for number in range({150 if SOAK else 2}):\n"
        "    path = sys.argv[1] + str(number)\n"
        "    with wd.VideoSignalWriter(path + '.mp4', path + '.parquet', codec='av1', gop_size=5) as writer:\n"
        "        for i in range(22):\n"
        "            writer.append(scene(i), i)\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path / f"{n}-")]) for n in range(4)]
    assert [each.wait() for each in running] == [0] * 4


def test_an_encoder_does_not_make_threads_realtime(tmp_path: Path) -> None:
    with wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "f.parquet", codec="av1") as writer:
        for i in range(5):
            writer.append(scene(i), i)
        policies = {os.sched_getscheduler(int(task)) for task in os.listdir("/proc/self/task")}
    assert policies == {os.sched_getscheduler(0)} == {os.SCHED_OTHER}


def test_lossless_depth_and_gray(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for dtype, top in (("uint16", 65536), ("uint8", 256)):
        frames = rng.integers(0, top, (15, 21, 33)).astype(dtype)
        with wd.VideoSignalWriter(tmp_path / f"{dtype}.mkv", tmp_path / f"{dtype}.parquet") as writer:
            for i, frame in enumerate(frames):
                writer.append(frame, i)
        signal = wd.VideoSignal(tmp_path / f"{dtype}.mkv", tmp_path / f"{dtype}.parquet")
        assert signal.meta.dtype == dtype
        assert np.array_equal(signal[[7, 2, 14]].values(), frames[[7, 2, 14]])


def test_misuse_is_refused(tmp_path: Path) -> None:
    writer = wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "f.parquet")
    for bad in (np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), "f4"), np.zeros(4, np.uint8), "x", 5):
        with pytest.raises((ValueError, TypeError)):
            writer.append(bad, 0)
    with pytest.raises(ValueError, match="lossless"):
        wd.VideoSignalWriter(tmp_path / "d.mp4", tmp_path / "d.parquet", codec="h264").append(
            np.zeros((8, 8), np.uint16), 0
        )
    with pytest.raises(ValueError, match=r"\.mkv"):
        wd.VideoSignalWriter(tmp_path / "d.mp4", tmp_path / "d.parquet").append(np.zeros((8, 8), np.uint8), 0)
    with pytest.raises(ValueError, match="codec"):
        wd.VideoSignalWriter(tmp_path / "v.mp4", tmp_path / "f.parquet", codec="mjpeg")
    writer.append(np.zeros((16, 16, 3), np.uint8), 5)
    with pytest.raises(ValueError):
        writer.append(np.zeros((16, 18, 3), np.uint8), 6)
    with pytest.raises(ValueError, match="not increasing"):
        writer.append(np.zeros((16, 16, 3), np.uint8), 5)
    writer.abort()
    with pytest.raises(RuntimeError):
        writer.append(np.zeros((16, 16, 3), np.uint8), 7)
    assert not [path for path in tmp_path.iterdir() if "v." in path.name]


def foreign_episode(folder: Path) -> None:
    """What the existing library writes: default x264 with reordered frames, a bare index, list vectors."""
    import av
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    with av.open(str(folder / "cam.mp4"), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"g": "30"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for i in range(COUNT):
            frame = av.VideoFrame.from_ndarray(scene(i), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 30)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    stamps = pa.array(range(0, COUNT * 10, 10), pa.int64())
    pq.write_table(pa.table({"ts_ns": stamps}), folder / "cam.frames.parquet")
    values = pa.array([[float(i), 2.0] for i in range(COUNT)])
    pq.write_table(pa.table({"timestamp": stamps, "value": values}), folder / "state.parquet")
    pq.write_table(pa.table({"timestamp": stamps, "value": pa.array(range(COUNT))}), folder / "count.parquet")
    (folder / "static.json").write_text('{"task": "pick"}')
    (folder / "meta.json").write_text('{"schema_version": 1, "created_ts_ns": 5}')


def test_datasets_of_the_existing_library_open_as_they_are(tmp_path: Path) -> None:
    foreign_episode(tmp_path / "000000000000" / "000000000000")
    episode = wd.LocalDataset(tmp_path)[0]
    assert set(episode.keys) == {"cam", "state", "count", "task"}
    assert episode.meta["created_ts_ns"] == 5
    assert episode["state"].values()[:, 0].tolist() == list(range(COUNT))
    assert episode["state"].meta.kind == "vector"
    assert episode["count"][7] == (7, 70)
    camera = episode["cam"]
    assert camera.meta.shape == (64, 96, 3)
    assert [number_in(frame) for frame, _ in camera] == list(range(COUNT))
    assert [number_in(camera[i][0]) for i in (59, 0, 31, 29, 30, 58)] == [59, 0, 31, 29, 30, 58]
    wd.pack_episode(episode, tmp_path / "e.wshard")  # type: ignore[attr-defined]


def test_the_existing_library_can_read_ours(tmp_path: Path) -> None:
    """It seeks by frame number over a constant rate, and reads the columns it knows."""
    import av
    import pyarrow.parquet as pq

    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(COUNT):
            writer.append("cam", scene(i), i * 7)
            writer.append("state", np.array([i, 1.0], "f4"), i)
    with av.open(str(tmp_path / "ep" / "cam.mp4")) as container:
        stream = container.streams.video[0]
        rate = stream.average_rate
        assert rate is not None
        assert stream.time_base is not None
        ticks = round(1.0 / (float(rate) * float(stream.time_base)))
        for target in (45, 12, 59, 0):
            container.seek(target * ticks, stream=stream)
            for frame in container.decode(stream):
                assert frame.pts is not None
                if frame.pts // ticks == target:
                    assert number_in(frame.to_ndarray(format="rgb24")) == target
                    break
            else:
                pytest.fail(f"frame {target} not found")
    assert pq.read_table(tmp_path / "ep" / "cam.frames.parquet")["ts_ns"].to_pylist() == list(
        range(0, COUNT * 7, 7)
    )
    values = pq.read_table(tmp_path / "ep" / "state.parquet")["value"].to_pylist()
    assert values[3] == [3.0, 1.0]


def test_damage_is_never_a_wrong_picture(tmp_path: Path) -> None:
    with wd.DiskEpisodeWriter(tmp_path / "ep") as writer:
        for i in range(12):
            writer.append("cam", scene(i, 16, 24), i)
            writer.append("x", i, i)
    whole = wd.open_episode(tmp_path / "ep")["cam"].values()
    path = tmp_path / "ep" / "cam.mp4"
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    found = 0
    for at in rng.integers(0, len(good), 120).tolist():
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        episode = wd.open_episode(tmp_path / "ep")
        try:
            assert np.array_equal(episode["cam"].values(), whole)
        except FormatError as error:
            found += 1
            assert "cam.mp4" in str(error)  # noqa: PT017 - a flip in padding is no error
        assert episode["x"].values().tolist() == list(range(12))
    assert found > 30
    for cut in (0, 10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(FormatError, match=r"cam\.mp4"):
            wd.open_episode(tmp_path / "ep")["cam"].values()
    path.unlink()
    with pytest.raises(FormatError, match="missing"):
        wd.open_episode(tmp_path / "ep")["cam"].values()


def test_an_index_that_does_not_match_its_video(tmp_path: Path) -> None:
    foreign_episode(tmp_path / "ep")
    write_columns(str(tmp_path / "ep" / "cam.frames.parquet"), {"ts_ns": np.arange(COUNT - 1)}, {})
    episode = wd.open_episode(tmp_path / "ep")
    with pytest.raises(FormatError, match="60 frames, its index 59"):
        episode["cam"].values()
    assert len(episode["state"]) == COUNT
