"""Commands that look at episodes and files: `show`, `episodes`, `inspect`, `view`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output, human_bytes, table
from warpdata.errors import WarpError

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.formats.wshard.reader import ShardReader
    from warpdata.timeline.episode import Episode
    from warpdata.timeline.signal import Signal

_POINTS = 24
_PICTURE_COLUMNS = 64
_FACTS = ["id", "length", "duration_s", "task", "success", "total_reward"]
_PUBLISHED_FACTS = ["id", "duration_s", "signals", "bytes", "flags", "problems"]
_SHADES = "█▓▒░"


@cli.command(
    "list episodes, or show one",
    cli.address("an episode, or episodes to list"),
    cli.JSON,
    example="warp show robot_data#3",
)
def run_show(args: cli.Namespace, console: Console) -> Output:
    """List episodes, or show the signals, static items and cameras of one."""
    return _show(args, console)


def _show(args: cli.Namespace, console: Console) -> Output:
    from warpdata._api import open as open_address
    from warpdata.catalog.dataset import Dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.local import LocalDataset
    from warpdata.timeline.episode import Episode

    with cli.name_errors():
        thing = open_address(cli.full_address(args), catalog=args.catalog)
    if isinstance(thing, Dataset):
        thing = thing.episodes
    if isinstance(thing, Episodes):
        rows = thing.facts.select(_FACTS).to_pylist()
        problems = (
            thing.facts.column("problems").to_pylist() if "problems" in thing.facts.column_names else []
        )
        unreadable = [
            f"{row['id']}: {why[0]}"
            for row, why in zip(rows, problems, strict=False)
            if why and not row["length"]
        ]
        columns = {name: (lambda row, name=name: _round(row[name])) for name in _FACTS}
        right = ("length", "duration_s", "total_reward")
        footer = f"{len(rows)} episodes"
        if isinstance(thing, LocalDataset) and (unfinished := len(thing.unfinished_places)):
            footer += (
                f", {unfinished} unfinished: see `warp episodes`, and `warp salvage` if its recorder is gone"
            )
        return Output(
            rows,
            rows=rows,
            columns=columns,
            right=right,
            footer=[*unreadable, footer],
            code=exits.DAMAGED if unreadable else exits.OK,
        )
    if not isinstance(thing, Episode):
        raise ValueError(f"no episodes at {args.address}; use `warp inspect`")
    return _show_episode(thing, console)


def _round(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


def _show_episode(episode: Episode, console: Console) -> Output:
    rows = [_signal_row(name, episode) for name in episode.signals]
    static = {name: _json_value(value) for name, value in episode.static.items()}
    names = {"signal": "name", "records": "count", "values": "sparkline"}
    header = ("signal", "kind", "type", "records", "rate", "duration", "values")
    console.show(
        Output(
            {"signals": rows, "static": static, "meta": _json_value(dict(episode.meta))},
            rows=rows,
            columns={name: names.get(name, name) for name in header},
            right=("records", "rate", "duration"),
        )
    )
    _paint_cameras(episode, console)
    return Output(
        lines=[f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in static.items()],
        fit=True,
        code=exits.DAMAGED if any("error" in row for row in rows) else exits.OK,
    )


def _signal_row(name: str, episode: Episode) -> dict[str, Any]:
    from warpdata.cli.terminal import human_time

    row: dict[str, Any] = {"name": name, "kind": "?", "type": "", "count": 0, "rate": "-", "duration": "-"}
    try:
        signal = episode.signals[name]
        meta, count = signal.meta, len(signal)
        plain = f"{meta.dtype}{list(meta.shape) if meta.shape else ''}"
        kind = plain if not meta.is_object else meta.kind if meta.rows is None else str(meta.rows)
        row |= {"kind": meta.kind, "type": kind, "count": count, "units": meta.units, "sparkline": ""}
        if count:
            span = signal.last_ts_ns - signal.first_ts_ns
            row |= {"first_ts_ns": signal.first_ts_ns, "last_ts_ns": signal.last_ts_ns}
            row |= {"duration": human_time(span), "sparkline": _signal_sparkline(signal)}
            row["rate"] = f"{(count - 1) * 1e9 / span:.1f} Hz" if span > 0 else "-"
        stated = episode.meta.get("signals")
        about = stated.get(name) if isinstance(stated, dict) else None
        if isinstance(about, dict) and isinstance(about.get("dropped_frames"), int):
            row |= {"dropped": about["dropped_frames"], "drops": about.get("drops")}
            row["sparkline"] += f" {about['dropped_frames']} dropped"
    except WarpError as error:
        row |= {"error": str(error), "sparkline": f"error[{error.code}]"}
    return row


def _signal_sparkline(signal: Signal) -> str:
    """The channel that moves most, the brightness of images, the length of ragged values, or the last text."""
    import numpy as np

    from warpdata.cli.terminal import sparkline

    if signal.meta.rows is not None:
        return sparkline(signal._lengths().tolist(), _POINTS)
    if signal.meta.is_object:
        return repr(signal[-1][0])[:_POINTS]
    rows = np.unique(np.linspace(0, len(signal) - 1, min(len(signal), _POINTS)).astype(np.int64))
    values = signal[rows].values()
    flat = values.reshape(len(rows), -1).astype(np.float64)
    liveliest = int(np.argmax(np.nan_to_num(flat.std(axis=0))))
    column = flat.mean(axis=1) if signal.meta.kind == "image" else flat[:, liveliest]
    return sparkline(column.tolist(), _POINTS)


def _paint_cameras(episode: Episode, console: Console) -> None:
    """Draw the middle frame of every camera on a terminal."""
    if console.as_json or not console.color or not console.out.isatty():
        return
    from warpdata.cli.terminal import picture_lines
    from warpdata.timeline.pictures import as_pixels, is_camera, limits_of

    for name, signal in episode.signals.items():
        try:
            if is_camera(signal.meta) and len(signal):
                row = len(signal) // 2
                pixels = as_pixels(signal[row][0], limits_of(signal))
                console.print(f"{console.fit_line(name)}, frame {row}")
                columns = min(console.width - 2, _PICTURE_COLUMNS)
                console.out.write(picture_lines(pixels, console.pictures, columns))
        except WarpError:
            continue  # the table above has the error


def _json_value(value: Any) -> Any:
    """A value that JSON can hold: bytes as their length."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    return [_json_value(item) for item in value] if isinstance(value, list) else value


