"""Commands that change the form of an episode: `pack`, `unpack`, `chunk`, `join`; and `spec`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli.arguments import add_address, naming_errors, open_one
from warpdata.cli.console import Output, add_json_flag, add_output, add_overwrite, add_storage, check_free
from warpdata.errors import ConflictError

if TYPE_CHECKING:
    from warpdata.cli.console import Console

_FORMATS = Path(__file__).resolve().parents[2] / "formats"


def _add_common(parser: argparse.ArgumentParser, source: str, target: str, *, storage: bool = True) -> None:
    add_address(parser, source, inside=False)
    add_output(parser, target)
    add_overwrite(parser)
    if storage:
        add_storage(parser)
    add_json_flag(parser)


def add_pack(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp pack`."""
    _add_common(parser, "an episode", "the file to write; default: beside the directory, or ID.wshard here")
    parser.add_argument("--raw", action="store_true", help="the recording without the edits of its root")


def run_pack(args: argparse.Namespace, _: Console) -> Output:
    """Pack one episode; cameras keep their encoded bytes."""
    from warpdata._api import address_kind, divided_address, pack_episode

    base, inside = divided_address(args.address)
    kind = address_kind(base)
    if inside is None and kind in ("episode", "chunk-list"):
        what = "a chunk list: use `warp join`" if kind == "chunk-list" else "one file already"
        raise ValueError(f"{args.address} is {what}")
    is_here = inside is None and os.path.isdir(base)
    output = args.output or (
        f"{os.path.normpath(base)}.wshard" if is_here else f"{inside or os.path.basename(base)}.wshard"
    )
    check_free(output, overwrite=args.overwrite)
    with naming_errors():
        path = pack_episode(
            args.address,
            output,
            args.compression,
            compat=args.compat,
            raw=args.raw,
            overwrite=args.overwrite,
            catalog=args.catalog,
        )
    size = path.stat().st_size
    return Output({"output": str(path), "bytes": size}, [f"{path}  {size} bytes"])


def add_unpack(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp unpack`."""
    target = "the folder to write; default: FILE without its suffix, or ID here"
    _add_common(parser, "a packed episode", target, storage=False)


def run_unpack(args: argparse.Namespace, _: Console) -> Output:
    """Unpack one packed recording."""
    from warpdata._api import divided_address, unpack_episode

    base, inside = divided_address(args.address)
    output = args.output or inside or os.path.basename(base).removesuffix(".wshard")
    if args.output is None and inside is None and "://" not in base:
        output = base.removesuffix(".wshard")
    with naming_errors():
        target = unpack_episode(args.address, output, overwrite=args.overwrite, catalog=args.catalog)
    return Output({"output": str(target)}, [str(target)])


def add_chunk(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp chunk`."""
    _add_common(parser, "an episode", "the folder to write; default: beside the file, or ID_chunks here")
    parser.add_argument("--steps", type=int, required=True, help="steps per chunk")


def run_chunk(args: argparse.Namespace, console: Console) -> Output:
    """Write the chunks and their chunk list."""
    from warpdata._api import chunk_episode, divided_address
    from warpdata.episodes.check.rules import is_directory
    from warpdata.formats.wshard.chunks import list_name

    episode = open_one(args)
    base, inside = divided_address(args.address)
    is_file = inside is None and os.path.isfile(base)
    folder = Path(args.output or (Path(base).with_suffix("") if is_file else f"{episode.id}_chunks"))
    if folder.is_dir():
        if is_directory(folder):
            hint = "Give the chunks a folder of their own with --output."
            raise ConflictError("target is an episode directory", path=folder, hint=hint)
        check_free(folder / list_name(episode.id), overwrite=args.overwrite)
    with console.progress("chunk") as bar:
        chunks = chunk_episode(
            episode, folder, args.steps, compression=args.compression, compat=args.compat, progress=bar
        )
    return Output(
        {"chunk_list": str(chunks.path), "chunks": [chunk.uri for chunk in chunks.chunks]},
        [f"{chunks.path}  {chunks.total_chunks} chunks, {chunks.total_timesteps} steps"],
    )


def add_join(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp join`."""
    _add_common(parser, "a chunk list", "the file to write; default: ID.wshard beside the chunk list")


def run_join(args: argparse.Namespace, console: Console) -> Output:
    """Check every chunk against its SHA-256, then write them as one episode."""
    from warpdata.episodes.forms.chunks import join_chunks
    from warpdata.episodes.sources.shard_episode import chunks_of
    from warpdata.formats.wshard.chunks import validate_chunk_continuity

    episode = open_one(args)
    chunks = chunks_of(episode)
    if chunks is None:
        raise ValueError(f"not a chunk list: {args.address}")
    validate_chunk_continuity(chunks, check_files=True, check_channels=True)
    beside = Path(args.address).parent if os.path.isfile(args.address) else Path()
    output = args.output or str(beside / f"{episode.id}.wshard")
    check_free(output, overwrite=args.overwrite)
    with console.progress("join") as bar:
        join_chunks(episode, output, args.compression, compat=args.compat, progress=bar)
    return Output(
        {"output": output, "episode_id": episode.id, "length": chunks.total_timesteps},
        [f"{output}  {chunks.total_timesteps} steps from {chunks.total_chunks} chunks"],
    )


def add_spec(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp spec`."""
    parser.add_argument("format", nargs="?", choices=_format_names(), help="omit it to list the formats")


def run_spec(args: argparse.Namespace, console: Console) -> Output:
    """Print one SPEC.md, or the names of all."""
    if args.format is None:
        return Output(lines=_format_names())
    console.print((_FORMATS / args.format / "SPEC.md").read_text().rstrip())
    return Output()


def _format_names() -> list[str]:
    return sorted(spec.parent.name for spec in _FORMATS.glob("*/SPEC.md"))
