"""`warp join`: one shard out of a chunked episode."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.console import add_json_flag, add_output, add_storage

if TYPE_CHECKING:
    from warpdata.cli.console import Console

HELP = "write a chunked episode as one file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp join`."""
    parser.add_argument("manifest", help="the chunk list of the episode")
    add_output(parser, "the file to write; default: beside the chunk list")
    add_storage(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Check every chunk against its SHA-256, then write them as one episode."""
    from warpdata.formats.wshard.chunked import ChunkedEpisodeReader
    from warpdata.formats.wshard.chunks import validate_chunk_continuity
    from warpdata.formats.wshard.save import save_wshard

    reader = ChunkedEpisodeReader(args.manifest)
    validate_chunk_continuity(reader.manifest, check_files=True, check_channels=True)
    episode = reader.episode()
    output = args.output or str(Path(args.manifest).parent / f"{episode.id}.wshard")
    with console.progress("join") as bar:
        save_wshard(episode, output, args.compression, compat=args.compat, progress=bar)
    console.emit({"output": output, "episode_id": episode.id, "length": episode.length})
    console.print(f"{output}  {episode.length} steps from {len(reader)} chunks")
    return exits.OK
