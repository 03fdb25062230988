"""`warp show`: what is at an address: episodes as a list, or one with its signals and static items."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, opened_thing
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode
    from warpdata.timeline.signal import Signal

_POINTS = 24
_COLUMNS = 64
"""How wide a picture is at most."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp show`."""
    add_address(parser, "an episode, or episodes to list")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Print what is in an episode; a damaged signal is named and the others are shown."""
    from warpdata.catalog.dataset import Dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode

    found = opened_thing(args)
    if isinstance(found, Dataset):
        found = found.episodes
    if isinstance(found, Episodes):
        return _list(found, console)
    if not isinstance(found, Episode):
        raise ValueError(f"{args.address} holds no episodes; look at it with `warp inspect`")
    return _one(found, console)


def _list(episodes: Episodes, console: Console) -> int:
    """One line per episode, from what is known of each."""
    rows = episodes.facts.select(
        ["id", "length", "duration_s", "task", "success", "total_reward"]
    ).to_pylist()
    console.emit(rows)
    cells = [["" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
              for value in row.values()] for row in rows]  # fmt: skip
    header = ["id", "length", "duration_s", "task", "success", "total_reward"]
    console.print_table(cells, header, right=[1, 2, 5])
    console.print(f"{len(rows)} episodes")
    return exits.OK


def _one(episode: Episode, console: Console) -> int:
    rows = [_row(name, episode) for name in episode.signals]
    static = {name: _shown(value) for name, value in episode.static.items()}
    console.emit({"signals": rows, "static": static, "meta": _shown(dict(episode.meta))})
    header = ["signal", "kind", "type", "records", "rate", "duration", "values"]
    cells = [
        [r["name"], r["kind"], r["type"], str(r["count"]), _rate(r), _span(r), r["sparkline"]] for r in rows
    ]
    console.print_table(cells, header, right=[3, 4, 5])
    _paint(episode, console)
    for name, value in static.items():
        console.print(console.fitted(f"{name} = {json.dumps(value, ensure_ascii=False)}"))
    return exits.DAMAGED if any("error" in row for row in rows) else exits.OK


def _paint(episode: Episode, console: Console) -> None:
    """The middle frame of every camera, where there is a terminal to see it."""
    if console.as_json or not console.color or not console.out.isatty():
        return
    from warpdata.cli.pictures import picture_lines
    from warpdata.errors import WarpError
    from warpdata.timeline.pictures import as_pixels, is_camera, limits_of

    for name, signal in episode.signals.items():
        try:
            if is_camera(signal.meta) and len(signal):
                row = len(signal) // 2
                pixels = as_pixels(signal[row][0], limits_of(signal))
                console.print(f"{console.fitted(name)}, frame {row}")
                console.print(
                    picture_lines(pixels, console.pictures, min(console.width - 2, _COLUMNS)).rstrip("\n")
                )
        except WarpError:
            continue  # the table above names it


def _row(name: str, episode: Any) -> dict[str, Any]:
    from warpdata.errors import WarpError

    row: dict[str, Any] = {"name": name, "kind": "?", "type": "", "count": 0, "sparkline": ""}
    try:
        signal = episode.signals[name]
        meta, count = signal.meta, len(signal)
        kind = meta.kind if meta.is_object else f"{meta.dtype}{list(meta.shape) if meta.shape else ''}"
        row |= {"kind": meta.kind, "type": kind, "count": count, "units": meta.units}
        if count:
            row |= {
                "first_ts_ns": signal.first_ts_ns,
                "last_ts_ns": signal.last_ts_ns,
                "sparkline": _spark(signal),
            }
    except WarpError as error:
        row |= {"error": str(error), "sparkline": f"error[{error.code}]"}
    return row


def _spark(signal: Signal) -> str:
    """How the values move: the channel that moves most, the brightness of images, the last text."""
    import numpy as np

    from warpdata.cli.sparkline import sparkline

    if signal.meta.is_object:
        return repr(signal[-1][0])[:_POINTS]
    rows = np.unique(np.linspace(0, len(signal) - 1, min(len(signal), _POINTS)).astype(np.int64))
    values = signal[rows].values()
    flat = values.reshape(len(rows), -1).astype(np.float64)
    livest = int(np.argmax(np.nan_to_num(flat.std(axis=0))))
    column = flat.mean(axis=1) if signal.meta.kind == "image" else flat[:, livest]
    return sparkline(column.tolist(), _POINTS)


def _rate(row: dict[str, Any]) -> str:
    span = row.get("last_ts_ns", 0) - row.get("first_ts_ns", 0)
    return f"{(row['count'] - 1) * 1e9 / span:.1f} Hz" if span > 0 else "-"


def _span(row: dict[str, Any]) -> str:
    from warpdata.cli.sparkline import human_time

    return human_time(row["last_ts_ns"] - row["first_ts_ns"]) if "first_ts_ns" in row else "-"


def _shown(value: Any) -> Any:
    """A value JSON can print: bytes as their length."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {key: _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value
