"""MCAP: every sample read as its own libraries read it, and written again value by value."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import mcap.reader
import mcap.writer
import numpy as np
import pytest

import warpdata as wd
from tests.convert.foreign import imported, listed_samples, sample, sha256
from tests.convert.sets import assert_same, made_episode, made_episodes
from warpdata.bytekit.codec import encode as encode_bytes
from warpdata.convert import mcap as ours
from warpdata.convert import rosbag2
from warpdata.convert.importing import import_episodes
from warpdata.convert.mcap.read import MAGIC
from warpdata.convert.messages import LogChannel
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.collection.jobs import runner_of
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import (
    BadMagicError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    MissingExtraError,
    TruncatedError,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal

FILES: list[dict[str, Any]] = listed_samples("mcap", "expected.json", "files")
CDR = ("mcap", "gen", "ros2_cdr_zstd.mcap")
JSON = ("mcap", "gen", "json_foxglove.mcap")


def record(opcode: int, body: bytes) -> bytes:
    """A record of a file."""
    return bytes([opcode]) + len(body).to_bytes(8, "little") + body


MESSAGE = (
    "message.log_time_ns",
    "message.publish_time_ns",
    "message.sequence",
    "message.bytes",
)


def content(path: Path) -> Any:
    """What the original reader finds in a file, checksums compared."""
    with open(path, "rb") as file:
        reader = mcap.reader.make_reader(file, validate_crcs=True)
        messages = sorted(
            (
                channel.topic,
                message.log_time,
                message.publish_time,
                message.sequence,
                message.data,
                schema and (schema.name, schema.encoding, schema.data),
                channel.message_encoding,
                sorted(channel.metadata.items()),
            )
            for schema, channel, message in reader.iter_messages()
        )
        summary = reader.get_summary()
        assert summary is not None
        assert summary.statistics is not None
        topics = sorted(channel.topic for channel in summary.channels.values())
        attachments = [
            (a.name, a.media_type, a.log_time, a.create_time, a.data) for a in reader.iter_attachments()
        ]
        metadata = [(m.name, m.metadata) for m in reader.iter_metadata()]
        return reader.get_header().profile, messages, topics, attachments, metadata


def numbers(episode: Episode, topic: str) -> Any:
    """All numbers of a topic, message by message in the order of fields, as the samples' expected values have them."""
    base = f"{topic.strip('/')}/"
    found = [
        (name, signal)
        for name, signal in episode.signals.items()
        if name.startswith(base)
        and signal.meta.kind in ("scalar", "vector", "tensor")
        and not name.endswith((*MESSAGE, ".length"))
        and not (
            signal.meta.dtype == np.uint8 and signal.meta.shape and "_values" not in name.rpartition("/")[0]
        )
    ]
    count = len(episode.signals[f"{base}message.log_time_ns"])
    rows = []
    for row in range(count):
        for name, signal in found:
            value = signal.values()[row]
            length = episode.signals.get(f"{name}.length")
            rows.append(
                np.asarray(value if length is None else value[: length.values()[row]], np.float64).reshape(-1)
            )
    return np.concatenate(rows) if rows else np.empty(0)


@pytest.mark.parametrize("told", FILES, ids=lambda told: Path(told["file"]).name)
def test_samples_are_read_as_their_libraries_read_them(told: dict[str, Any]) -> None:
    path = sample(*Path(told["file"]).parts)
    assert ours.matches(Place.of(path))
    (episode,) = ours.read(path)
    kept = {each["topic"]: each for each in episode.meta["messages"]["channels"]}
    for topic, about in told["topics"].items():
        base = kept[topic]["signal"]
        assert kept[topic]["messages"] == about["messages"]
        if not about["messages"]:
            continue
        log = episode[f"{base}/message.log_time_ns"].values()
        assert sha256(log) == about["log_times_sha256_i64"]
        assert (
            sha256(episode[f"{base}/message.publish_time_ns"].values()) == about["publish_times_sha256_i64"]
        )
        assert (np.diff(episode[f"{base}/message.log_time_ns"].timestamps) > 0).all()
        if about["decode_error"] or about["message_encoding"] == "wrong_format":
            assert kept[topic]["not_decoded"]
        elif about["decoded_numbers_sha256_f64"] and topic not in ("/array_topic",):
            assert "not_decoded" not in kept[topic]
            if not kept[topic].get("only_in_messages"):
                assert sha256(numbers(episode, base)) == about["decoded_numbers_sha256_f64"], topic