@cli.command(
    "list episodes with sizes and flags",
    cli.address("a root of recordings, a folder of shards or a dataset", inside=False),
    cli.arg("--where", metavar="SQL", help='only those, such as "success and length > 50"'),
    cli.flag("--raw", "ignore the edits: recordings as they were made"),
    cli.JSON,
    example='warp episodes robot_data --where "success"',
)
def run_episodes(args: cli.Namespace, _: Console) -> Output:
    """One line per episode; exit code 3 if one cannot be read."""
    from warpdata.cli.terminal import human_time
    from warpdata.episodes.collection.local import LocalDataset

    episodes = cli.open_many(args, edited=not args.raw)
    chosen = episodes if args.where is None else episodes.where(args.where)
    rows = _episode_rows(chosen)
    if isinstance(episodes, LocalDataset) and args.where is None:
        rows += [_unfinished_row(recording) for recording in episodes.unfinished]
    return Output(
        rows,
        rows=rows,
        columns={
            "id": "id",
            "duration": lambda row: human_time(row["duration_ns"]),
            "signals": lambda row: ", ".join(row["signals"]),
            "size": lambda row: human_bytes(row["bytes"]),
            "flags": lambda row: " ".join(row["flags"]),
        },
        right=("duration", "size"),
        footer=[f"{len(chosen)} episodes, {len(rows) - len(chosen)} unfinished"],
        fit=True,
        code=exits.DAMAGED if any("damaged" in row["flags"] for row in rows) else exits.OK,
    )


