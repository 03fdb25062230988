"""The episode directory as bytes: round trips, damage of every file, SPEC against layout, golden files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tools.make_golden_episodedir import plain_values

import warpdata as wd
from tests.conftest import OWN_GOLDEN, ROOT
from tests.formats.spec_tables import assert_spec_matches
from tests.sweeps import enough_examples
from warpdata.bytekit.arrays import dtype_named
from warpdata.bytekit.process import system
from warpdata.episodes.forms.shard import unpack_episode
from warpdata.errors import FormatError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import append_edit, check_name, pack_line, read_log

SPEC = ROOT / "src" / "warpdata" / "formats" / "episodedir" / "SPEC.md"
DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]


def test_spec_and_layout_say_the_same() -> None:
    assert_spec_matches(SPEC, "Frame mark", layout.FrameMark, layout.FRAME_MARK)
    text = SPEC.read_text()
    files = (
        layout.STATIC_FILE,
        layout.META_FILE,
        layout.EDITS_FILE,
        layout.RECORDING_FOLDER,
        layout.LISTING_FILE,
    )
    for name in (*layout.FRAME_COLUMNS, layout.TIME_COLUMN, layout.VALUE_COLUMN, *files):
        assert f"`{name}`" in text, f"SPEC.md does not speak of {name}"
    assert f"at most {layout.MAX_NAME_BYTES} bytes" in text


@st.composite
def batches(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2), (1, 2, 3)]))
    rows = draw(st.integers(1, 12))
    return draw(hnp.arrays(dtype, (rows, *shape)))


@settings(max_examples=enough_examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=batches(), first=st.integers(-(2**62), 2**62), pause=st.integers(1, 2**40))
def test_round_trip(tmp_path: Path, values: np.ndarray[Any, Any], first: int, pause: int) -> None:
    shutil.rmtree(tmp_path / "ep", ignore_errors=True)
    with wd.DiskEpisodeWriter(tmp_path / "ep", durability="none") as writer:
        writer.declare("x", kind="tensor" if values.ndim > 2 else None)
        for i, value in enumerate(values):
            writer.append("x", value, first + i * pause)
    found = wd.open_episode(tmp_path / "ep")["x"]
    assert found.values().tobytes() == values.tobytes()
    assert found.meta.dtype == values.dtype
    assert found.timestamps.tolist() == [first + i * pause for i in range(len(values))]


@settings(max_examples=enough_examples(100))
@given(st.text(max_size=30))
def test_a_name_never_leaves_its_folder(name: str) -> None:
    try:
        good = check_name(name)
    except ValueError:
        return
    path = Path("/data/ep") / (good + ".parquet")
    assert Path("/data/ep") in Path(re.sub(r"/+", "/", str(path))).parents
    assert ".." not in path.parts


@pytest.fixture(scope="module")
def episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dir") / "ep"
    with wd.DiskEpisodeWriter(folder, durability="none") as writer:
        writer.set_static("task", "pick")
        for i in range(20):
            writer.append("vec", np.arange(3, dtype="f4") * i, i * 1000)
            writer.append("text", f"event {i}", i * 1000 + 1)
            writer.append("cam", np.full((16, 16, 3), 10 * i, np.uint8), i * 1000 + 2)
    return folder


def snapshot(folder: Path) -> dict[str, Any]:
    """Everything a reader can see; what is damaged appears as its error."""
    found: dict[str, Any] = {}

    def look(name: str, read: Any) -> None:
        try:
            found[name] = read()
        except FormatError as error:
            found[name] = error

    opened = wd.open_episode(folder)
    look("meta", lambda: json.dumps(dict(opened.meta), sort_keys=True))
    look("static", lambda: json.dumps(dict(opened.static), sort_keys=True))
    for name in ("vec", "text", "cam"):
        look(name, lambda name=name: (opened[name].timestamps.tolist(), opened[name].values().tolist()))
    return found


FILES = ["vec.parquet", "text.parquet", "cam.frames.parquet", "static.json", "meta.json"]
TOUCHES = {"vec.parquet": "vec", "text.parquet": "text", "cam.frames.parquet": "cam", "static.json": "static"}


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_is_an_error_or_changes_nothing(episode: Path, tmp_path: Path, file: str) -> None:
    good = snapshot(episode)
    copy = tmp_path / "ep"
    shutil.copytree(episode, copy)
    data = (copy / file).read_bytes()
    rng = np.random.default_rng(len(data))
    places = rng.choice(len(data), min(len(data), 80), replace=False)
    noticed = 0
    for at in places.tolist():
        bad = bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        (copy / file).write_bytes(bad)
        for name, value in snapshot(copy).items():
            if isinstance(value, FormatError):
                noticed += 1
                assert file in str(value), f"byte {at}: {value}"
                assert file == "meta.json" or TOUCHES[file] == name
            else:
                assert value == good[name], f"byte {at} of {file} changed {name}"
    assert noticed > len(places) // 2


def test_a_damaged_checksum_key_is_noticed(episode: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ep"
    shutil.copytree(episode, copy)
    text = (copy / "meta.json").read_text()
    (copy / "meta.json").write_text(text.replace('"checksum"', '"chucksum"'))
    assert isinstance(snapshot(copy)["meta"], FormatError)


@pytest.mark.parametrize("file", FILES)
def test_every_truncation_is_noticed(episode: Path, tmp_path: Path, file: str) -> None:
    good = snapshot(episode)
    copy = tmp_path / "ep"
    shutil.copytree(episode, copy)
    data = (copy / file).read_bytes()
    for cut in sorted({0, 1, 7, len(data) // 3, len(data) // 2, len(data) - 9, len(data) - 1}):
        (copy / file).write_bytes(data[:cut])
        found = snapshot(copy)
        wrong = [name for name, value in found.items() if isinstance(value, FormatError)]
        assert wrong == [TOUCHES.get(file, "meta")]
        assert all(found[name] == good[name] for name in found if name not in wrong)


def test_hostile_footers_do_not_take_memory(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1" + b"\xff" * 64 + (2**31).to_bytes(4, "little") + b"PAR1")
    signal = wd.SimpleSignal(tmp_path / "x.parquet")
    with pytest.raises(FormatError, match=r"x\.parquet"):
        len(signal)


def test_edit_log(tmp_path: Path) -> None:
    assert read_log(tmp_path) == ([], False)
    for seq in (1, 2, 3):
        append_edit(tmp_path, {"seq": seq, "op": "drop", "episode": "000000000000"})
    path = tmp_path / "edits.jsonl"
    whole = path.read_bytes()
    assert [edit["seq"] for edit in read_log(tmp_path)[0]] == [1, 2, 3]
    path.write_bytes(whole + b'{"seq": 4, "op"')  # a crash while appending
    assert len(read_log(tmp_path)[0]) == 3
    append_edit(tmp_path, {"seq": 4, "op": "undrop", "episode": "000000000000"})
    assert len(read_log(tmp_path)[0]) == 4
    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 4
        path.write_bytes(bad)
        try:
            edits, foreign = read_log(tmp_path)
        except FormatError as error:
            assert "edits" in str(error)  # noqa: PT017 - most flips, not all
        else:
            assert foreign is False
            assert [pack_line(edit) for edit in edits] == whole.splitlines(keepends=True)[: len(edits)]
            assert len(edits) == 3 or at >= len(whole) - 1
    path.write_bytes(whole.split(b"\n", 1)[1])
    with pytest.raises(FormatError, match="edit 1 is missing"):
        read_log(tmp_path)


def test_edit_logs_of_other_programs_are_left_alone(tmp_path: Path) -> None:
    with wd.LocalDatasetWriter(tmp_path).new_episode() as writer:
        writer.append("x", 1, 0)
    (tmp_path / "edits.jsonl").write_text('{"episode": "abc", "action": "drop"}\n')
    dataset = wd.LocalDataset(tmp_path)
    assert len(dataset) == 1
    assert dataset.edits.is_foreign
    with pytest.raises(FormatError, match="another program"):
        dataset.edits.drop(0)


GOLDEN = OWN_GOLDEN / "episodedir"


@pytest.mark.parametrize(
    "folder", [GOLDEN, ROOT / "tests" / "compat" / "episodedir" / "0.1"], ids=["golden", "0.1"]
)
def test_golden_files(folder: Path, tmp_path: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    shutil.copytree(folder / "root", tmp_path / "root")
    dataset = wd.LocalDataset(tmp_path / "root")
    assert dataset.ids == list(expected)
    for name, about in expected.items():
        opened = dataset.open(name)
        assert dict(opened.static) == about["static"]
        assert set(opened.signals) == set(about["signals"])
        for key, signal in about["signals"].items():
            found = opened[key]
            assert found.timestamps.tolist() == signal["timestamps"]
            assert (found.meta.kind, list(found.meta.shape)) == (signal["kind"], signal["shape"])
            if signal["values"] is not None:
                assert plain_values(found) == signal["values"]
            elif "sha256" in signal:
                assert hashlib.sha256(found.values().tobytes()).hexdigest() == signal["sha256"]
            else:
                means = found.values().astype(float).mean(axis=(1, 2, 3))
                assert np.allclose(means, signal["means"], atol=3)


def test_an_edit_that_the_disk_takes_in_pieces_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        system, "_write_some", lambda fd, pieces, offset: os.pwrite(fd, pieces[0][:7], offset)
    )
    edits = [{"seq": seq, "op": "drop", "episode": "000000000000"} for seq in (1, 2)]
    for edit in edits:
        append_edit(tmp_path, edit)
    assert read_log(tmp_path) == (edits, False)


def test_golden_imports_with_plain_files(tmp_path: Path) -> None:
    folder = OWN_GOLDEN / "imported"
    expected = json.loads((folder / "expected.json").read_text())
    shutil.copytree(folder / "root", tmp_path / "root")
    episode = wd.open_episodes(tmp_path / "root")[0]
    wd.pack_episode(episode, tmp_path / "it.wshard")
    unpacked = wd.open_episode(unpack_episode(tmp_path / "it.wshard", tmp_path / "again"))
    for opened in (episode, wd.open_episode(tmp_path / "it.wshard"), unpacked):
        assert set(opened.signals) == set(expected)
        for name, about in expected.items():
            signal = opened[name]
            assert (signal.meta.kind, list(signal.meta.shape)) == (about["kind"], about["shape"])
            assert signal.meta.dtype == dtype_named(about["dtype"]).dtype
            assert signal.timestamps.tolist() == about["timestamps"]
            assert np.asarray(signal.values(), float).tolist() == about["values"]
