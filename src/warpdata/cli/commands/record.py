"""Commands that record: `record`, `salvage`, `replay`, `demo`."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output, table

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_DRAW_S = 0.1


@cli.command(
    "record a simulated robot",
    cli.arg("root", help="the dataset root to add the episode to"),
    cli.arg("--demo", action="store_true", required=True, help="record the simulated robot"),
    cli.arg(
        "--duration",
        type=cli.time_argument,
        metavar="TIME",
        help="stop after this, such as 5s; default: until Ctrl-C",
    ),
    cli.arg("--seconds", type=float, help="the same, as a number of seconds"),
    cli.flag("--fast", "do not wait for the clock; needs --duration"),
    cli.number("--seed", default=0, text="seed of the movement"),
    cli.JSON,
    example="warp record robot_data --demo --duration 5s",
)
def run_record(args: cli.Namespace, console: Console) -> Output:
    """Record until the time is over or Ctrl-C; the episode is finished either way."""
    if args.duration is not None:
        args.seconds = args.duration / 1e9
    if args.fast and args.seconds is None:
        raise ValueError("--fast needs --duration")
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise ValueError("--duration must be positive")
    from warpdata._api import open_episode
    from warpdata.episodes.demo_robot import demo_records, demo_static
    from warpdata.episodes.record.recorder import LocalDatasetWriter

    writer = LocalDatasetWriter(args.root).new_episode()
    start_ns, began = time.time_ns(), time.monotonic()
    try:
        with writer:
            for name, value in demo_static(args.seed).items():
                writer.set_static(name, value)
            console.print(f"recording {writer.path}" + ("" if args.seconds else "; Ctrl-C ends it"))
            for ts_ns, name, value in demo_records(args.seed, start_ns, args.seconds or math.inf):
                elapsed_s = (ts_ns - start_ns) / 1e9
                if not args.fast and (ahead := elapsed_s - (time.monotonic() - began)) > 0:
                    time.sleep(ahead)
                writer.append(name, value, ts_ns)
    except KeyboardInterrupt:
        console.print("stopped by the user")
    signals = open_episode(str(writer.path), edited=False).signals
    counts = {name: len(signal) for name, signal in signals.items()}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Output({"episode": str(writer.path), "records": counts}, [f"finished {writer.path}: {listed}"])


_PATHS = "a .partial or its final name, a signal file, an episode directory, a root, ROOT#ID"


@cli.command(
    "finish interrupted recordings",
    cli.arg("paths", nargs="+", metavar="PATH", help=_PATHS),
    cli.arg("--output", help="where to write it (one PATH only)"),
    cli.OVERWRITE,
    cli.JSON,
    example="warp salvage robot_data",
)
def run_salvage(args: cli.Namespace, console: Console) -> Output:
    """Salvage each path; one that fails does not stop the others."""
    from warpdata.errors import WarpError

    if args.output and len(args.paths) > 1:
        raise ValueError("--output takes one PATH")
    receipts: list[Any] = []
    failed = False
    for path in args.paths:
        try:
            done = _salvage(path, args, console)
        except WarpError as error:
            failed = True
            console.error(error.code, str(error), error.hint)
            continue
        if not done:
            console.print(f"{path}: nothing to salvage")
        receipts += done
    is_complete = all(receipt.is_complete for receipt in receipts)
    return Output(
        [receipt.to_json() for receipt in receipts],
        [line for receipt in receipts for line in receipt.lines()],
        fit=True,
        code=exits.ERROR if failed else exits.OK if is_complete else exits.DAMAGED,
    )


def _salvage(path: str, args: cli.Namespace, console: Console) -> list[Any]:
    """One receipt, or one per unfinished episode of a root."""
    from warpdata._api import divided_address
    from warpdata.episodes.collection.edits import episode_path
    from warpdata.episodes.salvage.recordings import salvage, salvage_folder

    root, inside = divided_address(path)
    if inside is not None and inside.isdigit() and os.path.isdir(root):
        path = str(episode_path(Path(root), int(inside)))
    if os.path.isdir(path):
        if args.output:
            raise ValueError("--output takes a file: a recording in a directory is finished in place")
        return list(salvage_folder(path, overwrite=args.overwrite))
    with console.progress("salvage") as bar:
        return [salvage(path, args.output, overwrite=args.overwrite, progress=bar)]


@cli.command(
    "play an episode back",
    cli.address("an episode"),
    cli.arg("--speed", type=float, default=1.0, help="1 is the original timing"),
    cli.flag("--fast", "as fast as possible"),
    cli.arg("--start", type=cli.moment_argument, metavar="TIME", help=f"from here on: {cli.MOMENT}"),
    cli.arg("--end", type=cli.moment_argument, metavar="TIME", help="up to here"),
    cli.arg("--signal", action="append", metavar="NAME", help="only this one; may be repeated"),
    cli.JSON,
    example="warp replay robot_data#3 --speed 2",
)
def run_replay(args: cli.Namespace, console: Console) -> Output:
    """Play, redrawing the table in a terminal; elsewhere only its last state is printed."""
    from warpdata.episodes.collection.replay import replay

    live = _LiveTable(console)
    episode = cli.open_one(args)
    if args.start is not None or args.end is not None:
        first, last = episode.first_ts_ns, episode.last_ts_ns
        from_ns, to_ns = args.start and args.start(first), args.end and args.end(first)
        if from_ns is not None and to_ns is not None and from_ns >= to_ns:
            raise ValueError("--end is not after --start")
        if (from_ns is not None and from_ns > last) or (to_ns is not None and to_ns <= first):
            raise ValueError(
                f"no records in this range: the episode goes from 0 to {(last - first) / 1e9:.3f} s"
            )
        episode = episode.time[from_ns:to_ns]
    with cli.name_errors():
        played = replay(episode, live, speed=None if args.fast else args.speed, signals=args.signal)
    live.draw()
    return Output({"played": played, "records": live.counts}, [f"{played} records played"])


class _LiveTable:
    """The last value of each signal, redrawn at most ten times a second."""

    def __init__(self, console: Console) -> None:
        self.counts: dict[str, int] = {}
        self._console = console
        self._last: dict[str, tuple[str, int]] = {}
        self._first_ns: int | None = None
        self._drawn_s = 0.0
        self._lines = 0

    def __call__(self, name: str, value: Any, ts_ns: int) -> None:
        self._first_ns = ts_ns if self._first_ns is None else self._first_ns
        self.counts[name] = self.counts.get(name, 0) + 1
        self._last[name] = (_value_text(value), ts_ns - self._first_ns)
        if self._console.out.isatty() and time.monotonic() - self._drawn_s > _DRAW_S:
            self.draw()

    def draw(self) -> None:
        """Print the table over the previous one."""
        if self._console.as_json:
            return
        if self._lines and self._console.out.isatty():
            self._console.out.write(f"\x1b[{self._lines}A\x1b[J")
        rows = [
            [name, f"{at / 1e9:.3f}", str(self.counts[name]), text] for name, (text, at) in self._last.items()
        ]
        header = ["signal", "time", "records", "value"]
        lines = table(rows, header, right=[1, 2], fit_width=self._console.fit_width)
        for line in lines:
            self._console.print(line)
        self._lines = len(lines)
        self._drawn_s = time.monotonic()


def _value_text(value: Any) -> str:
    import numpy as np

    if isinstance(value, np.ndarray):
        if value.size > 12:
            return f"{value.dtype}{list(value.shape)} mean {value.mean():.2f}"
        return np.array2string(value, precision=3, separator=" ").replace("\n", "")
    return repr(value) if isinstance(value, str | bytes) else f"{value}"


@cli.command(
    "run the whole way from sensor to training",
    cli.arg("folder", nargs="?", help="where to write; default: warp-demo here, or warp-demo-2, …"),
    example="warp demo",
)
def run_demo(args: cli.Namespace, console: Console) -> Output:
    """Run the demo; everything it makes stays in the folder."""
    from warpdata.cli.demo_story import run_story

    folder, number = Path(args.folder or "warp-demo"), 1
    while args.folder is None and folder.exists():
        number += 1
        folder = Path(f"warp-demo-{number}")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder is not empty: {folder}")
    run_story(folder, console)
    return Output()
