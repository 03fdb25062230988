"""Mixtures of shuffled corpora: shares kept, every stream in its own order, resumed anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from warpdata.corpora.mixed import MixedBatch

import warpdata as wd
from tests.ordering.mixture_reference import mixture_schedule
from tests.sweeps import enough_examples
from warpdata.ordering.mixture import mixture_counts

ROWS = (200, 90, 33)
WEIGHTS = (5.0, 3.0, 0.7)
BATCH = 16


@pytest.fixture(scope="module", name="sources")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[wd.MmapShardSource]]:
    folder = tmp_path_factory.mktemp("mixed")
    for index, count in enumerate(ROWS):
        with wd.CorpusWriter(folder / str(index), 2) as writer:
            ids = np.arange(count)
            writer.append(np.stack([np.full(count, index), ids], 1))
    sources = [wd.MmapShardSource.open_dir(folder / str(index)) for index in range(len(ROWS))]
    yield sources
    for source in sources:
        source.close()


def mixture(sources: list[wd.MmapShardSource], rank: int = 0, world: int = 1, **options) -> wd.MixedRows:
    streams = [
        wd.ShuffledRows(source, seed=7, batch_size=BATCH, block_rows=8, rank=rank, world=world, **options)
        for source in sources
    ]
    return wd.MixedRows(streams, WEIGHTS)


def facts(batch: MixedBatch) -> tuple[int, list[int], list[list[float]]]:
    return batch.source, batch.row_ids.tolist(), batch.rows.tolist()


def test_shares_are_kept_and_every_row_comes_once_per_epoch(sources: list[wd.MmapShardSource]) -> None:
    mixed = mixture(sources)
    batches = list(islice(mixed, 200))
    assert [batch.source for batch in batches] == mixture_schedule(WEIGHTS, 200)
    for count in (1, 17, 200):
        given = np.bincount([batch.source for batch in batches[:count]], minlength=3)
        assert np.abs(given - mixture_counts(WEIGHTS, count)).max() <= 1
    assert all((batch.rows[:, 0] == batch.source).all() for batch in batches)
    assert all((batch.rows[:, 1] == batch.row_ids).all() for batch in batches)
    for index, rows in enumerate(ROWS):
        ids = np.concatenate([batch.row_ids for batch in batches if batch.source == index])
        assert sorted(ids[:rows]) == list(range(rows))
        assert len(np.unique(ids[rows : 2 * rows])) == len(ids[rows : 2 * rows])
    mixed.close()


@settings(max_examples=enough_examples(15))
@given(done=st.integers(0, 120), world=st.sampled_from([1, 2, 4]), tail=st.sampled_from(["short", "drop"]))
def test_it_goes_on_anywhere_with_any_world(
    sources: list[wd.MmapShardSource], done: int, world: int, tail: str
) -> None:
    whole = mixture(sources, tail=tail)
    list(islice(whole, done))
    state = json.loads(json.dumps(whole.state_dict()))
    assert len(json.dumps(state, separators=(",", ":"))) < 100
    expected = [facts(batch) for batch in islice(whole, 20)]
    shares = []
    for rank in range(world):
        part = mixture(sources, rank, world, tail=tail)
        part.load_state_dict(state)
        shares.append([facts(batch) for batch in islice(part, 20)])
        part.close()
    for number, (source, ids, _) in enumerate(expected):
        assert {share[number][0] for share in shares} == {source}
        assert [i for share in shares for i in share[number][1]] == ids
    whole.close()


def test_what_is_no_mixture(sources: list[wd.MmapShardSource]) -> None:
    streams = [wd.ShuffledRows(source, batch_size=BATCH) for source in sources]
    with pytest.raises(ValueError, match="3 streams and 2 weights"):
        wd.MixedRows(streams, [1, 1])
    with pytest.raises(ValueError, match="weights of 0 or more"):
        wd.MixedRows(streams, [1, -1, 1])
    mixed = wd.MixedRows(streams, [1, 1, 1])
    for bad in (
        {},
        {"v": 1},
        {**mixed.state_dict(), "position": -1},
        {**mixed.state_dict(), "position": "1"},
        {**mixed.state_dict(), "v": 1, "given": [1]},
        {**mixed.state_dict(), "v": 1, "given": [1, 2, -1]},
    ):
        with pytest.raises(ValueError, match=r"state|count"):
            mixed.load_state_dict(bad)
    other = wd.MixedRows([wd.ShuffledRows(s, batch_size=BATCH, seed=1) for s in sources], [1, 1, 1])
    with pytest.raises(ValueError, match="other streams"):
        mixed.load_state_dict(other.state_dict())


def test_widths_must_agree(sources: list[wd.MmapShardSource], tmp_path: Path) -> None:
    (tmp_path / "w.shard").write_bytes(wd.encode_shard_bytes(np.zeros((4, 3))))
    with (
        wd.MmapShardSource.open([tmp_path / "w.shard"]) as wide,
        pytest.raises(ValueError, match="one width"),
    ):
        wd.MixedRows([wd.ShuffledRows(wide), wd.ShuffledRows(sources[0])], [1, 1])
