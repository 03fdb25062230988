"""The statistics of LeRobot sets: per feature min, max, mean, std, count and quantiles, from the data itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpdata.episodes.statistics import ValueStatistics

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_EXACT_BYTES = 64 << 20
"""Quantiles of a feature are exact up to this much data, within 2 % of the value beyond."""


def of_rows(values: NDArray[Any], *, quantiles: bool) -> dict[str, Any]:
    """The statistics of the rows of an episode, as lists."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    shape = values.shape[1:] or (1,)
    found: dict[str, Any] = {}
    with np.errstate(invalid="ignore", over="ignore"):
        for name in ("min", "max", "mean", "std"):
            found[name] = getattr(flat, name)(axis=0).reshape(shape).tolist()
        found["count"] = [len(values)]
        if quantiles:
            for name, value in zip(
                QUANTILES, np.quantile(flat, list(QUANTILES.values()), axis=0), strict=True
            ):
                found[name] = value.reshape(shape).tolist()
    return found


def of_frames(frames: NDArray[Any], *, quantiles: bool) -> dict[str, Any]:
    """The statistics of sampled frames (HWC, uint8): per channel, scaled to 0..1, shaped [channel][1][1]."""
    channels = frames.shape[-1] if frames.ndim == 4 else 1
    scale = 255.0 if frames.dtype == np.uint8 else 1.0
    pixels = frames.reshape(-1, channels).astype(np.float32) / scale
    found: dict[str, Any] = {
        "min": pixels.min(axis=0), "max": pixels.max(axis=0), "mean": pixels.mean(axis=0, dtype=np.float64),
        "std": pixels.std(axis=0, dtype=np.float64),
    }  # fmt: skip
    if quantiles:
        found |= dict(zip(QUANTILES, np.quantile(pixels, list(QUANTILES.values()), axis=0), strict=True))
    lists = {name: [[[float(each)]] for each in value] for name, value in found.items()}
    return {**lists, "count": [len(frames)]}


class SetStatistics:
    """The statistics of one feature over all episodes."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []
        self._bytes = 0
        self._running: ValueStatistics | None = None
        self._shape: tuple[int, ...] = (1,)
        self._parts: list[Mapping[str, Any]] = []

    def add_rows(self, values: NDArray[Any]) -> None:
        """The rows of one more episode."""
        self._shape = values.shape[1:] or (1,)
        if self._running is None and self._bytes + values.nbytes <= _EXACT_BYTES:
            self._kept.append(np.array(values))
            self._bytes += values.nbytes
            return
        if self._running is None:
            self._running = ValueStatistics(self._shape)
            for each in self._kept:
                self._running.add(each)
            self._kept = []
        self._running.add(values)

    def add_part(self, stats: Mapping[str, Any]) -> None:
        """What is known of one more episode, of frames that are not decoded again."""
        self._parts.append(stats)

    def found(self) -> dict[str, Any] | None:
        """The statistics, or None where there was nothing."""
        if self._kept:
            return of_rows(np.concatenate(self._kept), quantiles=True)
        if self._running is not None:
            return self._from_running(self._running)
        return _merged(self._parts) if self._parts else None

    def _from_running(self, running: ValueStatistics) -> dict[str, Any]:
        size = int(np.prod(self._shape))
        std = np.sqrt(running.m2 / np.maximum(running.count, 1))
        columns = {"min": running.low, "max": running.high, "mean": running.mean, "std": std}
        quantiles = running.sketch.quantiles(list(QUANTILES.values()))
        columns |= dict(zip(QUANTILES, quantiles, strict=True))
        found: dict[str, Any] = {
            name: np.broadcast_to(value, size).reshape(self._shape).tolist()
            for name, value in columns.items()
        }
        return {**found, "count": [int(running.count.max())]}


def _merged(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Several statistics of sampled frames as one; quantiles are averaged, as nothing better is known of them."""
    counts = np.array([float(part["count"][0]) for part in parts])
    weights = (counts / counts.sum()).reshape(-1, *(1,) * np.ndim(parts[0]["mean"]))
    column = {
        name: np.array([part[name] for part in parts], np.float64) for name in ("min", "max", "mean", "std")
    }
    mean = (column["mean"] * weights).sum(axis=0)
    spread = ((column["std"] ** 2 + (column["mean"] - mean) ** 2) * weights).sum(axis=0)
    found: dict[str, Any] = {
        "min": column["min"].min(axis=0).tolist(), "max": column["max"].max(axis=0).tolist(),
        "mean": mean.tolist(), "std": np.sqrt(spread).tolist(), "count": [int(counts.sum())],
    }  # fmt: skip
    for name in QUANTILES:
        if all(name in part for part in parts):
            found[name] = (
                (np.array([part[name] for part in parts], np.float64) * weights).sum(axis=0).tolist()
            )
    return found
