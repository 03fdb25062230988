"""Commands that read published datasets: `query`, `info`, `schema`, `head`, `stream`, `cat`, `warm`."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Console, Output, count_text, cut, human_bytes, printable
from warpdata.errors import TooLargeError

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.table import Table

_CELL = 40
_PIECE_BYTES = 8 << 20


def _show_rows(console: Console, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Output:
    """Rows of a table, with long values cut."""
    longest = console.fit_width or _CELL

    def text(row: dict[str, Any], name: str) -> str:
        value = row.get(name)
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return cut(printable(shown[: 4 * longest]), longest)

    columns = {name: (lambda row, name=name: text(row, name)) for name in names}
    return Output(rows, rows=rows, columns=columns, footer=[count_text(len(rows), "row")])


def _share(text: str) -> str | tuple[int, int]:
    """`auto`, or rank and number of ranks."""
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if match is None and text != "auto":
        raise argparse.ArgumentTypeError(f"{text!r} is not auto or rank/world")
    return "auto" if match is None else (int(match[1]), int(match[2]))


def _shards(text: str) -> slice:
    match = re.fullmatch(r"(-?[0-9]+)?:(-?[0-9]+)?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not first:last")
    return slice(*(None if number is None else int(number) for number in match.groups()))


def _select_view(dataset: Dataset, table: str, columns: str | None, where: str | None) -> Table:
    view = dataset.table(table)
    if columns is not None:
        view = view.select(cli.split_names(columns) or [])
    return view if where is None else view.filter(where)


@cli.command('warp query lab/arm "select count(*) from episodes"')
def run_query(
    warp: cli.Warp,
    dataset: Annotated[str, cli.Arg(f"a dataset, or episodes: {cli.FORMS}", "ADDRESS")],
    sql: Annotated[str, "a SELECT over the tables by name; recordings have one: episodes"],
    *,
    format: Literal["table", "arrow", "ndjson", "parquet"] = "table",  # noqa: A002 - the option
) -> Output:
    """Run SQL over the tables of a dataset, or over the table `episodes` of any other address."""
    from warpdata._api import divided_address, is_published
    from warpdata.catalog.read.refs import rows_as_json, write_batches
    from warpdata.catalog.table import MAX_ROWS

    base, inside = divided_address(dataset)
    with contextlib.ExitStack() as resources:
        if is_published(base) and inside is None:
            result = resources.enter_context(warp.open_dataset(dataset)).sql(sql)
        else:
            result = warp.open_episodes(dataset).sql(sql)
        if format != "table":
            write_batches(result.batches(), result.schema, format, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return Output()
        try:
            names, rows = result.schema.names, rows_as_json(result.arrow(max_rows=MAX_ROWS))
        except TooLargeError as error:
            hint = "Stream it with --format ndjson, arrow or parquet, or add a LIMIT."
            raise TooLargeError(error.message, hint=hint) from None
    return _show_rows(warp.console, rows, names)


@cli.command("warp info lab/arm")
def run_info(warp: cli.Warp, dataset: str) -> Output:
    """Show the metadata of a dataset version."""
    from warpdata.catalog.manage.reports import describe

    with warp.open_dataset(dataset) as opened:
        about = describe(opened)
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


@cli.command("warp schema lab/arm --table main")
def run_schema(warp: cli.Warp, dataset: str, *, table: str = "main") -> Output:
    """Show the columns of a table; only the manifest is read."""
    with warp.open_dataset(dataset) as opened:
        fields = [dict(field) for field in opened.table(table).part.fields]
        bound = {b.column: b.ref_type for b in opened.manifest.bindings if b.table == table}
    for field in fields:
        field["ref_type"] = bound.get(str(field["name"]))
    columns: dict[str, Any] = {
        "column": "name",
        "type": "type",
        "": lambda field: "" if field["nullable"] else "required",
        "refers to": "ref_type",
    }
    return Output({"table": table, "columns": fields}, rows=fields, columns=columns)


@cli.command("warp head lab/arm -n 3")
def run_head(
    warp: cli.Warp,
    dataset: str,
    *,
    limit: int = 5,
    table: str = "main",
    columns: str | None = None,
    where: str | None = None,
) -> Output:
    """Show the first rows of a table."""
    from warpdata.catalog.read.refs import rows_as_json

    with warp.open_dataset(dataset) as opened:
        view = _select_view(opened, table, columns, where)
        return _show_rows(warp.console, rows_as_json(view.head(limit)), view.schema().names)


class BatchOptions(TypedDict, total=False):
    """Options of `Table.batches`."""

    limit: int
    rank: Annotated[int, "only the share of this rank, counted from 0"]
    world: Annotated[int, "number of ranks"]
    shard: Annotated[
        Any, cli.Arg("rank/world such as 0/8, or auto: from RANK and WORLD_SIZE", convert=_share)
    ]
    tail: Annotated[Literal["short", "drop", "pad"], "handling of a short last batch"]


@cli.command("warp stream lab/arm --format ndjson")
def run_stream(
    warp: cli.Warp,
    dataset: str,
    *,
    table: str = "main",
    columns: str | None = None,
    where: str | None = None,
    batch_size: int = 50_000,
    format: Annotated[Literal["arrow", "ndjson", "parquet"], "--json is ndjson"] = "arrow",  # noqa: A002
    **options: Unpack[BatchOptions],
) -> Output:
    """Write a table to standard output; the first rows leave as soon as they are read."""
    from warpdata.catalog.read.refs import write_batches

    with warp.open_dataset(dataset) as opened:
        view = _select_view(opened, table, columns, where)
        kind = "ndjson" if warp.console.as_json else format
        batches = _show_pace(view.batches(batch_size, **options), table)
        write_batches(batches, view.schema(), kind, sys.stdout.buffer)
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


@cli.command("warp cat lab/arm --artifact raw --ref a.jpg")
def run_cat(
    warp: cli.Warp,
    dataset: str,
    *,
    artifact: str,
    ref: Annotated[str | None, "name of the member; without it the members are listed"] = None,
    prefix: Annotated[str, "list only members whose name begins like this"] = "",
) -> Output:
    """Write a raw file to standard output, or list the members of an artifact."""
    from warpdata.formats.manifest.model import VECTOR_KIND

    with warp.open_dataset(dataset) as opened:
        if ref is None:
            names = list(opened.artifact(artifact).members(prefix))
            return Output(names, names)
        if artifact in opened.artifacts and opened.artifact(artifact).kind == VECTOR_KIND:  # may be large
            reader = opened.artifact(artifact).member_reader(ref)
            for start in range(0, reader.size, _PIECE_BYTES):
                sys.stdout.buffer.write(reader.read(start, min(start + _PIECE_BYTES, reader.size)))
        else:
            sys.stdout.buffer.write(opened.ref(artifact, ref).read_bytes())
        sys.stdout.buffer.flush()
    return Output()


@cli.command("warp warm lab/arm --max-bytes 200GB")
def run_warm(
    warp: cli.Warp,
    dataset: str,
    *,
    tables: Annotated[str | None, "names separated by commas (default: everything)"] = None,
    artifacts: Annotated[str | None, "names separated by commas"] = None,
    shards: Annotated[Any, cli.Arg("first:last, such as 0:50", convert=_shards)] = None,
    max_bytes: Annotated[str | None, "stop before more than this is downloaded, such as 200GB"] = None,
) -> Output:
    """Download a dataset into the cache."""
    names = [cli.split_names(text) for text in (tables, artifacts)]
    with warp.open_dataset(dataset) as opened, warp.progress("warming") as bar:
        report = opened.warm(names[0], artifacts=names[1], shards=shards, max_bytes=max_bytes, progress=bar)
    lines = [f"{report.shards} blobs are here, {human_bytes(report.bytes_fetched)} were fetched"]
    if report.shards_skipped:
        lines.append(f"{report.shards_skipped} were left out: --max-bytes would have been exceeded")
    return Output(report, lines)
