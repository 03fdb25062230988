"""A row of facts about an episode, known without reading its data where it was recorded; the adapter of tables."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.io.commit import write_file
from warpdata.episodes.collection.listing import episode_path
from warpdata.episodes.forms.content import stated_content
from warpdata.errors import NoStepsError, WarpError
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import read_bytes
from warpdata.timeline.episode import Episode

_RATES = pa.map_(pa.string(), pa.float64())
_COUNTS = pa.map_(pa.string(), pa.int64())
_LISTS = pa.map_(pa.string(), pa.list_(pa.float64()))

COLUMNS: dict[str, Any] = {
    "id": pa.string(),
    "length": pa.int64(),
    "duration_s": pa.float64(),
    "start_ns": pa.int64(),
    "recorded_ns": pa.int64(),
    "env_id": pa.string(),
    "task": pa.string(),
    "success": pa.bool_(),
    "total_reward": pa.float64(),
    "signals": pa.list_(pa.string()),
    "rates": _RATES,
    "counts": _COUNTS,
    "means": _LISTS,
    "mins": _LISTS,
    "maxs": _LISTS,
    "bytes": pa.int64(),
    "flags": pa.list_(pa.string()),
    "edited": pa.string(),
    "problems": pa.list_(pa.string()),
    "content": pa.string(),
}
"""What every table of episodes has; each scalar static item is a column besides."""

_SCALARS = (bool, int, float, str)


def facts_of(episode: Episode) -> dict[str, Any]:
    """The facts of one episode; what is damaged is a problem, not an error."""
    found: dict[str, Any] = {"id": episode.id, "problems": []}
    for part in (_of_signals, _of_statics, _of_steps, _of_content):
        try:
            found |= part(episode)
        except WarpError as error:
            found["problems"].append(str(error))
    return found


def _of_signals(episode: Episode) -> dict[str, Any]:
    meta = episode.meta
    stated = meta.get("signals")
    stated = stated if isinstance(stated, Mapping) else {}
    signals = episode.signals
    found: dict[str, Any] = {
        "signals": list(signals), "recorded_ns": meta.get("created_ts_ns"), "bytes": episode.stored_bytes,
        "flags": flags_of(episode), "edited": _edits(meta),
        "counts": {name: len(signal) for name, signal in signals.items()},
    }  # fmt: skip
    if any(found["counts"].values()):
        found |= {"start_ns": episode.first_ts_ns, "duration_s": episode.duration_s}
    else:
        found["duration_s"] = 0.0
    found["rates"] = {name: _rate(signal, stated.get(name)) for name, signal in signals.items()}
    for column, key in (("means", "mean"), ("mins", "min"), ("maxs", "max")):
        values = {name: about.get("values") for name, about in stated.items() if isinstance(about, Mapping)}
        found[column] = {name: each[key] for name, each in values.items() if isinstance(each, Mapping)}
    return found


def flags_of(episode: Episode) -> list[str]:
    """What is to be known before an episode is trusted: it was cut short, finished afterwards, or edited."""
    return [name for name in ("interrupted", "salvaged", "edited") if episode.meta.get(name)]


def _edits(meta: Mapping[str, Any]) -> str | None:
    """What the edits made of the recordings, as JSON; None where they changed nothing."""
    edited = meta.get("edited")
    return None if edited is None else json.dumps(edited, ensure_ascii=False, sort_keys=True)


def _rate(signal: Any, stated: Any) -> float | None:
    if isinstance(stated, Mapping) and stated.get("rate_hz") is not None:
        return float(stated["rate_hz"])
    if len(signal) < 2 or signal.last_ts_ns == signal.first_ts_ns:
        return None
    return float((len(signal) - 1) * 1e9 / (signal.last_ts_ns - signal.first_ts_ns))


def _of_statics(episode: Episode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in episode.static.items():
        if isinstance(value, _SCALARS):
            taken = name in COLUMNS and name not in ("task", "success", "env_id", "total_reward")
            found[f"static_{name}" if taken else name] = value
    return found


def _of_steps(episode: Episode) -> dict[str, Any]:
    try:
        steps = episode.steps
    except NoStepsError:
        return {"length": None}
    found: dict[str, Any] = {"length": steps.length}
    if "total_reward" not in episode.static:
        found["total_reward"] = _total_reward(episode)
    return found


def _of_content(episode: Episode) -> dict[str, Any]:
    return {"content": stated_content(episode)}


def _total_reward(episode: Episode) -> float | None:
    """The sum of all rewards, from what was recorded of them where that is known."""
    names = [name for name, signal in episode.signals.items() if signal.meta.role == "reward"]
    stated = episode.meta.get("signals")
    if len(names) == 1 and isinstance(stated, Mapping):
        values = (stated.get(names[0]) or {}).get("values") or {}
        if values.get("sum") is not None and values.get("invalid") == [0] and len(values["sum"]) == 1:
            return float(values["sum"][0])
    return episode.steps.total_reward if names else None


def facts_table(episodes: Iterable[Episode]) -> pa.Table:
    """The facts of episodes, one row each."""
    return table_of([facts_of(episode) for episode in episodes])


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of facts as a table: the columns every table has, then each further item."""
    more = dict.fromkeys(name for row in rows for name in row if name not in COLUMNS)
    columns: dict[str, Any] = {}
    for name, kind in COLUMNS.items():
        values = [row.get(name) for row in rows]
        columns[name] = _typed(values, kind)
    for name in more:
        columns[name] = _column([row.get(name) for row in rows])
    return pa.table(columns)


