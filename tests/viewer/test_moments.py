"""Moments like another, asked of a vector index that lies beside a root, in it, or is published with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.viewer.conftest import Client, client_of
from warpdata.viewer.moments import SPREAD_NS

STEP_NS = 20_000_000
STEPS = 200
PERIOD = 40


def joints(number: int, step: int) -> np.ndarray[Any, Any]:
    """Goes round in a circle; the episodes are a little apart."""
    angle = 2 * np.pi * step / PERIOD
    return np.array([np.cos(angle), np.sin(angle), 0.1 * number], np.float32)


@pytest.fixture(scope="module")
def circles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("moments") / "circles"
    for number in range(3):
        with wd.record(root, clock="simulated") as rec:
            for step in range(STEPS):
                rec.step({"joints": joints(number, step)}, {}, ts_ns=number * 10**12 + step * STEP_NS)
    return root


def indexed(root: Path, path: Path, **options: Any) -> Path:
    with wd.TrajectoryIngestor(path, embedder=lambda obs: obs["joints"], metric="l2") as ingestor:
        ingestor.ingest_episodes(wd.open_recordings(root), **options)
    return path


@pytest.fixture(scope="module")
def asked(circles: Path) -> Iterator[Client]:
    indexed(circles, circles.parent / "episodes.rvf")
    with wd.view(circles, open_browser=False) as viewer:
        yield client_of(viewer)


def test_the_nearest_moments_of_all_episodes_by_a_slow_reference(asked: Client) -> None:
    assert asked.get("dataset").json()["has_moments"]
    step = 57
    at = 10**12 + step * STEP_NS
    found = asked.get("moments", episode="000000000001", at=at, most=8).json()
    assert found["index"] == "episodes.rvf"
    wanted = joints(1, step)
    every = sorted(
        (float(((joints(n, k) - wanted) ** 2).sum()), n, k) for n in range(3) for k in range(STEPS)
    )
    kept = [(1, at)]
    for _, n, k in every:
        when = n * 10**12 + k * STEP_NS
        if all(n != other or abs(when - then) >= SPREAD_NS for other, then in kept):
            kept.append((n, when))
    best = {(f"{n:012d}", str(when)) for n, when in kept[1:9]}
    # Equally near ones, a period apart, may come in any order: their distances are those of the reference.
    for each in found["moments"]:
        number, when = int(each["episode"]), int(each["at_ns"])
        assert each["since_start_ns"] == when - number * 10**12
        away = float(((joints(number, (when - number * 10**12) // STEP_NS) - wanted) ** 2).sum())
        assert each["score"] == pytest.approx(away, abs=1e-5)
    assert len(found["moments"]) == 8
    nearest = [each["score"] for each in found["moments"]]
    assert nearest == sorted(nearest)
    assert {(each["episode"], each["at_ns"]) for each in found["moments"]} <= best | {
        (f"{n:012d}", str(n * 10**12 + k * STEP_NS)) for _, n, k in every[:40]
    }


def test_a_picture_of_the_moment_and_limits(asked: Client) -> None:
    assert asked.get("thumbnail", episode="000000000001", at=10**12).status == 200
    assert asked.get("moments", episode="000000000001", at=0, most=1000).status == 400
    assert asked.get("moments", episode="000000000001", at="x").status == 400
    assert asked.get("moments", episode="nobody", at=0).status == 404


def test_steps_chosen_at_a_rate_keep_their_times(circles: Path, tmp_path: Path) -> None:
    path = indexed(circles, tmp_path / "rate.rvf", rate_hz=10.0, max_steps=1000)
    with wd.view(circles, open_browser=False, index=path) as viewer:
        found = client_of(viewer).get("moments", episode="000000000000", at=0, most=3).json()["moments"]
    for each in found:
        number, when = int(each["episode"]), int(each["at_ns"])
        step = (when - number * 10**12) // STEP_NS
        assert (when - number * 10**12) % 100_000_000 == 0
        assert each["score"] == pytest.approx(
            float(((joints(number, step) - joints(0, 0)) ** 2).sum()), abs=1e-4
        )


def test_an_index_published_with_the_dataset_is_found(circles: Path, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    with wd.DatasetBuilder("lab/circles", catalog=catalog) as builder:
        builder.add_episodes("demo", circles)
        index = indexed(circles, tmp_path / "published.rvf")
        builder.add_artifact("index", index, kind="vector_index")
        builder.publish()
    with (
        wd.dataset("lab/circles", catalog=catalog) as dataset,
        wd.view(dataset, open_browser=False, draft=tmp_path / "draft") as viewer,
    ):
        client = client_of(viewer)
        assert client.get("dataset").json()["has_moments"]
        found = client.get("moments", episode="000000000002", at=2 * 10**12, most=2).json()
    assert found["index"] == "index"
    assert [int(each["at_ns"]) % 10**12 % (PERIOD * STEP_NS) for each in found["moments"]] == [0, 0]


def test_what_cannot_be_compared_says_why(circles: Path, tmp_path: Path) -> None:
    with wd.view(
        circles, open_browser=False, index=_store(tmp_path / "other.rvf", [{"tag": "a"}] * 3)
    ) as viewer:
        answer = client_of(viewer).get("moments", episode="000000000000", at=0)
        assert answer.status == 400
        assert "TrajectoryIngestor" in answer.json()["error"]
    rows = [{"episode_id": "000000000000", "file_path": f"/elsewhere/{k}", "step": 3} for k in range(3)]
    with wd.view(circles, open_browser=False, index=_store(tmp_path / "names.rvf", rows)) as viewer:
        answer = client_of(viewer).get("moments", episode="000000000000", at=0)
        assert "several episodes with the id" in answer.json()["error"]
        assert (
            "no moment of" in client_of(viewer).get("moments", episode="000000000001", at=0).json()["error"]
        )
    lonely = tmp_path / "lonely"
    with wd.record(lonely, clock="simulated") as rec:
        rec.append("x", 1.0, 0)
    with wd.view(lonely, open_browser=False) as viewer:
        client = client_of(viewer)
        assert not client.get("dataset").json()["has_moments"]
        assert "no vector index" in client.get("moments", episode="000000000000", at=0).json()["error"]


def _store(path: Path, rows: list[dict[str, Any]]) -> Path:
    with wd.VectorStore.create(path, dim=3, metric="l2") as store:
        store.add(np.eye(3), metadata=rows)
    return path
