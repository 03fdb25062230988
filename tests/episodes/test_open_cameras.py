"""Many cameras of many episodes: descriptors, decoders and kept frames are bounded over the whole process."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.bytekit.lazy import BLOCK_CACHE
from warpdata.episodes.sources.cameras import CAMERAS, MOST_OPEN, OpenCameras
from warpdata.timeline import signal as timeline_signal

EPISODES, CAMERA_NAMES, FRAMES = 254, ("a", "b", "c", "d"), 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many episodes of small cameras: recorded once, the rest are links to the same files."""
    root = tmp_path_factory.mktemp("many")
    with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
        for i in range(FRAMES):
            for number, name in enumerate(CAMERA_NAMES):
                writer.append(name, np.full((16, 16, 3), number * 50 + i * 8, np.uint8), i)
    first = Path(writer.path)
    for number in range(1, EPISODES):
        folder = first.with_name(f"{number:012d}")
        folder.mkdir()
        for file in first.iterdir():
            os.link(file, folder / file.name)
    return root


CODE = """
import resource, sys
import warpdata as wd
from warpdata.episodes.sources.cameras import CAMERAS
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
dataset = wd.LocalDataset(sys.argv[1])
list(dataset[0]["a"])  # what the libraries take once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
total = 0
for again in range(2):
    for episode in dataset:
        for name in "abcd":
            total += sum(int(frame[0, 0, 0] >= 0) for frame, _ in episode[name])
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(total, len(CAMERAS), grown // 1024)
"""


