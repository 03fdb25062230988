"""Rerun recordings: what is sent to its SDK, which is too large to be a part of the tests, and the receipt."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.convert.foreign import sample
from tests.convert.sets import made_episodes
from warpdata.convert import mcap, rrd
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import ConflictError, MissingExtraError
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal


class Columns(list[Any]):
    """Columns of one archetype."""

    def partition(self, lengths: list[int]) -> Columns:
        self.append(("partition", lengths))
        return self


class Archetype:
    """An archetype that remembers what it was given."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values, self.named = values, named

    @classmethod
    def columns(cls, **named: Any) -> Columns:
        return Columns([(cls.__name__, named)])


class Stream:
    """A recording that remembers what was sent."""

    made: list[Stream] = []  # noqa: RUF012 - one for all, on purpose

    def __init__(self, application: str, *, recording_id: str) -> None:
        self.about, self.sent, self.logged, self.path = (application, recording_id), {}, [], ""
        Stream.made.append(self)

    def save(self, path: str) -> None:
        self.path = path
        Path(path).write_bytes(b"RRF2")

    def send_columns(self, name: str, *, indexes: list[Any], columns: Any) -> None:
        self.sent.setdefault(name, []).append((indexes[0], columns))

    def log(self, name: str, value: Any, *, static: bool = False) -> None:
        self.logged.append((name, value, static))

    def set_time(self, timeline: str, *, timestamp: Any) -> None:
        self.logged.append((timeline, timestamp, None))

    def flush(self) -> None: ...

    def disconnect(self) -> None: ...


@pytest.fixture
def rerun(monkeypatch: pytest.MonkeyPatch) -> Any:
    names = (
        "TextDocument",
        "TextLog",
        "Scalars",
        "EncodedImage",
        "Image",
        "DepthImage",
        "SeriesLines",
        "TimeColumn",
        "Points3D",
        "Tensor",
        "Clear",
    )
    made = types.SimpleNamespace(
        __version__="0", RecordingStream=Stream, **{name: type(name, (Archetype,), {}) for name in names}
    )
    monkeypatch.setitem(sys.modules, "rerun", made)  # type: ignore[arg-type]
    Stream.made.clear()
    return made


def test_numbers_pictures_and_frames_are_sent(rerun: Any, tmp_path: Path) -> None:
    episodes = mcap.read(sample("mcap", "gen", "ros2_cdr_zstd.mcap"))
    receipt = rrd.write(episodes, tmp_path / "out")
    (stream,) = Stream.made
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ros2_cdr_zstd.rrd",
        "warpdata.json",
    ]
    ((index, columns),) = stream.sent["joint_states/position"]
    np.testing.assert_array_equal(
        index.named["timestamp"], episodes[0]["joint_states/position"].timestamps.astype("datetime64[ns]")
    )
    (name, named), (_, lengths) = columns
    assert name == "Scalars"
    np.testing.assert_array_equal(
        named["scalars"].reshape(-1, 7), episodes[0]["joint_states/position"].values()
    )
    assert lengths == [7] * 40
    ((_, pictures),) = stream.sent["camera/compressed/data"]
    assert pictures[0][1]["blob"] == episodes[0]["camera/compressed/data"].pictures(range(40))
    frames = [value for name, value, _ in stream.logged if name == "wrist/image_raw/data"]
    np.testing.assert_array_equal(frames[3].values[0], episodes[0]["wrist/image_raw/data"][3][0])
    assert receipt.signals["joint_states/position"].how == "kept"
    assert receipt.signals["odd/a"].how == "retyped"


def test_bytes_have_no_place(rerun: Any, tmp_path: Path) -> None:
    blobs = np.empty(2, object)
    blobs[:] = [b"a", b"b"]
    episode = Episode.of({"blob": ArraySignal(np.arange(2), blobs)}, id="x")
    assert rrd.write(Episodes.of([episode]), tmp_path / "out").signals["blob"].how == "dropped"


def test_values_of_varying_length_and_sound_are_sent(rerun: Any, tmp_path: Path) -> None:
    clouds, boxes = ([np.full((count, width), 2, "f4") for count in (3, 0)] for width in (4, 2))
    sound = [np.arange(4, dtype="i2"), np.arange(2, dtype="i2")]
    signals = {"cloud": ArraySignal.ragged([0, 1000], clouds), "boxes": ArraySignal.ragged([0, 1000], boxes)}
    signals["mic"] = ArraySignal.ragged([0, 4_000_000], sound, rate_hz=1000)
    receipt = rrd.write(Episodes.of([Episode.of(signals, id="x")]), tmp_path / "out")
    (stream,) = Stream.made
    logged = [
        (name, type(value).__name__, value.values) for name, value, _ in stream.logged if name in signals
    ]
    kinds = ["Points3D", "Points3D", "Tensor", "Clear"]
    assert [(name, kind) for name, kind, _ in logged] == list(
        zip(["cloud"] * 2 + ["boxes"] * 2, kinds, strict=True)
    )
    assert np.array_equal(logged[0][2][0], clouds[0][:, :3])
    assert np.array_equal(logged[2][2][0], boxes[0])
    (index, columns), _ = stream.sent["mic"]
    assert index.named["timestamp"].astype(int).tolist() == [0, 1_000_000, 2_000_000, 3_000_000]
    assert columns[0][1]["scalars"].tolist() == [0, 1, 2, 3]
    notes = receipt.signals
    assert (notes["cloud"].how, notes["boxes"].how, notes["mic"].how) == ("retyped", "kept", "retyped")


def test_one_file_appears_whole_and_is_not_replaced(rerun: Any, tmp_path: Path) -> None:
    rrd.write(made_episodes(1), tmp_path / "one.rrd")
    assert [path.name for path in tmp_path.iterdir()] == ["one.rrd"]
    with pytest.raises(ConflictError):
        rrd.write(made_episodes(1), tmp_path / "one.rrd")
    with pytest.raises(ValueError, match="2 episodes"):
        rrd.write(made_episodes(2), tmp_path / "two.rrd")


def test_the_sdk_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError) as caught:
        rrd.write(made_episodes(1), tmp_path / "out")
    assert "warpdata[rerun]" in caught.value.hint
    assert not list(tmp_path.iterdir())
