"""RLDS sets as episodes: features.json describes the lists of a record, and one record is one episode.

A record is read whole when its episode is opened, and cached while it is in use.
"""

from __future__ import annotations

import contextlib
import math
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.arrays import dtype_named, dtype_of
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.convert.aligning import LAST_ROW, stated_rate
from warpdata.convert.place import Place, check_inside
from warpdata.convert.receipt import RECEIPT_FILE
from warpdata.convert.rlds.records import ArrayRecordFile, TFRecordFile, Values, is_tfrecord, parse_example
from warpdata.convert.stepped import EpisodeColumn, Parts, Rows, SteppedEpisodes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    UnsupportedDtypeError,
    UnsupportedVersionError,
    nearest,
    require_word,
)
from warpdata.formats.episodedir.pictures import is_still
from warpdata.timeline.meta import Role
from warpdata.timeline.ragged import as_objects, split_rows

INFO, FEATURES = "dataset_info.json", "features.json"
STEPS = "steps"
EPISODE_METADATA = "episode_metadata/"
RAGGED_VALUES, RAGGED_LENGTHS = "ragged_flat_values", "ragged_row_lengths_0"
TASKS = (
    f"{STEPS}/language_instruction",
    f"{STEPS}/observation/natural_language_instruction",
    f"{EPISODE_METADATA}language_instruction",
)
"""Lists that hold the instruction of the robot; the first one present counts."""
"""Limit for rows of several lengths, padded to the longest."""

LastRow = Literal["step", "observation"]

_CACHED_BYTES = 256 << 20
_TRUSTED_EPISODES = 1 << 20
"""A file with more episodes in its description is opened before its episodes are named."""
_MAX_DEPTH, _MAX_DIGITS, _MAX_DIMENSIONS = 32, 10, 16
_DEFLATE_RATIO = 1040
"""Deflate cannot expand by more."""
_TFRECORD = re.compile(r"\.tfrecord(\b|[-.])|\.tfrecords?$")
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_STEP_LISTS = ("is_first", "is_last", "step_type", "reward", "discount", "rewards", "discounts")
"""Lists with one value per step, in sets without a description."""
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("reward", "rewards"), "reward"),
    "is_terminal": "terminated",
    "truncated": "truncated",
    **dict.fromkeys(("is_first", "is_last", "discount", "discounts", "step_type"), "other"),
}


def matches(place: Place) -> bool:
    """Whether it is a TFDS folder, one above it with a single version, or TFRecord files."""
    if place.is_file:
        return _TFRECORD.search(place.name) is not None or is_tfrecord(place.head(4096))
    return _find_version(place) is not None or any(_TFRECORD.search(name) for name in place.children())


def read(
    source: Any,
    *,
    split: str | Sequence[str] | None = None,
    fps: float | None = None,
    last_row: LastRow | None = None,
) -> Episodes:
    """The episodes of an RLDS set; an episode is read when it is opened.

    `split` keeps only these splits. `fps` is the rate of the steps, which RLDS does not have. A feature with one value
    for a whole episode becomes a static item, an instruction the static item `task` unless it changes within the
    episode. The action, reward and discount of a last step may be meaningless, which RLDS does not record: with
    `last_row="observation"` exports leave that action out; with `step`, the default unless the set itself states it,
    the action counts. No value is changed by it.
    """
    if last_row is not None:
        require_word("last_row", last_row, get_args(LastRow))
    splits = (split,) if isinstance(split, str) else None if split is None else tuple(split)
    return Episodes(RldsEpisodes(Place.of(source), splits, fps, last_row))


def _find_version(place: Place) -> str | None:
    """Prefix of the folder with the description: this one, or the only one below."""
    if place.exists(INFO):
        return ""
    names = [name for name in place.names(folders_deep=3) if name.endswith(f"/{INFO}")]
    return names[0].removesuffix(INFO) if len(names) == 1 else None


# Features.


