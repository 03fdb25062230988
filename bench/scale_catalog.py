"""A catalog that has grown to 100,000 episodes and 10,000 versions, on S3 with 20 ms: what does anything cost?

`python -m bench.scale_catalog [--quick]`. The old episodes are a few hundred real files, each under many names, so
that any of them opens; the new ones are recorded. `few episodes` and `few versions` are the same without that much of
either: what costs the same there costs what is changed. `one list` has its manifest in one JSON file.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.servers import BUCKET, Proxy, run_s3

import warpdata as wd
from bench import measure
from warpdata.bytekit.process.threads import map_in_threads
from warpdata.catalog.access import Access, access_options, parse_name
from warpdata.catalog.build.builder import DatasetBuilder
from warpdata.catalog.build.episodes import episode_rows
from warpdata.catalog.build.parts import PackedShard
from warpdata.catalog.manage.versions import collect, expire_versions, list_datasets, set_tag
from warpdata.catalog.publish.pointers import (
    VersionList,
    _change_list,
    about_manifest,
    make_cards,
    read_pointer,
)
from warpdata.catalog.publish.publish import PublishOptions, Uploads, publish, upload_file
from warpdata.catalog.read.resolve import Resolver
from warpdata.episodes.collection.facts import joined_tables, table_of
from warpdata.formats.manifest import layout
from warpdata.formats.manifest.codec import Pointer, pack_manifest, pack_pointer, parse_manifest, to_json
from warpdata.formats.manifest.model import EPISODE_KIND, ArtifactPart, BlobRef, Manifest, packed_shards
from warpdata.ray.planning import plan_episodes
from warpdata.settings import Settings
from warpdata.stores.blobstore import digest_file

RTT_S = 0.02
NAME = "bench/arm"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is."""

    episodes: int = 100_000
    files: int = 200
    added: int = 10
    versions: int = 10_000
    rounds: int = 5
    frames: int = 600
    """Of an episode with cameras, whose size decides how a window of it is read."""


QUICK = Sizes(episodes=2000, files=20, versions=50, rounds=1, frames=150)


