"""Few descriptors are enough for everything at once: cached blobs, shards, cameras, connections, two open datasets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import warpdata as wd
from tests.servers import Proxy, S3Server, run_http

EPISODES, CAMERAS, SHARDS = 6, 4, 40

USES = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
import numpy as np
import warpdata as wd
root, url, episodes, cameras = sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
first, second = wd.dataset("a/b", catalog=url), wd.dataset("a/b", catalog=url)
batches = first.table().batches(10, prefetch="auto")
held = []
for k in range(episodes):
    for episode in (wd.open(root)[k], first.episodes[k]):
        held += [episode[f"cam{c}"] for c in range(cameras)]
        assert [int(signal[0][0].max()) for signal in held[-cameras:]] != []
    next(batches)
packed = [wd.load_wshard(os.path.join(root, "..", f"{k}.wshard")) for k in range(episodes)]
assert all(len(each.observations["x"].data) == 3 for each in packed)
assert second.table().take(np.arange(0, 400, 7)).num_rows == 58
second.warm()
assert sum(batch.num_rows for batch in batches) + 10 * episodes == 400
assert len([signal[2] for signal in held]) == 2 * episodes * cameras
print(len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not show descriptors")
@pytest.mark.parametrize("limit", [64, 256])
def test_everything_at_once_with_few_descriptors(limit: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for _ in range(EPISODES):
        with wd.record(tmp_path / "root", clock="simulated") as recorder:
            for i in range(3):
                for c in range(CAMERAS):
                    recorder.append(f"cam{c}", random.integers(0, 255, (32, 32, 3), np.uint8), ts_ns=i * 10)
                recorder.step({"x": np.zeros(2, np.float32)}, {"a": 1.0}, ts_ns=i * 10)
    for k, episode in enumerate(wd.open(tmp_path / "root")):
        wd.pack_episode(episode, tmp_path / f"{k}.wshard")
    for i in range(SHARDS):
        pq.write_table(pa.table({"id": np.arange(10) + 10 * i}), tmp_path / f"{i:03d}.parquet")
    with wd.DatasetBuilder("a/b", catalog=str(tmp_path / "catalog")) as builder:
        builder.add_table("main", sorted(tmp_path.glob("*.parquet")))
        builder.add_episodes("recordings", tmp_path / "root").publish()
    with run_http(tmp_path / "catalog") as server:
        done = subprocess.run(
            [sys.executable, "-c", USES, str(limit), str(tmp_path / "root"), server.url, str(EPISODES), str(CAMERAS)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "without the cache" not in done.stderr
    assert int(done.stdout) < limit


FAR = """
import os, resource, sys
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from pathlib import Path
import warpdata as wd
folder, catalog = Path(sys.argv[2]), sys.argv[3]
with wd.DatasetBuilder("a/b", catalog=catalog) as builder:
    builder.add_table("main", sorted(folder.glob("little/*")))
    builder.add_table("wide", sorted(folder.glob("wide/*")))
    builder.publish(workers=16)
for mode in ("remote", "hybrid"):
    with wd.dataset("a/b", catalog=catalog, mode=mode) as dataset:
        for name, columns in (("main", None), ("wide", ["c0", "c2", "c4", "c6", "c8"])):
            read = dataset.table(name).batches(10, columns=columns, prefetch="aggressive")
            print(sum(batch.num_rows for batch in read))
"""


def test_a_store_far_away_with_few_descriptors(
    tmp_path: Path, s3_server: S3Server, s3_catalog: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every answer takes its time, all that is asked for at the same time is open at the same time."""
    (tmp_path / "little").mkdir()
    (tmp_path / "wide").mkdir()
    for i in range(SHARDS):
        pq.write_table(pa.table({"id": np.arange(10) + 10 * i}), tmp_path / "little" / f"{i:03d}.parquet")
    values = np.random.default_rng(0).random(20_000)
    for i in range(8):
        columns = {f"c{c}": values + i for c in range(10)}
        pq.write_table(pa.table(columns), tmp_path / "wide" / f"{i:03d}.parquet")
    with Proxy(s3_server.port, delay_s=0.02) as far:
        monkeypatch.setenv("AWS_ENDPOINT_URL", far.endpoint)
        command = [sys.executable, "-c", FAR, "48", str(tmp_path), s3_catalog]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["400", "160000"] * 2
    assert "without the cache" not in done.stderr
