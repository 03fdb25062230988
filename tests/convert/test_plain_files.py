"""Plain npz and Parquet files with a mapping."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warpdata.convert import npz, parquet
from warpdata.convert.mapping import FileMapping
from warpdata.errors import CorruptLayoutError, LimitExceededError, UnsupportedDtypeError


def test_an_episode_per_archive(tmp_path: Path) -> None:
    for number in range(2):
        np.savez_compressed(
            tmp_path / f"ep{number}.npz",
            state=np.full((11, 3), number, "f4"),
            act=np.zeros((10, 2)),
            lang=np.array("pick"),
        )
    mapping = {
        "signals": {"state": "state", "action": {"from": "act", "role": "action"}},
        "static": {"task": "lang"}, "fps": 20,
    }  # fmt: skip
    episodes = npz.read(tmp_path, mapping=mapping)
    assert episodes.ids == ["ep0", "ep1"]
    assert dict(episodes[1].static) == {"task": "pick"}
    assert len(episodes[1].steps) == 10
    assert episodes[1].steps.final_observations["state"].tolist() == [1.0, 1.0, 1.0]
    assert episodes[1]["action"].timestamps[1] == 50_000_000


@pytest.mark.parametrize("ends", [np.array([4, 10]), np.array([0, 0, 0, 1, 0, 0, 0, 0, 0, 0], bool)])
def test_many_episodes_in_one_archive(ends: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", state=np.arange(10.0), action=np.zeros((10, 1)), stop=ends)
    episodes = npz.read(tmp_path / "flat.npz", mapping={"ends": "stop"})
    assert [len(episode.steps) for episode in episodes] == [4, 6]
    assert episodes[1]["state"].values().tolist() == list(range(4, 10))


def test_a_mapping_may_be_a_json_file(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text('{"signals": {"q": "state"}, "fps": 5}')
    found = FileMapping.of(tmp_path / "map.json")
    assert found is not None
    assert (found.signals, found.fps) == ({"q": "state"}, 5)
    with pytest.raises(ValueError, match="Did you mean 'signals'"):
        FileMapping.of({"signal": {}})
    with pytest.raises(ValueError, match="unknown role"):
        FileMapping.of({"signals": {"q": {"from": "state", "role": "actor"}}})


def test_pickles_and_bombs_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", state=np.array([{}, 1], object))
    with pytest.raises(UnsupportedDtypeError, match=r"state.*a\.npz"):
        _ = npz.read(tmp_path / "a.npz")[0]
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as out:
        out.writestr("state.npy", head.getvalue() + bytes(64))
    with pytest.raises(LimitExceededError, match=r"b\.npz"):
        _ = npz.read(tmp_path / "b.npz")[0]
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as out:
        out.writestr("../state.npy", b"")
    with pytest.raises(CorruptLayoutError, match="leads out"):
        _ = npz.read(tmp_path / "c.npz")[0]


def test_arrays_of_different_lengths_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", state=np.zeros(9), action=np.zeros((4, 1)))
    with pytest.raises(CorruptLayoutError, match=r"'state' of episode 'a' has 9 rows, there are 4 steps"):
        _ = npz.read(tmp_path / "a.npz")[0]


def test_rows_of_a_table_by_episode(tmp_path: Path) -> None:
    table = pa.table(
        {
            "episode_index": [0] * 5 + [7] * 3,
            "action": [[float(number), 1.0] for number in range(8)],
            "grid": pa.array([[[1, 2], [3, 4]]] * 8, pa.list_(pa.list_(pa.uint8()))),
            "task": ["push"] * 8,
            "nested": [{"depth": number} for number in range(8)],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=3)
    episodes = parquet.read(tmp_path / "t.parquet", mapping={"static": {"task": "task"}})
    assert episodes.ids == ["episode_0", "episode_7"]
    episode = episodes[1]
    assert episode.static["task"] == "push"
    assert episode["action"].values().tolist() == [[5, 1], [6, 1], [7, 1]]
    assert episode["grid"].meta.shape == (2, 2)
    assert episode["nested/depth"].values().tolist() == [5, 6, 7]
    with pytest.raises(CorruptLayoutError, match="no column 'run'"):
        _ = parquet.read(tmp_path / "t.parquet", mapping={"episodes": "run"}).ids


def test_rows_of_an_episode_lie_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"episode": [0, 1, 0], "action": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    with pytest.raises(CorruptLayoutError, match="do not lie together"):
        _ = parquet.read(tmp_path / "t.parquet").ids
