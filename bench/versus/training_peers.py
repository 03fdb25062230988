"""Other loaders on the same windows, each in its own format and process: what it leaves open dies with it.

python -m bench.versus.training_peers rate <peer> '{"work": …, "batches": …}'
python -m bench.versus.training_peers check '{"work": …}' <peer> …

They run in environments of their own, without warpdata; see `bench/environments.py`.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.environments import Environment
from bench.versus.converting_peers import PEERS as CONVERTERS

WIDTH, BATCH = 16, int(os.environ.get("BENCH_BATCH", "64"))
WORKERS = int(os.environ.get("BENCH_WORKERS", "2"))
TIMEOUT_S = 300.0
CUT_WINDOWS = 2000
"""Where windows must be cut in advance each holds its frames sixteen times over, so only so many are written."""


def arrays(work: Path) -> tuple[Any, Any, int]:
    """The frames and vectors of all episodes, one after the other, and the steps of each."""
    images, actions = (np.load(work / f"{name}.npy", mmap_mode="r") for name in ("image", "action"))
    return images, actions, json.loads((work / "steps.json").read_text())


def shuffled_starts(total: int, steps: int, seed: int = 0) -> Any:
    """The first step of every window, in a random order."""
    starts = (np.arange(total // steps)[:, None] * steps + np.arange(steps - WIDTH + 1)).reshape(-1)
    np.random.default_rng(seed).shuffle(starts)
    return starts


class WindowsOf:
    """A map-style dataset of windows over two arrays that something opens in each worker."""

    def __init__(self, opened: Callable[[], tuple[Any, Any]], total: int, steps: int) -> None:
        self._opened = opened
        self._starts = shuffled_starts(total, steps)
        self._arrays: tuple[Any, Any] | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._arrays is None:
            self._arrays = self._opened()
        start = int(self._starts[index])
        image, action = self._arrays
        return {
            "image": np.asarray(image[start : start + WIDTH]),
            "action": np.asarray(action[start : start + WIDTH]),
        }


def torch_loader(data: Any, **options: Any) -> Iterator[Any]:
    import torch.utils.data

    return iter(
        torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=WORKERS, drop_last=True, **options)
    )


# One writer and one reader for each.


def write_nothing(work: Path, folder: Path) -> None:
    """It reads the arrays themselves."""


def read_memmap(work: Path, folder: Path) -> Iterator[Any]:
    images, actions, steps = arrays(work)
    return torch_loader(WindowsOf(lambda: (images, actions), len(images), steps), shuffle=True)


def read_grain(work: Path, folder: Path) -> Iterator[Any]:
    import grain

    images, actions, steps = arrays(work)
    data = grain.MapDataset.source(WindowsOf(lambda: (images, actions), len(images), steps)).shuffle(seed=1)
    return iter(data.batch(BATCH, drop_remainder=True).to_iter_dataset(grain.ReadOptions(num_threads=8)))


def write_h5py(work: Path, folder: Path) -> None:
    import h5py

    images, actions, steps = arrays(work)
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for number, low in enumerate(range(0, len(images), steps)):
            demo = file.create_group(f"data/demo_{number}")
            demo["obs/image"] = images[low : low + steps]
            demo["actions"] = actions[low : low + steps]


class Demos:
    """Rows of all demonstrations of a robomimic file by one number."""

    def __init__(self, file: Any, key: str, steps: int) -> None:
        self._demos = [file[f"data/demo_{number}/{key}"] for number in range(len(file["data"]))]
        self._steps = steps

    def __getitem__(self, rows: slice) -> Any:
        demo, low = divmod(rows.start, self._steps)
        return self._demos[demo][low : low + rows.stop - rows.start]


def read_h5py(work: Path, folder: Path) -> Iterator[Any]:
    import h5py

    images, _, steps = arrays(work)

    def opened() -> tuple[Any, Any]:
        file = h5py.File(folder / "demos.hdf5", "r")
        return Demos(file, "obs/image", steps), Demos(file, "actions", steps)

    return torch_loader(WindowsOf(opened, len(images), steps), shuffle=True)


def write_zarr(work: Path, folder: Path) -> None:
    import zarr

    images, actions, _ = arrays(work)
    root = zarr.open_group(folder / "replay.zarr", mode="w", zarr_format=2)
    for name, each, rows in (("img", images, 1), ("action", actions, 1000)):
        made = root.create_array(name, shape=each.shape, chunks=(rows, *each.shape[1:]), dtype=each.dtype)
        for low in range(0, len(each), 1000):
            made[low : low + 1000] = each[low : low + 1000]


def read_zarr(work: Path, folder: Path) -> Iterator[Any]:
    import zarr

    images, _, steps = arrays(work)

    def opened() -> tuple[Any, Any]:
        root = zarr.open_group(folder / "replay.zarr", mode="r")
        return root["img"], root["action"]

    return torch_loader(WindowsOf(opened, len(images), steps), shuffle=True)


def read_zarr_in_ram(work: Path, folder: Path) -> Iterator[Any]:
    """As diffusion-policy trains: everything is copied into memory first."""
    import zarr

    images, _, steps = arrays(work)
    root = zarr.open_group(folder / "replay.zarr", mode="r")
    image, action = root["img"][:], root["action"][:]
    return torch_loader(WindowsOf(lambda: (image, action), len(images), steps), shuffle=True)


def cut_windows(work: Path) -> Iterator[dict[str, Any]]:
    images, actions, steps = arrays(work)
    for start in shuffled_starts(len(images), steps)[:CUT_WINDOWS].tolist():
        yield {
            "image": np.array(images[start : start + WIDTH]),
            "action": np.array(actions[start : start + WIDTH]),
        }


def write_mosaic(work: Path, folder: Path) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "ndarray", "action": "ndarray"}) as writer:
        for sample in cut_windows(work):
            writer.write(sample)


def read_mosaic(work: Path, folder: Path) -> Iterator[Any]:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # what an earlier process left keeps a new one from reading the same folder
    remote = os.environ.get("BENCH_REMOTE")
    place = {"remote": remote, "local": str(folder / "cold")} if remote else {"local": str(folder)}
    data = StreamingDataset(**place, shuffle=True, batch_size=BATCH)
    for stream in data.streams:
        # The connection that brought the index: forked workers would share it, and mix up each other's bytes.
        stream._downloader.clean_up()
    return torch_loader(data)


def write_litdata(work: Path, folder: Path) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=64 << 20)
    for number, sample in enumerate(cut_windows(work)):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()


def read_litdata(work: Path, folder: Path) -> Iterator[Any]:
    import litdata

    remote, options = os.environ.get("BENCH_REMOTE"), {}
    if remote:
        endpoint = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        from litdata.streaming import downloader

        # Its faster client refuses a server without TLS unless it is told, which no option of its own does.
        getattr(downloader, "_OBSTORE_CLIENT_OPTIONS", {})["allow_http"] = True
        options = {"cache_dir": str(folder / "cold"), "storage_options": endpoint}
    data = litdata.StreamingDataset(remote or str(folder), shuffle=True, **options)
    return iter(litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=WORKERS, drop_last=True))


def write_webdataset(work: Path, folder: Path) -> None:
    import webdataset

    images, actions, steps = arrays(work)
    for number, low in enumerate(range(0, len(images), steps)):
        with webdataset.TarWriter(str(folder / f"{number:04d}.tar")) as tar:
            parts = {"image.npy": images[low : low + steps], "action.npy": actions[low : low + steps]}
            tar.write({"__key__": f"{number:04d}", **{name: _npy(each) for name, each in parts.items()}})


def _npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.asarray(array))
    return sink.getvalue()


def read_webdataset(work: Path, folder: Path) -> Iterator[Any]:
    import webdataset

    data = webdataset.WebDataset(
        [str(each) for each in sorted(folder.glob("*.tar"))], shardshuffle=100, seed=1
    )
    return torch_loader(data.decode().compose(_cut).shuffle(1000))


def _cut(episodes: Any) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    for episode in episodes:
        image, action = episode["image.npy"], episode["action.npy"]
        for start in rng.integers(0, len(image) - WIDTH + 1, 64).tolist():
            yield {
                "image": image[start : start + WIDTH].copy(),
                "action": action[start : start + WIDTH].copy(),
            }


FPS = 20


def write_lerobot(work: Path, folder: Path) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    images, actions, steps = arrays(work)
    shape = images.shape[1:]
    features = {
        "observation.image": {"dtype": "video", "shape": shape, "names": ["height", "width", "channels"]},
        "action": {"dtype": "float32", "shape": (7,), "names": [f"a{n}" for n in range(7)]},
    }
    data = LeRobotDataset.create(
        "bench/windows", fps=FPS, features=features, root=folder / "set", use_videos=True
    )
    for low in range(0, int(os.environ["BENCH_EPISODES"]) * steps, steps):
        for row in range(low, low + steps):
            data.add_frame(
                {
                    "observation.image": np.asarray(images[row]),
                    "action": np.asarray(actions[row]),
                    "task": "t",
                }
            )
        data.save_episode()
    if hasattr(data, "finalize"):
        data.finalize()


def read_lerobot(work: Path, folder: Path) -> Iterator[Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    offsets = [step / FPS for step in range(WIDTH)]
    data = LeRobotDataset(
        "bench/windows",
        root=folder / "set",
        delta_timestamps={"observation.image": offsets, "action": offsets},
    )
    return torch_loader(data, shuffle=True)


CAMERAS, CAMERA_FPS, CHUNK = 2, 30, 50


def write_lerobot_cameras(work: Path, folder: Path) -> None:
    """Two cameras of 480x640 as LeRobot encodes them by default."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    frames = Path(os.environ["BENCH_FRAMES"])
    video = {"dtype": "video", "shape": (480, 640, 3), "names": ["height", "width", "channels"]}
    features: dict[str, Any] = {f"observation.images.c{camera}": video for camera in range(CAMERAS)}
    features["action"] = {"dtype": "float32", "shape": (7,), "names": [f"a{n}" for n in range(7)]}
    data = LeRobotDataset.create(
        "bench/cameras", fps=CAMERA_FPS, features=features, root=folder / "set", use_videos=True
    )
    for episode in range(len(list(frames.glob("*-0.npy")))):
        films = [np.load(frames / f"{episode}-{camera}.npy", mmap_mode="r") for camera in range(CAMERAS)]
        for step in range(len(films[0])):
            images = {f"observation.images.c{n}": np.asarray(film[step]) for n, film in enumerate(films)}
            data.add_frame({**images, "action": np.full(7, step, np.float32), "task": "t"})
        data.save_episode()
    data.finalize()