def _episode_rows(episodes: Episodes) -> list[dict[str, Any]]:
    """From the table of a published version if it has all columns; else every episode is opened."""
    from warpdata.catalog.read.episodes import PublishedSource

    source = episodes.source
    if not (
        isinstance(source, PublishedSource) and set(_PUBLISHED_FACTS) <= set(source.facts().column_names)
    ):
        return [_opened_row(episodes, position, name) for position, name in enumerate(episodes.ids)]
    return [
        {
            "id": facts["id"],
            "duration_ns": None if facts["duration_s"] is None else round(facts["duration_s"] * 1e9),
            "signals": facts["signals"] or [],
            "bytes": facts["bytes"] or 0,
            "flags": [*(facts["flags"] or []), *(["damaged"] if facts["problems"] else [])],
        }
        for facts in episodes.facts.select(_PUBLISHED_FACTS).to_pylist()
    ]


def _opened_row(episodes: Episodes, position: int, name: str) -> dict[str, Any]:
    from warpdata.episodes.collection.facts import flags_of

    row: dict[str, Any] = {"id": name, "duration_ns": None, "signals": [], "bytes": 0, "flags": []}
    try:
        episode = episodes[position]
        row |= {"signals": list(episode.signals), "bytes": episode.stored_bytes, "flags": flags_of(episode)}
        row["duration_ns"] = episode.duration_ns if any(map(len, episode.signals.values())) else None
    except WarpError as error:
        row |= {"flags": ["damaged"], "error": str(error)}
    return row


def _unfinished_row(recording: Any) -> dict[str, Any]:
    path = recording.path
    files = path.rglob("*") if isinstance(path, os.PathLike) else []  # type: ignore[attr-defined]
    return {
        "id": os.path.basename(path),
        "duration_ns": None,
        "signals": list(recording.records),
        "bytes": sum(file.stat().st_size for file in files if file.is_file()),
        "flags": ["recording" if recording.is_live else "unfinished"],
        "records": recording.records,
    }


@cli.command(
    "show the structure of a file or dataset",
    cli.address("a file, a dataset, an episode or a folder of them"),
    cli.JSON,
    example="warp inspect ep_001.wshard",
)
def run_inspect(args: cli.Namespace, console: Console) -> Output:
    """Describe a file, an episode or a dataset without reading its data."""
    from warpdata._api import address_kind, divided_address, locate

    base, inside = divided_address(cli.full_address(args))
    kind = address_kind(base) if inside is None else "episode"
    if inside is not None:
        return _inspect_episode(args, console)
    if kind == "dataset":
        from warpdata.catalog.manage.reports import inspect_dataset

        with cli.open_named(args, args.address) as dataset:
            report, lines = inspect_dataset(dataset)
        return Output(report, lines, fit=True)
    if kind in ("recordings", "shards", "directory"):
        return _show(args, console)
    if kind == "journal":
        return _inspect_journal(base)
    if kind == "vectors":
        from warpdata.cli.commands.vectors import describe_vectors

        return describe_vectors(base)
    if kind in ("rows", "corpus"):
        from warpdata.cli.commands.corpus import describe_corpus

        return describe_corpus([base])
    return _inspect_shard(locate(base)[1], console)


def _inspect_episode(args: cli.Namespace, console: Console) -> Output:
    """The blocks of the shard of an episode, or its signals if it has none."""
    from warpdata.episodes.sources.packed import PackedSource
    from warpdata.timeline.source import innermost

    if args.episode is not None and os.path.exists(args.episode):
        raise ValueError(
            f"{args.episode} is a file, not an episode of {args.address}: `warp inspect` takes one address"
        )
    source = innermost(cli.open_one(args).source)
    if not isinstance(source, PackedSource):
        return _show(args, console)
    return _inspect_shard(source.shard, console)