def test_pictures_and_pixels() -> None:
    (episode,) = ours.read(sample(*CDR))
    frames = encoded_run(episode["camera/compressed/data"])
    assert frames is not None
    assert all(frame.data.startswith(b"\xff\xd8") for frame in frames.frames())
    assert episode["wrist/image_raw/data"].meta.shape == (64, 64, 3)
    assert episode["depth/image_raw/data"].meta.dtype == np.uint16
    with open(sample(*CDR), "rb") as file:
        found = {}
        for _, channel, message in mcap.reader.make_reader(file).iter_messages():
            found.setdefault(channel.topic, []).append(message.data)
    pixels = np.frombuffer(found["/wrist/image_raw"][3][-64 * 64 * 3 :], np.uint8).reshape(64, 64, 3)
    np.testing.assert_array_equal(episode["wrist/image_raw/data"][3][0], pixels[..., ::-1])  # it is bgr8


def test_names_of_joints_go_with_the_numbers() -> None:
    (episode,) = ours.read(sample(*CDR))
    assert episode.static["joint_states/name"] == [f"j{joint}" for joint in range(7)]
    assert episode["joint_states/position"].meta.names == tuple(f"j{joint}" for joint in range(7))
    assert episode["odd/seq.length"].values().tolist()[:5] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["straight", "root", "shards"])
@pytest.mark.parametrize(
    "parts",
    [
        CDR,
        JSON,
        ("mcap", "gen", "foxglove_protobuf.mcap"),
        ("mcap", "rosbag2", "rosbag2_cpp", "test", "rosbag2_cpp", "bags", "topics_and_services.mcap"),
        ("mcap", "rosbag2", "rosbag2_tests", "resources", "mcap", "cdr_test", "cdr_test_0.mcap"),
    ],
    ids=lambda parts: parts[-1],
)
def test_every_value_of_a_recording_comes_out_again(
    parts: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    source = sample(*parts)
    before = episodes = ours.read(source)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "mcap")
    receipt = ours.write(episodes, tmp_path / "out")
    assert receipt.is_exact, str(receipt)
    after = ours.read(tmp_path / "out" / source.name)
    assert_same(before[0], after[0])
    assert after[0].meta["messages"] == before[0].meta["messages"]
    _, messages, _, attachments, metadata = content(tmp_path / "out" / source.name)
    assert len(messages) == sum(
        len(signal) for name, signal in before[0].signals.items() if name != "message.attachments"
    )
    assert attachments == content(source)[3]
    assert metadata[: len(metadata) - 1] == content(source)[4]


def test_the_files_of_one_bag_are_one_episode(tmp_path: Path) -> None:
    folder = sample(
        "mcap", "rosbag2", "rosbag2_py", "test", "resources", "mcap", "reindex_test_bags", "multiple_files"
    )
    episodes = ours.read(folder)
    assert episodes.ids == ["multiple_files"]
    assert len(episodes[0]["chatter/data"]) == 1324 + 1324 + 529
    above = ours.read(folder.parent.parent)
    assert sorted(above.ids) == ["convert_a", "convert_b", "talker", "wbag"]


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_any_episodes_become_topics_and_come_back(compression: Any, tmp_path: Path) -> None:
    before = made_episodes(3)
    receipt = ours.write(before, tmp_path / "out", compression=compression)
    assert receipt.is_exact
    after = wd.open(tmp_path / "out")
    assert after.ids == before.ids
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)
        assert len(other.steps) == len(one.steps)
    for path in sorted((tmp_path / "out").glob("*.mcap")):
        content(path)


