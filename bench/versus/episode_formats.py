"""One episode in seven formats: `python -m bench.versus.episode_formats [--quick]`.

Peers: h5py (contiguous, and gzip in 16-frame chunks), np.savez, zarr v3, safetensors, mcap. Ratios come from one
run in which all take turns.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import mcap.reader
import mcap.writer
import numpy as np
import safetensors.numpy
import zarr

import warpdata as wd
from bench import data as bench_data
from bench import measure
from warpdata.formats.wshard import ShardReader

Arrays = dict[str, np.ndarray]
WINDOW = 16


def arrays_of(episode: wd.WShardEpisode) -> Arrays:
    return {
        "rgb": episode.observations["rgb"].data,
        "state": episode.observations["state"].data,
        "ctrl": episode.actions["ctrl"].data,
    }


def write_h5(path: Path, arrays: Arrays, **options: Any) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            chunks = {"chunks": (min(WINDOW, len(array)), *array.shape[1:]), **options} if options else {}
            file.create_dataset(name, data=array, **chunks)


def write_zarr(path: Path, arrays: Arrays) -> None:
    shutil.rmtree(path, ignore_errors=True)
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        made = group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(WINDOW * 8, *array.shape[1:]),
            compressors=None,
        )
        made[:] = array


def write_mcap(path: Path, arrays: Arrays) -> None:
    with open(path, "wb") as stream:
        writer = mcap.writer.Writer(stream, compression=mcap.writer.CompressionType.NONE)
        writer.start()
        channels = {name: writer.register_channel(name, "raw", 0) for name in arrays}
        for step in range(len(arrays["state"])):
            for name, array in arrays.items():
                writer.add_message(channels[name], step, array[step].tobytes(), step)
        writer.finish()


def read_mcap(path: Path) -> list[bytes]:
    with open(path, "rb") as stream:
        return [message.data for _, _, message in mcap.reader.make_reader(stream).iter_messages()]


def read_all(episode: wd.WShardEpisode) -> list[np.ndarray]:
    return [channel.data for _, channel in episode.lanes()]


def h5_all(path: Path) -> list[np.ndarray]:
    with h5py.File(path) as file:
        return [file[name][:] for name in file]


def npz_all(path: Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[name] for name in file.files]


LINKS = 600
"""Names of one file: every call opens one that this process has not opened before."""


def one_block(kind: str, folder: Path) -> Callable[[], object]:
    """Open a file for the first time and read one small tensor: by the public calls, and by the reader behind them."""
    suffix = {"h5py": "h5", "npz": "npz", "safetensors": "safetensors"}.get(kind, "wshard")
    links = folder / f"links_{kind}"
    links.mkdir(exist_ok=True)
    for number in range(LINKS):
        if not (links / f"{number}.{suffix}").exists():
            os.link(folder / f"a.{suffix}", links / f"{number}.{suffix}")
    paths = itertools.cycle([links / f"{number}.{suffix}" for number in range(LINKS)])

    def inner() -> object:
        with ShardReader.open(next(paths)) as shard:
            return shard.read("action/ctrl")

    def h5() -> object:
        with h5py.File(next(paths)) as file:
            return file["ctrl"][:]

    def npz() -> object:
        with np.load(next(paths)) as file:
            return file["ctrl"]

    def tensors() -> object:
        with safetensors.safe_open(next(paths), "np") as file:
            return file.get_tensor("ctrl")

    return {
        "load_wshard": lambda: wd.load_wshard(next(paths)).actions["ctrl"].data,
        "open_episode": lambda: wd.open_episode(next(paths))["ctrl"].values(),
        "inner_reader": inner,
        "h5py": h5,
        "npz": npz,
        "safetensors": tensors,
        "zarr": lambda: zarr.open_group(folder / "a.zarr", mode="r")["ctrl"][:],
    }[kind]


def windows(folder: Path, arrays: Arrays, rounds: int) -> dict[str, dict[str, float]]:
    """16-frame windows at random places, readers open."""
    steps = len(arrays["rgb"])
    places = np.random.default_rng(2).integers(0, steps - WINDOW, 20).tolist()
    raw = wd.load_wshard(folder / "a.wshard").observations["rgb"]
    packed = wd.load_wshard(folder / "seekable.wshard").observations["rgb"]
    h5, gzip = h5py.File(folder / "a.h5")["rgb"], h5py.File(folder / "gzip.h5")["rgb"]
    z = zarr.open_group(folder / "a.zarr", mode="r")["rgb"]
    tensors = safetensors.safe_open(folder / "a.safetensors", "np").get_slice("rgb")

    def sweep(source: Any) -> Callable[[], None]:
        def visit() -> None:
            # As a training loop does: a window is used and dropped before the next one is read.
            for at in places:
                source[at : at + WINDOW]

        return visit

    found = {
        "window_raw": measure.race(
            {"warpdata": sweep(raw), "h5py": sweep(h5), "zarr": sweep(z), "safetensors": sweep(tensors)},
            rounds,
        ),
        "window_compressed": measure.race({"warpdata": sweep(packed), "h5py_gzip": sweep(gzip)}, rounds),
    }
    return {task: {name: each / len(places) for name, each in rows.items()} for task, rows in found.items()}


def files(
    folder: Path, episode: wd.WShardEpisode, arrays: Arrays, rounds: int
) -> dict[str, dict[str, float]]:
    """Save and read whole files."""
    save = {
        "warpdata": lambda: wd.save_wshard(episode, folder / "a.wshard", overwrite=True, durable=False),
        "h5py": lambda: write_h5(folder / "a.h5", arrays),
        "npz": lambda: np.savez(folder / "a.npz", **arrays),
        "safetensors": lambda: safetensors.numpy.save_file(arrays, folder / "a.safetensors"),
        "zarr": lambda: write_zarr(folder / "a.zarr", arrays),
        "mcap": lambda: write_mcap(folder / "a.mcap", arrays),
    }
    read = {
        "warpdata": lambda: read_all(wd.load_wshard(folder / "a.wshard")),
        "h5py": lambda: h5_all(folder / "a.h5"),
        "npz": lambda: npz_all(folder / "a.npz"),
        "safetensors": lambda: list(safetensors.numpy.load_file(folder / "a.safetensors").values()),
        "zarr": lambda: [array[:] for _, array in zarr.open_group(folder / "a.zarr", mode="r").arrays()],
        "mcap": lambda: read_mcap(folder / "a.mcap"),
    }
    # A write that finds free pages takes half the usual time: the usual one counts.
    saved = measure.race(save, rounds, judge=statistics.median)
    found = {"save_raw": saved, "read_all_raw": measure.race(read, rounds)}
    write_h5(folder / "gzip.h5", arrays, compression="gzip")
    wd.save_wshard(episode, folder / "seekable.wshard", {"rgb": "zstd-seekable:3"}, durable=False)
    names = ("load_wshard", "open_episode", "inner_reader", "h5py", "npz", "safetensors", "zarr")
    found["open_and_read_one_block"] = measure.race(
        {name: one_block(name, folder) for name in names}, 3 * rounds, calls=10, judge=statistics.median
    )
    return found


def appends(folder: Path, steps: int, *, image: bool) -> dict[str, Any]:
    """Recording step by step, against a bare write of the same bytes to the same disk."""
    state, ctrl = np.zeros(7, np.float32), np.zeros(7, np.float32)
    pixels = bench_data.frames(8)
    values: dict[str, np.ndarray] = {"state": state, "ctrl": ctrl}
    channels: list[dict[str, Any]] = [
        {"id": "state", "dtype": "f32", "shape": [7]},
        {"id": "ctrl", "dtype": "f32", "shape": [7], "lane": "action"},
    ]
    if image:
        channels.append({"id": "rgb", "dtype": "u8", "shape": [84, 84, 3]})
    size = 14 * 4 + 4 + 1 + (pixels[0].nbytes if image else 0)

    def ours(writer: wd.WShardStreamWriter) -> Callable[[int], None]:
        def step(index: int) -> None:
            if image:
                values["rgb"] = pixels[index % 8]
            writer.write_timestep(values, reward=1.0, done=False)

        return step

    source, scratch = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    fd = os.open(folder / "bare", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)

    def bare(index: int) -> None:
        if image:
            scratch[:] = source
        os.write(fd, scratch)

    report: dict[str, Any] = {"bytes_per_step": size}
    writer = wd.WShardStreamWriter(folder / "stream.wshard", "s", channels)
    writer.begin_episode()
    step = ours(writer)
    report["bare_write_us"] = measure.latencies_us(bare, steps // 2)
    before = measure.resident_bytes()
    report["append_us"] = measure.latencies_us(step, steps)
    report["resident_growth_bytes"] = measure.resident_bytes() - before
    report["bare_write_again_us"] = measure.latencies_us(bare, steps // 2)
    os.close(fd)
    report["end_episode_peak_growth_bytes"] = measure.peak_growth_bytes(writer.end_episode)
    report["file_bytes"] = os.path.getsize(folder / "stream.wshard")
    assert wd.load_wshard(folder / "stream.wshard").length == steps
    for name in ("bare", "stream.wshard"):
        os.unlink(folder / name)
    return report


def ratios(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each bar: what was measured, what was asked, and whether it holds."""
    save, read, block = found["save_raw"], found["read_all_raw"], found["open_and_read_one_block"]
    raw, packed = found["window_raw"], found["window_compressed"]
    small, image = found["append_small"], found["append_image"]

    def bare(report: dict[str, Any]) -> float:
        return min(report["bare_write_us"]["p50"], report["bare_write_again_us"]["p50"])

    rows = {
        "save raw: speed / h5py contiguous": (save["h5py"] / save["warpdata"], ">=", 1.0),
        "read everything raw: speed / npz": (read["npz"] / read["warpdata"], ">=", 2.0),
        "read everything raw: speed / h5py": (read["h5py"] / read["warpdata"], ">=", 1.0),
        "load_wshard and read one block: time / npz": (block["load_wshard"] / block["npz"], "<=", 0.5),
        "load_wshard and read one block: time / h5py": (block["load_wshard"] / block["h5py"], "<=", 1 / 3),
        "open_episode and read one block: time / npz": (block["open_episode"] / block["npz"], "<=", 0.8),
        "open_episode and read one block: time / h5py": (block["open_episode"] / block["h5py"], "<=", 0.4),
        "ShardReader and read one block: time / npz": (block["inner_reader"] / block["npz"], "<=", 1 / 2),
        "ShardReader and read one block: time / h5py": (block["inner_reader"] / block["h5py"], "<=", 1 / 4),
        "16-frame window raw: time / h5py": (raw["warpdata"] / raw["h5py"], "<=", 1 / 5),
        "16-frame window compressed: time / h5py gzip": (
            packed["warpdata"] / packed["h5py_gzip"],
            "<=",
            1 / 3,
        ),
        "append 14 floats: p50 / os.write": (small["append_us"]["p50"] / bare(small), "<=", 3.0),
        "append 14 floats: p99.9 in ms": (small["append_us"]["p99.9"] / 1000, "<", 1.0),
        "append with image: p50 / memcpy+os.write": (image["append_us"]["p50"] / bare(image), "<=", 3.0),
        "append with image: p99 in ms": (image["append_us"]["p99"] / 1000, "<", 0.3),
        "append with image: resident growth in MB": (image["resident_growth_bytes"] / 1e6, "<", 16.0),
        "end_episode: peak growth in MB": (image["end_episode_peak_growth_bytes"] / 1e6, "<", 96.0),
    }
    return {
        name: {
            "value": round(value, 4),
            "bar": f"{sign} {limit:.3g}",
            "holds": bool(value <= limit if "<" in sign else value >= limit),
        }
        for name, (value, sign, limit) in rows.items()
    }


def run(folder: Path, *, steps: int, rounds: int, small: int, large: int) -> dict[str, Any]:
    episode = bench_data.episode(steps)
    arrays = arrays_of(episode)
    found: dict[str, Any] = files(folder, episode, arrays, rounds)
    found |= windows(folder, arrays, rounds)
    found["append_small"] = appends(folder, small, image=False)
    found["append_image"] = appends(folder, large, image=True)
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    return {"steps": steps, "bars": ratios(found), "seconds": found, "file_bytes": sizes}


def table(report: dict[str, Any]) -> str:
    out = io.StringIO()
    out.write("| task | measured | bar | holds |\n|---|---|---|---|\n")
    for name, row in report["bars"].items():
        out.write(f"| {name} | {row['value']:.3g} | {row['bar']} | {'yes' if row['holds'] else '**no**'} |\n")
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that writes no results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.quick:
            report = run(Path(folder), steps=100, rounds=2, small=500, large=200)
        else:
            report = run(Path(folder), steps=1000, rounds=15, small=100_000, large=20_000)
            measure.save("episode_formats", report)
    print(table(report))


if __name__ == "__main__":
    main()
