"""Write episodes as an RLDS set in a TFDS folder: TFRecord files that `tfds.builder_from_directory` opens."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import encode_png
from warpdata.convert.aligning import LAST_ROW
from warpdata.convert.exporting import ExportOptions, Part, StepColumn, StepRows, StepWriter
from warpdata.convert.place import check_inside
from warpdata.convert.receipt import ConversionReceipt, Note, called, metadata_of
from warpdata.convert.rlds.read import (
    EPISODE_METADATA,
    FEATURES,
    INFO,
    RAGGED_LENGTHS,
    RAGGED_VALUES,
    STEPS,
    TASKS,
    Leaf,
    parse_features,
)
from warpdata.convert.rlds.records import MAX_RECORD_BYTES, Values, build_example, pack_record
from warpdata.episodes.collection.episodes import Episodes
from warpdata.episodes.sources.encoded import encoded_run
from warpdata.errors import LimitExceededError, SchemaMismatchError
from warpdata.timeline.meta import SignalMeta
from warpdata.timeline.ragged import join_rows

SHARD_BYTES = 256 << 20
_CLASS = "tensorflow_datasets.core.features."
_FLAGS = ("is_first", "is_last", "is_terminal")
_TASK = "task"
_PATHS = {
    "observation": ("observation/{}", "observation/{}"),
    "action": ("action", "action/{}"),
    "reward": ("reward", "{}"),
}
"""Role -> path of the only signal, and of several."""


def write(
    episodes: Episodes,
    target: str | os.PathLike[str],
    *,
    name: str | None = None,
    version: str = "1.0.0",
    shard_bytes: int = SHARD_BYTES,
    **options: Unpack[ExportOptions],
) -> ConversionReceipt:
    """Write episodes as RLDS into a new folder, the one that TFDS opens; needs no TensorFlow.

    Static items become `episode_metadata`, the static item `split` names the split of an episode (`train` without it).
    A set that was RLDS comes out with its own names and types. The times of the steps are kept in `warpdata.json`.
    An observation after the last action becomes the last step, whose action and reward are meaningless, as in other
    RLDS sets; `last_row` in the metadata of each episode states whether it is so.
    """
    kept = metadata_of(episodes.metadata, "rlds")
    kept = kept if kept.get("features") else {}
    info = dict(kept.get("info") or {})
    info |= {"name": name or info.get("name") or "warpdata", "version": info.get("version") or version}
    check_inside(str(info["name"]), os.fspath(target))
    return RldsWriter(info, kept.get("features"), shard_bytes).write(episodes, target, **options)


@dataclass(frozen=True, slots=True)
class _Feature:
    """One feature and the source of its values: a signal, a static item, either of them, or the steps themselves."""

    leaf: Leaf
    signal: str | None = None
    static: str | None = None


@dataclass(slots=True)
class _Split:
    """The files of one split, under temporary names until their number is known."""

    name: str
    counts: list[int] = field(default_factory=list)
    """Episodes in each file."""
    last_bytes: int = 0
    total_bytes: int = 0

    def file(self, folder: Path, number: int) -> Path:
        """A file under its temporary name."""
        return folder / f"{self.name}.{number}.part"


class RldsWriter(StepWriter):
    """TFRecord files of every split, a record per episode, and the two descriptions of TFDS."""

    format = "rlds"
    holds_ragged = True

    def __init__(self, info: dict[str, Any], tree: Any, shard_bytes: int) -> None:
        self._info, self._tree, self._shard_bytes = info, tree, max(1, shard_bytes)
        self.version = str(info["version"])
        self._features = (
            [] if tree is None else [_source_feature(leaf) for leaf in parse_features(tree, FEATURES)]
        )
        self._splits: dict[str, _Split] = {}

    def choose(self, rows: StepRows, _episodes: Episodes) -> None:
        """The features of the source, or those of the first episode."""
        if self._tree is None:
            self._features = _plan_features(rows)
            self._tree = _describe_features(self._features)

    def make(self, rows: StepRows, scratch: Path) -> Part:
        """The record of one episode."""
        episode, columns, steps = rows.episode, rows.columns, len(rows)
        count = steps + any(column.has_more for column in columns.values())
        lists: dict[str, Values] = {}
        used = set()
        for feature in self._features:
            name, leaf = feature.signal, feature.leaf
            if name is not None and (feature.static is None or name in columns):
                used.add(name)
                lists |= _signal_lists(leaf, columns.get(name), count, episode.id)
                if name in columns:
                    rows.notes[name] = called(_note_column(columns[name]), name, leaf.name)
            elif feature.static is not None:
                lists[leaf.path] = _static_list(leaf, episode.static.get(feature.static), count)
            else:
                lists[leaf.path] = _step_list(leaf, columns, steps, count)
        for name in columns.keys() - used:
            if columns[name].meta.role != "terminated":
                fact = f"signal {name!r} of episode {episode.id!r} is not in the first episode"
                hint = "Every episode of an RLDS set has the same features: choose them with Episodes.map."
                raise SchemaMismatchError(fact, hint=hint)
            rows.keep(name, "is_terminal" if columns[name].meta.role == "terminated" else "", decoded=False)
        data = build_example(lists)
        if len(data) > MAX_RECORD_BYTES:
            fact = f"record of episode {episode.id!r} has {len(data)} bytes (limit {MAX_RECORD_BYTES})"
            hint = "Split it first."
            raise LimitExceededError(fact, hint=hint)
        (scratch / "record").write_bytes(data)
        return Part(count, (scratch / "record", str(episode.static.get("split") or "train")))

    def add(self, part: Part) -> str:
        """Append the record to the last file of its split, or to a new one."""
        path, name = part.data
        if name not in self._splits:
            check_inside(name, str(self.out))
            self._splits[name] = _Split(name)
        split, data = self._splits[name], path.read_bytes()
        if not split.counts or split.last_bytes + len(data) > self._shard_bytes:
            split.counts.append(0)
            split.last_bytes = 0
        with open(split.file(self.out, len(split.counts) - 1), "ab") as file:
            file.write(pack_record(data))
        split.counts[-1] += 1
        split.last_bytes += len(data)
        split.total_bytes += len(data)
        return f"{name}-{sum(split.counts) - 1:06d}"

    def finish(self, episodes: Episodes, receipt: ConversionReceipt) -> None:
        """Name the files, and write the descriptions that TFDS reads."""
        listed = self._info.get("splits", [])
        known = {str(split.get("name")): split for split in listed if isinstance(split, Mapping)}
        splits = []
        for split in self._splits.values():
            total = len(split.counts)
            for number in range(total):
                name = f"{self._info['name']}-{split.name}.tfrecord-{number:05d}-of-{total:05d}"
                split.file(self.out, number).rename(self.out / name)
            splits.append(
                {
                    **known.get(split.name, {}),
                    "name": split.name,
                    "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    "shardLengths": [str(count) for count in split.counts],
                    "numBytes": str(split.total_bytes),
                }
            )
        info = {**self._info, "splits": splits, "fileFormat": "tfrecord"}
        for file, value in ((INFO, info), (FEATURES, self._tree or _describe_features([]))):
            (self.out / file).write_text(json.dumps(value, indent=2, sort_keys=True))
        super().finish(episodes, receipt)


# Features.


def _source_feature(leaf: Leaf) -> _Feature:
    """A feature of the source, from the signal or static item that was made of it."""
    if not leaf.in_steps:
        return _Feature(leaf, static=leaf.name.removeprefix(EPISODE_METADATA))
    return _Feature(leaf, leaf.name, _TASK if leaf.path in TASKS else None)


def _plan_features(rows: StepRows) -> list[_Feature]:
    """The features of a set like this episode."""
    episode, columns = rows.episode, rows.columns
    features = [
        _Feature(_signal_leaf(f"{STEPS}/{path}", columns[name]), signal=name)
        for name, path in rows.place(_PATHS).items()
        if columns[name].meta.role != "terminated" and (name != _TASK or columns[name].meta.kind != "text")
    ]
    taken = {feature.leaf.path for feature in features}
    has_task = _TASK in columns or _TASK in episode.static
    if has_task and TASKS[0] not in taken and not any(feature.signal == _TASK for feature in features):
        # A static item in one episode, a signal in another where it changes.
        features.append(_Feature(Leaf(TASKS[0], "text", "string"), _TASK, _TASK))
    for name in (*_FLAGS, "reward", "discount"):
        if f"{STEPS}/{name}" not in taken:
            dtype = "bool" if name in _FLAGS else "float32"
            features.append(_Feature(Leaf(f"{STEPS}/{name}", "tensor", dtype)))
    if LAST_ROW not in episode.static:
        features.append(_Feature(Leaf(EPISODE_METADATA + LAST_ROW, "text", "string")))
    for name, value in episode.static.items():
        # A feature cannot be a folder of others too: such an item is in warpdata.json only.
        is_folder = any(other.startswith(f"{name}/") for other in episode.static)
        if is_folder or name.startswith(f"{LAST_ROW}/"):
            continue
        if name != "split" and not any(feature.static == name for feature in features):
            path = EPISODE_METADATA + name
            is_number = isinstance(value, bool | int | float | np.generic | np.ndarray)
            array = np.asarray(value) if is_number else None
            leaf = Leaf(path, "text", "string")
            if array is not None and array.dtype.kind in "biuf":
                leaf = _tensor_leaf(path, array.dtype, array.shape)
            features.append(_Feature(leaf, static=name))
    return sorted(features, key=lambda feature: feature.leaf.path)


def _signal_leaf(path: str, column: StepColumn) -> Leaf:
    meta = column.meta
    if meta.rows is not None:
        # A FloatList has 32 bits, and values of varying length have no other encoding.
        dtype = np.dtype(np.float32) if meta.rows.dtype == np.float64 else meta.rows.dtype
        return Leaf(path, "ragged", dtype.name, meta.rows.shape)
    if meta.is_object:
        return Leaf(path, "text", "string")
    if _is_picture(meta):
        return Leaf(path, "image", meta.dtype.name, meta.shape if len(meta.shape) == 3 else (*meta.shape, 1))
    return _tensor_leaf(path, meta.dtype, meta.shape)


def _is_picture(meta: SignalMeta) -> bool:
    """Whether frames become PNG pictures; RGBA and 16-bit colour are numbers, which every reader decodes exactly."""
    return meta.kind == "image" and (
        meta.shape[2:] in ((), (1,)) or (meta.shape[2:] == (3,) and meta.dtype == np.uint8)
    )


def _tensor_leaf(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Leaf:
    """Numbers; those of 64 bits are stored as bytes, because a FloatList has 32."""
    return Leaf(path, "tensor", dtype.name, shape, "bytes" if dtype == np.float64 else "none")


def _describe_features(features: Sequence[_Feature]) -> dict[str, Any]:
    """features.json for these features."""
    tree: dict[str, Any] = {}
    for feature in features:
        node = tree
        *above, last = feature.leaf.path.split("/")
        for name in above:
            node = node.setdefault(name, {})
        node[last] = feature.leaf
    steps = tree.pop(STEPS, {})
    described = _describe_node(tree)
    described["featuresDict"]["features"][STEPS] = {
        "pythonClassName": f"{_CLASS}dataset_feature.Dataset",
        "sequence": {"feature": _describe_node(steps), "length": "-1"},
    }
    return described


def _describe_node(node: Leaf | dict[str, Any]) -> dict[str, Any]:
    if not isinstance(node, Leaf):
        features = {name: _describe_node(child) for name, child in node.items()}
        return {
            "pythonClassName": f"{_CLASS}features_dict.FeaturesDict",
            "featuresDict": {"features": features},
        }
    if node.kind == "text":
        return {"pythonClassName": f"{_CLASS}text_feature.Text", "text": {}}
    about: dict[str, Any] = {"dtype": node.dtype, "shape": {}}
    if node.shape:
        about["shape"] = {"dimensions": [str(side) for side in node.shape]}
    if node.kind == "image":
        return {"pythonClassName": f"{_CLASS}image_feature.Image", "image": about | {"encodingFormat": ""}}
    if node.kind == "ragged":
        inner = {"pythonClassName": f"{_CLASS}tensor_feature.Tensor", "tensor": about | {"encoding": "none"}}
        sequence = {"feature": inner, "length": "-1"}
        return {"pythonClassName": f"{_CLASS}sequence_feature.Sequence", "sequence": sequence}
    # A Scalar of TFDS ignores the encoding.
    kind = "tensor_feature.Tensor" if node.shape or node.encoding != "none" else "scalar.Scalar"
    return {"pythonClassName": f"{_CLASS}{kind}", "tensor": about | {"encoding": node.encoding}}


# Values.


def _signal_lists(leaf: Leaf, column: StepColumn | None, rows: int, episode_id: str) -> dict[str, Values]:
    """The lists of a signal, with empty rows at the end up to `rows`."""
    if column is None:
        return {} if leaf.kind == "ragged" else {leaf.path: Values("nothing")}
    if (leaf.kind == "ragged") != (column.meta.rows is not None):
        raise SchemaMismatchError(
            f"signal {column.name!r} of episode {episode_id!r}: expected {leaf.kind} as in the first episode, "
            f"got {column.meta.kind}"
        )
    if column.meta.rows is not None:
        flat, offsets = join_rows(_join(column), column.meta.rows)
        lengths = np.append(np.diff(offsets), np.zeros(rows - len(offsets) + 1, np.int64))
        return {
            f"{leaf.path}/{RAGGED_VALUES}": _pack_numbers(leaf, flat),
            f"{leaf.path}/{RAGGED_LENGTHS}": Values("ints", numbers=lengths),
        }
    if leaf.kind == ("tensor" if column.meta.is_object else "text"):
        raise SchemaMismatchError(
            f"signal {column.name!r} of episode {episode_id!r}: expected {leaf.kind} as in the first episode, "
            f"got {column.meta.kind}"
        )
    if column.meta.is_object:
        texts = [_encode_text(value) for block in column.blocks() for value in block]
        return {leaf.path: Values("bytes", texts + [b""] * (rows - len(texts)))}
    if leaf.kind == "image" or (leaf.kind == "unknown" and column.meta.kind == "image"):
        pictures = list(_encode_pictures(column))
        blank = [encode_png(np.zeros(column.meta.shape, column.meta.dtype))] * (rows - len(pictures))
        return {leaf.path: Values("bytes", pictures + blank)}
    values = _join(column)
    if -1 not in leaf.shape and values.shape[1:] != leaf.shape:
        raise SchemaMismatchError(
            f"signal {column.name!r} of episode {episode_id!r}: expected rows of {list(leaf.shape)} as in the "
            f"first episode, got {list(values.shape[1:])}"
        )
    if len(values) < rows:
        values = np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]), values.dtype)])
    return {leaf.path: _pack_numbers(leaf, values)}


def _join(column: StepColumn) -> NDArray[Any]:
    return np.concatenate([np.asarray(block) for block in column.blocks()])


def _encode_pictures(column: StepColumn) -> Iterator[bytes]:
    """JPEG and PNG pictures of a camera as they are; other frames as PNG."""
    run = column.pictures("mjpeg", "png")
    if run is not None:
        yield from run.packets()
        return
    for block in column.blocks():
        yield from map(encode_png, block)


def _note_column(column: StepColumn) -> Note:
    note = column.note(decoded=False)
    if column.meta.rows is not None and column.meta.rows.dtype == np.float64:
        return replace(note, how="retyped", why="float64 as float32: the target has no other")
    is_encoded = _is_picture(column.meta) and column.is_exact and encoded_run(column.signal) is not None
    if is_encoded and column.pictures("mjpeg", "png") is None:
        return replace(note, how="reencoded", why="decoded, and stored as PNG")
    return note


def _pack_numbers(leaf: Leaf, values: NDArray[Any]) -> Values:
    dtype = leaf.numpy(FEATURES)
    if leaf.encoding in ("bytes", "zlib"):
        raw = [np.ascontiguousarray(row, dtype).tobytes() for row in values]
        return Values("bytes", [zlib.compress(row) for row in raw] if leaf.encoding == "zlib" else raw)
    flat = np.ascontiguousarray(values).reshape(-1)
    if dtype.kind in "iub":
        return Values("ints", numbers=flat.view(np.int64) if dtype == np.uint64 else flat.astype(np.int64))
    return Values("floats", numbers=flat.astype(np.float32))


def _static_list(leaf: Leaf, value: Any, rows: int) -> Values:
    """The list of a static item."""
    if value is None and leaf.kind != "text":
        return Values("nothing")
    if leaf.kind != "tensor":
        many = value if isinstance(value, list) and leaf.kind != "text" else [value]
        texts = [_encode_text(item) for item in many]
        return Values("bytes", texts * rows if leaf.in_steps else texts)
    dtype = leaf.numpy(FEATURES)
    try:
        array = np.asarray(value, dtype)
        is_same = dtype.kind not in "iub" or np.array_equal(array, np.asarray(value))
    except (TypeError, ValueError, OverflowError):
        is_same = False
    if not is_same or (-1 not in leaf.shape and array.size != math.prod(leaf.shape)):
        raise SchemaMismatchError(
            f"static item {leaf.path!r}: expected {leaf.dtype}{list(leaf.shape)} as in the first episode, "
            f"got {value!r:.40}"
        )
    return _pack_numbers(leaf, array.reshape(1, -1))


def _encode_text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return b"" if value is None else text.encode("utf-8", "surrogateescape")


def _step_list(leaf: Leaf, columns: Mapping[str, StepColumn], steps: int, rows: int) -> Values:
    """A list that RLDS requires for every step and the episode has in another form, or not at all."""
    if leaf.path == EPISODE_METADATA + LAST_ROW:
        return Values("bytes", [b"observation" if rows > steps else b"step"])
    if leaf.name not in _FLAGS:
        return Values("floats", numbers=np.full(rows, leaf.name == "discount", np.float32))
    numbers = np.zeros(rows, np.int64)
    if leaf.name == "is_first":
        numbers[:1] = 1
    elif leaf.name == "is_last":
        numbers[-1:] = 1
    else:
        ended = next((column for column in columns.values() if column.meta.role == "terminated"), None)
        if (
            ended is not None and steps
        ):  # with an observation after the last step, what a step led to is terminal
            numbers[rows - steps :] = np.asarray(ended.rows(0, steps)).reshape(steps, -1)[:, 0] != 0
    return Values("ints", numbers=numbers)
