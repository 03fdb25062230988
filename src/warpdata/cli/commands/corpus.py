"""`warp corpus`: look at, check, convert and sample activation corpora."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Unpack

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.corpora.batch import RowBatch
    from warpdata.corpora.source import FixedOrderSource, SourceKeywords

_FILE_SUFFIXES = {
    ".npz",
    ".csv",
    ".json",
    ".jsonl",
    ".parquet",
    ".h5",
    ".hdf5",
    ".pt",
    ".pth",
    ".bin",
    ".shard",
    ".tar",
}
"""Names of files, which nobody gives a folder."""

_INPUT = "a corpus folder, a bf16 directory, or shard files in order; or their URLs (s3, gs, az, http)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs of `warp corpus`."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, text, run_verb, add in _VERBS:
        sub = verbs.add_parser(name, help=text, description=text)
        add(sub)
        sub.set_defaults(run_verb=run_verb)


def run(args: argparse.Namespace, console: Console) -> int:
    """Run the verb."""
    code: int = args.run_verb(args, console)
    return code


def _add_input(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="CORPUS", help=_INPUT)
    add_json_flag(parser)


def _open(paths: list[str], **options: Unpack[SourceKeywords]) -> FixedOrderSource:
    from warpdata._api import open_corpus

    return open_corpus(paths, **options)


def _info(args: argparse.Namespace, console: Console) -> int:
    return show_info(args.paths, console)


def show_info(paths: list[str], console: Console) -> int:
    """Print what a corpus holds."""
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
    console.emit(facts)
    shown = {**facts, "payload_bytes": human_bytes(shards.payload_bytes)}
    console.print_table([[key, _plain(value)] for key, value in shown.items()], ["corpus", ""])
    return exits.OK


def _verify(args: argparse.Namespace, console: Console) -> int:
    from dataclasses import asdict

    findings: list[Any] = []
    with console.progress("verify") as bar:
        for path in args.paths:
            findings += corpus_findings(path, bar)
    damaged = any(each.is_damage for each in findings)
    console.emit({"is_damaged": damaged, "findings": [asdict(each) for each in findings]})
    for each in findings:
        mark = console.paint("damaged", "red") if each.is_damage else console.paint("odd", "yellow")
        console.print(f"{mark}: {each.message}: {each.part}")
    if not findings:
        console.print("sound")
    return exits.DAMAGED if damaged else exits.OK


def corpus_findings(path: str, bar: Any = None) -> list[Any]:
    """Every finding about one corpus or shard, also where it does not open."""
    from warpdata.bytekit.findings import FileFinding
    from warpdata.errors import AuthenticationError, UnavailableError, WarpError

    try:
        return _verified(path, bar)
    except WarpError as error:
        is_there = "://" in path or os.path.exists(path)
        if not is_there or isinstance(error, UnavailableError | AuthenticationError):
            raise  # nothing is known about bytes that did not come
        deeper = [each for each in _deeper(path) if each.message != str(error)]
        return [FileFinding.of(error, path), *deeper]


def _verified(path: str, bar: Any) -> list[Any]:
    """Every finding about one corpus or shard, here or in a store."""
    from warpdata.formats.gamsae.verify import verify_folder, verify_shard

    with _open([path]) as source:
        if "://" in path:
            return _verified_remote(source, bar)
    return verify_folder(path, bar) if os.path.isdir(path) else verify_shard(path)


def _verified_remote(source: Any, bar: Any) -> list[Any]:
    """All bytes of a corpus in a store are read where corpus.json can judge them."""
    from warpdata.formats.gamsae.verify import verify_reader

    record, findings = source.shards.record, []
    for index, reader in enumerate(source.readers):
        if source.shards.shards[index].data_offset:
            shard = None if record is None else record.shards[index]
            findings += verify_reader(reader, shard, record)
        if bar is not None:
            bar(index + 1, len(source.readers))
    return findings


def _deeper(path: str) -> list[Any]:
    """What can still be said about the shards of a folder that does not open."""
    from warpdata.errors import WarpError
    from warpdata.formats.gamsae.verify import verify_folder

    try:
        return list(verify_folder(path)) if os.path.isdir(path) else []
    except WarpError:
        return []


def _add_stats(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("--recompute", action="store_true", help="read every row instead of corpus.json")


def _stats(args: argparse.Namespace, console: Console) -> int:
    from warpdata.corpora.statistics import RowStatistics

    with _open(args.paths) as source, console.progress("stats") as bar:
        record = source.shards.record
        if record is not None and record.statistics is not None and not args.recompute:
            found = dict(record.statistics)
        else:
            statistics = RowStatistics(source.width)
            for batch in source:
                statistics.update(batch.rows)
                bar(source.position, source.total_rows)
            found = statistics.to_dict()
    console.emit(found)
    for name in ("rows", "nonfinite_rows", "norm_mean", "norm_rms", "norm_max"):
        console.print(console.fitted(f"{name:<15} {found[name]:.6g}"))
    for name in ("mean", "rms"):
        console.print(console.fitted(f"{name:<15} {_short(found[name])}"))
    return exits.OK


def _add_head(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("-n", "--rows", type=int, default=5, help="how many rows (5)")
    parser.add_argument("--start", type=int, default=0, metavar="ROW", help="the id of the first row (0)")


def _head(args: argparse.Namespace, console: Console) -> int:
    if args.rows < 1:
        raise ValueError("--rows is at least 1")
    with _open(args.paths, batch_rows=args.rows) as source:
        if args.start == source.total_rows:
            raise IndexError(f"row {args.start} of {source.total_rows}")
        source.seek(args.start)
        found, left = [], args.rows
        while left > 0 and (batch := source.next_batch()) is not None:
            found.append(_cut(batch, left))
            left -= len(found[-1])
    _show_rows(found, console)
    return exits.OK


def _add_sample(parser: argparse.ArgumentParser) -> None:
    _add_input(parser)
    parser.add_argument("-n", "--rows", type=int, default=5, help="how many rows (5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--fraction", type=float, help="choose by row id: the nested subsample of this size")
    parser.add_argument(
        "--out", metavar="FILE.npy", help="write the rows as float32 instead of printing them"
    )


def _sample(args: argparse.Namespace, console: Console) -> int:
    if args.rows < 1:
        raise ValueError("--rows is at least 1")
    if args.fraction == 0:
        raise ValueError("a fraction of 0 has no rows; leave --fraction out for random ones")
    size = 1 if args.fraction is None else 1024
    with _open(args.paths, dtype="float32", batch_rows=size) as source:
        found = _random_sample(source, args) if args.fraction is None else _fraction_sample(source, args)
    if args.out is None:
        _show_rows(found, console)
    else:
        _save(found, args.out)
        console.emit({"rows": sum(len(batch) for batch in found), "out": args.out})
        console.print(f"{sum(len(batch) for batch in found)} rows: {args.out}")
    return exits.OK


def _random_sample(source: FixedOrderSource, args: argparse.Namespace) -> list[RowBatch]:
    from warpdata.ordering.splitmix import random_ids

    found = []
    for row_id in random_ids(source.total_rows, args.rows, args.seed).tolist():
        source.seek(row_id)
        batch = source.next_batch()
        found += [] if batch is None else [batch]
    return found


def _fraction_sample(source: FixedOrderSource, args: argparse.Namespace) -> list[RowBatch]:
    from warpdata.corpora.subsample import FractionRows

    found: list[RowBatch] = []
    left = args.rows
    for batch in FractionRows(source, args.fraction):
        found.append(_cut(batch, left))
        left -= len(found[-1])
        if left <= 0:
            break
    return found


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", help=".npy, .safetensors, a bf16 directory, or a folder of shards")
    parser.add_argument("output", help="a new corpus folder, or a .npy or .safetensors file")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a .npy or .safetensors file that exists"
    )
    parser.add_argument("--dtype", choices=("f32", "f16", "bf16"), help="stored type of the rows")
    parser.add_argument("--tensor", help="which tensor of a safetensors file")
    parser.add_argument("--shard-mib", type=int, default=512, help="size of a shard in MiB (512)")
    add_json_flag(parser)


def _convert(args: argparse.Namespace, console: Console) -> int:
    with console.progress("convert") as bar:
        rows = _converted(args, bar)
    console.emit({"rows": rows, "output": args.output})
    console.print(f"{rows} rows: {args.output}")
    return exits.OK


def _converted(args: argparse.Namespace, bar: Any) -> int:
    from warpdata.convert.corpus_fill import ConvertOptions, folder_to_corpus
    from warpdata.convert.npy import corpus_to_npy, npy_to_corpus
    from warpdata.convert.safetensors import corpus_to_safetensors, safetensors_to_corpus

    options = ConvertOptions(dtype=args.dtype, shard_bytes=args.shard_mib << 20, progress=bar)
    suffix = os.path.splitext(args.output)[1]
    if suffix == ".npy":
        return corpus_to_npy(
            args.input, args.output, dtype=args.dtype, overwrite=args.overwrite, progress=bar
        )
    if suffix == ".safetensors":
        return corpus_to_safetensors(
            args.input,
            args.output,
            tensor=args.tensor or "activations",
            overwrite=args.overwrite,
            progress=bar,
        )
    if suffix in _FILE_SUFFIXES:
        raise ValueError(
            f"rows cannot be written as {suffix}: name a .npy, a .safetensors or a new corpus folder"
        )
    if os.path.isdir(args.input):
        return folder_to_corpus(args.input, args.output, options)
    if args.input.endswith(".npy"):
        return npy_to_corpus(args.input, args.output, options)
    if args.input.endswith(".safetensors"):
        return safetensors_to_corpus(args.input, args.output, tensor=args.tensor, options=options)
    raise ValueError(f"cannot convert {args.input!r}: give .npy, .safetensors or a folder")


def _cut(batch: RowBatch, count: int) -> RowBatch:
    from warpdata.corpora.batch import RowBatch

    return RowBatch(batch.rows[:count], batch.row_ids[:count])


def _show_rows(batches: list[RowBatch], console: Console) -> None:
    pairs = [
        (int(row_id), row.tolist())
        for batch in batches
        for row_id, row in zip(batch.row_ids, batch.rows, strict=True)
    ]
    console.emit([{"row_id": row_id, "values": _json_floats(values)} for row_id, values in pairs])
    console.print_table([[str(row_id), _short(values)] for row_id, values in pairs], ["row", "values"], [0])


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


def _short(values: list[float]) -> str:
    shown = " ".join(f"{value:.5g}" for value in values[:8])
    return shown + (f" … ({len(values)})" if len(values) > 8 else "")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "-"
    return "-" if value is None else str(value)


_VERBS = (
    ("info", "what a corpus holds", _info, _add_input),
    ("verify", "check shards against corpus.json; exit code 3 if anything is damaged", _verify, _add_input),
    ("stats", "mean, RMS and norms of the rows", _stats, _add_stats),
    ("head", "the first rows, or those from --start", _head, _add_head),
    ("convert", "to a corpus, or a corpus to .npy or .safetensors", _convert, _add_convert),
    ("sample", "random rows, the same for the same seed", _sample, _add_sample),
)
