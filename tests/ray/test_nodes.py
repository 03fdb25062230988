"""Two nodes that share a catalog on S3 and nothing else: what they publish is what one process publishes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.ray.sets import publish_arm, speed
from tests.sweeps import SOAK

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warpdata[ray]'")
    pytest.importorskip("ray.data")

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of Ray's own making
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="starts a cluster of two nodes: make soak runs it"),
]


@pytest.fixture
def nodes(s3_catalog: str):
    """The nodes inherit the environment that says where the store is."""
    from ray.cluster_utils import Cluster
    from ray.data import DataContext

    del s3_catalog
    size = {"num_cpus": 1, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    try:
        made.add_node(**size)
        ray.init(made.address, log_to_driver=False, logging_level="error")
        DataContext.get_current().enable_progress_bars = False
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def opened_on(row: dict[str, Any]) -> dict[str, Any]:
    node = ray.get_runtime_context().get_node_id()
    return {"id": row["episode_id"], "node": node, "length": len(wd.ray.open(row)["joints"])}


def test_two_nodes_and_a_store_publish_what_one_process_publishes(
    nodes: str, s3_catalog: str, tmp_path: Path
) -> None:
    publish_arm(s3_catalog)
    rows = wd.ray.read_episodes("lab/arm", catalog=s3_catalog, tasks=8)
    found = rows.map(opened_on, scheduling_strategy="SPREAD").take_all()
    assert len({each["node"] for each in found}) == 2
    assert sorted((each["id"], each["length"]) for each in found) == [
        (f"ep{n:02d}", 20 + n) for n in range(8)
    ]
    mapped = wd.ray.map_episodes("lab/arm", speed, catalog=s3_catalog, tasks=8, scheduling_strategy="SPREAD")
    published = wd.ray.publish(mapped, "lab/fast", catalog=s3_catalog, expect=8)
    again = wd.ray.publish(mapped, "lab/fast", catalog=s3_catalog)
    assert (again.version, again.blobs_sent) == (published.version, 0)
    with wd.dataset("lab/arm", catalog=s3_catalog) as source:
        with wd.DatasetBuilder("lab/fast", catalog=tmp_path / "here") as builder:
            builder.add_episodes("episodes", source.episodes.map(speed))
            assert builder.publish().version == published.version
        assert source.to_ray(table="episodes", columns=["id"], where="length >= 22").count() == 6
    vectors = [
        wd.embed("lab/arm", "state", catalog=s3_catalog, output=tmp_path / name, ray=cluster)
        for name, cluster in (("a.rvf", nodes), ("b.rvf", None))
    ]
    assert Path(vectors[0].path).read_bytes() == Path(vectors[1].path).read_bytes()
