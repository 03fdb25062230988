"""Plain npz and Parquet files with a mapping."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warpdata.convert import hdf5
from warpdata.convert.tables import npz, parquet
from warpdata.convert.tables.mapping import FileMapping
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
)


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


def npy(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def archive(path: Path, members: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as out:
        for name, data in members:
            out.writestr(zipfile.ZipInfo(name), data, method)
    return path


ROWS = npy(np.arange(4.0))


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
)
def test_damaged_members_are_told(method: int, tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", [("x.npy", ROWS)], method)
    assert npz.read(path)[0]["x"].values().tolist() == [0, 1, 2, 3]
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as out:
        entry = out.getinfo("x.npy")
    start = entry.header_offset + 30 + len(entry.filename)
    for at in range(start + 9 * (method == zipfile.ZIP_LZMA), start + entry.compress_size):
        data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(CorruptLayoutError, match="array 'x' is damaged"):
        npz.read(path)[0]["x"].values()


def test_archives_that_are_none_and_names_that_are_not_there_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "b.npz", [("x.npy", ROWS), ("y.npy", npy(np.array(7)))])
    assert dict(npz.read(path)[0].static) == {"y": 7}
    with pytest.raises(CorruptLayoutError, match="there is no array 'stop'; there are x, y"):
        _ = npz.read(path, mapping={"ends": "stop"}).ids
    monkeypatch.setattr(npz, "MAX_MEMBERS", 1)
    with pytest.raises(LimitExceededError, match="2 members"):
        _ = npz.read(path)[0]


def test_tables_that_a_mapping_does_not_fit_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"action": [1.0, 2.0, 3.0], "stop": [True, False, True]}), tmp_path / "t.parquet")
    episodes = parquet.read(tmp_path, mapping={"ends": "stop"})
    assert [episode["action"].values().tolist() for episode in episodes] == [[1.0], [2.0, 3.0]]
    assert parquet.read(tmp_path).ids == ["t"]
    monkeypatch.setattr(parquet, "MAX_GROUP_BYTES", 8)
    with pytest.raises(LimitExceededError, match=r"a group of rows of \d+ bytes.*t\.parquet"):
        _ = parquet.read(tmp_path).ids


def test_files_that_share_a_stem_are_all_read(tmp_path: Path) -> None:
    for name in ("run.h5", "run.hdf5", "run2.hdf5"):
        with h5py.File(tmp_path / name, "w") as file:
            file["actions"], file["data/demo_0/actions"] = np.zeros((3, 1)), np.zeros((2, 1))
    mapped = hdf5.read(tmp_path, mapping={"signals": {"action": "actions"}})
    assert mapped.ids == ["run2", "run.h5", "run.hdf5"]
    assert hdf5.read(tmp_path).ids == ["run2/demo_0", "run.h5/demo_0", "run.hdf5/demo_0"]
