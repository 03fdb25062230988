"""A long recording is read in little memory: what is small in it does not keep what is large."""

from __future__ import annotations

import json
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType, Writer

from warpdata.convert import mcap


def test_a_small_topic_does_not_keep_the_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["warpdata.convert.mcap.read"], "_CACHE_BYTES", 1 << 20)
    path, pixels = tmp_path / "long.mcap", np.random.default_rng(0).bytes(1 << 20)
    with open(path, "wb") as out:
        writer = Writer(out, compression=CompressionType.NONE)
        writer.start()
        numbers = [writer.register_channel(*topic, 0) for topic in (("/state", "json"), ("/blob", "bytes"))]
        for number in range(48):
            writer.add_message(numbers[0], number, json.dumps({"value": number}).encode(), number)
            writer.add_message(numbers[1], number, pixels, number)
        writer.finish()
    tracemalloc.start()
    try:
        values = mcap.read(path)[0]["state/value"].values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.tolist() == list(range(48))
    assert peak < 24 << 20, "as much as the whole recording was held"
