"""Every lazy channel is indexed like the array it stands for, before and after its data was touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import warpdata as wd
from tests.keys import check_like_numpy, keys
from tests.servers import run_http
from tests.sweeps import enough_examples
from warpdata.formats.wshard.chunks import slice_episode

STEPS = 23
STATE = np.arange(STEPS * 6, dtype=np.float32).reshape(STEPS, 2, 3)

Open = Callable[[], wd.Channel]


def made() -> wd.WShardEpisode:
    episode = wd.WShardEpisode(id="keys", length=STEPS)
    episode.observations["x"] = STATE
    return episode


@contextmanager
def stored(folder: Path, compression: Any) -> Iterator[Open]:
    wd.save_wshard(made(), folder / "a.wshard", compression)
    yield lambda: wd.load_wshard(folder / "a.wshard").observations["x"]


@contextmanager
def chunked(folder: Path) -> Iterator[Open]:
    listed = wd.chunk_episode(made(), folder / "chunks", 4)
    yield lambda: wd.open_episode(listed).tensors.observations["x"]


@contextmanager
def sliced(folder: Path) -> Iterator[Open]:
    longer = wd.WShardEpisode(id="keys", length=STEPS + 9)
    longer.observations["x"] = np.concatenate([STATE[:4], STATE, STATE[:5]])
    wd.save_wshard(longer, folder / "long.wshard")
    yield lambda: slice_episode(wd.load_wshard(folder / "long.wshard"), 4, 4 + STEPS).observations["x"]


@contextmanager
def over_http(folder: Path) -> Iterator[Open]:
    wd.save_wshard(made(), folder / "a.wshard", "zstd")
    with run_http(folder) as server:
        yield lambda: wd.load_wshard(f"{server.url}/a.wshard").observations["x"]


@contextmanager
def published(folder: Path) -> Iterator[Open]:
    wd.save_wshard(made(), folder / "a.wshard")
    with wd.DatasetBuilder("t/keys", catalog=folder / "catalog") as builder:
        builder.add_artifact("episodes", folder / "a.wshard", kind="wshard_episodes")
        builder.publish(message="keys")
    with wd.dataset("t/keys", catalog=folder / "catalog") as dataset:
        yield lambda: dataset.episodes_of("episodes")[0].tensors.observations["x"]


KINDS: dict[str, Callable[[Path], Any]] = {
    "raw": lambda folder: stored(folder, None),
    "one frame": lambda folder: stored(folder, wd.Compression("zstd", 1, "single")),
    "frames": lambda folder: stored(folder, wd.Compression("zstd", 1, "seekable")),
    "chunks": chunked,
    "slice": sliced,
    "http": over_http,
    "published": published,
}


@pytest.mark.parametrize("kind", KINDS)
def test_channels_are_indexed_like_arrays(kind: str, tmp_path: Path) -> None:
    with KINDS[kind](tmp_path) as open_channel:
        lazy, touched = open_channel(), open_channel()
        assert np.array_equal(touched.data, STATE)

        @settings(max_examples=enough_examples(60))
        @given(keys(STATE.shape))
        def check(key: Any) -> None:
            check_like_numpy(STATE, key, lazy.__getitem__)
            check_like_numpy(STATE, key, touched.__getitem__)

        check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_keys_that_were_answered_wrongly(kind: str, tmp_path: Path) -> None:
    mask = STATE[:, 0, 0] > 40
    with KINDS[kind](tmp_path) as open_channel:
        for key in (
            (..., 0), [bool(each) for each in mask], ([0, 2, 5], [1, 0, 1]), (), mask, STATE > 60, (mask, 1),
            None, (None, 3), (3, ...), True, False, np.array([[1, 2], [0, -1]]), (slice(None), [1, 0], 1),
            (0, slice(None), [0, 2]), range(3), np.array(4), (slice(None, None, -3), ..., [0]),
            (slice(None), ()), ((),),
        ):  # fmt: skip
            found = open_channel()[key]
            assert np.shape(found) == STATE[key].shape, key
            assert np.array_equal(found, STATE[key]), key