def read_lerobot_cameras(work: Path, folder: Path) -> Iterator[Any]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    chunk = [step / CAMERA_FPS for step in range(CHUNK)]
    data = LeRobotDataset("bench/cameras", root=folder / "set", delta_timestamps={"action": chunk})
    return torch_loader(data, shuffle=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """How a peer writes its own form of the data and reads it, and the environment it runs in."""

    write: Callable[[Path, Path], None]
    read: Callable[[Path, Path], Iterator[Any]]
    folder: str
    environment: str = "training-loaders"
    is_video: bool = False
    is_remote: bool = False
    """Whether it streams from S3 with a shuffle of everything."""


PEERS: dict[str, Peer] = {
    "memmap, DataLoader": Peer(write_nothing, read_memmap, "memmap"),
    "Grain": Peer(write_nothing, read_grain, "grain"),
    "h5py, robomimic layout": Peer(write_h5py, read_h5py, "h5py"),
    "zarr, diffusion-policy layout": Peer(write_zarr, read_zarr, "zarr"),
    "zarr, diffusion-policy layout, all in RAM": Peer(write_zarr, read_zarr_in_ram, "zarr"),
    "mosaicml-streaming, windows cut in advance": Peer(write_mosaic, read_mosaic, "mosaic", is_remote=True),
    "litdata, windows cut in advance": Peer(write_litdata, read_litdata, "litdata", is_remote=True),
    "webdataset, no global shuffle": Peer(write_webdataset, read_webdataset, "webdataset"),
    "LeRobot, video": Peer(write_lerobot, read_lerobot, "lerobot", "lerobot-0.6.1", is_video=True),
}

CAMERA_PEER = "LeRobot, two cameras"
CAMERA_PEERS = {
    CAMERA_PEER: Peer(write_lerobot_cameras, read_lerobot_cameras, "lerobot-cameras", "lerobot-0.6.1")
}

LOADERS, LEROBOT = "training-loaders", "lerobot-0.6.1"
ENVIRONMENTS = {
    LOADERS: Environment(
        "3.11",
        (
            (
                "torch",
                "torchvision",
                "numpy",
                "grain>=0.2.18",
                "litdata>=0.2.76",
                "mosaicml-streaming>=0.13",
                "webdataset>=1.0",
                "zarr>=3.0",
                "h5py",
            ),
        ),
    ),
    LEROBOT: CONVERTERS[LEROBOT],
}
"""mosaicml-streaming loads torchvision, which loads only beside the torch it was built for: no plain build will do."""


def ffmpeg_of(python: str, folder: Path) -> dict[str, str]:
    """What makes torchcodec find the FFmpeg that PyAV brings along, where the system has none: the faster decoder."""
    code = "import av, pathlib; print(pathlib.Path(av.__file__).parent.parent / 'av.libs')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    links = folder / "ffmpeg"
    links.mkdir(parents=True, exist_ok=True)
    for path in Path(found).glob("*.so*") if found else ():
        plain = re.sub(r"-[0-9a-f]{8}(\.so(?:\.[0-9]+)?).*", r"\1", path.name)
        for name in {path.name, plain}:
            if not (links / name).exists():
                (links / name).symlink_to(path)
    return {"LD_LIBRARY_PATH": str(links)}


def peer(name: str, work: Path, batches: int, *, python: str, **env: str) -> float | str:
    """Windows per second of a peer, or why there is no such number."""
    asked = json.dumps({"work": str(work), "batches": batches})
    return _answer([python, "-m", "bench.versus.training_peers", "rate", name, asked], env)


def _answer(command: list[str], env: Mapping[str, str]) -> float | str:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, **env}
    try:
        found = subprocess.run(
            command, env=environment, cwd=root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIMEOUT_S:.0f} s"
    if found.returncode:
        lines = found.stderr.strip().splitlines() or ["no message"]
        named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
        return f"failed: {(named or lines)[-1][:200]}"
    return float(found.stdout.strip().splitlines()[-1])