def test_episodes_of_other_kinds_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = np.empty(4, object)
    values[:] = ["a", "", "ü\0b", "long " * 99]
    blobs = np.empty(4, object)
    blobs[:] = [b"", b"\0", rng.bytes(3000), b"x"]
    times = np.array([3, 10, 11, 2_000_000_000_000_000_000])
    signals = {
        "text": ArraySignal(times, values),
        "blob": ArraySignal(times, blobs),
        "half": ArraySignal(times, rng.normal(size=(4, 3)).astype(np.float16)),
        "flags/on": ArraySignal(times, np.array([True, False, True, True])),
        "big": ArraySignal(times, rng.integers(0, 1 << 63, (4, 2, 2), np.uint64)),
        "nan": ArraySignal(times, np.array([np.nan, np.inf, -0.0, 1e-300])),
        "none": ArraySignal(times[:0], np.empty((0, 2), np.float32)),
        "plane": ArraySignal(times, rng.integers(0, 1 << 16, (4, 20, 24), np.uint16)),
    }
    episode = Episode.of(signals, {"task": "x", "list": [1, 2.5, None]}, id="odd one")
    ours.write(Episodes.of([episode]), tmp_path / "one.mcap")
    (again,) = ours.read(tmp_path / "one.mcap")
    assert dict(again.static) == dict(episode.static)
    for name, signal in signals.items():
        assert again[name].meta == episode[name].meta, name
        np.testing.assert_array_equal(again[name].values(), signal.values())
        np.testing.assert_array_equal(again[name].timestamps, signal.timestamps)


def test_pictures_of_other_sets_are_copied(tmp_path: Path) -> None:
    from warpdata.convert import webdataset

    (episode,) = webdataset.read(sample("webdataset", "gen", "robot-000000.tar"))[:1]
    assert ours.write(Episodes.of([episode]), tmp_path / "one.mcap").is_exact
    (again,) = ours.read(tmp_path / "one.mcap")
    first, second = encoded_run(episode["front"]), encoded_run(again["front"])
    assert first is not None
    assert second is not None
    assert [frame.data for frame in first.frames()] == [frame.data for frame in second.frames()]


def log_of(path: Path, messages: list[tuple[int, int, bytes]], channel: LogChannel | None = None) -> Path:
    with open(path, "wb") as file:
        writer = mcap.writer.Writer(file)
        writer.start()
        schema = 0
        if channel is not None:
            schema = writer.register_schema(channel.schema, channel.schema_encoding, channel.schema_data)
        channel = channel or LogChannel("/t", message_encoding="json")
        number = writer.register_channel(
            channel.topic, channel.message_encoding, schema, dict(channel.metadata)
        )
        for sequence, (log, publish, data) in enumerate(messages):
            writer.add_message(number, log, data, publish, sequence)
        writer.finish()
    return path


def test_times_are_kept_whatever_they_are(tmp_path: Path) -> None:
    stamps = [(5, 50, 70), (5, 40, 60), (3, 30, 80), (9, 20, 90)]
    told = [
        (log, publish, b'{"header":{"stamp":{"sec":0,"nanosec":%d}},"v":%d}' % (header, log))
        for log, publish, header in stamps
    ]
    path = log_of(tmp_path / "x.mcap", told)
    (episode,) = ours.read(path)
    assert episode["t/v"].timestamps.tolist() == [3, 5, 6, 9]
    assert episode["t/message.log_time_ns"].values().tolist() == [3, 5, 5, 9]
    assert episode["t/message.publish_time_ns"].values().tolist() == [30, 50, 40, 20]
    assert episode.meta["messages"]["channels"][0]["moved_ns"] == 1
    (episode,) = ours.read(path, time="header")
    assert episode["t/v"].timestamps.tolist() == [60, 70, 80, 90]
    assert episode["t/message.log_time_ns"].values().tolist() == [5, 5, 3, 9]
    (episode,) = ours.read(path, time="publish")
    assert episode["t/v"].timestamps.tolist() == [20, 30, 40, 50]
    for time in ("log", "header", "publish"):
        episodes = ours.read(path, time=time)  # type: ignore[arg-type]
        ours.write(episodes, tmp_path / f"{time}.mcap")
        assert_same(ours.read(tmp_path / f"{time}.mcap")[0], episodes[0])


def test_actions_and_topics_are_chosen() -> None:
    (episode,) = ours.read(sample(*CDR), actions=["/cmd_vel"], topics=["/cmd_vel", "/joint_states"])
    assert {name.partition("/")[0] for name in episode.signals} == {"cmd_vel", "joint_states"}
    assert "cmd_vel/linear/x" in episode.steps.actions
    assert len(episode.steps) == 40
    with pytest.raises(ValueError, match="Did you mean '/cmd_vel'"):
        _ = list(ours.read(sample(*CDR), topics=["/cmd_val"])[0].signals)


