"""What windows mean, written from docs/reference/training.md and loading.md alone: slow, without code of it."""

from __future__ import annotations

import itertools
import math

import numpy as np


def offsets_of(field: dict) -> tuple[str, list[int]]:
    """("times", offsets in ns) or ("records", steps) of a field's options."""
    if "past" in field:
        return "records", [-(field["past"] - 1) + i for i in range(field["past"])]
    if "horizon" in field:
        return "records", list(range(field["horizon"]))
    if "offsets" in field:
        return "records", list(field["offsets"])
    if "offsets_s" in field:
        return "times", [round(each * 1e9) for each in field["offsets_s"]]
    if "past_s" in field or "future_s" in field:
        rate = field["rate_hz"]
        first = math.floor(field.get("past_s", 0.0) * rate + 1e-6)
        last = math.floor(field.get("future_s", 0.0) * rate + 1e-6)
        return "times", [round(k * 1e9 / rate) for k in range(-first, last + 1)]
    return "times", [round(field.get("at_s", 0.0) * 1e9)]


def last_at_or_before(times: list[int], t: int) -> int:
    found = -1
    for i, each in enumerate(times):
        if each <= t:
            found = i
    return found


def stretch_of(times: list[int], record: int, max_gap_ns: int | None) -> tuple[int, int]:
    """First and last record that are reached from a record without crossing a gap."""
    low = high = max(record, 0)
    while low > 0 and (max_gap_ns is None or times[low] - times[low - 1] <= max_gap_ns):
        low -= 1
    while high + 1 < len(times) and (max_gap_ns is None or times[high + 1] - times[high] <= max_gap_ns):
        high += 1
    return low, high


def row(times, values, t0, how, step, *, align, end_ns, max_age_ns, max_gap_ns):
    """(value, mask, age, inside) of one row of a field."""
    if not times:
        return None, False, 0, False
    own = last_at_or_before(times, t0)
    low, high = stretch_of(times, own, max_gap_ns)
    if how == "records":
        wanted = own + step
        inside = low <= wanted <= high
        record = min(max(wanted, low), high)
        age = t0 - times[record]
        is_old = step == 0 and max_age_ns is not None and abs(age) > max_age_ns
        return values[record], inside and not is_old, age, inside
    t = t0 + step
    wanted = last_at_or_before(times, t)
    if align == "nearest" and 0 <= wanted < len(times) - 1 and times[wanted + 1] - t < t - times[wanted]:
        wanted += 1
    inside = wanted >= 0 and low <= wanted <= high and t <= end_ns
    record = min(max(wanted, low), high)
    age = t - times[record]
    is_old = max_age_ns is not None and abs(age) > max_age_ns
    value = values[record]
    if align == "linear" and record < high and times[record] < t:
        share = min(max((t - times[record]) / (times[record + 1] - times[record]), 0.0), 1.0)
        value = value * (1.0 - share) + values[record + 1] * share if share < 1.0 else values[record + 1]
    return value, inside and not is_old, age, inside


def anchors_of(episode: dict, fields: dict, *, anchor=None, rate_hz=None, stride=1) -> list[int]:
    """The times of the anchors of an episode {signal: (times, values)}."""
    if anchor is not None:
        return episode[anchor][0][::stride] if anchor in episode else []
    used = [
        episode[f["signal"]][0] for f in fields.values() if f["signal"] in episode and episode[f["signal"]][0]
    ]
    if not used:
        return []
    start, stop = max(times[0] for times in used), max(times[-1] for times in used)
    found, k = [], 0
    while start + round(k * 1e9 / rate_hz) <= stop:
        found.append(start + round(k * 1e9 / rate_hz))
        k += 1
    return found[::stride]


def zero(value):
    return 0.0 if value is None else value * 0


def turn_of(row) -> np.ndarray:
    """The rotation matrix of a row with pose="6d": its first two columns are numbers 3 to 8, made orthogonal."""
    x, y = np.float64(row[3:6]), np.float64(row[6:9])
    x = x / np.sqrt(x @ x)
    y = y - (x @ y) * x
    y = y / np.sqrt(y @ y)
    z = [x[1] * y[2] - x[2] * y[1], x[2] * y[0] - x[0] * y[2], x[0] * y[1] - x[1] * y[0]]
    return np.array([x, y, z]).T


