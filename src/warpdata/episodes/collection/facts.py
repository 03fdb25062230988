"""Facts about episodes, one row each, known without reading data where it was recorded; statistics over many episodes.

The adapter of tables.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from warpdata.bytekit.arrow_arrays import to_arrow
from warpdata.bytekit.io.commit import write_file
from warpdata.episodes.forms.content import stated_content
from warpdata.episodes.statistics import QUANTILES, RELATIVE_ERROR, ValueStatistics
from warpdata.errors import NoStepsError, WarpError, nearest
from warpdata.formats.episodedir import layout
from warpdata.formats.episodedir.documents import episode_name, read_bytes
from warpdata.timeline.episode import Episode
from warpdata.timeline.signal import Signal

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
    "rates": pa.map_(pa.string(), pa.float64()),
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
"""The columns of every table of episodes; each scalar static item is a column besides."""

_OWN_STATICS = ("task", "success", "env_id", "total_reward")
_NUMBER, _MTIME, _SIZE = "__number", "__mtime_ns", "__size"
_OWN = (_NUMBER, _MTIME, _SIZE)
_MAX_FILE_BYTES = 1 << 33
_VERSION = {b"warpdata_facts": b"1"}
_BATCH_BYTES = 16 << 20


# Facts of one episode.


def facts_of(episode: Episode) -> dict[str, Any]:
    """The facts of one episode; damage is a problem, not an error."""
    facts: dict[str, Any] = {"id": episode.id, "problems": []}
    for part in (_signal_facts, _static_facts, _step_facts):
        try:
            facts |= part(episode)
        except WarpError as error:
            facts["problems"].append(str(error))
    try:
        facts["content"] = stated_content(episode)
    except WarpError as error:
        facts["problems"].append(str(error))
    return facts


def _entries_of(episode: Episode) -> Mapping[str, Any]:
    """What the metadata states of each signal."""
    entries = episode.meta.get("signals")
    if not isinstance(entries, Mapping):
        return {}
    return {name: entry for name, entry in entries.items() if isinstance(entry, Mapping)}


def _signal_facts(episode: Episode) -> dict[str, Any]:
    entries, signals, edited = _entries_of(episode), episode.signals, episode.meta.get("edited")
    facts: dict[str, Any] = {
        "signals": list(signals),
        "recorded_ns": episode.meta.get("created_ts_ns"),
        "bytes": episode.stored_bytes,
        "flags": flags_of(episode),
        "edited": None if edited is None else json.dumps(edited, ensure_ascii=False, sort_keys=True),
        "counts": {name: len(signal) for name, signal in signals.items()},
        "duration_s": 0.0,
        "rates": {name: _rate(signal, entries.get(name, {})) for name, signal in signals.items()},
    }
    if any(facts["counts"].values()):
        facts |= {"start_ns": episode.first_ts_ns, "duration_s": episode.duration_s}
    values = {
        name: entry["values"] for name, entry in entries.items() if isinstance(entry.get("values"), Mapping)
    }
    for column, key in (("means", "mean"), ("mins", "min"), ("maxs", "max")):
        facts[column] = {name: stated[key] for name, stated in values.items()}
    return facts


def flags_of(episode: Episode) -> list[str]:
    """What is to be known before an episode is trusted: it was cut short, finished afterwards, or edited."""
    return [name for name in ("interrupted", "salvaged", "edited") if episode.meta.get(name)]


def _rate(signal: Signal, entry: Mapping[str, Any]) -> float | None:
    if entry.get("rate_hz") is not None:
        return float(entry["rate_hz"])
    if len(signal) < 2 or signal.last_ts_ns == signal.first_ts_ns:
        return None
    return float((len(signal) - 1) * 1e9 / (signal.last_ts_ns - signal.first_ts_ns))


def _static_facts(episode: Episode) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for name, value in episode.static.items():
        if isinstance(value, bool | int | float | str):
            is_taken = name in COLUMNS and name not in _OWN_STATICS
            facts[f"static_{name}" if is_taken else name] = value
    return facts


def _step_facts(episode: Episode) -> dict[str, Any]:
    try:
        steps = episode.steps
    except NoStepsError:
        return {"length": None}
    facts: dict[str, Any] = {"length": steps.length}
    if "total_reward" in episode.static:
        return facts
    names = [name for name, signal in episode.signals.items() if signal.meta.role == "reward"]
    values = _entries_of(episode).get(names[0], {}).get("values") or {} if len(names) == 1 else {}
    if values.get("sum") is not None and values.get("invalid") == [0] and len(values["sum"]) == 1:
        facts["total_reward"] = float(values["sum"][0])
    else:
        facts["total_reward"] = steps.total_reward if names else None
    return facts


# Tables of facts.


def facts_table(episodes: Iterable[Episode]) -> pa.Table:
    """The facts of episodes, one row each."""
    return table_of([facts_of(episode) for episode in episodes])


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Rows of facts as a table: the columns every table has, then each further item."""
    columns: dict[str, Any] = {}
    for name, kind in COLUMNS.items():
        values = [row.get(name) for row in rows]
        if pa.types.is_map(kind):
            values = [None if value is None else list(value.items()) for value in values]
        try:
            columns[name] = pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError):  # a static item of that name holds something else
            columns[name] = _column(values)
    for name in dict.fromkeys(name for row in rows for name in row if name not in COLUMNS):
        columns[name] = _column([row.get(name) for row in rows])
    return pa.table(columns)


