"""Commands around training: `init`, `why`, `lanes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Console, Exit, Output, table

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset


@cli.command("warp init lab/arm")
def run_init(
    warp: cli.Warp,
    dataset: str,
    *,
    table: str | None = None,
    output: str | None = None,
    overwrite: bool = False,
) -> Output:
    """Write a loader script for a dataset, with decoders for the bindings and a smoke test."""
    from warpdata.bytekit.io.commit import commit_file
    from warpdata.catalog.manage.reports import loader_code

    with warp.open_dataset(dataset) as opened:
        name = opened.id.replace("/", "_").replace("-", "_")
        code, path = loader_code(opened, table), Path(output or f"{name}_loader.py")
    with commit_file(path, replace=overwrite) as out:
        out.write(code.encode())
    return Output({"path": str(path)}, [f"wrote {path}; try: python {path}"])


@cli.command(
    "warp why state.json 120",
    columns={
        "sample": "sample_id",
        "source": "source",
        "dataset": lambda s: s.dataset if s.version is None else f"{s.dataset}@{s.version[:12]}",
        "episode": "episode_id",
        "ts_ns": "ts_ns",
        "holds": lambda s: (s.blob or s.content)[:24],
    },
    right=("sample", "ts_ns"),
)
def run_why(
    _: cli.Warp,
    state: Annotated[str, "a file that loader.save_state() wrote"],
    step: int,
    *,
    epoch: Annotated[int | None, "default: that of the state"] = None,
) -> Sequence[Any]:
    """Name the samples of a training step; no values are read."""
    from warpdata._api.state import loader_of_state

    return loader_of_state(state).why(step, epoch=epoch)


@cli.command("warp lanes list lab/arm")
def run_lanes_list(
    warp: cli.Warp,
    dataset: str,
    *,
    lane: Annotated[str | None, cli.Arg("only this one", "NAME")] = None,
    worst: Annotated[int, "moments to name per signal"] = 5,
    compare: Annotated[bool, "compare with the recorded values, which are read"] = True,
) -> Output:
    """List prediction lanes, report stale ones, compare them with the recorded values.

    Exit code 3 if something of a lane cannot be read.
    """
    values: list[dict[str, Any]] = []
    lines: list[str] = []
    is_damaged = False
    with warp.open_dataset(dataset) as opened:
        for name in opened.lanes if lane is None else [lane]:
            status, report = opened.lane_status(name), None
            if compare:
                with warp.progress(f"comparing {name}") as progress:
                    report = opened.compare_lane(name, worst=worst, progress=progress)
                is_damaged |= bool(report.damaged)
            about = opened.lanes[name]
            facts = {
                "name": name,
                "of": list(about.of),
                "signals": dict(about.signals),
                "revision": about.revision,
            }
            values.append({**facts, "status": status, "compared": report})
            lines += _lane_lines(opened, name, status, report, warp.console)
        if not values:
            lines = [f"{opened.id}@{opened.version[:12]} has no lanes; `warp lanes add` computes one"]
    return Output(values, lines, fit=True, code=Exit.DAMAGED if is_damaged else Exit.OK)


def _lane_lines(dataset: Dataset, name: str, status: Any, report: Any, console: Console) -> list[str]:
    lane = dataset.lanes[name]
    lines = [
        f"{name}: predicts {', '.join(lane.of)} (revision {lane.revision})",
        f"  {len(status.current)} episodes current, {len(status.stale)} stale, {len(status.missing)} without",
    ]
    if status.is_stale:
        some = [*status.stale, *status.missing]
        listed = ", ".join(some[:5]) + (", …" if len(some) > 5 else "")
        lines.append(f"  compute it again (`warp lanes add`) for {listed}")
    if report is None:
        return lines

    def number(value: float) -> str:
        return f"{value:.4g}" if math.isfinite(value) else "-"

    rows = [[s.signal, str(s.moments), *map(number, (s.mean_abs, s.rms, s.largest))] for s in report.signals]
    header = ["prediction", "moments", "mean |error|", "rms", "largest"]
    lines += [f"  {line}" for line in table(rows, header, right=[1, 2, 3, 4], fit_width=console.fit_width)]
    for signal in report.signals:
        for moment in signal.worst:
            where = f"{dataset.id}#{moment.episode_id} at {moment.ts_ns} ns"
            lines.append(f"  worst of {signal.of}: {where}, off by {number(moment.error)}")
    return [*lines, *(f"  {episode} cannot be read: {why}" for episode, why in report.damaged.items())]


_FUNCTION = "called with an episode, returns an array with a row per record of the predicted signal"


class LaneOptions(cli.Publishing, cli.Work, total=False):
    """Options of `Dataset.add_lane`."""

    revision: str


@cli.command("warp lanes add lab/arm act my_model:predict --of action")
def run_lanes_add(
    warp: cli.Warp,
    dataset: str,
    name: Annotated[str, "name of the lane: the model"],
    function: Annotated[str, cli.Arg(_FUNCTION, "MODULE:FUNCTION")],
    *,
    of: Annotated[Sequence[str], cli.Arg("the predicted signal; may be repeated", "SIGNAL")],
    **options: Unpack[LaneOptions],
) -> Output:
    """Compute predictions and publish them as a lane of a new version."""
    predict = cli.import_function(function)
    with warp.open_dataset(dataset) as opened, warp.progress(f"computing {name}") as bar:
        made = opened.add_lane(name, predict, of=of, progress=bar, **options)
    counts = (
        f"{made.computed} episodes computed, {made.resumed} were computed before it was stopped, "
        f"{made.reused} had not changed" + (f", {len(made.without)} lack the signal" if made.without else "")
    )
    return Output({**asdict(made), "version": made.version}, [str(made), counts])