def record(folder: Path, first: int, count: int) -> list[Path]:
    """Packed recordings of an arm: joints, actions, rewards."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(first, first + count):
        root = folder / f"root-{number:07d}"
        with wd.LocalDatasetWriter(root).new_episode() as episode:
            episode.set_static("task", f"task {number % 7}")
            episode.set_static("success", number % 3 > 0)
            for step in range(30):
                episode.append("joints", np.full(7, number + step, np.float32), step * 33_000_000)
                episode.append("action", np.full(7, step, np.float32), step * 33_000_000)
        (found,) = wd.LocalDataset(root)
        name = f"ep-{number:07d}"
        paths.append(wd.pack_episode(found, folder / f"{name}.wshard", episode_id=name))
    return paths


def old_manifest(builder: DatasetBuilder, paths: Sequence[Path], sizes: Sizes) -> tuple[Manifest, list[Any]]:
    """A version with many episodes, each of the files under many names, and their table."""
    shards = [PackedShard(path, path.name, digest_file(path)) for path in paths]
    facts = table_of(episode_rows("episodes", shards))
    every, refs = [], []
    for start in range(0, sizes.episodes, len(paths)):
        names = [f"old-{number:07d}" for number in range(start, min(start + len(paths), sizes.episodes))]
        part = facts.slice(0, len(names))
        for column, values in (("id", names), ("blob", [f"{each}.wshard" for each in names])):
            part = part.set_column(part.column_names.index(column), column, pa.array(values))
        every.append(part)
        refs += [
            BlobRef(shard.digest.sha256, shard.digest.size, name=f"{each}.wshard")
            for each, shard in zip(names, shards, strict=False)
        ]
    packed = packed_shards(tuple(refs))
    uploads = Uploads(upload_file(s.path, s.digest, is_staged=False) for s in shards)
    uploads.add_list(packed)
    builder.add_table("episodes", joined_tables(every))
    table, more = builder._build(None)
    artifacts = {"episodes": ArtifactPart(EPISODE_KIND, packed.shards)}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Manifest(builder.name.dataset_id, table.tables, artifacts, created_at=now), [*uploads, *more]


def access() -> Access:
    return Access(access_options(Settings.from_env(), catalogs=(f"s3://{BUCKET}/bench",)))


def put_history(name: str, count: int) -> None:
    """Older versions as their publishers would have left them: manifests with what lies beside them, in one line."""
    opened = access()
    store, dataset = opened.catalogs[0].store, parse_name(name)
    assert store is not None
    head = read_pointer(store, dataset.latest_key)
    assert head.pointer is not None
    held = store.get(dataset.version_key(head.pointer.version), max_bytes=1 << 30)
    assert held is not None
    manifest = parse_manifest(held.data)
    table = next(iter(manifest.tables.values()))
    made: list[tuple[str, Manifest]] = []
    parent: str | None = None
    for number in range(count):
        one = replace(
            manifest,
            tables={"episodes": table, f"t{number}": table},
            metadata={"parent": parent, "message": f"version {number}"},
        )
        parent = to_json(one)["version_hash"]
        made.append((parent, one))
    beside = make_cards(manifest)

    def put(each: tuple[str, Manifest]) -> None:
        store.put_if_absent(dataset.version_key(each[0]), pack_manifest(each[1]))
        for suffix, data in beside.items():
            store.put_if_absent(dataset.version_key(each[0], suffix), data)

    map_in_threads(put, made)
    after = Pointer(head.pointer.version, count + 1, parent)
    store.compare_and_swap(dataset.latest_key, pack_pointer(after), head.etag)
    versions = (*(version for version, _ in made), head.pointer.version)
    written = VersionList(versions, {}, {version: about_manifest(one) for version, one in made})
    _change_list(store, dataset, lambda _: written)
    opened.close()


@dataclass(frozen=True, slots=True)
class Cost:
    """What something took."""

    seconds: float
    cpu_seconds: float
    """Of this process, the network between it and the server included."""
    requests: int
    sent_bytes: int
    answered_bytes: int


def cost(proxy: Proxy, work: Callable[[], object]) -> Cost:
    before, began = (len(proxy.asked), proxy.sent_bytes, proxy.answered_bytes), time.process_time()
    took = measure.seconds(work)
    after, cpu = (len(proxy.asked), proxy.sent_bytes, proxy.answered_bytes), time.process_time() - began
    return Cost(round(took, 3), round(cpu, 3), *(b - a for a, b in zip(before, after, strict=True)))


def best(costs: Sequence[Cost]) -> dict[str, Any]:
    return asdict(min(costs, key=lambda each: each.seconds))


def publish_ten(paths: Sequence[Path], name: str) -> None:
    with wd.DatasetBuilder(name, catalog=f"s3://{BUCKET}/bench") as builder:
        builder.extend().add_episodes("episodes", list(paths)).publish(retries=5)


def first_window(name: str, work: Path, number: int) -> None:
    cache = work / f"cache-{time.monotonic_ns()}"
    with wd.dataset(name, catalog=f"s3://{BUCKET}/bench", cache_dir=str(cache)) as ds:
        window = ds.episodes[number]["joints"].values()[5:21]
        assert window.shape == (16, 7)


def next_window(proxy: Proxy, name: str, work: Path, number: int) -> Cost:
    """What a window of another episode costs whoever has read one already."""
    cache = work / f"cache-{time.monotonic_ns()}"
    with wd.dataset(name, catalog=f"s3://{BUCKET}/bench", cache_dir=str(cache)) as ds:
        ds.episodes[number]["joints"].values()[5:21]
        return cost(proxy, lambda: ds.episodes[number + 1]["joints"].values()[5:21])


def filmed(folder: Path, number: int, frames: int) -> Path:
    """An episode as robots record them: two cameras, joints and actions."""
    root, dice = folder / f"filmed-{number}", np.random.default_rng(number)
    scene = np.repeat(np.repeat(dice.integers(0, 255, (60, 200, 3), np.uint8), 8, 0), 8, 1)
    with wd.LocalDatasetWriter(root).new_episode() as episode:
        for step in range(frames):
            for camera in range(2):
                picture = scene[camera * 100 :, 3 * step % 1200 :][:240, :320]
                episode.append(f"camera{camera}", np.ascontiguousarray(picture), step * 33_000_000)
            for name in ("joints", "action"):
                episode.append(name, np.full(7, step, np.float32), step * 33_000_000)
    (found,) = wd.LocalDataset(root)
    return wd.pack_episode(found, folder / f"filmed-{number}.wshard", episode_id=f"filmed-{number}")


def window_with_cameras(proxy: Proxy, paths: Sequence[Path], work: Path, frames: int) -> Cost:
    """Two seconds of everything of an episode nobody has read, for whoever has read another one."""
    with DatasetBuilder("bench/filmed", catalog=f"s3://{BUCKET}/bench") as builder:
        builder.add_episodes("episodes", list(paths)).publish()

    def window(episode: Any) -> None:
        for signal in episode.signals.values():
            signal[frames // 2 : frames // 2 + 60].values()

    with wd.dataset(
        "bench/filmed", catalog=f"s3://{BUCKET}/bench", cache_dir=str(work / f"cache-{time.monotonic_ns()}")
    ) as ds:
        window(ds.episodes[0])
        return cost(proxy, lambda: window(ds.episodes[1]))


def open_only(name: str, work: Path) -> None:
    cache = work / f"cache-{time.monotonic_ns()}"
    with wd.dataset(name, catalog=f"s3://{BUCKET}/bench", cache_dir=str(cache)) as ds:
        assert len(ds.artifact("episodes"))


def plan_for_ray(name: str, work: Path) -> None:
    """Everything a cluster is told before it reads the first episode: tasks with a reference to each of them."""
    cache = work / f"cache-{time.monotonic_ns()}"
    with wd.dataset(name, catalog=f"s3://{BUCKET}/bench", cache_dir=str(cache)) as ds:
        plan = plan_episodes(ds, where=None, columns=(), artifact=None)
        assert sum(task.rows or 0 for task in plan.tasks(parallelism=16)) == len(ds.artifact("episodes"))


def measured(proxy: Proxy, name: str, sizes: Sizes, work: Path, first: int) -> dict[str, Any]:
    """Each thing several times; every publish has recordings of its own and a cache of its own."""
    publishes, windows, opens, others, plans = [], [], [], [], []
    for turn in range(sizes.rounds):
        paths = record(work / "new", first + turn * sizes.added, sizes.added)
        os.environ["WARP_CACHE_DIR"] = str(work / f"publisher-{first}-{turn}")
        publishes.append(cost(proxy, lambda paths=paths: publish_ten(paths, name)))
        opens.append(cost(proxy, lambda: open_only(name, work)))
        place = (turn * 7919 + sizes.episodes // 2) % sizes.episodes
        windows.append(cost(proxy, lambda place=place: first_window(name, work, place)))
        others.append(next_window(proxy, name, work, place))
        plans.append(cost(proxy, lambda: plan_for_ray(name, work)))
    return {
        # Publishers that are overtaken start again: what they wait for is a whole publish.
        "publish ten": {**best(publishes), "turn_seconds": best(publishes)["seconds"]},
        "open": best(opens),
        "open, first window": best(windows),
        "a window of another episode": best(others),
        "plan of all episodes for Ray": best(plans),
    }


def asked(proxy: Proxy, name: str, work: Path) -> dict[str, Any]:
    """Questions about the history, each with a new cache."""
    versions: list[Any] = []

    def with_dataset(ask: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> object:
            cache = work / f"cache-{time.monotonic_ns()}"
            with wd.dataset(name, catalog=f"s3://{BUCKET}/bench", cache_dir=str(cache)) as ds:
                return ask(ds)

        return run

    def with_access(ask: Callable[[Access], object]) -> Callable[[], object]:
        def run() -> object:
            os.environ["WARP_CACHE_DIR"] = str(work / f"cache-{time.monotonic_ns()}")
            with contextlib.closing(access()) as opened:
                return ask(opened)

        return run

    dataset = parse_name(name)
    found = {
        "newest ten versions": cost(proxy, with_dataset(lambda ds: versions.extend(ds.versions(limit=10)))),
        "diff with the version before": cost(proxy, with_dataset(lambda ds: ds.diff(versions[1].version))),
        "a version by 8 digits": cost(
            proxy, with_access(lambda a: resolved(a, f"{name}@{versions[1].version[:8]}"))
        ),
        "a tag": cost(proxy, with_access(lambda a: set_tag(a, a.catalogs[0], dataset, "tried"))),
        "datasets": cost(proxy, with_access(lambda a: list_datasets(a.catalogs[0]))),
        "every version": cost(proxy, with_dataset(lambda ds: ds.versions())),
        "what expires": cost(proxy, with_access(lambda a: expire_versions(a, dataset, keep_last=100))),
        "what no version uses": cost(proxy, with_access(lambda a: collect(a.catalogs[0]))),
    }
    return {label: asdict(each) for label, each in found.items()}


def resolved(opened: Access, name: str) -> None:
    Resolver(opened).resolve(parse_name(name))


def removed(proxy: Proxy, name: str) -> dict[str, Any]:
    """All versions but the newest hundred."""

    def remove() -> None:
        with contextlib.closing(access()) as opened:
            expire_versions(opened, parse_name(name), keep_last=100, delete=True)

    return {"expire all but 100": asdict(cost(proxy, remove))}


def put_episodes(name: str, paths: Sequence[Path], sizes: Sizes, work: Path) -> int:
    """A dataset with many episodes; the bytes of its manifest."""
    with (
        DatasetBuilder(name, catalog=str(work / "unused")) as builder,
        contextlib.closing(access()) as opened,
    ):
        manifest, uploads = old_manifest(builder, paths, sizes)
        store = opened.catalogs[0].store
        assert store is not None
        publish(store, parse_name(name), lambda _: (manifest, uploads), PublishOptions(workers=8))
    return len(pack_manifest(manifest))


def run(sizes: Sizes) -> dict[str, Any]:
    """All numbers."""
    found: dict[str, Any] = {"sizes": asdict(sizes)}
    few = replace(sizes, episodes=sizes.episodes // 100)
    once = replace(sizes, rounds=1)
    with tempfile.TemporaryDirectory() as folder, run_s3() as server:
        work = Path(folder)
        os.environ.update(server.environment())
        paths = record(work / "old", 0, sizes.files)

        def slowly(look: Callable[[Proxy], dict[str, Any]]) -> dict[str, Any]:
            with Proxy(server.port, delay_s=RTT_S) as proxy:
                os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
                try:
                    return look(proxy)
                finally:
                    os.environ["AWS_ENDPOINT_URL"] = server.endpoint

        # In this order: each dataset of a catalog costs whoever looks at all of it.
        size = put_episodes(NAME, paths, sizes, work)
        found["few versions"] = {
            **slowly(lambda proxy: measured(proxy, NAME, sizes, work, 10_000_000)),
            **slowly(lambda proxy: asked(proxy, NAME, work)),
        }
        put_history(NAME, sizes.versions)
        found["parts"] = {
            "manifest_bytes": size,
            **slowly(lambda proxy: measured(proxy, NAME, sizes, work, 20_000_000)),
            **slowly(lambda proxy: asked(proxy, NAME, work)),
            **slowly(lambda proxy: removed(proxy, NAME)),
        }
        films = [filmed(work, number, sizes.frames) for number in range(2)]
        found["parts"]["two seconds with two cameras"] = slowly(
            lambda proxy: asdict(window_with_cameras(proxy, films, work, sizes.frames))
        )
        put_episodes("bench/few", paths[: few.episodes], few, work)
        found["few episodes"] = slowly(lambda proxy: measured(proxy, "bench/few", few, work, 30_000_000))
        layout.FLAT_SHARDS, kept = 1 << 40, layout.FLAT_SHARDS
        try:
            size = put_episodes("bench/flat", paths, sizes, work)
            flat = slowly(lambda proxy: measured(proxy, "bench/flat", once, work, 40_000_000))
        finally:
            layout.FLAT_SHARDS = kept
        found["one list"] = {"manifest_bytes": size, **flat}
    found["bars"] = bars(found)
    return found


def bars(found: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, and whether it holds."""
    publish, window = found["parts"]["publish ten"], found["parts"]["open, first window"]
    traffic = publish["sent_bytes"] + publish["answered_bytes"]
    wanted = {
        "publish ten episodes into 100,000, S3 20 ms (seconds)": (publish["seconds"], 2),
        "the same, bytes both ways": (traffic, 1_000_000),
        "open and first window (seconds)": (window["seconds"], 1),
    }
    return {
        name: {"value": value, "bar": f"< {bar:,}", "holds": value < bar}
        for name, (value, bar) in wanted.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that is not saved")
    args = parser.parse_args()
    report = run(QUICK if args.quick else Sizes())
    print(json.dumps(report, indent=1))
    if not args.quick:
        measure.save("scale_catalog", report)


if __name__ == "__main__":
    main()
