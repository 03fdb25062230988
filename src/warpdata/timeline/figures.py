"""Figures of an episode. The adapter of matplotlib, which is used where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warpdata.errors import MissingExtraError, nearest
from warpdata.timeline.pictures import is_camera

if TYPE_CHECKING:
    from warpdata.timeline.episode import Episode
    from warpdata.timeline.signal import Signal

_MOST_CHANNELS = 16


def plot_episode(episode: Episode, names: Sequence[str] | None = None) -> Any:
    """A figure with an axis per signal, all on one axis of time in seconds since the first record."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("matplotlib is not installed", hint="Run: pip install matplotlib") from None
    chosen = _chosen(episode.signals, names)
    figure = Figure(figsize=(10, 1 + 1.6 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    start = min(signal.first_ts_ns for signal in chosen.values())
    for axis, (name, signal) in zip(axes, chosen.items(), strict=True):
        values = np.asarray(signal.values()).reshape(len(signal), -1)[:, :_MOST_CHANNELS]
        style = "--" if signal.meta.role == "prediction" else "-"
        axis.step((signal.timestamps - start) / 1e9, values, style, where="post", linewidth=0.9)
        axis.set_title(name, loc="left", fontsize="small")
        axis.set_ylabel(signal.meta.units or "")
    axes[-1].set_xlabel("seconds")
    return figure


def _chosen(signals: Mapping[str, Signal], names: Sequence[str] | None) -> dict[str, Signal]:
    """The signals that can be drawn as lines, or the chosen ones."""
    names = [names] if isinstance(names, str) else names
    for name in names or ():
        if name not in signals:
            raise KeyError(f"no signal {name!r} in this episode.{nearest(name, signals)}")
    wanted = signals if names is None else names
    found = {
        name: signals[name]
        for name in wanted
        if len(signals[name]) and not signals[name].meta.is_object and not is_camera(signals[name].meta)
    }
    if not found:
        raise ValueError("there is no signal of numbers to plot")
    return found
