"""Record until the disk is full: `python -m tests.episodes.full_disk FOLDER HOW END`; prints what was acknowledged.

`HOW` is `episode`, `numbers` or `video` (writers of single signals); `END` is `close`, `exit` (the `with` block is left
by the error) or `kill` (nothing more is called).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import warpdata as wd
from warpdata.errors import WarpError

Call = Callable[[str, Any, int], object]


def values(how: str, step: int) -> Iterator[tuple[str, Any]]:
    """Noise, which no encoder makes small, with the step in its first element."""
    noise = np.random.default_rng(step)
    if how != "video":
        yield "state", np.concatenate([[step], noise.random(3999)])
    if how != "numbers":
        image = noise.integers(0, 256, (120, 160), np.uint8)
        image[0, :2] = divmod(step, 256)
        yield "cam/left", image
    if how == "episode":
        yield "cam/right", image[::-1]
        yield "events", f"{step} " + "e" * 2000


def writer_of(folder: Path, how: str) -> Any:
    if how == "episode":
        return wd.LocalDatasetWriter(folder).new_episode()
    if how == "numbers":
        return wd.SimpleSignalWriter(folder / "state.parquet")
    return wd.VideoSignalWriter(folder / "cam.mkv", folder / "cam.frames.parquet")


def record(writer: Any, how: str, counts: dict[str, int]) -> None:
    for step in range(100_000):
        for name, value in values(how, step):
            if how == "episode":
                writer.append(name, value, step)
            else:
                writer.append(value, step)
            counts[name] = step + 1


def main(folder: Path, how: str, end: str) -> None:
    counts: dict[str, int] = {}
    errors: list[str] = []
    writer = writer_of(folder, how)
    try:
        if end == "exit":
            with writer:
                record(writer, how, counts)
        record(writer, how, counts)
    except WarpError as error:
        errors.append(type(error).__name__)
    if end == "close":
        try:
            writer.close()
        except WarpError as error:
            errors.append(type(error).__name__)
    print(json.dumps({"counts": counts, "errors": errors}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
