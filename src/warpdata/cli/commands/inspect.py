"""`warp inspect`: what a file or a published dataset holds, without reading the data."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, address_of, opened_episode
from warpdata.cli.console import add_json_flag, human_bytes

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.formats.wshard.reader import ShardReader

_SHADES = "█▓▒░"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp inspect`."""
    add_address(parser, "a file, a dataset, an episode or a folder of them")
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Describe one file."""
    from warpdata._api import address_kind, divided_address, located

    address = address_of(args)
    base, inside = divided_address(address)
    if inside is not None:
        return _episode(args, console)
    kind = address_kind(base)
    if kind == "dataset":
        return _dataset(args, console)
    if kind in ("recordings", "shards", "directory"):
        from warpdata.cli.commands import show

        return show.run(args, console)
    if kind == "journal":
        return _journal(base, console)
    if kind == "vectors":
        from warpdata.cli.commands.vectors import show_info

        return show_info(base, console)
    if kind in ("rows", "corpus"):
        from warpdata.cli.commands.corpus import show_info as show_corpus

        return show_corpus([base], console)
    return _shard(_shard_report(located(base)), console)


def _episode(args: argparse.Namespace, console: Console) -> int:
    """An episode inside something: the blocks of its shard, or its signals where it is none."""
    from warpdata.cli.commands import show
    from warpdata.episodes.forms.packed import PackedSource
    from warpdata.timeline.source import innermost

    source = innermost(opened_episode(args).source)
    if not isinstance(source, PackedSource):
        return show.run(args, console)
    return _shard(_shard_report(source.shard), console)


def _shard(report: dict[str, Any], console: Console) -> int:
    console.emit(report)
    if not console.as_json:
        _print_shard(report, console)
    return exits.OK


def _dataset(args: argparse.Namespace, console: Console) -> int:
    from warpdata.catalog.manage.reports import inspect_dataset
    from warpdata.cli.commands._dataset import open_named

    with open_named(args, args.address) as dataset:
        report, lines = inspect_dataset(dataset)
    console.emit(report)
    for line in lines:
        console.print(console.fitted(line))
    return exits.OK


def _shard_report(source: Any) -> dict[str, Any]:
    from warpdata.formats.wshard.layout import LANE_PREFIX, ROLE_CHUNK_LIST, ROLE_EPISODE
    from warpdata.formats.wshard.reader import ShardReader
    from warpdata.formats.wshard.schema import read_schema

    shard = source if isinstance(source, ShardReader) else ShardReader.open(source)
    report: dict[str, Any] = {
        "path": shard.path,
        "kind": {ROLE_EPISODE: "episode", ROLE_CHUNK_LIST: "chunk-list"}.get(shard.role, "shard"),
        "role": shard.role,
        "size_bytes": shard.size,
        "table_checksum": shard.table.is_checksummed,
        "blocks": [_block_report(shard, name) for name in shard.names],
    }
    if shard.role == ROLE_EPISODE:
        schema = read_schema(shard)
        report["episode"] = {
            "id": schema.id,
            "env_id": schema.env_id,
            "length": schema.length,
            "timebase": schema.timebase.to_json(),
            "metadata": schema.metadata,
            "lanes": [
                lane for lane in LANE_PREFIX if any(name.startswith(lane + "/") for name in shard.names)
            ],
        }
    elif shard.role == ROLE_CHUNK_LIST:
        report["chunk_list"] = _chunk_list_report(shard)
    return report


def _chunk_list_report(shard: ShardReader) -> dict[str, Any]:
    from warpdata.formats.wshard.chunks import read_chunk_list

    listed = read_chunk_list(shard)
    return {
        "episode_id": listed.episode_id,
        "env_id": listed.env_id,
        "length": listed.total_timesteps,
        "chunks": [asdict(each) for each in listed.chunks],
    }


def _block_report(shard: Any, name: str) -> dict[str, Any]:
    block = shard.block(name)
    spec = shard.specs.get(name)
    rows = block.raw_size // spec.row_bytes if spec is not None and spec.row_bytes else None
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
        "windows_verified_by": _windows_guard(shard, name),
    }


def _windows_guard(shard: Any, name: str) -> str:
    """What a range of rows of this block is checked against when it is read."""
    from warpdata.formats.wshard.layout import PIECES_PREFIX

    block = shard.block(name)
    if block.is_seekable:
        return "frames"
    if PIECES_PREFIX + name in shard:
        return "pieces"
    return "whole block"


def _print_shard(report: dict[str, Any], console: Console) -> None:
    mark = "table checksum ok" if report["table_checksum"] else "no table checksum"
    heading = (
        f"{report['path']}  {report['kind']}, "
        f"{human_bytes(report['size_bytes'])}, {len(report['blocks'])} blocks, {mark}"
    )
    console.print(console.fitted(heading).replace(report["path"], console.paint(report["path"], "bold"), 1))
    if episode := report.get("episode"):
        time = episode["timebase"]
        rate = (
            time["type"] if time["type"] == "timestamps_ns" else f"{time['type']} at {time['tick_hz']:g} Hz"
        )
        about = (
            f"episode {episode['id']!r}  env {episode['env_id']!r}  {episode['length']} steps  "
            f"{rate}  lanes: {', '.join(episode['lanes'])}"
        )
        console.print(console.fitted(about))
    if listed := report.get("chunk_list"):
        _print_chunks(listed, console)
    console.print()
    rows = [
        [
            each["name"],
            each["dtype"] or "",
            "×".join(map(str, each["shape"])) if each["shape"] is not None else "",
            each["codec"] + ("+seek" if each["seekable"] else ""),
            human_bytes(each["disk_bytes"]),
            f"{each['raw_bytes'] / each['disk_bytes']:.2f}×" if each["disk_bytes"] else "",
            each["windows_verified_by"],
        ]
        for each in report["blocks"]
    ]
    header = ["block", "dtype", "shape", "codec", "stored", "ratio", "windows verified by"]
    console.print_table(rows, header, right=[4, 5])
    console.print()
    for line in block_map(report, min(console.width, 100)):
        console.print(console.fitted(line))


def _print_chunks(listed: dict[str, Any], console: Console) -> None:
    about = (
        f"episode {listed['episode_id']!r}  env {listed['env_id']!r}  {listed['length']} steps in "
        f"{len(listed['chunks'])} chunks"
    )
    console.print(console.fitted(about))
    console.print()
    rows = []
    for each in listed["chunks"]:
        first, end = each["timestep_range"] or (0, 0)
        steps = f"{first} to {end - 1}" if end > first else ""
        rows.append([str(each["chunk_index"]), each["uri"], steps, str(each["length"]), each["sha256"][:12]])
    console.print_table(rows, ["chunk", "file", "steps", "length", "sha256"], right=[0, 3])


def block_map(report: dict[str, Any], width: int) -> list[str]:
    """A picture of the file: one bar, each block as wide as its share of the bytes."""
    total = max(1, report["size_bytes"])
    bar, legend = [], []
    shown = sorted(report["blocks"], key=lambda each: -each["disk_bytes"])[:5]
    shown = [each for each in shown if each["disk_bytes"] * 100 >= total]
    names = {each["name"]: index for index, each in enumerate(shown)}
    for each in report["blocks"]:
        cells = round(each["disk_bytes"] / total * width)
        bar.append((_SHADES[names[each["name"]] % 4] if each["name"] in names else "·") * cells)
    for each in shown:
        share = each["disk_bytes"] / total
        legend.append(f"{_SHADES[names[each['name']] % 4]} {each['name']} {share:.0%}")
    return ["".join(bar).ljust(width, "·")[:width], "  ".join(legend)]


def _journal(path: str, console: Console) -> int:
    from warpdata.formats.journal.reader import JournalReader, is_live

    journal = JournalReader.open(path)
    scan = journal.scan()
    report = {
        "path": path,
        "kind": "journal",
        "is_live": is_live(path),
        "descriptor": journal.descriptor,
        "records": len(scan.records),
        "dropped_bytes": scan.dropped_bytes,
    }
    console.emit(report)
    state = "being recorded" if report["is_live"] else "unfinished: run `warp salvage` on it"
    console.print(console.fitted(f"{path}  journal, {len(scan.records)} records, {state}"))
    for each in journal.descriptor.get("channels", []):
        shape = "×".join(map(str, each.get("shape", [])))
        console.print(console.fitted(f"  {each.get('lane')}/{each.get('id')}  {each.get('dtype')} {shape}"))
    return exits.OK