def _column(values: list[Any]) -> Any:
    """One type for values of one kind; for a mixture their JSON."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    with contextlib.suppress(pa.ArrowInvalid, OverflowError):
        if len(kinds) <= 1:
            return pa.array(values)
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v) for v in values])


def joined_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of facts one after the other; a column of several types becomes text."""
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        rows = [row for table in tables for row in table.to_pylist()]
        for row in rows:
            for name, kind in COLUMNS.items():
                if pa.types.is_map(kind) and row.get(name) is not None:
                    row[name] = dict(row[name])
        return table_of(rows)


def column_table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Columns as a table; None stands for a column of which only the name is needed."""
    return pa.table(
        {name: pa.nulls(rows) if column is None else pa.array(column) for name, column in columns.items()}
    )


# Facts kept beside the recordings.


def recorded_facts(root: Path, numbers: Sequence[int], open_episode: Callable[[int], Episode]) -> pa.Table:
    """The facts of recordings, in order: those kept from last time, where meta.json did not change since."""
    if not len(numbers):
        return facts_table([])
    wanted = np.array(numbers, np.int64)
    # Plain text: paths of ten thousand recordings as objects take longer than looking at the files.
    marks = np.array(
        [_mark(f"{root}/{episode_name(number)}/{layout.META_FILE}") for number in numbers], np.int64
    )
    known = _read(root / layout.FACTS_FILE)
    rows = _find_rows(known, wanted, marks)
    new = np.flatnonzero(rows < 0)
    if not len(new):
        return known.drop_columns(list(_OWN)).take(to_arrow(rows))
    fresh = facts_table(open_episode(int(number)) for number in wanted[new])
    for name, column in zip(_OWN, (wanted[new], marks[new, 0], marks[new, 1]), strict=True):
        fresh = fresh.append_column(name, to_arrow(column))
    kept = known.take(to_arrow(rows[rows >= 0]))
    whole = joined_tables([kept, fresh]) if len(kept) else fresh
    order = np.argsort(np.concatenate([np.flatnonzero(rows >= 0), new]), kind="stable")
    whole = whole.take(to_arrow(order))
    _write(root / layout.FACTS_FILE, whole)
    return whole.drop_columns(list(_OWN))


def _find_rows(known: pa.Table, wanted: NDArray[np.int64], marks: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of each number, -1 where its facts are missing or older than the recording."""
    if not len(known):
        return np.full(len(wanted), -1, np.int64)
    numbers, mtimes, sizes = (np.array(known.column(name).to_pylist(), np.int64) for name in _OWN)
    order = np.argsort(numbers, kind="stable")
    at = order[np.minimum(np.searchsorted(numbers[order], wanted), len(numbers) - 1)]
    fits = (numbers[at] == wanted) & (mtimes[at] == marks[:, 0]) & (sizes[at] == marks[:, 1])
    return np.where(fits & (marks[:, 1] >= 0), at, -1)


def _mark(path: str) -> tuple[int, int]:
    """When a file was written and its size; recordings without meta.json are always looked at."""
    try:
        stat = os.stat(path)
    except OSError:
        return (-1, -1)
    return (stat.st_mtime_ns, stat.st_size)


