"""Streaming libraries on the same pictures and rows, each in a process of its own: what they leave open dies with it.

python -m bench.versus.streaming_peers <peer> '{"source": …, "count": …}'
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MODULES = {
    "webdataset": "webdataset",
    "litdata": "litdata",
    "mosaicml-streaming": "streaming",
    "HF datasets": "datasets",
}
TIMEOUT_S = 150.0


def write_mosaic(folder: Path, samples: Iterable[dict[str, Any]], columns: dict[str, str]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns=columns, size_limit=4 << 20) as writer:
        for sample in samples:
            writer.write(sample)


def write_litdata(folder: Path, samples: Iterable[dict[str, Any]], columns: dict[str, str]) -> None:
    from litdata.streaming.writer import BinaryWriter

    folder.mkdir(parents=True)
    writer = BinaryWriter(str(folder), chunk_bytes=4 << 20)
    for number, sample in enumerate(samples):
        writer.add_item(number, sample)
    writer.done()
    writer.merge()


def read_mosaic(source: str, count: int, cache: str) -> int:
    from streaming import StreamingDataset

    place = {"remote": source, "local": cache} if "://" in source else {"local": source}
    return _consumed(StreamingDataset(**place, shuffle=False, batch_size=64), count)


def read_litdata(source: str, count: int, cache: str) -> int:
    import litdata

    options: dict[str, Any] = {}
    if "://" in source:
        endpoint = os.environ["AWS_ENDPOINT_URL"]
        options = {"cache_dir": cache, "storage_options": {"endpoint_url": endpoint}}
    return _consumed(litdata.StreamingDataset(source, **options), count)


def read_webdataset(source: list[str], count: int, cache: str) -> int:
    import webdataset

    urls = [f"pipe:curl -s '{one}'" if "://" in one else one for one in source]
    return _consumed(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False), count)


def read_hf(source: list[str], count: int, cache: str) -> int:
    import datasets

    from bench.catalog_data import WANTED

    data = datasets.load_dataset("parquet", data_files=source, split="train", streaming=True, columns=WANTED)
    return sum(batch.num_rows for batch in data.with_format("arrow").iter(65_536)) - count


def _consumed(samples: Iterable[Any], count: int) -> int:
    return sum(1 for _ in samples) - count


READERS: dict[str, Callable[..., int]] = {
    "webdataset": read_webdataset,
    "litdata": read_litdata,
    "mosaicml-streaming": read_mosaic,
    "HF datasets": read_hf,
}
WRITERS: dict[str, Callable[..., None]] = {"litdata": write_litdata, "mosaicml-streaming": write_mosaic}


def write_for(peer: str, folder: Path, pictures: Path) -> str | None:
    """The pictures in a peer's own format; why not, if it cannot."""
    return _run(peer, {"write": str(folder), "pictures": str(pictures)}).get("error")


def rate(peer: str, source: str | list[str], count: int, cache: Path) -> float | str:
    """Samples or rows per second of a peer that reads everything once, or why it was not measured."""
    if importlib.util.find_spec(MODULES[peer]) is None:
        return "not installed"
    found = _run(peer, {"source": source, "count": count, "cache": str(cache)})
    return found["per_s"] if "per_s" in found else str(found["error"])


def _run(peer: str, job: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.versus.streaming_peers", peer, json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT_S:.0f} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "rror" in line] or ["failed"]
        return {"error": lines[-1].strip()[:200]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _samples(folder: Path) -> Iterable[dict[str, Any]]:
    for number, path in enumerate(sorted(folder.iterdir())):
        yield {"image": path.read_bytes(), "n": number}


def main() -> None:
    peer, job = sys.argv[1], json.loads(sys.argv[2])
    if "write" in job:
        WRITERS[peer](Path(job["write"]), _samples(Path(job["pictures"])), {"image": "bytes", "n": "int"})
        print("{}")
        return
    importlib.import_module(MODULES[peer])
    start = time.perf_counter()
    short = READERS[peer](job["source"], job["count"], job["cache"])
    seconds = time.perf_counter() - start
    assert short == 0, f"{-short} of {job['count']} are missing"
    print(json.dumps({"per_s": job["count"] / seconds}))


if __name__ == "__main__":
    main()
