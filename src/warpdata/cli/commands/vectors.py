"""Commands about vectors: `embed` makes them, `vectors` works on files of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.commands.train import REVISION
from warpdata.cli.console import Output, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.search.columns import VectorRows

_SHOWN = 3
"""Episodes without vectors that are named."""
_VECTOR_SUFFIXES = (".rvf", ".rvdna", ".rvtext", ".rvgraph", ".rvvis")

_EMBEDDER = (
    "right after ADDRESS: state (every number that is no picture; the default), pixels (cameras), of windows of "
    "seconds also motion and image, or "
    "MODULE:FUNCTION of your own, which is called with an observation and gives a vector"
)
_MAX_STEPS = (
    "at most this many steps of an episode, spread evenly; 0 for all (256; all with --rate or --clock)"
)


@cli.command(
    "compute vectors of episodes",
    cli.arg("address", metavar="ADDRESS", help=f"episodes: {cli.FORMS}"),
    cli.arg("embedder", nargs="?", default="state", metavar="EMBEDDER", help=_EMBEDDER),
    cli.arg("--name", help="name of the vectors (default: the embedder)"),
    cli.arg(
        "--per",
        choices=("episode", "step", "window", "frame"),
        default="step",
        help="unit of a vector (step)",
    ),
    cli.arg("--rate", type=float, metavar="HZ", help="steps, or frames, at this rate"),
    cli.arg("--clock", metavar="SIGNAL", help="the records of this signal are the steps"),
    cli.number("--max-steps", default=None, text=_MAX_STEPS),
    cli.number("--window", default=32, text="steps of a window (32)"),
    cli.number("--stride", default=16, text="steps between windows (16)"),
    cli.arg("--window-s", type=float, metavar="SECONDS", help="windows of seconds, handed over whole"),
    cli.arg("--stride-s", type=float, metavar="SECONDS", help="seconds between them (half of a window)"),
    cli.arg(
        "--signal", action="append", metavar="NAME", help="use only this signal or camera (may be repeated)"
    ),
    cli.number(
        "--batch-size", default=None, text="call the function with arrays of N moments by channel at once"
    ),
    cli.arg("--where", metavar="SQL", help="only episodes whose facts satisfy this"),
    cli.arg("--metric", choices=("cosine", "l2", "ip"), help="how vectors are compared"),
    REVISION,
    cli.arg("--output", metavar="FILE.rvf", help="write the vectors into this file"),
    cli.OVERWRITE,
    cli.arg(
        "--index",
        choices=("auto", "none", "hnsw", "ivf", "flat"),
        default="auto",
        help="the index over the vectors (auto: a graph from 20,000 of them on)",
    ),
    cli.CATALOG,
    cli.PUBLISHING,
    cli.runner("compute vectors"),
    cli.JSON,
    example="warp embed robot_data state --per window",
)
def run_embed(args: cli.Namespace, console: Console) -> Output:
    """Compute what is missing or changed, and keep it."""
    from warpdata._api.embedding import embed

    names = (
        "name",
        "per",
        "clock",
        "max_steps",
        "window",
        "stride",
        "window_s",
        "stride_s",
        "batch_size",
        "revision",
        "metric",
        "where",
    )
    more = ("output", "overwrite", "index", "catalog", "jobs", "message")
    with console.progress("embedding") as progress, cli.name_errors():
        made = embed(
            args.address,
            cli.import_function(args.embedder) if ":" in args.embedder else args.embedder,
            rate_hz=args.rate,
            signals=args.signal,
            ray=cli.ray_address(args),
            tags=args.tag,
            sign_key=args.sign,
            progress=progress,
            **{name: getattr(args, name) for name in (*names, *more)},
        )
    lines = [
        str(made) + (f", version {made.version[:12]}" if made.version else ""),
        f"{made.computed} episodes embedded, {made.resumed} were before it was stopped, {made.reused} had not changed",
    ]
    lines += [f"{episode} has no vectors: {why}" for episode, why in list(made.without.items())[:_SHOWN]]
    if len(made.without) > _SHOWN:
        lines.append(f"{len(made.without) - _SHOWN} more have none")
    return Output(asdict(made), lines)


@cli.command(
    "find moments like one of an episode",
    cli.arg("address", metavar="ADDRESS#ID", help=f"the episode: {cli.FORMS}"),
    cli.arg(
        "--at", type=cli.moment_argument, required=True, metavar="TIME", help=f"where it begins: {cli.MOMENT}"
    ),
    cli.arg(
        "--for", dest="length", type=cli.time_argument, default=None, metavar="TIME", help="its length (1s)"
    ),
    cli.number("-k", default=5, text="number of results (5)"),
    cli.arg("--index", metavar="NAME", help="which index of windows, if there are several"),
    cli.CATALOG,
    cli.JSON,
    example="warp similar robot_data#3 --at 0.4s --for 1.5s",
)
def run_similar(args: cli.Namespace, _: Console) -> Output:
    """Find similar moments."""
    from warpdata._api import open_episode
    from warpdata._api.similar import find_similar

    source, mark, _id = args.address.rpartition("#")
    if not mark:
        raise ValueError(f"name one episode: {args.address}#ID")
    episode = open_episode(args.address, catalog=args.catalog)
    start = args.at(episode.first_ts_ns)
    end = start + (args.length or 1_000_000_000)
    hits = find_similar(source, episode.id, start, end, args.k, index=args.index, catalog=args.catalog)
    columns: dict[str, Any] = {
        "episode": "episode_id",
        "from": lambda hit: f"{hit.t0_ns / 1e9:.3f} s",
        "to": lambda hit: f"{hit.t1_ns / 1e9:.3f} s",
        "distance": lambda hit: f"{hit.distance:.4g}",
    }
    return Output([asdict(hit) for hit in hits], rows=hits, columns=columns, right=("from", "to", "distance"))


# Vector files.

_FILE = [
    cli.arg(
        "file", help="the vector file (.rvf); actions that only read take http(s), s3, gs and az URLs too"
    ),
    cli.JSON,
]
_COLUMN = cli.arg("--column", default="vector", help="the parquet column with the vectors")
_COLUMNS = cli.arg("--columns", metavar="NAMES", help="only these metadata fields, separated by commas")
_WHERE = cli.arg("--where", metavar="SQL", help="a condition on metadata, such as: label = 'cat'")
_SIGNING = [
    cli.arg("--key", help="a private key file: sign the new file with it"),
    cli.flag("--drop-signatures", "allow a signed file to become an unsigned one"),
]


@cli.command(
    "make a new, empty vector file",
    _FILE,
    cli.arg("--dim", type=int, required=True, help="dimensions of a vector"),
    cli.arg("--metric", choices=("l2", "ip", "cosine"), default="l2"),
    cli.arg("--dtype", choices=("f32", "f16", "bf16", "i8", "u8", "i4", "binary"), default="f32"),
    cli.OVERWRITE,
    example="warp vectors create episodes.rvf --dim 64 --metric cosine",
)
def run_vectors_create(args: cli.Namespace, _: Console) -> Output:
    """Create a file."""
    from warpdata.search.store import VectorStore

    with VectorStore.create(
        args.file, dim=args.dim, metric=args.metric, dtype=args.dtype, overwrite=args.overwrite
    ) as store:
        value = {"file": args.file, "dim": store.dim, "metric": store.metric, "dtype": store.dtype}
    return Output(
        value, [f"created {args.file}: {value['dim']} dimensions, {value['metric']}, {value['dtype']}"]
    )


def _read_batches(source: str, args: cli.Namespace) -> Iterator[VectorRows]:
    from warpdata.search.columns import Columns, json_batches, read_batches

    if source == "-":
        return json_batches(sys.stdin)
    columns = Columns(
        args.column, getattr(args, "id_column", None), tuple(getattr(args, "metadata_column", ()))
    )
    return read_batches(source, columns)


@cli.command(
    "add vectors from .npy, .parquet, or JSON lines on standard input (-)",
    _FILE,
    cli.arg("input", help="a .npy or .parquet file, or -"),
    _COLUMN,
    cli.arg("--id-column", help="the parquet column with the ids"),
    cli.many("--metadata-column", "NAME", "a parquet column to keep"),
    example="warp vectors add episodes.rvf vectors.npy",
)
def run_vectors_add(args: cli.Namespace, console: Console) -> Output:
    """Add vectors."""
    from warpdata.search.store import VectorStore

    count = 0
    with VectorStore.open(args.file, mode="a") as store, console.progress("adding") as bar:
        try:
            for batch in _read_batches(args.input, args):
                store.add(batch.vectors, batch.ids, batch.metadata)
                count += len(batch.vectors)
                bar(count, count)
        except BaseException:
            if count:
                console.print(f"added the first {count} vectors of {args.input}; they stay in {args.file}")
            raise
        total = len(store)
    return Output({"added": count, "vectors": total}, [f"added {count} vectors; {args.file} holds {total}"])


@cli.command(
    "find the nearest vectors",
    _FILE,
    cli.arg("query", help="a .npy or .parquet file, - for JSON lines, or numbers like 0.1,0.2,0.3"),
    _COLUMN,
    cli.number("-k", default=10, text="number of results (10)"),
    cli.number("--ef", default=None, text="effort: higher finds more of the true neighbours (64)"),
    cli.arg("--recall", type=float, help="the share of the true neighbours to find, instead of --ef"),
    _COLUMNS,
    cli.arg("--where", metavar="SQL", help="a condition on metadata, such as: label = 'cat' and score > 0.5"),
    cli.flag("--exact", "compare with every vector"),
    example="warp vectors search episodes.rvf 0.1,0.2,0.3 -k 5",
)
def run_vectors_search(args: cli.Namespace, _: Console) -> Output:
    """Search with one or several queries."""
    from warpdata._api import open_vectors

    queries = _read_queries(args)
    with open_vectors(args.file) as store:
        given = {"recall": args.recall, "columns": cli.split_names(args.columns) or list(store.fields)}
        ids, distances, hits = store.search(queries, args.k, args.ef, args.where, args.exact, **given)
        numbers = [int(number) for row in ids for number in row if number >= 0]
        metadata = dict(zip(numbers, (about for row in hits for about in row), strict=True))
    results: list[list[dict[str, Any]]] = []
    lines = []
    for query, (row, away) in enumerate(zip(ids.tolist(), distances.tolist(), strict=True)):
        if len(ids) > 1:
            lines.append(f"query {query}")
        matches = [(id_, distance) for id_, distance in zip(row, away, strict=True) if id_ >= 0]
        results.append([])
        for id_, distance in matches:
            about = metadata.get(id_) or {}
            results[-1].append({"id": id_, "distance": distance, **({"metadata": about} if about else {})})
            text = " ".join(f"{name}={value}" for name, value in about.items())
            lines.append(f"{id_:>12}  {distance:<12.6g}{text}".rstrip())
    return Output(results[0] if len(results) == 1 else results, lines, fit=True)


def _read_queries(args: cli.Namespace) -> Any:
    import numpy as np

    text = args.query
    if text != "-" and not text.endswith((".npy", ".parquet", ".pq")):
        try:
            return np.array([[float(number) for number in text.split(",")]])
        except ValueError:
            raise ValueError(f"{text!r} is neither a file nor a list of numbers") from None
    batches = [batch.vectors for batch in _read_batches(text, args)]
    if not batches:
        raise ValueError("there is no query")
    return np.concatenate(batches)


def _read_ids(words: list[str]) -> Any:
    return [int(word) if word.isdigit() else word for word in words]


@cli.command(
    "print vectors and their metadata",
    _FILE,
    cli.arg("ids", nargs="+", metavar="ID", help="ids, or keys where the file declares them"),
    example="warp vectors get episodes.rvf 7 8 --json",
)
def run_vectors_get(args: cli.Namespace, _: Console) -> Output:
    """Print vectors."""
    from warpdata._api import open_vectors

    with open_vectors(args.file) as store:
        ids = _read_ids(args.ids)
        vectors, metadata = store.get(ids).tolist(), store.metadata(ids)
    rows = [
        {"id": number, "vector": vector, "metadata": about}
        for number, vector, about in zip(ids, vectors, metadata, strict=True)
    ]
    return Output(rows, [f"{row['id']}  {row['metadata']}  {row['vector']}" for row in rows], fit=True)


@cli.command(
    "list vectors by a condition, in the order of their ids",
    _FILE,
    _WHERE,
    _COLUMNS,
    cli.number("--limit", default=100, text="at most this many (100)"),
    cli.number("--after", default=None, text="continue after this id", metavar="ID"),
    example='warp vectors scroll episodes.rvf --where "score > 0.5" --limit 20',
)
def run_vectors_scroll(args: cli.Namespace, _: Console) -> Output:
    """List metadata."""
    from warpdata._api import open_vectors

    with open_vectors(args.file) as store:
        names = cli.split_names(args.columns)
        rows = store.scroll(args.where, columns=names, limit=args.limit, after=args.after)
        columns = ["id", *(store.fields if names is None else names)]
    return Output(rows, rows=rows, columns={name: partial(_field, name) for name in columns})


def _field(name: str, row: dict[str, Any]) -> Any:
    return row.get(name)


@cli.command(
    "set metadata fields of vectors",
    _FILE,
    cli.arg("ids", nargs="+", metavar="ID", help="ids, or keys where the file declares them"),
    cli.many("--set", "NAME=JSON", "a field and its new value; null removes it"),
    example='warp vectors update episodes.rvf 7 --set label="cat" --set score=0.5',
)
def run_vectors_update(args: cli.Namespace, _: Console) -> Output:
    """Change metadata."""
    import json

    from warpdata.search.store import VectorStore

    fields: dict[str, Any] = {}
    for word in args.set:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        try:
            fields[name] = json.loads(text)
        except ValueError:
            fields[name] = text
    with VectorStore.open(args.file, mode="a") as store:
        ids = _read_ids(args.ids)
        store.update(ids, [fields] * len(ids))
    return Output({"updated": len(args.ids)}, [f"updated {len(args.ids)} vectors in {args.file}"])


@cli.command(
    "delete vectors by id or by a condition",
    _FILE,
    cli.arg("ids", nargs="*", metavar="ID", help="ids, or keys where the file declares them"),
    _WHERE,
    example='warp vectors delete episodes.rvf --where "score < 0.1"',
)
def run_vectors_delete(args: cli.Namespace, _: Console) -> Output:
    """Delete vectors."""
    from warpdata.search.store import VectorStore

    with VectorStore.open(args.file, mode="a") as store:
        count = store.delete(_read_ids(args.ids) if args.ids else None, where=args.where)
        total = len(store)
    return Output(
        {"deleted": count, "vectors": total}, [f"deleted {count} vectors; {args.file} holds {total}"]
    )


@cli.command("describe a vector file", _FILE, example="warp vectors info episodes.rvf")
def run_vectors_info(args: cli.Namespace, _: Console) -> Output:
    """Describe a file."""
    return describe_vectors(args.file)


def describe_vectors(path: str) -> Output:
    """Facts and segments of a vector file."""
    from warpdata._api import open_vectors

    with open_vectors(path) as store:
        about = {**store.stats(), "segment_list": store.segments()}
    names = ("dialect", "vectors", "dim", "metric", "dtype", "epoch", "index", "codes")
    lines = [f"{name:<8} {about[name]}" for name in names]
    return Output(
        about,
        [*lines, f"{'size':<8} {human_bytes(about['file_bytes'])}", ""],
        rows=about["segment_list"],
        columns={"segment": "id", "type": "type", "offset": "offset", "bytes": "bytes"},
        right=("segment", "offset", "bytes"),
    )


@cli.command(
    "read everything and report damage",
    _FILE,
    cli.many("--key", "FILE", "a key file: require its signatures"),
    example="warp vectors verify episodes.rvf",
)
def run_vectors_verify(args: cli.Namespace, _: Console) -> Output:
    """Verify a file; exit code 3 if it is damaged."""
    from warpdata._api import open_vectors
    from warpdata.errors import FileFinding, FormatError
    from warpdata.formats.rvf.signing import load_public

    keys = [load_public(path) for path in args.key]
    try:
        with open_vectors(args.file) as store:
            damages, count = store.verify(keys), len(store.segments())
    except FormatError as error:  # no state of the file can be opened
        if not str(args.file).lower().endswith(_VECTOR_SUFFIXES):
            raise
        damages, count = [FileFinding.of(error, "MANIFEST")], 0
    lines = [f"segment {damage.part}: [{damage.code}] {damage.message}" for damage in damages]
    return Output(
        {"segments": count, "damages": [asdict(damage) for damage in damages]},
        [*lines, f"{args.file}: {count} segments, {len(damages)} damaged"],
        code=exits.DAMAGED if damages else exits.OK,
    )


_EXPORTED = "the suffix chooses the format: .rvf; .parquet, .jsonl or .csv with metadata; .npy, vectors alone"


@cli.command(
    "write the live vectors to another file",
    _FILE,
    cli.arg("output", help=_EXPORTED),
    cli.arg("--dialect", choices=("wire", "runtime"), default="wire", help="of a .rvf file"),
    cli.OVERWRITE,
    example="warp vectors export episodes.rvf episodes.parquet",
)
def run_vectors_export(args: cli.Namespace, _: Console) -> Output:
    """Export vectors."""
    from warpdata._api import open_vectors
    from warpdata.errors import nearest
    from warpdata.search.columns import TABLE_SUFFIXES, write_rows

    suffix = Path(args.output).suffix.lower()
    known = (_VECTOR_SUFFIXES[0], *TABLE_SUFFIXES)
    if suffix not in (*_VECTOR_SUFFIXES, *TABLE_SUFFIXES):
        raise ValueError(
            f"unknown suffix of {args.output!r} (choose from {', '.join(known)}).{nearest(suffix, known)}"
        )
    cli.check_free(args.output, overwrite=args.overwrite)
    with open_vectors(args.file) as store:
        if suffix in TABLE_SUFFIXES:
            count = write_rows(args.output, store, overwrite=args.overwrite)
            value = {"vectors": count, "output": args.output}
            return Output(value, [f"wrote {count} vectors to {args.output}"])
        receipt = store.export(args.output, dialect=args.dialect, overwrite=args.overwrite)
        return Output({**receipt.to_json(), "output": args.output}, list(receipt.lines()), fit=True)


def _signing(args: cli.Namespace) -> dict[str, Any]:
    from warpdata.formats.rvf.signing import SigningKey

    key = None if args.key is None else SigningKey.load(args.key)
    return {"key": key, "drop_signatures": args.drop_signatures}


@cli.command(
    "build a vector index",
    _FILE,
    cli.arg("--kind", choices=("hnsw", "ivf", "flat"), default="hnsw"),
    cli.number("--m", default=16, text="neighbours per node of the graph"),
    cli.number("--ef-construction", default=200, text="effort of building the graph"),
    cli.number("--partitions", default=0, text="0 chooses the square root of the count"),
    cli.arg("--quantize", choices=("scalar", "pq", "binary", "residual_pq"), help="also store codes"),
    cli.flag("--drop-full", "keep only the codes"),
    _SIGNING,
    example="warp vectors index episodes.rvf",
)
def run_vectors_index(args: cli.Namespace, _: Console) -> Output:
    """Build an index."""
    from warpdata.search.store import VectorStore

    signing = _signing(args)
    with VectorStore.open(args.file, mode="a") as store:
        if args.quantize:
            store.quantize(args.quantize, keep_full=not args.drop_full, **signing)
        store.build_index(
            args.kind, m=args.m, ef_construction=args.ef_construction, partitions=args.partitions, **signing
        )
        about = store.stats()
    return Output(about, [f"indexed {about['vectors']} vectors ({args.kind}) in {args.file}"])


@cli.command(
    "write the file again without deleted vectors",
    _FILE,
    cli.arg("--compression", choices=("none", "lz4", "zstd"), default="none"),
    _SIGNING,
    example="warp vectors compact episodes.rvf --compression zstd",
)
def run_vectors_compact(args: cli.Namespace, _: Console) -> Output:
    """Compact a file."""
    from warpdata.search.store import VectorStore

    with VectorStore.open(args.file, mode="a") as store:
        saved = store.compact(compression=args.compression, **_signing(args))
        size = store.stats()["file_bytes"]
    return Output(
        {"file_bytes": size, "saved_bytes": saved},
        [f"compacted {args.file}: {size} bytes, {saved} fewer than before"],
    )


@cli.command(
    "sign every segment; makes the key file if it does not exist",
    _FILE,
    cli.arg("--key", required=True, help="the private key file"),
    cli.arg(
        "--algorithm",
        choices=("ed25519", "ml-dsa-65", "slh-dsa-128s"),
        default="ed25519",
        help="for a new key",
    ),
    example="warp vectors sign episodes.rvf --key lab.pem",
)
def run_vectors_sign(args: cli.Namespace, _: Console) -> Output:
    """Sign a file."""
    from warpdata.formats.rvf.signing import SigningKey
    from warpdata.search.store import VectorStore

    is_new = not Path(args.key).exists()
    key = SigningKey.generate(args.algorithm) if is_new else SigningKey.load(args.key)
    with VectorStore.open(args.file, mode="a") as store:
        if is_new:
            key.save(args.key)
        store.sign(key)
    key_id = key.public.key_id.hex()
    value = {"algorithm": key.algorithm, "key_id": key_id, "new_key": is_new}
    return Output(value, [f"signed {args.file} with {key.algorithm} key {key_id}"])
