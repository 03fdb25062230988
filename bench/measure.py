"""Timing that survives a noisy machine: rivals take turns, and each is judged by its best rounds."""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def race(
    rivals: Mapping[str, Callable[[], object]],
    rounds: int,
    calls: int = 1,
    judge: Callable[[list[float]], float] = min,
) -> dict[str, float]:
    """Seconds per call of each rival, the best of `rounds` rounds in which they take turns of `calls` calls.

    In every round in another order: what one leaves behind (cold caches, threads that still work) is not always paid by
    the same other one.
    """
    took: dict[str, list[float]] = {name: [] for name in rivals}
    turns, order = list(rivals.items()), random.Random(0)
    for work in rivals.values():
        work()
    gc.disable()
    try:
        for _ in range(rounds):
            order.shuffle(turns)
            for name, work in turns:
                took[name].append(seconds(lambda: [work() for _ in range(calls)]) / calls)  # noqa: B023
    finally:
        gc.enable()
    return {name: float(judge(each)) for name, each in took.items()}


def latencies_us(step: Callable[[int], object], count: int) -> dict[str, float]:
    """Percentiles of `count` calls in microseconds."""
    clock, found = time.perf_counter_ns, np.empty(count, np.int64)
    for index in range(count):
        start = clock()
        step(index)
        found[index] = clock() - start
    p50, p99, p999 = np.percentile(found, [50, 99, 99.9]) / 1000
    return {"p50": float(p50), "p99": float(p99), "p99.9": float(p999), "max": float(found.max()) / 1000}


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as stat:
        return int(stat.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_growth_bytes(work: Callable[[], object]) -> int:
    """How far above its start the resident memory went while `work` ran."""
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")
    before = resident_bytes()
    work()
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return peak * 1024 - before


def machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "system": platform.system(), "cores": os.cpu_count()}


def save(area: str, report: Mapping[str, Any]) -> None:
    """Write the results of one area, with the machine they were measured on."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), **report}, indent=1, default=float)
    (RESULTS / f"{area}.json").write_text(text + "\n")
