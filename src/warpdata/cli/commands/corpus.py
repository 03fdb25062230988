"""`warp corpus`: look at, check, convert and sample activation corpora."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Unpack

from warpdata.cli import exits
from warpdata.cli.arguments import add_actions
from warpdata.cli.console import Output, add_json_flag, add_overwrite, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.corpora.rows import RowBatch
    from warpdata.corpora.source import FixedOrderSource, SourceKeywords

_FILE_SUFFIXES = (
    *(".npz", ".csv", ".json", ".jsonl", ".parquet", ".h5", ".hdf5"),
    *(".pt", ".pth", ".bin", ".shard", ".tar"),
)
"""Suffixes of files that cannot be written; a corpus folder has none of them."""

_INPUT = "a corpus folder, a bf16 directory, or shard files in order; or their URLs (s3, gs, az, http)"


def add_corpus(parser: argparse.ArgumentParser) -> None:
    """Actions of `warp corpus`."""
    add_actions(
        parser,
        {
            "info": ("describe a corpus", _add_input),
            "verify": ("check shards against corpus.json; exit code 3 if anything is damaged", _add_input),
            "stats": ("mean, RMS and norms of the rows", _add_stats),
            "head": ("the first rows, or those from --start", _add_head),
            "convert": ("to a corpus, or a corpus to .npy or .safetensors", _add_convert),
            "sample": ("random rows, the same for the same seed", _add_sample),
        },
    )


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="CORPUS", help=_INPUT)
    add_json_flag(parser)


def _add_stats(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("--recompute", action="store_true", help="read every row instead of corpus.json")


def _add_head(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("-n", "--rows", type=int, default=5, help="number of rows (5)")
    parser.add_argument("--start", type=int, default=0, metavar="ROW", help="id of the first row (0)")


def _add_sample(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("-n", "--rows", type=int, default=5, help="number of rows (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float, help="choose by row id: the nested subsample of this size")
    parser.add_argument(
        "--out", metavar="FILE.npy", help="write the rows as float32 instead of printing them"
    )


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help=".npy, .safetensors, a bf16 directory, or a folder of shards")
    parser.add_argument("output", help="a new corpus folder, or a .npy or .safetensors file")
    add_overwrite(parser)
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), help="stored type of the rows")
    parser.add_argument("--tensor", help="the tensor of a safetensors file")
    parser.add_argument("--shard-mib", type=int, default=512, help="size of a shard in MiB (512)")
    add_json_flag(parser)


def run_corpus(args: argparse.Namespace, console: Console) -> Output:
    """Run one action."""
    if args.action == "info":
        return corpus_info(args.paths)
    actions = {
        "verify": _verify,
        "stats": _stats,
        "head": _head,
        "convert": _convert,
        "sample": _sample,
    }
    return actions[args.action](args, console)


def _open(paths: list[str], **options: Unpack[SourceKeywords]) -> FixedOrderSource:
    from warpdata._api import open_corpus

    return open_corpus(paths, **options)


def corpus_info(paths: list[str]) -> Output:
    """Describe a corpus."""
    with _open(paths) as source:
        shards, record = source.shards, source.shards.record
        facts: dict[str, Any] = {
            "rows": source.total_rows,
            "width": source.width,
            "dtype": shards.dtype.name,
            "payload_bytes": shards.payload_bytes,
            "shards": len(shards.shards),
            "has_checksums": shards.run_crcs is not None,
            "is_complete": None if record is None else record.is_complete,
            "columns": {} if record is None else dict(record.columns),
            "provenance": {} if record is None else dict(record.provenance),
        }
    shown = {**facts, "payload_bytes": human_bytes(facts["payload_bytes"])}
    columns: dict[str, Any] = {"corpus": lambda item: item[0], "": lambda item: _plain_text(item[1])}
    return Output(facts, rows=list(shown.items()), columns=columns)


def _plain_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "-"
    return "-" if value is None else str(value)


def _verify(args: argparse.Namespace, console: Console) -> Output:
    from dataclasses import asdict

    findings: list[Any] = []
    with console.progress("verify") as bar:
        for path in args.paths:
            findings += corpus_findings(path, bar)
    damaged = any(finding.is_damage for finding in findings)
    lines = [f"{'damaged' if f.is_damage else 'odd'}: {f.message}: {f.part}" for f in findings]
    return Output(
        {"is_damaged": damaged, "findings": [asdict(finding) for finding in findings]},
        lines or ["sound"],
        style={"damaged:": "red", "odd:": "yellow"},
        code=exits.DAMAGED if damaged else exits.OK,
    )


def corpus_findings(path: str, bar: Any = None) -> list[Any]:
    """Every finding about one corpus or shard, also if it does not open."""
    from warpdata.errors import AuthenticationError, FileFinding, UnavailableError, WarpError
    from warpdata.formats.gamsae.corpus import verify_folder, verify_shard

    try:
        with _open([path]) as source:
            if "://" in path:
                return _remote_findings(source, bar)
        return list(verify_folder(path, bar) if os.path.isdir(path) else verify_shard(path))
    except WarpError as error:
        exists = "://" in path or os.path.exists(path)
        if not exists or isinstance(error, UnavailableError | AuthenticationError):
            raise  # nothing is known about bytes that did not arrive
        try:
            deeper = list(verify_folder(path)) if os.path.isdir(path) else []
        except WarpError:
            deeper = []
        others = [finding for finding in deeper if finding.message != str(error)]
        return [FileFinding.of(error, path), *others]


def _remote_findings(source: Any, bar: Any) -> list[Any]:
    """Read all bytes of a corpus in a store that corpus.json has checksums of."""
    from warpdata.formats.gamsae.corpus import verify_reader

    record, findings = source.shards.record, []
    for index, reader in enumerate(source.readers):
        if source.shards.shards[index].data_offset:
            shard = None if record is None else record.shards[index]
            findings += verify_reader(reader, shard, record)
        if bar is not None:
            bar(index + 1, len(source.readers))
    return findings


def _stats(args: argparse.Namespace, console: Console) -> Output:
    from warpdata.corpora.rows import RowStatistics

    with _open(args.paths) as source, console.progress("stats") as bar:
        record = source.shards.record
        if record is not None and record.statistics is not None and not args.recompute:
            stats = dict(record.statistics)
        else:
            statistics = RowStatistics(source.width)
            for batch in source:
                statistics.update(batch.rows)
                bar(source.position, source.total_rows)
            stats = statistics.to_dict()
    scalars = ("rows", "nonfinite_rows", "norm_mean", "norm_rms", "norm_max")
    lines = [f"{name:<15} {stats[name]:.6g}" for name in scalars]
    lines += [f"{name:<15} {_short(stats[name])}" for name in ("mean", "rms")]
    return Output(stats, lines, fit=True)


def _head(args: argparse.Namespace, _: Console) -> Output:
    if args.rows < 1:
        raise ValueError("--rows must be at least 1")
    with _open(args.paths, batch_rows=args.rows) as source:
        if args.start == source.total_rows:
            raise IndexError(f"row {args.start} of {source.total_rows}")
        source.seek(args.start)
        batches, left = [], args.rows
        while left > 0 and (batch := source.next_batch()) is not None:
            batches.append(_first_rows(batch, left))
            left -= len(batches[-1])
    return _rows_report(batches)


def _sample(args: argparse.Namespace, _: Console) -> Output:
    if args.rows < 1:
        raise ValueError("--rows must be at least 1")
    if args.fraction == 0:
        raise ValueError("--fraction 0 selects no rows; omit it for random ones")
    size = 1 if args.fraction is None else 1024
    with _open(args.paths, dtype="float32", batch_rows=size) as source:
        batches = _random_rows(source, args) if args.fraction is None else _fraction_rows(source, args)
    if args.out is None:
        return _rows_report(batches)
    _save(batches, args.out)
    count = sum(len(batch) for batch in batches)
    return Output({"rows": count, "out": args.out}, [f"{count} rows: {args.out}"])


def _random_rows(source: FixedOrderSource, args: argparse.Namespace) -> list[RowBatch]:
    from warpdata.ordering.splitmix import random_ids

    batches = []
    for row_id in random_ids(source.total_rows, args.rows, args.seed).tolist():
        source.seek(row_id)
        if (batch := source.next_batch()) is not None:
            batches.append(batch)
    return batches


def _fraction_rows(source: FixedOrderSource, args: argparse.Namespace) -> list[RowBatch]:
    from warpdata.corpora.source import FractionRows

    batches: list[RowBatch] = []
    left = args.rows
    for batch in FractionRows(source, args.fraction):
        batches.append(_first_rows(batch, left))
        left -= len(batches[-1])
        if left <= 0:
            break
    return batches


def _convert(args: argparse.Namespace, console: Console) -> Output:
    with console.progress("convert") as bar:
        rows = _convert_rows(args, bar)
    return Output({"rows": rows, "output": args.output}, [f"{rows} rows: {args.output}"])


def _convert_rows(args: argparse.Namespace, bar: Any) -> int:
    from warpdata.convert.corpora.fill import ConvertOptions, folder_to_corpus
    from warpdata.convert.corpora.npy import corpus_to_npy, npy_to_corpus
    from warpdata.convert.corpora.safetensors import corpus_to_safetensors, safetensors_to_corpus

    options = ConvertOptions(dtype=args.dtype, shard_bytes=args.shard_mib << 20, progress=bar)
    suffix = os.path.splitext(args.output)[1]
    if suffix == ".npy":
        return corpus_to_npy(
            args.input, args.output, dtype=args.dtype, overwrite=args.overwrite, progress=bar
        )
    if suffix == ".safetensors":
        tensor = args.tensor or "activations"
        return corpus_to_safetensors(
            args.input, args.output, tensor=tensor, overwrite=args.overwrite, progress=bar
        )
    if suffix in _FILE_SUFFIXES:
        raise ValueError(
            f"rows cannot be written as {suffix}: use a .npy, a .safetensors or a new corpus folder"
        )
    if os.path.isdir(args.input):
        return folder_to_corpus(args.input, args.output, options)
    if args.input.endswith(".npy"):
        return npy_to_corpus(args.input, args.output, options)
    if args.input.endswith(".safetensors"):
        return safetensors_to_corpus(args.input, args.output, tensor=args.tensor, options=options)
    raise ValueError(f"cannot convert {args.input!r}: expected .npy, .safetensors or a folder")


def _first_rows(batch: RowBatch, count: int) -> RowBatch:
    from warpdata.corpora.rows import RowBatch

    return RowBatch(batch.rows[:count], batch.row_ids[:count])


def _rows_report(batches: list[RowBatch]) -> Output:
    rows = [
        {"row_id": int(row_id), "values": _json_floats(row.tolist())}
        for batch in batches
        for row_id, row in zip(batch.row_ids, batch.rows, strict=True)
    ]
    columns: dict[str, Any] = {"row": "row_id", "values": lambda row: _short(row["values"])}
    return Output(rows, rows=rows, columns=columns, right=("row",))


def _json_floats(values: list[float]) -> list[float | str]:
    """JSON has no NaN and no infinity: they become words."""
    return [value if value - value == 0 else str(value) for value in values]


def _save(batches: list[RowBatch], path: str) -> None:
    import io

    import numpy as np

    from warpdata.bytekit.io.commit import write_file

    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([batch.rows for batch in batches]), allow_pickle=False)
    write_file(path, buffer.getvalue())


def _short(values: list[Any]) -> str:
    shown = " ".join(value if isinstance(value, str) else f"{value:.5g}" for value in values[:8])
    return shown + (f" … ({len(values)})" if len(values) > 8 else "")