def _inspect_shard(source: Any, console: Console) -> Output:
    value = _shard_value(source)
    mark = "table checksum ok" if value["table_checksum"] else "no table checksum"
    size, count = human_bytes(value["size_bytes"]), len(value["blocks"])
    lines = [f"{value['path']}  {value['kind']}, {size}, {count} blocks, {mark}"]
    if episode := value.get("episode"):
        time = episode["timebase"]
        rate = "" if time["type"] == "timestamps_ns" else f" at {time['tick_hz']:g} Hz"
        lines.append(
            f"episode {episode['id']!r}  env {episode['env_id']!r}  {episode['length']} steps  "
            f"{time['type']}{rate}  lanes: {', '.join(episode['lanes'])}"
        )
    if chunks := value.get("chunk_list"):
        about = f"episode {chunks['episode_id']!r}  env {chunks['env_id']!r}  {chunks['length']} steps in "
        listing = Output(rows=chunks["chunks"], columns=_CHUNK_COLUMNS)
        lines += [f"{about}{len(chunks['chunks'])} chunks", ""]
        lines += table(listing.cells(), list(_CHUNK_COLUMNS), right=[0, 3], fit_width=console.fit_width)
    return Output(
        value,
        [*lines, ""],
        rows=value["blocks"],
        columns={
            "block": "name",
            "dtype": "dtype",
            "shape": lambda b: "" if b["shape"] is None else "×".join(map(str, b["shape"])),
            "codec": lambda b: b["codec"] + ("+seek" if b["seekable"] else ""),
            "stored": lambda b: human_bytes(b["disk_bytes"]),
            "ratio": lambda b: f"{b['raw_bytes'] / b['disk_bytes']:.2f}×" if b["disk_bytes"] else "",
            "windows verified by": "windows_verified_by",
        },
        right=("stored", "ratio"),
        footer=["", *_block_map(value, min(console.width, 100))],
        style={str(value["path"]): "bold"},
        fit=True,
    )


def _chunk_steps(chunk: dict[str, Any]) -> str:
    first, end = chunk["timestep_range"] or (0, 0)
    return f"{first} to {end - 1}" if end > first else ""


_CHUNK_COLUMNS: dict[str, Any] = {
    "chunk": "chunk_index",
    "file": "uri",
    "steps": _chunk_steps,
    "length": "length",
    "sha256": lambda chunk: chunk["sha256"][:12],
}


def _shard_value(source: Any) -> dict[str, Any]:
    from warpdata.formats.wshard.chunks import read_chunk_list
    from warpdata.formats.wshard.layout import LANE_PREFIX, ROLE_CHUNK_LIST, ROLE_EPISODE
    from warpdata.formats.wshard.reader import ShardReader
    from warpdata.formats.wshard.schema import read_schema

    shard = source if isinstance(source, ShardReader) else ShardReader.open(source)
    value: dict[str, Any] = {
        "path": shard.path,
        "kind": {ROLE_EPISODE: "episode", ROLE_CHUNK_LIST: "chunk-list"}.get(shard.role, "shard"),
        "role": shard.role,
        "size_bytes": shard.size,
        "table_checksum": shard.table.is_checksummed,
        "blocks": [_block_value(shard, name) for name in shard.names],
    }
    if shard.role == ROLE_EPISODE:
        schema = read_schema(shard)
        value["episode"] = {
            **{name: getattr(schema, name) for name in ("id", "env_id", "length", "metadata")},
            "timebase": schema.timebase.to_json(),
            "lanes": [
                lane for lane in LANE_PREFIX if any(name.startswith(lane + "/") for name in shard.names)
            ],
        }
    elif shard.role == ROLE_CHUNK_LIST:
        chunks = read_chunk_list(shard)
        value["chunk_list"] = {
            "episode_id": chunks.episode_id,
            "env_id": chunks.env_id,
            "length": chunks.total_timesteps,
            "chunks": [asdict(chunk) for chunk in chunks.chunks],
        }
    return value


def _block_value(shard: ShardReader, name: str) -> dict[str, Any]:
    from warpdata.formats.wshard.layout import PIECES_PREFIX

    block = shard.block(name)
    spec = shard.specs.get(name)
    rows = block.raw_size // spec.row_bytes if spec is not None and spec.row_bytes else None
    has_pieces = PIECES_PREFIX + name in shard
    return {
        "name": name,
        "dtype": None if spec is None else str(spec.dtype),
        "shape": None if spec is None or rows is None else [rows, *spec.shape],
        "codec": block.codec,
        "seekable": block.is_seekable,
        "offset": block.data_offset,
        "disk_bytes": block.disk_size,
        "raw_bytes": block.raw_size,
        "crc32c": f"{block.crc32c:08x}",
        "content_type": block.content_type,
        "windows_verified_by": "frames" if block.is_seekable else "pieces" if has_pieces else "whole block",
    }


