"""A long recording is read in little memory: what is small in it does not keep what is large."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from warpdata.bytekit.io.commit import commit_file
from warpdata.convert import mcap
from warpdata.convert.mcap import records
from warpdata.convert.mcap.container import McapFile
from warpdata.convert.messages.log import LogChannel


def test_a_small_topic_does_not_keep_the_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_CACHE_BYTES", 1 << 20)
    path, pixels = tmp_path / "long.mcap", np.random.default_rng(0).bytes(1 << 20)
    with commit_file(path) as out:
        file = McapFile(out, compression="none")
        for topic in ("/state", "/blob"):
            file.channel(LogChannel(topic, "", "", b"", "json" if topic == "/state" else "bytes", {}))
        for number in range(48):
            text = json.dumps({"value": number}).encode()
            file.message(0, number, number, number, text)
            file.message(1, number, number, number, pixels)
        file.finish()
    tracemalloc.start()
    try:
        values = mcap.read(path)[0]["state/value"].values()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert values.tolist() == list(range(48))
    assert peak < 24 << 20, "as much as the whole recording was held"
