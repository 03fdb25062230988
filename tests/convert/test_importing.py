"""The import engine: continued after anything, the same whatever happened, and honest about what it changed."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpdata as wd
from tests.convert.sets import assert_same, made_episode, made_episodes, made_set, on_steps, tree
from warpdata.bytekit.process.locks import FileLock
from warpdata.convert import lerobot
from warpdata.convert.aligning import grid_times, rate_of
from warpdata.convert.formats import format_module, format_of
from warpdata.convert.importing import import_episodes
from warpdata.convert.place import Place, check_inside
from warpdata.episodes.collection.episodes import Episodes, EpisodesSource
from warpdata.episodes.forms.shard import pack_episode
from warpdata.episodes.sources.encoded import EncodedCamera
from warpdata.errors import BadMagicError, ConflictError, CorruptLayoutError, FormatError, WarpError
from warpdata.formats.episodedir.documents import VideoOptions
from warpdata.timeline.episode import Episode
from warpdata.timeline.memory import ArraySignal
from warpdata.timeline.meta import SignalMeta


class Mined(EpisodesSource):
    """Episodes of a set; opening one of them does something else first."""

    def __init__(self, folder: str, at: int, what: str) -> None:
        self._inner = lerobot.read(folder)
        self._mine = (folder, at, what)

    @property
    def ids(self) -> Sequence[str]:
        return self._inner.ids

    @property
    def metadata(self) -> Any:
        return self._inner.metadata

    def open(self, position: int) -> Episode:
        _, at, what = self._mine
        episode = self._inner[position]
        if position != at:
            return episode
        if what == "interrupt":
            raise KeyboardInterrupt
        if what == "damage":
            raise CorruptLayoutError("its rows are gone", path="somewhere")
        deadly = _Deadly(harmless=1 if what == "kill packing" else 0)
        return Episode.of({**episode.signals, "zz": deadly}, episode.static, episode.meta, id=episode.id)


class _Deadly(ArraySignal):
    """A signal that ends the process when it is written, behind all others of its episode."""

    def __init__(self, harmless: int) -> None:
        super().__init__(np.arange(3), np.arange(3.0), SignalMeta(np.dtype(float), (), "scalar"))
        self._left = harmless

    def _values_in(self, rows: range) -> Any:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), 9)
        return super()._values_in(rows)


def bring(source: Path, target: Path, at: int = -1, what: str = "", **options: Any) -> Any:
    episodes = Episodes(Mined(str(source), at, what))
    return import_episodes(episodes, target, format="lerobot", source=str(source), **options)


@pytest.mark.parametrize("kind", ["root", "shards"])
def test_a_killed_import_is_continued_to_the_same_result(kind: str, tmp_path: Path) -> None:
    source = made_set(tmp_path / "source", 10)
    bring(source, tmp_path / "whole", kind=kind)
    what = "kill" if kind == "root" else "kill packing"  # which reads values for the receipt first
    program = (
        "from tests.convert.test_importing import bring; from pathlib import Path; "
        f"bring(Path({str(source)!r}), Path({str(tmp_path / 'killed')!r}), 9, {what!r}, kind={kind!r})"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    left = tree(tmp_path / "killed")
    assert left
    assert "dataset.json" not in left
    receipt = bring(source, tmp_path / "killed", kind=kind)
    assert receipt.continued == 9
    assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*.mp4")}
    assert bring(source, tmp_path / "killed", kind=kind).continued == 10
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*.mp4")} == before


def test_ctrl_c_leaves_what_can_be_continued(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source")
    bring(source, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        bring(source, tmp_path / "stopped", 1, "interrupt")
    bring(source, tmp_path / "stopped")
    assert tree(tmp_path / "stopped") == tree(tmp_path / "whole")


def test_many_processes_make_the_same_result(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source")
    seen: list[tuple[int, int]] = []
    first = wd.import_episodes(source, tmp_path / "one", progress=lambda *at: seen.append(at))
    second = wd.import_episodes(source, tmp_path / "two", jobs=2)
    assert seen == [(number, 4) for number in range(5)]
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert {**first.to_json(), "target": ""} == {**second.to_json(), "target": ""}


@pytest.mark.parametrize("codec", [None, "h264"])
def test_raw_frames_become_the_same_bytes_every_time(tmp_path: Path, codec: str | None) -> None:
    frames = np.random.default_rng(5).integers(0, 256, (6, 32, 48, 3), np.uint8)
    signals = {
        "camera": on_steps(grid_times(6, 10.0), frames, "observation", "image"),
        "u": on_steps(grid_times(6, 10.0), np.arange(6.0), "action"),
    }
    video = None if codec is None else VideoOptions(codec=codec)
    for name in ("one", "two"):
        wd.import_episodes(Episodes.of([Episode.of(signals, id="a")]), tmp_path / name, video=video)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


def test_an_episode_that_power_took_is_made_again(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source")
    bring(source, tmp_path / "ours")
    whole = tree(tmp_path / "ours")
    (tmp_path / "ours/000000000000/000000000002/action.parquet").write_bytes(b"")
    assert bring(source, tmp_path / "ours").continued == 3
    assert tree(tmp_path / "ours") == whole


def test_a_damaged_episode_is_named_or_skipped_and_counted(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source")
    with pytest.raises(CorruptLayoutError, match="episode 000000000002: its rows are gone"):
        bring(source, tmp_path / "stopped", 2, "damage")
    receipt = bring(source, tmp_path / "skipped", 2, "damage", on_error="skip")
    assert receipt.skipped == [
        {"id": "000000000002", "error": "episode 000000000002: its rows are gone: somewhere"}
    ]
    assert receipt.episodes == 3
    assert not receipt.is_exact
    assert wd.open_episodes(tmp_path / "skipped").ids == ["000000000000", "000000000001", "000000000003"]


def test_a_video_that_the_disk_did_not_take_is_missing_from_its_own_episode_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made_set(tmp_path / "source", 5)
    bring(source, tmp_path / "whole")
    cameras = len(list((tmp_path / "whole/000000000000/000000000002").glob("*.mp4")))
    copy, calls = EncodedCamera.copy_to, itertools.count()

    def failing(*args: Any) -> Any:
        if next(calls) == 2 * cameras:
            raise OSError(errno.EIO, "the disk is gone")
        return copy(*args)

    monkeypatch.setattr(EncodedCamera, "copy_to", failing)
    receipt = bring(source, tmp_path / "ours", on_error="skip")
    assert [each["id"] for each in receipt.skipped] == ["000000000002"]
    assert "the disk is gone" in receipt.skipped[0]["error"]
    episodes = {name: data for name, data in tree(tmp_path / "ours").items() if "/" in name}
    whole = tree(tmp_path / "whole")
    assert episodes == {name: whole[name] for name in whole if "/" in name and "/000000000002/" not in name}


def test_nothing_stays_where_nothing_was_finished(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source")
    with pytest.raises(CorruptLayoutError):
        bring(source, tmp_path / "deep/target", 0, "damage")
    assert not (tmp_path / "deep/target").exists()


def test_nothing_is_mixed_or_overwritten(tmp_path: Path) -> None:
    source, other = made_set(tmp_path / "source"), made_set(tmp_path / "other")
    bring(source, tmp_path / "ours")
    before = tree(tmp_path / "ours")
    with pytest.raises(ConflictError, match="something else"):
        bring(other, tmp_path / "ours")
    with pytest.raises(ConflictError, match="something else"):
        import_episodes(
            lerobot.read(source), tmp_path / "ours", format="lerobot", source=str(source), supplied={"fps": 3}
        )
    assert tree(tmp_path / "ours") == before
    with wd.record(tmp_path / "mine") as rec:
        rec.append("x", 1.0, 0)
    with pytest.raises(ConflictError, match="episodes already"):
        bring(source, tmp_path / "mine")


def test_a_target_that_another_import_writes_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    lock = FileLock.take(tmp_path / "ours/.import.lock", removes=True)
    assert lock is not None
    with pytest.raises(ConflictError, match="another import writes into this target"):
        wd.import_episodes(made_episodes(1), tmp_path / "ours")
    lock.release()
    assert list((tmp_path / "ours").iterdir()) == []


def test_targets_that_cannot_be_are_refused(tmp_path: Path) -> None:
    twice = Episodes.of([made_episode(0, camera=False), made_episode(0, camera=False)])
    with pytest.raises(FormatError, match="two episodes have the same id"):
        import_episodes(twice, tmp_path / "ours", format="x", source="x", kind="shards")
    with pytest.raises(
        ValueError, match=r"a target is one of root, shards, not 'shard'.*Did you mean 'shards'"
    ):
        import_episodes(twice, tmp_path / "ours", format="x", source="x", kind="shard")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_an_episode_that_somebody_else_put_there_is_told(tmp_path: Path) -> None:
    episodes = made_episodes(2, camera=False)

    def run() -> Any:
        return import_episodes(episodes, tmp_path / "ours", format="x", source="x", kind="shards")

    run()
    path = tmp_path / f"ours/{episodes.ids[0]}.wshard"
    path.unlink()
    pack_episode(episodes[0], path, episode_id=episodes.ids[0])
    with pytest.raises(FormatError, match="an episode of the target was not imported by warpdata"):
        run()


def test_the_receipt_has_hashes_anybody_can_compute(tmp_path: Path) -> None:
    source = made_set(tmp_path / "source", 2)
    receipt = wd.import_episodes(source, tmp_path / "ours")
    for ours in (tmp_path / "ours", wd.open(tmp_path / "ours")):
        with pytest.raises(ValueError, match="Did you mean 'format'"):
            wd.import_episodes(ours, tmp_path / "again", formt="hdf5")
    sums = [hashlib.sha256(e["action"].values().tobytes()).hexdigest() for e in wd.open(source)]
    signal = receipt.to_json()["signals"]["action"]
    assert signal["sha256"] == hashlib.sha256("".join(sums).encode()).hexdigest()
    assert signal["records"] == 15
    for number, episode in enumerate(wd.open(tmp_path / "ours")):
        assert episode.meta["import"]["signals"]["action"]["sha256"] == sums[number]
    stored = json.loads((tmp_path / "ours/dataset.json").read_text())["receipt"]
    assert stored == {
        key: value for key, value in receipt.to_json().items() if key not in ("continued", "target")
    }


def test_raw_frames_keep_every_pixel_unless_told_otherwise(tmp_path: Path) -> None:
    episodes = made_episodes(2)
    assert wd.import_episodes(episodes, tmp_path / "exact").is_exact
    for a, b in zip(episodes, wd.open(tmp_path / "exact"), strict=True):
        for name in a.signals:
            assert np.array_equal(a[name].values(), b[name].values()), name
    receipt = wd.import_episodes(episodes, tmp_path / "small", video=VideoOptions(codec="h264"))
    assert receipt.to_json()["signals"]["observation.images.top"]["how"] == "reencoded"
    assert wd.open(tmp_path / "small")[0]["observation.images.top"].values().shape == (7, 32, 48, 3)


def test_pictures_that_no_video_holds_are_kept_as_arrays(tmp_path: Path) -> None:
    times = grid_times(4, 10)
    odd = np.random.default_rng(0).integers(0, 255, (4, 5, 6, 4), np.uint8)
    signals = {
        "rgba": on_steps(times, odd, "observation", "image"),
        "u": on_steps(times, np.arange(4.0), "action"),
    }
    wd.import_episodes(Episodes.of([Episode.of(signals, id="a")]), tmp_path / "ours")
    assert np.array_equal(wd.open(tmp_path / "ours")[0]["rgba"].values(), odd)


def test_a_set_can_be_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "catalog"))
    source = made_set(tmp_path / "source")
    receipt = wd.import_episodes(source, "lab/arm")
    assert receipt.is_exact
    assert receipt.target == "lab/arm"
    published = wd.dataset("lab/arm").episodes
    assert published.metadata == wd.open(source).metadata
    for a, b in zip(wd.open(source), published, strict=True):
        assert_same(a, b)
    assert wd.export_episodes("lab/arm", tmp_path / "back", "lerobot").is_exact
    assert not list((tmp_path / "cache").rglob("*.wshard"))


def test_a_catalog_says_that_the_target_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a folder has its name; with a target that can only be a folder it is a contradiction."""
    monkeypatch.chdir(tmp_path)
    source = made_set(tmp_path / "source")
    (tmp_path / "lab/arm").mkdir(parents=True)
    wd.import_episodes(source, "lab/arm", catalog=tmp_path / "catalog")
    assert len(wd.dataset("lab/arm", catalog=tmp_path / "catalog").episodes) == 4
    assert not any((tmp_path / "lab/arm").iterdir())
    for target, to in (("lab/arm2", "root"), ("lab/arm2", "shards"), (tmp_path / "ours", None)):
        with pytest.raises(ValueError, match="a catalog is for a target that is published"):
            wd.import_episodes(source, target, to=to, catalog=tmp_path / "catalog")
        assert not Path(target).exists()


