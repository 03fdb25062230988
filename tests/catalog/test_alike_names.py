"""Parts and episodes whose names differ in case only: some disks would take what is staged for one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import warpdata as wd
from warpdata.bytekit.filenames import folded


def staged(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def test_nothing_that_is_staged_has_the_name_of_something_else(tmp_path: Path) -> None:
    for number, name in enumerate(("Ep", "ep")):
        made = wd.WShardEpisode(id=name, length=3)
        made.observations["x"] = np.full((3, 2), number, np.float32)
        wd.save_wshard(made, tmp_path / f"{number}.wshard")
    episodes = [wd.open_episode(tmp_path / f"{number}.wshard") for number in (0, 1)]
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"2")
    with wd.DatasetBuilder("a/b", catalog=tmp_path / "catalog", staging=tmp_path / "staging") as builder:
        builder.add_table("main", {"x": [1]}).add_table("Main", {"x": [2]})
        builder.add_artifact("raw", tmp_path / "one").add_artifact("Raw", tmp_path / "two")
        builder.add_episodes("demos", episodes)
        before = staged(tmp_path / "staging")
        builder.manifest()
        for names in (before, staged(tmp_path / "staging")):
            assert len({folded(name) for name in names}) == len(names) >= 5
        builder.publish()
    with wd.dataset("a/b", catalog=str(tmp_path / "catalog")) as ds:
        assert [ds.table(name).head(1).to_pylist() for name in ("main", "Main")] == [[{"x": 1}], [{"x": 2}]]
        found = {each.id: each.steps.observations["x"][0, 0] for each in ds.episodes}
        assert found == {"Ep": 0, "ep": 1}
