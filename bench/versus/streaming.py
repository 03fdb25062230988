"""Published datasets against raw engines and peers, locally and on S3 behind a proxy with 20 ms round trips.

python -m bench.versus.streaming [--quick] [--out bench/results/streaming.json]
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.servers import BUCKET, KEY, SECRET, Proxy, run_s3

from bench import measure
from bench.catalog_data import WANTED, publish_pictures, publish_table, write_pictures, write_table
from bench.versus.streaming_peers import MODULES, WRITERS, rate, write_for

RTT_S = 0.020
BATCH = 65_536
"""Rows of a batch of a scan: the fastest for raw engines, which give whatever lies between two borders."""

EXACT = 8_192
"""Rows of our batches, which are always exactly as many: small ones seldom cross a border."""


def best(call: Callable[[], Any], runs: int = 3) -> float:
    """The shortest of several runs: a busy machine slows all but the best."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def interleaved(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The shortest time of each, taken in turns so that all see the same machine, and in changing order:
    what ran before leaves its mark on caches and allocators."""
    times: dict[str, float] = dict.fromkeys(calls, float("inf"))
    for number in range(rounds):
        for name in random.Random(number).sample(list(calls), len(calls)):
            times[name] = min(times[name], best(calls[name], 1))
    return times


def rows_of(batches: Any) -> int:
    return sum(batch.num_rows for batch in batches)


def open_warp(catalog: str, **options: Any):
    import warpdata as wd

    return wd.dataset("bench/table", catalog=catalog, **options)


def local_scan(paths: list[Path], catalog: str, rows: int) -> dict[str, float]:
    """Rows per second of 3 of 20 columns, all engines on the same files."""
    import duckdb
    import pyarrow.dataset as pads
    import pyarrow.parquet as pq

    names = [str(path) for path in paths]

    def pyarrow_dataset() -> None:
        assert rows_of(pads.dataset(names).to_batches(columns=WANTED, batch_size=BATCH)) == rows

    def pyarrow_files() -> None:
        assert sum(rows_of(pq.ParquetFile(n).iter_batches(EXACT, columns=WANTED)) for n in names) == rows

    def raw_duckdb() -> None:
        with duckdb.connect() as con:
            listed = ", ".join(WANTED)
            reader = con.sql(f"select {listed} from read_parquet({names})").to_arrow_reader(BATCH)
            assert rows_of(reader) == rows

    def warp() -> None:
        with open_warp(catalog) as ds:
            assert rows_of(ds.table().batches(EXACT, columns=WANTED)) == rows

    engines = {
        "pyarrow dataset": pyarrow_dataset,
        "pyarrow files": pyarrow_files,
        "duckdb": raw_duckdb,
        "warpdata": warp,
    }
    if importlib.util.find_spec("datasets"):
        engines["HF datasets, streaming"] = lambda: hf_scan(names, rows)
    return {name: rows / seconds for name, seconds in interleaved(engines, 15).items()}


def hf_scan(names: list[str], rows: int) -> None:
    """The same columns through HF datasets in streaming mode, as Arrow tables."""
    import datasets

    data = datasets.load_dataset("parquet", data_files=names, split="train", streaming=True, columns=WANTED)
    assert sum(batch.num_rows for batch in data.with_format("arrow").iter(BATCH)) == rows


def local_first(paths: list[Path], catalog: str) -> dict[str, float]:
    """Seconds until the first 1000 rows of 3 columns are there."""
    import pyarrow.parquet as pq

    def raw() -> None:
        next(pq.ParquetFile(paths[0]).iter_batches(1000, columns=WANTED))

    def warp() -> None:
        with open_warp(catalog) as ds:
            next(ds.table().batches(1000, columns=WANTED))

    return interleaved({"pyarrow": raw, "warpdata": warp}, 25)


def s3_scan(proxy: Proxy, catalog: str, paths: list[Path], rows: int, work: Path) -> dict[str, Any]:
    """Full scan on S3 with latency, cold."""
    import pyarrow.dataset as pads
    import pyarrow.fs

    system = pyarrow.fs.S3FileSystem(
        access_key=KEY,
        secret_key=SECRET,
        endpoint_override=f"127.0.0.1:{proxy.port}",
        scheme="http",
        region="us-east-1",
    )
    keys = [f"{BUCKET}/raw/{path.name}" for path in paths]

    def pyarrow_s3() -> None:
        assert (
            rows_of(pads.dataset(keys, filesystem=system).to_batches(columns=WANTED, batch_size=BATCH))
            == rows
        )

    def warp(mode: str, cache: Path) -> dict[str, Any]:
        with open_warp(catalog, mode=mode, cache_dir=str(cache)) as ds:
            start = time.perf_counter()
            assert rows_of(ds.table().batches(EXACT, columns=WANTED)) == rows
            return {
                "s": time.perf_counter() - start,
                "requests": ds.spent.requests,
                "bytes": ds.spent.bytes_read,
            }

    found: dict[str, Any] = {"pyarrow dataset": rows / best(pyarrow_s3, 2)}
    cold = min((warp("auto", work / f"cold{i}") for i in range(2)), key=lambda r: r["s"])
    remote = min((warp("remote", work) for _ in range(2)), key=lambda r: r["s"])
    found |= {"warpdata": rows / cold["s"], "warpdata, no cache": rows / remote["s"]}
    return found | {"requests": cold["requests"], "bytes": cold["bytes"]}


def second_epoch(catalog: str, local: str, rows: int, work: Path) -> dict[str, float]:
    """Rows per second of later passes over an open dataset: from the cache of S3, and from a folder."""
    with open_warp(catalog, cache_dir=str(work / "cold0")) as far, open_warp(local) as near:

        def scan(ds: Any) -> None:
            assert rows_of(ds.table().batches(EXACT, columns=WANTED)) == rows

        scan(far)
        found = interleaved({"cached": lambda: scan(far), "local": lambda: scan(near)}, 9)
    return {name: rows / seconds for name, seconds in found.items()}


def s3_first(catalog: str, work: Path) -> dict[str, Any]:
    """Requests and round trips to schema and first batch, cold: the median of seven that each begin with nothing.

    One alone takes a twentieth of a second: whatever else the machine does then is part of it.
    """
    took = []
    for turn in range(7):
        with open_warp(catalog, cache_dir=str(work / f"first-{turn}")) as ds:
            ds.table().schema()
            schema = ds.spent.requests
            start = time.perf_counter()
            next(ds.table().batches(1000, columns=WANTED))
            took.append((time.perf_counter() - start) / RTT_S + schema)
            requests = ds.spent.requests
    return {
        "schema requests": schema,
        "first batch requests": requests,
        "first batch round trips": statistics.median(took),
        "first batch round trips, each": took,
    }


def pictures(catalog: str, local: str, count: int, work: Path) -> dict[str, float]:
    """Random pictures in batches of 64 against one-by-one GETs, and from the cache against webdataset, which reads the
    same tars from this disk in order."""
    import webdataset

    import warpdata as wd

    found: dict[str, float] = {}
    with wd.dataset("bench/pictures", catalog=catalog, mode="remote") as ds:
        stream = ds.table().batches(64, prefetch="off")
        first = next(stream)["image"].refs()
        start = time.perf_counter()
        [ref.read_bytes() for ref in first[:1]]
        names = [ref.name for ref in next(stream)["image"].refs()[:32]]
        members = ds.artifact("raw").find(names)
        start = time.perf_counter()
        for member in members:
            ds.artifact("raw").read([member])
        found["one by one"] = len(names) / (time.perf_counter() - start)
        start, read = time.perf_counter(), 0
        for _ in range(min(8, count // 64 - 3)):
            read += len(wd.read_refs(next(stream)["image"].refs()))
        found["batches of 64"] = read / (time.perf_counter() - start)
    options = {"catalog": catalog, "cache_dir": str(work / "pictures")}
    with wd.dataset("bench/pictures", **options) as ds:
        ds.warm()
    with wd.dataset("bench/pictures", catalog=local) as ds:
        tars = [str(Path(local) / shard.key) for shard in ds.artifact("raw").part.shards]
    for decode, what in ((False, "bytes"), (True, "decoded")):

        def cached(decode: bool = decode) -> None:
            with wd.dataset("bench/pictures", **options) as ds:
                for batch in ds.table().batches(64):
                    for ref in batch["image"].refs():
                        ref.as_numpy() if decode else ref.read_bytes()

        def theirs(decode: bool = decode) -> None:
            data = webdataset.WebDataset(tars, shardshuffle=False, empty_check=False)
            assert sum(1 for _ in (data.decode("rgb8") if decode else data)) == count

        took = interleaved({f"cached, {what}": cached, f"webdataset, {what}": theirs}, 5)
        found |= {name: count / seconds for name, seconds in took.items()}
    return found


def publish_rate(paths: list[Path], work: Path) -> dict[str, float]:
    """Bytes per second of publishing, of SHA-256 alone and of a copy with fsync."""
    import warpdata as wd

    size = sum(path.stat().st_size for path in paths)

    def sha() -> None:
        for path in paths:
            hashlib.sha256(path.read_bytes()).hexdigest()

    def copy() -> None:
        for path in paths:
            target = work / "copy" / path.name
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
            with target.open("rb") as file:
                os.fsync(file.fileno())
        shutil.rmtree(work / "copy")

    def publish() -> None:
        with wd.DatasetBuilder("bench/publish", catalog=work / "pub") as builder:
            builder.add_table("main", paths).publish()
        shutil.rmtree(work / "pub")

    found = interleaved({"sha256": sha, "copy": copy, "warpdata": publish}, 4)
    return {name: size / seconds for name, seconds in found.items()}


def lookup(proxy_catalog: str, count: int, work: Path) -> dict[str, Any]:
    """One member among many, cold: requests and bytes of everything, the name included."""
    import warpdata as wd

    with wd.dataset("bench/many", catalog=proxy_catalog, cache_dir=str(work / "many")) as ds:
        start = time.perf_counter()
        assert len(ds.ref("raw", f"{count // 3:07d}").read_bytes()) == 16
        seconds = time.perf_counter() - start
        return {"members": count, "requests": ds.spent.requests, "bytes": ds.spent.bytes_read, "s": seconds}


def publish_many(catalog: str, count: int, work: Path) -> None:
    """A tar of very many tiny members."""
    import warpdata as wd
    from warpdata.formats.tarshard.writer import member_header

    path = work / "many.tar"
    with path.open("wb") as out:
        for i in range(count):
            out.write(member_header(f"{i:07d}", 16) + (b"%016d" % i).ljust(512, b"\0"))
        out.write(bytes(1024))
    with wd.DatasetBuilder("bench/many", catalog=catalog) as builder:
        builder.add_artifact("raw", [path]).publish()
    path.unlink()


def peers_local(local: str, pictures: Path, count: int, work: Path) -> dict[str, Any]:
    """Pictures per second in order, as bytes, from this disk: every library in its own format."""
    found: dict[str, Any] = {"webdataset": rate("webdataset", tars_of(local), count, work)}
    for peer in WRITERS:
        if importlib.util.find_spec(MODULES[peer]) is None:
            found[peer] = "not installed"
            continue
        error = write_for(peer, work / peer, pictures)
        found[peer] = error or rate(peer, str(work / peer), count, work)
    found["warpdata"] = ordered_rate(local, count, mode="auto", cache_dir=str(work / "unused"))
    return found


def peers_s3(server: Any, proxy: Proxy, catalog: str, local: str, work: Path, sizes: Sizes) -> dict[str, Any]:
    """The same cold from S3 behind the proxy, and the table through HF datasets over signed addresses."""
    os.environ |= {"S3_ENDPOINT_URL": proxy.endpoint, "AWS_ALLOW_HTTP": "true"}
    tars = [f"bench/{Path(tar).relative_to(local)}" for tar in tars_of(local)]
    found: dict[str, Any] = {}
    found["webdataset"] = rate("webdataset", signed(server, proxy, tars), sizes.pictures, work)
    for peer in WRITERS:
        if (work / peer).exists():
            _put_folder(server, f"peers/{peer}", work / peer)
            found[peer] = rate(peer, f"s3://{BUCKET}/peers/{peer}", sizes.pictures, work / f"cold-{peer}")
    found["warpdata"] = ordered_rate(catalog, sizes.pictures, mode="auto", cache_dir=str(work / "ordered"))
    files = [f"raw/part-{shard:03d}.parquet" for shard in range(sizes.shards)]
    table = rate("HF datasets", signed(server, proxy, files), sizes.rows, work)
    return {"pictures (per s)": found, "HF datasets, table (rows/s)": table}


def ordered_rate(catalog: str, count: int, **options: Any) -> float:
    """Our own pictures in the order of their tars, as bytes."""
    import warpdata as wd

    start = time.perf_counter()
    with wd.dataset("bench/ordered", catalog=catalog, **options) as ds:
        read = sum(len(wd.read_refs(batch["image"].refs())) for batch in ds.table().batches(256))
    assert read == count
    return count / (time.perf_counter() - start)


def tars_of(local: str) -> list[str]:
    """The tar files of the published pictures."""
    import warpdata as wd

    with wd.dataset("bench/ordered", catalog=local) as ds:
        return [str(Path(local) / shard.key) for shard in ds.artifact("raw").part.shards]


def signed(server: Any, proxy: Proxy, keys: list[str]) -> list[str]:
    """Addresses that need no credentials, through the proxy."""
    import obstore
    from obstore.store import S3Store
    from tests.servers import BUCKET, KEY, SECRET

    store = S3Store(
        BUCKET,
        endpoint=proxy.endpoint,
        region="us-east-1",
        access_key_id=KEY,
        secret_access_key=SECRET,
        client_options={"allow_http": True},
    )
    return list(obstore.sign(store, "GET", keys, timedelta(hours=1)))


def _put_folder(server: Any, prefix: str, folder: Path) -> None:
    from tests.servers import s3_store

    from warpdata.stores.blobstore import digest_file

    store = s3_store(server, prefix)
    for path in folder.iterdir():
        store.put_file(path.name, path, digest_file(path))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rows: int = 2_000_000
    shards: int = 8
    pictures: int = 6_400
    members: int = 1_000_000


QUICK = Sizes(48_000, 3, 256, 20_000)


def run(sizes: Sizes, parts: Sequence[str]) -> dict[str, Any]:
    """Everything, in one process, on one machine, at one time."""
    work = Path(tempfile.mkdtemp(prefix="warp-bench-"))
    try:
        paths = write_table(work / "table", sizes.rows, sizes.shards)
        local = str(work / "catalog")
        publish_table(local, paths)
        folder = write_pictures(work / "jpg", sizes.pictures)
        publish_pictures(local, folder)
        publish_pictures(local, folder, "bench/ordered", mixed=False)
        results: dict[str, Any] = {"rows": sizes.rows, "pictures": sizes.pictures}
        if "core" in parts:
            results["first batch, local (s)"] = local_first(paths, local)
            results["scan, local (rows/s)"] = local_scan(paths, local, sizes.rows)
            results["publish (bytes/s)"] = publish_rate(paths, work)
        if "peers" in parts:
            results["peers, local (pictures/s)"] = peers_local(local, folder, sizes.pictures, work)
        results |= run_s3_parts(sizes, parts, paths, local, work)
        return results
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_s3_parts(
    sizes: Sizes, parts: Sequence[str], paths: list[Path], local: str, work: Path
) -> dict[str, Any]:
    """What is measured on S3 behind the proxy."""
    results: dict[str, Any] = {}
    with run_s3() as server:
        os.environ.update(server.environment())
        catalog = f"s3://{BUCKET}/bench"
        publish_table(catalog, paths)
        publish_pictures(catalog, work / "jpg")
        publish_pictures(catalog, work / "jpg", "bench/ordered", mixed=False)
        _put_folder(server, "raw", work / "table")
        if "core" in parts:
            publish_many(catalog, sizes.members, work)
        with Proxy(server.port, delay_s=RTT_S) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
            if "core" in parts:
                results["first batch, S3 20 ms"] = s3_first(catalog, work)
                results["scan, S3 20 ms (rows/s)"] = s3_scan(proxy, catalog, paths, sizes.rows, work)
                results["second epoch (rows/s)"] = second_epoch(catalog, local, sizes.rows, work)
                results["pictures (per s)"] = pictures(catalog, local, sizes.pictures, work)
                results["lookup, S3 20 ms"] = lookup(catalog, sizes.members, work)
            if "peers" in parts:
                results["peers, S3 20 ms"] = peers_s3(server, proxy, catalog, local, work, sizes)
    return results


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """The figures of the speed table."""
    scan, far = results["scan, local (rows/s)"], results["scan, S3 20 ms (rows/s)"]
    pics, pub = results["pictures (per s)"], results["publish (bytes/s)"]
    again = results["second epoch (rows/s)"]
    raw = max(value for name, value in scan.items() if name != "warpdata")
    return {
        "schema requests (<= 3)": results["first batch, S3 20 ms"]["schema requests"],
        "first batch local / pyarrow (<= 1.3)": results["first batch, local (s)"]["warpdata"]
        / results["first batch, local (s)"]["pyarrow"],
        "first batch S3 round trips (<= 6)": results["first batch, S3 20 ms"]["first batch round trips"],
        "scan local / best raw (>= 0.9)": scan["warpdata"] / raw,
        "scan S3 / raw (>= 1.0)": far["warpdata"] / far["pyarrow dataset"],
        "second epoch / local (>= 0.9)": again["cached"] / again["local"],
        "random pictures / one by one (>= 20)": pics["batches of 64"] / pics["one by one"],
        "cached pictures / webdataset (>= 1), bytes": pics["cached, bytes"] / pics["webdataset, bytes"],
        "cached pictures / webdataset (>= 1), decoded": pics["cached, decoded"] / pics["webdataset, decoded"],
        "publish / slower of sha256 and copy (>= 0.7)": pub["warpdata"] / min(pub["sha256"], pub["copy"]),
        "lookup requests (<= 4)": results["lookup, S3 20 ms"]["requests"],
        "lookup bytes (< 262144)": results["lookup, S3 20 ms"]["bytes"],
    }


def bars(found: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each ratio with its bar, which its name ends with, and whether it holds."""
    rows = {}
    for text, value in found.items():
        name, _, rest = text.partition(" (")
        sign, _, limit = rest.partition(")")[0].partition(" ")
        is_met = (
            value <= float(limit)
            if sign == "<="
            else value < float(limit)
            if sign == "<"
            else value >= float(limit)
        )
        rows[name + rest.partition(")")[2]] = {"value": value, "bar": f"{sign} {limit}", "holds": is_met}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--part", choices=("core", "peers"), help="only this part; the other stays as it was")
    parser.add_argument("--out", help="write here (bench/results, unless --quick)")
    args = parser.parse_args()
    out = Path(args.out) if args.out else None if args.quick else measure.RESULTS / "streaming.json"
    results = json.loads(out.read_text()) if out and args.part and out.exists() else {}
    results |= run(QUICK if args.quick else Sizes(), (args.part,) if args.part else ("core", "peers"))
    if args.part != "peers":
        results["ratios"] = ratios(results)
        results["bars"] = bars(results["ratios"])
    print(json.dumps(results, indent=1))
    if out:
        out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
