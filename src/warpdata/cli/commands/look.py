"""Commands that look at episodes and files: `show`, `episodes`, `inspect`, `view`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Console, Exit, Output, as_json, count_text, human_bytes, table
from warpdata.errors import WarpError

if TYPE_CHECKING:
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.formats.wshard.reader import ShardReader
    from warpdata.timeline.episode import Episode
    from warpdata.timeline.signal import Signal

_POINTS = 24
_PICTURE_COLUMNS = 64
_FACTS = ["id", "length", "duration_s", "task", "success", "total_reward"]
_PUBLISHED_FACTS = ["id", "duration_s", "signals", "bytes", "flags", "problems"]
_SHADES = "█▓▒░"


@cli.command("warp show robot_data#3")
def run_show(warp: cli.Warp, address: str, episode: str | None = None) -> Output:
    """List episodes, or show the signals, static items and cameras of one."""
    return _show(warp, cli.join_address(address, episode))


def _show(warp: cli.Warp, address: str) -> Output:
    from warpdata._api import open as open_address
    from warpdata.catalog.dataset import Dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.episodes.collection.local import LocalDataset
    from warpdata.timeline.episode import Episode

    thing = open_address(address, catalog=warp.catalog)
    if isinstance(thing, Dataset):
        thing = thing.episodes
    if isinstance(thing, Episodes):
        rows = thing.facts.select(_FACTS).to_pylist()
        problems = (
            thing.facts.column("problems").to_pylist() if "problems" in thing.facts.column_names else []
        )
        pairs = [(row, why) for row, why in zip(rows, problems, strict=False) if why and not row["length"]]
        unreadable = [f"{row['id']}: {why[0]}" for row, why in pairs]
        columns: dict[str, Any] = {name: name for name in _FACTS}
        for name in ("duration_s", "total_reward"):
            columns[name] = lambda row, name=name: "" if row[name] is None else f"{row[name]:.3f}"
        right = ("length", "duration_s", "total_reward")
        footer = count_text(len(rows), "episode")
        if isinstance(thing, LocalDataset) and (unfinished := len(thing.unfinished_places)):
            footer += (
                f", {unfinished} unfinished: see `warp list`, and `warp salvage` if its recorder is gone"
            )
        return Output(
            rows,
            rows=rows,
            columns=columns,
            right=right,
            footer=[*unreadable, footer],
            code=Exit.DAMAGED if unreadable else Exit.OK,
        )
    if not isinstance(thing, Episode):
        raise ValueError(f"no episodes at {address}; use `warp inspect`")
    rows = [_signal_row(name, thing) for name in thing.signals]
    static = dict(thing.static)
    names = {"signal": "name", "records": "count", "values": "sparkline"}
    header = ("signal", "kind", "type", "records", "rate", "duration", "values")
    value = {"signals": rows, "static": static, "meta": thing.meta}
    warp.console.show(
        Output(
            value,
            rows=rows,
            columns={name: names.get(name, name) for name in header},
            right=("records", "rate", "duration"),
        )
    )
    _paint_cameras(thing, warp.console)
    code = Exit.DAMAGED if any("error" in row for row in rows) else Exit.OK
    lines = [f"{k} = {json.dumps(item, ensure_ascii=False, default=as_json)}" for k, item in static.items()]
    return Output(lines=[] if warp.console.as_json else lines, fit=True, code=code)


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


@cli.command('warp list robot_data --where "success"')
def run_list(warp: cli.Warp, address: str, *, where: str | None = None, raw: bool = False) -> Output:
    """List episodes with sizes and flags; exit code 3 if one cannot be read."""
    from warpdata.cli.terminal import human_time
    from warpdata.episodes.collection.local import LocalDataset

    episodes = warp.open_episodes(address, edited=not raw)
    chosen = episodes if where is None else episodes.where(where)
    rows = _episode_rows(chosen)
    for recording in episodes.unfinished if isinstance(episodes, LocalDataset) and where is None else ():
        path: Any = recording.path
        files = path.rglob("*") if isinstance(path, os.PathLike) else []  # type: ignore[attr-defined]
        row = {"id": os.path.basename(path), "duration_ns": None, "signals": list(recording.records)}
        row["bytes"] = sum(file.stat().st_size for file in files if file.is_file())
        row["flags"] = ["recording" if recording.is_live else "unfinished"]
        rows.append({**row, "records": recording.records})
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
        footer=[f"{count_text(len(chosen), 'episode')}, {len(rows) - len(chosen)} unfinished"],
        fit=True,
        code=Exit.DAMAGED if any("damaged" in row["flags"] for row in rows) else Exit.OK,
    )


def _episode_rows(episodes: Episodes) -> list[dict[str, Any]]:
    """From the table of a published version if it has all columns; else every episode is opened."""
    from warpdata.catalog.read.episodes import PublishedSource
    from warpdata.episodes.collection.facts import flags_of

    source = episodes.source
    if isinstance(source, PublishedSource) and set(_PUBLISHED_FACTS) <= set(source.facts().column_names):
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
    rows = []
    for position, name in enumerate(episodes.ids):
        row: dict[str, Any] = {"id": name, "duration_ns": None, "signals": [], "bytes": 0, "flags": []}
        try:
            episode = episodes[position]
            row |= {
                "signals": list(episode.signals),
                "bytes": episode.stored_bytes,
                "flags": flags_of(episode),
            }
            row["duration_ns"] = episode.duration_ns if any(map(len, episode.signals.values())) else None
        except WarpError as error:
            row |= {"flags": ["damaged"], "error": str(error)}
        rows.append(row)
    return rows


@cli.command("warp inspect ep_001.wshard")
def run_inspect(
    warp: cli.Warp,
    address: Annotated[str, f"a file, a folder or a dataset: {cli.FORMS}"],
    episode: str | None = None,
) -> Output:
    """Show the structure of a file, an episode or a dataset without reading its data."""
    from warpdata._api import address_kind, divided_address, locate
    from warpdata.catalog.manage.reports import inspect_dataset
    from warpdata.cli.commands.corpus import describe_corpus
    from warpdata.cli.commands.vectors import describe_vectors

    if episode is not None and os.path.exists(episode):
        raise ValueError(
            f"{episode} is a file, not an episode of {address}: `warp inspect` takes one address"
        )
    base, inside = divided_address(cli.join_address(address, episode))
    if inside is not None:
        return _inspect_episode(warp, f"{base}#{inside}")
    kind = address_kind(base)
    if kind == "dataset":
        with warp.open_dataset(base) as dataset:
            report, lines = inspect_dataset(dataset)
        return Output(report, lines, fit=True)
    if kind in ("recordings", "shards", "directory"):
        return _show(warp, base)
    if kind == "journal":
        return _inspect_journal(base)
    if kind == "vectors":
        return describe_vectors(base)
    return (
        describe_corpus([base])
        if kind in ("rows", "corpus")
        else _inspect_shard(locate(base)[1], warp.console)
    )


def _inspect_episode(warp: cli.Warp, address: str) -> Output:
    """The blocks of the shard of an episode, or its signals if it has none."""
    from warpdata.episodes.sources.packed import PackedSource
    from warpdata.timeline.source import innermost

    source = innermost(warp.open_episode(address).source)
    if isinstance(source, PackedSource):
        return _inspect_shard(source.shard, warp.console)
    return _show(warp, address)


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


_CHUNK_COLUMNS: dict[str, Any] = {
    "chunk": "chunk_index",
    "file": "uri",
    "steps": lambda chunk: (
        f"{steps[0]} to {steps[1] - 1}" if (steps := chunk["timestep_range"]) and steps[1] > steps[0] else ""
    ),
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
        lanes = {name.partition("/")[0] for name in shard.names}
        value["episode"] = {
            **{name: getattr(schema, name) for name in ("id", "env_id", "length", "metadata")},
            "timebase": schema.timebase.to_json(),
            "lanes": [lane for lane in LANE_PREFIX if lane in lanes],
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


_EXPORT = "write a site of files that any server with range requests shows, instead of serving"
_DATA_URL = "with --export: where browsers find the published data, if not at its own address"
_COPY = "with --export: copy published data into the site, for browsers that cannot reach it"


class ViewOptions(TypedDict, total=False):
    """Options of `wd.view`."""

    port: Annotated[int, "port to listen on; default: any free one"]
    host: Annotated[str, "address to listen on (127.0.0.1); others need --token"]
    token: Annotated[str, "the token of the link; default: a new one at every start"]
    allow_hosts: Sequence[str]
    index: Annotated[str, cli.Arg("vector file for similar moments; default: one stored with them", "FILE")]
    draft: str


@cli.command("warp view robot_data")
def run_view(
    warp: cli.Warp,
    address: str,
    *,
    open_browser: Annotated[bool, cli.Arg("open the browser, or only print the link", option="open")] = True,
    export: Annotated[str | None, cli.Arg(_EXPORT, "FOLDER")] = None,
    data_url: Annotated[str | None, cli.Arg(_DATA_URL, "URL")] = None,
    copy: Annotated[bool, _COPY] = False,
    **options: Unpack[ViewOptions],
) -> Output:
    """View episodes in the browser; the link works until Ctrl-C."""
    import warpdata as wd

    catalog, console = warp.catalog, warp.console
    if export is not None:
        with warp.progress("exporting") as bar:
            wd.export_site(
                address, export, data_url=data_url, copy=copy or None, catalog=catalog, progress=bar
            )
        return Output({"site": export}, [f"{export}: put it on any server of files"])
    with wd.view(address, catalog=catalog, open_browser=False, **options) as viewer:
        console.show(Output({"url": viewer.url}, [viewer.url]))
        console.out.flush()
        console.err.write("serving until Ctrl-C\n")
        if open_browser:
            viewer.open_browser()
        try:
            viewer.wait()
        except KeyboardInterrupt:
            console.err.write("\n")
    return Output()
