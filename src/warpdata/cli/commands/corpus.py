"""`warp corpus`: look at, check, convert and sample activation corpora."""

from __future__ import annotations

import io
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.corpora.rows import RowBatch
    from warpdata.corpora.source import FixedOrderSource

_FILE_SUFFIXES = (
    *(".npz", ".csv", ".json", ".jsonl", ".parquet", ".h5", ".hdf5"),
    *(".pt", ".pth", ".bin", ".shard", ".tar"),
)
"""Suffixes of files that cannot be written; a corpus folder has none of them."""

_INPUT = "a corpus folder, a bf16 directory, or shard files in order; or their URLs (s3, gs, az, http)"
_CORPUS = [cli.arg("paths", nargs="+", metavar="CORPUS", help=_INPUT), cli.JSON]
_ROWS = cli.number("-n", "--rows", default=5, text="number of rows (5)")


@cli.command("describe a corpus", _CORPUS, example="warp corpus info corpus")
def run_corpus_info(args: cli.Namespace, _: Console) -> Output:
    """Describe a corpus."""
    return describe_corpus(args.paths)


def describe_corpus(paths: list[str]) -> Output:
    """Facts of a corpus."""
    from warpdata._api import open_corpus

    with open_corpus(paths) as source:
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


@cli.command(
    "check shards against corpus.json; exit code 3 if anything is damaged",
    _CORPUS,
    example="warp corpus verify corpus",
)
def run_corpus_verify(args: cli.Namespace, console: Console) -> Output:
    """Verify corpora."""
    with console.progress("verify") as bar:
        findings = [finding for path in args.paths for finding in verify_corpus(path, bar)]
    damaged = any(finding.is_damage for finding in findings)
    lines = [f"{'damaged' if f.is_damage else 'odd'}: {f.message}: {f.part}" for f in findings]
    return Output(
        {"is_damaged": damaged, "findings": [asdict(finding) for finding in findings]},
        lines or ["sound"],
        style={"damaged:": "red", "odd:": "yellow"},
        code=exits.DAMAGED if damaged else exits.OK,
    )


def verify_corpus(path: str, bar: Any = None) -> list[Any]:
    """Every finding about one corpus or shard, also if it does not open."""
    from warpdata._api import open_corpus
    from warpdata.errors import AuthenticationError, FileFinding, UnavailableError, WarpError
    from warpdata.formats.gamsae.corpus import verify_folder, verify_shard

    try:
        with open_corpus([path]) as source:
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


@cli.command(
    "mean, RMS and norms of the rows",
    _CORPUS,
    cli.flag("--recompute", "read every row instead of corpus.json"),
    example="warp corpus stats corpus",
)
def run_corpus_stats(args: cli.Namespace, console: Console) -> Output:
    """Statistics of the rows."""
    from warpdata._api import open_corpus
    from warpdata.corpora.rows import RowStatistics

    with open_corpus(args.paths) as source, console.progress("stats") as bar:
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
    lines += [f"{name:<15} {_short_text(stats[name])}" for name in ("mean", "rms")]
    return Output(stats, lines, fit=True)


@cli.command(
    "the first rows, or those from --start",
    _CORPUS,
    _ROWS,
    cli.number("--start", default=0, text="id of the first row (0)", metavar="ROW"),
    example="warp corpus head corpus -n 3",
)
def run_corpus_head(args: cli.Namespace, _: Console) -> Output:
    """Show rows in order."""
    from warpdata._api import open_corpus

    if args.rows < 1:
        raise ValueError("--rows must be at least 1")
    with open_corpus(args.paths, batch_rows=args.rows) as source:
        if args.start == source.total_rows:
            raise IndexError(f"row {args.start} of {source.total_rows}")
        source.seek(args.start)
        return _show_rows(_take(iter(source.next_batch, None), args.rows))


