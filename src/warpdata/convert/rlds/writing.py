"""Write episodes as an RLDS set in a TFDS folder: TFRecord files that `tfds.builder_from_directory` opens."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import encode_png
from warpdata.bytekit.io.commit import commit_folder
from warpdata.convert.aligning import LAST_ROW, AlignOptions, Hold
from warpdata.convert.each_episode import OnError, Progress
from warpdata.convert.exporting import Part, StepColumn, StepRows, StepWriter, write_set
from warpdata.convert.place import check_inside
from warpdata.convert.receipt import RECEIPT_FILE, ConversionReceipt, Note, called
from warpdata.convert.rlds.example import Values, build_example, bytes_values
from warpdata.convert.rlds.features import RAGGED_LENGTHS, RAGGED_VALUES, STEPS, Leaf, leaves_of
from warpdata.convert.rlds.reading import EPISODE_METADATA, FEATURES, INFO, TASKS
from warpdata.convert.rlds.records import MAX_RECORD_BYTES, packed_record
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import LimitExceededError, SchemaMismatchError
from warpdata.timeline.episode import Episode

SHARD_BYTES = 256 << 20
_CLASS = "tensorflow_datasets.core.features."
_FLAGS = ("is_first", "is_last", "is_terminal")
_TASK = TASKS[0]
TASK = "task"


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: str = "1.0.0",
    shard_bytes: int = SHARD_BYTES,
    rate: float | None = None,
    clock: str | None = None,
    align: Hold = "hold",
    on_error: OnError = "stop",
    jobs: int = 1,
    progress: Progress | None = None,
) -> ConversionReceipt:
    """Write episodes as RLDS into a new folder, the one that TFDS opens; needs no TensorFlow.

    Steps are those of the episode, or a grid of `rate` per second, or the records of the signal `clock`, aligned by
    `align`; their times are kept in `warpdata.json`. Static items become `episode_metadata`, the static item `split`
    names the split of an episode (`train` without it). A set that was RLDS comes out with its own names and types.
    What was observed after the last action becomes the last step, whose action and reward mean nothing, as RLDS has
    it; `last_row` in the metadata of each episode states whether it is so. `jobs` processes make records.
    """
    kept = episodes.metadata.get("rlds")
    kept = kept if isinstance(kept, Mapping) and kept.get("features") else {}
    info = dict(kept.get("info") or {})
    info |= {"name": name or info.get("name") or "warpdata", "version": info.get("version") or version}
    check_inside(str(info["name"]), os.fspath(target))
    writer, options = RldsWriter(info, kept.get("features"), shard_bytes), AlignOptions(rate, clock, align)
    return write_set(writer, episodes, target, options, on_error=on_error, jobs=jobs, progress=progress)


@dataclass(frozen=True, slots=True)
class _Field:
    """One feature and where its values come from: a signal, a static item, either of them, or the steps themselves."""

    leaf: Leaf
    signal: str | None = None
    static: str | None = None


class RldsWriter(StepWriter):
    """TFRecord files of every split, a record per episode, and the two descriptions of TFDS."""

    format = "rlds"

    def __init__(self, info: dict[str, Any], features: Any, shard_bytes: int) -> None:
        self._info, self._tree, self._shard_bytes = info, features, max(1, shard_bytes)
        self.version = str(info["version"])
        self._fields = (
            [] if features is None else [_kept_field(leaf) for leaf in leaves_of(features, FEATURES)]
        )
        self._splits: dict[str, _SplitFiles] = {}

    def open(self, target: Path) -> AbstractContextManager[Path]:
        """The new folder."""
        return commit_folder(target)

    def choose(self, rows: StepRows, _episodes: Episodes) -> None:
        """The features of the source, or those of the first episode."""
        if self._tree is None:
            self._fields = _plan(rows.episode, rows.columns)
            self._tree = _features(self._fields)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The record of one episode."""
        episode, columns, steps = rows.episode, rows.columns, len(rows)
        count = steps + any(column.has_more for column in columns.values())
        notes: dict[str, Note] = {}
        features: dict[str, Values] = {}
        used = set()
        for field in self._fields:
            if field.signal is not None and (field.static is None or field.signal in columns):
                column = columns.get(field.signal)
                used.add(field.signal)
                features |= _signal_lists(field.leaf, column, columns, count, episode.id)
                if column is not None:
                    notes[field.signal] = called(_note(column), field.signal, field.leaf.name)
            elif field.static is not None:
                features |= _static_lists(field.leaf, episode.static.get(field.static), count)
            else:
                features |= _own_lists(field.leaf, columns, steps, count)
        for name in columns.keys() - used:
            is_flag = columns[name].meta.role in ("terminated", "truncated")
            if not is_flag and not name.endswith(f"/{RAGGED_LENGTHS}"):
                raise SchemaMismatchError(
                    f"episode {episode.id!r} has the signal {name!r}, which those before it do not have",
                    hint="Every episode of an RLDS set has the same features: choose them with Episodes.map.",
                )
            notes[name] = columns[name].note(decoded=False)
        data = build_example(features)
        if len(data) > MAX_RECORD_BYTES:
            raise LimitExceededError(
                f"episode {episode.id!r} takes {len(data)} bytes; one record holds at most {MAX_RECORD_BYTES}",
                hint="Split it first.",
            )
        (scratch / "record").write_bytes(data)
        return Part(count, notes, (scratch / "record", str(episode.static.get("split") or "train")))

    def add(self, part: Part) -> str:
        """Append the record to the files of its split."""
        path, split = part.data
        files = self._splits.get(split)
        if files is None:
            check_inside(split, str(self.out))
            files = self._splits[split] = _SplitFiles(self.out, split, self._shard_bytes)
        files.add(path.read_bytes())
        return f"{split}-{files.episodes - 1:06d}"

    def finish(self, _episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Name the files, and write what TFDS must know."""
        stated = self._info.get("splits", [])
        known = {str(each.get("name")): each for each in stated if isinstance(each, Mapping)}
        splits = [
            {
                **known.get(split, {}),
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(count) for count in files.finish(str(self._info["name"]))],
                "numBytes": str(files.example_bytes),
            }
            for split, files in self._splits.items()
        ]
        info = {**self._info, "splits": splits, "fileFormat": "tfrecord"}
        for file, value in ((INFO, info), (FEATURES, self._tree or _features([]))):
            (self.out / file).write_text(json.dumps(value, indent=2, sort_keys=True))
        (self.out / RECEIPT_FILE).write_bytes(receipt.document())


def _kept_field(leaf: Leaf) -> _Field:
    """A feature of the source, from the signal or static item that was made of it."""
    if not leaf.in_steps:
        return _Field(leaf, static=leaf.name.removeprefix(EPISODE_METADATA))
    return _Field(leaf, leaf.name, TASK if leaf.path in TASKS else None)


def _plan(episode: Episode, columns: Mapping[str, StepColumn]) -> list[_Field]:
    """The features of a set like this episode."""
    found = [
        _Field(_signal_leaf(path, columns[name]), signal=name)
        for name, path in _paths(columns).items()
        if name != TASK or columns[name].meta.kind != "text"
    ]
    taken = {field.leaf.path for field in found}
    has_task = TASK in columns or TASK in episode.static
    if has_task and _TASK not in taken and not any(field.signal == TASK for field in found):
        # An item in one episode, a signal in another: where it changes.
        found.append(_Field(Leaf(_TASK, "text", "string"), TASK, TASK))
    for flag in (*_FLAGS, "reward", "discount"):
        path = f"{STEPS}/{flag}"
        if path not in taken:
            found.append(_Field(Leaf(path, "tensor", "bool" if flag in _FLAGS else "float32")))
    if LAST_ROW not in episode.static:
        found.append(_Field(Leaf(EPISODE_METADATA + LAST_ROW, "text", "string")))
    for name, value in episode.static.items():
        if name != "split" and not any(field.static == name for field in found):
            found.append(_Field(_static_leaf(EPISODE_METADATA + name, value), static=name))
    return sorted(found, key=lambda field: field.leaf.path)


class _SplitFiles:
    """The files of one split, under temporary names until it is known how many there are."""

    def __init__(self, folder: Path, split: str, shard_bytes: int) -> None:
        self._folder, self._split, self._shard_bytes = folder, split, shard_bytes
        self._counts: list[int] = []
        self._size = 0
        self.example_bytes = 0

    @property
    def episodes(self) -> int:
        """How many records there are."""
        return sum(self._counts)

    def add(self, data: bytes) -> None:
        """Append a record to the last file, or to a new one."""
        if not self._counts or self._size + len(data) > self._shard_bytes:
            self._counts.append(0)
            self._size = 0
        with open(self._file(len(self._counts) - 1), "ab") as file:
            file.write(packed_record(data))
        self._counts[-1] += 1
        self._size += len(data)
        self.example_bytes += len(data)

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._split}.{number}.part"

    def finish(self, dataset: str) -> list[int]:
        """Give the files their names; how many episodes each has."""
        count = len(self._counts)
        for number in range(count):
            name = f"{dataset}-{self._split}.tfrecord-{number:05d}-of-{count:05d}"
            self._file(number).rename(self._folder / name)
        return self._counts


def _paths(columns: Mapping[str, StepColumn]) -> dict[str, str]:
    """Where the signals go: observations and actions below these words, unless their names say it already."""
    by_role: dict[str, list[str]] = {}
    for name, column in columns.items():
        by_role.setdefault(column.meta.role, []).append(name)
    found: dict[str, str] = {}
    for role, names in by_role.items():
        if role in ("terminated", "truncated"):
            continue
        for name in names:
            plain = name.removeprefix("action/") if role == "action" else name
            if role in ("action", "reward") and len(names) == 1:
                path = role
            elif role == "action":
                path = f"action/{plain}"
            elif role == "observation" and not name.startswith("observation/"):
                path = f"observation/{name}"
            else:
                path = name
            found[name] = f"{STEPS}/{path}"
    for name, path in found.items():
        others = [each for other, each in found.items() if other != name]
        if path in others or any(each.startswith(f"{path}/") for each in others):
            raise SchemaMismatchError(
                f"signal {name!r} and another one would both be {path!r}",
                hint="Rename one with Episodes.map.",
            )
    return found


def _signal_leaf(path: str, column: StepColumn) -> Leaf:
    meta = column.meta
    if meta.kind == "text":
        return Leaf(path, "text", "string")
    if meta.kind == "bytes":
        return Leaf(path, "text", "string")
    if meta.kind == "image":
        shape = meta.shape if len(meta.shape) == 3 else (*meta.shape, 1)
        return Leaf(path, "image", meta.dtype.name, shape)
    # FloatList has 32 bits: wider numbers go as their bytes.
    return Leaf(path, "tensor", meta.dtype.name, meta.shape, "bytes" if meta.dtype == np.float64 else "none")


def _static_leaf(path: str, value: Any) -> Leaf:
    array = np.asarray(value) if isinstance(value, bool | int | float | np.generic | np.ndarray) else None
    if array is None or array.dtype.kind not in "biuf":
        return Leaf(path, "text", "string")
    return Leaf(
        path, "tensor", array.dtype.name, array.shape, "bytes" if array.dtype == np.float64 else "none"
    )


def _signal_lists(
    leaf: Leaf, column: StepColumn | None, columns: Mapping[str, StepColumn], rows: int, episode_id: str
) -> dict[str, Values]:
    if column is None:
        return {} if leaf.kind == "ragged" else {leaf.path: Values("nothing")}
    if leaf.kind == "ragged":
        return _ragged_lists(leaf, column, columns)
    if leaf.kind == ("tensor" if column.meta.is_object else "text"):
        raise SchemaMismatchError(
            f"signal {column.name!r} of episode {episode_id!r} is {column.meta.kind}, those before it are not"
        )
    if column.meta.is_object:
        texts = [each if isinstance(each, bytes) else str(each).encode("utf-8", "surrogateescape")
                 for block in column.blocks() for each in block]  # fmt: skip
        return {leaf.path: bytes_values(texts + [b""] * (rows - len(texts)))}
    if leaf.kind == "image" or (leaf.kind == "unknown" and column.meta.kind == "image"):
        pictures = list(_pictures(column))
        blank = [encode_png(np.zeros(column.meta.shape, column.meta.dtype))] * (rows - len(pictures))
        return {leaf.path: bytes_values(pictures + blank)}
    values = np.concatenate([np.asarray(block) for block in column.blocks()])
    if -1 not in leaf.shape and values.shape[1:] != leaf.shape:
        raise SchemaMismatchError(
            f"signal {column.name!r} of episode {episode_id!r} has rows of {list(values.shape[1:])}, "
            f"those before it of {list(leaf.shape)}"
        )
    if len(values) < rows:
        values = np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
    return {leaf.path: _numbers(leaf, values)}


def _ragged_lists(leaf: Leaf, column: StepColumn, columns: Mapping[str, StepColumn]) -> dict[str, Values]:
    values = np.concatenate([np.asarray(block) for block in column.blocks()])
    beside = columns.get(f"{column.name}/{RAGGED_LENGTHS}")
    lengths = (
        np.full(len(values), values.shape[1], np.int64)
        if beside is None
        else np.concatenate([np.asarray(block) for block in beside.blocks()])
    )
    flat = values[np.arange(values.shape[1]) < lengths[:, None]]
    return {
        f"{leaf.path}/{RAGGED_VALUES}": _numbers(leaf, flat),
        f"{leaf.path}/{RAGGED_LENGTHS}": Values("ints", numbers=lengths.astype(np.int64)),
    }


def _pictures(column: StepColumn) -> Iterator[bytes]:
    """The pictures of a camera as they are encoded, where they are JPEG or PNG; else its frames as PNG."""
    if column.is_exact:
        run = encoded_run(column.signal)
        if run is not None and run.stream.codec in ("mjpeg", "png") and bool(run.shown.all()):
            yield from run.packets()
            return
    for block in column.blocks():
        yield from map(encode_png, block)


def _numbers(leaf: Leaf, values: NDArray[Any]) -> Values:
    dtype = leaf.numpy(FEATURES)
    if leaf.encoding in ("bytes", "zlib"):
        raw = [np.ascontiguousarray(row, dtype).tobytes() for row in values]
        return bytes_values([zlib.compress(each) for each in raw] if leaf.encoding == "zlib" else raw)
    flat = np.ascontiguousarray(values).reshape(-1)
    if dtype.kind in "iub":
        return Values("ints", numbers=flat.view(np.int64) if dtype == np.uint64 else flat.astype(np.int64))
    return Values("floats", numbers=flat.astype(np.float32))


def _static_lists(leaf: Leaf, value: Any, rows: int) -> dict[str, Values]:
    if value is None and leaf.kind != "text":
        return {leaf.path: Values("nothing")}
    if leaf.kind != "tensor":
        many = value if isinstance(value, list) and leaf.kind != "text" else [value]
        texts = [_text(each) for each in many]
        return {leaf.path: bytes_values(texts * rows if leaf.in_steps else texts)}
    dtype = leaf.numpy(FEATURES)
    try:
        array = np.asarray(value, dtype)
        is_same = dtype.kind not in "iub" or np.array_equal(array, np.asarray(value))
    except (TypeError, ValueError, OverflowError):
        is_same = False
    if not is_same:
        raise SchemaMismatchError(f"static item {leaf.path!r} is {value!r:.40}, {leaf.dtype} before")
    if -1 not in leaf.shape and array.size != math.prod(leaf.shape):
        raise SchemaMismatchError(
            f"static item {leaf.path!r} is {list(array.shape)}, {list(leaf.shape)} before"
        )
    return {leaf.path: _numbers(leaf, array.reshape(1, -1))}


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text.encode("utf-8", "surrogateescape")


def _own_lists(leaf: Leaf, columns: Mapping[str, StepColumn], steps: int, rows: int) -> dict[str, Values]:
    """What RLDS has for every step and the episode says otherwise, or not at all."""
    if leaf.path == EPISODE_METADATA + LAST_ROW:
        return {leaf.path: bytes_values([b"observation" if rows > steps else b"step"])}
    numbers = np.zeros(rows, np.int64)
    if leaf.name == "is_first":
        numbers[:1] = 1
    elif leaf.name == "is_last":
        numbers[-1:] = 1
    elif leaf.name == "is_terminal":
        ended = next((each for each in columns.values() if each.meta.role == "terminated"), None)
        if ended is not None and steps:
            flags = np.concatenate(
                [np.asarray(block).reshape(len(block), -1)[:, 0] for block in ended.blocks(0, steps)]
            )
            numbers[-1] = int(bool(flags[-1]))
    elif leaf.name == "discount":
        return {leaf.path: Values("floats", numbers=np.ones(rows, np.float32))}
    else:
        return {leaf.path: Values("floats", numbers=np.zeros(rows, np.float32))}
    return {leaf.path: Values("ints", numbers=numbers)}


def _note(column: StepColumn) -> Note:
    note = column.note(decoded=False)
    if column.meta.kind != "image" or not column.is_exact:
        return note
    run = encoded_run(column.signal)
    if run is not None and not (run.stream.codec in ("mjpeg", "png") and bool(run.shown.all())):
        return replace(note, how="reencoded", why="decoded, and stored as PNG")
    return note


def _features(fields: Sequence[_Field]) -> dict[str, Any]:
    """features.json for these features."""
    tree: dict[str, Any] = {}
    for field in fields:
        node = tree
        *above, last = field.leaf.path.split("/")
        for name in above:
            node = node.setdefault(name, {})
        node[last] = field.leaf
    steps = tree.pop(STEPS, {})
    top = {name: _node(value) for name, value in tree.items()}
    top[STEPS] = {
        "pythonClassName": f"{_CLASS}dataset_feature.Dataset",
        "sequence": {"feature": _node(steps), "length": "-1"},
    }
    return {"pythonClassName": f"{_CLASS}features_dict.FeaturesDict", "featuresDict": {"features": top}}


def _node(value: Any) -> dict[str, Any]:
    if not isinstance(value, Leaf):
        features = {name: _node(each) for name, each in value.items()}
        return {
            "pythonClassName": f"{_CLASS}features_dict.FeaturesDict",
            "featuresDict": {"features": features},
        }
    shape = {"dimensions": [str(side) for side in value.shape]} if value.shape else {}
    if value.kind == "text":
        return {"pythonClassName": f"{_CLASS}text_feature.Text", "text": {}}
    if value.kind == "image":
        about = {"dtype": value.dtype, "shape": shape, "encodingFormat": ""}
        return {"pythonClassName": f"{_CLASS}image_feature.Image", "image": about}
    about = {"dtype": value.dtype, "shape": shape, "encoding": value.encoding}
    # A Scalar of TFDS does not look at the encoding.
    is_tensor = bool(value.shape) or value.encoding != "none"
    kind = "tensor_feature.Tensor" if is_tensor else "scalar.Scalar"
    return {"pythonClassName": f"{_CLASS}{kind}", "tensor": about}
