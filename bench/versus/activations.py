"""Activation corpora against their peers: `python -m bench.versus.activations [--quick] [--folder F]`.

Peers: a numpy.memmap loop, safetensors, h5py, HF datasets (arrow) and a torch DataLoader over memmap; memcpy and
O_DIRECT are the limits of the machine. Rivals take turns in one run; warm ones are judged by their best round, cold
ones by their median.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import safetensors
import safetensors.numpy

import warpdata as wd
from bench import measure

BATCH = 1024
COPY_BYTES = 8 << 20
COLD_SECONDS = 120.0
"""After so long no further round of cold reads begins; a disk of 1 GB/s does all of them in half of it."""
WIDTHS = (512, 2304)
Rivals = dict[str, Callable[[], object]]


def rows_for(size: int, width: int) -> int:
    return size // (width * 4) // BATCH * BATCH


def make_corpus(folder: Path, size: int, width: int) -> Path:
    """Shards of plain f32 rows as any program writes them: no corpus.json, two shards."""
    folder.mkdir()
    block = np.random.default_rng(0).standard_normal((BATCH, width)).astype(np.float32)
    half = max(BATCH, rows_for(size // 2, width))
    for name in ("a.shard", "b.shard"):
        with wd.ActivationShardWriter(folder / name, width, durable=False) as writer:
            for _ in range(half // BATCH):
                writer.append(block)
    return folder


def shard_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.shard"))


def evict(*paths: Path) -> None:
    """Drop the files from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm_up(*paths: Path) -> None:
    for path in paths:
        with open(path, "rb") as file:
            while file.read(16 << 20):
                pass


def ours(folder: Path, **options: Any) -> None:
    with wd.open_corpus(folder, **options) as source:
        for batch in source:
            assert len(batch)


def ours_into(folder: Path, out: np.ndarray, **options: Any) -> None:
    with wd.open_corpus(folder, dtype="float32", batch_rows=len(out), **options) as source:
        while source.next_batch(out) is not None:
            pass


def ours_shuffled(folder: Path, batch_size: int, **options: Any) -> None:
    with (
        wd.open_corpus(folder, dtype="float32", **options) as source,
        wd.ShuffledRows(source, seed=1, batch_size=batch_size) as rows,
    ):
        out = np.empty((batch_size, source.width), np.float32)
        while rows.next_batch(out) is not None:
            pass


def memmaps(folder: Path, width: int) -> list[np.ndarray]:
    return [np.memmap(path, "<f4", "r", offset=32).reshape(-1, width) for path in shard_files(folder)]


def memmap_f64(folder: Path, width: int) -> None:
    for rows in memmaps(folder, width):
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH].astype("f8")
            assert len(batch)


def memmap_into(folder: Path, width: int, out: np.ndarray) -> None:
    for rows in memmaps(folder, width):
        for start in range(0, len(rows), len(out)):
            part = rows[start : start + len(out)]
            np.copyto(out[: len(part)], part)


def memmap_gather(folder: Path, width: int, batch_size: int) -> None:
    """The usual shuffle: a random permutation of row numbers, rows gathered one by one."""
    maps = memmaps(folder, width)
    rows = np.random.default_rng(0).permutation(len(maps[0]))
    for start in range(0, len(rows), batch_size):
        assert len(maps[0][np.sort(rows[start : start + batch_size])])


def memcpy(source: np.ndarray, out: np.ndarray, size: int) -> None:
    step = len(out)
    for _ in range(max(1, size // source.nbytes)):
        for start in range(0, len(source) - step + 1, step):
            np.copyto(out, source[start : start + step])


def direct_read(folder: Path) -> None:
    """Every byte past the page cache into one aligned buffer: what the device gives."""
    buffer = mmap.mmap(-1, 8 << 20)
    for path in shard_files(folder):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        offset = 0
        while (count := os.preadv(fd, [buffer], offset)) == len(buffer):
            offset += count
        os.close(fd)


def foreign_files(folder: Path, width: int, source: Path) -> dict[str, Path]:
    """The same rows in the peers' formats."""
    folder.mkdir()
    rows = np.concatenate(memmaps(source, width))
    safetensors.numpy.save_file({"x": rows}, folder / "x.safetensors")
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=rows)
    found = {"safetensors": folder / "x.safetensors", "h5py": folder / "x.h5"}
    try:
        import datasets
    except ImportError:
        return found
    import pyarrow as pa

    datasets.disable_progress_bars()
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)
    datasets.Dataset(pa.table({"x": column})).save_to_disk(str(folder / "arrow"))
    return {**found, "HF datasets arrow": folder / "arrow"}


