"""Commands that read published datasets: `query`, `info`, `schema`, `head`, `stream`, `cat`, `warm`."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli.console import Output, cut, human_bytes, printable
from warpdata.errors import TooLargeError

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table
    from warpdata.cli.console import Console

_CELL = 40
_PIECE_BYTES = 8 << 20
_STREAMS = ("arrow", "ndjson", "parquet")


def _show_rows(console: Console, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Output:
    """Rows of a table, with long values cut."""
    longest = console.fit_width or _CELL

    def text(row: dict[str, Any], name: str) -> str:
        value = row.get(name)
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return cut(printable(shown[: 4 * longest]), longest)

    columns = {name: (lambda row, name=name: text(row, name)) for name in names}
    return Output(rows, rows=rows, columns=columns, footer=[f"{len(rows)} rows"])


def _select_view(dataset: Dataset, args: cli.Namespace) -> Table:
    """The rows and columns that `--table`, `--columns` and `--filter` select."""
    view = dataset.table(args.table)
    if args.columns is not None:
        view = view.select(cli.split_names(args.columns) or [])
    return view if args.filter is None else view.filter(args.filter)


@cli.command(
    "run SQL over tables or episodes",
    cli.DATASET,
    cli.arg("sql", help="a SELECT over the tables by name; recordings have one: episodes"),
    cli.arg("--format", choices=("table", *_STREAMS), default="table"),
    example='warp query lab/arm "select count(*) from episodes"',
)
def run_query(args: cli.Namespace, console: Console) -> Output:
    """Run SQL over the tables of a dataset, or over the table `episodes` of any other address."""
    from warpdata._api import divided_address, is_published, open_episodes
    from warpdata.catalog.read.refs import rows_as_json, write_batches
    from warpdata.catalog.table import MAX_ROWS

    base, inside = divided_address(args.dataset)
    with contextlib.ExitStack() as resources:
        if is_published(base) and inside is None:
            result = resources.enter_context(cli.open_named(args)).sql(args.sql)
        else:
            with cli.name_errors():
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
    return _show_rows(console, rows, names)


@cli.command("show the metadata of a dataset", cli.DATASET, example="warp info lab/arm")
def run_info(args: cli.Namespace, _: Console) -> Output:
    """Show one dataset version."""
    from warpdata.catalog.manage.reports import describe

    with cli.open_named(args) as dataset:
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


@cli.command(
    "show the columns of a table",
    cli.DATASET,
    cli.arg("--table", default="main"),
    example="warp schema lab/arm --table main",
)
def run_schema(args: cli.Namespace, _: Console) -> Output:
    """List the columns; only the manifest is read."""
    with cli.open_named(args) as dataset:
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


@cli.command(
    "show the first rows of a table",
    cli.DATASET,
    cli.number("-n", default=5, text="number of rows (default 5)"),
    cli.TABLE_VIEW,
    example="warp head lab/arm -n 3",
)
def run_head(args: cli.Namespace, console: Console) -> Output:
    """Show the first rows."""
    from warpdata.catalog.read.refs import rows_as_json

    with cli.open_named(args) as dataset:
        view = _select_view(dataset, args)
        return _show_rows(console, rows_as_json(view.head(args.n)), view.schema().names)


@cli.command(
    "write a table to standard output",
    [cli.DATASET[0], cli.CATALOG, cli.MODE],
    cli.TABLE_VIEW,
    cli.number("--batch-size", default=50_000, text="rows that are read at once"),
    cli.number("--rank", default=None, text="only the share of this rank, counted from 0"),
    cli.number("--world", default=None, text="number of ranks"),
    cli.arg("--shard", help="rank/world such as 0/8, or auto: from RANK and WORLD_SIZE"),
    cli.arg(
        "--tail", choices=("short", "drop", "pad"), default="short", help="handling of a short last batch"
    ),
    cli.number("--limit", default=None, text="number of rows"),
    cli.arg("--format", choices=_STREAMS, default="arrow"),
    cli.arg("--json", action="store_const", dest="format", const="ndjson", help="same as --format ndjson"),
    example="warp stream lab/arm --format ndjson",
)
def run_stream(args: cli.Namespace, _: Console) -> Output:
    """Write the rows; the first ones leave as soon as they are read."""
    from warpdata.catalog.read.refs import write_batches

    shard = args.shard
    if shard not in (None, "auto"):
        match = re.fullmatch(r"([0-9]+)/([0-9]+)", shard)
        if match is None:
            raise ValueError(f"--shard is {shard!r}; write auto or rank/world")
        shard = (int(match[1]), int(match[2]))
    with cli.open_named(args) as dataset:
        view = _select_view(dataset, args)
        batches = view.batches(
            args.batch_size, shard=shard, limit=args.limit, rank=args.rank, world=args.world, tail=args.tail
        )
        write_batches(_show_pace(batches, args.table), view.schema(), args.format, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    return Output()


def _show_pace(batches: Iterable[Any], label: str) -> Iterator[Any]:
    """The batches, with a line about their pace on a terminal."""
    from warpdata.loading.pace import PaceLine

    with contextlib.closing(PaceLine(label, "rows", "reader")) as line:
        began = time.perf_counter()
        for batch in batches:
            line.add(batch.num_rows, batch.nbytes, time.perf_counter() - began)
            yield batch
            began = time.perf_counter()


@cli.command(
    "write a raw file to standard output",
    cli.DATASET,
    cli.arg("--artifact", required=True),
    cli.arg("--ref", help="name of the member; without it the members are listed"),
    cli.arg("--prefix", default="", help="list only members whose name begins like this"),
    example="warp cat lab/arm --artifact raw --ref a.jpg",
)
def run_cat(args: cli.Namespace, _: Console) -> Output:
    """Write the bytes of a member, or the names of members; a vector file may be large and is read in pieces."""
    from warpdata.formats.manifest.model import VECTOR_KIND

    with cli.open_named(args) as dataset:
        if args.ref is None:
            names = list(dataset.artifact(args.artifact).members(args.prefix))
            return Output(names, names)
        if args.artifact in dataset.artifacts and dataset.artifact(args.artifact).kind == VECTOR_KIND:
            reader = dataset.artifact(args.artifact).member_reader(args.ref)
            for start in range(0, reader.size, _PIECE_BYTES):
                sys.stdout.buffer.write(reader.read(start, min(start + _PIECE_BYTES, reader.size)))
        else:
            sys.stdout.buffer.write(dataset.ref(args.artifact, args.ref).read_bytes())
        sys.stdout.buffer.flush()
    return Output()


@cli.command(
    "download a dataset into the cache",
    cli.DATASET,
    cli.arg("--tables", help="names separated by commas (default: everything)"),
    cli.arg("--artifacts", help="names separated by commas"),
    cli.arg("--shards", help="first:last, such as 0:50"),
    cli.arg("--max-bytes", help="stop before more than this is downloaded, such as 200GB"),
    example="warp warm lab/arm --max-bytes 200GB",
)
def run_warm(args: cli.Namespace, console: Console) -> Output:
    """Download shards into the cache."""
    shards = None
    if args.shards is not None:
        match = re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", args.shards)
        if match is None:
            raise ValueError(f"--shards is {args.shards!r}; write first:last")
        shards = slice(*(None if number is None else int(number) for number in match.groups()))
    with cli.open_named(args) as dataset, console.progress("warming") as progress:
        report = dataset.warm(
            cli.split_names(args.tables),
            artifacts=cli.split_names(args.artifacts),
            shards=shards,
            max_bytes=args.max_bytes,
            progress=progress,
        )
    lines = [f"{report.shards} blobs are here, {human_bytes(report.bytes_fetched)} were fetched"]
    if report.shards_skipped:
        lines.append(f"{report.shards_skipped} were left out: --max-bytes would have been exceeded")
    return Output(asdict(report), lines)