def _typed(values: list[Any], kind: Any) -> Any:
    if pa.types.is_map(kind):
        pairs = [None if value is None else list(value.items()) for value in values]
        return pa.array(pairs, kind)
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # a static item of that name holds something else
        return _column(values)


def _column(values: list[Any]) -> Any:
    """One type for values of one kind; for a mixture their JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    try:
        if len(kinds) <= 1:
            return pa.array(values)
    except (pa.ArrowInvalid, OverflowError):
        pass
    return pa.array([None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values])


def joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of facts one after the other; a column of several types becomes text."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return table_of([row for table in tables for row in rows_of(table)])


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table of facts."""
    return [
        {
            name: dict(value)
            if value is not None and name in COLUMNS and pa.types.is_map(COLUMNS[name])
            else value
            for name, value in row.items()
        }
        for row in table.to_pylist()
    ]


def column_table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Columns as a table; None stands for a column of which only the name is needed."""
    return pa.table(
        {name: pa.nulls(rows) if each is None else pa.array(each) for name, each in columns.items()}
    )


_NUMBER, _MTIME, _SIZE = "__number", "__mtime_ns", "__size"
_OWN = (_NUMBER, _MTIME, _SIZE)
_MAX_FILE_BYTES = 1 << 33
_VERSION = {b"warpdata_facts": b"1"}


def recorded_facts(root: Path, numbers: Sequence[int], opened: Callable[[int], Episode]) -> pa.Table:
    """The facts of recordings, in order: those kept from last time, where meta.json did not change since.

    `opened` gives the recording of a number.
    """
    if not len(numbers):
        return facts_table([])
    wanted = np.array(numbers, np.int64)
    marks = _marks(root, numbers)
    known = _read(root / layout.FACTS_FILE)
    rows = _rows_of(known, wanted, marks)
    new = np.flatnonzero(rows < 0)
    if not len(new):
        return known.drop_columns(list(_OWN)).take(to_arrow(rows))
    fresh = facts_table(opened(int(number)) for number in wanted[new])
    for name, column in zip(_OWN, (wanted[new], marks[new, 0], marks[new, 1]), strict=True):
        fresh = fresh.append_column(name, to_arrow(column))
    kept = known.take(to_arrow(rows[rows >= 0]))
    whole = joined_tables([kept, fresh]) if len(kept) else fresh
    order = np.argsort(np.concatenate([np.flatnonzero(rows >= 0), new]), kind="stable")
    whole = whole.take(to_arrow(order))
    _write(root / layout.FACTS_FILE, whole)
    return whole.drop_columns(list(_OWN))


def _rows_of(known: pa.Table, wanted: NDArray[np.int64], marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the facts of each number stand, -1 where they are missing or older than the recording."""
    if not len(known) or not len(wanted):
        return np.full(len(wanted), -1, np.int64)
    numbers, mtimes, sizes = (np.array(known.column(name).to_pylist(), np.int64) for name in _OWN)
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
    fits = (numbers[at] == wanted) & (mtimes[at] == marks[:, 0]) & (sizes[at] == marks[:, 1])
    return np.where(fits & (marks[:, 1] >= 0), at, -1)


def _marks(root: Path, numbers: Sequence[int]) -> NDArray[np.int64]:
    """When each meta.json was written and how large it is; recordings without one are always looked at."""
    marks: list[int] = []
    for block, inside in itertools.groupby(numbers, lambda number: number // layout.BLOCK_EPISODES):
        folder = episode_path(root, block * layout.BLOCK_EPISODES).parent
        marks += _block_marks(folder, [f"{number:0{layout.DIGITS}d}/{layout.META_FILE}" for number in inside])
    return np.array(marks, np.int64).reshape(-1, 2)


def _block_marks(folder: Path, names: Sequence[str]) -> list[int]:
    """The marks of one block, seen from its folder: a path from the top costs twice as much to follow."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return [-1] * (2 * len(names))
    marks: list[int] = []
    try:
        for name in names:
            try:
                found = os.stat(name, dir_fd=fd)
                marks += (found.st_mtime_ns, found.st_size)
            except OSError:
                marks += (-1, -1)
    finally:
        os.close(fd)
    return marks


def _read(path: Path) -> pa.Table:
    """The facts written last time; none where they cannot be trusted."""
    with contextlib.suppress(OSError, WarpError, pa.ArrowException):
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        found = file.read(use_threads=False)
        stated = dict(found.schema.metadata or {})
        is_known = stated.get(b"warpdata_facts") == _VERSION[b"warpdata_facts"]
        if is_known and {*_OWN, *COLUMNS} <= set(found.column_names):
            return found
    return pa.table({name: to_arrow(np.empty(0, np.int64)) for name in _OWN})


def _write(path: Path, table: pa.Table) -> None:
    """Keep the facts; a root that cannot be written is simply looked at again next time."""
    problems = table.column("problems").to_pylist()
    healthy = table.filter(pa.array([not each for each in problems]))
    sink = io.BytesIO()
    pq.write_table(
        healthy.replace_schema_metadata(_VERSION), sink, compression="zstd", write_page_checksum=True
    )
    with contextlib.suppress(WarpError):
        write_file(path, sink.getvalue(), durable=False)