@dataclass(frozen=True, slots=True)
class Leaf:
    """One feature: the path of its list in an Example, and the type of its values."""

    path: str
    """As in the Example: `steps/observation/state`."""
    kind: Literal["tensor", "image", "text", "ragged", "unknown"]
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of one value; -1 where it is unknown."""
    encoding: str = "none"
    is_raw_step: bool = False
    """It has a value per step although its path does not start with `steps/`, in a set without features.json."""

    @property
    def in_steps(self) -> bool:
        """Whether it has a value per step."""
        return self.is_raw_step or self.path.startswith(STEPS + "/")

    @property
    def name(self) -> str:
        """Its name as a signal."""
        return self.path.removeprefix(STEPS + "/")

    def numpy(self, path: str) -> np.dtype[Any]:
        """Its element type."""
        if self.dtype == "bfloat16":
            return dtype_named("bf16").dtype
        try:
            return dtype_of(np.dtype(self.dtype)).dtype
        except (TypeError, ValueError):
            fact = f"unsupported type {self.dtype!r} of feature {self.path!r}"
            raise UnsupportedDtypeError(fact, path=path) from None


def parse_features(tree: Any, path: str) -> list[Leaf]:
    """All features of a features.json, in its order."""
    leaves = list(_walk(tree, "", path, 0))
    if not any(leaf.in_steps for leaf in leaves):
        raise CorruptLayoutError("features have no 'steps': the set has no episodes", path=path)
    return leaves


def _walk(node: Any, name: str, path: str, depth: int) -> Iterator[Leaf]:
    if not isinstance(node, Mapping) or depth > _MAX_DEPTH:
        raise CorruptLayoutError(f"feature {name!r} is not described", path=path)
    if isinstance(inner := node.get("featuresDict"), Mapping):
        features = inner.get("features", {})
        if not isinstance(features, Mapping):
            raise CorruptLayoutError(f"feature {name!r} is not described", path=path)
        for key, child in features.items():
            yield from _walk(child, f"{name}/{key}" if name else str(key), path, depth + 1)
    elif isinstance(inner := node.get("sequence") or node.get("dataset"), Mapping):
        leaves = _walk(inner.get("feature", {}), name, path, depth + 1)
        yield from leaves if name == STEPS else (_in_sequence(leaf, inner) for leaf in leaves)
    elif isinstance(inner := node.get("image"), Mapping):
        yield Leaf(name, "image", str(inner.get("dtype", "uint8")), _parse_shape(inner, name, path))
    elif "text" in node:
        yield Leaf(name, "text", "string")
    elif "classLabel" in node:
        yield Leaf(name, "tensor", "int64")
    elif isinstance(inner := node.get("tensor") or node.get("scalar"), Mapping):
        dtype, shape = str(inner.get("dtype", "float32")), _parse_shape(inner, name, path)
        kind: Literal["text", "tensor"] = "text" if dtype in ("string", "object") else "tensor"
        yield Leaf(name, kind, dtype, shape, str(inner.get("encoding", "none")).lower())
    else:
        yield Leaf(name, "unknown")


def _in_sequence(leaf: Leaf, sequence: Mapping[str, Any]) -> Leaf:
    """A feature inside a sequence: of a fixed length it has one more dimension, else its rows differ."""
    length = str(sequence.get("length", "-1"))
    if leaf.kind != "tensor":
        return replace(leaf, kind="unknown")
    if length.isdecimal() and len(length) <= _MAX_DIGITS:
        return replace(leaf, shape=(int(length), *leaf.shape))
    return replace(leaf, kind="ragged")


def _parse_shape(node: Mapping[str, Any], name: str, path: str) -> tuple[int, ...]:
    stated = node.get("shape", {})
    sides = stated.get("dimensions", []) if isinstance(stated, Mapping) else None
    try:
        shape = tuple(int(side) for side in sides)  # type: ignore[union-attr]
    except (TypeError, ValueError, OverflowError):
        raise CorruptLayoutError(f"corrupted shape of feature {name!r}", path=path) from None
    if any(side < -1 or side > 1 << 31 for side in shape) or len(shape) > _MAX_DIMENSIONS:
        raise CorruptLayoutError(f"shape of feature {name!r} out of range: {list(shape)}", path=path)
    return shape


def _infer_features(example: Mapping[str, Values]) -> list[Leaf]:
    """Features of a set without features.json, from one of its Examples: flat rows of its lists."""
    is_raw = not any(path.startswith(STEPS + "/") for path in example)
    steps = _infer_steps(example, "" if is_raw else f"{STEPS}/")
    leaves = []
    for path, values in example.items():
        in_steps = path.startswith(STEPS + "/") or (is_raw and steps > 1 and len(values) >= steps)
        in_steps = in_steps and not (steps and len(values) % steps)
        row_size = len(values) // steps if in_steps and steps else max(1, len(values))
        if values.kind == "bytes":
            leaves.append(Leaf(path, "unknown", is_raw_step=in_steps))
        elif values.kind != "nothing":
            dtype = "float32" if values.kind == "floats" else "int64"
            shape = () if row_size == 1 else (row_size,)
            leaves.append(Leaf(path, "tensor", dtype, shape, is_raw_step=in_steps))
    return leaves


def _infer_steps(example: Mapping[str, Values], prefix: str) -> int:
    """Length of a list with one value or picture per step; else the most frequent length."""
    for name in _STEP_LISTS:
        values = example.get(prefix + name)
        if values is not None and len(values):
            return len(values)
    pictures = [
        len(values)
        for values in example.values()
        if values.kind == "bytes" and len(values) > 1 and is_still(bytes(values.entries[0][:16]))
    ]
    lengths = pictures or [len(values) for values in example.values() if len(values) > 1]
    return max(set(lengths), key=lambda length: (lengths.count(length), length), default=0)


# Values.


def _read_numbers(leaf: Leaf, values: Values, steps: int, path: str) -> NDArray[Any]:
    """Rows of a feature of numbers, in its type and shape."""
    dtype, name = leaf.numpy(path), leaf.path
    if values.kind == "bytes":
        return _read_packed(leaf, values, dtype, path)
    count, shape = len(values), leaf.shape
    known = math.prod(side for side in shape if side >= 0) * steps
    if shape.count(-1) == 1 and known and count % known == 0:
        shape = tuple(count // known if side < 0 else side for side in shape)
    if -1 in shape or math.prod(shape) * steps != count:
        fact = f"feature {name!r} has {count} numbers for {steps} steps of {list(leaf.shape)}"
        raise CorruptLayoutError(fact, path=path)
    if dtype.kind in "iub" and values.kind == "floats":
        raise CorruptLayoutError(f"feature {name!r} is {leaf.dtype} and holds floats", path=path)
    numbers = (
        values.numbers.view(np.uint64) if dtype == np.uint64 else values.numbers.astype(dtype, copy=False)
    )
    is_narrow = dtype.kind in "iub" and dtype.itemsize < 8
    if is_narrow and not np.array_equal(numbers.astype(np.int64), values.numbers):
        raise CorruptLayoutError(f"number of feature {name!r} out of range of {leaf.dtype}", path=path)
    return numbers.reshape(steps, *shape)


def _read_packed(leaf: Leaf, values: Values, dtype: np.dtype[Any], path: str) -> NDArray[Any]:
    """Numbers that are stored as bytes, one entry per row, possibly compressed."""
    if -1 in leaf.shape:
        fact = f"feature {leaf.path!r} is {leaf.encoding} of unknown shape {list(leaf.shape)}"
        raise UnsupportedDtypeError(fact, path=path)
    size = math.prod(leaf.shape) * dtype.itemsize
    rows: list[bytes | memoryview] = []
    for row, entry in enumerate(values.entries):
        data: bytes | memoryview = entry
        if leaf.encoding == "zlib":
            data, stream = b"", zlib.decompressobj()
            with contextlib.suppress(zlib.error):  # more than deflate can expand to is not even tried
                data = stream.decompress(entry, size + 1) if size <= _DEFLATE_RATIO * len(entry) else b""
            data = data if stream.eof else b""
        if len(data) != size:
            fact = f"row {row} of feature {leaf.path!r} does not hold {leaf.dtype}{list(leaf.shape)}"
            raise CorruptLayoutError(fact, path=path)
        rows.append(data)
    return np.frombuffer(b"".join(rows), dtype).reshape(len(rows), *leaf.shape)


def _split(leaf: Leaf, values: Values, lengths: NDArray[np.int64], steps: int, path: str) -> NDArray[Any]:
    """The value of each step, which differ in length."""
    if len(lengths) != steps:
        raise CorruptLayoutError(f"feature {leaf.path!r} has {len(lengths)} rows, {steps} steps", path=path)
    if lengths.dtype.kind != "i" or (steps and int(lengths.min()) < 0):
        raise CorruptLayoutError(f"invalid row lengths of feature {leaf.path!r}", path=path)
    total = sum(lengths.tolist())
    if total > len(values):  # a number takes one entry or more
        raise CorruptLayoutError(f"{len(values)} numbers for {total} rows of {leaf.path!r}", path=path)
    flat = _read_numbers(leaf, values, total, path)
    return split_rows(flat, np.cumsum([0, *lengths], dtype=np.int64))


# Episodes.


class _Shard(NamedTuple):
    split: str
    file: str
    episodes: int | None
    """Number of episodes in the description."""


class RldsEpisodes(SteppedEpisodes):
    """The episodes of a TFDS folder, or of TFRecord files without a description."""

    def __init__(
        self, place: Place, splits: tuple[str, ...] | None, fps: float | None, last_row: LastRow | None = None
    ) -> None:
        self._place, self._splits, self._fps, self._last_row = place, splits, fps, last_row
        self._receipt_file = f"{self._prefix or ''}{RECEIPT_FILE}"
        self._info: dict[str, Any] = self.metadata["rlds"]["info"]
        features = self.metadata["rlds"]["features"]
        self._leaves = None if features is None else parse_features(features, f"{self.name}/{FEATURES}")
        self._lock = ThreadLock()
        self._records: OrderedDict[int, ExampleRecord] = OrderedDict()
        self._files: dict[int, TFRecordFile | ArrayRecordFile] = {}
        _ = self.ids  # a place without such a set is refused now

    @cached_property
    def _prefix(self) -> str | None:
        return None if self._place.is_file else _find_version(self._place)

    def _read_json(self, name: str) -> dict[str, Any] | None:
        path = f"{self._prefix}{name}"
        is_there = self._prefix is not None and self._place.exists(path)
        return self._place.read_json(path) if is_there else None

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The two descriptions, as they are."""
        return {"rlds": {"info": self._read_json(INFO) or {}, "features": self._read_json(FEATURES)}}

    @cached_property
    def _shards(self) -> list[_Shard]:
        """The files in their order."""
        shards = self._described_shards()
        if not self._info:
            files = [""]
            if not self._place.is_file:
                files = [name for name in self._place.children() if _TFRECORD.search(name)]
            if not files:
                raise BadMagicError(f"folder has neither a {INFO} nor TFRecord files", path=self.name)
            shards = [_Shard("train", name, None) for name in files]
        if self._splits is None:
            return shards
        known = list(dict.fromkeys(shard.split for shard in shards))
        for wanted in self._splits:
            if wanted not in known:
                raise ValueError(f"no split {wanted!r} in {self.name}.{nearest(wanted, known)}")
        return [shard for shard in shards if shard.split in self._splits]

    def _described_shards(self) -> list[_Shard]:
        form, path = self._info.get("fileFormat", "tfrecord"), f"{self.name}/{INFO}"
        if form not in ("tfrecord", "array_record"):
            fact = f"unsupported file format {form!r} (known: tfrecord, array_record)"
            raise UnsupportedVersionError(fact, path=self.name)
        splits = self._info.get("splits", [])
        if not isinstance(splits, list):
            raise CorruptLayoutError("splits are not a list", path=path)
        shards = []
        for split in splits:
            try:
                name, template = str(split["name"]), str(split.get("filepathTemplate", _TEMPLATE))
                counts = [int(count) for count in split.get("shardLengths", [])]
            except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
                counts = [-1]
            if min(counts, default=0) < 0:
                raise CorruptLayoutError("corrupted description of a split", path=path)
            for number, count in enumerate(counts):
                words = {
                    "{DATASET}": str(self._info.get("name", "")),
                    "{SPLIT}": name,
                    "{FILEFORMAT}": form,
                    "{SHARD_X_OF_Y}": f"{number:05d}-of-{len(counts):05d}",
                    "{SHARD_INDEX}": f"{number:05d}",
                    "{NUM_SHARDS}": f"{len(counts):05d}",
                }
                file = template
                for word, value in words.items():
                    file = file.replace(word, value)
                shards.append(_Shard(name, check_inside(f"{self._prefix}{file}", self.name), count))
        if not shards and self._info:
            raise CorruptLayoutError("no split has a file", path=path)
        return shards

    def _open_file(self, number: int) -> TFRecordFile | ArrayRecordFile:
        file = self._files.get(number)
        if file is None:
            shard = self._shards[number]
            if self._info.get("fileFormat") == "array_record":
                file = ArrayRecordFile(str(self._place.inside(shard.file)))
            else:
                file = TFRecordFile(self._place.open(shard.file))
            if shard.episodes is not None and file.count != shard.episodes:
                fact = f"episode count mismatch: expected {shard.episodes} as in {INFO}, got {file.count}"
                raise CorruptLayoutError(fact, path=f"{self.name}/{shard.file}")
            self._files[number] = file
        return file

    @cached_property
    def _counts(self) -> list[int]:
        """Number of episodes in each file."""
        return [
            self._open_file(number).count
            if shard.episodes is None or shard.episodes > _TRUSTED_EPISODES
            else shard.episodes
            for number, shard in enumerate(self._shards)
        ]

    @cached_property
    def ids(self) -> Sequence[str]:
        """The split and the number in it."""
        totals: dict[str, int] = {}
        for shard, count in zip(self._shards, self._counts, strict=True):
            totals[shard.split] = totals.get(shard.split, 0) + count
        return [f"{split}-{number:06d}" for split, count in totals.items() for number in range(count)]

    def record(self, position: int) -> ExampleRecord:
        """The Example of an episode; the last ones are cached."""
        with self._lock:
            record = self._records.get(position)
            if record is not None:
                self._records.move_to_end(position)
                return record
            ends = np.cumsum(self._counts)
            number = int(np.searchsorted(ends, position, side="right"))
            shard = self._shards[number]
            path = f"{self.name}/{shard.file}".rstrip("/") + f" (episode {self.ids[position]})"
            data = self._open_file(number).read(position - int(ends[number]) + self._counts[number])
            record = ExampleRecord(parse_example(data, path), len(data), path, shard.split, self._leaves)
            self._records[position] = record
            while len(self._records) > 1 and sum(one.size for one in self._records.values()) > _CACHED_BYTES:
                self._records.popitem(last=False)
            return record

    def parts(self, position: int) -> Parts:
        """The signals of an episode."""
        record = self.record(position)
        static: dict[str, Any] = {"split": record.split}
        columns: dict[str, EpisodeColumn] = {}
        task_path, task = record.find_task()
        for leaf in record.leaves:
            if not leaf.in_steps:
                static[leaf.name.removeprefix(EPISODE_METADATA)] = record.read_value(leaf)
            elif leaf.path != task_path and record.has_values(leaf):
                role = "event" if leaf.kind == "text" else _choose_role(leaf.name)
                columns[leaf.name] = EpisodeColumn(self._open_rows(position, leaf, record), role)
        if task_path is not None:
            static["task"] = task
        meta: dict[str, Any] = {"rlds": {"split": record.split, "task": task_path}}
        if (self._last_row or static.get(LAST_ROW)) == "observation":
            meta[LAST_ROW] = "observation"
        fps = self._fps or stated_rate(static.get("fps"))
        return Parts(self.ids[position], record.steps, columns, static, meta, fps, place=record.path)

    def _open_rows(self, position: int, leaf: Leaf, record: ExampleRecord) -> Rows:
        read = partial(self._read_rows, position, leaf)
        if leaf.kind == "ragged":
            first = record.read_array(leaf)[:1]
            shape = first[0].shape[1:] if len(first) else leaf.shape
            return Rows(record.steps, leaf.numpy(record.path), shape, read, "ragged")
        if leaf.kind not in ("image", "text", "unknown"):
            array = record.read_array(leaf)
            return Rows(record.steps, array.dtype, array.shape[1:], read)
        rows = Rows.objects(record.steps, "text" if leaf.kind == "text" else "bytes", read)
        if not record.has_pictures(leaf):
            return rows
        return rows.as_pictures(has_axis=len(leaf.shape) == 3 and leaf.shape[2] == 1)

    def _read_rows(self, position: int, leaf: Leaf, start: int, stop: int) -> NDArray[Any]:
        record = self.record(position)
        if leaf.kind not in ("image", "text", "unknown"):
            return record.read_array(leaf)[start:stop]
        entries = record.read_entries(leaf, start, stop)
        return as_objects(map(_decode, entries) if leaf.kind == "text" else entries)