def test_what_is_no_set_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text("{}")
    assert format_of(Place.of(tmp_path)) is None
    with pytest.raises(WarpError, match="no known format"):
        wd.import_episodes(tmp_path, tmp_path / "target")
    with pytest.raises(ValueError, match="Did you mean 'lerobot'"):
        format_module("lerobt")
    with pytest.raises(AttributeError, match="Did you mean 'lerobot'"):
        wd.convert.lerobt  # noqa: B018


def test_a_set_of_another_format_and_a_folder_of_sets_are_called_so(tmp_path: Path) -> None:
    source = made_set(tmp_path / "sets/one")
    for name in ("rlds", "hdf5", "mcap", "rosbag2", "zarr", "minari", "dreamer", "webdataset"):
        with pytest.raises(BadMagicError, match=f"this is lerobot, not {name}.*one") as told:
            wd.import_episodes(source, tmp_path / "target", format=name)
        assert "lerobot" in str(told.value.hint)
    with pytest.raises(BadMagicError, match="a folder of sets") as told:
        wd.import_episodes(tmp_path / "sets", tmp_path / "target")
    assert f"{source} (lerobot)" in str(told.value.hint)
    with pytest.raises(BadMagicError, match="a folder of sets"):
        wd.open(tmp_path / "sets")
    (tmp_path / "file").write_bytes(b"nothing known")
    with pytest.raises(BadMagicError, match=r"not a LeRobot set.*file"):
        wd.import_episodes(tmp_path / "file", tmp_path / "target", format="lerobot")
    assert not (tmp_path / "target").exists()