def read_foreign(name: str, path: Path, width: int) -> None:
    """One pass over a peer's file in batches of 1024 rows as float64."""
    if name == "safetensors":
        with safetensors.safe_open(path, "numpy") as file:
            rows = file.get_slice("x")
            total = rows.get_shape()[0]
            for start in range(0, total, BATCH):
                assert len(rows[start : start + BATCH].astype("f8"))
    elif name == "h5py":
        with h5py.File(path) as file:
            for start in range(0, len(file["x"]), BATCH):
                assert len(file["x"][start : start + BATCH].astype("f8"))
    else:
        import datasets

        data = datasets.load_from_disk(str(path)).with_format("arrow")
        for start in range(0, len(data), BATCH):
            column = data[start : start + BATCH]["x"].combine_chunks()
            assert len(column.flatten().to_numpy().reshape(-1, width).astype("f8"))


class MemmapRows:
    """A map-style dataset over memmap whose items are whole batches."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder, self._width = folder, width
        self._maps: list[np.ndarray] | None = None
        self._batches = [-(-len(rows) // BATCH) for rows in memmaps(folder, width)]

    def __len__(self) -> int:
        return sum(self._batches)

    def __getitem__(self, index: int) -> np.ndarray:
        self._maps = self._maps or memmaps(self._folder, self._width)
        shard = int(index >= self._batches[0])
        start = (index - shard * self._batches[0]) * BATCH
        return np.asarray(self._maps[shard][start : start + BATCH]).astype("f8")


def torch_loader(folder: Path, width: int) -> None:
    from torch.utils.data import DataLoader

    for batch in DataLoader(MemmapRows(folder, width), batch_size=None, shuffle=False, num_workers=2):
        assert len(batch)


def rivals_f64(folder: Path, width: int, foreign: dict[str, Path]) -> tuple[Rivals, Rivals]:
    """Those the bar is about, and the other peers."""
    first: Rivals = {
        "warpdata": lambda: ours(folder),
        "memmap astype(f8)": lambda: memmap_f64(folder, width),
    }
    rivals: Rivals = {}
    for name, path in foreign.items():
        rivals[name] = lambda name=name, path=path: read_foreign(name, path, width)  # type: ignore[misc]
    try:
        import torch  # noqa: F401
    except ImportError:
        return first, rivals
    return first, {**rivals, "torch DataLoader, 2 workers": lambda: torch_loader(folder, width)}


def rates(best: dict[str, float], size: int) -> dict[str, float]:
    """GB of stored rows per second."""
    return {name: size / taken / 1e9 for name, taken in best.items()}


def race_cold(rivals: Rivals, corpus: Path, rounds: int) -> tuple[dict[str, float], dict[str, float], int]:
    """Of each rival when the files are not in the page cache: median seconds, median speed beside the device's, rounds.

    A disk may answer faster after a rest, and much slower in the next minute. So every turn follows a read of
    everything past the page cache, beside which it is judged; each round begins with another rival, and no lucky
    round decides. On a slow disk there are fewer rounds, at least one: this part reads many times what it measures.
    """
    took: dict[str, list[float]] = {name: [] for name in rivals}
    beside: dict[str, list[float]] = {name: [] for name in rivals}
    names = list(rivals)
    deadline, turn = time.monotonic() + COLD_SECONDS, 0
    while turn < rounds and (not turn or time.monotonic() < deadline):
        at = turn % len(names)
        turn += 1
        for name in names[at:] + names[:at]:
            evict(*shard_files(corpus))
            device = measure.seconds(lambda: direct_read(corpus))
            gc.collect()
            seconds = measure.seconds(rivals[name])
            took[name].append(seconds)
            beside[name].append(device / seconds)
    medians = [{name: float(np.median(each)) for name, each in found.items()} for found in (took, beside)]
    return medians[0], medians[1], turn


def one_width(folder: Path, width: int, size: int, rounds: int) -> dict[str, Any]:
    """Everything for one width."""
    corpus = make_corpus(folder / "corpus", size, width)
    files = shard_files(corpus)
    payload = sum(path.stat().st_size - 32 for path in files)
    foreign = foreign_files(folder / "foreign", width, corpus)
    out = np.empty((max(1, COPY_BYTES // (width * 4)), width), np.float32)
    small = np.empty((BATCH, width), np.float32)
    ram = np.ones((max(len(out), min(payload, 256 << 20) // (width * 4)), width), np.float32)
    moved = max(1, payload // ram.nbytes) * (len(ram) // len(out)) * out.nbytes
    moved_small = max(1, payload // ram.nbytes) * (len(ram) // len(small)) * small.nbytes
    warm_up(*files, *(path for path in foreign.values() if path.is_file()))
    report: dict[str, Any] = {"payload_bytes": payload}
    limits, peers = rivals_f64(corpus, width, foreign)
    report["f64_warm"] = rates(measure.race(limits, rounds) | measure.race(peers, min(rounds, 3)), payload)
    copies = measure.race(
        {
            "warpdata": lambda: ours_into(corpus, out),
            "memmap copy": lambda: memmap_into(corpus, width, out),
            "warpdata, 1024 rows": lambda: ours_into(corpus, small),
            "memcpy": lambda: memcpy(ram, out, payload),
            "memcpy, 1024 rows": lambda: memcpy(ram, small, payload),
            "warpdata views": lambda: ours(corpus, dtype="float32", copy=False),
        },
        rounds,
    )
    sizes = {"memcpy": moved, "memcpy, 1024 rows": moved_small}
    report["f32_warm"] = {name: sizes.get(name, payload) / took / 1e9 for name, took in copies.items()}
    report["shuffled_warm"] = rates(
        measure.race(
            {
                "warpdata, batch 1024": lambda: ours_shuffled(corpus, 1024),
                "warpdata, batch 4096": lambda: ours_shuffled(corpus, 4096),
            },
            max(2, rounds // 3),
        ),
        payload,
    )
    gather = measure.race({"memmap gather of 4096 rows": lambda: memmap_gather(corpus, width, 4096)}, 1)
    report["shuffled_warm"] |= rates(gather, files[0].stat().st_size - 32)
    took, beside, report["cold_rounds"] = race_cold(
        {
            "O_DIRECT read": lambda: direct_read(corpus),
            "warpdata mmap": lambda: ours_into(corpus, out),
            "warpdata mmap f64": lambda: ours(corpus),
            "warpdata shuffled": lambda: ours_shuffled(corpus, 4096),
            "memmap copy": lambda: memmap_into(corpus, width, out),
            "memmap astype(f8)": lambda: memmap_f64(corpus, width),
        },
        corpus,
        max(1, rounds // 2),
    )
    report["cold"], report["cold, of the O_DIRECT read before"] = rates(took, payload), beside
    return report


def checked_reading(folder: Path, size: int, rounds: int) -> dict[str, float]:
    """What comparing every run with corpus.json costs on the first pass."""
    width = 2304
    block = np.ones((BATCH, width), np.float32)
    with wd.CorpusWriter(folder, width) as writer:
        for _ in range(rows_for(size, width) // BATCH):
            writer.append(block)
    out = np.empty((BATCH, width), np.float32)
    best = measure.race(
        {
            "checked": lambda: ours_into(folder, out),
            "unchecked": lambda: ours_into(folder, out, verify=False),
        },
        rounds,
    )
    return rates(best, rows_for(size, width) * width * 4)


MEMORY = """
import sys
from bench.measure import peak_growth_bytes
from bench.versus.activations import *
how, folder = sys.argv[1], Path(sys.argv[2])
out = np.ones((BATCH, 2304), np.float32)
work = {"sequential": lambda: ours_into(folder, out), "float64": lambda: ours(folder),
        "shuffled": lambda: ours_shuffled(folder, 1024)}[how]
