"""The golden lane: read as it was meant, like those of earlier releases, and written today with the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.make_golden_lane import NAME, publish

import warpdata as wd
from tests.conftest import OWN_GOLDEN

GOLDEN = OWN_GOLDEN / "lane"
OLDER = sorted((OWN_GOLDEN.parent / "compat" / "lane").iterdir())


def expected(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "expected.json").read_text()))


@pytest.mark.parametrize("folder", [*OLDER, GOLDEN], ids=lambda folder: folder.name)
def test_it_is_read(folder: Path) -> None:
    with wd.dataset(NAME, catalog=folder / "catalog") as ds:
        assert ds.version == expected(folder)["version"]
        assert (ds.lanes["double"].of, ds.lanes["double"].revision) == (("joints",), "1")
        assert ds.lane_status("double").current == ("ep_0", "ep_1")
        for episode in ds.episodes:
            said = episode["prediction/joints/double"]
            np.testing.assert_array_equal(said.values(), episode["joints"].values() * 2)
            assert (said.meta.role, said.meta.of, said.meta.model) == ("prediction", "joints", "double")


def test_today_writes_the_same_bytes(tmp_path: Path) -> None:
    publish(tmp_path)
    with wd.dataset(NAME, catalog=tmp_path) as ds:
        shards = {str(shard.name): shard.hash for shard in ds.manifest.artifacts["lane-double"].shards}
    assert shards == expected(GOLDEN)["shards"]
    assert (tmp_path / "datasets.json").read_bytes() == (GOLDEN / "catalog/datasets.json").read_bytes()
