"""Truncations and single-bit flips of shards, in a soak all of them: `python -m tests.formats.damage_sweep FILE…`.

Prints one JSON line per file. A damaged file gives a FormatError that names the file, or the identical result;
anything else is a fault.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import numpy as np

from tests.sweeps import thinned
from warpdata.bytekit.io.ranges import BytesRangeReader
from warpdata.errors import FormatError
from warpdata.formats.wshard import ShardReader, layout
from warpdata.formats.wshard.chunks import read_chunk_list
from warpdata.formats.wshard.episode import load_wshard

NAME = "sweep.wshard"
CUTS, FLIPS = 200, 1500


def everything(data: bytes) -> Any:
    """All that a user can get out of the file, in a form that compares."""
    shard = ShardReader.open(BytesRangeReader(data, NAME))
    blocks = {name: shard.read(name) for name in shard.names}
    if shard.role == layout.ROLE_CHUNK_LIST:
        return blocks, read_chunk_list(shard)
    episode = load_wshard(shard)
    rows = []
    for name, channel in episode.lanes():
        rows.append((name, str(channel.dtype), channel.row_shape, values(channel[1:3]), values(channel.data)))
    flags = [
        None if flag is None else (str(flag.dtype), flag.data.tobytes())
        for flag in (episode.rewards, episode.terminations, episode.truncations)
    ]
    clock = None if episode.timestamps_ns is None else np.asarray(episode.timestamps_ns).tobytes()
    identity = (
        episode.id,
        episode.env_id,
        episode.length,
        episode.timebase,
        episode.metadata,
        episode.models,
    )
    return blocks, rows, flags, clock, identity


def values(array: np.ndarray[Any, Any]) -> Any:
    """What an array holds; the bytes of an array of objects are only where they lie."""
    return array.tolist() if array.dtype == object else array.tobytes()


def outcome(data: bytes, good: Any) -> str:
    try:
        found = everything(data)
    except FormatError as error:
        return "named" if error.path == NAME else f"error without the file: {error!r}"
    except Exception as error:  # noqa: BLE001 - the sweep exists to find these
        return f"foreign exception: {error!r}"
    return "identical" if found == good else "a different result without an error"


def sweep(data: bytes) -> dict[str, Any]:
    good = everything(data)
    counts: dict[str, int] = {}
    faults: list[str] = []

    def judge(damaged: bytes, what: str) -> None:
        result = outcome(damaged, good)
        counts[result] = counts.get(result, 0) + 1
        if result not in ("named", "identical"):
            faults.append(f"{what}: {result}")

    for size in thinned(range(len(data)), CUTS):
        judge(data[:size], f"cut at {size}")
    for bit in thinned(range(len(data) * 8), FLIPS):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        judge(bytes(damaged), f"bit {bit & 7} of byte {bit >> 3}")
    return {"counts": counts, "faults": faults[:10]}


def main() -> None:
    for path in sys.argv[1:]:
        with open(path, "rb") as stream:
            data = stream.read()
        everything(data)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        report = sweep(data)
        report["grown_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(json.dumps(report))


if __name__ == "__main__":
    main()
