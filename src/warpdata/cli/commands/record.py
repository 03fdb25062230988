"""Commands that record: `record`, `salvage`, `replay`, `demo`."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from warpdata.cli import arguments as cli
from warpdata.cli.console import Console, Exit, Output, table
from warpdata.errors import WarpError

_DRAW_S = 0.1


@cli.command("warp record robot_data --demo --duration 5s")
def run_record(
    warp: cli.Warp, root: str, *, demo: bool, duration: int | None = None, fast: bool = False, seed: int = 0
) -> Output:
    """Record a simulated robot until the time is over or Ctrl-C; the episode is finished either way."""
    assert demo  # the option is required: the simulated robot is the only one
    if fast and duration is None:
        raise ValueError("--fast needs --duration")
    if duration is not None and duration <= 0:
        raise ValueError("--duration must be positive")
    from warpdata._api import open_episode
    from warpdata.episodes.demo_robot import demo_records, demo_static
    from warpdata.episodes.record.recorder import LocalDatasetWriter

    writer = LocalDatasetWriter(root).new_episode()
    start_ns, began = time.time_ns(), time.monotonic()
    try:
        with writer:
            for name, value in demo_static(seed).items():
                writer.set_static(name, value)
            warp.console.print(f"recording {writer.path}" + ("" if duration else "; Ctrl-C ends it"))
            for ts_ns, name, value in demo_records(seed, start_ns, duration / 1e9 if duration else math.inf):
                ahead_s = (ts_ns - start_ns) / 1e9 - (time.monotonic() - began)
                if not fast and ahead_s > 0:
                    time.sleep(ahead_s)
                writer.append(name, value, ts_ns)
    except KeyboardInterrupt:
        warp.console.print("stopped by the user")
    signals = open_episode(str(writer.path), edited=False).signals
    counts = {name: len(signal) for name, signal in signals.items()}
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Output({"episode": str(writer.path), "records": counts}, [f"finished {writer.path}: {listed}"])


@cli.command("warp salvage robot_data")
def run_salvage(
    warp: cli.Warp, paths: Sequence[str], *, output: str | None = None, overwrite: bool = False
) -> Output:
    """Finish interrupted recordings; one that fails does not stop the others.

    A path is a .partial or its final name, a signal file, an episode directory, a root, or ROOT#ID.
    """
    if output and len(paths) > 1:
        raise ValueError("--output takes one PATH")
    receipts: list[Any] = []
    failed = False
    for path in paths:
        try:
            done = _salvage(warp, path, output, overwrite)
        except WarpError as error:
            failed = True
            warp.console.error(error.code, str(error), error.hint)
            continue
        if not done:
            warp.console.print(f"{path}: nothing to salvage")
        receipts += done
    is_complete = all(receipt.is_complete for receipt in receipts)
    return Output(
        receipts,
        [line for receipt in receipts for line in receipt.lines()],
        fit=True,
        code=Exit.ERROR if failed else Exit.OK if is_complete else Exit.DAMAGED,
    )


def _salvage(warp: cli.Warp, path: str, output: str | None, overwrite: bool) -> list[Any]:
    """One receipt, or one per unfinished episode of a root."""
    from warpdata._api import divided_address
    from warpdata.episodes.salvage.recordings import salvage, salvage_folder
    from warpdata.formats.episodedir.documents import episode_path

    root, inside = divided_address(path)
    if inside is not None and inside.isdigit() and os.path.isdir(root):
        path = str(episode_path(Path(root), int(inside)))
    if os.path.isdir(path):
        if output:
            raise ValueError("--output takes a file: a recording in a directory is finished in place")
        return list(salvage_folder(path, overwrite=overwrite))
    with warp.progress("salvage") as bar:
        return [salvage(path, output, overwrite=overwrite, progress=bar)]


@cli.command("warp replay robot_data#3 --speed 2")
def run_replay(
    warp: cli.Warp,
    address: str,
    episode: str | None = None,
    *,
    speed: Annotated[float, "1 is the original timing"] = 1.0,
    fast: bool = False,
    start: cli.Moment | None = None,
    end: cli.Moment | None = None,
    signals: Sequence[str] | None = None,
) -> Output:
    """Play an episode back; a terminal shows the values as they come, elsewhere only the last ones are printed."""
    from warpdata.episodes.collection.replay import replay

    opened = warp.open_episode(cli.join_address(address, episode))
    if start is not None or end is not None:
        first, last = opened.first_ts_ns, opened.last_ts_ns
        from_ns, to_ns = start and start(first), end and end(first)
        if from_ns is not None and to_ns is not None and from_ns >= to_ns:
            raise ValueError("--end is not after --start")
        if (from_ns is not None and from_ns > last) or (to_ns is not None and to_ns <= first):
            raise ValueError(
                f"no records in this range: the episode goes from 0 to {(last - first) / 1e9:.3f} s"
            )
        opened = opened.time[from_ns:to_ns]
    live = _LiveTable(warp.console)
    played = replay(opened, live, speed=None if fast else speed, signals=signals)
    live.draw()
    return Output({"played": played, "records": live.counts}, [f"{played} records played"])


class _LiveTable:
    """The last value of each signal, redrawn at most ten times a second."""

    def __init__(self, console: Console) -> None:
        self.counts: dict[str, int] = {}
        self._console = console
        self._rows: dict[str, list[str]] = {}
        self._first_ns: int | None = None
        self._drawn_s = 0.0
        self._lines = 0

    def __call__(self, name: str, value: Any, ts_ns: int) -> None:
        import numpy as np

        self._first_ns = ts_ns if self._first_ns is None else self._first_ns
        self.counts[name] = self.counts.get(name, 0) + 1
        after = f"{(ts_ns - self._first_ns) / 1e9:.3f}"
        shown = repr(value) if isinstance(value, str | bytes) else f"{value}"
        if isinstance(value, np.ndarray) and value.size > 12:
            shown = f"{value.dtype}{list(value.shape)} mean {value.mean():.2f}"
        elif isinstance(value, np.ndarray):
            shown = np.array2string(value, precision=3, separator=" ").replace("\n", "")
        self._rows[name] = [name, after, str(self.counts[name]), shown]
        if self._console.out.isatty() and time.monotonic() - self._drawn_s > _DRAW_S:
            self.draw()

    def draw(self) -> None:
        """Print the table over the previous one."""
        if self._lines and self._console.out.isatty() and not self._console.as_json:
            self._console.out.write(f"\x1b[{self._lines}A\x1b[J")
        header = ["signal", "time", "records", "value"]
        lines = table(list(self._rows.values()), header, right=[1, 2], fit_width=self._console.fit_width)
        self._console.print("\n".join(lines))
        self._lines, self._drawn_s = len(lines), time.monotonic()


@cli.command("warp demo", has_json=False)
def run_demo(
    warp: cli.Warp, folder: Annotated[str | None, "default: warp-demo here, or warp-demo-2, …"] = None
) -> Output:
    """Run the whole way from sensor to training; everything it makes stays in the folder."""
    from warpdata.cli.demo_story import run_story

    path, number = Path(folder or "warp-demo"), 1
    while folder is None and path.exists():
        number += 1
        path = Path(f"warp-demo-{number}")
    if path.exists() and any(path.iterdir()):
        raise ValueError(f"folder is not empty: {path}")
    run_story(path, warp.console)
    return Output()