def test_loose_files_beside_recordings_are_a_folder_of_sets(tmp_path: Path) -> None:
    with wd.record(tmp_path / "sets/recordings", clock="simulated") as recorder:
        recorder.append("x", 1.0, 0)
    wd.export_episodes(tmp_path / "sets/recordings", tmp_path / "bags", "mcap")
    (bag,) = (tmp_path / "bags").glob("*.mcap")
    bag.rename(tmp_path / "sets/a.mcap")
    with pytest.raises(BadMagicError, match="a folder of sets") as caught:
        wd.open(tmp_path / "sets")
    assert "recordings (recordings)" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a\\..\\x", "", "c:/x", "a\x00b"])
def test_names_stay_inside_their_folder(name: str) -> None:
    with pytest.raises(CorruptLayoutError, match="leads out"):
        check_inside(name, "place")


@pytest.mark.parametrize("fps", [1, 7, 20, 29.97, 30, 30000 / 1001, 59.94, 1000])
def test_times_of_a_rate_are_rounded_once(fps: float) -> None:
    times = grid_times(5000, fps)
    rate = rate_of(fps)
    exact = [(2 * k * 10**9 * rate.denominator + rate.numerator) // (2 * rate.numerator) for k in range(5000)]
    assert np.abs(times - np.array(exact)).max() <= 1
    assert (np.diff(times) > 0).all()


def test_words_that_importing_and_exporting_do_not_know(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"to is one of root, shards, published, not 'rot'\. Did you mean 'root'"
    ):
        wd.import_episodes(tmp_path, tmp_path / "out", format="lerobot", to="rot")
    with pytest.raises(ValueError, match="rosbag2 can be read, not written"):
        wd.export_episodes(tmp_path, tmp_path / "out", "rosbag2")
    assert not (tmp_path / "out").exists()
