"""WebDataset shards: every sample read, and written again as it was, per episode and per step."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.convert.foreign import expected, imported, sample, sha256
from tests.convert.sets import on_steps
from warpdata.convert import hdf5, minari, webdataset
from warpdata.convert.aligning import grid_times
from warpdata.convert.place import Place
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import (
    LimitExceededError,
    SchemaMismatchError,
)
from warpdata.timeline.episode import Episode
from warpdata.timeline.source import STEPS, StepClock


def shards(name: str, folder: Path) -> Path:
    folder.mkdir()
    for number in range(2):
        shutil.copy(sample("webdataset", "gen", f"{name}-{number:06d}.tar"), folder)
    return folder


def check_same(ours: Episodes, theirs: Episodes) -> None:
    """The same ids, static items and signals: times, values, roles and pictures."""
    assert ours.ids == theirs.ids
    for before, after in zip(theirs, ours, strict=True):
        assert dict(after.static) == dict(before.static)
        assert set(after.signals) == set(before.signals)
        for name, signal in before.signals.items():
            again = after[name]
            assert again.meta == signal.meta
            np.testing.assert_array_equal(again.timestamps, signal.timestamps)
            np.testing.assert_array_equal(again.values(), signal.values())
            first, second = encoded_run(signal), encoded_run(again)
            assert (first is None) == (second is None)
            if first is not None and second is not None:
                assert [frame.data for frame in first.frames()] == [frame.data for frame in second.frames()]


@pytest.mark.parametrize("kind", ["straight", "root", "shards"])
@pytest.mark.parametrize("name", ["robot", "steps"])
def test_shards_come_out_as_they_went_in(name: str, kind: str, tmp_path: Path) -> None:
    source = shards(name, tmp_path / "in")
    assert webdataset.matches(Place.of(source))
    episodes = webdataset.read(source)
    if kind != "straight":
        episodes = imported(episodes, tmp_path / "ours", kind, "webdataset")
    assert webdataset.write(episodes, tmp_path / "out").is_exact
    check_same(webdataset.read(tmp_path / "out"), webdataset.read(source))


def test_a_sample_is_an_episode() -> None:
    path = sample("webdataset", "gen", "robot-000000.tar")
    episodes = webdataset.read(path)
    assert episodes.ids == ["episode_000000", "episode_000001"]
    episode = episodes[0]
    assert dict(episode.static) == {"meta": {"fps": 20, "length": 40}, "task": "pick up the red cube"}
    assert len(episode.steps) == 40
    assert list(episode.steps.actions) == ["action"]
    assert episode["action"].timestamps[1] == 50_000_000
    told = expected("webdataset", "expected.json")["shards"][path.name][0]
    assert (
        sha256(np.frombuffer(episode["front"].pictures(range(1))[0], np.uint8))
        == told["front.0.jpg"]["sha256"]
    )


def test_a_sample_is_a_step_and_pickles_stay_bytes(tmp_path: Path) -> None:
    episodes = webdataset.read(shards("steps", tmp_path / "in"))
    assert episodes.ids == ["ep000", "ep001"]
    assert [len(episode.steps) for episode in episodes] == [40, 25]
    episode = episodes[1]
    assert episode["cls"].values().tolist() == list(range(25))
    assert episode["jpg"].meta.kind == "image"
    assert episode["state.pyd"].meta.kind == "bytes"
    told = expected("webdataset", "expected.json")["shards"]["steps-000001.tar"][0]
    assert sha256(np.frombuffer(episode["state.pyd"][20][0], np.uint8)) == told["state.pyd"]["sha256"]


@pytest.mark.parametrize("name", ["mpdata.tar", "tendata.tar"])
def test_fields_of_other_kinds_are_kept(name: str, tmp_path: Path) -> None:
    source = sample("webdataset", "upstream", name)
    episodes = webdataset.read(source)
    assert len(episodes) == 100
    webdataset.write(episodes, tmp_path / "out")
    check_same(webdataset.read(tmp_path / "out"), episodes)


@pytest.mark.parametrize("per", ["episode", "step"])
def test_other_episodes_keep_everything(per: Any, tmp_path: Path) -> None:
    for number, episodes in enumerate(
        [
            hdf5.read(sample("robomimic", "gen_lift_image.hdf5"))[1:2],
            minari.read(sample("minari", "synth", "dict-hdf5-v0"))[1:2],
        ]
    ):
        target = tmp_path / str(number)
        assert webdataset.write(episodes, target, per=per).is_exact
        for before, after in zip(episodes, webdataset.read(target), strict=True):
            assert set(after.signals) == set(before.signals)
            assert dict(after.static) == dict(before.static)
            assert len(after.steps) == len(before.steps)
            for name, signal in before.signals.items():
                np.testing.assert_array_equal(after[name].values(), signal.values())
                assert after[name].meta.role == signal.meta.role


def archive(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as out:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    return path


def npy(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values, allow_pickle=True)
    return out.getvalue()


def still() -> bytes:
    """A small PNG picture."""
    out = io.BytesIO()
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


STILL = still()


def test_gzip_fields_are_unpacked(tmp_path: Path) -> None:
    files = {"a.b.c/ep.action.npy.gz": gzip.compress(npy(np.ones((3, 2)))), "a.b.c/__skip.txt": b"x"}
    episode = webdataset.read(archive(tmp_path / "a.tar", files), per="episode")[0]
    assert episode.id == "a.b.c/ep"
    assert episode["action"].values().tolist() == [[1.0, 1.0]] * 3


def test_a_field_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "a.tar", {"ep.action.npy": npy(np.ones(300))})
    monkeypatch.setattr(webdataset, "MAX_FIELD_BYTES", 1000)
    with pytest.raises(LimitExceededError, match=r"a field of 2528 bytes.*a\.tar"):
        _ = webdataset.read(path)[0]


def test_json_that_is_none_stays_text(tmp_path: Path) -> None:
    files = {"ep.action.npy": npy(np.ones(3)), "ep.note.json": b"{", "ep.more.json": b'{"a": 1}'}
    episode = webdataset.read(archive(tmp_path / "a.tar", files))[0]
    assert dict(episode.static) == {"note": "{", "more": {"a": 1}}


@pytest.mark.parametrize("fps", [b"1" + b"0" * 400, b"1e300", b"1e-300", b"-5", b"true", b'"20"', b"null"])
def test_a_rate_that_is_none_is_as_no_rate(fps: bytes, tmp_path: Path) -> None:
    files = {"ep.action.npy": npy(np.ones(3)), "ep.json": b'{"fps": %b}' % fps}
    episode = webdataset.read(archive(tmp_path / "a.tar", files))[0]
    assert episode["action"].timestamps.tolist() == [0, 100_000_000, 200_000_000]
    files["ep.json"] = b'{"fps": 20}'
    episode = webdataset.read(archive(tmp_path / "b.tar", files))[0]
    assert episode["action"].timestamps.tolist() == [0, 50_000_000, 100_000_000]


def test_misuse_and_names_that_become_one_are_refused(tmp_path: Path) -> None:
    path: Any = archive(tmp_path / "a.tar", {"ep.action.npy": npy(np.ones(3))})
    with pytest.raises(ValueError, match=r"per is .*, not 'frame'"):
        webdataset.read(path, per="frame")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"per is .*, not 'frame'"):
        webdataset.write(webdataset.read(path), tmp_path / "out", per="frame")  # type: ignore[arg-type]
    times = grid_times(3, 10)
    both = Episode.of(
        {name: on_steps(times, np.arange(3.0), "action") for name in ("arm/q", "arm.q")},
        id="e",
        steps=StepClock(STEPS),
    )
    with pytest.raises(
        SchemaMismatchError, match=r"'arm\.q' and another one would be one field, 'arm\.q\.npy'"
    ):
        webdataset.write(Episodes.of([both]), tmp_path / "out")