def test_every_camera_of_many_episodes_under_a_low_limit(root: Path) -> None:
    run = subprocess.run([sys.executable, "-c", CODE, str(root)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    total, still_open, grown_mb = map(int, run.stdout.split())
    assert total == 2 * EPISODES * len(CAMERA_NAMES) * FRAMES
    assert still_open <= MOST_OPEN
    assert grown_mb < 100


TOGETHER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
import warpdata as wd
folder, count = sys.argv[1], int(sys.argv[2])
here = lambda kind: [f"{folder}/{kind}/{number}.wshard" for number in range(count)]
cameras = [*wd.LocalDataset(folder + "/root")[:count], *map(wd.open_episode, here("packed"))]
cameras += wd.dataset("lab/many", catalog=folder + "/catalog").episodes
shards = [wd.load_wshard(each) for each in here("shards")]
chunks = [wd.open_episode(f"{folder}/chunks{number}/e_manifest.wshard") for number in range(count)]
playing = [iter(episode[name]) for episode in cameras for name in "abcd"]
seen, held, before = 0, [], None
for frame in range(4):
    for number, each in enumerate(playing):
        pixels, ts_ns = next(each)
        seen += ts_ns == frame
        held += [shards[number % count].observations["x"][frame : frame + 2], chunks[number % count]["x"][3 * frame]]
    before = before or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(seen, len(held), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("limit", [128, 256])
def test_everything_at_once_under_a_low_limit(root: Path, tmp_path: Path, limit: int) -> None:
    """Directories, packed and published episodes, shards and chunk lists, in turns: none takes what another needs."""
    count = 40
    (tmp_path / "root").symlink_to(root)
    for kind in ("packed", "shards"):
        (tmp_path / kind).mkdir()
    episode = wd.WShardEpisode("e", length=12)
    episode.observations["x"] = np.arange(12.0)
    wd.pack_episode(wd.LocalDataset(root)[0], tmp_path / "packed" / "0.wshard")
    wd.save_wshard(episode, tmp_path / "shards" / "0.wshard", "zstd")
    wd.chunk_episode(episode, tmp_path / "chunks0", 3)
    for number in range(1, count):
        for kind in ("packed", "shards"):
            os.link(tmp_path / kind / "0.wshard", tmp_path / kind / f"{number}.wshard")
        shutil.copytree(tmp_path / "chunks0", tmp_path / f"chunks{number}", copy_function=os.link)
    with wd.DatasetBuilder("lab/many", catalog=str(tmp_path / "catalog")) as builder:
        builder.add_episodes("episodes", wd.LocalDataset(root)[:count]).publish()
    command = [sys.executable, "-c", TOGETHER, str(tmp_path), str(count), str(limit)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    seen, held, grown_mb = map(int, run.stdout.split())
    assert seen == 3 * count * len(CAMERA_NAMES) * FRAMES
    assert held == 2 * seen
    assert grown_mb < 100


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> OpenCameras:
    """The cameras of the process, of which only two may stay open."""
    monkeypatch.setattr(CAMERAS, "most_open", 2)
    return CAMERAS


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_camera_that_was_closed_is_opened_again(root: Path, few: OpenCameras) -> None:
    episode = wd.LocalDataset(root)[0]
    expected = {name: episode[name].values() for name in CAMERA_NAMES}
    before = descriptors()
    for _ in range(3):
        for name in CAMERA_NAMES:
            assert np.array_equal(episode[name].values(), expected[name])
            assert np.array_equal(episode[name][2][0], expected[name][2])
            assert len(few) <= 2
            assert descriptors() <= before
    again = pickle.loads(pickle.dumps(episode["a"]))
    assert np.array_equal(again.values(), expected["a"])


def test_one_in_use_is_not_closed(root: Path, few: OpenCameras) -> None:
    episode = wd.LocalDataset(root)[0]
    expected = {name: episode[name].values() for name in CAMERA_NAMES}
    wrong: list[object] = []

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for name in rng.choice(CAMERA_NAMES, 60):
                if not np.array_equal(episode[name].values(), expected[name]):
                    wrong.append(name)
        except Exception as error:  # noqa: BLE001 - said by the test
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(few) <= 2


def test_a_camera_that_is_gone_lets_go_of_its_file(root: Path) -> None:
    folder = root / f"{0:012d}" / f"{0:012d}"
    keep = wd.open_episode(folder)
    keep["b"].values()
    before = descriptors()
    for _ in range(5):
        wd.open_episode(folder)["a"].values()
    gc.collect()
    keep["b"].values()
    assert descriptors() <= before + 1


def test_frames_that_are_kept_are_bounded_over_all_cameras(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = 2 * FRAMES * 16 * 16 * 3
    monkeypatch.setattr(BLOCK_CACHE, "_max_bytes", budget)
    dataset = wd.LocalDataset(root)
    windows = wd.Windows(dataset[:4], {name: name for name in CAMERA_NAMES}, anchor=CAMERA_NAMES[0])
    for _ in wd.Loader(windows, batch_size=4):
        pass
    assert 0 < BLOCK_CACHE.held_bytes <= budget


def test_a_child_has_decoders_of_its_own(root: Path) -> None:
    camera = wd.LocalDataset(root)[0]["a"]
    expected = camera.values()
    child = os.fork()
    if child == 0:
        good = np.array_equal(camera.values(), expected) and len(CAMERAS) == 1
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(camera.values(), expected)


def test_iterating_decodes_a_few_frames_at_a_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes: 64 images of 1080 lines would be 400 MB."""
    camera = wd.LocalDataset(root)[0]["a"]
    asked: list[int] = []
    values_at = type(camera)._values_at

    def counted(self: wd.VideoSignal, indices: np.ndarray) -> np.ndarray:
        asked.append(len(indices))
        return values_at(self, indices)

    monkeypatch.setattr(type(camera), "_values_at", counted)
    monkeypatch.setattr(timeline_signal, "_BLOCK_BYTES", 2 * 16 * 16 * 3)
    assert [int(ts) for _, ts in camera] == list(range(FRAMES))
    assert asked == [2, 2]
    asked.clear()
    monkeypatch.setattr(timeline_signal, "_BLOCK_BYTES", 1)
    assert len([frame for frame, _ in camera[1:]]) == FRAMES - 1
    assert asked == [1, 1, 1]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
