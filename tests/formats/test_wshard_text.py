"""Text and JSON channels: any length per step, in lanes and chunks, and what other programs see of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.formats import episodes, plain_decoder
from tests.sweeps import enough_examples
from warpdata.bytekit.io.commit import commit_file
from warpdata.bytekit.jsontext import dump_json
from warpdata.errors import CorruptLayoutError, FormatError
from warpdata.formats.wshard import ShardReader, ShardWriter
from warpdata.formats.wshard import episode as text
from warpdata.formats.wshard.rows import EncodedRows, encode_value

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def spoken(texts: list[str], values: list[Any]) -> wd.WShardEpisode:
    episode = wd.WShardEpisode("words", length=len(texts))
    episode.observations["said"] = wd.Channel.text("said", texts, language="en")
    episode.actions["call"] = wd.Channel.json("call", values)
    episode.omens["said/llm"] = wd.Channel.text("said/llm", texts[::-1])
    return episode


@settings(max_examples=enough_examples(30))
@given(data=st.data(), steps=st.integers(0, 9), compression=st.sampled_from([None, "zstd", "zstd-seekable"]))
def test_lossless_by_row_and_by_chunk(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, steps: int, compression: str | None
) -> None:
    folder = tmp_path_factory.mktemp("words")
    texts = data.draw(st.lists(TEXTS, min_size=steps, max_size=steps))
    values = data.draw(st.lists(episodes.JSON, min_size=steps, max_size=steps))
    episode = spoken(texts, values)
    wd.save_wshard(episode, folder / "a.wshard", compression, durable=False)
    loaded = wd.load_wshard(folder / "a.wshard")
    start, end = sorted(data.draw(st.tuples(st.integers(0, steps), st.integers(0, steps))))
    assert loaded.observations["said"][start:end].tolist() == texts[start:end]
    assert loaded.actions["call"][start:end].tolist() == values[start:end]
    assert loaded == episode
    assert wd.open_episode(wd.chunk_episode(loaded, folder / "chunks", 2)).tensors == episode


def test_a_value_longer_than_a_window_is_not_encoded_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    values = ["a" * 1000, "", "é" * 500, "b"]
    rows = EncodedRows(wd.Channel.text("said", values).row_source, "signal/said")
    encoded: list[str] = []
    monkeypatch.setattr(
        text, "encode_value", lambda kind, value: encoded.append(value) or encode_value(kind, value)
    )
    windows = [
        rows.rows(start, min(start + 64, rows.length)).tobytes() for start in range(0, rows.length, 64)
    ]
    assert b"".join(windows) == "".join(values).encode()
    # Once for the windows inside it, and where it meets the one before it and the one behind it.
    assert max(encoded.count(value) for value in values) <= 3


def test_lists_of_strings_and_dicts_are_taken_for_what_they_are(tmp_path: Path) -> None:
    episode = wd.WShardEpisode("words", length=2)
    episode.observations["said"] = ["pick", "plåce"]
    episode.observations["info"] = [{"a": 1}, {"b": [2, None]}]
    assert [str(each.dtype) for each in episode.observations.values()] == ["text", "json"]
    wd.save_wshard(episode, tmp_path / "a")
    loaded = wd.load_wshard(tmp_path / "a")
    assert loaded.observations["said"].data.tolist() == ["pick", "plåce"]
    assert loaded.observations["info"][1] == {"b": [2, None]}
    assert loaded.in_time["said"][1][0] == "plåce"
    assert loaded.in_time["said"].meta.kind == "text"


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (wd.Channel.text, ["a", 3]),
        (wd.Channel.text, ["\ud800"]),
        (wd.Channel.json, [{"a": float("nan")}]),
        (wd.Channel.json, [np.zeros(3)]),
        (wd.Channel.json, [{1: 2}]),
        (wd.Channel, [["a", "b"]]),
        (wd.Channel, [{"a": 1}, "b"]),
    ],
)
def test_values_that_cannot_be_stored(tmp_path: Path, make: Any, values: list[Any]) -> None:
    with pytest.raises(ValueError, match="x"):
        make("x", values)


def test_what_other_programs_see(tmp_path: Path) -> None:
    wd.save_wshard(spoken(["go", "", "stöp"], [1, None, {"a": 2}]), tmp_path / "a", compat="strict")
    stored = plain_decoder.decode((tmp_path / "a").read_bytes())
    assert stored["signal/said"] == "gostöp".encode()
    assert np.frombuffer(stored["aux/ends/signal/said"], "<i8").tolist() == [2, 2, 7]
    assert stored["action/call"] == b'1null{"a":2}'
    _, entries = plain_decoder.table((tmp_path / "a").read_bytes())
    kinds = {entry["name"]: entry["content_type"] for entry in entries}
    assert (kinds["signal/said"], kinds["action/call"]) == (5, 2)
    listed = {
        each["id"]: each for each in ShardReader.open(tmp_path / "a").read_json("meta/channels")["channels"]
    }
    assert (listed["said"]["dtype"], listed["said"]["shape"]) == ("u8", [])


def with_ends(folder: Path, data: bytes, ends: list[int], channel: dict[str, object] | None = None) -> Path:
    listed = {
        "id": "x", "dtype": "u8", "shape": [], "signal_block": "signal/x", "encoding": "text", "ends": "aux/e",
        **(channel or {}),
    }  # fmt: skip
    blocks = {
        "meta/wshard": dump_json({}),
        "meta/episode": dump_json({"length_T": 3}),
        "meta/channels": dump_json({"channels": [listed]}),
        "signal/x": data,
        "aux/e": np.array(ends, np.int64).tobytes(),
    }
    with commit_file(folder / "bad") as out:
        writer = ShardWriter(out, list(blocks))
        for name, each in blocks.items():
            writer.add_bytes(name, each)
        writer.finish()
    return folder / "bad"


@pytest.mark.parametrize(
    "ends", [[1, 2], [1, 2, 3, 4], [1, 2, 9], [2, 1, 3], [-1, 2, 3], [0, 0, 0], [1 << 62, 2, 3]]
)
def test_ends_that_are_none(tmp_path: Path, ends: list[int]) -> None:
    with pytest.raises(CorruptLayoutError, match="bad"):
        wd.load_wshard(with_ends(tmp_path, b"abc", ends)).observations["x"].data  # noqa: B018


@pytest.mark.parametrize(
    ("data", "channel"),
    [
        (b"a\xff\xfe", {}),
        (b"{]1", {"encoding": "json"}),
        (b"abc", {"encoding": "morse"}),
        (b"abc", {"ends": "aux/none"}),
        (b"abc", {"ends": 3}),
        (b"abc", {"shape": [1]}),
        (b"abc", {"dtype": "i8"}),
    ],
)
def test_text_that_is_none(tmp_path: Path, data: bytes, channel: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="bad"):
        wd.load_wshard(with_ends(tmp_path, data, [1, 2, 3], channel)).observations["x"].data  # noqa: B018
