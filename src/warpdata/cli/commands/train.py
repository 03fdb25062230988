"""Commands around training: `warm`, `init`, `why`, `lanes`."""

from __future__ import annotations

import argparse
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.arguments import (
    add_actions,
    add_dataset_arguments,
    add_runner,
    function_of,
    open_named,
    ray_of,
    split_names,
)
from warpdata.cli.console import Output, add_json_flag, add_overwrite, check_free, human_bytes, table

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.cli.console import Console


def add_warm(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp warm`."""
    add_dataset_arguments(parser)
    parser.add_argument("--tables", help="names separated by commas (default: everything)")
    parser.add_argument("--artifacts", help="names separated by commas")
    parser.add_argument("--shards", help="first:last, such as 0:50")
    parser.add_argument("--max-bytes", help="stop before more than this is downloaded, such as 200GB")


def run_warm(args: argparse.Namespace, console: Console) -> Output:
    """Download shards into the cache."""
    with open_named(args) as dataset, console.progress("warming") as progress:
        report = dataset.warm(
            split_names(args.tables),
            artifacts=split_names(args.artifacts),
            shards=_parse_slice(args.shards),
            max_bytes=args.max_bytes,
            progress=progress,
        )
    lines = [f"{report.shards} blobs are here, {human_bytes(report.bytes_fetched)} were fetched"]
    if report.shards_skipped:
        lines.append(f"{report.shards_skipped} were left out: --max-bytes would have been exceeded")
    return Output(asdict(report), lines)


def _parse_slice(text: str | None) -> slice | None:
    if text is None:
        return None
    match = re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", text)
    if match is None:
        raise ValueError(f"--shards is {text!r}; write first:last")
    return slice(*(None if number is None else int(number) for number in match.groups()))


def add_init(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp init`."""
    add_dataset_arguments(parser)
    parser.add_argument("--table")
    parser.add_argument("--out", help="file to write (default: workspace_name_loader.py)")
    add_overwrite(parser)


def run_init(args: argparse.Namespace, _: Console) -> Output:
    """Write a loader script, with decoders for the bindings and a smoke test."""
    from warpdata.bytekit.io.commit import write_file
    from warpdata.catalog.manage.reports import loader_code, loader_name

    with open_named(args) as dataset:
        code, path = loader_code(dataset, args.table), Path(args.out or loader_name(dataset))
    check_free(path, overwrite=args.overwrite)
    write_file(path, code.encode())
    return Output({"path": str(path)}, [f"wrote {path}; try: python {path}"])


def add_why(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp why`."""
    parser.add_argument("state", help="a file that loader.save_state() wrote")
    parser.add_argument("step", type=int, help="the step, counted from 0 within its epoch")
    parser.add_argument("--epoch", type=int, help="the epoch (default: that of the state)")
    add_json_flag(parser)


def run_why(args: argparse.Namespace, _: Console) -> Output:
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


def add_lanes(parser: argparse.ArgumentParser) -> None:
    """Actions of `warp lanes`."""
    add_actions(
        parser,
        {
            "list": (
                "list prediction lanes, report stale ones, compare them with the recorded values",
                _add_list,
            ),
            "add": ("compute predictions and publish them as a lane of a new version", _add_add),
        },
    )


def _add_list(parser: argparse.ArgumentParser) -> None:
    add_dataset_arguments(parser)
    parser.add_argument("--lane", metavar="NAME", help="only this one")
    parser.add_argument("--worst", type=int, default=5, metavar="N", help="moments to name per signal (5)")
    parser.add_argument("--no-compare", action="store_true", help="do not read any values")


def _add_add(parser: argparse.ArgumentParser) -> None:
    add_dataset_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="name of the lane: the model")
    text = "called with an episode, returns an array with a row per record of the predicted signal"
    parser.add_argument("function", metavar="MODULE:FUNCTION", help=text)
    parser.add_argument(
        "--of", action="append", required=True, metavar="SIGNAL", help="the predicted signal; may be repeated"
    )
    parser.add_argument(
        "--revision",
        metavar="WORD",
        help="changes when the predictions do (default: a hash of the function's code)",
    )
    parser.add_argument("--message", default="")
    parser.add_argument("--tag", action="append", default=[])
    parser.add_argument("--sign", metavar="KEY.pem", help="put an Ed25519 signature beside the manifest")
    add_runner(parser, "compute predictions")


def run_lanes(args: argparse.Namespace, console: Console) -> Output:
    """List lanes or compute one."""
    return _list_lanes(args, console) if args.action == "list" else _add_lane(args, console)


def _add_lane(args: argparse.Namespace, console: Console) -> Output:
    function = function_of(args.function)
    with open_named(args) as dataset, console.progress(f"computing {args.name}") as progress:
        made = dataset.add_lane(
            args.name,
            function,
            of=args.of,
            revision=args.revision,
            message=args.message,
            tags=args.tag,
            sign_key=args.sign,
            jobs=args.jobs,
            ray=ray_of(args),
            progress=progress,
        )
    counts = (
        f"{made.computed} episodes computed, {made.resumed} were computed before it was stopped, "
        f"{made.reused} had not changed" + (f", {len(made.without)} lack the signal" if made.without else "")
    )
    return Output({**asdict(made), "version": made.version}, [str(made), counts])


def _list_lanes(args: argparse.Namespace, console: Console) -> Output:
    """One paragraph per lane; exit code 3 if something of a lane cannot be read."""
    values: list[dict[str, Any]] = []
    lines: list[str] = []
    is_damaged = False
    with open_named(args) as dataset:
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
