"""Whatever edits show of a camera, its frames are the recorded ones bit for bit, packed, published and opened again."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.episodes.test_edits_machine import CHANGES, REFUSED, Impossible, Model, Shown, shifts_of
from tests.episodes.test_video import scene
from tests.sweeps import enough_examples
from warpdata.cli.main import main as warp
from warpdata.episodes.check.run import check_root
from warpdata.formats.wshard.episode import load_wshard

RECORDINGS, FRAMES, PAUSE = 2, 23, 10
"""Groups of pictures are ten frames long: three of them, the last one short."""

_KEPT: list[Path] = []


def prepared() -> Path:
    """A root of recordings with a camera, made once."""
    if not _KEPT:
        root = Path(tempfile.mkdtemp()) / "root"
        for number in range(RECORDINGS):
            with wd.record(root, static={"number": number}, durability="none", clock="simulated") as rec:
                for i in range(FRAMES):
                    ts_ns = number * 1000 + i * PAUSE
                    frame = scene(i, 16, 48)
                    frame[..., 1] = number * 40 + np.random.default_rng(i).integers(0, 9, (16, 48), np.uint8)
                    rec.append("cam", frame, ts_ns)
                    rec.append("action/u", float(i), ts_ns)
        _KEPT.append(root)
    return _KEPT[0]


def recorded_frames() -> list[np.ndarray[Any, Any]]:
    return [wd.DiskEpisode(prepared() / f"{0:012d}" / f"{n:012d}")["cam"].values() for n in range(RECORDINGS)]


def recorded() -> Model:
    return {
        f"{n:012d}": Shown(
            tuple((n * 1000 + i * PAUSE, n * FRAMES + i) for i in range(FRAMES)), {"number": n}
        )
        for n in range(RECORDINGS)
    }


NUMBERS = st.integers(0, 3)
TIMES = st.one_of(st.none(), st.integers(-5, 1300))
EDITS = st.one_of(
    st.tuples(st.just("set_static"), NUMBERS, st.sampled_from(["note", "number"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["drop", "undrop"]), NUMBERS),
    st.tuples(st.just("trim"), NUMBERS, TIMES, TIMES),
    st.tuples(st.just("split"), NUMBERS, st.integers(0, 1300)),
    st.tuples(st.just("concat"), NUMBERS, NUMBERS, st.sampled_from([None, 7])),
)


def edited(root: Path, model: Model, edit: tuple[Any, ...]) -> Model:
    """Make an edit in the root and in the model; one that either refuses changes nothing."""
    op, number, *rest = edit
    names = list(model)
    name = names[number % len(names)]
    edits = wd.LocalDataset(root).edits
    try:
        if op == "concat":
            pair = (name, names[rest[0] % len(names)])
            after: Model = CHANGES["concat"](model, pair, shifts_of(model, pair, rest[1]))
            edits.concat(pair, gap_ns=rest[1])
        else:
            after = CHANGES[op](model, name, *rest)
            getattr(edits, op)(name, *rest)
    except (Impossible, *REFUSED):
        return model
    return after


def check_shown(episode: wd.Episode, shown: Shown, frames: np.ndarray[Any, Any]) -> None:
    """The camera of an episode is exactly these records; its static items are these."""
    camera = episode["cam"]
    assert camera.times_ns.tolist() == [ts for ts, _ in shown.records]
    assert np.array_equal(camera.values(), frames[[at for _, at in shown.records]])
    for at in (0, -1):
        if shown.records:
            assert np.array_equal(camera[at][0], frames[shown.records[at][1]])
    assert {key: episode.static[key] for key in shown.static} == shown.static
    assert [float(v) for v in episode["action/u"].values()] == [float(at % FRAMES) for _, at in shown.records]


@settings(
    max_examples=enough_examples(10),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.lists(EDITS, min_size=1, max_size=5))
@example(
    [("split", 0, 107), ("set_static", 1, "number", 9), ("concat", 0, 1, 7)]
)  # the first one's items win
@example([("split", 0, 732)])  # a half without records
def test_any_edits(edits: list[tuple[Any, ...]]) -> None:
    frames = np.concatenate(recorded_frames())
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        root = here / "root"
        shutil.copytree(prepared(), root)
        model = recorded()
        for edit in edits:
            model = edited(root, model, edit)
        shown = {name: each for name, each in model.items() if not each.dropped}
        dataset = wd.open_recordings(root)
        assert dataset.ids == list(shown)
        for name, each in shown.items():
            check_shown(dataset.open(name), each, frames)
            packed = wd.open_episode(wd.pack_episode(dataset.open(name), here / f"{name}.wshard"))
            check_shown(packed, each, frames)
            again = wd.open_episode(wd.pack_episode(packed, here / f"{name}.again.wshard"))
            check_shown(again, each, frames)
        if not shown:
            return
        for number, limit in enumerate(("1GiB", 2000)):
            with wd.DatasetBuilder(f"lab/x{number}", catalog=here / "catalog") as builder:
                builder.add_episodes("demo", root, chunk_bytes=limit).publish()
            published = wd.open_episodes(f"lab/x{number}", catalog=here / "catalog")
            assert published.ids == list(shown)
            for episode, each in zip(published, shown.values(), strict=True):
                check_shown(episode, each, frames)
        report = check_root(root, deep=True)
        assert (report.episodes, report.is_damaged) == (len(shown), False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(prepared(), tmp_path / "root")
    return tmp_path / "root"


def blocks(path: Path) -> dict[str, bytes]:
    return {name: bytes(data) for name, data in load_wshard(path).blocks.items()}


def test_static_edits_copy_the_bytes_of_the_camera(root: Path, tmp_path: Path) -> None:
    before = blocks(wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "before.wshard"))
    wd.open(root).edits.set_static(0, "note", "seen")
    after = blocks(wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "after.wshard"))
    for name in ("video/cam.mp4", "aux/frames/cam"):
        assert after[name] == before[name]
    assert after["video/cam.mp4"] == (root / f"{0:012d}" / f"{0:012d}" / "cam.mp4").read_bytes()


def test_a_cut_keeps_whole_groups_of_pictures(root: Path, tmp_path: Path) -> None:
    """Frames 13 to 17 lie in the second group: that group is there byte for byte, its other frames are hidden."""
    wd.open(root).edits.trim(0, 13 * PAUSE, 18 * PAUSE)
    whole = (root / f"{0:012d}" / f"{0:012d}" / "cam.mp4").read_bytes()
    found = blocks(wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "cut.wshard"))["video/cam.mp4"]
    camera = wd.open_episode(tmp_path / "cut.wshard")["cam"]
    assert (len(camera), camera.first_ts_ns) == (5, 13 * PAUSE)
    index = wd.DiskEpisode(root / f"{0:012d}" / f"{0:012d}")["cam"].frame_index()
    second = slice(int(index.offset[10]), int(index.offset[19] + index.size[19]))
    assert whole[second] in found
    assert len(found) < len(whole)


def test_only_reencode_changes_pixels(root: Path, tmp_path: Path) -> None:
    wd.open(root).edits.trim(0, 13 * PAUSE, 18 * PAUSE)
    frames = recorded_frames()[0][13:18]
    plain = wd.open_episode(wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "a.wshard"))
    assert np.array_equal(plain["cam"].values(), frames)
    again = wd.open_episode(wd.pack_episode(wd.open(f"{root}#0"), tmp_path / "b.wshard", reencode=True))
    assert again["cam"].times_ns.tolist() == plain["cam"].times_ns.tolist()
    assert not np.array_equal(again["cam"].values(), frames)
    assert np.abs(again["cam"].values().astype(int) - frames).mean() < 12
    assert {n: s.meta.role for n, s in again.signals.items()} == {
        n: s.meta.role for n, s in plain.signals.items()
    }
    assert again.steps.length == plain.steps.length
    assert (again.id, dict(again.static)) == (plain.id, dict(plain.static))


def test_everything_sees_the_edits(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edits = wd.open(root).edits
    edits.trim(0, None, 50)
    edits.set_static(0, "note", "short")
    edits.drop(1)
    folder = root / f"{0:012d}" / f"{0:012d}"
    for address in (str(folder), f"{root}#0"):
        assert wd.open_episode(address)["note"] == "short"
        assert len(wd.open_episode(address)["cam"]) == 5
        capsys.readouterr()
        assert warp(["show", address]) == 0
        assert 'note = "short"' in capsys.readouterr().out
    for words, counts in ((["pack"], 5), (["pack", "--raw"], FRAMES)):
        target = tmp_path / f"{counts}.wshard"
        assert warp([*words, str(folder), "--output", str(target)]) == 0
        packed = wd.open_episode(target)
        assert (len(packed["cam"]), "note" in packed.static) == (counts, counts == 5)
    assert warp(["pack", f"{root}#1", "--output", str(tmp_path / "no.wshard")]) == 2
    assert warp(["pack", "--raw", f"{root}#1", "--output", str(tmp_path / "one.wshard")]) == 0
    assert len(wd.open_episode(tmp_path / "one.wshard")["cam"]) == FRAMES
    for raw, (episodes, records) in ((False, (1, 5)), (True, (2, FRAMES))):
        report = wd.check_dataset(root, raw=raw)
        assert report.episodes == episodes
        capsys.readouterr()
        assert warp(["episodes", str(root), *(["--raw"] if raw else []), "--json"]) == 0
        assert capsys.readouterr().out.count('"id"') == episodes
        opened = wd.open_recordings(root, edited=not raw)
        assert len(opened[0]["cam"]) == records


def test_joined_cameras_of_one_encoder_are_joined_as_they_are(root: Path, tmp_path: Path) -> None:
    wd.open(root).edits.concat([0, 1], gap_ns=PAUSE)
    (episode,) = wd.open(root)
    frames = np.concatenate(recorded_frames())
    packed = wd.open_episode(wd.pack_episode(episode, tmp_path / "joined.wshard"))
    assert np.array_equal(packed["cam"].values(), frames)
    assert [b - a for a, b in itertools.pairwise(packed["cam"].times_ns.tolist())] == [PAUSE] * (
        2 * FRAMES - 1
    )