@cli.command(
    "random rows, the same for the same seed",
    _CORPUS,
    _ROWS,
    cli.number("--seed", default=0, text="seed of the choice (0)"),
    cli.arg("--fraction", type=float, help="choose by row id: the nested subsample of this size"),
    cli.arg(
        "--output",
        "--out",
        dest="out",
        metavar="FILE.npy",
        help="write the rows as float32 instead of printing them",
    ),
    example="warp corpus sample corpus -n 10 --seed 7",
)
def run_corpus_sample(args: cli.Namespace, _: Console) -> Output:
    """Show or write random rows."""
    import numpy as np

    from warpdata._api import open_corpus
    from warpdata.bytekit.io.commit import write_file
    from warpdata.corpora.source import FractionRows

    if args.rows < 1:
        raise ValueError("--rows must be at least 1")
    if args.fraction == 0:
        raise ValueError("--fraction 0 selects no rows; omit it for random ones")
    size = 1 if args.fraction is None else 1024
    with open_corpus(args.paths, dtype="float32", batch_rows=size) as source:
        if args.fraction is None:
            batches = _random_rows(source, args)
        else:
            batches = _take(FractionRows(source, args.fraction), args.rows)
    if args.out is None:
        return _show_rows(batches)
    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([batch.rows for batch in batches]), allow_pickle=False)
    write_file(args.out, buffer.getvalue())
    count = sum(len(batch) for batch in batches)
    return Output({"rows": count, "out": args.out}, [f"{count} rows: {args.out}"])


def _random_rows(source: FixedOrderSource, args: cli.Namespace) -> list[RowBatch]:
    from warpdata.ordering.blocks import random_ids

    batches = []
    for row_id in random_ids(source.total_rows, args.rows, args.seed).tolist():
        source.seek(row_id)
        if (batch := source.next_batch()) is not None:
            batches.append(batch)
    return batches


def _take(batches: Any, count: int) -> list[RowBatch]:
    """The first rows of batches."""
    from warpdata.corpora.rows import RowBatch

    taken: list[RowBatch] = []
    for batch in batches:
        taken.append(RowBatch(batch.rows[:count], batch.row_ids[:count]))
        count -= len(taken[-1])
        if count <= 0:
            break
    return taken


def _show_rows(batches: list[RowBatch]) -> Output:
    """Rows; JSON has no NaN and no infinity: they become words."""
    rows = [
        {"row_id": int(row_id), "values": [v if v - v == 0 else str(v) for v in row.tolist()]}
        for batch in batches
        for row_id, row in zip(batch.row_ids, batch.rows, strict=True)
    ]
    columns: dict[str, Any] = {"row": "row_id", "values": lambda row: _short_text(row["values"])}
    return Output(rows, rows=rows, columns=columns, right=("row",))


def _short_text(values: list[Any]) -> str:
    shown = " ".join(value if isinstance(value, str) else f"{value:.5g}" for value in values[:8])
    return shown + (f" … ({len(values)})" if len(values) > 8 else "")


@cli.command(
    "to a corpus, or a corpus to .npy or .safetensors",
    cli.arg("input", help=".npy, .safetensors, a bf16 directory, or a folder of shards"),
    cli.arg("output", help="a new corpus folder, or a .npy or .safetensors file"),
    cli.OVERWRITE,
    cli.arg("--dtype", choices=("f32", "f16", "bf16"), help="stored type of the rows"),
    cli.arg("--tensor", help="the tensor of a safetensors file"),
    cli.number("--shard-mib", default=512, text="size of a shard in MiB (512)"),
    cli.JSON,
    example="warp corpus convert activations.npy corpus",
)
def run_corpus_convert(args: cli.Namespace, console: Console) -> Output:
    """Convert rows."""
    with console.progress("convert") as bar:
        rows = _convert(args, bar)
    return Output({"rows": rows, "output": args.output}, [f"{rows} rows: {args.output}"])


def _convert(args: cli.Namespace, bar: Any) -> int:
    from warpdata.convert.tables.corpora import (
        ConvertOptions,
        corpus_to_npy,
        corpus_to_safetensors,
        folder_to_corpus,
        npy_to_corpus,
        safetensors_to_corpus,
    )

    source, target, suffix = args.input, args.output, os.path.splitext(args.output)[1]
    options = ConvertOptions(dtype=args.dtype, shard_bytes=args.shard_mib << 20, progress=bar)
    if suffix == ".npy":
        return corpus_to_npy(source, target, dtype=args.dtype, overwrite=args.overwrite, progress=bar)
    if suffix == ".safetensors":
        tensor = args.tensor or "activations"
        return corpus_to_safetensors(source, target, tensor=tensor, overwrite=args.overwrite, progress=bar)
    if suffix in _FILE_SUFFIXES:
        raise ValueError(
            f"rows cannot be written as {suffix}: use a .npy, a .safetensors or a new corpus folder"
        )
    if os.path.isdir(source):
        return folder_to_corpus(source, target, options)
    if source.endswith(".npy"):
        return npy_to_corpus(source, target, options)
    if source.endswith(".safetensors"):
        return safetensors_to_corpus(source, target, tensor=args.tensor, options=options)
    raise ValueError(f"cannot convert {source!r}: expected .npy, .safetensors or a folder")