def test_episodes_cross_to_other_processes(tmp_path: Path) -> None:
    (episode,) = pickle.loads(pickle.dumps(ours.read(sample(*CDR), time="header")))
    again = pickle.loads(pickle.dumps(episode))
    for name, signal in episode.signals.items():
        np.testing.assert_array_equal(again[name].values(), signal.values())
        alone = pickle.loads(pickle.dumps(signal))
        np.testing.assert_array_equal(alone.timestamps, signal.timestamps)
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("ros2_cdr_zstd.mcap", "json_foxglove.mcap"):
        shutil.copy(sample("mcap", "gen", name), folder)
    receipts = [
        import_episodes(
            ours.read(folder), tmp_path / str(jobs), format="mcap", source="x", runner=runner_of(jobs)
        )
        for jobs in (1, 2)
    ]
    assert receipts[0].signals["joint_states/position"].to_json() == (
        receipts[1].signals["joint_states/position"].to_json()
    )


def test_large_topics_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from warpdata.convert.messages import episode as reading

    (before,) = ours.read(sample(*CDR))
    expected_values = {name: signal.values() for name, signal in before.signals.items()}
    monkeypatch.setattr(sys.modules["warpdata.convert.mcap.read"], "_SMALL_BYTES", 10)
    monkeypatch.setattr(sys.modules["warpdata.convert.mcap.read"], "_CACHE_BYTES", 10)
    monkeypatch.setattr(reading, "_CACHED_BYTES", 10)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 3000)
    (episode,) = ours.read(sample(*CDR))
    for name, values in expected_values.items():
        np.testing.assert_array_equal(episode[name].values(), values)
        np.testing.assert_array_equal(episode[name].rows(3, 9), values[3:9])


# Damage.


