"""What a notebook shows: small HTML without scripts, every text escaped, sparklines as SVG, pictures inline."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from warpdata.bytekit.codec import encode_png
from warpdata.errors import MissingExtraError, WarpError
from warpdata.timeline.pictures import as_pixels, is_camera, limits_of, shrink_pixels
from warpdata.timeline.signal import Signal

_POINTS = 96
_FRAMES = 5
_SIDE = 96
_MAX_SIGNALS = 40
_MAX_TEXT = 200
_LINE = 'fill="none" stroke="currentColor" stroke-width="1"'


def text(value: Any) -> str:
    """A value as escaped text of bounded length."""
    shown = f"<{len(value)} bytes>" if isinstance(value, bytes) else value
    shown = shown if isinstance(shown, str) else repr(shown)
    return html.escape(shown if len(shown) <= _MAX_TEXT else shown[: _MAX_TEXT - 1] + "…")


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already."""
    head = "".join(f"<th>{text(title)}</th>" for title in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def titled_card(title: str, *parts: str) -> str:
    """A card with its title."""
    return f"<div><strong>{text(title)}</strong>{''.join(parts)}</div>"


def sparkline_svg(values: NDArray[Any], width: int = 160, height: int = 28) -> str:
    """How numbers move; gaps where they are not finite."""
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    xs = np.linspace(1, width - 1, len(values)) if len(values) > 1 else np.array([width / 2])
    ys = height - 2 - (values - low) / ((high - low) or 1) * (height - 4)
    runs: list[list[str]] = [[]]
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if np.isfinite(y):
            runs[-1].append(f"{x:.1f},{y:.1f}")
        elif runs[-1]:
            runs.append([])
    lines = "".join(f'<polyline {_LINE} points="{" ".join(run)}"/>' for run in runs if run)
    label = f"from {low:.4g} to {high:.4g}"
    return f'<svg width="{width}" height="{height}" role="img" aria-label="{label}">{lines}</svg>'


def picture_html(pixels: NDArray[np.uint8], about: str) -> str:
    """A picture inside the page."""
    data = base64.b64encode(encode_png(pixels)).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{text(about)}" title="{text(about)}"/>'


def signal_card(name: str, signal: Signal) -> str:
    """What a signal looks like: frames of a camera, a line for its liveliest channel, its last text."""
    if not len(signal):
        return ""
    points = _FRAMES if is_camera(signal.meta) else _POINTS
    rows = np.unique(np.linspace(0, len(signal) - 1, points).astype(np.int64))
    if is_camera(signal.meta):
        limits = limits_of(signal)
        frames = (shrink_pixels(as_pixels(frame, limits), _SIDE) for frame in signal[rows].values())
        return " ".join(
            picture_html(picture, f"{name}, frame {row}")
            for picture, row in zip(frames, rows.tolist(), strict=True)
        )
    if signal.meta.rows is not None:
        return sparkline_svg(signal._lengths())
    if signal.meta.is_object:
        return text(signal[-1][0])
    values = signal[rows].values().reshape(len(rows), -1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        livest = int(np.argmax(np.nan_to_num(values.std(axis=0))))
    return sparkline_svg(values[:, livest])


def signals_card(signals: Mapping[str, Signal]) -> str:
    """A row per signal; a damaged one is marked."""
    rows = []
    for name in list(signals)[:_MAX_SIGNALS]:
        try:
            signal = signals[name]
            meta = signal.meta
            kind = str(meta) if meta.is_object else f"{meta.dtype}{list(meta.shape) if meta.shape else ''}"
            count, card = str(len(signal)), signal_card(name, signal)
            rows.append([text(name), text(meta.role), text(kind), count, card])
        except WarpError as error:
            rows.append([text(name), "", "", "", text(f"{error.code}: {error}")])
    left = len(signals) - len(rows)
    more = f"<p>and {left} more signals</p>" if left > 0 else ""
    return html_table(["signal", "role", "type", "records", ""], rows) + more


def items_card(items: Mapping[str, Any]) -> str:
    """Names and values."""
    rows = [[text(name), text(value)] for name, value in items.items()]
    return html_table(["item", "value"], rows) if rows else ""


if TYPE_CHECKING:
    from warpdata.timeline.episode import Episode

_MOST_CHANNELS = 16


def plot_episode(episode: Episode, names: Sequence[str] | None = None) -> Any:
    """A figure with an axis per signal, all on one axis of time in seconds since the first record."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise MissingExtraError("matplotlib is not installed", hint="Run: pip install matplotlib") from None
    given = [names] if isinstance(names, str) else names
    wanted = {name: episode.signals[name] for name in (episode.signals if given is None else given)}
    chosen = {
        name: signal
        for name, signal in wanted.items()
        if len(signal) and not signal.meta.is_object and not is_camera(signal.meta)
    }
    if not chosen:
        raise ValueError("there is no signal of numbers to plot")

    class EpisodeFigure(Figure):
        """Shows itself in a notebook also where pyplot was not imported."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    figure = EpisodeFigure(figsize=(10, 1 + 1.6 * len(chosen)), layout="constrained")
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
