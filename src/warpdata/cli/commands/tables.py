"""Commands that read the tables and raw files of a dataset: `query`, `info`, `schema`, `head`, `stream`, `cat`."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, get_args

from warpdata.cli.arguments import (
    add_dataset_arguments,
    add_table_view,
    naming_errors,
    open_named,
    select_view,
)
from warpdata.cli.console import Output, cut, human_bytes, printable
from warpdata.errors import TooLargeError

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.cli.console import Console

_CELL = 40
_PIECE_BYTES = 8 << 20
_STREAMS = ("arrow", "ndjson", "parquet")


def _rows_report(console: Console, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Output:
    """Rows of a table, with long values cut."""
    longest = console.fit_width or _CELL

    def cell(name: str) -> Any:
        def text(row: dict[str, Any]) -> str:
            value = row.get(name)
            shown = f"{value:.6g}" if isinstance(value, float) else str(value)
            return cut(printable(shown[: 4 * longest]), longest)

        return text

    columns = {name: cell(name) for name in names}
    return Output(rows, rows=rows, columns=columns, footer=[f"{len(rows)} rows"])


def add_query(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp query`."""
    add_dataset_arguments(parser)
    parser.add_argument("sql", help="a SELECT over the tables by name; recordings have one: episodes")
    parser.add_argument("--format", choices=("table", *_STREAMS), default="table")


