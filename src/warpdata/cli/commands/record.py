"""`warp record --demo`: record a simulated robot, to see the whole path without one."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import time_argument
from warpdata.cli.console import add_json_flag

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp record`."""
    parser.add_argument("root", help="the dataset root to add the episode to")
    parser.add_argument("--demo", action="store_true", required=True, help="record the simulated arm")
    parser.add_argument(
        "--duration",
        type=time_argument,
        metavar="TIME",
        help="stop after this long, such as 5s; default: until Ctrl-C",
    )
    parser.add_argument("--seconds", type=float, help="the same, as a number of seconds")
    parser.add_argument("--fast", action="store_true", help="do not wait for the clock; needs --duration")
    parser.add_argument("--seed", type=int, default=0, help="what the arm does")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Record until the time is over or Ctrl-C; the episode is finished either way."""
    if args.duration is not None:
        args.seconds = args.duration / 1e9
    if args.fast and args.seconds is None:
        raise ValueError("--fast needs --duration")
    if args.seconds is not None and not 0 < args.seconds < math.inf:
        raise ValueError("--duration is positive")
    from warpdata.episodes.collection.local import LocalDatasetWriter
    from warpdata.episodes.demo_arm import describe_demo

    writer = LocalDatasetWriter(args.root).new_episode()
    try:
        with writer:
            describe_demo(writer, args.seed)
            console.print(f"recording {writer.path}" + ("" if args.seconds else "; Ctrl-C ends it"))
            _record(writer, args)
    except KeyboardInterrupt:
        console.print("stopped by the user")
    counts = _counts(writer.path)
    console.emit({"episode": str(writer.path), "records": counts})
    console.print(
        f"finished {writer.path}: " + ", ".join(f"{name} {count}" for name, count in counts.items())
    )
    return exits.OK


def _record(writer: Any, args: argparse.Namespace) -> None:
    import time

    from warpdata.episodes.demo_arm import demo_records

    start_ns, began = time.time_ns(), time.monotonic()
    for ts_ns, name, value in demo_records(args.seed, start_ns):
        elapsed_s = (ts_ns - start_ns) / 1e9
        if args.seconds is not None and elapsed_s >= args.seconds:
            return
        if not args.fast and (ahead := elapsed_s - (time.monotonic() - began)) > 0:
            time.sleep(ahead)
        writer.append(name, value, ts_ns)


def _counts(path: Any) -> dict[str, int]:
    from warpdata.episodes.sources.disk_episode import DiskEpisode

    episode = DiskEpisode(path)
    return {name: len(signal) for name, signal in episode.signals.items()}
