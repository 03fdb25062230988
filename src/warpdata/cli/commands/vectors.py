"""`warp vectors`: vector files on the command line."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warpdata.cli.console import Console
    from warpdata.search.columns import VectorRows

_METRICS = ("l2", "ip", "cosine")
_DTYPES = ("f32", "f16", "bf16", "i8", "u8", "i4", "binary")
_QUANTISERS = ("scalar", "pq", "binary", "residual_pq")
_ALGORITHMS = ("ed25519", "ml-dsa-65", "slh-dsa-128s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp vectors`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions)
    _add_add(actions)
    _add_search(actions)
    _add_reading(actions)
    _add_rewriting(actions)


def _action(actions: Any, name: str, text: str, *, json: bool = True) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    sub.add_argument(
        "file", help="the vector file (.rvf); what only reads takes http(s), s3, gs and az URLs too"
    )
    if json:
        sub.add_argument("--json", action="store_true", help="print the result as JSON")
    return sub


def _add_create(actions: Any) -> None:
    sub = _action(actions, "create", "make a new, empty vector file")
    sub.add_argument("--dim", type=int, required=True, help="dimensions of a vector")
    sub.add_argument("--metric", choices=_METRICS, default="l2")
    sub.add_argument("--dtype", choices=_DTYPES, default="f32")
    sub.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def _add_input(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--column", default="vector", help="the parquet column with the vectors")


def _add_add(actions: Any) -> None:
    sub = _action(actions, "add", "add vectors from .npy, .parquet, or JSON lines on standard input (-)")
    sub.add_argument("input", help="a .npy or .parquet file, or -")
    _add_input(sub)
    sub.add_argument("--id-column", help="the parquet column with the ids")
    sub.add_argument("--metadata-column", action="append", default=[], help="a parquet column to keep")


def _add_search(actions: Any) -> None:
    sub = _action(actions, "search", "find the nearest vectors")
    # A list of numbers may begin with a minus; argparse would take it for an option.
    sub._negative_number_matcher = re.compile(r"^-[\d.,eE+-]+$")
    sub.add_argument("query", help="a .npy or .parquet file, - for JSON lines, or numbers like 0.1,0.2,0.3")
    _add_input(sub)
    sub.add_argument("-k", type=int, default=10, help="how many")
    sub.add_argument("--ef", type=int, default=64, help="effort: higher finds more of the true neighbours")
    sub.add_argument(
        "--where", metavar="SQL", help="a condition on metadata, such as: label = 'cat' and score > 0.5"
    )
    sub.add_argument("--exact", action="store_true", help="compare with every vector")


def _add_reading(actions: Any) -> None:
    _action(actions, "info", "what a vector file holds")
    verify = _action(actions, "verify", "read everything and report damage")
    verify.add_argument("--key", action="append", default=[], help="a key file: require its signatures")
    export = _action(actions, "export", "write the live vectors to another file")
    export.add_argument(
        "output",
        help="the suffix says what: .rvf; .parquet, .jsonl or .csv with metadata; .npy, vectors alone",
    )
    export.add_argument("--dialect", choices=("wire", "runtime"), default="wire", help="of a .rvf file")
    export.add_argument("--overwrite", action="store_true", help="replace a file that exists")


def _add_rewriting(actions: Any) -> None:
    index = _action(actions, "index", "build a vector index")
    index.add_argument("--kind", choices=("hnsw", "ivf", "flat"), default="hnsw")
    index.add_argument("--m", type=int, default=16, help="neighbours per node of the graph")
    index.add_argument("--ef-construction", type=int, default=200)
    index.add_argument("--partitions", type=int, default=0, help="0 chooses the square root of the count")
    index.add_argument(
        "--quantize", choices=("scalar", "pq", "binary", "residual_pq"), help="also store codes"
    )
    index.add_argument("--drop-full", action="store_true", help="keep only the codes")
    _add_signing(index)
    compact = _action(actions, "compact", "write the file anew without what was deleted")
    compact.add_argument("--compression", choices=("none", "lz4", "zstd"), default="none")
    _add_signing(compact)
    sign = _action(actions, "sign", "sign every segment; makes the key file if it does not exist")
    sign.add_argument("--key", required=True, help="the private key file")
    sign.add_argument("--algorithm", choices=_ALGORITHMS, default="ed25519", help="for a new key")


def _add_signing(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--key", help="a private key file: sign the new file with it")
    sub.add_argument(
        "--drop-signatures", action="store_true", help="let a signed file become an unsigned one"
    )


def run(args: argparse.Namespace, console: Console) -> int:
    """Do one thing with a vector file."""
    actions = {
        "create": _create, "add": _add, "search": _search, "info": _info, "index": _index,
        "compact": _compact, "verify": _verify, "export": _export, "sign": _sign,
    }  # fmt: skip
    return actions[args.action](args, console)


def _create(args: argparse.Namespace, console: Console) -> int:
    from warpdata.search.store import VectorStore

    with VectorStore.create(
        args.file, dim=args.dim, metric=args.metric, dtype=args.dtype, overwrite=args.overwrite
    ) as store:
        console.print(f"created {args.file}: {store.dim} dimensions, {store.metric}, {store.dtype}")
        console.emit({"file": args.file, "dim": store.dim, "metric": store.metric, "dtype": store.dtype})
    return exits.OK


def _batches(source: str, args: argparse.Namespace) -> Iterator[VectorRows]:
    from warpdata.search.columns import Columns, json_batches, read_batches

    if source == "-":
        return json_batches(sys.stdin)
    columns = Columns(
        args.column, getattr(args, "id_column", None), tuple(getattr(args, "metadata_column", ()))
    )
    return read_batches(source, columns)


def _add(args: argparse.Namespace, console: Console) -> int:
    from warpdata.search.store import VectorStore

    count = 0
    with VectorStore.open(args.file, mode="a") as store, console.progress("adding") as bar:
        try:
            for batch in _batches(args.input, args):
                store.add(batch.vectors, batch.ids, batch.metadata)
                count += len(batch.vectors)
                bar(count, count)
        except BaseException:
            if count:
                console.print(f"added the first {count} vectors of {args.input}; they stay in {args.file}")
            raise
        total = len(store)
    console.print(f"added {count} vectors; {args.file} holds {total}")
    console.emit({"added": count, "vectors": total})
    return exits.OK


def _queries(args: argparse.Namespace) -> Any:
    import numpy as np

    text = args.query
    if text != "-" and not text.endswith((".npy", ".parquet", ".pq")):
        try:
            return np.array([[float(each) for each in text.split(",")]])
        except ValueError:
            raise ValueError(f"{text!r} is neither a file nor a list of numbers") from None
    found = [batch.vectors for batch in _batches(text, args)]
    if not found:
        raise ValueError("there is no query")
    return np.concatenate(found)


def _known(store: Any, ids: Any) -> dict[int, dict[str, Any]]:
    """What is known of the vectors that were found, where anything is."""
    if not store.fields:
        return {}
    unique = sorted({int(each) for each in ids})
    return {each: {"metadata": row} for each, row in zip(unique, store.metadata(unique), strict=True) if row}


def _search(args: argparse.Namespace, console: Console) -> int:
    from warpdata._api import open_vectors

    queries = _queries(args)
    with open_vectors(args.file) as store:
        ids, distances = store.search(queries, args.k, args.ef, args.where, args.exact)
        known = _known(store, ids[ids >= 0])
    results = [
        [{"id": i, "distance": d, **known.get(i, {})} for i, d in zip(row, away, strict=True) if i >= 0]
        for row, away in zip(ids.tolist(), distances.tolist(), strict=True)
    ]
    for number, found in enumerate(results):
        if len(results) > 1:
            console.print(f"query {number}")
        for each in found:
            about = " ".join(f"{name}={value}" for name, value in each.get("metadata", {}).items())
            console.print(console.fitted(f"{each['id']:>12}  {each['distance']:<12.6g}{about}".rstrip()))
    console.emit(results[0] if len(results) == 1 else results)
    return exits.OK


def _info(args: argparse.Namespace, console: Console) -> int:
    return show_info(args.file, console)


def show_info(path: str, console: Console) -> int:
    """Print what a vector file holds; `warp inspect` does it too."""
    from warpdata._api import open_vectors
    from warpdata.cli.console import human_bytes

    with open_vectors(path) as store:
        about = {**store.stats(), "segment_list": store.segments()}
    for name in ("dialect", "vectors", "dim", "metric", "dtype", "epoch", "index", "codes"):
        console.print(f"{name:<8} {about[name]}")
    console.print(f"{'size':<8} {human_bytes(about['file_bytes'])}")
    rows = [[str(s["id"]), s["type"], str(s["offset"]), str(s["bytes"])] for s in about["segment_list"]]
    console.print()
    console.print_table(rows, ["segment", "type", "offset", "bytes"], right=[0, 2, 3])
    console.emit(about)
    return exits.OK


def _index(args: argparse.Namespace, console: Console) -> int:
    from warpdata.search.store import VectorStore

    signing = _signing(args)
    with VectorStore.open(args.file, mode="a") as store:
        if args.quantize:
            store.quantize(args.quantize, keep_full=not args.drop_full, **signing)
        store.build_index(
            args.kind, m=args.m, ef_construction=args.ef_construction, partitions=args.partitions, **signing
        )
        about = store.stats()
    console.print(f"indexed {about['vectors']} vectors ({args.kind}) in {args.file}")
    console.emit(about)
    return exits.OK


def _signing(args: argparse.Namespace) -> dict[str, Any]:
    from warpdata.formats.rvf.signing import SigningKey

    key = None if args.key is None else SigningKey.load(args.key)
    return {"key": key, "drop_signatures": args.drop_signatures}


def _compact(args: argparse.Namespace, console: Console) -> int:
    from warpdata.search.store import VectorStore

    with VectorStore.open(args.file, mode="a") as store:
        saved = store.compact(compression=args.compression, **_signing(args))
        size = store.stats()["file_bytes"]
    console.print(f"compacted {args.file}: {size} bytes, {saved} fewer than before")
    console.emit({"file_bytes": size, "saved_bytes": saved})
    return exits.OK


def _verify(args: argparse.Namespace, console: Console) -> int:
    from dataclasses import asdict

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
    for damage in damages:
        console.print(f"segment {damage.part}: [{damage.code}] {damage.message}")
    console.print(f"{args.file}: {count} segments, {len(damages)} damaged")
    console.emit({"segments": count, "damages": [asdict(damage) for damage in damages]})
    return exits.DAMAGED if damages else exits.OK


_VECTOR_SUFFIXES = (".rvf", ".rvdna", ".rvtext", ".rvgraph", ".rvvis")


def _export(args: argparse.Namespace, console: Console) -> int:
    from warpdata._api import open_vectors
    from warpdata.cli.console import check_free
    from warpdata.errors import nearest
    from warpdata.search.columns import TABLE_SUFFIXES, write_rows

    suffix = Path(args.output).suffix.lower()
    known = (*_VECTOR_SUFFIXES[:1], *TABLE_SUFFIXES)
    if suffix not in (*_VECTOR_SUFFIXES, *TABLE_SUFFIXES):
        raise ValueError(
            f"the suffix of {args.output!r} does not say what to write; use one of {', '.join(known)}."
            f"{nearest(suffix, known)}"
        )
    check_free(args.output, overwrite=args.overwrite)
    with open_vectors(args.file) as store:
        if suffix in TABLE_SUFFIXES:
            count = write_rows(args.output, store, overwrite=args.overwrite)
            console.print(f"wrote {count} vectors to {args.output}")
            console.emit({"vectors": count, "output": args.output})
        else:
            receipt = store.export(args.output, dialect=args.dialect, overwrite=args.overwrite)
            console.print_receipt(receipt)
            console.emit({**receipt.to_json(), "output": args.output})
    return exits.OK


def _sign(args: argparse.Namespace, console: Console) -> int:
    from warpdata.formats.rvf.signing import SigningKey
    from warpdata.search.store import VectorStore

    made = not Path(args.key).exists()
    key = SigningKey.generate(args.algorithm) if made else SigningKey.load(args.key)
    with VectorStore.open(args.file, mode="a") as store:
        if made:
            key.save(args.key)
        store.sign(key)
    console.print(f"signed {args.file} with {key.algorithm} key {key.public.key_id.hex()}")
    console.emit({"algorithm": key.algorithm, "key_id": key.public.key_id.hex(), "new_key": made})
    return exits.OK