def _choose_role(name: str) -> Role:
    if name.partition("/")[0] in ("action", "actions", "action_dict"):
        return "action"
    return _ROLES.get(name, "observation")


class ExampleRecord:
    """One episode: its lists, and arrays made of them on use."""

    def __init__(
        self, lists: dict[str, Values], wire_bytes: int, path: str, split: str, leaves: list[Leaf] | None
    ) -> None:
        self._lists, self._wire_bytes, self.path, self.split = lists, wire_bytes, path, split
        self.leaves = _infer_features(lists) if leaves is None else leaves
        self._arrays: dict[str, NDArray[Any]] = {}
        self.steps = self._count_steps()

    def _list(self, path: str) -> Values:
        return self._lists.get(path, Values("nothing"))

    @property
    def size(self) -> int:
        """Bytes in memory: the record, its integers, which are longer than their bytes, and arrays."""
        integers = sum(values.numbers.nbytes for values in self._lists.values() if values.kind == "ints")
        return self._wire_bytes + integers + sum(array.nbytes for array in self._arrays.values())

    def _count_steps(self) -> int:
        """Number of rows of the lists that have a known row size; all must agree."""
        counts: dict[str, int] = {}
        for leaf in self.leaves:
            values = self._list(leaf.path)
            if not leaf.in_steps or values.kind == "nothing" or leaf.kind == "ragged":
                continue
            size = 1 if values.kind == "bytes" else math.prod(leaf.shape)
            if size > 0 and (values.kind == "bytes" or -1 not in leaf.shape) and len(values):
                counts[leaf.path] = len(values) // size
        if not counts and not any(leaf.in_steps for leaf in self.leaves):
            fact = f"TFRecords of single values, not of episodes: each has {', '.join(sorted(self._lists))}"
            hint = "A record of RLDS is an episode, with a value for each step in every feature."
            raise BadMagicError(fact, path=self.path, hint=hint)
        steps = counts.get(f"{STEPS}/is_first") or next(iter(counts.values()), 0)
        for path, count in counts.items():
            if count not in (0, steps):
                raise CorruptLayoutError(f"{count} rows of {path!r}, {steps} steps", path=self.path)
        return steps

    def has_values(self, leaf: Leaf) -> bool:
        """Whether the episode has values of a feature; empty texts and rows are values."""
        path = f"{leaf.path}/{RAGGED_VALUES}" if leaf.kind == "ragged" else leaf.path
        return len(self._list(path)) > 0 or (leaf.kind in ("text", "ragged") and self.steps > 0)

    def has_pictures(self, leaf: Leaf) -> bool:
        """Whether the values are JPEG or PNG pictures."""
        values = self._list(leaf.path)
        is_bytes = values.kind == "bytes" and len(values) > 0 and leaf.kind in ("image", "unknown")
        return is_bytes and is_still(bytes(values.entries[0][:16]))

    def read_entries(self, leaf: Leaf, start: int, stop: int) -> list[bytes]:
        """Entries of a list of bytes; an empty list stands for an empty entry in every step."""
        values = self._list(leaf.path)
        if len(values) and values.kind != "bytes":
            raise CorruptLayoutError(f"{leaf.path!r} holds numbers", path=self.path)
        entries = values.entries[start:stop] if len(values) else [b""] * (stop - start)
        return [bytes(entry) for entry in entries]

    def read_array(self, leaf: Leaf) -> NDArray[Any]:
        """All rows of a feature of numbers."""
        array = self._arrays.get(leaf.path)
        if array is not None:
            return array
        if leaf.kind == "ragged":
            values = self._list(f"{leaf.path}/{RAGGED_VALUES}")
            lengths = self._list(f"{leaf.path}/{RAGGED_LENGTHS}").numbers
            array = _split(leaf, values, lengths, self.steps, self.path)
        else:
            values = self._list(leaf.path)
            array = _read_numbers(leaf, values, self.steps if leaf.in_steps else 1, self.path)
            if values.kind == "ints" and array.itemsize < values.numbers.itemsize:
                self._lists[leaf.path] = Values("ints", numbers=array.reshape(-1))  # frees the wide ones
        self._arrays[leaf.path] = array
        return array

    def read_value(self, leaf: Leaf) -> Any:
        """Value of a feature of the whole episode: a number, a text, or a list."""
        values = self._list(leaf.path)
        if not len(values):
            return "" if leaf.kind == "text" else None
        if values.kind == "bytes" and leaf.kind != "tensor":
            texts = [_decode(entry) for entry in values.entries]
            return texts[0] if len(texts) == 1 else texts
        return self.read_array(leaf)[0].tolist()

    def find_task(self) -> tuple[str | None, str]:
        """Path of the list that holds the instruction, and the instruction; None if it changes."""
        for path in TASKS:
            values = self._list(path)
            if values.kind == "bytes" and values.entries:
                is_same = len({bytes(entry) for entry in values.entries}) == 1
                return (path, _decode(values.entries[0])) if is_same else (None, "")
        return None, ""


def _decode(entry: bytes | memoryview) -> str:
    return bytes(entry).decode("utf-8", "surrogateescape")
