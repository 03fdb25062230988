"""Sets that are wrong, of every format, in one table: each is a typed error that names what is wrong, and where."""

from __future__ import annotations

import functools
import gzip
import io
import json
import shutil
import sqlite3
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.convert.foreign import copied, sample
from tests.convert.sets import change_json, made_set
from tests.convert.test_webdataset import npy, still
from warpdata.bytekit.codec import encode as encode_bytes
from warpdata.convert import dreamer, hdf5, lerobot, minari, rlds, rosbag2, webdataset, zarr
from warpdata.convert.rlds import records
from warpdata.convert.rlds.records import Values, build_example, pack_record
from warpdata.convert.tables import npz, parquet
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    BlobNotFoundError,
    ChecksumError,
    CorruptLayoutError,
    FormatError,
    LimitExceededError,
    TruncatedError,
    UnsupportedDtypeError,
    UnsupportedVersionError,
    WarpError,
)

Open = Callable[[Path], Episodes]
"""Makes a set in a new folder, and opens it."""
Corrupt, Limit, Dtype = CorruptLayoutError, LimitExceededError, UnsupportedDtypeError
Case = tuple[Open, type[WarpError], str]
"""A set, the error of reading all of it, and what it says."""


# LeRobot.

INFO, DATA = "meta/info.json", "data/chunk-000/file-000.parquet"
LISTED_AS, TASKS = "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"
TOP, VIDEO = "videos/observation.images.top", "videos/chunk-000/observation.images.top/episode_000001.mp4"
Change = Callable[[list[Any]], Any] | None
"""Makes the values of a column from those it has; None takes it away."""


