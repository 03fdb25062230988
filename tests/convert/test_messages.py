"""Messages that lie about themselves: descriptors, definitions, JSON, pictures, packets, and what we say of our own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.test_mcap import log_of
from warpdata.convert import mcap as ours
from warpdata.convert.mcap.write import encode_blob, encode_string
from warpdata.convert.messages import LogChannel, Payloads
from warpdata.convert.messages.cdr import parse_definition
from warpdata.convert.messages.decoders import ProtobufDecoder
from warpdata.convert.messages.payload import decoder_config, parameter_sets, to_stream_packet
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.timeline.episode import Episode

# Protobuf.


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def held(field: int, data: bytes | str) -> bytes:
    raw = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def field_of(name: str, at: int, kind: int, of: str = "", *, repeated: bool = False) -> bytes:
    made = held(1, name) + number(3, at) + number(4, 3 if repeated else 1) + number(5, kind)
    return held(2, made + (held(6, f".{of}") if of else b""))


def message_of(name: str, *fields: bytes) -> bytes:
    return held(4, held(1, name) + b"".join(fields))


def described(*messages: bytes) -> bytes:
    return held(1, held(2, "p") + b"".join(messages))


DOUBLE, INT64, INT32, FIXED32, STRING, MESSAGE, SINT32 = 1, 3, 5, 7, 9, 11, 17
CHAIN = [
    message_of(f"T{k}", *(field_of(f"f{j}", j + 1, MESSAGE, f"p.T{k + 1}") for j in range(4)))
    for k in range(20)
]


def nested(depth: int) -> bytes:
    found = held(1, "N")
    for _ in range(depth):
        found = held(1, "N") + held(3, found)
    return held(4, found)


@pytest.mark.parametrize(
    ("descriptors", "words"),
    [
        (described(message_of("Other")), "descriptors have no message 'p.T0'"),
        (b"", "descriptors have no message 'p.T0'"),
        (number(1, 3), "descriptors have no message 'p.T0'"),
        (b"\x0a\x05ab", "corrupted descriptors"),
        (b"\x0b", "corrupted descriptors"),
        (b"\x0a" + b"\xff" * 10, "corrupted descriptors"),
        (described(message_of("T0", held(2, held(1, b"\xff")))), "corrupted descriptors"),
        (described(nested(200)), "corrupted descriptors"),
        (described(*CHAIN, message_of("T20")), "message 'p.T0' has more than 65536 fields"),
        (
            described(message_of("T0", field_of("x", 1, STRING), field_of("x", 2, INT32))),
            "corrupted descriptors",
        ),
    ],
)
def test_descriptors_that_are_none_are_told(descriptors: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        ProtobufDecoder("p.T0", descriptors, "x.mcap")


LISTS = described(
    message_of(
        "T",
        field_of("d", 1, DOUBLE, repeated=True),
        field_of("s", 2, SINT32, repeated=True),
        field_of("one", 3, INT64),
        field_of("f", 4, FIXED32),
        field_of("t", 5, STRING),
        field_of("in", 6, MESSAGE, "p.In", repeated=True),
    ),
    message_of("In", field_of("a", 1, INT32), field_of("b", 2, INT32)),
)


def decoded(*messages: bytes, descriptors: bytes = LISTS, name: str = "p.T") -> dict[str, Any]:
    return ProtobufDecoder(name, descriptors, "x.mcap").decode(
        Payloads.join([memoryview(each) for each in messages])
    )


def test_packed_fields_are_read() -> None:
    found = decoded(held(1, np.array([1.5, -2.0]).tobytes()) + held(2, varint(1) + varint(4)))
    assert found["d"].tolist() == [[1.5, -2.0]]
    assert found["s"].tolist() == [[-1, 2]]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (held(1, bytes(9)), "corrupted protobuf message"),
        (held(2, b"\x80"), "corrupted protobuf message"),
        (held(5, "abc")[:-1], "corrupted protobuf message"),
        (b"\x1c", "corrupted protobuf message"),
    ],
)
def test_damaged_messages_are_told(message: bytes, words: str) -> None:
    with pytest.raises(CorruptLayoutError, match=words) as told:
        decoded(message)
    assert "x.mcap" in str(told.value)


def test_fields_of_another_kind_than_their_type_are_unknown() -> None:
    good = number(3, 7) + b"\x25" + (9).to_bytes(4, "little") + held(5, "t")
    wrong = (
        b"\x19"
        + bytes([1] * 8)
        + number(4, 3)
        + number(5, 3)
        + number(6, 1)
        + held(3, varint(4))
        + number(1, 1)
    )
    found = decoded(good + wrong)
    assert (found["one"].tolist(), found["f"].tolist(), found["t"]) == ([7], [9], ["t"])
    assert found["d"].shape == (1, 0)


def test_the_last_of_a_field_that_is_given_twice_counts() -> None:
    twice = number(1, 1) + number(1, 2)
    found = decoded(number(3, 1) + number(3, 2) + held(6, twice) + held(6, number(2, 5)))
    assert found["one"].tolist() == [2]
    assert found["in/a"].tolist() == [[2, 0]]
    assert found["in/b"].tolist() == [[0, 5]]


def test_maps_are_lists_of_keys_and_values() -> None:
    entry = held(
        3, held(1, "ME") + field_of("key", 1, STRING) + field_of("value", 2, INT32) + held(7, number(7, 1))
    )
    kind = described(message_of("T", entry, field_of("m", 1, MESSAGE, "p.T.ME", repeated=True)))
    found = decoded(
        held(1, held(1, "a") + number(2, 5)) + held(1, held(1, "b") + number(2, 6)), descriptors=kind
    )
    assert found["m/key"] == [("a", "b")]
    assert found["m/value"].tolist() == [[5, 6]]


def test_files_of_descriptors_may_come_in_any_order() -> None:
    inner = held(1, held(1, "b.proto") + held(2, "q") + message_of("In", field_of("a", 1, INT32)))
    outer = held(1, "a.proto") + held(2, "p") + held(3, "b.proto")
    kind = held(1, outer + message_of("T", field_of("in", 1, MESSAGE, "q.In"))) + inner
    assert decoded(held(1, number(1, 7)), descriptors=kind)["in/a"].tolist() == [7]
    looped = held(1, held(1, "a.proto") + held(3, "a.proto"))
    with pytest.raises(FormatError, match="import each other"):
        decoded(descriptors=looped)


def test_types_inside_themselves_end() -> None:
    tree = described(
        message_of(
            "N", *(field_of(f"c{k}", k + 1, MESSAGE, "p.N") for k in range(8)), field_of("v", 9, INT32)
        ),
        message_of("T", field_of("root", 1, MESSAGE, "p.N")),
    )
    inner = held(1, number(9, 5)) + number(9, 4)
    assert decoded(held(1, inner), descriptors=tree)["root/v"].tolist() == [4]


# Definitions of ROS.

EMPTY = "====\nMSG: p/T28\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int32 a\n====\nint32 b", "has a part without 'MSG: <type>'"),
        ("int32 a\n" + "".join(f"====\nMSG: p/T{k}\nint32 a\n" for k in range(4096)), "has 4097 types"),
        ("T a", "type 'p/T' is nested too deeply or contains itself"),
        ("Unknown a", "type 'Unknown' is not defined"),
        ("int32", "invalid line .*: 'int32'"),
        (f"uint8[{'9' * 5000}] a", "invalid line in the definition"),
        (
            "T0 a\n" + "".join(f"====\nMSG: p/T{k}\nT{k + 1} a\nT{k + 1} b\n" for k in range(28)) + EMPTY,
            "has more than 65536 fields",
        ),
    ],
)
def test_definitions_that_are_none_are_told(text: str, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse_definition("p/msg/T", text)


# JSON.


def of_json(path: Path, messages: list[bytes], schema: str = "") -> Episode:
    channel = LogChannel("/t", schema, "jsonschema", b"{}", "json") if schema else None
    log_of(path, [(k, k, message) for k, message in enumerate(messages)], channel)
    (episode,) = ours.read(path)
    return episode


HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([b'{"v":1}', b"{v"], "message is not JSON"),
        ([b"\xff"], "message is not JSON"),
        ([json.dumps({f"f{k}": k for k in range(4097)}).encode()], "messages have more than 4096 fields"),
    ],
)
def test_messages_that_are_no_json_stay_as_they_are(
    messages: list[bytes], words: str, tmp_path: Path
) -> None:
    episode = of_json(tmp_path / "x.mcap", messages)
    assert words in episode.meta["messages"]["channels"][0]["not_decoded"]
    assert episode["t/message.bytes"].values().tolist() == messages


@pytest.mark.parametrize(
    "values",
    [
        (b"1.5", HUGE),
        (b"1", HUGE),
        (b"[1]", b"[%s]" % HUGE),
        (b"[1.5]", b"[%s]" % HUGE),
        (b"[[1],[2,3]]",) * 2,
        (b"true", b"1"),
        (b"1", b'"a"'),
        (b"[1]", b"[[1]]"),
        (b"[true,1]",) * 2,
        (b"[1]", b'["a"]'),
        (b"null",) * 2,
        (*[b"[1]"] * 20, b"[%s]" % b",".join([b"1"] * 3000)),
    ],
)
def test_values_that_no_signal_can_hold_are_left_in_their_messages(
    values: tuple[bytes, ...], tmp_path: Path
) -> None:
    messages = [b'{"v":%s,"w":1}' % value for value in values]
    episode = of_json(tmp_path / "x.mcap", messages)
    assert "t/v" not in episode.signals
    assert episode["t/w"].values().tolist() == [1] * len(values)
    assert "v" in episode.meta["messages"]["channels"][0]["only_in_messages"]
    assert episode["t/message.bytes"].values().tolist() == messages


# The large field.

PIXELS = {"encoding": "mono8", "height": 1, "width": 3, "step": 3, "data": base64.b64encode(b"abc").decode()}


@pytest.mark.parametrize(
    ("schema", "first", "second"),
    [
        ("foxglove.CompressedImage", {"data": "QUJD"}, {"data": None}),
        ("foxglove.CompressedImage", {"data": ["a"]}, {"data": ["b"]}),
        ("foxglove.CompressedImage", {"data": "no base64!"}, {"data": "QUJD"}),
        ("foxglove.CompressedImage", {"data": "QUJ="}, {"data": "QUJD"}),
        ("foxglove.CompressedVideo", {"data": "QUJD", "format": [1]}, {"data": "QUJD", "format": [1, 2]}),
        ("foxglove.CompressedVideo", {"data": "QUJD", "format": "h264"}, {"data": 10**15, "format": "h264"}),
        ("foxglove.CompressedVideo", {"data": None, "format": "h264"}, {"data": "QUJD", "format": "h264"}),
        ("foxglove.CompressedVideo", {"data": "no!", "format": "h264"}, {"data": "no!", "format": "h264"}),
        ("foxglove.RawImage", PIXELS, PIXELS | {"data": None}),
        ("foxglove.RawImage", PIXELS, PIXELS | {"data": "QQ=="}),
        ("foxglove.RawImage", PIXELS, PIXELS | {"data": "no!"}),
        ("foxglove.RawImage", PIXELS, PIXELS | {"height": 2}),
        ("foxglove.RawImage", PIXELS, PIXELS | {"encoding": "rgb8"}),
        ("foxglove.RawImage", PIXELS | {"encoding": [1]}, PIXELS | {"encoding": [1, 2]}),
        ("foxglove.RawImage", *[PIXELS | {"height": [1, 2]}] * 2),
        ("foxglove.RawImage", *[PIXELS | {"height": -1, "width": -3, "step": -3}] * 2),
        ("foxglove.RawImage", *[PIXELS | {"height": 1.5}] * 2),
        ("foxglove.RawImage", *[PIXELS | {"is_bigendian": "no"}] * 2),
        ("foxglove.RawImage", *[PIXELS | {"step": 2}] * 2),
    ],
)
def test_pictures_that_cannot_be_read_stay_values(
    schema: str, first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    messages = [json.dumps(each).encode() for each in (first, second)]
    path = tmp_path / "x.mcap"
    episode = of_json(path, messages, schema)
    assert "payload" not in episode.meta["messages"]["channels"][0]
    if "t/data" in episode.signals:
        values = [each["data"] for each in (first, second)]
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        assert episode["t/data"].values().tolist() == texts
    else:
        assert episode["t/message.bytes"].values().tolist() == messages
    assert all(len(signal.values()) == 2 for signal in episode.signals.values())


def test_pixels_of_json_are_frames(tmp_path: Path) -> None:
    episode = of_json(tmp_path / "x.mcap", [json.dumps(PIXELS).encode()] * 2, "foxglove.RawImage")
    assert episode["t/data"].values().tolist() == [[[97, 98, 99]]] * 2


# Packets of videos.


@pytest.mark.parametrize(
    "units",
    [
        [b"\x67abc"] * 32 + [b"\x68abc"],
        [b"\x67abc"] + [b"\x68abc"] * 300,
        [b"\x67" + b"a" * 70_000, b"\x68abc"],
        [b"\x67abc"],
        [b"\x67a", b"\x68abc"],
    ],
)
def test_parameter_sets_that_mp4_cannot_hold_make_no_video(units: list[bytes]) -> None:
    assert decoder_config(b"".join(b"\0\0\1" + unit for unit in units), "h264") is None


def test_a_packet_whose_units_do_not_fill_it_is_refused() -> None:
    config = decoder_config(b"\0\0\1\x67abc\0\0\1\x68abc", "h264")
    assert config is not None
    packet = (3).to_bytes(4, "big") + b"abc"
    assert to_stream_packet(packet, "h264", config, is_keyframe=False) == b"\0\0\0\1abc"
    for cut in (packet[:-1], packet + b"\0"):
        with pytest.raises(CorruptLayoutError, match="corrupted video packet"):
            to_stream_packet(cut, "h264", config, is_keyframe=False)


def test_fields_that_are_always_empty_keep_no_messages(tmp_path: Path) -> None:
    episode = of_json(tmp_path / "x.mcap", [b'{"v":[],"w":1}'] * 2)
    assert episode.meta["messages"]["channels"][0]["only_in_messages"] == {"v": "always empty"}
    assert "t/message.bytes" not in episode.signals


def test_what_a_video_says_of_its_decoder_may_be_cut() -> None:
    config = decoder_config(b"\0\0\1\x67abc\0\0\1\x68abc", "h264")
    assert config is not None
    assert parameter_sets(config, "h264") == [b"\x67abc", b"\x68abc"]
    packet = (4).to_bytes(4, "big") + b"\x65abc"
    for size in range(len(config)):
        with pytest.raises(CorruptLayoutError, match="corrupted decoder configuration"):
            to_stream_packet(packet, "h264", config[:size], is_keyframe=True)


# Our own topics.

TOLD: dict[str, Any] = {
    "signal": "v",
    "kind": "vector",
    "dtype": "f64",
    "shape": [2],
    "role": "observation",
}
"""What we say of a signal of two numbers."""


def own(path: Path, told: str, line: str, data: bytes) -> Path:
    definition = f"builtin_interfaces/Time stamp\n{line}\n".encode()
    channel = LogChannel("/v", "warpdata_msgs/msg/X", "ros2msg", definition, "cdr", {"warpdata": told})
    return log_of(path, [(1, 1, b"\0\1\0\0" + bytes(8) + data)], channel)


def test_our_own_topics_come_back(tmp_path: Path) -> None:
    path = own(tmp_path / "x.mcap", json.dumps(TOLD), "float64[2] value", np.array([1.5, 2.5]).tobytes())
    assert ours.read(path)[0]["v"].values().tolist() == [[1.5, 2.5]]


@pytest.mark.parametrize(
    "told",
    [
        "",
        "[]",
        "{}",
        "{",
        json.dumps(TOLD | {"kind": "x"}),
        json.dumps(TOLD | {"dtype": "x"}),
        json.dumps(TOLD | {"shape": 3}),
        json.dumps(TOLD | {"shape": ["a"]}),
        json.dumps(TOLD | {"role": "x"}),
        json.dumps(TOLD | {"names": 3}),
        json.dumps(TOLD | {"shape": [-1]}),
    ],
)
def test_what_our_own_topics_say_of_their_signals_may_be_damaged(told: str, tmp_path: Path) -> None:
    path = own(tmp_path / "x.mcap", told, "float64[2] value", bytes(16))
    with pytest.raises(CorruptLayoutError, match="corrupted description of the signal of topic '/v'"):
        _ = list(ours.read(path)[0].signals)


TEXT = TOLD | {"kind": "text", "shape": []}


@pytest.mark.parametrize(
    ("told", "line", "data"),
    [
        (TOLD | {"shape": [3]}, "float64[2] value", bytes(16)),
        (TOLD | {"dtype": "u8"}, "float64[2] value", bytes(16)),
        (TOLD, "string value", encode_string("abc")),
        (TOLD, "uint8[] value", encode_blob(bytes(15))),
        (TOLD, "float64[2] other", bytes(16)),
        (TOLD, "Unknown value", bytes(16)),
        (TEXT, "float64[2] value", bytes(16)),
        (TEXT, "uint8[] value", encode_blob(b"abc")),
        (TEXT | {"kind": "bytes"}, "string value", encode_string("abc")),
    ],
)
def test_our_own_topics_that_hold_something_else_are_told(
    told: dict[str, Any], line: str, data: bytes, tmp_path: Path
) -> None:
    path = own(tmp_path / "x.mcap", json.dumps(told), line, data)
    with pytest.raises(CorruptLayoutError, match="values of topic '/v' do not match its description"):
        _ = ours.read(path)[0]["v"].values()


@pytest.mark.parametrize("seconds", [b"1e300", b"NaN", b"-Infinity", b"9000000000000000000", b"8589934592"])
def test_stamps_that_are_no_time_are_told(seconds: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.mcap"
    of_json(path, [b'{"header":{"stamp":{"sec":%s,"nanosec":1}},"v":1}' % seconds])
    assert ours.read(path)[0]["t/v"].timestamps.tolist() == [0]
    with pytest.raises(CorruptLayoutError, match="header stamp out of range in topic '/t'"):
        _ = ours.read(path, time="header")[0]["t/v"].timestamps
