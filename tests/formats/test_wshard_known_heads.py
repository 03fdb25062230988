"""A shard that is opened again is not parsed again, and never taken for what it was before."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from warpdata.errors import FormatError
from warpdata.formats.wshard import ShardReader, known_heads, reader


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths whose tables were parsed since."""
    found: list[str] = []
    plain = reader.parse_table

    def counting(*given: Any) -> Any:
        found.append(given[3])
        return plain(*given)

    monkeypatch.setattr(reader, "parse_table", counting)
    return found


def save(path: Path, name: str = "e", fill: float = 1.0, **about: Any) -> None:
    episode = wd.WShardEpisode(id=name, length=50, metadata={"list": [1]}, about={"source": {"deep": [1]}})
    episode.observations["x"] = wd.Channel(
        "x", np.full((50, 3), fill, np.float32), about={"names": ["a"], **about}
    )
    wd.save_wshard(episode, path)


def test_opened_again_it_is_not_parsed_again(tmp_path: Path, parsed: list[str]) -> None:
    save(tmp_path / "a")
    for _ in range(3):
        assert wd.load_wshard(tmp_path / "a").observations["x"].data[0, 0] == 1
    assert len(parsed) == 1


def test_episodes_of_one_file_share_nothing_that_changes(tmp_path: Path) -> None:
    save(tmp_path / "a")
    first = wd.load_wshard(tmp_path / "a")
    first.metadata["list"].append(2)
    first.metadata["new"] = 1
    first.about["source"]["deep"].append(2)
    first.models.append("m")
    first.blocks["b"] = b""
    first.observations["x"].about["names"].append("b")
    first.observations["y"] = np.zeros(50, np.float32)
    again = wd.load_wshard(tmp_path / "a")
    assert again.metadata == {"list": [1]}
    assert again.about == {"source": {"deep": [1]}}
    assert (again.models, again.blocks) == ([], {})
    assert again.observations["x"].about == {"names": ["a"]}
    assert list(again.observations) == ["x"]


def test_a_file_in_its_place_is_seen_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for name, fill in (("one", 1.0), ("two", 2.0), ("one", 1.0), ("six", 3.0)):
        before = path.stat().st_size if path.exists() else None
        save(path, name, fill)
        assert before in (None, path.stat().st_size), "the same size, or the test shows nothing"
        found = wd.load_wshard(path)
        assert (found.id, found.observations["x"].data[0, 0]) == (name, fill)


def test_one_changed_byte_of_the_head_is_found_however_often_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path)
    good = path.read_bytes()
    stamp = path.stat()
    shard = ShardReader.open(path)
    last = shard.block("meta/channels")
    for position in range(0, last.data_offset + last.disk_size, 7):
        assert wd.load_wshard(path).id == "e"
        damaged = bytearray(good)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        try:
            found = wd.load_wshard(path)
        except FormatError:
            pass
        else:
            assert found.observations["x"].data[0, 0] == 1  # padding between blocks
            assert found.id == "e"
        path.write_bytes(good)


def test_unverified_heads_are_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "a"
    save(path)
    data, block = bytearray(path.read_bytes()), ShardReader.open(path).block("meta/episode")
    at = block.data_offset + bytes(data[block.data_offset :]).index(b'"e"') + 1
    data[at : at + 1] = b"f"
    path.write_bytes(data)
    assert wd.load_wshard(path, verify=False).id == "f"
    with pytest.raises(FormatError, match="meta/episode"):
        wd.load_wshard(path)


def test_few_are_remembered_and_threads_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_heads, "MAX_SHARDS", 3)
    for number in range(8):
        save(tmp_path / str(number), f"e{number}")
    wrong: list[str] = []

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 8, 60).tolist():
            if wd.load_wshard(tmp_path / str(number)).id != f"e{number}":
                wrong.append(str(number))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(known_heads._heads) <= 3
