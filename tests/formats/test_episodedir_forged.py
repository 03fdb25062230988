"""Files of an episode that somebody forged: each lie is a typed error that says what is wrong, never other values."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.episodes.salvage.finish import packets_in
from warpdata.errors import ChecksumError, CorruptLayoutError, FormatError, LimitExceededError, TruncatedError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.containers import (
    PacketPlace,
    first_media_box,
    mkv_packets,
    mp4_packets,
    sample_entry,
)
from warpdata.formats.episodedir.documents import (
    MAX_STATIC_ARRAY,
    FileSum,
    Stream,
    plain_static,
    read_bytes,
    read_set_metadata,
    read_static,
)
from warpdata.formats.episodedir.frame_index import parse_frame_index, read_marks
from warpdata.formats.episodedir.signal_file import arrow_errors, parse_signal, read_summary


def parquet(columns: dict[str, Any], about: dict[str, Any] | str | None) -> bytes:
    """A file as another program would write it, with a description of ours."""
    table = pa.table(columns)
    if about is not None:
        text = about if isinstance(about, str) else json.dumps(about)
        table = table.replace_schema_metadata({layout.SCHEMA_KEY: text})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def numbers(*values: int) -> Any:
    return pa.array(values, pa.int64())


FLOATS = {"kind": "scalar", "dtype": "f64", "shape": []}
PAIRS = {"kind": "vector", "dtype": "f64", "shape": [2]}
RAGGED = {"kind": "ragged", "dtype": "f64", "shape": []}
TEXT = {"kind": "text", "dtype": "text", "shape": []}
BYTES = {"kind": "bytes", "dtype": "bytes", "shape": []}
SIGNALS: dict[str, tuple[Any, Any, str]] = {
    "numbers for lists": ([1.0, 2.0], PAIRS, "values are not 2 records of f64[2]"),
    "lists for numbers": ([[1.0], [2.0]], FLOATS, "values are not 2 records of f64[]"),
    "lists of other lengths": ([[1.0], [1.0, 2.0, 3.0]], PAIRS, "values are not 2 records of f64[2]"),
    "a missing element": ([[1.0, None], [1.0, 2.0]], PAIRS, "values are not 2 records of f64[2]"),
    "another type": (pa.array([1, 2], pa.int32()), FLOATS, "values are not 2 records of f64[]"),
    "a missing value": ([1.0, None], FLOATS, "column 'value' has missing values"),
    "numbers for text": ([1, 2], TEXT, "values of type int64 are no text"),
    "bytes for text": ([b"a", b"\xff"], TEXT, "values of type binary are no text"),
    "text for bytes": (["a", "b"], BYTES, "values of type string are no bytes"),
    "a nest as description": ([1.0, 2.0], "[" * 200_000, "the description in the schema is not JSON"),
    "a list as description": ([1.0, 2.0], "[]", "the description in the schema is not JSON"),
    "an endless side": (
        [1.0, 2.0],
        {**PAIRS, "shape": [float("inf")]},
        "the description of the signal is damaged",
    ),
    "a missing element of a ragged value": ([[1.0], [None, 2.0]], RAGGED, "values are not rows of f64[]"),
    "a missing ragged value": ([[1.0], None], RAGGED, "values are not rows of f64[]"),
    "half a row": ([[1.0, 2.0], [1.0]], {**RAGGED, "shape": [2]}, "values are not rows of f64[2]"),
    "numbers for ragged values": ([1.0, 2.0], RAGGED, "values are not rows of f64[]"),
    "undescribed lists of text": ([["a"], ["b"]], None, "values of type list<element: string> are no text"),
    "undescribed days": (pa.array([1, 2], pa.date32()), None, "values of type date32[day] are not known"),
    "undescribed structs": ([{"a": 1}, {"a": 2}], None, "values of type struct<a: int64> are not known"),
}


@pytest.mark.parametrize("lie", SIGNALS)
def test_a_signal_that_is_not_what_it_says(lie: str) -> None:
    values, about, words = SIGNALS[lie]
    data = parquet({"timestamp": numbers(1, 2), "value": values}, about)
    with pytest.raises(CorruptLayoutError, match=re.escape(words)) as raised:
        parse_signal(data, "episode/force.parquet")
    assert "episode/force.parquet" in str(raised.value)


def test_a_signal_without_its_columns() -> None:
    for columns, about, words in (
        ({"timestamp": numbers(1)}, None, "no column 'value'"),
        ({"timestamp": numbers(1)}, FLOATS, "not a readable parquet file"),
        ({"value": [1.0]}, FLOATS, "no int64 column 'timestamp'"),
        ({"timestamp": [1.0], "value": [1.0]}, FLOATS, "no int64 column 'timestamp'"),
    ):
        with pytest.raises(CorruptLayoutError, match=words):
            parse_signal(parquet(columns, about), "force.parquet")


def test_bounds_that_a_footer_does_not_say_are_read() -> None:
    table = pa.table({"timestamp": numbers(3, 8), "value": [1.0, 2.0]})
    file = io.BytesIO()
    pq.write_table(table, file, write_statistics=False)
    found = read_summary(BytesRangeReader(file.getvalue()))
    assert (found.count, found.first_ts_ns, found.last_ts_ns) == (2, 3, 8)


def test_what_the_library_says_of_bytes_is_ours() -> None:
    for error, kind, words in (
        (FileNotFoundError("x"), CorruptLayoutError, "the file is missing"),
        (MemoryError(), LimitExceededError, "announces more than fits in memory"),
        (KeyError(), CorruptLayoutError, r"not a readable parquet file \(KeyError\)"),
        (RuntimeError("a bug"), RuntimeError, "a bug"),
    ):
        with pytest.raises(kind, match=words), arrow_errors("force.parquet"):
            raise error


CAMERA = {
    "kind": "image", "dtype": "u8", "shape": [4, 4, 3], "video_bytes": 100, "fps": None, "codec": "h264",
    "pix_fmt": "yuv420p", "coded": [4, 4], "extradata": "",
}  # fmt: skip
FRAMES = {
    "ts_ns": numbers(1, 2), "pts": numbers(0, 1), "keyframe": pa.array([True, False]), "offset": numbers(0, 10),
    "size": numbers(10, 10), "crc32c": pa.array([1, 2], pa.uint32()),
}  # fmt: skip
DAMAGED = "the description of the video is damaged"
INDEXES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no size": ({}, {"video_bytes": None}, DAMAGED),
    "an endless size": ({}, {"video_bytes": float("inf")}, DAMAGED),
    "a negative size": ({}, {"video_bytes": -1}, DAMAGED),
    "a size that no disk has": ({}, {"video_bytes": 10**30}, DAMAGED),
    "a rate that is a word": ({}, {"fps": "fast"}, DAMAGED),
    "a rate that is no float": ({}, {"fps": 10**400}, DAMAGED),
    "an endless side": ({}, {"coded": [float("inf"), 4]}, DAMAGED),
    "a head that is no base64": ({}, {"extradata": "!"}, DAMAGED),
    "no shape of an image": ({}, {"shape": [4]}, DAMAGED),
    "before the beginning": ({"offset": numbers(-1, 10)}, {}, "frames of impossible size"),
    "an empty frame": ({"size": numbers(10, 0)}, {}, "frames of impossible size"),
    "a huge frame": ({"size": numbers(10, 1 << 60)}, {}, "frames of impossible size"),
    "past the end": ({"offset": numbers(0, 91)}, {}, "frames are past the end of the video"),
    "past all numbers": ({"offset": numbers(0, (1 << 63) - 1)}, {}, "frames are past the end of the video"),
    "no keyframe": (
        {"keyframe": pa.array([False, True])},
        {},
        "the video does not begin with a keyframe",
    ),
    "a place that is text": ({"offset": ["a", "b"]}, {}, "column 'offset' is not of int64"),
    "a place that is a fraction": ({"offset": [0.5, 10.5]}, {}, "column 'offset' is not of int64"),
    "sizes in lists": ({"size": [[1], [2]]}, {}, "column 'size' is not of int64"),
    "words for keyframes": ({"keyframe": ["yes", ""]}, {}, "column 'keyframe' is not of bool"),
    "sums that are cut": ({"crc32c": numbers(-1, 1 << 40)}, {}, "column 'crc32c' is not of uint32"),
    "words for what is shown": ({layout.SHOWN_COLUMN: ["yes", ""]}, {}, "column 'shown' is not of bool"),
    "times that go back": ({"ts_ns": numbers(2, 1)}, {}, "the time of record 1 is not increasing"),
}


@pytest.mark.parametrize("lie", INDEXES)
def test_a_frame_index_that_is_not_what_it_says(lie: str) -> None:
    columns, about, words = INDEXES[lie]
    assert parse_frame_index(parquet(FRAMES, CAMERA), "x").video_bytes == 100
    with pytest.raises(CorruptLayoutError, match=re.escape(words)) as raised:
        parse_frame_index(parquet({**FRAMES, **columns}, {**CAMERA, **about}), "top.frames.parquet")
    assert "top.frames.parquet" in str(raised.value)


def test_marks_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_marks(str(tmp_path / "none.marks")) == []
    with pytest.raises(FormatError, match="not a regular file"):
        read_marks(str(tmp_path))


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def box(kind: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return u32(len(body) + 8) + kind + body


def fragment(flags: int, count: int, rest: bytes = b"", *, head: bytes = u32(0) + u32(1)) -> bytes:
    """A fragment of a growing MP4 file with 20 bytes of frames."""
    run = box(b"trun", u32(flags), u32(count), rest)
    return box(b"moof", box(b"traf", box(b"tfhd", head), run)) + box(b"mdat", bytes(20))


SIZES = layout.TRUN_SIZE
ONE_SIZE = u32(layout.TFHD_SIZE) + u32(1) + u32(1)
MORE = "a video fragment announces more frames or bytes than it has"
CUT = "a table of a video fragment is cut short"
FRAGMENTS = {
    "a frame past the end": (fragment(SIZES, 1, u32(999)), MORE),
    "frames without end": (fragment(0, (1 << 32) - 1), MORE),
    "frames of one byte without end": (fragment(0, (1 << 32) - 1, head=ONE_SIZE), MORE),
    "an empty frame": (fragment(SIZES, 1, u32(0)), MORE),
    "no traf": (box(b"moof") + box(b"mdat"), "a video fragment without its traf box"),
    "no trun": (
        box(b"moof", box(b"traf", box(b"tfhd", bytes(8)))) + box(b"mdat"),
        "a video fragment without its trun box",
    ),
    "a table that is cut": (
        box(b"moof", box(b"traf", box(b"tfhd", bytes(8)), box(b"trun"))) + box(b"mdat"),
        CUT,
    ),
}


@pytest.mark.parametrize("lie", FRAGMENTS)
def test_a_fragment_that_is_not_what_it_says(lie: str, tmp_path: Path) -> None:
    data, words = FRAGMENTS[lie]
    with pytest.raises(CorruptLayoutError, match=words):
        mp4_packets(data, 0)
    growing = tmp_path / "0.mp4"
    growing.write_bytes(data)
    assert packets_in(growing) == []


def test_whole_fragments_are_followed() -> None:
    whole = fragment(SIZES | layout.TRUN_DATA_OFFSET, 2, u32(1000) + u32(8) + u32(12))
    at = whole.index(u32(1000))
    whole = whole[:at] + u32(len(whole) - 20) + whole[at + 4 :]
    first = PacketPlace(7 + len(whole) - 20, 8)
    assert mp4_packets(whole, 7) == ([first, PacketPlace(first.offset + 8, 12)], len(whole))
    assert mp4_packets(whole[:-1], 7) == ([], 0), (
        "a fragment whose frames are not all there is left for later"
    )
    wide = u32(1) + b"free" + (16).to_bytes(8, "big")
    assert first_media_box(wide + whole, b"moof") == 16
    assert first_media_box(u32(1) + b"free" + (1 << 60).to_bytes(8, "big") + whole, b"moof") == -1


CLUSTER = b"\x1f\x43\xb6\x75"


@pytest.mark.parametrize(
    "body", [b"\xa3\x81\0", b"\xa3\x84\0\0\0\0", b"\xa3\xbf\0"], ids=["cut", "empty", "long"]
)
def test_a_cluster_that_is_not_what_it_says(body: bytes, tmp_path: Path) -> None:
    data = CLUSTER + bytes([0x80 | len(body)]) + body
    with pytest.raises(CorruptLayoutError, match="a frame of a cluster is empty, or larger than the cluster"):
        mkv_packets(data, 0)
    growing = tmp_path / "0.mkv"
    growing.write_bytes(data)
    assert packets_in(growing) == []
    assert mkv_packets(CLUSTER + b"\x87\xa3\x85\0\0\0\0x", 0) == ([PacketPlace(11, 1)], 12)
    assert mkv_packets(CLUSTER, 0) == ([], 0)


def test_streams_that_mp4_cannot_hold() -> None:
    with pytest.raises(FormatError, match="h264 frames without decoder configuration"):
        sample_entry(Stream("h264", "yuv420p", 4, 4, b""), 4, 4)
    with pytest.raises(FormatError, match="MP4 has no place for theora frames"):
        sample_entry(Stream("theora", "yuv420p", 4, 4, b""), 4, 4)


def test_static_items_that_were_damaged(tmp_path: Path) -> None:
    path = tmp_path / layout.STATIC_FILE
    assert read_static(tmp_path) == {}
    with pytest.raises(CorruptLayoutError, match=r"static\.json is missing"):
        read_static(tmp_path, FileSum.of(b"{}"))
    for text, words in (
        ('{"a": {"__bytes_base64__": "!"}}', "bytes in a static item are not base64"),
        ('{"a": {"__bytes_base64__": 5}}', "bytes in a static item are not base64"),
        ("[]", "JSON"),
        ("{", "JSON"),
    ):
        path.write_text(text)
        with pytest.raises(FormatError, match=words) as raised:
            read_static(tmp_path)
        assert raised.value.path == str(path)
    with pytest.raises(TruncatedError, match="1 bytes of 2 are left"):
        read_static(tmp_path, FileSum.of(b"{}"))
    with pytest.raises(ChecksumError, match="changed after it was written"):
        read_static(tmp_path, FileSum.of(b"}"))


def test_documents_that_are_not_small(tmp_path: Path) -> None:
    with pytest.raises(CorruptLayoutError, match="a file of this kind has at most 3 bytes"):
        read_bytes(BytesRangeReader(b"1234"), max_bytes=3)
    (tmp_path / layout.DATASET_FILE).write_text("{")
    with pytest.raises(FormatError) as raised:
        read_set_metadata(tmp_path)
    assert raised.value.path == str(tmp_path / layout.DATASET_FILE)


def test_an_array_that_belongs_in_a_signal() -> None:
    assert plain_static("a", np.zeros(2)) == [0.0, 0.0]
    with pytest.raises(ValueError, match="65537 numbers are too many; record them as a signal"):
        plain_static("a", np.zeros(MAX_STATIC_ARRAY + 1))
