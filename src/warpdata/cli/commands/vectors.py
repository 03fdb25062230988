"""Commands about vectors: `embed` makes them, `similar` finds moments, `vectors` works on files of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Exit, Output, human_bytes
from warpdata.errors import FileFinding, FormatError, nearest

if TYPE_CHECKING:
    from warpdata.search.columns import VectorRows
    from warpdata.search.store import VectorStore

_SHOWN = 3
"""Episodes without vectors that are named."""
_VECTOR_SUFFIXES = (".rvf", ".rvdna", ".rvtext", ".rvgraph", ".rvvis")
_EMBEDDER = (
    "right after ADDRESS: state (every number that is no picture; the default), pixels (cameras), of windows of "
    "seconds also motion and image, or "
    "MODULE:FUNCTION of your own, which is called with an observation and gives a vector"
)
_WHERE = cli.Arg("a condition on metadata, such as: label = 'cat' and score > 0.5", "SQL")
_RESULTS = cli.Arg("number of results", short="-k")


class EmbedArguments(cli.Publishing, cli.Work, total=False):
    """Options of `wd.embed`."""

    name: Annotated[str, "name of the vectors (default: the embedder)"]
    per: Annotated[Literal["episode", "step", "window", "frame"], "unit of a vector (step)"]
    rate_hz: float
    clock: str
    max_steps: Annotated[int, "at most this many steps of an episode, spread evenly; 0 for all (256)"]
    window: Annotated[int, "steps of a window (32)"]
    stride: Annotated[int, "steps between windows (16)"]
    window_s: Annotated[float, cli.Arg("windows of seconds, handed over whole", "SECONDS")]
    stride_s: Annotated[float, cli.Arg("seconds between them (half of a window)", "SECONDS")]
    signals: Sequence[str]
    batch_size: int
    where: str
    metric: Literal["cosine", "l2", "ip"]
    revision: str
    output: str
    overwrite: bool
    index: Annotated[
        Literal["auto", "none", "hnsw", "ivf", "flat"], cli.ARGUMENTS["kind"]._replace(option="kind")
    ]


@cli.command("warp embed robot_data state --per window")
def run_embed(
    warp: cli.Warp,
    address: str,
    embedder: Annotated[str, _EMBEDDER] = "state",
    **options: Unpack[EmbedArguments],
) -> Output:
    """Compute vectors of episodes: what is missing or changed, the rest is kept."""
    from warpdata._api.embedding import embed

    function = cli.import_function(embedder) if ":" in embedder else embedder
    with warp.progress("embedding") as bar:
        made = embed(address, function, catalog=warp.catalog, progress=bar, **options)
    lines = [
        str(made) + (f", version {made.version[:12]}" if made.version else ""),
        f"{made.computed} episodes embedded, {made.resumed} were before it was stopped, {made.reused} had not changed",
    ]
    lines += [f"{episode} has no vectors: {why}" for episode, why in list(made.without.items())[:_SHOWN]]
    if len(made.without) > _SHOWN:
        lines.append(f"{len(made.without) - _SHOWN} more have none")
    return Output(made, lines)


@cli.command(
    "warp similar robot_data#3 --at 0.4s --for 1.5s",
    columns={
        "episode": "episode_id",
        "from": lambda hit: f"{hit.t0_ns / 1e9:.3f} s",
        "to": lambda hit: f"{hit.t1_ns / 1e9:.3f} s",
        "distance": lambda hit: f"{hit.distance:.4g}",
    },
    right=("from", "to", "distance"),
)
def run_similar(
    warp: cli.Warp,
    address: Annotated[str, cli.Arg(f"the episode: {cli.FORMS}", "ADDRESS#ID")],
    *,
    at: cli.Moment,
    duration: Annotated[int, cli.ARGUMENTS["duration"]._replace(short="--for")] = 1_000_000_000,
    limit: Annotated[int, _RESULTS] = 5,
    index: str | None = None,
    embedder: Annotated[str | None, "MODULE:FUNCTION that made the index, if it is one of your own"] = None,
    revision: str | None = None,
) -> Sequence[Any]:
    """Find moments like one of an episode."""
    from warpdata._api.similar import find_similar

    source, mark, _ = address.rpartition("#")
    if not mark:
        raise ValueError(f"name one episode: {address}#ID")
    episode = warp.open_episode(address)
    start = at(episode.first_ts_ns)
    options: dict[str, Any] = {"index": index, "revision": revision, "catalog": warp.catalog}
    options["embedder"] = cli.import_function(embedder) if embedder and ":" in embedder else embedder
    return find_similar(source, episode.id, start, start + duration, limit, **options)


# Vector files.

Where = Annotated[str | None, _WHERE]


@contextlib.contextmanager
def _open(file: str, *, change: bool = False) -> Iterator[VectorStore]:
    from warpdata._api import open_vectors

    with open_vectors(file, "a" if change else "r") as store:
        yield store


@cli.command("warp vectors create episodes.rvf --dim 64 --metric cosine")
def run_vectors_create(
    _: cli.Warp,
    file: str,
    *,
    dim: Annotated[int, "dimensions of a vector"],
    metric: Literal["l2", "ip", "cosine"] = "l2",
    dtype: Literal["f32", "f16", "bf16", "i8", "u8", "i4", "binary"] = "f32",
    key: Annotated[
        str | None, cli.Arg("a text field of the metadata that names the vectors", "FIELD")
    ] = None,
    overwrite: bool = False,
) -> Output:
    """Make a new, empty vector file."""
    from warpdata.search.store import VectorStore

    with VectorStore.create(file, dim=dim, metric=metric, dtype=dtype, key=key, overwrite=overwrite) as store:
        value = {"file": file, "dim": store.dim, "metric": store.metric, "dtype": store.dtype}
    return Output(value, [f"created {file}: {value['dim']} dimensions, {value['metric']}, {value['dtype']}"])


def _read_batches(
    source: str, column: str, id_column: str | None = None, metadata: Sequence[str] = ()
) -> Iterator[VectorRows]:
    from warpdata.search.columns import Columns, json_batches, read_batches

    if source == "-":
        return json_batches(sys.stdin)
    return read_batches(source, Columns(column, id_column, tuple(metadata)))


@cli.command("warp vectors add episodes.rvf vectors.npy")
def run_vectors_add(
    warp: cli.Warp,
    file: str,
    source: Annotated[str, "a .npy or .parquet file, or -"],
    *,
    column: str = "vector",
    id_column: Annotated[str | None, "the parquet column with the ids"] = None,
    metadata_column: Annotated[Sequence[str], cli.Arg("a parquet column to keep", "NAME")] = (),
) -> Output:
    """Add vectors from .npy, .parquet, or JSON lines on standard input (-)."""
    count = 0
    with _open(file, change=True) as store, warp.progress("adding") as bar:
        try:
            for batch in _read_batches(source, column, id_column, metadata_column):
                store.add(batch.vectors, batch.ids, batch.metadata)
                count += len(batch.vectors)
                bar(count, count)
        except BaseException:
            if count:
                warp.console.print(f"added the first {count} vectors of {source}; they stay in {file}")
            raise
        total = len(store)
    return Output({"added": count, "vectors": total}, [f"added {count} vectors; {file} holds {total}"])


@cli.command("warp vectors search episodes.rvf 0.1,0.2,0.3 -k 5")
def run_vectors_search(
    _: cli.Warp,
    file: str,
    query: Annotated[str, "a .npy or .parquet file, - for JSON lines, or numbers like 0.1,0.2,0.3"],
    *,
    column: str = "vector",
    limit: Annotated[int, _RESULTS] = 10,
    ef: Annotated[int | None, "effort: higher finds more of the true neighbours (64)"] = None,
    recall: Annotated[float | None, "the share of the true neighbours to find, instead of --ef"] = None,
    columns: str | None = None,
    where: Where = None,
    exact: Annotated[bool, "compare with every vector"] = False,
) -> Output:
    """Find the nearest vectors."""
    queries = _read_queries(query, column)
    with _open(file) as store:
        names = cli.split_names(columns) or list(store.fields)
        ids, distances, hits = store.search(queries, limit, ef, where, exact, recall=recall, columns=names)
    results: list[list[dict[str, Any]]] = []
    lines = []
    for number, (row, away, about) in enumerate(zip(ids.tolist(), distances.tolist(), hits, strict=True)):
        if len(ids) > 1:
            lines.append(f"query {number}")
        results.append([])
        matches = [match for match in zip(row, away, strict=True) if match[0] >= 0]
        for (id_, distance), metadata in zip(matches, about, strict=True):
            results[-1].append(
                {"id": id_, "distance": distance, **({"metadata": metadata} if metadata else {})}
            )
            text = " ".join(f"{name}={value}" for name, value in (metadata or {}).items())
            lines.append(f"{id_:>12}  {distance:<12.6g}{text}".rstrip())
    return Output(results[0] if len(results) == 1 else results, lines, fit=True)


def _read_queries(text: str, column: str) -> Any:
    import numpy as np

    if text != "-" and not text.endswith((".npy", ".parquet", ".pq")):
        try:
            return np.array([[float(number) for number in text.split(",")]])
        except ValueError:
            raise ValueError(f"{text!r} is neither a file nor a list of numbers") from None
    batches = [batch.vectors for batch in _read_batches(text, column)]
    if not batches:
        raise ValueError("there is no query")
    return np.concatenate(batches)


def _read_ids(words: Sequence[str], store: VectorStore) -> Any:
    """Keys where the file declares them, else numbers."""
    return list(words) if store.key else [int(word) if word.isdigit() else word for word in words]


@cli.command("warp vectors get episodes.rvf 7 8 --json")
def run_vectors_get(_: cli.Warp, file: str, ids: Sequence[str]) -> Output:
    """Print vectors and their metadata."""
    with _open(file) as store:
        numbers = _read_ids(ids, store)
        vectors, metadata = store.get(numbers).tolist(), store.metadata(numbers)
    rows = [
        {"id": number, "vector": vector, "metadata": about}
        for number, vector, about in zip(numbers, vectors, metadata, strict=True)
    ]
    return Output(rows, [f"{row['id']}  {row['metadata']}  {row['vector']}" for row in rows], fit=True)


@cli.command('warp vectors scroll episodes.rvf --where "score > 0.5" --limit 20')
def run_vectors_scroll(
    _: cli.Warp,
    file: str,
    *,
    where: Where = None,
    columns: str | None = None,
    limit: int = 100,
    after: Annotated[int | None, cli.Arg("continue after this id", "ID")] = None,
) -> Output:
    """List vectors by a condition, in the order of their ids."""
    with _open(file) as store:
        names = cli.split_names(columns)
        rows = store.scroll(where, columns=names, limit=limit, after=after)
        shown = ["id", *(store.fields if names is None else names)]
    cells: dict[str, Any] = {name: (lambda row, name=name: row.get(name)) for name in shown}
    return Output(rows, rows=rows, columns=cells)


@cli.command('warp vectors update episodes.rvf 7 --set label="cat" --set score=0.5')
def run_vectors_update(
    _: cli.Warp,
    file: str,
    ids: Sequence[str],
    *,
    set_: Annotated[Sequence[str], cli.Arg("a field and its new value; null removes it", "NAME=JSON")],
) -> Output:
    """Set metadata fields of vectors."""
    fields = cli.named_values(set_)
    with _open(file, change=True) as store:
        store.update(_read_ids(ids, store), [fields] * len(ids))
    return Output({"updated": len(ids)}, [f"updated {len(ids)} vectors in {file}"])


@cli.command('warp vectors delete episodes.rvf --where "score < 0.1"')
def run_vectors_delete(_: cli.Warp, file: str, ids: Sequence[str] = (), *, where: Where = None) -> Output:
    """Delete vectors by id or by a condition."""
    with _open(file, change=True) as store:
        count = store.delete(_read_ids(ids, store) if ids else None, where=where)
        total = len(store)
    return Output({"deleted": count, "vectors": total}, [f"deleted {count} vectors; {file} holds {total}"])


@cli.command("warp vectors show episodes.rvf")
def run_vectors_show(_: cli.Warp, file: str) -> Output:
    """Describe a vector file."""
    return describe_vectors(file)


def describe_vectors(path: str) -> Output:
    """Facts and segments of a vector file."""
    with _open(path) as store:
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


@cli.command("warp vectors verify episodes.rvf")
def run_vectors_verify(
    _: cli.Warp,
    file: str,
    *,
    key: Annotated[Sequence[str], "a key file: require its signatures"] = (),
) -> Output:
    """Read everything and report damage; exit code 3 if the file is damaged."""
    from warpdata.formats.rvf.signing import load_public

    keys = [load_public(path) for path in key]
    try:
        with _open(file) as store:
            damages, count = store.verify(keys), len(store.segments())
    except FormatError as error:  # no state of the file can be opened
        if not file.lower().endswith(_VECTOR_SUFFIXES):
            raise
        damages, count = [FileFinding.of(error, "MANIFEST")], 0
    lines = [f"segment {damage.part}: [{damage.code}] {damage.message}" for damage in damages]
    return Output(
        {"segments": count, "damages": damages},
        [*lines, f"{file}: {count} segments, {len(damages)} damaged"],
        code=Exit.DAMAGED if damages else Exit.OK,
    )


_EXPORTED = "the suffix chooses the format: .rvf; .parquet, .jsonl or .csv with metadata; .npy, vectors alone"


@cli.command("warp vectors export episodes.rvf episodes.parquet")
def run_vectors_export(
    _: cli.Warp,
    file: str,
    output: Annotated[str, _EXPORTED],
    *,
    dialect: Annotated[Literal["wire", "runtime"], "of a .rvf file"] = "wire",
    overwrite: bool = False,
) -> Output:
    """Write the live vectors to another file."""
    from warpdata.search.columns import TABLE_SUFFIXES, write_rows

    suffix, known = Path(output).suffix.lower(), (_VECTOR_SUFFIXES[0], *TABLE_SUFFIXES)
    if suffix not in (*_VECTOR_SUFFIXES, *TABLE_SUFFIXES):
        raise ValueError(
            f"unknown suffix of {output!r} (choose from {', '.join(known)}).{nearest(suffix, known)}"
        )
    with _open(file) as store:
        if suffix in TABLE_SUFFIXES:
            count = write_rows(output, store, overwrite=overwrite)
            return Output({"vectors": count, "output": output}, [f"wrote {count} vectors to {output}"])
        receipt = store.export(output, dialect=dialect, overwrite=overwrite)
        return Output({**receipt.to_json(), "output": output}, list(receipt.lines()), fit=True)


def _signing(sign_key: str | None, drop_signatures: bool) -> dict[str, Any]:
    from warpdata.formats.rvf.signing import SigningKey

    key = None if sign_key is None else SigningKey.load(sign_key)
    return {"key": key, "drop_signatures": drop_signatures}


@cli.command("warp vectors index episodes.rvf")
def run_vectors_index(
    _: cli.Warp,
    file: str,
    *,
    kind: Literal["hnsw", "ivf", "flat"] = "hnsw",
    quantize: Annotated[Literal["scalar", "pq", "binary", "residual_pq"] | None, "also store codes"] = None,
    drop_full: Annotated[bool, "keep only the codes"] = False,
    m: Annotated[int, "neighbours per node of the graph"] = 16,
    ef_construction: Annotated[int, "effort of building the graph"] = 200,
    partitions: Annotated[int, "0 chooses the square root of the count"] = 0,
    sign_key: str | None = None,
    drop_signatures: bool = False,
) -> Output:
    """Build a vector index."""
    signing = _signing(sign_key, drop_signatures)
    with _open(file, change=True) as store:
        if quantize:
            store.quantize(quantize, keep_full=not drop_full, **signing)
        store.build_index(kind, m=m, ef_construction=ef_construction, partitions=partitions, **signing)
        about = store.stats()
    return Output(about, [f"indexed {about['vectors']} vectors ({kind}) in {file}"])


@cli.command("warp vectors compact episodes.rvf --compression zstd")
def run_vectors_compact(
    _: cli.Warp,
    file: str,
    *,
    compression: Literal["none", "lz4", "zstd"] = "none",
    sign_key: str | None = None,
    drop_signatures: bool = False,
) -> Output:
    """Write the file again without deleted vectors."""
    with _open(file, change=True) as store:
        saved = store.compact(compression=compression, **_signing(sign_key, drop_signatures))
        size = store.stats()["file_bytes"]
    value = {"file_bytes": size, "saved_bytes": saved}
    return Output(value, [f"compacted {file}: {size} bytes, {saved} fewer than before"])


@cli.command("warp vectors sign episodes.rvf --key lab.pem")
def run_vectors_sign(
    _: cli.Warp,
    file: str,
    *,
    key: Annotated[str, "the private key file"],
    algorithm: Annotated[Literal["ed25519", "ml-dsa-65", "slh-dsa-128s"], "for a new key"] = "ed25519",
) -> Output:
    """Sign every segment; makes the key file if it does not exist."""
    from warpdata.formats.rvf.signing import SigningKey

    is_new = not Path(key).exists()
    pair = SigningKey.generate(algorithm) if is_new else SigningKey.load(key)
    with _open(file, change=True) as store:
        if is_new:
            pair.save(key)
        store.sign(pair)
    key_id = pair.public.key_id.hex()
    value = {"algorithm": pair.algorithm, "key_id": key_id, "new_key": is_new}
    return Output(value, [f"signed {file} with {pair.algorithm} key {key_id}"])
