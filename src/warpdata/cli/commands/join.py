"""`warp join`: one shard out of a chunked episode; the way back from `warp chunk`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from warpdata.cli import exits
from warpdata.cli.commands._address import add_address, opened_episode
from warpdata.cli.console import add_json_flag, add_output, add_overwrite, add_storage, check_free

if TYPE_CHECKING:
    from warpdata.cli.console import Console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp join`."""
    add_address(parser, "a chunk list", inside=False)
    add_output(parser, "the file to write; default: ID.wshard beside the chunk list")
    add_overwrite(parser)
    add_storage(parser)
    add_json_flag(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Check every chunk against its SHA-256, then write them as one episode."""
    from warpdata.episodes.forms.packed_chunks import join_chunks
    from warpdata.episodes.sources.opening import chunks_of
    from warpdata.formats.wshard.chunks import validate_chunk_continuity

    episode = opened_episode(args)
    chunks = chunks_of(episode)
    if chunks is None:
        raise ValueError(f"{args.address} is no chunk list: there is nothing to join")
    validate_chunk_continuity(chunks, check_files=True, check_channels=True)
    beside = Path(args.address).parent if os.path.isfile(args.address) else Path()
    output = args.output or str(beside / f"{episode.id}.wshard")
    check_free(output, overwrite=args.overwrite)
    with console.progress("join") as bar:
        join_chunks(episode, output, args.compression, compat=args.compat, progress=bar)
    console.emit({"output": output, "episode_id": episode.id, "length": chunks.total_timesteps})
    console.print(f"{output}  {chunks.total_timesteps} steps from {chunks.total_chunks} chunks")
    return exits.OK
