"""Open RLDS sets as episodes: one record is one episode, read whole when it is opened and kept while it is in use."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.jsontext import parse_json_object
from warpdata.bytekit.lazy import cached_property
from warpdata.bytekit.process.locks import ThreadLock
from warpdata.convert.aligning import LAST_ROW, stated_rate
from warpdata.convert.place import Place, check_inside
from warpdata.convert.receipt import MAX_DOCUMENT_BYTES, RECEIPT_FILE
from warpdata.convert.rlds.example import Values, parse_example
from warpdata.convert.rlds.features import (
    RAGGED_LENGTHS,
    RAGGED_VALUES,
    STEPS,
    Leaf,
    inferred,
    leaves_of,
    numbers_of,
    padded,
    rows_of,
)
from warpdata.convert.rlds.records import ArrayRecordFile, RecordFile, TFRecordFile, begins_with_record
from warpdata.convert.stepped import EpisodeColumn, Parts, PictureRows, Rows, SteppedEpisodes
from warpdata.episodes.collection.episodes import Episodes
from warpdata.errors import (
    BadMagicError,
    CorruptLayoutError,
    FormatError,
    UnsupportedVersionError,
    nearest,
)
from warpdata.formats.episodedir.pictures import is_still
from warpdata.timeline.meta import Role

INFO, FEATURES = "dataset_info.json", "features.json"
EPISODE_METADATA = "episode_metadata/"
TASKS = (
    f"{STEPS}/language_instruction",
    f"{STEPS}/observation/natural_language_instruction",
    f"{EPISODE_METADATA}language_instruction",
)
"""Where sets keep what the robot was told, the first that there is counts."""

LastRow = Literal["step", "observation"]

_MAX_JSON = 64 << 20
_HEAD_BYTES = 4096
_KEPT_BYTES = 256 << 20
_BELIEVED_EPISODES = 1 << 20
"""A file that is said to have more is looked at before its episodes are named."""
_TFRECORD = re.compile(r"\.tfrecord(\b|[-.])|\.tfrecords?$")
_OTHERS = ("is_first", "is_last", "discount", "discounts", "step_type")


def matches(place: Place) -> bool:
    """Whether it is a TFDS folder, one above it with a single version, or TFRecord files."""
    if place.is_file:
        return _TFRECORD.search(place.name) is not None or begins_with_record(place.head(_HEAD_BYTES))
    return _version_below(place) is not None or any(_TFRECORD.search(name) for name in place.children())


def read(
    source: Any,
    *,
    split: str | Sequence[str] | None = None,
    fps: float | None = None,
    last_row: LastRow | None = None,
) -> Episodes:
    """The episodes of an RLDS set; an episode is read when it is opened.

    `split` keeps only these splits. `fps` is the rate of the steps, which RLDS does not have. What has one value for a
    whole episode becomes a static item, an instruction the static item `task` unless it changes within the episode. The
    action, reward and discount of a last step may mean nothing, and only who made the set knows. `last_row` says it:
    `observation` where they do, so that exports leave that action out; `step`, the default unless the set itself tells,
    where the action counts. No value is changed by it.
    """
    if last_row is not None and last_row not in get_args(LastRow):
        known = get_args(LastRow)
        raise ValueError(
            f"last_row is one of {', '.join(known)}, not {last_row!r}.{nearest(str(last_row), known)}"
        )
    splits = (split,) if isinstance(split, str) else None if split is None else tuple(split)
    return Episodes(RldsEpisodes(Place.of(source), splits, fps, last_row))


def _version_below(place: Place) -> str | None:
    """The folder with the description, as a prefix of names: here, or in a folder with one version below."""
    if place.exists(INFO):
        return ""
    found = [name for name in place.names(folders_deep=3) if name.endswith(f"/{INFO}")]
    return found[0].removesuffix(INFO) if len(found) == 1 else None


class _Shard(NamedTuple):
    split: str
    file: str
    episodes: int | None
    """How many episodes the description promises."""


class RldsEpisodes(SteppedEpisodes):
    """The episodes of a TFDS folder, or of TFRecord files without a description."""

    def __init__(
        self, place: Place, splits: tuple[str, ...] | None, fps: float | None, last_row: LastRow | None = None
    ) -> None:
        self._place, self._splits, self._fps, self._last_row = place, splits, fps, last_row
        self._lock = ThreadLock()
        self._records: OrderedDict[int, ParsedRecord] = OrderedDict()
        _ = self.ids  # what is no such set is told at once

    @property
    def name(self) -> str:
        """Where it lies."""
        return self._place.name

    @cached_property
    def _prefix(self) -> str | None:
        return None if self._place.is_file else _version_below(self._place)

    def own_document(self) -> bytes | None:
        """The document that warpdata writes beside the description."""
        name = f"{self._prefix}{RECEIPT_FILE}"
        is_there = self._prefix is not None and self._place.exists(name)
        return self._place.read(name, max_bytes=MAX_DOCUMENT_BYTES) if is_there else None

    @cached_property
    def info(self) -> dict[str, Any]:
        """dataset_info.json; empty where there is none."""
        return self._json(INFO) if self._prefix is not None else {}

    @cached_property
    def features(self) -> dict[str, Any] | None:
        """features.json, where there is one."""
        if self._prefix is None or not self._place.exists(self._prefix + FEATURES):
            return None
        return self._json(FEATURES)

    def _json(self, name: str) -> dict[str, Any]:
        path = f"{self._prefix}{name}"
        try:
            return parse_json_object(self._place.read(path, max_bytes=_MAX_JSON), max_bytes=_MAX_JSON)
        except FormatError as error:
            raise CorruptLayoutError(error.message, path=f"{self.name}/{path}") from None

    @cached_property
    def shards(self) -> list[_Shard]:
        """The files in their order."""
        found = self._listed() if self.info else self._unlisted()
        if self._splits is None:
            return found
        known = list(dict.fromkeys(shard.split for shard in found))
        for wanted in self._splits:
            if wanted not in known:
                raise ValueError(f"no split {wanted!r} in {self.name}.{nearest(wanted, known)}")
        return [shard for shard in found if shard.split in self._splits]

    def _listed(self) -> list[_Shard]:
        form = self.info.get("fileFormat", "tfrecord")
        if form not in ("tfrecord", "array_record"):
            raise UnsupportedVersionError(
                f"files of the format {form!r}", path=self.name, hint="tfrecord and array_record can be read."
            )
        found, splits = [], self.info.get("splits", [])
        if not isinstance(splits, list):
            raise CorruptLayoutError("the splits are no list", path=f"{self.name}/{INFO}")
        for split in splits:
            try:
                name = str(split["name"])
                counts = [int(count) for count in split.get("shardLengths", [])]
                template = str(split.get("filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"))
                if any(count < 0 for count in counts):
                    raise ValueError("fewer than no episodes")
            except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
                raise CorruptLayoutError("a split is not described", path=f"{self.name}/{INFO}") from None
            for number, count in enumerate(counts):
                words = {
                    "{DATASET}": str(self.info.get("name", "")), "{SPLIT}": name, "{FILEFORMAT}": form,
                    "{SHARD_X_OF_Y}": f"{number:05d}-of-{len(counts):05d}", "{SHARD_INDEX}": f"{number:05d}",
                    "{NUM_SHARDS}": f"{len(counts):05d}",
                }  # fmt: skip
                file = template
                for word, value in words.items():
                    file = file.replace(word, value)
                found.append(_Shard(name, check_inside(f"{self._prefix}{file}", self.name), count))
        if not found:
            raise CorruptLayoutError("no split with any file", path=f"{self.name}/{INFO}")
        return found

    def _unlisted(self) -> list[_Shard]:
        if self._place.is_file:
            return [_Shard("train", "", None)]
        files = [name for name in self._place.children() if _TFRECORD.search(name)]
        if not files:
            raise BadMagicError("neither a dataset_info.json nor any TFRecord file is here", path=self.name)
        return [_Shard("train", name, None) for name in files]

    @cached_property
    def _files(self) -> list[RecordFile | None]:
        return [None] * len(self.shards)

    def _file(self, number: int) -> RecordFile:
        found = self._files[number]
        if found is None:
            shard = self.shards[number]
            if self.info.get("fileFormat") == "array_record":
                found = ArrayRecordFile(str(self._place.inside(shard.file)))
            else:
                found = TFRecordFile(self._place.open(shard.file))
            if shard.episodes is not None and found.count != shard.episodes:
                raise CorruptLayoutError(
                    f"{found.count} episodes, {INFO} says {shard.episodes}", path=f"{self.name}/{shard.file}"
                )
            self._files[number] = found
        return found

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        counts = [
            self._file(number).count
            if shard.episodes is None or shard.episodes > _BELIEVED_EPISODES
            else shard.episodes
            for number, shard in enumerate(self.shards)
        ]
        return np.cumsum([0, *counts])

    @cached_property
    def ids(self) -> Sequence[str]:
        """The split and the number in it."""
        counts: dict[str, int] = {}
        for number, shard in enumerate(self.shards):
            counts[shard.split] = counts.get(shard.split, 0) + int(
                self._ends[number + 1] - self._ends[number]
            )
        return [f"{split}-{number:06d}" for split, count in counts.items() for number in range(count)]

    def _shard_of(self, position: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._ends, position, side="right")) - 1
        return number, position - int(self._ends[number])

    def record(self, position: int) -> ParsedRecord:
        """The Example of an episode; the last ones are kept."""
        with self._lock:
            found = self._records.get(position)
            if found is not None:
                self._records.move_to_end(position)
                return found
            number, row = self._shard_of(position)
            where = f"{self.name}/{self.shards[number].file} (episode {self.ids[position]})"
            data = self._file(number).read(row)
            found = ParsedRecord(parse_example(data, where), len(data), where, self._leaves)
            self._records[position] = found
            while len(self._records) > 1 and sum(each.size for each in self._records.values()) > _KEPT_BYTES:
                self._records.popitem(last=False)
            return found

    @cached_property
    def _leaves(self) -> list[Leaf] | None:
        return None if self.features is None else leaves_of(self.features, f"{self.name}/{FEATURES}")

    def parts(self, position: int) -> Parts:
        """The signals of an episode."""
        record = self.record(position)
        number, _ = self._shard_of(position)
        static: dict[str, Any] = {"split": self.shards[number].split}
        columns: dict[str, EpisodeColumn] = {}
        task = record.task()
        for leaf in record.leaves:
            if not leaf.in_steps:
                static[leaf.name.removeprefix(EPISODE_METADATA)] = record.value(leaf)
            elif task is None or leaf.path != task[0]:
                self._add(columns, position, record, leaf)
        if task is not None:
            static["task"] = task[1]
        about = {"split": static["split"], "task": None if task is None else task[0]}
        meta: dict[str, Any] = {"rlds": about}
        last_row = self._last_row or static.get(LAST_ROW)
        if last_row == "observation":
            meta[LAST_ROW] = last_row
        fps = self._fps or stated_rate(static.get("fps"))
        return Parts(self.ids[position], record.steps, columns, static, meta, fps, place=record.where)

    def _add(
        self, columns: dict[str, EpisodeColumn], position: int, record: ParsedRecord, leaf: Leaf
    ) -> None:
        if not record.is_there(leaf):
            return
        rows: Rows = ExampleRows(self, position, leaf, record)
        if record.is_pictures(leaf):
            rows = PictureRows(rows, has_axis=len(leaf.shape) == 3 and leaf.shape[2] == 1)
        columns[leaf.name] = EpisodeColumn(rows, "event" if leaf.kind == "text" else _role(leaf.name))
        if leaf.kind == "ragged":
            lengths = Leaf(f"{leaf.path}/{RAGGED_LENGTHS}", "tensor", "int64")
            columns[lengths.name] = EpisodeColumn(ExampleRows(self, position, lengths, record), "other")

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """The two descriptions, as they are."""
        return {"rlds": {"info": self.info, "features": self.features}}

    def __reduce__(self) -> tuple[Any, ...]:
        return (RldsEpisodes, (self._place, self._splits, self._fps, self._last_row))


class ParsedRecord:
    """One episode: its lists, and arrays made of them when they are asked for."""

    def __init__(self, lists: dict[str, Values], size: int, where: str, leaves: list[Leaf] | None) -> None:
        self.lists, self._wire, self.where = lists, size, where
        self.leaves = inferred(lists) if leaves is None else leaves
        self._arrays: dict[str, NDArray[Any]] = {}
        self.steps = self._steps()

    @property
    def size(self) -> int:
        """What it takes in memory: its bytes, whole numbers, which are longer than their bytes, and arrays."""
        whole = sum(values.numbers.nbytes for values in self.lists.values() if values.kind == "ints")
        return self._wire + whole + sum(array.nbytes for array in self._arrays.values())

    def _steps(self) -> int:
        """How many steps there are: as many as the first list that tells has rows, and all that tell agree."""
        found: dict[str, int] = {}
        for leaf in self.leaves:
            if leaf.in_steps and (rows := rows_of(leaf, self.lists.get(leaf.path))) is not None:
                found[leaf.path] = rows
        told = [rows for rows in found.values() if rows]
        if not told:
            if not any(leaf.in_steps for leaf in self.leaves):
                raise BadMagicError(
                    f"TFRecords of single values, not of episodes: each has {', '.join(sorted(self.lists))}",
                    path=self.where,
                    hint="A record of RLDS is an episode, with a value for each step in every feature.",
                )
            return 0
        steps = found.get(f"{STEPS}/is_first") or told[0]
        for path, rows in found.items():
            if rows not in (0, steps):
                raise CorruptLayoutError(f"{rows} rows of {path!r}, {steps} steps", path=self.where)
        return steps

    def is_there(self, leaf: Leaf) -> bool:
        """Whether the episode has values of a feature."""
        path = f"{leaf.path}/{RAGGED_VALUES}" if leaf.kind == "ragged" else leaf.path
        values = self.lists.get(path)
        if values is None or not len(values):
            return leaf.kind in ("text", "ragged") and bool(self.steps)
        return True

    def is_pictures(self, leaf: Leaf) -> bool:
        """Whether the values are JPEG or PNG pictures."""
        values = self.lists.get(leaf.path)
        if values is None or values.kind != "bytes" or not values.entries:
            return False
        return leaf.kind in ("image", "unknown") and is_still(bytes(values.entries[0][:16]))

    def entries(self, leaf: Leaf, start: int, stop: int) -> list[bytes]:
        """Entries of a list of bytes; an empty list stands for nothing in every step."""
        values = self.lists.get(leaf.path)
        if values is None or not len(values):
            return [b""] * (stop - start)
        if values.kind != "bytes":
            raise CorruptLayoutError(f"{leaf.path!r} holds numbers", path=self.where)
        return [bytes(entry) for entry in values.entries[start:stop]]

    def array(self, leaf: Leaf) -> NDArray[Any]:
        """All rows of a feature of numbers."""
        found = self._arrays.get(leaf.path)
        if found is None:
            found = self._arrays[leaf.path] = self._made(leaf)
        return found

    def _made(self, leaf: Leaf) -> NDArray[Any]:
        if leaf.kind == "ragged":
            values = self.lists.get(f"{leaf.path}/{RAGGED_VALUES}", Values("nothing"))
            lengths = self.lists.get(f"{leaf.path}/{RAGGED_LENGTHS}", Values("nothing")).numbers
            return padded(leaf, values, lengths, self.steps, self.where)
        values = self.lists.get(leaf.path, Values("nothing"))
        found = numbers_of(leaf, values, self.steps if leaf.in_steps else 1, self.where)
        if values.kind == "ints" and found.itemsize < values.numbers.itemsize:
            self.lists[leaf.path] = Values(values.kind, numbers=found.reshape(-1))  # the wide ones go
        return found

    def value(self, leaf: Leaf) -> Any:
        """The value of a feature of the whole episode: a number, a text, or a list."""
        values = self.lists.get(leaf.path)
        if values is None or not len(values):
            return "" if leaf.kind == "text" else None
        if values.kind == "bytes" and leaf.kind != "tensor":
            texts = [bytes(entry).decode("utf-8", "surrogateescape") for entry in values.entries]
            return texts[0] if len(texts) == 1 else texts
        found = self.array(leaf)[0]
        return found.item() if found.ndim == 0 else found.tolist()

    def task(self) -> tuple[str, str] | None:
        """The list that holds the instruction, and the instruction if the whole episode has one."""
        for path in TASKS:
            values = self.lists.get(path)
            if values is None or values.kind != "bytes" or not values.entries:
                continue
            if len({bytes(entry) for entry in values.entries}) == 1:
                return path, bytes(values.entries[0]).decode("utf-8", "surrogateescape")
            return None
        return None


class ExampleRows(Rows):
    """The rows of one feature of one episode."""

    def __init__(self, episodes: RldsEpisodes, position: int, leaf: Leaf, record: ParsedRecord) -> None:
        self._episodes, self._position, self._leaf = episodes, position, leaf
        self.count = record.steps
        if leaf.kind in ("image", "text", "unknown"):
            is_text = leaf.kind == "text"
            self.kind = "text" if is_text else "bytes"
            self.dtype, self.row_shape = np.dtype(object), ()
        else:
            array = record.array(leaf)
            self.dtype, self.row_shape = array.dtype, array.shape[1:]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows of the record."""
        record = self._episodes.record(self._position)
        if self.kind is None:
            return record.array(self._leaf)[start:stop]
        entries = record.entries(self._leaf, start, stop)
        out = np.empty(len(entries), object)
        is_text = self.kind == "text"
        out[:] = [each.decode("utf-8", "surrogateescape") for each in entries] if is_text else entries
        return out


def _role(name: str) -> Role:
    first = name.partition("/")[0]
    if first in ("action", "actions", "action_dict"):
        return "action"
    known: dict[str, Role] = {"reward": "reward", "rewards": "reward", "is_terminal": "terminated"}
    return known.get(name) or ("other" if name in _OTHERS else "observation")
