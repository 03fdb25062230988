"""What the public calls cost beside the readers behind them: `python -m bench.versus.public_calls [--quick]`.

Each door and its inner reader open the same thing and read a little of it, in turns; medians count.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from bench import measure, tables
from warpdata._api import table_streams
from warpdata.catalog.access import access_options, parse_name
from warpdata.catalog.dataset import open_dataset
from warpdata.episodes.sources.disk_episode import DiskEpisode
from warpdata.formats.wshard import ShardReader
from warpdata.settings import Settings

Pair = dict[str, Callable[[], object]]


def shard_doors(folder: Path) -> dict[str, Pair]:
    episode = wd.WShardEpisode(id="door", length=1000)
    for name in ("joint", "velocity"):
        episode.observations[name] = np.random.default_rng(0).normal(size=(1000, 7)).astype(np.float32)
    path = str(folder / "door.wshard")
    wd.save_wshard(episode, path)

    def inner() -> object:
        with ShardReader.open(path) as shard:
            return shard.read_rows("signal/joint", 0, 1000)

    return {
        "load_wshard": {"door": lambda: wd.load_wshard(path).observations["joint"].data, "inner": inner},
        "open_episode": {"door": lambda: wd.open_episode(path)["joint"].values(), "inner": inner},
    }


def recording_doors(folder: Path) -> dict[str, Pair]:
    root = folder / "recordings"
    for _ in range(5):
        with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
            for i in range(100):
                writer.append("joint", np.zeros(7, np.float32), i)
    directory = root / "000000000000" / "000000000000"
    return {
        "open_recordings": {
            "door": lambda: wd.open_recordings(root)[0]["joint"].values(),
            "inner": lambda: wd.LocalDataset(root)[0]["joint"].values(),
        },
        "open_episode of a directory": {
            "door": lambda: wd.open_episode(directory)["joint"].values(),
            "inner": lambda: DiskEpisode(directory)["joint"].values(),
        },
    }


def corpus_doors(folder: Path) -> dict[str, Pair]:
    root = folder / "corpus"
    with wd.CorpusWriter(root, 64) as corpus:
        corpus.append(np.zeros((2000, 64), np.float32))

    def first(source: Any) -> object:
        with source:
            return source.next_batch()

    return {
        "open_corpus": {
            "door": lambda: first(wd.open_corpus(root, batch_rows=512)),
            "inner": lambda: first(wd.MmapShardSource.open_dir(root, batch_rows=512)),
        }
    }


def vector_doors(folder: Path) -> dict[str, Pair]:
    path = folder / "vectors.rvf"
    vectors = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
    with wd.VectorStore.create(path, dim=32) as store:
        store.add(vectors)

    def search(store: Any) -> object:
        with store:
            return store.search(vectors[0], k=5)

    return {
        "open_vectors": {
            "door": lambda: search(wd.open_vectors(path)),
            "inner": lambda: search(wd.VectorStore.open(path)),
        }
    }


def dataset_doors(folder: Path) -> dict[str, Pair]:
    catalog = str(folder / "catalog")
    with wd.DatasetBuilder("bench/door", catalog=catalog) as builder:
        builder.add_table("main", {"step": list(range(1000))})
        builder.publish(message="door")
    options = access_options(Settings.from_env(), catalogs=(catalog,))
    streams = table_streams()

    def read(dataset: Any) -> object:
        with dataset:
            return dataset.table("main").head(5)

    return {
        "dataset": {
            "door": lambda: read(wd.dataset("bench/door", catalog=catalog)),
            "inner": lambda: read(open_dataset(parse_name("bench/door"), options, streams)),
        }
    }


def run(folder: Path, rounds: int, calls: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for make in (shard_doors, recording_doors, corpus_doors, vector_doors, dataset_doors):
        for name, pair in make(folder).items():
            took = measure.race(pair, rounds, calls, judge=statistics.median)
            found[f"{name}: µs"] = round(took["door"] * 1e6, 1)
            found[f"{name}: time / inner reader"] = round(took["door"] / took["inner"], 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that writes no results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = run(Path(folder), rounds=3 if args.quick else 51, calls=2 if args.quick else 10)
        if not args.quick:
            measure.save("public_calls", report)
    print(tables.table(report))


if __name__ == "__main__":
    main()
