"""RLDS in TFDS folders: sets written by TensorFlow Datasets, what comes out again, and hostile files."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import warpdata as wd
from tests.conftest import SHARED_GOLDEN
from tests.convert.test_wrong_sets import (
    example_of,
    features_of,
    field,
    forged_set,
    ints,
    ragged,
    rows_and_lengths,
)
from tests.sweeps import enough_examples
from warpdata.bytekit.codec import encode_png
from warpdata.bytekit.io.files import FileRangeReader
from warpdata.convert import rlds
from warpdata.convert.aligning import AlignOptions, steps_with
from warpdata.convert.exporting import StepRows
from warpdata.convert.importing import import_episodes
from warpdata.convert.place import Place
from warpdata.convert.rlds import records
from warpdata.convert.rlds.records import TFRecordFile, Values, build_example, pack_record, parse_example
from warpdata.convert.tables import npz
from warpdata.errors import (
    CorruptLayoutError,
    LimitExceededError,
    SchemaMismatchError,
    WarpError,
)

GOLDEN = SHARED_GOLDEN / "foreign" / "rlds"
needs_golden = pytest.mark.skipif(
    not GOLDEN.exists(), reason="the golden sets of other programs are not here"
)
SYNTH = GOLDEN / "tfrecord" / "synth_arm" / "1.0.0"


def expected(form: str) -> Iterator[tuple[int, dict[str, Any]]]:
    told = json.loads((GOLDEN / f"{form}_synth_arm_1.0.0.expected.json").read_text())
    yield from enumerate(episode for split in told["splits"].values() for episode in split["episodes"])


def examples(folder: Path) -> list[dict[str, Values]]:
    found = []
    for file in sorted(folder.glob("*.tfrecord-*")):
        opened = TFRecordFile(FileRangeReader(file))
        found += [parse_example(opened.read(number), str(file)) for number in range(opened.count)]
    return found


def same_lists(a: dict[str, Values], b: dict[str, Values]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].kind == b[name].kind
        and [bytes(each) for each in a[name].entries] == [bytes(each) for each in b[name].entries]
        and a[name].numbers.tobytes() == b[name].numbers.tobytes()
        for name in a
    )


@needs_golden
@pytest.mark.parametrize("form", ["tfrecord", "array_record"])
def test_values_are_those_that_tensorflow_datasets_reads(form: str) -> None:
    if form == "array_record":
        pytest.importorskip("array_record", reason="array_record has no wheel for this machine")
    episodes = rlds.read(GOLDEN / form / "synth_arm")
    for position, told in expected(form):
        episode = episodes[position]
        assert len(episode.steps) == told["length"]
        assert {key: episode.static[key] for key in told["metadata"]} == told["metadata"]
        for name, channel in told["channels"].items():
            if name == "language_instruction" and len(channel["unique"]) == 1:
                assert episode["task"] == channel["unique"][0]
                continue
            values = episode[name].values()
            if "ragged_lengths" in channel:
                assert list(map(len, values)) == channel["ragged_lengths"]
                flat = np.concatenate(list(values))
                assert hashlib.sha256(flat.tobytes()).hexdigest() == channel["sha256_concat"]
            elif channel["dtype"] == "string":
                joined = "\n".join(values.tolist()).encode()
                assert hashlib.sha256(joined).hexdigest() == channel["sha256_utf8_joined_newline"]
            elif name == "observation/image":  # JPEG: TensorFlow decodes it with a coarser transform
                assert values.shape == tuple(channel["shape"])
                pictures = episode[name].pictures(range(len(values)))
                shown = np.stack([np.asarray(Image.open(io.BytesIO(data))) for data in pictures])
                assert np.array_equal(values, shown)
                assert np.allclose(values[0].mean((0, 1)), channel["mean_first"], atol=1.5)
            else:
                assert values.dtype == channel["dtype"]
                assert list(values.shape) in (
                    channel["shape"],
                    channel["shape"][:-1],
                )  # a gray plane has no channel
                assert hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest() == channel["sha256"]


@needs_golden
def test_an_instruction_that_changes_is_an_event() -> None:
    episode = rlds.read(SYNTH)["train-000001"]
    assert "task" not in episode
    assert episode["language_instruction"].meta.role == "event"
    assert len(set(episode["language_instruction"].values().tolist())) > 1


@needs_golden
def test_what_was_rlds_comes_out_as_it_was(tmp_path: Path) -> None:
    receipt = rlds.write(rlds.read(SYNTH), tmp_path / "out")
    assert receipt.is_exact
    ours, theirs = (
        json.loads((folder / "features.json").read_text()) for folder in (tmp_path / "out", SYNTH)
    )
    assert ours == theirs
    ours, theirs = (
        json.loads((folder / "dataset_info.json").read_text()) for folder in (tmp_path / "out", SYNTH)
    )
    assert {**ours, "splits": 0} == {**theirs, "splits": 0}
    for a, b in zip(examples(SYNTH), examples(tmp_path / "out"), strict=True):
        assert same_lists(a, b)


@needs_golden
def test_a_split_some_episodes_and_pickles(tmp_path: Path) -> None:
    episodes = rlds.read(SYNTH, split="val", fps=5)
    assert episodes.ids == ["val-000000", "val-000001"]
    again = pickle.loads(pickle.dumps(episodes[1]))
    assert np.array_equal(again["action"].values(), episodes[1]["action"].values())
    assert again.steps.times_ns[1] == 200_000_000
    rlds.write(episodes[1:], tmp_path / "one")
    assert rlds.read(tmp_path / "one").ids == ["val-000000"]
    with pytest.raises(ValueError, match="Did you mean 'val'"):
        rlds.read(SYNTH, split="vall")


@needs_golden
def test_raw_records_without_a_description() -> None:
    found = {path.name: rlds.read(path)[0] for path in (GOLDEN / "rlu_raw").iterdir()}
    cartpole = next(episode for name, episode in found.items() if "cartpole" in name)
    assert cartpole["observation/position"].meta.shape == (3,)
    assert len(cartpole.steps.actions["action"]) == 1001
    atari = next(episode for name, episode in found.items() if "atari" in name)
    assert atari["observations"].values().shape == (310, 84, 84)
    assert atari["episode_return"] == 17.0


def recorded(root: Path, *, final: bool, image: bool = True) -> wd.Episodes:
    """Row k: observation k, action 2000 + k, reward 1000 + k."""
    for number in range(2):
        with wd.record(root) as rec:
            rec.set_static("task", "count")
            for k in range(5 + number):
                seen = {"count": np.array([k, -k], np.float64)}
                if image:
                    seen["plane"] = np.full((16, 16), k, np.uint8)
                rec.step(
                    seen,
                    {"move": np.float32(2000 + k)},
                    reward=1000.0 + k,
                    terminated=k == 4 + number,
                    truncated=False,
                    ts_ns=k * 10**8,
                )
            if final:
                rec.append("count", np.array([5 + number, 0], np.float64), (5 + number) * 10**8)
    return wd.open_episodes(root)


@pytest.mark.parametrize("final", [False, True])
def test_a_recording_as_rlds_and_back(tmp_path: Path, final: bool) -> None:
    receipt = rlds.write(recorded(tmp_path / "root", final=final), tmp_path / "out", name="counting")
    assert "counting-train.tfrecord-00000-of-00001" in {path.name for path in (tmp_path / "out").iterdir()}
    assert receipt.signals["count"].how == "kept"
    episodes = rlds.read(tmp_path / "out", fps=10)
    for number, episode in enumerate(episodes):
        rows = 5 + number + final
        steps = episode.steps
        assert len(steps) == rows
        count = episode["observation/count"].values()
        assert count.dtype == np.float64
        assert count[:, 0].tolist() == list(range(rows))
        assert episode["action"].values()[: 5 + number].tolist() == [2000.0 + k for k in range(5 + number)]
        assert episode["reward"].values()[: 5 + number].tolist() == [1000.0 + k for k in range(5 + number)]
        assert episode["is_last"].values().tolist() == [False] * (rows - 1) + [True]
        assert bool(episode["is_terminal"].values()[-1])
        assert episode["task"] == "count"
        if not final:
            plane = episode["observation/plane"].values()[3]  # RLDS knows no picture without channels
            assert np.array_equal(plane, np.full((16, 16, 1), 3, np.uint8))


def test_gray_pictures_keep_the_axis_of_their_channel(tmp_path: Path) -> None:
    """HxWx1 in, HxWx1 wherever they go, and the same pictures out."""
    rlds.write(recorded(tmp_path / "made", final=False), tmp_path / "in", name="gray")
    source = rlds.read(tmp_path / "in", fps=10)
    import_episodes(source, tmp_path / "root", format="rlds", source="in")
    import_episodes(source, tmp_path / "shards", format="rlds", source="in", kind="shards")
    for place in ("in", "root", "shards"):
        plane = wd.open_episodes(tmp_path / place)[0]["observation/plane"]
        assert plane.meta.shape == (16, 16, 1)
        assert np.array_equal(plane.values(), source[0]["observation/plane"].values())
        assert plane[2][0].shape == plane[1:2].values()[0].shape == (16, 16, 1)
    rlds.write(wd.open_episodes(tmp_path / "root"), tmp_path / "out", name="gray")
    one, other = (
        [
            bytes(each)
            for each in rlds.read(tmp_path / name, fps=10)[0]["observation/plane"].pictures(range(5))
        ]
        for name in ("in", "out")
    )
    assert one == other
    features = [json.loads((tmp_path / name / "features.json").read_text()) for name in ("in", "out")]
    assert features[0] == features[1]


def test_numbers_of_64_bits_are_tensors_to_tensorflow_datasets(tmp_path: Path) -> None:
    """Its Scalar does not look at the encoding, so that it cannot read one that is stored as bytes."""
    with wd.record(tmp_path / "root", static={"height": 1.5}) as rec:
        rec.step({"x": np.float64(1)}, {"u": np.float32(2)}, reward=np.float64(0.1), ts_ns=0)
    rlds.write(wd.open_episodes(tmp_path / "root"), tmp_path / "out")
    found: list[str] = []

    def look(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("tensor", {}).get("encoding") == "bytes":
                found.append(node["pythonClassName"].rpartition(".")[2])
            for each in node.values():
                look(each)

    look(json.loads((tmp_path / "out/features.json").read_text()))
    assert found == ["Tensor"] * 3
    assert rlds.read(tmp_path / "out")[0]["reward"].values().tolist() == [0.1]


def test_episodes_of_one_set_have_the_same_features(tmp_path: Path) -> None:
    both = recorded(tmp_path / "a", final=False) + recorded(tmp_path / "b", final=False, image=False)
    both = both[[2, 3, 0, 1]]
    with pytest.raises(SchemaMismatchError, match="plane"):
        rlds.write(both, tmp_path / "out")
    assert not (tmp_path / "out").exists()


number_lists = st.one_of(
    st.lists(st.binary(max_size=9), max_size=6).map(lambda entries: Values("bytes", entries)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9).map(
        lambda each: Values("ints", numbers=np.array(each, np.int64))
    ),
    st.lists(st.floats(width=32), max_size=9).map(
        lambda each: Values("floats", numbers=np.array(each, np.float32))
    ),
)


@given(st.dictionaries(st.text(max_size=9), number_lists, max_size=6))
def test_examples_come_back(lists: dict[str, Values]) -> None:
    data = build_example(lists)
    assert data == build_example(dict(reversed(lists.items())))
    assert same_lists(parse_example(memoryview(data), "here"), lists)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_refused(data: bytes) -> None:
    with contextlib.suppress(CorruptLayoutError):
        parse_example(memoryview(data), "here")


@needs_golden
@settings(max_examples=enough_examples(60), deadline=None)
@given(st.data())
def test_a_flipped_bit_is_found_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("set")
    shutil.copytree(SYNTH, folder / "set")
    file = data.draw(st.sampled_from(sorted(folder.glob("set/*val*00000-of*"))))
    file.chmod(0o644)
    raw = bytearray(file.read_bytes())
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file.write_bytes(raw)
    with pytest.raises(WarpError, match="val"):
        rlds.read(folder / "set", split="val")[0]
    shutil.rmtree(folder)


@needs_golden
@pytest.mark.parametrize("damage", ["cut", "missing", "count", "outside", "features", "json"])
def test_bad_sets_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "set"
    shutil.copytree(SYNTH, folder)
    for path in folder.iterdir():
        path.chmod(0o644)
    file = folder / "synth_arm-train.tfrecord-00000-of-00002"
    info = json.loads((folder / "dataset_info.json").read_text())
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-3])
    elif damage == "missing":
        file.unlink()
    elif damage == "count":
        info["splits"][0]["shardLengths"] = ["3", "1"]
    elif damage == "outside":
        info["splits"][0]["filepathTemplate"] = "../{DATASET}-{SPLIT}"
    elif damage == "features":
        features = json.loads((folder / "features.json").read_text())
        steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"][
            "features"
        ]
        steps["action"]["tensor"]["shape"]["dimensions"] = ["8"]
        (folder / "features.json").write_text(json.dumps(features))
    elif damage == "json":
        (folder / "features.json").write_text("{")
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(WarpError) as caught:
        rlds.read(folder)[0]["action"].values()
    assert "set" in str(caught.value)


def test_compressed_records_are_read_and_bombs_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = pack_record(build_example({"steps/is_first": Values("ints", numbers=np.array([1, 0]))}))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(record) + gzip.compress(record))
    assert len(rlds.read(path)) == 2
    assert rlds.matches(Place.of(path))
    path.write_bytes(gzip.compress(record)[:-4])
    with pytest.raises(WarpError, match="compressed file is cut"):
        rlds.read(path)
    monkeypatch.setattr(records, "MAX_INFLATED_BYTES", 1 << 20)
    path.write_bytes(gzip.compress(bytes(4 << 20)))
    with pytest.raises(LimitExceededError, match="decompressed size exceeds"):
        rlds.read(path)


@pytest.mark.parametrize("final", [False, True])
def test_whether_the_last_action_counts_is_kept(tmp_path: Path, final: bool) -> None:
    """Said in the set that we write, kept through a root, and heeded by formats with a place for a last observation."""
    rlds.write(recorded(tmp_path / "root", final=final, image=False), tmp_path / "out")
    read = rlds.read(tmp_path / "out", fps=10)
    import_episodes(read, tmp_path / "in", format="rlds", source="out")
    for episodes in (read, wd.open(tmp_path / "in")):
        for number, episode in enumerate(episodes):
            assert episode.meta.get("last_row") == ("observation" if final else None)
            assert len(episode["action"]) == 5 + number + final  # no value is dropped
            steps = 5 + number
            assert len(StepRows(episode, AlignOptions())) == len(steps_with(episode, AlignOptions())) == steps
    rlds.write(wd.open(tmp_path / "in"), tmp_path / "again")
    for a, b in zip(examples(tmp_path / "out"), examples(tmp_path / "again"), strict=True):
        assert same_lists(a, b)


@needs_golden
def test_a_user_may_say_that_the_last_action_means_nothing(tmp_path: Path) -> None:
    plain, said = rlds.read(SYNTH), rlds.read(SYNTH, last_row="observation")
    assert "last_row" not in plain[0].meta
    assert pickle.loads(pickle.dumps(said))[0].meta["last_row"] == "observation"
    assert np.array_equal(plain[0]["action"].values(), said[0]["action"].values())
    assert len(StepRows(said[0], AlignOptions())) == len(plain[0].steps) - 1
    rlds.write(said, tmp_path / "out")
    for a, b in zip(examples(SYNTH), examples(tmp_path / "out"), strict=True):
        assert same_lists(a, b)
    with pytest.raises(ValueError, match="Did you mean 'observation'"):
        rlds.read(SYNTH, last_row="observatio")  # type: ignore[arg-type]


def test_progress_is_told_and_damaged_episodes_are_left_out(tmp_path: Path) -> None:
    episodes = recorded(tmp_path / "root", final=False, image=False)
    told: list[tuple[int, int]] = []
    rlds.write(episodes, tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
    damaged = min((tmp_path / "root").rglob("count.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(WarpError):
        rlds.write(wd.open_episodes(tmp_path / "root"), tmp_path / "stop")
    assert not (tmp_path / "stop").exists()
    receipt = rlds.write(wd.open_episodes(tmp_path / "root"), tmp_path / "skip", on_error="skip")
    assert [each["id"] for each in receipt.to_json()["skipped"]] == ["000000000000"]
    assert len(rlds.read(tmp_path / "skip")) == 1


def test_a_description_is_looked_for_no_deeper_than_it_can_lie(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    for folder in (tmp_path, *deep.parents[:3], deep):
        (folder / "file").touch()
    place = Place.of(tmp_path)
    assert place.names(folders_deep=2) == ["a/b/file", "a/file", "file"]
    assert place.names("a", folders_deep=1) == ["a/b/file", "a/file"]
    assert len(place.names()) == 5


def test_numbers_that_are_not_packed_are_read(tmp_path: Path) -> None:
    whole = example_of(field(3, b"\x08\x05" + b"\x08" + b"\xff" * 9 + b"\x01" + field(1, b"\x07\x08")))
    (tmp_path / "a.tfrecord").write_bytes(pack_record(whole))
    assert rlds.read(tmp_path / "a.tfrecord")[0]["reward"].values().tolist() == [5, -1, 7, 8]


def test_rows_that_are_all_empty_have_no_values(tmp_path: Path) -> None:
    lists = {"steps/x/ragged_row_lengths_0": ints(0, 0)}
    folder = forged_set(tmp_path / "set", features_of(x=ragged("int64")), lists)
    assert [value.shape for value in rlds.read(folder)[0]["x"].values()] == [(0,), (0,)]


@pytest.mark.parametrize("length", ["²", "9" * 5000])
def test_a_length_that_is_no_number_is_not_known(length: str, tmp_path: Path) -> None:
    lists = rows_and_lengths(ints(1, 2, 3), ints(1, 2))
    folder = forged_set(tmp_path / "set", features_of(x=ragged("int64", length=length)), lists)
    assert [value.tolist() for value in rlds.read(folder)[0]["x"].values()] == [[1], [2, 3]]


def test_a_split_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no split 'trian' in .* Did you mean 'train'"):
        rlds.read(forged_set(tmp_path / "set", features_of()), split="trian")
    (tmp_path / "a").write_bytes(b"\x1f\x8b\x00" + bytes(20))
    assert not rlds.matches(Place.of(tmp_path / "a"))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (np.zeros(4), np.zeros((4, 3)), r"'x' of episode 'b': expected rows of \[\] .*, got \[3\]"),
        (np.zeros((4, 3)), np.zeros(4), r"'x' of episode 'b': expected rows of \[3\] .*, got \[\]"),
        (np.zeros(4), np.full(4, "a"), "'x' of episode 'b': expected tensor .*, got text"),
        (np.full(4, "a"), np.zeros(4), "'x' of episode 'b': expected text .*, got"),
        (np.array(3), np.array("text"), "static item .*x': expected int64.*, got 'text'"),
        (np.array(3), np.array(2.5), r"static item .*x': expected int64.*, got 2\.5"),
        (
            np.array(3),
            np.array((1 << 64) - 1, np.uint64),
            "static item .*x': expected int64.*, got 18446744073709551615",
        ),
    ],
    ids=range(7),
)
def test_what_the_next_episode_has_otherwise_is_told(
    first: Any, second: Any, words: str, tmp_path: Path
) -> None:
    for name, x in (("a", first), ("b", second)):
        np.savez(tmp_path / f"{name}.npz", x=x, action=np.zeros((4, 1)))
    with pytest.raises(SchemaMismatchError, match=words):
        rlds.write(npz.read(tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bare_records_have_as_many_steps_as_pictures(tmp_path: Path) -> None:
    picture = encode_png(np.zeros((8, 8, 3), np.uint8))
    record = build_example(
        {
            "observation/image": Values("bytes", [picture] * 4),
            "action": Values("floats", numbers=np.arange(8, dtype=np.float32)),
        }
    )
    (tmp_path / "bare.tfrecord").write_bytes(pack_record(record))
    episode = rlds.read(tmp_path / "bare.tfrecord")[0]
    assert episode["observation/image"].values().shape == (4, 8, 8, 3)
    assert episode["action"].values().shape == (4, 2)
