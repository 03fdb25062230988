"""`warp lanes`: what models said about the episodes of a dataset, and how far it is from what was recorded."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.console import table

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.lanes.compare import LaneReport
    from warpdata.catalog.lanes.lane import LaneStatus
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp lanes`."""
    from warpdata.cli.commands._dataset import add_dataset_arguments

    add_dataset_arguments(parser)
    parser.add_argument("--lane", metavar="NAME", help="only this one")
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="moments to name per signal (5)")
    parser.add_argument("--no-compare", action="store_true", help="do not read any values")


def run(args: argparse.Namespace, console: Console) -> int:
    """One paragraph per lane; 3 where something of a lane cannot be read."""
    from warpdata.cli.commands._dataset import open_named

    found: list[dict[str, Any]] = []
    is_damaged = False
    with open_named(args) as dataset:
        for name in dataset.lanes if args.lane is None else [args.lane]:
            status = dataset.lane_status(name)
            report = None if args.no_compare else _compared(dataset, name, args.worst, console)
            is_damaged |= report is not None and bool(report.damaged)
            found.append(_as_json(dataset, name, status, report))
            _show(dataset, name, status, report, console)
        if not found:
            console.print(f"{dataset.id}@{dataset.version[:12]} has no lanes; `warp lane` computes one")
    console.emit(found)
    return exits.DAMAGED if is_damaged else exits.OK


def _compared(dataset: Dataset, name: str, worst: int, console: Console) -> LaneReport:
    with console.progress(f"comparing {name}") as progress:
        return dataset.compare_lane(name, worst=worst, progress=progress)


def _as_json(dataset: Dataset, name: str, status: LaneStatus, report: LaneReport | None) -> dict[str, Any]:
    lane = dataset.lanes[name]
    return {
        "name": name, "of": list(lane.of), "signals": dict(lane.signals), "revision": lane.revision,
        "status": status.to_json(), "compared": None if report is None else report.to_json(),
    }  # fmt: skip


def _show(
    dataset: Dataset, name: str, status: LaneStatus, report: LaneReport | None, console: Console
) -> None:
    lane = dataset.lanes[name]
    console.print(console.fitted(f"{name}: predicts {', '.join(lane.of)} (revision {lane.revision})"))
    console.print(
        f"  {len(status.current)} episodes current, {len(status.stale)} stale, {len(status.missing)} without"
    )
    if status.is_stale:
        some = [*status.stale, *status.missing]
        listed = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
        console.print(console.fitted(f"  compute it again (`warp lane`) for {listed}"))
    if report is None:
        return
    rows = [
        [each.signal, str(each.moments), _number(each.mean_abs), _number(each.rms), _number(each.largest)]
        for each in report.signals
    ]
    header = ["prediction", "moments", "mean |error|", "rms", "largest"]
    for line in table(rows, header, right=[1, 2, 3, 4], fit_width=console.fit_width):
        console.print(f"  {line}")
    for each in report.signals:
        for moment in each.worst:
            where = f"{dataset.id}#{moment.episode_id}"
            console.print(
                f"  worst of {each.of}: {where} at {moment.ts_ns} ns, off by {_number(moment.error)}"
            )
    for episode, why in report.damaged.items():
        console.print(console.fitted(f"  {episode} cannot be read: {why}"))


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"