def _read(path: Path) -> pa.Table:
    """The facts written last time; empty where they cannot be trusted."""
    with contextlib.suppress(OSError, WarpError, pa.ArrowException):
        data = read_bytes(path, max_bytes=_MAX_FILE_BYTES)
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        table = file.read(use_threads=False)
        is_known = dict(table.schema.metadata or {}).get(b"warpdata_facts") == _VERSION[b"warpdata_facts"]
        if is_known and {*_OWN, *COLUMNS} <= set(table.column_names):
            return table
    return pa.table({name: to_arrow(np.empty(0, np.int64)) for name in _OWN})


def _write(path: Path, table: pa.Table) -> None:
    """Keep the facts; a root that cannot be written is simply looked at again next time."""
    healthy = table.filter(pa.array([not problems for problems in table.column("problems").to_pylist()]))
    sink = io.BytesIO()
    pq.write_table(
        healthy.replace_schema_metadata(_VERSION), sink, compression="zstd", write_page_checksum=True
    )
    with contextlib.suppress(WarpError):
        write_file(path, sink.getvalue(), durable=False)


# Statistics over many episodes, merged from what each recorded; data is read only where nothing was.


@dataclass(frozen=True, slots=True)
class SignalSummary:
    """Statistics of all values of a signal, per channel; not-finite values are counted and left out."""

    episodes: int
    count: NDArray[np.int64]
    invalid: NDArray[np.int64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    quantiles: dict[float, NDArray[np.float64]]
    quantile_error: float
    """How far a quantile may be off, relative to its value."""
    read: int
    """The number of episodes whose data had to be read."""

    @property
    def q01(self) -> NDArray[np.float64]:
        """The first percentile."""
        return self.quantiles[0.01]

    @property
    def q99(self) -> NDArray[np.float64]:
        """The 99th percentile."""
        return self.quantiles[0.99]

    def to_json(self) -> dict[str, Any]:
        """The summary for a program."""
        arrays = {
            name: getattr(self, name).tolist() for name in ("count", "invalid", "mean", "std", "min", "max")
        }
        quantiles = {str(q): values.tolist() for q, values in self.quantiles.items()}
        error = {"quantile_relative_error": self.quantile_error, "read": self.read}
        return {"episodes": self.episodes, **arrays, "quantiles": quantiles, **error}


def summaries_of(episodes: Iterable[Episode], signals: Sequence[str] | None) -> dict[str, SignalSummary]:
    """Statistics of these signals, or of all that hold numbers and are no images."""
    signals = [signals] if isinstance(signals, str) else signals
    merged: dict[str, ValueStatistics] = {}
    counts: dict[str, list[int]] = {}
    known: set[str] = set()
    for episode in episodes:
        known |= set(episode.signals)
        for name, signal in episode.signals.items():
            is_wanted = name in signals if signals is not None else signal.meta.kind != "image"
            if not is_wanted or signal.meta.is_object:
                continue
            statistics = recorded_statistics(episode, name)
            count = counts.setdefault(name, [0, 0])
            count[0] += 1
            count[1] += statistics is None
            if statistics is None:
                statistics = ValueStatistics(signal.meta.shape)
                for values in signal.blocks(_BATCH_BYTES):
                    statistics.add(values)
            if name not in merged:
                merged[name] = statistics
            elif merged[name].channels != statistics.channels:
                raise ValueError(f"signal {name!r} does not have the same shape in all episodes")
            else:
                merged[name].merge(statistics)
    for name in signals or ():
        if name not in merged:
            raise KeyError(f"no signal {name!r} with numbers in these episodes.{nearest(name, known)}")
    return {name: _summary(statistics, *counts[name]) for name, statistics in merged.items()}


def _summary(values: ValueStatistics, episodes: int, read: int) -> SignalSummary:
    std = np.sqrt(values.m2 / np.maximum(values.count, 1))
    quantiles = dict(zip(QUANTILES, values.sketch.quantiles(list(QUANTILES)), strict=True))
    moments = (values.count, values.invalid, values.mean, std, values.low, values.high)
    return SignalSummary(episodes, *moments, quantiles, RELATIVE_ERROR, read)


def recorded_statistics(episode: Episode, name: str) -> ValueStatistics | None:
    """The recorded statistics of a signal, to be merged with others; None where there are none."""
    entry = _entries_of(episode).get(name)
    return None if entry is None else ValueStatistics.from_json(entry.get("values"))