@functools.cache
def sound(version: str) -> dict[str, bytes]:
    """The files of a set in which nothing is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        made = made_set(Path(folder) / "set", 2 if version == "v3.0" else 3, version=version)
        return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}


def set_with(change: Callable[[Path], Any], version: str = "v3.0") -> Open:
    def opened(folder: Path) -> Episodes:
        for name, data in sound(version).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        change(folder)
        return lerobot.read(folder)

    return opened


def put_column(path: Path, name: str, made: Change) -> None:
    """Another column in the place of one of a table."""
    rows = pq.read_table(path)
    at = rows.column_names.index(name)
    if made is None:
        pq.write_table(rows.remove_column(at), path)
        return
    values = made(rows.column(at).to_pylist())
    values = values if isinstance(values, pa.Array) else pa.array(values)
    pq.write_table(rows.set_column(at, name, values), path)


def column(name: str, made: Change, file: str = DATA) -> Open:
    """A set with another column; the description of a feature that reading needs stays."""

    def change(folder: Path) -> None:
        put_column(folder / file, name, made)
        if name == "task_index":
            put_column(folder / LISTED_AS, "tasks", None)
        if name not in ("action", "next.reward"):
            features = json.loads((folder / INFO).read_text())["features"]
            features.pop(name, None)
            change_json(folder / INFO, features=features)

    return set_with(change)


def listed(name: str, made: Change) -> Open:
    return column(name, made, LISTED_AS)


def stating(**info: Any) -> Open:
    return set_with(lambda folder: change_json(folder / INFO, **info), "v2.1")


def lacking(file: str, version: str = "v3.0") -> Open:
    return set_with(lambda folder: (folder / file).unlink(), version)


def exchanged(file: str, other: str) -> Open:
    return set_with(lambda folder: shutil.copyfile(folder / other, folder / file), "v2.1")


def cut_rows(folder: Path) -> None:
    pq.write_table(pq.read_table(folder / DATA)[:9], folder / DATA)


def no_shape(folder: Path) -> None:
    put_column(folder / DATA, "action", lambda was: was)  # no schema of another library
    change_json(folder / INFO, features={"action": {"dtype": "float64"}})


ROWS_OF = "data/chunk-000/episode_00000{}.parquet"
PAIRS = pa.list_(pa.float64(), 2)
NUMBER, VIDEOS = "is not one number in each row", "has no valid videos/"
SHAPE = r"does not state the shape of 'action'.*file-000\.parquet"
LEROBOT: dict[str, Case] = {
    "no column": (column("action", None), Corrupt, "no column 'action'"),
    "no times": (column("timestamp", None), Corrupt, "no column 'timestamp'"),
    "nan as time": (column("timestamp", lambda was: [np.nan, *was[1:]]), Corrupt, "step out of range"),
    "text as time": (column("timestamp", lambda was: ["x"] * len(was)), Corrupt, f"'timestamp' {NUMBER}"),
    "two times": (column("timestamp", lambda was: pa.array([[1.0, 2.0]] * len(was), PAIRS)), Corrupt, NUMBER),
    "far time": (column("timestamp", lambda was: [*was[:6], 1e300, *was[7:]]), Corrupt, "step out of range"),
    "falling time": (
        column("timestamp", lambda was: [was[1], was[0], *was[2:]]),
        FormatError,
        "not increase",
    ),
    "other episode": (column("episode_index", lambda was: [1, *was[1:]]), Corrupt, r"0 \(episode_index\)"),
    "other order": (column("frame_index", lambda was: [1, 0, *was[2:]]), Corrupt, r"0 \(frame_index\)"),
    "missing row": (column("action", lambda was: [None, *was[1:]]), Corrupt, "'action' has missing"),
    "missing number": (
        column("action", lambda was: [[None, 1.0], *was[1:]]),
        Corrupt,
        "'action' has missing",
    ),
    "missing scalar": (
        column("next.reward", lambda was: [None, *was[1:]]),
        Corrupt,
        "'next.reward' has missing",
    ),
    "odd row": (column("action", lambda was: [[1.0] * 3, [4.0], *was[2:]]), FormatError, "different lengths"),
    "few numbers": (
        column("action", lambda was: [[1.0]] * len(was)),
        Corrupt,
        "7 numbers in 7 rows of shape",
    ),
    "decimals": (column("next.reward", lambda was: [Decimal(1)] * len(was)), FormatError, "decimal128"),
    "no episode 1": (listed("episode_index", lambda _: [0, 2]), Corrupt, "row 1 is episode 2"),
    "more frames": (
        listed("dataset_to_index", lambda was: [was[0] + 1, was[1]]),
        Corrupt,
        "7 frames in rows 0 to 8",
    ),
    "rows elsewhere": (listed("dataset_from_index", lambda _: [0, 8]), Corrupt, "has 8 frames in rows 8"),
    "many frames": (listed("length", lambda was: [1 << 41, was[1]]), Limit, "2199023255552 frames"),
    "no video": (listed(f"{TOP}/chunk_index", lambda _: [None, 0]), Corrupt, VIDEOS),
    "no start": (listed(f"{TOP}/from_timestamp", None), Corrupt, VIDEOS),
    "nan as start": (listed(f"{TOP}/from_timestamp", lambda was: [np.nan, was[1]]), Corrupt, "no frame for"),
    "infinite length": (listed("length", lambda _: [np.inf] * 2), Corrupt, "episode 0 has length inf"),
    "infinite row": (
        listed("dataset_from_index", lambda _: [np.inf] * 2),
        Corrupt,
        "has no valid data/chunk_index",
    ),
    "infinite chunk": (
        listed("data/chunk_index", lambda _: [np.inf] * 2),
        Corrupt,
        "has no valid data/chunk_index",
    ),
    "infinite file": (
        listed("data/file_index", lambda _: [np.inf] * 2),
        Corrupt,
        "has no valid data/chunk_index",
    ),
    "no task": (column("task_index", lambda was: [77] * len(was)), Corrupt, "there is no task 77.*parquet"),
    "text as task": (column("task_index", lambda was: ["x"] * len(was)), Corrupt, f"task_index' {NUMBER}"),
    "half a task": (column("task_index", lambda was: [0.5] * len(was)), Corrupt, f"task_index' {NUMBER}"),
    "no tasks": (column("task_index", None), Corrupt, r"no column 'task_index'.*file-000\.parquet"),
    "task numbers": (column("task_index", lambda _: ["0", "1"], TASKS), Corrupt, "a task without its"),
    "tasks missing": (lacking(TASKS), BlobNotFoundError, "the tasks are missing"),
    "list missing": (lacking(LISTED_AS), BlobNotFoundError, "no episodes are listed"),
    "video missing": (lacking(VIDEO, "v2.1"), WarpError, r"_000001\.mp4"),
    "rows missing": (lacking(ROWS_OF.format(2), "v2.1"), BlobNotFoundError, "_000002"),
    "other video": (exchanged(VIDEO, VIDEO.replace("1.mp4", "0.mp4")), Corrupt, "step 7.*episode 1"),
    "other rows": (exchanged(ROWS_OF.format(0), ROWS_OF.format(1)), Corrupt, "8 rows.*states 7.*episode 0"),
    "rows cut": (set_with(cut_rows), Corrupt, r"rows 7 to 15 are needed.* 9.*file-000\.p"),
    "no shape": (set_with(no_shape), Corrupt, SHAPE),
    "total": (stating(total_episodes=5), Corrupt, "total_episodes 5"),
    "total frames": (stating(total_frames=1), Corrupt, "total_frames 1"),
    "version": (stating(codebase_version="v4.0"), UnsupportedVersionError, "v4.0"),
    "no rate": (stating(fps=0), Corrupt, "fps in info.json: 0"),
    "tiny rate": (stating(fps=1e-300), Corrupt, "fps in info.json: 1e-300"),
    "large rate": (stating(fps=10**6), Corrupt, "fps in info.json: 1000000"),
    "truth as rate": (stating(fps=True), Corrupt, "fps in info.json: True"),
    "field of a path": (stating(data_path="data/{file_index:03d}.parquet"), Corrupt, "field 'file_index'"),
    "path out": (stating(data_path="../../etc/passwd"), Corrupt, "leads out"),
    "absolute path": (stating(data_path="/etc/passwd"), Corrupt, "leads out"),
    "wide path": (stating(data_path="data/{episode_index:0999999999d}.parquet"), WarpError, "data"),
    "feature out": (stating(features={"../x": {"dtype": "float32", "shape": [1]}}), Corrupt, "lead out"),
    "features": (stating(features=3), Corrupt, "features"),
    "chunks": (stating(chunks_size=0), Corrupt, "chunks_size: 0"),
}


# RLDS.


def varint(number: int) -> bytes:
    low = bytes([number & 0x7F | (0x80 if number > 0x7F else 0)])
    return low + (varint(number >> 7) if number > 0x7F else b"")


def field(number: int, data: bytes, wire: int = 2) -> bytes:
    return varint(number << 3 | wire) + (varint(len(data)) if wire == 2 else b"") + data


def example_of(listed: bytes, name: bytes = b"steps/reward") -> bytes:
    return field(1, field(1, field(1, name) + field(2, listed)))


def ints(*numbers: int) -> Values:
    return Values("ints", numbers=np.array(numbers, np.int64))


def floats(*numbers: float) -> Values:
    return Values("floats", numbers=np.array(numbers, np.float32))


def tensor(dtype: str, *sides: Any, encoding: str = "none") -> dict[str, Any]:
    shape = {"dimensions": [side if isinstance(side, float) else str(side) for side in sides]}
    return {"tensor": {"dtype": dtype, "shape": shape, "encoding": encoding}}


def ragged(dtype: str, *sides: int, **about: Any) -> dict[str, Any]:
    return {"sequence": {"feature": tensor(dtype, *sides), **about}}


def features_of(**steps: Any) -> dict[str, Any]:
    inner = {"features": {"is_first": tensor("bool"), **steps}}
    return {"featuresDict": {"features": {"steps": {"dataset": {"feature": {"featuresDict": inner}}}}}}


def forged_set(folder: Path, features: Any, lists: dict[str, Values] | None = None, **info: Any) -> Path:
    """A set of one episode of two steps, described as given."""
    folder.mkdir(exist_ok=True)
    stated = {
        "name": "forged",
        "fileFormat": "tfrecord",
        "splits": [{"name": "train", "shardLengths": ["1"]}],
    }
    (folder / "dataset_info.json").write_text(json.dumps({**stated, **info}))
    (folder / "features.json").write_text(json.dumps(features))
    made = build_example({"steps/is_first": ints(1, 0), **(lists or {})})
    (folder / "forged-train.tfrecord-00000-of-00001").write_bytes(pack_record(made))
    return folder


def rows_and_lengths(values: Values, lengths: Values) -> dict[str, Values]:
    return {"steps/x/ragged_flat_values": values, "steps/x/ragged_row_lengths_0": lengths}


def deep(levels: int) -> dict[str, Any]:
    return {"featuresDict": {"features": {"a": deep(levels - 1)}}} if levels else tensor("float32")


def feature(x: Any, values: Values | dict[str, Values] | None = None) -> Open:
    lists = values if isinstance(values, dict) else {} if values is None else {"steps/x": values}
    return lambda folder: rlds.read(forged_set(folder / "set", features_of(x=x), lists))


def described(**info: Any) -> Open:
    return lambda folder: rlds.read(forged_set(folder / "set", features_of(), **info))


def wrote(name: str, data: bytes, read: Callable[[Path], Episodes]) -> Open:
    def opened(folder: Path) -> Episodes:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return opened


def example(data: bytes) -> Open:
    return wrote("a.tfrecord", pack_record(data), rlds.read)


def entries(*rows: bytes) -> Values:
    return Values("bytes", list(rows))


PACKED, STEPS = zlib.compress(b"abcd"), "numbers for . steps of"
RECORD = pack_record(build_example({"steps/is_first": ints(1, 0)}))
LENGTH = (1 << 62).to_bytes(8, "little")
DAMAGED_GZIP = (
    gzip.compress(RECORD)[:-8] + bytes([gzip.compress(RECORD)[-8] ^ 1]) + gzip.compress(RECORD)[-7:]
)
SPLIT, LISTED = "corrupted description of a split", "(exceeds its message|exceeds 64 bits)"
RLDS: dict[str, Case] = {
    "name": (example(example_of(b"", b"\xff\xfe")), Corrupt, "not a tf.train.Example: .*name is not UTF-8"),
    "number as features": (example(field(1, b"\x05", 0)), Corrupt, "expected bytes, got an integer"),
    "number as feature": (example(field(1, field(1, b"\x05", 0))), Corrupt, "bytes, got an integer"),
    "cut varint": (example(example_of(field(1, b"\x0a\x80"))), Corrupt, "varint is cut"),
    "long field": (example(example_of(field(1, b"\x0a\x05abc"))), Corrupt, LISTED),
    "long varint": (example(example_of(field(1, b"\x0a" + b"\xff" * (1 << 20)))), Corrupt, LISTED),
    "number as entry": (example(example_of(field(1, b"\x08\x05"))), Corrupt, "bytes, got an integer"),
    "odd floats": (example(example_of(field(2, field(1, b"12345")))), Corrupt, "floats holds other values"),
    "integer as float": (example(example_of(field(2, b"\x08\x05"))), Corrupt, "floats holds other values"),
    "no end": (example(example_of(field(3, field(1, b"\x80")))), Corrupt, "the last varint has no end"),
    "fixed32": (example(example_of(field(3, field(1, b"\1\2\3\4", 5)))), Corrupt, "ints holds other values"),
    "fixed64": (example(example_of(field(3, field(1, bytes(8), 1)))), Corrupt, "ints holds other values"),
    "no feature": (feature(None), Corrupt, "feature 'steps/x' is not described"),
    "deep": (feature(deep(40)), Corrupt, "is not described"),
    "list": (feature({"featuresDict": {"features": [1]}}), Corrupt, "'steps/x' is not described"),
    "text as side": (feature(tensor("int64", "many")), Corrupt, "corrupted shape of feature 'steps/x'"),
    "infinite side": (feature(tensor("int64", 1e999)), WarpError, "features.json"),
    "shape": (feature({"tensor": {"dtype": "int64", "shape": 7}}), Corrupt, "corrupted shape of feature"),
    "negative side": (feature(tensor("int64", -2)), Corrupt, "shape of feature 'steps/x' out of range"),
    "many sides": (feature(tensor("int64", *[1] * 17)), Corrupt, "shape of feature 'steps/x' out of range"),
    "complex": (feature(tensor("complex64"), floats(1, 2)), Dtype, "unsupported type 'complex64'"),
    "float128": (feature(tensor("float128"), floats(1, 2)), Dtype, "unsupported type 'float128'"),
    "int32": (feature(tensor("int32"), floats(1.5, 2)), Corrupt, "is int32 and holds floats"),
    "uint64": (feature(tensor("uint64"), floats(1.5, 2)), Corrupt, "is uint64 and holds floats"),
    "uint8": (feature(tensor("uint8"), ints(1, 256)), Corrupt, "out of range of uint8"),
    "two open sides": (feature(tensor("int8", -1, -1), ints(1, 2)), Corrupt, STEPS),
    "open side": (feature(tensor("int8", -1), ints(1, 2, 3)), Corrupt, STEPS),
    "odd count": (feature(tensor("int64", 2), ints(1, 2, 3, 4, 5)), Corrupt, STEPS),
    "more rows": (feature(tensor("int64"), ints(1, 2, 3)), Corrupt, "3 rows of 'steps/x', 2 steps"),
    "bytes of no shape": (
        feature(tensor("float32", -1, encoding="bytes"), entries(b"abcd", b"efgh")),
        Dtype,
        "of unknown shape",
    ),
    "short bytes": (
        feature(tensor("float32", encoding="bytes"), entries(b"abcd", b"efg")),
        Corrupt,
        "row 1 of",
    ),
    "absurd bytes": (
        feature(tensor("float32", 1 << 31, 1 << 31, encoding="bytes"), entries(b"a", b"b")),
        Corrupt,
        "row 0 of",
    ),
    "absurd zlib": (
        feature(tensor("float32", 1 << 31, 1 << 31, 4, encoding="zlib"), entries(PACKED, PACKED)),
        Corrupt,
        "row 0 of feature 'steps/x'",
    ),
    "no zlib": (feature(tensor("float32", encoding="zlib"), entries(PACKED, b"none")), Corrupt, "row 1 of"),
    "cut zlib": (
        feature(tensor("float32", encoding="zlib"), entries(PACKED, PACKED[:-4])),
        Corrupt,
        "row 1 of",
    ),
    "text of numbers": (feature(tensor("string"), ints(1, 2)), Corrupt, "'steps/x' holds numbers"),
    "fewer lengths": (
        feature(ragged("int64"), rows_and_lengths(ints(1, 2), ints(2))),
        Corrupt,
        "1 rows, 2 steps",
    ),
    "negative length": (
        feature(ragged("int64"), rows_and_lengths(ints(1, 2), ints(3, -1))),
        Corrupt,
        "invalid row lengths",
    ),
    "float length": (
        feature(ragged("int64"), rows_and_lengths(ints(1, 2, 3), floats(1.5, 1.5))),
        Corrupt,
        "invalid row length",
    ),
    "length of nan": (
        feature(ragged("int64"), rows_and_lengths(ints(1, 2), floats(np.nan, 1))),
        Corrupt,
        "invalid row lengths",
    ),
    "wrong lengths": (
        feature(ragged("int64"), rows_and_lengths(ints(1, 2), ints(1, 2))),
        Corrupt,
        "2 numbers for 3",
    ),
    "absurd lengths": (
        feature(ragged("int64", 0), rows_and_lengths(ints(), ints(1 << 62, 1 << 62))),
        Corrupt,
        "0 numbers for 92",
    ),
    "file format": (
        described(fileFormat="riegeli"),
        UnsupportedVersionError,
        "unsupported file format 'riegeli'",
    ),
    "splits": (described(splits={"train": 1}), Corrupt, "splits are not a list"),
    "no split": (described(splits=[]), Corrupt, "no split has a file"),
    "text as split": (described(splits=["train"]), Corrupt, SPLIT),
    "split of no name": (described(splits=[{"shardLengths": ["1"]}]), Corrupt, SPLIT),
    "text as count": (described(splits=[{"name": "train", "shardLengths": ["x"]}]), Corrupt, SPLIT),
    "negative count": (described(splits=[{"name": "train", "shardLengths": ["-1"]}]), Corrupt, SPLIT),
    "absurd count": (
        described(splits=[{"name": "train", "shardLengths": [1 << 80]}]),
        Corrupt,
        f"expected {1 << 80} as in dataset_info.json, got 1",
    ),
    "no steps": (
        lambda folder: rlds.read(
            forged_set(folder / "set", {"featuresDict": {"features": {"x": tensor("int8")}}})
        ),
        Corrupt,
        "features have no 'steps'",
    ),
    "no files": (rlds.read, BadMagicError, r"neither a dataset_info\.json nor TFRecord files"),
    "single values": (example(b""), BadMagicError, "TFRecords of single values, not of episodes"),
    "cut record": (
        wrote("a.tfrecord", RECORD + RECORD[:9], rlds.read),
        TruncatedError,
        f"record at {len(RECORD)} exceeds the file",
    ),
    "damaged gzip": (wrote("a.tfrecord", DAMAGED_GZIP, rlds.read), Corrupt, "corrupted compressed file"),
    "absurd record": (
        wrote("a.tfrecord", LENGTH + records.masked_crc(LENGTH).to_bytes(4, "little") + bytes(64), rlds.read),
        WarpError,
        "exceeds the file",
    ),
    "zeros": (wrote("a.tfrecord", bytes(64), rlds.read), ChecksumError, "length"),
}


# HDF5.


def demos(change: Callable[[h5py.File], Any]) -> Open:
    """A robomimic file of two demos, the second of which is wrong."""

    def opened(folder: Path) -> Episodes:
        with h5py.File(folder / "a.hdf5", "w") as file:
            for number in range(2):
                group = file.create_group(f"data/demo_{number}")
                group.attrs["num_samples"] = 5
                group["actions"] = np.full((5, 2), number, np.float64)
                group["obs/object"] = np.zeros((5, 3), np.float32)
            change(file)
        episodes = hdf5.read(folder / "a.hdf5", layout="robomimic")
        assert len(episodes[0].steps) == 5
        return episodes

    return opened


def put(path: str, values: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if path in file:
            del file[path]
        if values is not None:
            file[path] = values

    return change


def mapped(mapping: dict[str, Any]) -> Open:
    def opened(folder: Path) -> Episodes:
        with h5py.File(folder / "a.hdf5", "w") as file:
            file["data/demo_0/actions"], file["ends"] = np.zeros((5, 2)), np.array([2, 5])
        return hdf5.read(folder / "a.hdf5", mapping=mapping)

    return opened


def d4rl(short: str) -> Open:
    def opened(folder: Path) -> Episodes:
        with h5py.File(folder / "a.hdf5", "w") as file:
            file["observations"], file["actions"] = np.zeros((10, 1)), np.zeros((10, 1))
            for name in ("rewards", "terminals", "timeouts"):
                file[name] = np.zeros(9 if name == short else 10, bool)
        return hdf5.read(folder / "a.hdf5", layout="d4rl")

    return opened


def array_as_group(folder: Path) -> Episodes:
    with h5py.File(folder / "a.hdf5", "w") as file:
        file["data"] = np.zeros(3)
    return hdf5.read(folder / "a.hdf5", layout="robomimic")


DEMO = "data/demo_1"
HDF5: dict[str, Case] = {
    "count": (demos(lambda f: f[DEMO].attrs.modify("num_samples", 6)), Corrupt, "demo_1"),
    "short": (demos(put(f"{DEMO}/obs/object", np.zeros((4, 3), "f4"))), Corrupt, "demo_1"),
    "no actions": (demos(put(f"{DEMO}/actions", None)), Corrupt, "demo_1"),
    "link": (demos(put(f"{DEMO}/obs/x", h5py.ExternalLink("../../secret.h5", "/data"))), Corrupt, "demo_1"),
    "external": (
        demos(lambda f: f[DEMO].create_dataset("raw", (5,), "u1", external=[("../../etc/host", 0, 5)])),
        Corrupt,
        "demo_1",
    ),
    "chunks": (
        demos(lambda f: f[DEMO].create_dataset("big", (5, 1 << 29), "f8", chunks=(5, 1 << 26))),
        Limit,
        "demo_1",
    ),
    "loop": (
        demos(lambda f: f.__setitem__(f"{DEMO}/obs/loop", f[f"{DEMO}/obs"])),
        Limit,
        "nested too deeply, or inside themselves",
    ),
    "reference": (
        demos(lambda f: f[f"{DEMO}/obs/object"].attrs.__setitem__("where", f["data"].ref)),
        Dtype,
        "attribute 'where' of .* holds a value that cannot be kept",
    ),
    "table of text": (
        demos(put(f"{DEMO}/obs/words", np.full((5, 2), b"w", "S4"))),
        Dtype,
        "holds tables of text",
    ),
    "records": (
        demos(put(f"{DEMO}/obs/pairs", np.zeros(5, [("a", "f4"), ("b", "f8")]))),
        Dtype,
        "pairs' holds ",
    ),
    "no text": (demos(put(f"{DEMO}/obs/words", np.full(5, b"\xff\xfe", "S2"))), Corrupt, "that is not UTF-8"),
    "cloud": (
        demos(lambda f: f[DEMO].create_dataset("cloud", (1 << 32,), "u1", chunks=(1 << 20,))),
        Corrupt,
        "'cloud' of episode 'demo_1' has no row per step",
    ),
    "no group": (
        mapped({"episodes": "runs/*"}),
        Corrupt,
        r"no group is called 'runs/\*'; there are data, ends",
    ),
    "no inner group": (mapped({"episodes": "data/run*"}), Corrupt, r"no group is called 'data/run\*'; there"),
    "array as group": (
        mapped({"episodes": "ends/*"}),
        Corrupt,
        r"no group is called 'ends/\*'; there are data",
    ),
    "group as ends": (mapped({"ends": "data"}), Corrupt, "'data' is not an array"),
    "no ends": (mapped({"ends": "nowhere"}), Corrupt, "there is no 'nowhere' in the file"),
    **{
        short: (d4rl(short), Corrupt, rf"'{short}' has shape \(9,\), there are 10 actions")
        for short in ("terminals", "timeouts", "rewards")
    },
    "no demos": (array_as_group, Corrupt, "'/data' is not a group"),
    "no hdf5": (wrote("a.hdf5", b"nothing of the kind", hdf5.read), FormatError, "not an HDF5 file"),
    "head": (
        wrote("a.hdf5", b"\x89HDF\r", hdf5.read),
        TruncatedError,
        "the file ends before its contents do",
    ),
}


# Zarr.


def zarr_array(folder: Path, path: str, values: Any, data: bytes | None = None, **about: Any) -> None:
    (folder / path).mkdir(parents=True, exist_ok=True)
    stated = {
        "zarr_format": 2,
        "shape": list(values.shape),
        "chunks": list(values.shape),
        "dtype": values.dtype.str,
    }
    more = {"compressor": None, "fill_value": 0, "order": "C", "filters": None}
    (folder / path / ".zarray").write_text(json.dumps({**stated, **more, **about}))
    if data is not None:
        (folder / path / ".".join(["0"] * values.ndim)).write_bytes(data)


def ends_of(values: Any, *, has_data: bool = True) -> Open:
    def opened(folder: Path) -> Episodes:
        zarr_array(folder, "meta/episode_ends", values, values.tobytes() if values.ndim else None)
        rows = np.zeros((4, 3), "<f4")
        if has_data:
            zarr_array(folder, "data/action", rows, rows.tobytes())
        return zarr.read(folder)

    return opened


def large_beside(folder: Path) -> Episodes:
    zarr_array(folder, "meta/other", np.array([4], "<i8"), shape=[1 << 24], chunks=[1 << 24])
    return ends_of(np.array([4], "<i8"))(folder)


ZARR: dict[str, Case] = {
    "ends that fall": (ends_of(np.array([3, 2, 4], "<i8")), Corrupt, "ends"),
    "ends before the end": (ends_of(np.array([1, 3], "<i8")), Corrupt, "ends at"),
    "negative end": (ends_of(np.array([-1, 4], "<i8")), Corrupt, "ends"),
    "float ends": (ends_of(np.array([4.0])), Corrupt, r"'meta/episode_ends' holds \w+64\["),
    "table of ends": (ends_of(np.array([[4]])), Corrupt, r"'meta/episode_ends' holds \w+64\["),
    "one end": (ends_of(np.array(4)), Corrupt, r"'meta/episode_ends' holds \w+64\["),
    "no data": (ends_of(np.array([4], "<i8"), has_data=False), Corrupt, "without any array in 'data'"),
    "no ends": (zarr.read, BadMagicError, "there is no 'meta/episode_ends'"),
    "large beside": (large_beside, Limit, "'meta/other' is larger than metadata can be"),
}


# Minari.


def minari_json(file: str, **change: Any) -> Open:
    def opened(folder: Path) -> Episodes:
        path = copied(sample("minari", "synth", "box-arrow-v0"), folder) / "data" / file
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
        return minari.read(path.parents[len(Path(file).parts)])

    return opened


def minari_column(name: str, make: Callable[[int], Any], metadata: dict[str, str] | None = None) -> Open:
    """A set in which the second episode has another column; None takes it away."""

    def opened(folder: Path) -> Episodes:
        source = copied(sample("minari", "synth", "box-arrow-v0"), folder)
        path = source / "data/1/part-0.arrow"
        found = pa.ipc.open_file(path).read_all()
        values = make(len(found))
        found = found.drop_columns([name]) if name in found.column_names else found
        if values is not None:
            found = found.append_column(pa.field(name, values.type, metadata=metadata), values)
        with pa.ipc.new_file(path, found.schema) as out:
            out.write_table(found)
        return minari.read(source)

    return opened


def without(file: str) -> Open:
    def opened(folder: Path) -> Episodes:
        source = copied(sample("minari", "synth", "box-arrow-v0"), folder)
        (source / "data" / file).unlink()
        return minari.read(source)

    return opened


def no_rows(folder: Path) -> Episodes:
    source = copied(sample("minari", "synth", "box-parquet-v0"), folder)
    path = source / "data/1/part-0.parquet"
    pq.write_table(pq.read_table(path)[:0], path)
    return minari.read(source)


def gaps_above(rows: int) -> Any:
    """Structs with values, the first of which is not there."""
    mask = pa.array([True] + [False] * (rows - 1))
    return pa.StructArray.from_arrays([pa.array(range(rows))], ["y"], mask=mask)


def infos(first: Any, other: Any) -> Open:
    return minari_column("infos", lambda n: pa.array([{"y": first}] + [{"y": other}] * (n - 1)))


def numbers(rows: int) -> Any:
    return pa.array([1.0] * rows)


WIDE = pa.list_(pa.float32(), 77)
MINARI: dict[str, Case] = {
    "count": (minari_json("metadata.json", total_episodes=4), FormatError, "4 episodes, there are 3"),
    "format": (minari_json("metadata.json", data_format="pickle"), FormatError, "stored as 'pickle'"),
    "space": (minari_json("metadata.json", observation_space="{"), FormatError, "observation_space"),
    "number as space": (minari_json("metadata.json", observation_space=3), FormatError, "it is not text"),
    "steps": (minari_json("1/metadata.json", total_steps=7), Corrupt, "episode_1.*7 steps"),
    **{
        f"steps {value}": (minari_json("0/metadata.json", total_steps=value), Corrupt, "episode_0.*steps")
        for value in (float("inf"), float("nan"), 1e999, "many", [7], {"a": 1})
    },
    "no metadata": (without("1/metadata.json"), WarpError, r"data/1/metadata\.json"),
    "no table": (without("2/part-0.arrow"), Corrupt, "3 episodes, there are 2"),
    "no row": (no_rows, Corrupt, r"the table of the episode is empty.*episode_1"),
    "no rewards": (minari_column("rewards", lambda n: None), Corrupt, "has no rewards.*episode_1"),
    "gap": (infos(None, 1), Corrupt, "missing values.*data/1"),
    "gap in a list": (infos([None, 1], [1, 2]), Corrupt, "missing values.*data/1"),
    "gap above": (minari_column("infos", gaps_above), Corrupt, "'infos/y' has missing values.*data/1"),
    "lists of two lengths": (infos([1], [1, 2]), Dtype, "lists of different lengths.*data/1"),
    "lists of text": (infos(["a"], ["a"]), Dtype, "'infos/y' holds list.*data/1"),
    "no number as shape": (
        minari_column("infos", numbers, {"shape": "2,x"}),
        Corrupt,
        "damaged shape of column",
    ),
    "another shape": (
        minari_column("infos", numbers, {"shape": "2,2"}),
        Corrupt,
        r"of \[\], expected \[2, 2\]",
    ),
    "another action": (
        minari_column("actions", lambda n: pa.array([[1.0] * 77] * n, WIDE)),
        Corrupt,
        r"'actions' has rows of \[77",
    ),
}


# Bags, replay.


TOPIC = "1 AS id, '/t' AS name, 'std_msgs/msg/String' AS type, 'cdr' AS serialization_format"
MESSAGE = "1 AS topic_id, 5 AS timestamp, 1 AS id, x'0001000003000000616200' AS data"


def bag(topics: str = TOPIC, messages: str = MESSAGE) -> Open:
    """A bag whose tables are what these queries give."""

    def opened(folder: Path) -> Episodes:
        with closing(sqlite3.connect(folder / "forged.db3")) as database:
            database.execute(f"CREATE VIEW topics AS SELECT {topics}")
            database.execute(f"CREATE VIEW messages AS SELECT {messages}")
            database.commit()
        return rosbag2.read(folder / "forged.db3")

    return opened


def changed_bag(query: str) -> Open:
    def opened(folder: Path) -> Episodes:
        path = copied(sample("rosbag2_db3", "gen_v9_sqlite3"), folder)
        with closing(sqlite3.connect(path / "gen_v9_sqlite3.db3")) as database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute(query)
            database.commit()
        return rosbag2.read(path)

    return opened


def chunk(length: int = 3, successor: str = "0" * 22, **arrays: Any) -> Open:
    def opened(folder: Path) -> Episodes:
        rows = {"is_first": np.array([True, False, False]), "action": np.zeros((3, 1)), **arrays}
        np.savez_compressed(folder / f"20260101T000000F000000-{'1' * 22}-{successor}-{length}.npz", **rows)
        return dreamer.read(folder)

    return opened


ZSTD = encode_bytes("zstd", bytes(range(256)) * 99)
BOMB = encode_bytes("zstd", b"SQLite format 3\0" + bytes(1 << 27))
BAGS: dict[str, Case] = {
    "bag topic": (bag(TOPIC.replace("1 AS id", "'one' AS id")), Corrupt, "corrupted topic of a bag"),
    "bag topic of no name": (bag(TOPIC.replace("'/t'", "NULL")), Corrupt, "corrupted topic of a bag"),
    "bag serialization": (
        bag(TOPIC.replace("'cdr'", "'cbor'")),
        FormatError,
        "serialization 'cbor' of topic '/t'",
    ),
    "bag time": (bag(messages=MESSAGE.replace("5 AS", "-5 AS")), Corrupt, "corrupted message of a bag"),
    "bag row": (
        bag(messages=MESSAGE.replace("1 AS id", "NULL AS id")),
        Corrupt,
        "corrupted message of a bag",
    ),
    "bag lost row": (
        bag(messages=MESSAGE.replace("1 AS id", "abs(random()) AS id")),
        TruncatedError,
        "message of a bag is missing",
    ),
    "bag text": (bag(messages=MESSAGE.partition(", x'")[0] + ", 'text' AS data"), Corrupt, "is not bytes"),
    "bag columns": (bag(messages="1 AS topic_id"), Corrupt, "corrupted SQLite file"),
    **{
        f"bag {query}": (changed_bag(query), Corrupt, "gen_v9_sqlite3")
        for query in (
            *("UPDATE messages SET timestamp = 'soon'", "UPDATE messages SET data = 17", "DROP TABLE topics"),
            *("UPDATE messages SET timestamp = -5", "DROP TABLE messages"),
        )
    },
    "bag magic": (
        wrote("x.db3", b"SQLite format 2\0" + bytes(100), rosbag2.read),
        BadMagicError,
        "not an SQLite",
    ),
    "bag zstd of text": (
        wrote("x.db3.zstd", encode_bytes("zstd", b"no"), rosbag2.read),
        BadMagicError,
        "not an SQL",
    ),
    "bag cut zstd": (wrote("x.db3.zstd", ZSTD[:-9], rosbag2.read), FormatError, r"x\.db3\.zstd"),
    "bag empty zstd": (wrote("x.db3.zstd", b"", rosbag2.read), FormatError, r"x\.db3\.zstd"),
    "bag bomb": (wrote("bomb.db3.zstd", BOMB, rosbag2.read), Limit, "bomb"),
    "bag pages": (
        wrote("x.db3", b"SQLite format 3\0" + bytes(100), rosbag2.read),
        Corrupt,
        "corrupted SQLite file",
    ),
    "bag folder": (rosbag2.read, BlobNotFoundError, "folder has no recording"),
    "dreamer length": (chunk(length=4), Corrupt, "states 4 rows"),
    "dreamer array": (chunk(image=np.zeros((2, 1))), Corrupt, r"'image' has shape \[2, 1\]"),
    "dreamer pickle": (chunk(image=np.array([{}, 1, 2], object)), Dtype, "Python objects"),
    "dreamer circle": (chunk(successor="1" * 22), Corrupt, "in a circle"),
}


# WebDataset, plain archives and tables.


def tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def shard(**files: bytes) -> Open:
    """Members by name, with `__` for `/` and `_` for a dot."""
    named = {name.replace("__", "/").replace("_", "."): data for name, data in files.items()}
    return wrote("bad.tar", tar(named), webdataset.read)


def members(*files: tuple[str, bytes]) -> Open:
    def opened(folder: Path) -> Episodes:
        with zipfile.ZipFile(folder / "a.npz", "w") as out:
            for name, data in files:
                out.writestr(zipfile.ZipInfo(name), data)
        return npz.read(folder / "a.npz")

    return opened


def table(column: Any, *, group: int | None = None, **mapping: str) -> Open:
    def opened(folder: Path) -> Episodes:
        made = pa.table({"action": [1.0, 2.0], "x": column})
        pq.write_table(made, folder / "t.parquet", row_group_size=group)
        return parquet.read(folder / "t.parquet", mapping=mapping or None)

    return opened


def episodes_apart(folder: Path) -> Episodes:
    pq.write_table(pa.table({"episode": [0, 1, 0], "action": [1.0, 2.0, 3.0]}), folder / "t.parquet")
    return parquet.read(folder / "t.parquet")


def huge_array(folder: Path) -> Episodes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    return members(("x.npy", head.getvalue() + bytes(64)))(folder)


ONES, ROWS, STILL = npy(np.ones(3)), npy(np.arange(4.0)), still()
CHANGES, MISSING = "changes from step to step", "'x' has missing values"
WEBDATASET: dict[str, Case] = {
    "place": (wrote("bad.tar", tar({"../ep.a.npy": ONES}), webdataset.read), Corrupt, r"bad\.tar"),
    "pickle": (shard(ep_a_npy=npy(np.array([{}, 1], object))), Dtype, r"bad\.tar"),
    "cut array": (shard(ep_a_npy=npy(np.ones(300))[:-8]), Corrupt, r"bad\.tar"),
    "cut gzip": (shard(ep_a_npy_gz=gzip.compress(npy(np.ones(300)))[:-30]), Limit, r"bad\.tar"),
    "no gzip": (shard(ep_a_npy_gz=b"\x1f\x8b no deflate"), Corrupt, "damaged gzip field"),
    "no number": (shard(ep_cls=b"many"), Corrupt, r"bad\.tar"),
    "no text": (shard(ep_txt=b"\xff\xfe"), Corrupt, r"bad\.tar"),
    "field twice": (shard(ep_a_npy=ONES, ep_A_npy=ONES), Corrupt, "duplicate field"),
    "sample twice": (shard(a_x_npy=ONES, b_x_npy=ONES, a_y_npy=ONES), Corrupt, "duplicate sample 'a'"),
    "text array": (shard(ep_a_npy=npy(np.array(["a", "b"]))), Dtype, "unsupported dtype <U1"),
    "frame twice": (
        shard(ep_a_npy=ONES, ep_c_1_png=STILL, ep_c_01_png=STILL),
        Corrupt,
        "frames of 'c' have one",
    ),
    "large number": (
        shard(ep__0_cls=b"1", ep__1_cls=b"9" * 20),
        Corrupt,
        "'cls' has a number of more than 64",
    ),
    "shape": (shard(ep__0_a_npy=npy(np.ones((2, 2))), ep__1_a_npy=npy(np.ones((2, 3)))), Corrupt, CHANGES),
    "type": (shard(ep__0_a_npy=npy(np.ones(2)), ep__1_a_npy=npy(np.ones(2, "f4"))), Corrupt, CHANGES),
    "compressed": (
        wrote("a.tar", gzip.compress(tar({"a.npy": b""})), webdataset.read),
        BadMagicError,
        "a whole",
    ),
}
PLAIN: dict[str, Case] = {
    "npz twice": (members(("x.npy", ROWS), ("x.npy", npy(np.zeros(4)))), Corrupt, "duplicate member 'x.npy'"),
    "npz cut": (members(("x.npy", ROWS[:-8])), Corrupt, "the array is truncated"),
    "npz no array": (members(("x.npy", b"no array")), Corrupt, "x"),
    "npz times": (members(("x.npy", npy(np.zeros(4, "M8[ns]")))), Dtype, "unsupported dtype datetime64"),
    "npz texts": (members(("x.npy", npy(np.zeros((4, 2), "U3")))), Dtype, "unsupported dtype <U3"),
    "npz pickle": (members(("x.npy", npy(np.array([{}, 1], object)))), Dtype, r"Python objects.*a\.npz:x"),
    "npz bomb": (huge_array, Limit, r"a\.npz"),
    "npz place": (members(("../x.npy", b"")), Corrupt, "leads out"),
    "npz lengths": (
        members(("state.npy", npy(np.zeros(9))), ("action.npy", npy(np.zeros((4, 1))))),
        Corrupt,
        "'state' of episode 'a' has 9 rows, there are 4 steps",
    ),
    "npz folder": (npz.read, BlobNotFoundError, r"no \.npz file in this folder"),
    "npz zip": (
        wrote("a.npz", b"PK\x03\x04" + bytes(40), npz.read),
        Corrupt,
        "not a readable archive of arrays",
    ),
    "table gap": (table(pa.array([1, None])), Corrupt, MISSING),
    "table gap in a list": (table(pa.array([[1, None], [3, 4]])), Corrupt, MISSING),
    "table gap of a list": (table(pa.array([[[1], [2]], [[3], None]])), Corrupt, MISSING),
    "table gap of a struct": (table(pa.array([{"y": 1}, None])), Corrupt, "'x/y' has missing values"),
    "table lists": (table(pa.array([[1], [3, 4]])), Dtype, "'x' holds lists of different lengths"),
    "table words": (table(pa.array(["a", "b"]).dictionary_encode()), Dtype, "'x' holds dictionary"),
    "table lists of text": (table(pa.array([["a"], ["b"]])), Dtype, "'x' holds list"),
    "table groups": (table([[1, 2], [3]], group=1), Corrupt, "'x' changes its shape"),
    "table mapping": (table([1, 2], ends="end"), Corrupt, "no column 'end'"),
    "table order": (episodes_apart, Corrupt, "are not neighbours"),
    "table folder": (parquet.read, BlobNotFoundError, r"no \.parquet file"),
}


TABLES = {
    "lerobot": LEROBOT,
    "rlds": RLDS,
    "hdf5": HDF5,
    "zarr": ZARR,
    "minari": MINARI,
    "webdataset": WEBDATASET,
}
WRONG = (
    {f"{kind} {name}": case for kind, cases in TABLES.items() for name, case in cases.items()} | BAGS | PLAIN
)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_set_is_named_with_what_is_wrong(case: str, tmp_path: Path) -> None:
    opened, error, words = WRONG[case]
    with pytest.raises(error, match=words) as caught:
        episodes = opened(tmp_path)
        _ = episodes.metadata
        for episode in episodes:
            _ = [
                dict(episode.static),
                dict(episode.meta),
                *(each.values() for each in episode.signals.values()),
            ]
    assert str(tmp_path) in str(caught.value)
