"""Commands that change the form of episodes: foreign formats, `pack`, `unpack`, `chunk`, `join`; and `spec`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Unpack

from warpdata.cli import arguments as cli
from warpdata.cli.console import Exit, Output
from warpdata.errors import ConflictError, nearest

if TYPE_CHECKING:
    from warpdata.convert.receipt import ConversionReceipt

_FORMATS = Path(__file__).resolve().parents[2] / "formats"

# Foreign formats.

_WORDS = (
    "the format may be left out if the source is recognised; the target is a new folder or workspace/name"
)
_SUFFIXES = {".zarr": "zarr", ".zip": "zarr", ".hdf5": "hdf5", ".h5": "hdf5", ".mcap": "mcap", ".rrd": "rrd"}
_OURS = ("root", "shards", "published")


class ImportArguments(cli.Work, total=False):
    """Options of `wd.import_episodes`."""

    to: Literal["root", "shards", "published"]
    rate_hz: Annotated[float, "steps per second, if the source does not state them"]
    options: Sequence[str]
    on_error: Literal["stop", "skip"]
    codec: str


class ExportArguments(TypedDict, total=False):
    """Options of `wd.export_episodes`."""

    rate_hz: float
    clock: str
    align: Literal["hold", "nearest", "linear"]
    version: str
    task: str
    source_format: str
    source_options: Sequence[str]
    options: Sequence[str]
    on_error: Literal["stop", "skip"]
    codec: str
    jobs: int


class ConvertArguments(ExportArguments, total=False):
    """Options of `warp convert`."""

    to: str
    ray: str | bool


@cli.command(
    "warp import lerobot/pusht robot_data",
    needs_catalog=True,
    when_stopped="Run the same command again: it continues where it stopped.",
)
def run_import(
    warp: cli.Warp,
    words: Annotated[Sequence[str], cli.Arg(_WORDS, "[FORMAT] SOURCE TARGET")],
    **options: Unpack[ImportArguments],
) -> Output:
    """Bring a foreign set in and print the receipt; exit code 3 if episodes were skipped."""
    if len(words) not in (2, 3):
        raise ValueError(f"[FORMAT] SOURCE TARGET are two or three words, not {len(words)}")
    given: dict[str, Any] = {**options, "format": words[0] if len(words) == 3 else None}
    if "rate_hz" in given:
        given["fps"] = given.pop("rate_hz")
    return _import(warp, words[-2], words[-1], given)


def _import(warp: cli.Warp, source: str, target: str, given: dict[str, Any]) -> Output:
    from warpdata._api.importing import import_episodes

    with warp.progress("importing") as bar:
        receipt = import_episodes(source, target, progress=bar, catalog=warp.catalog, **_keywords(given))
    return _show(receipt)


@cli.command("warp export lerobot robot_data pusht --rate 20", needs_catalog=True)
def run_export(
    warp: cli.Warp,
    format: str,  # noqa: A002 - the argument
    source: str,
    target: str,
    **options: Unpack[ExportArguments],
) -> Output:
    """Write a foreign set and print the receipt; exit code 3 if episodes were skipped."""
    return _export(warp, source, target, format, dict(options))


def _export(warp: cli.Warp, source: str, target: str, kind: str, given: dict[str, Any]) -> Output:
    from warpdata._api import divided_address, is_published
    from warpdata._api.importing import export_episodes

    keywords = _keywords(given, gop_size=2)
    if "rate_hz" in keywords:
        keywords["rate"] = keywords.pop("rate_hz")
    from_catalog = is_published(divided_address(source)[0]) and "source_format" not in keywords
    if warp.catalog is not None and not from_catalog:
        raise ValueError(f"--catalog has no meaning for a source that is not published: {source}")
    with warp.progress("exporting") as bar:
        episodes = warp.open_episodes(source) if from_catalog and warp.catalog else source
        return _show(export_episodes(episodes, target, kind, progress=bar, **keywords))


@cli.command("warp convert pusht pusht.zarr", needs_catalog=True)
def run_convert(
    warp: cli.Warp,
    source: str,
    target: Annotated[str, "a new folder or file; its suffix names its format unless --to does"],
    **options: Unpack[ConvertArguments],
) -> Output:
    """Convert between any two formats, without a copy of ours on the way."""
    given: dict[str, Any] = dict(options)
    to = given.get("to") or _SUFFIXES.get(os.path.splitext(target.rstrip("/"))[1].lower())
    is_ours = to is None or to in _OURS
    without = ("rate_hz", "clock", "align", "version", "task") if is_ours else ("ray",)
    for name in without:
        if name in given:
            option, what = cli.ARGUMENTS[name].option or name, "ours" if is_ours else to
            raise ValueError(f"--{option} has no meaning for a target that is {what}: leave it out")
    if not is_ours:
        given.pop("to", None)
        return _export(warp, source, target, str(to), given)
    given |= cli.named_values(given.pop("source_options", ())) | {"format": given.pop("source_format", None)}
    return _import(warp, source, target, given)


def _keywords(given: dict[str, Any], **video: Any) -> dict[str, Any]:
    """Keywords of a conversion; options of a format are NAME=VALUE words."""
    from warpdata.formats.episodedir.documents import VideoOptions

    words, codec = given.pop("options", ()), given.pop("codec", None)
    if "source_options" in given:
        given["source_options"] = cli.named_values(given["source_options"])
    if codec is not None:
        given["video"] = VideoOptions(codec=codec, **video)
    return given | cli.named_values(words)


def _show(receipt: ConversionReceipt) -> Output:
    code = Exit.OK if receipt.is_complete else Exit.DAMAGED
    return Output(receipt, list(receipt.lines()), fit=True, code=code)


# Our formats.


@cli.command("warp pack robot_data#3 -o ep_003.wshard")
def run_pack(
    warp: cli.Warp,
    address: str,
    *,
    output: str | None = None,
    overwrite: bool = False,
    raw: bool = False,
    **storage: Unpack[cli.Storage],
) -> Output:
    """Write an episode as one .wshard; cameras keep their encoded bytes."""
    from warpdata._api import address_kind, divided_address, pack_episode

    base, inside = divided_address(address)
    kind = address_kind(base)
    if inside is None and kind in ("episode", "chunk-list"):
        what = "a chunk list: use `warp join`" if kind == "chunk-list" else "one file already"
        raise ValueError(f"{address} is {what}")
    stem = inside or (os.path.normpath(base) if os.path.isdir(base) else os.path.basename(base))
    path = output or f"{stem}.wshard"
    written = pack_episode(address, path, raw=raw, overwrite=overwrite, catalog=warp.catalog, **storage)
    size = written.stat().st_size
    return Output({"output": str(written), "bytes": size}, [f"{written}  {size} bytes"])


@cli.command("warp unpack ep_003.wshard")
def run_unpack(warp: cli.Warp, address: str, *, output: str | None = None, overwrite: bool = False) -> Output:
    """Write a packed episode as a directory."""
    from warpdata._api import divided_address, unpack_episode

    base, inside = divided_address(address)
    path = inside or (os.path.basename(base) if "://" in base else base).removesuffix(".wshard")
    target = unpack_episode(address, output or path, overwrite=overwrite, catalog=warp.catalog)
    return Output({"output": str(target)}, [str(target)])


@cli.command("warp chunk ep_001.wshard --steps 500")
def run_chunk(
    warp: cli.Warp,
    address: str,
    *,
    steps: Annotated[int, "steps per chunk"],
    output: str | None = None,
    overwrite: bool = False,
    **storage: Unpack[cli.Storage],
) -> Output:
    """Cut an episode into chunks with their chunk list."""
    from warpdata._api import chunk_episode, divided_address
    from warpdata.episodes.check.rules import is_directory

    episode = warp.open_episode(address)
    base, inside = divided_address(address)
    is_file = inside is None and os.path.isfile(base)
    folder = Path(output or (Path(base).with_suffix("") if is_file else f"{episode.id}_chunks"))
    if folder.is_dir() and is_directory(folder):
        hint = "Give the chunks a folder of their own with --output."
        raise ConflictError("target is an episode directory", path=folder, hint=hint)
    with warp.progress("chunk") as bar:
        chunks = chunk_episode(episode, folder, steps, overwrite=overwrite, progress=bar, **storage)
    return Output(
        {"chunk_list": str(chunks.path), "chunks": [chunk.uri for chunk in chunks.chunks]},
        [f"{chunks.path}  {chunks.total_chunks} chunks, {chunks.total_timesteps} steps"],
    )


@cli.command("warp join ep_001/ep_001_manifest.wshard")
def run_join(
    warp: cli.Warp,
    address: Annotated[str, f"a chunk list: {cli.FORMS}"],
    *,
    output: str | None = None,
    overwrite: bool = False,
    **storage: Unpack[cli.Storage],
) -> Output:
    """Join chunks into one file; every chunk is checked against its SHA-256."""
    from warpdata.bytekit.io.commit import check_free
    from warpdata.episodes.forms.shard import join_chunks
    from warpdata.episodes.sources.shard_episode import chunks_of
    from warpdata.formats.wshard.chunks import validate_chunk_continuity

    episode = warp.open_episode(address)
    chunks = chunks_of(episode)
    if chunks is None:
        raise ValueError(f"not a chunk list: {address}")
    beside = Path(address).parent if os.path.isfile(address) else Path()
    path = output or str(beside / f"{episode.id}.wshard")
    check_free(path, overwrite=overwrite)
    validate_chunk_continuity(chunks, check_files=True, check_channels=True)
    with warp.progress("join") as bar:
        join_chunks(episode, path, overwrite=overwrite, progress=bar, **storage)
    return Output(
        {"output": path, "episode_id": episode.id, "length": chunks.total_timesteps},
        [f"{path}  {chunks.total_timesteps} steps from {chunks.total_chunks} chunks"],
    )


@cli.command("warp spec wshard")
def run_spec(_: cli.Warp, format: Annotated[str | None, "omit it to list the formats"] = None) -> Output:  # noqa: A002
    """Print the specification of a format, or list the formats."""
    names = sorted(spec.parent.name for spec in _FORMATS.glob("*/SPEC.md"))
    if format is None:
        return Output(lines=names)
    if format not in names:
        raise ValueError(
            f"no specification of {format!r} (choose from {', '.join(names)}).{nearest(format, names)}"
        )
    return Output(lines=(_FORMATS / format / "SPEC.md").read_text().rstrip().split("\n"))