print(peak_growth_bytes(work))
"""


def memory(folder: Path) -> dict[str, float]:
    """Peak resident MB above the start of a fresh process, one pass each."""
    found = {}
    for how in ("sequential", "float64", "shuffled"):
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, how, str(folder)], capture_output=True, text=True, check=True
        )
        found[how] = int(done.stdout) / 1e6
    return found


def resume_ms(folder: Path, rounds: int) -> dict[str, float]:
    """Milliseconds from opening the stream with a state to the first batch, early and late in the epoch."""
    found = {}
    with wd.open_corpus(folder, dtype="float32") as source:
        for share in (0.01, 0.5, 0.99):
            position = int(source.total_rows * share) // 1024 * 1024
            best = float("inf")
            for _ in range(rounds):
                best = min(best, measure.seconds(lambda: _resumed(source, position)))  # noqa: B023
            found[f"at {share:.0%}"] = best * 1e3
    return found


def _resumed(source: wd.MmapShardSource, position: int) -> None:
    with wd.ShuffledRows(source, batch_size=1024) as rows:
        rows.load_state_dict({**rows.state_dict(), "position": position})
        assert rows.next_batch() is not None


def bars(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Each bar: what was measured, what was asked, and whether it holds."""
    found = {}

    def bar(work: str, measured: float, least: float) -> None:
        found[work] = {"value": measured, "bar": f">= {least}", "holds": measured >= least}

    for width in WIDTHS:
        part = report[f"width {width}"]
        copy, shuffled = part["f32_warm"], part["shuffled_warm"]
        cold = part["cold, of the O_DIRECT read before"]
        sequential = cold["warpdata mmap"]
        mixed = max(shuffled["warpdata, batch 1024"], shuffled["warpdata, batch 4096"])
        cold_mixed = cold["warpdata shuffled"]
        f64 = part["f64_warm"]
        bar(f"f64 warm / memmap astype, width {width}", f64["warpdata"] / f64["memmap astype(f8)"], 0.95)
        bar(f"f32 into a reused 8 MiB buffer / memcpy, width {width}", copy["warpdata"] / copy["memcpy"], 0.9)
        bar(f"cold sequential / O_DIRECT, width {width}", sequential / cold["O_DIRECT read"], 0.85)
        bar(f"cold shuffled / cold sequential, width {width}", cold_mixed / sequential, 0.7)
        bar(
            f"shuffled warm / (1.5 GB/s or 0.15 memcpy), width {width}",
            mixed / min(1.5, 0.15 * copy["memcpy"]),
            1.0,
        )
    for how, peak in report["memory_mb"].items():
        bar(f"128 MB / peak resident MB, {how}", 128 / peak, 1.0)
    bar("50 ms / resume at the worst position", 50 / max(report["resume_ms"].values()), 1.0)
    return found