def opened(name: str, work: Path) -> Iterator[Any]:
    """The batches of a peer; its form of the data is written first, if it is not there yet."""
    made = (PEERS | CAMERA_PEERS)[name]
    folder = work / "peers" / made.folder
    if not (folder / "written").exists():
        folder.mkdir(parents=True, exist_ok=True)
        made.write(work, folder)
        (folder / "written").touch()
    return made.read(work, folder)


def rate(name: str, work: Path, batches: int) -> float:
    """Windows per second once the first batches are there."""
    found = opened(name, work)
    for _ in range(0 if "BENCH_REMOTE" in os.environ else 4):
        next(found)
    start, count = time.perf_counter(), 0
    for _ in found:
        count += 1
        if count == batches:
            break
    return BATCH * count / (time.perf_counter() - start)


def check(name: str, work: Path) -> None:
    """Raise unless the first batches hold windows of the data, whole and unchanged."""
    images, actions, _ = arrays(work)
    rows = {action.tobytes(): row for row, action in enumerate(actions)}
    found = opened(name, work)
    for _ in range(2):
        batch = next(found)
        assert len(batch["action"]) == BATCH, name
        pairs = zip(np.asarray(batch["image"]), np.asarray(batch["action"]), strict=True)
        for image, action in pairs:
            row = rows[action[0].tobytes()]
            np.testing.assert_array_equal(action, actions[row : row + WIDTH])
            np.testing.assert_array_equal(image, images[row : row + WIDTH])


def main() -> None:
    if sys.argv[1] == "check":
        for name in sys.argv[3:]:
            check(name, Path(json.loads(sys.argv[2])["work"]))
    else:
        asked = json.loads(sys.argv[3])
        print(rate(sys.argv[2], Path(asked["work"]), asked["batches"]), flush=True)
    os._exit(0)  # workers of some libraries never end by themselves


if __name__ == "__main__":
    main()