def test_a_recording_without_its_end_is_told_and_read_on_request(tmp_path: Path) -> None:
    whole = sample("mcap", "gen", "ros2_cdr_none.mcap").read_bytes()
    path = tmp_path / "cut.mcap"
    (before,) = ours.read(sample("mcap", "gen", "ros2_cdr_none.mcap"))
    counts = set()
    for cut in range(len(whole) // 7, len(whole) - 10, len(whole) // 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(TruncatedError, match=r"cut\.mcap"):
            _ = list(ours.read(path)[0].signals)
        (episode,) = ours.read(path, recover=True)
        assert episode.meta["messages"]["damage"]
        for name, signal in episode.signals.items():
            np.testing.assert_array_equal(signal.values(), before[name].values()[: len(signal)])
        counts.add(len(episode["odd/a"]) if "odd/a" in episode.signals else 0)
    assert len(counts) > 1


def test_a_flipped_byte_of_a_chunk_is_found(tmp_path: Path) -> None:
    data = bytearray(sample("mcap", "gen", "ros2_cdr_none.mcap").read_bytes())
    data[len(data) // 3] ^= 1
    path = tmp_path / "flipped.mcap"
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"flipped\.mcap"):
        _ = list(ours.read(path)[0].signals)
    (episode,) = ours.read(path, recover=True)
    assert "CRC mismatch" in episode.meta["messages"]["damage"][0]


END = record(15, bytes(4)) + record(2, bytes(20)) + MAGIC
"""The end of a file without a summary."""


def chunk(size: int, compression: str, stored: bytes, crc: int = 0) -> bytes:
    head = (0).to_bytes(16, "little") + size.to_bytes(8, "little") + crc.to_bytes(4, "little")
    kind = compression.encode()
    return record(
        6, head + len(kind).to_bytes(4, "little") + kind + len(stored).to_bytes(8, "little") + stored
    )


@pytest.mark.parametrize(
    ("size", "compression", "stored", "error"),
    [
        (1 << 40, "zstd", encode_bytes("zstd", bytes(1 << 20)), LimitExceededError),
        (1 << 27, "zstd", encode_bytes("zstd", bytes(1 << 20)), LimitExceededError),
        (100, "zstd", encode_bytes("zstd", bytes(1 << 24)), LimitExceededError),
        (1 << 27, "lz4", b"\x04\x22\x4d\x18" + bytes(40), LimitExceededError),
        (100, "lz4", bytes(100), FormatError),
        (100, "brotli", bytes(100), FormatError),
        (100, "", bytes(99), FormatError),
    ],
)
@pytest.mark.parametrize("recover", [False, True])
def test_bombs_and_wrong_sizes_are_refused(
    size: int, compression: str, stored: bytes, error: type[FormatError], recover: bool, tmp_path: Path
) -> None:
    whole = sample(*JSON).read_bytes()
    header = 8 + 9 + int.from_bytes(whole[9:17], "little")
    path = tmp_path / "bomb.mcap"
    path.write_bytes(whole[:header] + chunk(size, compression, stored) + END)
    if recover and error is not LimitExceededError:
        assert not list(ours.read(path, recover=True)[0].signals)
        return
    with pytest.raises(error, match=r"bomb\.mcap"):
        _ = list(ours.read(path, recover=recover)[0].signals)


def assert_changes_are_found(path: Path, stride: int) -> None:
    """Reading a file must fail whichever byte of it is changed."""
    body = path.read_bytes()
    for place in range(8, len(body) - 8, stride):
        changed = bytearray(body)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises((FormatError, KeyError)):
            pytest.fail(f"a change at {place} was not found: {ours.read(path)[0]['t/v'].values()}")


def test_wrong_counts_and_checksums_are_found(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    with open(path, "wb") as out:
        writer = mcap.writer.Writer(out, compression=mcap.writer.CompressionType.NONE, enable_data_crcs=True)
        writer.start()
        number = writer.register_channel("/t", "json", 0)
        for k in range(3):
            writer.add_message(number, k, b'{"v":%d}' % k, k, k)
        writer.finish()
    assert ours.read(path)[0]["t/v"].values().tolist() == [0, 1, 2]
    assert_changes_are_found(path, 1)


def test_every_byte_of_our_files_is_checked(tmp_path: Path) -> None:
    values = ArraySignal(np.arange(3), np.arange(3.0))
    ours.write(Episodes.of([Episode.of({"t/v": values}, id="x")]), tmp_path / "x.mcap")
    assert ours.read(tmp_path / "x.mcap")[0]["t/v"].values().tolist() == [0, 1, 2]
    assert_changes_are_found(tmp_path / "x.mcap", 7)


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("mcap.writer", lambda folder: ours.write(made_episodes(1), folder / "x.mcap")),
        (
            "google.protobuf",
            lambda _: list(ours.read(sample("mcap", "gen", "foxglove_protobuf.mcap"))[0].signals),
        ),
        ("yaml", lambda _: rosbag2.read(sample("rosbag2_db3", "gen_v9_sqlite3"))[0]),
    ],
)
def test_missing_libraries_are_named(
    module: str, use: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match="is not installed"):
        use(tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(b"not an mcap file at all")
    assert not ours.matches(Place.of(path))
    with pytest.raises(BadMagicError):
        _ = list(ours.read(path)[0].signals)


def test_messages_that_lie_about_their_lengths_stay_as_they_are(tmp_path: Path) -> None:
    channel = LogChannel("/t", "std_msgs/msg/String", "ros2msg", b"string data", "cdr")
    good = b"\0\1\0\0" + (3).to_bytes(4, "little") + b"ab\0"
    for bad in (
        b"",
        b"\0",
        b"\0\1\0\0",
        b"\0\1\0\0\xff\xff\xff\xff",
        b"\0\1\0\0" + (4).to_bytes(4, "little") + b"ab\0",
        good + bytes(9),
        b"\0\2" + good[2:],
    ):
        path = log_of(tmp_path / "x.mcap", [(1, 1, good), (2, 2, bad)], channel)
        (episode,) = ours.read(path)
        assert episode.meta["messages"]["channels"][0]["not_decoded"]
        assert episode["t/message.bytes"].values().tolist() == [good, bad]


def test_an_existing_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(b"mine")
    with pytest.raises(wd.WarpError):
        ours.write(Episodes.of([made_episode(0)]), path)
    assert path.read_bytes() == b"mine"


def u(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def words(*listed: str | bytes) -> bytes:
    raw = [each.encode() if isinstance(each, str) else each for each in listed]
    return b"".join(u(len(each), 4) + each for each in raw)


def schema_record(number: int, name: str = "s") -> bytes:
    return record(3, u(number, 2) + words(name, "jsonschema", b"{}"))


def channel_record(number: int, schema: int = 0, topic: str = "/t", pairs: bytes = bytes(4)) -> bytes:
    return record(4, u(number, 2) + u(schema, 2) + words(topic, "json") + pairs)


def message_record(channel: int, log: int = 5, data: bytes = b'{"v":1}') -> bytes:
    return record(5, u(channel, 2) + u(0, 4) + u(log, 8) + u(log, 8) + data)


def attachment_record(log: int = 5, crc: int = 0) -> bytes:
    return record(9, u(log, 8) + u(5, 8) + words("notes", "text/plain") + u(2, 8) + b"ab" + u(crc, 4))


def plain_chunk(data: bytes) -> bytes:
    return chunk(len(data), "", data)


def forged(*records: bytes, summary: bytes = b"", before: bytes = b"") -> bytes:
    """A file of these records; with a summary, `before` lies between the data and it."""
    data = MAGIC + record(1, words("", "")) + b"".join(records) + record(15, bytes(4)) + before
    start = len(data) if summary else 0
    return data + summary + record(2, u(start, 8) + bytes(12)) + MAGIC


STATED_3 = record(11, u(3, 8) + bytes(38))
FORGED: dict[str, tuple[bytes, str]] = {
    "no time": (
        forged(channel_record(1), message_record(1, 1 << 63)),
        "timestamp out of range in topic '/t'",
    ),
    "long map": (forged(channel_record(1, pairs=u(3, 4) + bytes(8))), "record ends before its last field"),
    "no text": (forged(record(1, words(b"\xff", ""))), "string of a record is not UTF-8"),
    "gap before the summary": (
        forged(before=record(200, b"x"), summary=STATED_3),
        "data does not end where the summary starts",
    ),
    "long record of the summary": (forged(summary=b"\x0b" + u(1 << 40, 8) + b"x"), "exceeds its summary"),
    "two schemas": (forged(schema_record(1), schema_record(1, "other")), "several schemas with number 1"),
    "no schema": (forged(channel_record(1, schema=7)), "unknown schema 7 of topic '/t'"),
    "two channels": (
        forged(channel_record(1), channel_record(1, topic="/other")),
        "several channels with number 1",
    ),
    "short message": (
        forged(channel_record(1), record(5, bytes(21))),
        "invalid record with opcode 5 and 21 bytes",
    ),
    "no channel": (forged(message_record(9)), "message of unknown channel 9"),
    "no channel in a chunk": (forged(plain_chunk(message_record(9))), "message of unknown channel 9"),
    "long message in a chunk": (
        forged(plain_chunk(channel_record(1) + message_record(1)[:-1])),
        "record of 29 bytes exceeds its chunk",
    ),
    "cut record in a chunk": (
        forged(plain_chunk(channel_record(1) + b"\x03\0\0")),
        "chunk ends inside a record",
    ),
    "long record in a chunk": (forged(plain_chunk(b"\x03" + u(1 << 62, 8))), "exceeds its chunk"),
    "chunk in a chunk": (forged(plain_chunk(plain_chunk(b""))), "invalid record with opcode 6"),
    "short message in a chunk": (
        forged(plain_chunk(record(5, bytes(3)))),
        "invalid record with opcode 5 and 3 bytes",
    ),
    "changed attachment": (forged(attachment_record(crc=1)), "CRC mismatch of the attachment 'notes'"),
    "no time of an attachment": (
        forged(attachment_record(log=1 << 63)),
        "timestamp out of range in attachment 'notes'",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_records_are_told(case: str, tmp_path: Path) -> None:
    data, words_of_it = FORGED[case]
    path = tmp_path / "forged.mcap"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=words_of_it) as told:
        _ = [signal.values() for signal in ours.read(path)[0].signals.values()]
    assert "forged.mcap" in str(told.value)


@pytest.mark.parametrize(
    ("place", "words_of_it"),
    [("record", "record of 2147483648 bytes"), ("summary", "summary of 536870912")],
)
@pytest.mark.parametrize("recover", [False, True])
def test_more_than_a_file_may_ask_for_is_refused(
    place: str, words_of_it: str, recover: bool, tmp_path: Path
) -> None:
    head = MAGIC + record(1, words("", ""))
    size = 1 << 31 if place == "record" else 1 << 29
    path = tmp_path / "large.mcap"
    with open(path, "wb") as file:  # a file with a hole: it takes no room
        file.write(head + (b"\xc8" + u(size, 8) if place == "record" else record(15, bytes(4))))
        start = file.tell()
        file.seek(size, 1)
        file.write(record(2, u(0 if place == "record" else start, 8) + bytes(12)) + MAGIC)
    with pytest.raises(LimitExceededError, match=words_of_it):
        _ = list(ours.read(path, recover=recover)[0].signals)


def test_messages_outside_of_chunks_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = plain_chunk(message_record(1, 3, b'{"v":3}'))
    first = [message_record(1, k, b'{"v":%d}' % k) for k in (0, 1, 2)]
    later = [message_record(1, k, b'{"v":%d}' % k) for k in (4, 5)]
    path = tmp_path / "x.mcap"
    path.write_bytes(forged(channel_record(1), *first, inside, *later))
    for run_bytes in (1 << 20, 70):
        monkeypatch.setattr(sys.modules["warpdata.convert.mcap.read"], "_RUN_BYTES", run_bytes)
        (episode,) = ours.read(path)
        assert episode["t/v"].values().tolist() == [0, 1, 2, 3, 4, 5]
        assert episode["t/v"].timestamps.tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_recovered_is_there_once(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    told = record(12, words("about") + bytes(4))
    path.write_bytes(forged(attachment_record(), told, channel_record(1), summary=STATED_3))
    (episode,) = ours.read(path, recover=True)
    assert episode.meta["messages"]["damage"] == [f"message count mismatch: expected 3, got 0: {path}"]
    assert [each["name"] for each in episode.meta["messages"]["attachments"]] == ["notes"]
    assert [each["name"] for each in episode.meta["messages"]["metadata"]] == ["about"]


def test_the_messages_of_a_damaged_chunk_are_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    broken = plain_chunk(message_record(1, 1, b'{"v":1}') + b"\x03\0")
    good = plain_chunk(message_record(1, 2, b'{"v":2}'))
    path.write_bytes(forged(channel_record(1), broken, good))
    with pytest.raises(CorruptLayoutError, match="chunk ends inside a record"):
        _ = list(ours.read(path)[0].signals)
    (episode,) = ours.read(path, recover=True)
    assert episode["t/v"].values().tolist() == [2]
    assert episode.meta["messages"]["damage"] == [f"chunk ends inside a record: {path}"]


def test_wrong_options_are_told(tmp_path: Path) -> None:
    episodes = Episodes.of([made_episode(0), made_episode(1)])
    with pytest.raises(ValueError, match="compression is one of zstd, lz4, none"):
        ours.write(Episodes.of([made_episode(0)]), tmp_path / "x.mcap", compression="zst")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is one file for 2 episodes: name a folder"):
        ours.write(episodes, tmp_path / "x.mcap")
    path = log_of(tmp_path / "y.mcap", [(1, 1, b'{"v":1}')])
    with pytest.raises(ValueError, match="time is one of log, publish, header"):
        ours.read(path, time="logs")  # type: ignore[arg-type]
    assert not (tmp_path / "x.mcap").exists()


def test_what_is_kept_of_a_recording_may_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(
        forged(
            channel_record(1), message_record(1), attachment_record(), record(12, words("about") + bytes(4))
        )
    )
    (episode,) = ours.read(path)
    kept = episode.meta["messages"]
    changes: list[tuple[str, Any]] = [
        ("attachments", [{"name": "notes"}]),
        ("metadata", [{"name": "about"}]),
        ("metadata", ["about"]),
    ]
    for key, value in changes:
        changed = Episode.of(episode.signals, meta={"messages": {**kept, key: value}}, id="x")
        with pytest.raises(CorruptLayoutError, match="corrupted metadata of"):
            ours.write(Episodes.of([changed]), tmp_path / "y.mcap")
        assert not (tmp_path / "y.mcap").exists()