def run(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Measure everything inside `folder`."""
    size, rounds = (12 << 20, 1) if quick else (256 << 20, 30)
    report: dict[str, Any] = {"is_quick": quick}
    for width in WIDTHS:
        place = folder / f"width-{width}"
        place.mkdir()
        report[f"width {width}"] = one_width(place, width, size, rounds)
        shutil.rmtree(place)
    report["checked_first_pass"] = checked_reading(folder / "checked", size, rounds)
    big = make_corpus(folder / "big", size if quick else 4 << 30, 2304)
    report["memory_mb"] = memory(big)
    warm_up(*shard_files(big))
    report["resume_ms"] = resume_ms(big, rounds)
    report["bars"] = bars(report)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small corpora, seconds instead of minutes")
    parser.add_argument("--folder", type=Path, help="where to put the corpora (a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as temp:
        report = run(Path(temp), quick=args.quick)
    if not args.quick:
        measure.save("activations", report)
    for part, numbers in report.items():
        if isinstance(numbers, dict):
            print(part, {k: (v if isinstance(v, dict) else round(v, 2)) for k, v in numbers.items()})
    for work, bar in report["bars"].items():
        print(f"{'met ' if bar['holds'] else 'LOST'} {bar['value']:6.2f} (bar {bar['bar']}) {work}")


if __name__ == "__main__":
    main()
