"""Commands that change the form of episodes: foreign formats, `pack`, `unpack`, `chunk`, `join`; and `spec`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warpdata.cli import arguments as cli
from warpdata.cli import exits
from warpdata.cli.console import Output
from warpdata.errors import ConflictError

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.convert.receipt import ConversionReceipt
    from warpdata.formats.episodedir.images import VideoOptions

_FORMATS = Path(__file__).resolve().parents[2] / "formats"

# Foreign formats.

_OPTION = "an option of the format, as wd.convert.<format>.read or .write has it; the value as JSON or text"
_CODEC = "encode raw frames as h264, h265 or av1; without it an import keeps every pixel, and LeRobot has av1"
_COMMON = [
    cli.arg("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help=_OPTION),
    cli.arg(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="skip: leave out damaged episodes, and count them",
    ),
    cli.arg("--fps", type=float, help="steps per second, if the source does not state them"),
    cli.arg("--codec", help=_CODEC),
    cli.JSON,
]
_IMPORT = [
    *cli.runner("convert episodes"),
    cli.arg("--catalog", help="the catalog of a published target (default: WARP_CATALOG)"),
]
_EXPORT = [
    cli.arg("--rate", type=float, help="steps per second, for formats that need one rate"),
    cli.arg("--clock", metavar="SIGNAL", help="or: a step for every record of this signal"),
    cli.arg("--align", choices=("hold", "nearest", "linear"), help="value at a step; default: hold"),
    cli.arg("--version", dest="format_version", metavar="V", help="of the format: v3.0, v2.1, …"),
    cli.arg("--task", help="the task of episodes that have none"),
    cli.arg(
        "--from",
        dest="source_format",
        metavar="FORMAT",
        help="the format of the source, if it is not recognised",
    ),
    cli.many("--read", "NAME=VALUE", "an option of the source's format, as wd.convert.<format>.read has it"),
]
_SUFFIXES = {".zarr": "zarr", ".zip": "zarr", ".hdf5": "hdf5", ".h5": "hdf5", ".mcap": "mcap", ".rrd": "rrd"}
_ONLY_EXPORT = {
    **{name: f"--{name}" for name in ("rate", "clock", "align", "task")},
    "format_version": "--version",
}
_ONLY_IMPORT = {"ray": "--ray", "catalog": "--catalog"}


@cli.command(
    "bring a foreign set in",
    cli.arg(
        "words",
        nargs="+",
        metavar="[FORMAT] SOURCE TARGET",
        help="the format may be left out if the source is recognised; the target is a new folder or workspace/name",
    ),
    cli.arg("--to", choices=("root", "shards", "published"), help="form of the target; default: root"),
    _IMPORT,
    _COMMON,
    example="warp import lerobot/pusht robot_data",
    when_stopped="Run the same command again: it continues where it stopped.",
)
def run_import(args: cli.Namespace, console: Console) -> Output:
    """Import and print the receipt."""
    from warpdata._api.importing import import_episodes

    if len(args.words) not in (2, 3):
        raise ValueError(f"[FORMAT] SOURCE TARGET are two or three words, not {len(args.words)}")
    source, target = args.words[-2:]
    name = args.words[0] if len(args.words) == 3 else None
    with console.progress("importing") as progress:
        options = _import_options(args)
        return _show(import_episodes(source, target, format=name, to=args.to, progress=progress, **options))


@cli.command(
    "write a foreign set",
    cli.arg("format", metavar="FORMAT"),
    cli.arg("source", metavar="SOURCE", help="a folder, a file, a URL or workspace/name[@version]"),
    cli.arg("target", metavar="TARGET", help="a new folder or file"),
    cli.number("--jobs", default=1, text="processes that convert episodes"),
    _EXPORT,
    _COMMON,
    example="warp export lerobot robot_data pusht --rate 20",
)
def run_export(args: cli.Namespace, console: Console) -> Output:
    """Export and print the receipt."""
    from warpdata._api.importing import export_episodes

    with console.progress("exporting") as progress:
        options = _export_options(args)
        return _show(export_episodes(args.source, args.target, args.format, progress=progress, **options))


@cli.command(
    "convert between foreign formats",
    cli.arg("source", metavar="A", help="a set of any format, a folder, a URL or workspace/name"),
    cli.arg("target", metavar="B", help="a new folder or file; its suffix names its format unless --to does"),
    cli.arg("--to", metavar="FORMAT", help="the format of B, or root, shards, published"),
    _EXPORT,
    _IMPORT,
    _COMMON,
    example="warp convert pusht pusht.zarr",
)
def run_convert(args: cli.Namespace, console: Console) -> Output:
    """Convert from any format to any other, without a copy of ours on the way."""
    from warpdata._api.importing import export_episodes, import_episodes

    to = args.to or _SUFFIXES.get(os.path.splitext(args.target.rstrip("/"))[1].lower())
    is_ours = to is None or to in ("root", "shards", "published")
    for name, option in (_ONLY_EXPORT if is_ours else _ONLY_IMPORT).items():
        if getattr(args, name) is not None:
            raise ValueError(
                f"{option} has no meaning for a target that is {'ours' if is_ours else to}: leave it out"
            )
    with console.progress("converting") as progress:
        if not is_ours:
            options = _export_options(args)
            return _show(export_episodes(args.source, args.target, str(to), progress=progress, **options))
        options = _parse_options(args.read) | _import_options(args)
        name = args.source_format
        return _show(
            import_episodes(args.source, args.target, format=name, to=to, progress=progress, **options)
        )


def _parse_options(given: Sequence[str]) -> dict[str, Any]:
    """Options that are given as NAME=VALUE."""
    options: dict[str, Any] = {}
    for word in given:
        name, equals, text = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        try:
            options[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            options[name.replace("-", "_")] = text
    return options


def _import_options(args: cli.Namespace) -> dict[str, Any]:
    """Options of `wd.import_episodes` and of the format."""
    return {
        "jobs": args.jobs,
        "ray": cli.ray_address(args),
        "on_error": args.on_error,
        "catalog": args.catalog,
        "video": _video_options(args.codec),
        **({} if args.fps is None else {"fps": args.fps}),
        **_parse_options(args.option),
    }


def _export_options(args: cli.Namespace) -> dict[str, Any]:
    """Options of `wd.export_episodes` and of the format."""
    fps = {} if args.fps is None else {"fps": args.fps}
    given = {
        **{name: getattr(args, name) for name in ("rate", "clock", "align", "task", "source_format")},
        "version": args.format_version,
        "on_error": args.on_error if args.on_error != "stop" else None,
        "jobs": args.jobs if args.jobs != 1 else None,
        "source_options": fps | _parse_options(args.read) or None,
        "video": _video_options(args.codec, gop_size=2),
    }
    return {
        **{name: value for name, value in given.items() if value is not None},
        **_parse_options(args.option),
    }


def _video_options(codec: str | None, **more: Any) -> VideoOptions | None:
    from warpdata.formats.episodedir.images import VideoOptions

    return None if codec is None else VideoOptions(codec=codec, **more)


def _show(receipt: ConversionReceipt) -> Output:
    """The receipt; exit code 3 if episodes were skipped."""
    code = exits.OK if receipt.is_complete else exits.DAMAGED
    return Output(receipt.to_json(), list(receipt.lines()), fit=True, code=code)


# Our formats.


def _in_and_out(source: str, target: str) -> list[cli.Argument]:
    return [*cli.address(source, inside=False), *cli.output(target), cli.OVERWRITE, cli.JSON]


@cli.command(
    "write an episode as one .wshard",
    _in_and_out("an episode", "the file to write; default: beside the directory, or ID.wshard here"),
    cli.STORAGE,
    cli.flag("--raw", "the recording without the edits of its root"),
    example="warp pack robot_data#3 -o ep_003.wshard",
)
def run_pack(args: cli.Namespace, _: Console) -> Output:
    """Pack one episode; cameras keep their encoded bytes."""
    from warpdata._api import address_kind, divided_address, pack_episode

    base, inside = divided_address(args.address)
    kind = address_kind(base)
    if inside is None and kind in ("episode", "chunk-list"):
        what = "a chunk list: use `warp join`" if kind == "chunk-list" else "one file already"
        raise ValueError(f"{args.address} is {what}")
    is_here = inside is None and os.path.isdir(base)
    path = args.output or (
        f"{os.path.normpath(base)}.wshard" if is_here else f"{inside or os.path.basename(base)}.wshard"
    )
    cli.check_free(path, overwrite=args.overwrite)
    with cli.name_errors():
        written = pack_episode(
            args.address,
            path,
            args.compression,
            compat=args.compat,
            raw=args.raw,
            overwrite=args.overwrite,
            catalog=args.catalog,
        )
    size = written.stat().st_size
    return Output({"output": str(written), "bytes": size}, [f"{written}  {size} bytes"])


@cli.command(
    "write a packed episode as a directory",
    _in_and_out("a packed episode", "the folder to write; default: FILE without its suffix, or ID here"),
    example="warp unpack ep_003.wshard",
)
def run_unpack(args: cli.Namespace, _: Console) -> Output:
    """Unpack one packed recording."""
    from warpdata._api import divided_address, unpack_episode

    base, inside = divided_address(args.address)
    path = args.output or inside or os.path.basename(base).removesuffix(".wshard")
    if args.output is None and inside is None and "://" not in base:
        path = base.removesuffix(".wshard")
    with cli.name_errors():
        target = unpack_episode(args.address, path, overwrite=args.overwrite, catalog=args.catalog)
    return Output({"output": str(target)}, [str(target)])


@cli.command(
    "cut an episode into chunks",
    _in_and_out("an episode", "the folder to write; default: beside the file, or ID_chunks here"),
    cli.STORAGE,
    cli.arg("--steps", type=int, required=True, help="steps per chunk"),
    example="warp chunk ep_001.wshard --steps 500",
)
def run_chunk(args: cli.Namespace, console: Console) -> Output:
    """Write the chunks and their chunk list."""
    from warpdata._api import chunk_episode, divided_address
    from warpdata.episodes.check.rules import is_directory
    from warpdata.formats.wshard.chunks import list_name

    episode = cli.open_one(args)
    base, inside = divided_address(args.address)
    is_file = inside is None and os.path.isfile(base)
    folder = Path(args.output or (Path(base).with_suffix("") if is_file else f"{episode.id}_chunks"))
    if folder.is_dir():
        if is_directory(folder):
            hint = "Give the chunks a folder of their own with --output."
            raise ConflictError("target is an episode directory", path=folder, hint=hint)
        cli.check_free(folder / list_name(episode.id), overwrite=args.overwrite)
    with console.progress("chunk") as bar:
        chunks = chunk_episode(
            episode, folder, args.steps, compression=args.compression, compat=args.compat, progress=bar
        )
    return Output(
        {"chunk_list": str(chunks.path), "chunks": [chunk.uri for chunk in chunks.chunks]},
        [f"{chunks.path}  {chunks.total_chunks} chunks, {chunks.total_timesteps} steps"],
    )


@cli.command(
    "join chunks into one file",
    _in_and_out("a chunk list", "the file to write; default: ID.wshard beside the chunk list"),
    cli.STORAGE,
    example="warp join ep_001/ep_001_manifest.wshard",
)
def run_join(args: cli.Namespace, console: Console) -> Output:
    """Check every chunk against its SHA-256, then write them as one episode."""
    from warpdata.episodes.forms.chunks import join_chunks
    from warpdata.episodes.sources.shard_episode import chunks_of
    from warpdata.formats.wshard.chunks import validate_chunk_continuity

    episode = cli.open_one(args)
    chunks = chunks_of(episode)
    if chunks is None:
        raise ValueError(f"not a chunk list: {args.address}")
    validate_chunk_continuity(chunks, check_files=True, check_channels=True)
    beside = Path(args.address).parent if os.path.isfile(args.address) else Path()
    path = args.output or str(beside / f"{episode.id}.wshard")
    cli.check_free(path, overwrite=args.overwrite)
    with console.progress("join") as bar:
        join_chunks(episode, path, args.compression, compat=args.compat, progress=bar)
    return Output(
        {"output": path, "episode_id": episode.id, "length": chunks.total_timesteps},
        [f"{path}  {chunks.total_timesteps} steps from {chunks.total_chunks} chunks"],
    )


_SPECS = sorted(spec.parent.name for spec in _FORMATS.glob("*/SPEC.md"))


@cli.command(
    "print the specification of a format",
    cli.arg("format", nargs="?", choices=_SPECS, help="omit it to list the formats"),
    example="warp spec wshard",
)
def run_spec(args: cli.Namespace, _: Console) -> Output:
    """Print one SPEC.md, or the names of all."""
    if args.format is None:
        return Output(lines=_SPECS)
    return Output(lines=(_FORMATS / args.format / "SPEC.md").read_text().rstrip().split("\n"))
