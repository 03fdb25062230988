"""A harvest that goes on until it is killed, and tells after each append how many rows there are.

`python -m tests.corpora.harvesting FOLDER`; the folder holds a corpus.
"""

from __future__ import annotations

import sys

import numpy as np

from warpdata.corpora.writer import CorpusWriter

WIDTH = 16
BATCH_ROWS = 37


def batch_of(first: int, count: int) -> np.ndarray:
    return (np.arange(first, first + count)[:, None] * 31 + np.arange(WIDTH)) % 997 / 8


def side_of(first: int, count: int) -> dict[str, np.ndarray]:
    ids = np.arange(first, first + count)
    return {"token_id": ids * 7, "position": (ids % 100).astype(np.int32)}


def append(writer: CorpusWriter, count: int) -> None:
    first = writer.total_rows
    assert writer.append(batch_of(first, count), **side_of(first, count)) == first


if __name__ == "__main__":
    harvest = CorpusWriter.reopen(sys.argv[1], shard_bytes=20_000)
    while True:
        print(harvest.total_rows, flush=True)
        append(harvest, BATCH_ROWS)