def _block_map(report: dict[str, Any], width: int) -> list[str]:
    """A bar of the file in which each block is as wide as its share of the bytes, and its legend."""
    total = max(1, report["size_bytes"])
    largest = sorted(report["blocks"], key=lambda block: -block["disk_bytes"])[:5]
    shares = {b["name"]: b["disk_bytes"] / total for b in largest if b["disk_bytes"] * 100 >= total}
    shades = {name: _SHADES[index % 4] for index, name in enumerate(shares)}
    bar = "".join(
        shades.get(block["name"], "·") * round(block["disk_bytes"] / total * width)
        for block in report["blocks"]
    )
    legend = [f"{shades[name]} {name} {share:.0%}" for name, share in shares.items()]
    return [bar.ljust(width, "·")[:width], "  ".join(legend)]


def _inspect_journal(path: str) -> Output:
    from warpdata.formats.journal.reader import JournalReader, is_live

    journal = JournalReader.open(path)
    scan = journal.scan()
    value = {
        "path": path,
        "kind": "journal",
        "is_live": is_live(path),
        "descriptor": journal.descriptor,
        "records": len(scan.records),
        "dropped_bytes": scan.dropped_bytes,
    }
    state = "being recorded" if value["is_live"] else "unfinished: run `warp salvage` on it"
    lines = [f"{path}  journal, {len(scan.records)} records, {state}"]
    for channel in journal.descriptor.get("channels", []):
        shape = "×".join(map(str, channel.get("shape", [])))
        lines.append(f"  {channel.get('lane')}/{channel.get('id')}  {channel.get('dtype')} {shape}")
    return Output(value, lines, fit=True)


_HOST = "a host name of this server (may be repeated); addresses and localhost are always allowed"
_EXPORT = "write a site of files that any server with range requests shows, instead of serving"
_DATA_URL = "with --export: where browsers find the published data, if not at its own address"
_COPY = "with --export: copy published data into the site, for browsers that cannot reach it"
_INDEX = (
    "a vector file of these episodes, for similar moments; default: one published with them or beside them"
)


@cli.command(
    "view episodes in the browser",
    cli.address("a root, an episode, a .wshard or a published dataset", inside=False),
    cli.number("--port", default=0, text="port to listen on; default: any free one"),
    cli.flag("--no-open", "only print the link"),
    cli.arg("--host", default="127.0.0.1", help="address to listen on; others need --token"),
    cli.arg("--token", help="the token of the link; default: a new one at every start"),
    cli.many("--allow-host", "NAME", _HOST),
    cli.arg("--export", metavar="FOLDER", help=_EXPORT),
    cli.arg("--data-url", metavar="URL", help=_DATA_URL),
    cli.flag("--copy", _COPY),
    cli.arg("--index", metavar="FILE", help=_INDEX),
    cli.arg(
        "--draft", metavar="FOLDER", help="folder for edits of a published dataset; default: its name, here"
    ),
    example="warp view robot_data",
)
def run_view(args: cli.Namespace, console: Console) -> Output:
    """Print the link and serve until Ctrl-C."""
    import warpdata as wd

    if args.export is not None:
        with console.progress("exporting") as progress:
            wd.export_site(
                args.address,
                args.export,
                data_url=args.data_url,
                copy=args.copy or None,
                catalog=args.catalog,
                progress=progress,
            )
        return Output(lines=[f"{args.export}: put it on any server of files"])
    with cli.name_errors():
        viewer = wd.view(
            args.address,
            port=args.port,
            host=args.host,
            token=args.token,
            allow_hosts=args.allow_host,
            draft=args.draft,
            index=args.index,
            catalog=args.catalog,
            open_browser=False,
        )
    with viewer:
        console.print(viewer.url)
        console.out.flush()
        console.err.write("serving until Ctrl-C\n")
        if not args.no_open:
            viewer.open_browser()
        try:
            viewer.wait()
        except KeyboardInterrupt:
            console.err.write("\n")
    return Output()