def relative_row(own, base, field):
    """(value, mask, age, inside) of a row relative to another one; some dimensions stay absolute."""
    if own[0] is None or base[0] is None:
        return own[0], False, own[2], False
    kept = field.get("except_dims", [])
    if field.get("pose") == "6d":
        a, b = np.float64(own[0]), np.float64(base[0])
        turned = turn_of(b).T @ turn_of(a)
        moved = [*(turn_of(b).T @ (a[:3] - b[:3])), *turned[:, 0], *turned[:, 1], *(a[9:] - b[9:])]
        value = [a[number] if number in kept else moved[number] for number in range(len(a))]
        return np.array(value, np.float32), own[1] and base[1], own[2], own[3] and base[3]
    value = [
        a if number in kept else np.float64(a) - np.float64(b)
        for number, (a, b) in enumerate(zip(own[0], base[0], strict=True))
    ]
    return np.array(value, np.float32), own[1] and base[1], own[2], own[3] and base[3]


def samples_of(
    episodes, fields, *, anchor=None, rate_hz=None, stride=1, edges="pad", max_age_s=None, max_gap_s=None
):
    """All samples in order: dicts name -> (values, masks, ages), with the episode and the time."""
    gap = None if max_gap_s is None else round(max_gap_s * 1e9)
    for number, episode in enumerate(episodes):
        ends = [times[-1] for times, _ in episode.values() if times]
        for t0 in anchors_of(episode, fields, anchor=anchor, rate_hz=rate_hz, stride=stride):
            sample, is_whole = {}, True
            for name, field in fields.items():
                age_s = field.get("max_age_s", max_age_s)
                how, steps = offsets_of(field)
                limit = None if age_s is None else round(age_s * 1e9)
                options = {"end_ns": max(ends), "max_gap_ns": gap}

                def rows_of(signal, how, steps, align, limit, t0=t0, options=options, episode=episode):
                    times, values = episode.get(signal, ([], []))
                    return [
                        row(times, values, t0, how, step, align=align, max_age_ns=limit, **options)
                        for step in steps
                    ]

                before = [steps[0] - 1] if field.get("delta") else []
                rows = rows_of(field["signal"], how, [*before, *steps], field.get("align", "hold"), limit)
                if field.get("delta"):
                    rows = [relative_row(b, a, field) for a, b in itertools.pairwise(rows)]
                elif "relative_to" in field:
                    window_limit = None if max_age_s is None else round(max_age_s * 1e9)
                    base = rows_of(field["relative_to"], "times", [0], "hold", window_limit)[0]
                    rows = [relative_row(each, base, field) for each in rows]
                is_whole &= all(each[3] for each in rows)
                if edges == "zero":
                    rows = [each if each[1] else (zero(each[0]), *each[1:]) for each in rows]
                sample[name] = tuple([each[i] for each in rows] for i in range(3))
            if edges in ("pad", "zero") or is_whole:
                yield number, t0, sample


# What a loader makes of samples.


def mixed_schedule(weights: list[float], count: int) -> list[int]:
    """The source of each sample: turn k of a source is at (k + 1/2) / weight, the first source of equals."""
    given, order = [0] * len(weights), []
    for _ in range(count):
        turns = [((given[source] + 0.5) / weight, source) for source, weight in enumerate(weights) if weight]
        order.append(min(turns)[1])
        given[order[-1]] += 1
    return order


def deliver(field: tuple, transform, rng) -> np.ndarray:
    """The values of a field of one sample as an array, after its transform; one row has no axis of rows."""
    values = np.array([np.asarray(value, np.float32) for value in field[0]], np.float32)
    return values if transform is None else np.asarray(transform(values, rng))


def pad_to(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Values in the corner of an array of zeros."""
    out = np.zeros(shape)
    out[tuple(slice(0, size) for size in values.shape)] = values
    return out
