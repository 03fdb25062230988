"""`warp corpus`: look at, check, convert and sample activation corpora."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from warpdata.cli import arguments as cli
from warpdata.cli.console import Exit, Output, human_bytes
from warpdata.errors import AuthenticationError, FileFinding, UnavailableError, WarpError

if TYPE_CHECKING:
    from warpdata.corpora.rows import RowBatch

_INPUT = "a corpus folder, a bf16 directory, or shard files in order; or their URLs (s3, gs, az, http)"
Corpus = Annotated[Sequence[str], cli.Arg(_INPUT, "CORPUS")]


@cli.command("warp corpus show corpus")
def run_corpus_show(_: cli.Warp, paths: Corpus) -> Output:
    """Describe a corpus."""
    return describe_corpus(paths)


def describe_corpus(paths: Sequence[str]) -> Output:
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
    rows = []
    for name, value in {**facts, "payload_bytes": human_bytes(facts["payload_bytes"])}.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key}={item}" for key, item in value.items()) or None
        rows.append({"name": name, "text": "-" if value is None else value})
    return Output(facts, rows=rows, columns={"corpus": "name", "": "text"})


@cli.command("warp corpus verify corpus")
def run_corpus_verify(warp: cli.Warp, paths: Corpus) -> Output:
    """Check shards against corpus.json; exit code 3 if anything is damaged."""
    with warp.progress("verify") as bar:
        findings = [finding for path in paths for finding in verify_corpus(path, bar)]
    damaged = any(finding.is_damage for finding in findings)
    lines = [f"{'damaged' if f.is_damage else 'odd'}: {f.message}: {f.part}" for f in findings]
    return Output(
        {"is_damaged": damaged, "findings": findings},
        lines or ["sound"],
        style={"damaged:": "red", "odd:": "yellow"},
        code=Exit.DAMAGED if damaged else Exit.OK,
    )


def verify_corpus(path: str, bar: Callable[[int, int], None] = lambda *_: None) -> list[FileFinding]:
    """Every finding about one corpus or shard, also if it does not open."""
    from warpdata._api import open_corpus
    from warpdata.corpora.source import StoreShardSource
    from warpdata.formats.gamsae.corpus import verify_folder, verify_reader, verify_shard

    try:
        with open_corpus([path]) as source:
            record, findings = source.shards.record, list[FileFinding]()
            readers = source.readers if isinstance(source, StoreShardSource) else []
            for index, reader in enumerate(readers):
                if source.shards.shards[index].data_offset:  # without one there are no checksums
                    findings += verify_reader(
                        reader, None if record is None else record.shards[index], record
                    )
                bar(index + 1, len(readers))
            if "://" in path:
                return findings
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


@cli.command("warp corpus measure corpus")
def run_corpus_measure(
    warp: cli.Warp,
    paths: Corpus,
    *,
    recompute: Annotated[bool, "read every row instead of corpus.json"] = False,
) -> Output:
    """Show mean, RMS and norms of the rows."""
    from warpdata._api import open_corpus
    from warpdata.corpora.rows import RowStatistics

    with open_corpus(paths) as source, warp.progress("stats") as bar:
        record = source.shards.record
        if record is not None and record.statistics is not None and not recompute:
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


def _short_text(values: Sequence[Any]) -> str:
    shown = " ".join(value if isinstance(value, str) else f"{value:.5g}" for value in values[:8])
    return shown + (f" … ({len(values)})" if len(values) > 8 else "")


@cli.command("warp corpus head corpus -n 3")
def run_corpus_head(
    _: cli.Warp,
    paths: Corpus,
    *,
    limit: int = 5,
    start: Annotated[int, cli.Arg("id of the first row", "ROW")] = 0,
) -> Output:
    """Show the first rows, or those from --start."""
    from warpdata._api import open_corpus

    with open_corpus(paths, batch_rows=limit) as source:
        if start == source.total_rows:
            raise IndexError(f"row {start} of {source.total_rows}")
        source.seek(start)
        return _show_rows(_take(iter(source.next_batch, None), limit))


@cli.command("warp corpus sample corpus -n 10 --seed 7")
def run_corpus_sample(
    _: cli.Warp,
    paths: Corpus,
    *,
    limit: int = 5,
    seed: int = 0,
    fraction: Annotated[float | None, "choose by row id: the nested subsample of this size"] = None,
    output: Annotated[str | None, "write the rows as float32 .npy instead of printing them"] = None,
    overwrite: bool = False,
) -> Output:
    """Show or write random rows, the same for the same seed."""
    import numpy as np

    from warpdata._api import open_corpus
    from warpdata.bytekit.io.commit import commit_file
    from warpdata.corpora.source import FractionRows
    from warpdata.ordering.blocks import random_ids

    if limit < 1:
        raise ValueError("--limit must be at least 1")
    if fraction == 0:
        raise ValueError("--fraction 0 selects no rows; omit it for random ones")
    with open_corpus(paths, dtype="float32", batch_rows=1 if fraction is None else 1024) as source:
        if fraction is None:
            batches = []
            for row_id in random_ids(source.total_rows, limit, seed).tolist():
                source.seek(row_id)
                batches += _take(iter(source.next_batch, None), 1)
        else:
            batches = _take(FractionRows(source, fraction), limit)
    if output is None:
        return _show_rows(batches)
    with commit_file(output, replace=overwrite) as out:
        np.save(out, np.concatenate([batch.rows for batch in batches]), allow_pickle=False)
    count = sum(len(batch) for batch in batches)
    return Output({"rows": count, "output": output}, [f"{count} rows: {output}"])


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


@cli.command("warp corpus convert activations.npy corpus")
def run_corpus_convert(
    warp: cli.Warp,
    source: Annotated[str, ".npy, .safetensors, a bf16 directory, or a folder of shards"],
    target: Annotated[str, "a new corpus folder, or a .npy or .safetensors file"],
    *,
    overwrite: bool = False,
    dtype: Literal["f32", "f16", "bf16"] | None = None,
    tensor: Annotated[str | None, "the tensor of a safetensors file"] = None,
    shard_mib: Annotated[int, "size of a shard in MiB"] = 512,
) -> Output:
    """Convert to a corpus, or a corpus to .npy or .safetensors."""
    from warpdata.convert.tables import corpora

    suffix, kind = os.path.splitext(target)[1], os.path.splitext(source)[1]
    with warp.progress("convert") as bar:
        options = corpora.ConvertOptions(dtype=dtype, shard_bytes=shard_mib << 20, progress=bar)
        if suffix == ".npy":
            rows = corpora.corpus_to_npy(source, target, dtype=dtype, overwrite=overwrite, progress=bar)
        elif suffix == ".safetensors":
            name = tensor or "activations"
            rows = corpora.corpus_to_safetensors(
                source, target, tensor=name, overwrite=overwrite, progress=bar
            )
        elif suffix in _FILE_SUFFIXES:
            raise ValueError(
                f"rows cannot be written as {suffix}: use a .npy, a .safetensors or a new corpus folder"
            )
        elif os.path.isdir(source):
            rows = corpora.folder_to_corpus(source, target, options)
        elif kind == ".npy":
            rows = corpora.npy_to_corpus(source, target, options)
        elif kind == ".safetensors":
            rows = corpora.safetensors_to_corpus(source, target, tensor=tensor, options=options)
        else:
            raise ValueError(f"cannot convert {source!r}: expected .npy, .safetensors or a folder")
    return Output({"rows": rows, "output": target}, [f"{rows} rows: {target}"])


_FILE_SUFFIXES = (
    *(".npz", ".csv", ".json", ".jsonl", ".parquet", ".h5", ".hdf5"),
    *(".pt", ".pth", ".bin", ".shard", ".tar"),
)
"""Suffixes of files that cannot be written; a corpus folder has none of them."""
