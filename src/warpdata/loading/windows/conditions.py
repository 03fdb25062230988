"""Samples chosen by a condition over the values at their anchors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.facts import column_table
from warpdata.errors import DatasetError, nearest
from warpdata.sql.engine import matching_rows, parse_condition
from warpdata.timeline.episode import Episode
from warpdata.timeline.sampling import align_signal, aligned_values


def matching_anchors(episode: Episode, times: NDArray[np.int64], condition: str) -> NDArray[np.int64]:
    """Which of these anchors satisfy a SQL condition over signals (the value held there) and static items.

    A signal without a value yet is null. Signals of several numbers are lists; `ts_ns` is the time of the anchor.
    """
    known, parsed = [*episode.keys, "ts_ns"], parse_condition(condition)
    wanted = set(parsed.columns_of(known))
    columns: dict[str, Any] = {}
    for name in episode.keys:
        if name not in wanted:
            columns[name] = None
        elif name in episode.signals:
            signal = episode.signals[name]
            found = align_signal(signal, times)
            values = aligned_values(signal, times, found)
            columns[name] = [v if good else None for v, good in zip(values.tolist(), found.mask, strict=True)]
        else:
            columns[name] = [episode.static[name]] * len(times)
    columns["ts_ns"] = times
    try:
        return matching_rows(column_table(columns, len(times)), condition)
    except DatasetError as error:
        strange = sorted(parsed.names - {*known})
        has = f"episode {episode.id!r} has {', '.join(known)}"
        near = "".join(nearest(name, known) for name in strange[:1])
        raise DatasetError(f"where={condition!r}: {error.message}", hint=f"{has}.{near}") from None
