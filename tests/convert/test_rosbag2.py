"""ROS 2 bags in SQLite: every sample read as its own library reads it; damage and bombs told."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.convert.foreign import copied, imported, listed_samples, sample, sha256
from tests.convert.sets import assert_same
from tests.convert.test_mcap import numbers
from tests.convert.test_wrong_sets import bag
from warpdata.bytekit.codec import encode as encode_bytes
from warpdata.convert import mcap, rosbag2
from warpdata.convert.formats import format_of
from warpdata.convert.messages import cdr
from warpdata.convert.place import Place
from warpdata.convert.rosbag2 import parse_metadata
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
)

BAGS: list[dict[str, Any]] = listed_samples("rosbag2_db3", "expected.json", "bags")
PLAIN = ("rosbag2_db3", "gen_v9_sqlite3")
SQLITE = ("rosbag2_db3", "rosbag2", "rosbag2_py", "test", "resources", "sqlite3")


@pytest.mark.parametrize("told", BAGS, ids=lambda told: Path(told["bag"]).name)
def test_bags_are_read_as_their_library_reads_them(told: dict[str, Any]) -> None:
    path = sample(*Path(told["bag"]).parts)
    assert format_of(Place.of(path)) == "rosbag2"
    if "error" in told:
        with pytest.raises(FormatError, match="wrong_format"):
            _ = list(rosbag2.read(path)[0].signals)
        return
    (episode,) = rosbag2.read(path)
    kept = {each["topic"]: each for each in episode.meta["messages"]["channels"]}
    assert sum(each["messages"] for each in kept.values()) == told["message_count"]
    for topic, about in told.get("topics", {}).items():
        base = kept[topic]["signal"]
        assert sha256(episode[f"{base}/message.log_time_ns"].values()) == about["timestamps_sha256_i64"]
        if about["decode_error"]:
            assert kept[topic]["not_decoded"]
        elif "Arrays" not in about["msgtype"]:
            assert sha256(numbers(episode, base)) == about["decoded_numbers_sha256_f64"]


@pytest.mark.parametrize("kind", ["root", "shards"])
def test_bags_become_mcap_with_every_value(kind: str, tmp_path: Path) -> None:
    bag = rosbag2.read(sample("rosbag2_db3", "gen_v8_sqlite3_msgzstd"))
    episodes = imported(bag, tmp_path / "ours", kind, "rosbag2")
    assert mcap.write(episodes, tmp_path / "out").is_exact
    assert_same(mcap.read(tmp_path / "out")[0], bag[0])


def test_types_that_a_bag_does_not_have_come_from_ros() -> None:
    (episode,) = rosbag2.read(sample(*SQLITE, "wbag"))
    assert len(episode["AAA/data"]) == 804
    (episode,) = rosbag2.read(
        sample(*SQLITE, "talker")
    )  # its own definition of Log does not fit its messages
    assert episode["rosout/level"].values().tolist() == [20] * 10


def test_a_bag_of_mcap_files_is_read_as_such() -> None:
    folder = sample("mcap", "gen_v9_mcap")
    assert rosbag2.read(folder).ids == mcap.read(folder).ids == ["gen_v9_mcap"]
    assert wd.open(folder)[0]["joint_states/position"].meta.shape == (7,)


def test_a_folder_of_bags_and_mcap_files_is_read_as_a_whole(tmp_path: Path) -> None:
    copied(sample(*PLAIN), tmp_path)
    copied(sample("mcap", "gen_v9_mcap"), tmp_path)
    copied(sample("mcap", "gen", "json_foxglove.mcap"), tmp_path)
    episodes = wd.open(tmp_path)
    assert sorted(episodes.ids) == ["gen_v9_mcap", "gen_v9_sqlite3", "json_foxglove"]
    assert [len(episode.signals) > 3 for episode in episodes] == [True] * 3


def test_a_bag_without_its_metadata_is_read(tmp_path: Path) -> None:
    path = copied(sample(*PLAIN), tmp_path)
    (path / "metadata.yaml").unlink()
    (episode,) = rosbag2.read(path)
    assert len(episode["joint_states/position"]) == 25
    (alone,) = rosbag2.read(path / "gen_v9_sqlite3.db3")
    assert list(alone.signals) == list(episode.signals)


def test_a_bag_that_was_not_closed_is_read_and_left_alone(tmp_path: Path) -> None:
    path = copied(sample(*PLAIN), tmp_path)
    file = path / "gen_v9_sqlite3.db3"
    writer = sqlite3.connect(file)
    writer.execute("PRAGMA journal_mode = WAL")
    row = writer.execute("SELECT topic_id, data FROM messages ORDER BY id LIMIT 1").fetchone()
    writer.execute(
        "INSERT INTO messages(topic_id, timestamp, data) VALUES (?, ?, ?)", (row[0], 1 << 61, row[1])
    )
    writer.commit()
    before = {each.name: each.read_bytes() for each in path.iterdir() if not each.name.endswith("-shm")}
    assert any(name.endswith("-wal") for name in before)
    (episode,) = rosbag2.read(path)
    assert max(len(signal) for signal in episode.signals.values()) == 26
    assert {
        each.name: each.read_bytes() for each in path.iterdir() if not each.name.endswith("-shm")
    } == before
    writer.close()


def test_files_that_the_metadata_names_must_be_there(tmp_path: Path) -> None:
    path = copied(sample(*SQLITE, "wbag"), tmp_path)
    (path / "wbag_3.db3").unlink()
    with pytest.raises(BlobNotFoundError, match=r"wbag_3\.db3"):
        _ = rosbag2.read(path)[0]
    text = (path / "metadata.yaml").read_text().replace("wbag_3.db3", "../../wbag_3.db3")
    (path / "metadata.yaml").write_text(text)
    with pytest.raises(BlobNotFoundError):
        _ = rosbag2.read(path)[0]


def test_bombs_are_refused(tmp_path: Path) -> None:
    path = copied(sample("rosbag2_db3", "gen_v8_sqlite3_msgzstd"), tmp_path)
    file = path / "gen_v8_sqlite3_msgzstd.db3"
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE messages SET data = ?", (encode_bytes("zstd", bytes(1 << 26)),))
        database.commit()
    (episode,) = rosbag2.read(path)
    with pytest.raises(LimitExceededError, match="msgzstd"):
        _ = [signal.values() for signal in episode.signals.values()]


def test_a_damaged_schema_is_a_typed_error(tmp_path: Path) -> None:
    path = copied(sample(*PLAIN), tmp_path)
    file = path / "gen_v9_sqlite3.db3"
    data = file.read_bytes()
    places = [match.start() for match in re.finditer(rb"CREATE|TABLE|topics|messages|NULL", data[:4096])]
    assert len(places) > 10
    for place in places:
        for value in (0x80, 0xFF):  # no text, which SQLite quotes in its error
            file.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
            with pytest.raises(FormatError, match="gen_v9_sqlite3"):
                _ = [signal.values() for signal in rosbag2.read(path)[0].signals.values()]


def test_metadata_is_read_as_recorders_write_it() -> None:
    text = (
        "rosbag2_bagfile_information:\n  version: 5\n  list:\n    - a\n    - b: 1\n      c: 'it''s'\n"
        '  same:\n  - x: [ ]\n  empty: []\n  none:\n  text: "a\\nb: c"\n  day: 2026-01-02\n'
        "  long:\n    RIHS01_ab\n  block: |\n    x: 1\n    y\n"
    )
    assert parse_metadata(text.encode(), "x") == {
        "version": 5,
        "list": ["a", {"b": 1, "c": "it's"}],
        "same": [{"x": []}],
        "empty": [],
        "none": None,
        "text": "a\nb: c",
        "day": "2026-01-02",
        "long": "RIHS01_ab",
        "block": "x: 1\ny\n",
    }


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"a: 1",
        b"rosbag2_bagfile_information: 3",
        b"rosbag2_bagfile_information:\n  [x",
        b"rosbag2_bagfile_information: {a: &x [1], b: *x}",
        b"rosbag2_bagfile_information: {? [1] : 2}",
        b"rosbag2_bagfile_information: !!python/object/apply:os.getcwd []",
        b"x: \xff",
        b"[" * 100_000,
    ],
)
def test_corrupted_metadata_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(CorruptLayoutError, match="metadata of a bag"):
        parse_metadata(raw, "x")


def test_without_the_types_of_ros_messages_stay_bytes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "rosbags.typesys", None)
    cdr.ros_definition.cache_clear()
    try:
        (episode,) = bag()(tmp_path)
        assert episode["t/message.bytes"].values().tolist() == [bytes.fromhex("0001000003000000616200")]
        assert "t/data" not in episode.signals
    finally:
        cdr.ros_definition.cache_clear()