def run_query(args: argparse.Namespace, console: Console) -> Output:
    """Run SQL over the tables of a dataset, or over the table `episodes` of any other address."""
    from warpdata._api import divided_address, is_published, open_episodes
    from warpdata.catalog.read.arrowout import rows_as_json, write_batches
    from warpdata.catalog.table import MAX_ROWS

    base, inside = divided_address(args.dataset)
    with contextlib.ExitStack() as resources:
        if is_published(base) and inside is None:
            result = resources.enter_context(open_named(args)).sql(args.sql)
        else:
            with naming_errors():
                result = open_episodes(args.dataset, catalog=args.catalog).sql(args.sql)
        if args.format != "table":
            write_batches(result.batches(), result.schema, args.format, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return Output()
        try:
            names, rows = result.schema.names, rows_as_json(result.arrow(max_rows=MAX_ROWS))
        except TooLargeError as error:
            hint = "Stream it with --format ndjson, arrow or parquet, or add a LIMIT."
            raise TooLargeError(error.message, hint=hint) from None
    return _rows_report(console, rows, names)


add_info = add_dataset_arguments


def run_info(args: argparse.Namespace, _: Console) -> Output:
    """Show one dataset version."""
    from warpdata.catalog.dataset import describe

    with open_named(args) as dataset:
        about = describe(dataset)
    title = f"{about['dataset_id']}@{about['version']}"
    items = {
        "catalog": about["catalog"],
        "created": about["created_at"],
        "rows": about["total_rows"],
        "size": human_bytes(about["total_bytes"]),
        "tables": ", ".join(about["tables"]) or "-",
        "artifacts": ", ".join(about["artifacts"]) or "-",
    }
    if signature := about["signature"]:
        items["signed"] = f"{signature['covers']}, by {signature['public_key']}"
    for key, value in about["metadata"].items():
        if key == "edits" and isinstance(value, dict):
            value = f"{sum(map(len, value.values()))}, listed by `warp inspect {about['dataset_id']}`"
        items[key] = value
    lines = [f"{key:<9} {value}" for key, value in items.items()]
    if about["is_remembered"]:
        lines.insert(0, "offline: the latest version as it was seen last")
    return Output(about, [title, *lines], style={title: "bold"})


def add_schema(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp schema`."""
    add_dataset_arguments(parser)
    parser.add_argument("--table", default="main")


def run_schema(args: argparse.Namespace, _: Console) -> Output:
    """List the columns; only the manifest is read."""
    with open_named(args) as dataset:
        fields = [dict(field) for field in dataset.table(args.table).part.fields]
        bound = {b.column: b.ref_type for b in dataset.manifest.bindings if b.table == args.table}
    for field in fields:
        field["ref_type"] = bound.get(str(field["name"]))
    columns: dict[str, Any] = {
        "column": "name",
        "type": "type",
        "": lambda field: "" if field["nullable"] else "required",
        "refers to": "ref_type",
    }
    return Output({"table": args.table, "columns": fields}, rows=fields, columns=columns)


def add_head(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp head`."""
    add_dataset_arguments(parser)
    parser.add_argument("-n", type=int, default=5, help="number of rows (default 5)")
    add_table_view(parser)


def run_head(args: argparse.Namespace, console: Console) -> Output:
    """Show the first rows."""
    from warpdata.catalog.read.arrowout import rows_as_json

    with open_named(args) as dataset:
        view = select_view(dataset, args)
        return _rows_report(console, rows_as_json(view.head(args.n)), view.schema().names)


def add_stream(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp stream`."""
    from warpdata.ordering.limits import Tail

    add_dataset_arguments(parser, json=False)
    add_table_view(parser)
    parser.add_argument("--batch-size", type=int, default=50_000)
    parser.add_argument("--rank", type=int, help="only the share of this rank, counted from 0")
    parser.add_argument("--world", type=int, help="number of ranks")
    parser.add_argument("--shard", help="rank/world such as 0/8, or auto: from RANK and WORLD_SIZE")
    parser.add_argument(
        "--tail", choices=get_args(Tail), default="short", help="handling of a short last batch"
    )
    parser.add_argument("--limit", type=int)
    parser.add_argument("--format", choices=_STREAMS, default="arrow")
    parser.add_argument(
        "--json", action="store_const", dest="format", const="ndjson", help="same as --format ndjson"
    )


def run_stream(args: argparse.Namespace, console: Console) -> Output:
    """Write the rows; the first ones leave as soon as they are read."""
    from warpdata.catalog.read.arrowout import write_batches

    console.as_json = False
    with open_named(args) as dataset:
        view = select_view(dataset, args)
        batches = view.batches(
            args.batch_size,
            shard=_parse_shard(args.shard),
            limit=args.limit,
            rank=args.rank,
            world=args.world,
            tail=args.tail,
        )
        write_batches(_with_pace(batches, args.table), view.schema(), args.format, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return Output()


def _with_pace(batches: Iterable[Any], label: str) -> Iterator[Any]:
    """The batches, with a line about their pace on a terminal."""
    from warpdata.loading.pace import PaceLine

    with contextlib.closing(PaceLine(label, "rows", "reader")) as line:
        waiting = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(waiting, None)
            if batch is None:
                return
            line.add(batch.num_rows, batch.nbytes, time.perf_counter() - began)
            yield batch


def _parse_shard(text: str | None) -> tuple[int, int] | str | None:
    if text is None or text == "auto":
        return text
    rank, _, world = text.partition("/")
    if not rank.isdigit() or not world.isdigit():
        raise ValueError(f"--shard is {text!r}; write auto or rank/world")
    return int(rank), int(world)


def add_cat(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp cat`."""
    add_dataset_arguments(parser)
    parser.add_argument("--artifact", required=True)
    parser.add_argument("--ref", help="name of the member; without it the members are listed")
    parser.add_argument("--prefix", default="", help="list only members whose name begins like this")


def run_cat(args: argparse.Namespace, _: Console) -> Output:
    """Write the bytes of a member, or the names of members."""
    with open_named(args) as dataset:
        if args.ref is None:
            names = list(dataset.artifact(args.artifact).members(args.prefix))
            return Output(names, names)
        for piece in _member_pieces(dataset, args.artifact, args.ref):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    return Output()


def _member_pieces(dataset: Dataset, artifact: str, name: str) -> Iterator[bytes | memoryview]:
    """The bytes of a member; a vector file may be large and is read in pieces."""
    from warpdata.formats.manifest.model import VECTOR_KIND

    if artifact not in dataset.artifacts or dataset.artifact(artifact).kind != VECTOR_KIND:
        yield dataset.ref(artifact, name).read_bytes()
        return
    reader = dataset.artifact(artifact).member_reader(name)
    for start in range(0, reader.size, _PIECE_BYTES):
        yield reader.read(start, min(start + _PIECE_BYTES, reader.size))
