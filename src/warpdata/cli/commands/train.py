"""Commands around training: `init`, `why`, `lanes`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output, table

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.cli.console import Console


@cli.command(
    "write a loader script for a dataset",
    cli.DATASET,
    cli.arg("--table"),
    cli.arg(
        "--output",
        "--out",
        dest="out",
        metavar="FILE",
        help="file to write (default: workspace_name_loader.py)",
    ),
    cli.OVERWRITE,
    example="warp init lab/arm",
)
def run_init(args: cli.Namespace, _: Console) -> Output:
    """Write a loader script, with decoders for the bindings and a smoke test."""
    from warpdata.bytekit.io.commit import write_file
    from warpdata.catalog.manage.reports import loader_code, loader_name

    with cli.open_named(args) as dataset:
        code, path = loader_code(dataset, args.table), Path(args.out or loader_name(dataset))
    cli.check_free(path, overwrite=args.overwrite)
    write_file(path, code.encode())
    return Output({"path": str(path)}, [f"wrote {path}; try: python {path}"])


@cli.command(
    "name the samples of a training step",
    cli.arg("state", help="a file that loader.save_state() wrote"),
    cli.arg("step", type=int, help="the step, counted from 0 within its epoch"),
    cli.number("--epoch", default=None, text="the epoch (default: that of the state)"),
    cli.JSON,
    example="warp why state.json 120",
)
def run_why(args: cli.Namespace, _: Console) -> Output:
    """One line per sample of a step; no values are read."""
    from warpdata._api.state import loader_of_state

    samples = loader_of_state(args.state).why(args.step, epoch=args.epoch)
    return Output(
        [sample.to_json() for sample in samples],
        rows=samples,
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


@cli.command(
    "list prediction lanes, report stale ones, compare them with the recorded values",
    cli.DATASET,
    cli.arg("--lane", metavar="NAME", help="only this one"),
    cli.number("--worst", default=5, text="moments to name per signal (5)"),
    cli.flag("--no-compare", "do not read any values"),
    example="warp lanes list lab/arm",
)
def run_lanes_list(args: cli.Namespace, console: Console) -> Output:
    """One paragraph per lane; exit code 3 if something of a lane cannot be read."""
    values: list[dict[str, Any]] = []
    lines: list[str] = []
    is_damaged = False
    with cli.open_named(args) as dataset:
        for name in dataset.lanes if args.lane is None else [args.lane]:
            status = dataset.lane_status(name)
            report = None
            if not args.no_compare:
                with console.progress(f"comparing {name}") as progress:
                    report = dataset.compare_lane(name, worst=args.worst, progress=progress)
                is_damaged |= bool(report.damaged)
            lane = dataset.lanes[name]
            values.append(
                {
                    "name": name,
                    "of": list(lane.of),
                    "signals": dict(lane.signals),
                    "revision": lane.revision,
                    "status": status.to_json(),
                    "compared": None if report is None else report.to_json(),
                }
            )
            lines += _lane_lines(dataset, name, status, report, console)
        if not values:
            lines = [f"{dataset.id}@{dataset.version[:12]} has no lanes; `warp lanes add` computes one"]
    return Output(values, lines, fit=True, code=exits.DAMAGED if is_damaged else exits.OK)


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
    rows = [
        [s.signal, str(s.moments), *map(_number_text, (s.mean_abs, s.rms, s.largest))] for s in report.signals
    ]
    header = ["prediction", "moments", "mean |error|", "rms", "largest"]
    lines += [f"  {line}" for line in table(rows, header, right=[1, 2, 3, 4], fit_width=console.fit_width)]
    for signal in report.signals:
        for moment in signal.worst:
            where = f"{dataset.id}#{moment.episode_id} at {moment.ts_ns} ns"
            lines.append(f"  worst of {signal.of}: {where}, off by {_number_text(moment.error)}")
    return [*lines, *(f"  {episode} cannot be read: {why}" for episode, why in report.damaged.items())]


def _number_text(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"


_FUNCTION = "called with an episode, returns an array with a row per record of the predicted signal"
REVISION = cli.arg(
    "--revision", metavar="WORD", help="changes when the results do (default: a hash of the function's code)"
)


@cli.command(
    "compute predictions and publish them as a lane of a new version",
    cli.DATASET,
    cli.arg("name", metavar="NAME", help="name of the lane: the model"),
    cli.arg("function", metavar="MODULE:FUNCTION", help=_FUNCTION),
    cli.arg(
        "--of", action="append", required=True, metavar="SIGNAL", help="the predicted signal; may be repeated"
    ),
    REVISION,
    cli.PUBLISHING,
    cli.runner("compute predictions"),
    example="warp lanes add lab/arm act my_model:predict --of action",
)
def run_lanes_add(args: cli.Namespace, console: Console) -> Output:
    """Compute a lane."""
    function = cli.import_function(args.function)
    with cli.open_named(args) as dataset, console.progress(f"computing {args.name}") as progress:
        made = dataset.add_lane(
            args.name,
            function,
            of=args.of,
            revision=args.revision,
            message=args.message,
            tags=args.tag,
            sign_key=args.sign,
            jobs=args.jobs,
            ray=cli.ray_address(args),
            progress=progress,
        )
    counts = (
        f"{made.computed} episodes computed, {made.resumed} were computed before it was stopped, "
        f"{made.reused} had not changed" + (f", {len(made.without)} lack the signal" if made.without else "")
    )
    return Output({**asdict(made), "version": made.version}, [str(made), counts])
