"""The shuffled stream with real files: every row once, the same for any world, workers and resume point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.contracts.row_source import WIDTH, rows_of, write_shards
from tests.corpora.test_row_sources import NamedBytes
from tests.sweeps import enough_examples
from tests.waiting import until
from warpdata.corpora.rows import RowBatch
from warpdata.corpora.shuffled import ShuffledRows
from warpdata.corpora.source import FixedOrderSource, MmapShardSource, StoreShardSource
from warpdata.corpora.writer import CorpusWriter
from warpdata.errors import ChecksumError, TooLargeError
from warpdata.formats.gamsae.shard import encode_shard_bytes

QUIET = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    max_examples=enough_examples(40),
)
SIZES = st.lists(st.integers(0, 90), min_size=1, max_size=5).filter(any)
SHUFFLES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "batch_size": st.integers(1, 48),
        "block_rows": st.integers(1, 20),
        "window_blocks": st.integers(1, 12),
    }
)


def opened(folder: Path, sizes: list[int], io: str = "mmap") -> FixedOrderSource:
    paths = write_shards(folder, sizes)
    for extra in sorted(folder.glob("*.shard"))[len(sizes) :]:
        extra.unlink()
    if io == "store":
        return StoreShardSource.open([NamedBytes(path) for path in paths])
    return MmapShardSource.open(paths)


def check_values(batch: RowBatch) -> None:
    wanted = (batch.row_ids.astype(np.int64)[:, None] * 10 + np.arange(WIDTH)).astype(np.float64)
    np.testing.assert_array_equal(batch.rows, wanted)


def epoch_ids(rows: ShuffledRows) -> list[list[int]]:
    found = []
    for batch in rows:
        check_values(batch)
        found.append(batch.row_ids.tolist())
    return found


class Counted(NamedBytes):
    """Counts how often rows are read."""

    reads = 0

    def read(self, start: int, end: int) -> memoryview:
        self.reads += start > 0
        return super().read(start, end)


def test_the_next_blocks_are_fetched_while_these_are_read(tmp_path: Path) -> None:
    reader = Counted(write_shards(tmp_path, [128 * 50])[0])
    source = StoreShardSource.open([reader])
    with source, ShuffledRows(source, batch_size=32, block_rows=50, window_blocks=64) as rows:
        rows.next_batch()
        until(lambda: 64 <= reader.reads < 80, "the blocks in play are fetched first")
        for _ in range(49):
            rows.next_batch()
        until(lambda: reader.reads > 64 + 40, "the next blocks are fetched in step with the rows")


@QUIET
@given(sizes=SIZES, options=SHUFFLES, world=st.integers(1, 9))
def test_a_rank_reads_its_part_of_the_blocks(
    tmp_path: Path, sizes: list[int], options: Any, world: int
) -> None:
    with opened(tmp_path, sizes) as source:
        for rank in range(world):
            rows = ShuffledRows(source, **options, rank=rank, world=world)
            for batch in rows:
                ids = batch.row_ids.astype(np.int64)
                falls = int((np.diff(ids) < 0).sum())
                pools = 1 + options["batch_size"] // (options["block_rows"] * options["window_blocks"])
                assert falls <= pools + 1


@QUIET
@given(sizes=SIZES, options=SHUFFLES, io=st.sampled_from(["mmap", "store"]))
def test_every_row_once_and_epochs_follow(tmp_path: Path, sizes: list[int], options: Any, io: str) -> None:
    with opened(tmp_path, sizes, io) as source, ShuffledRows(source, **options) as rows:
        first, second = epoch_ids(rows), epoch_ids(rows)
        assert rows.epoch == 2
        assert len(first) == len(second) == rows.batches_per_epoch()
    for epoch in (first, second):
        assert sorted(each for batch in epoch for each in batch) == list(range(sum(sizes)))


@QUIET
@given(sizes=SIZES, options=SHUFFLES, world=st.integers(1, 64), data=st.data())
def test_resume_anywhere_on_any_world(
    tmp_path: Path, sizes: list[int], options: Any, world: int, data: st.DataObject
) -> None:
    with opened(tmp_path, sizes) as source:
        with ShuffledRows(source, **options) as rows:
            whole = epoch_ids(rows)
        stop = data.draw(st.integers(0, len(whole) - 1))
        with ShuffledRows(source, **options) as rows:
            for _ in range(stop):
                rows.next_batch()
            state = json.loads(json.dumps(rows.state_dict()))
        assert len(json.dumps(state)) < 100
        parts = []
        for rank in range(world):
            with ShuffledRows(source, **options, rank=rank, world=world) as rows:
                rows.load_state_dict(state)
                parts.append(epoch_ids(rows))
                assert rows.state_dict()["epoch"] == 1
        joined = [[each for part in parts for each in part[t]] for t in range(len(whole) - stop)]
        assert joined == whole[stop:], "the union of the ranks' batches is the global batch"


@QUIET
@given(sizes=SIZES, options=SHUFFLES, workers=st.integers(1, 4), data=st.data())
def test_workers_take_turns(
    tmp_path: Path, sizes: list[int], options: Any, workers: int, data: st.DataObject
) -> None:
    with opened(tmp_path, sizes) as source:
        with ShuffledRows(source, **options) as rows:
            whole = epoch_ids(rows)
        start = data.draw(st.integers(0, len(whole) - 1))
        turns = []
        for worker in range(workers):
            with ShuffledRows(source, **options) as rows:
                steps = rows.read_steps((0, start * options["batch_size"]), worker, workers)
                turns.append([batch.row_ids.tolist() for _, batch in steps])
        merged = [turns[t % workers][t // workers] for t in range(len(whole) - start)]
        assert merged == whole[start:]


def test_the_tail_is_short_dropped_or_padded(tmp_path: Path) -> None:
    with opened(tmp_path, [50]) as source:
        common = {"batch_size": 16, "block_rows": 5, "window_blocks": 4}
        short = epoch_ids(ShuffledRows(source, **common))
        assert [len(batch) for batch in short] == [16, 16, 16, 2]
        assert epoch_ids(ShuffledRows(source, **common, tail="drop")) == short[:3]
        padded = epoch_ids(ShuffledRows(source, **common, tail="pad"))
        assert padded[:3] == short[:3]
        assert padded[3][:2] == short[3]
        assert len(padded[3]) == 16
        order = ShuffledRows(source, **common).order()
        assert sorted(padded[3][2:]) == sorted(order.row_ids(0, 14).tolist())
        for world in (2, 4, 8):
            parts = [
                epoch_ids(ShuffledRows(source, **common, tail="pad", rank=rank, world=world))
                for rank in range(world)
            ]
            assert [[e for part in parts for e in part[t]] for t in range(4)] == padded


def test_a_batch_of_nothing_but_repeats_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warpdata.ordering.epochs.MAX_FILLED_BYTES", 100_000)
    with opened(tmp_path, [50]) as source:
        with ShuffledRows(source, batch_size=1000, tail="pad") as rows:
            assert len(next(iter(rows))) == 1000
        with ShuffledRows(source, batch_size=10**11, tail="pad") as rows, pytest.raises(TooLargeError):
            rows.next_batch()
        with ShuffledRows(source, batch_size=10**11) as rows:
            assert len(next(iter(rows))) == 50


@pytest.mark.parametrize("window_blocks", [2, 64])
@pytest.mark.parametrize("batch_size", [16, 64, 120])
def test_padding_reads_windows_again(tmp_path: Path, batch_size: int, window_blocks: int) -> None:
    """Also where the whole corpus is one window of each section, or smaller than a batch."""
    with opened(tmp_path, [50]) as source:
        common = {"batch_size": batch_size, "block_rows": 5, "window_blocks": window_blocks, "tail": "pad"}
        rows = ShuffledRows(source, **common)
        order = rows.order()
        first = epoch_ids(rows)
        assert [len(batch) for batch in first] == [batch_size] * -(-50 // batch_size)
        assert [len(batch) for batch in epoch_ids(rows)] == [batch_size] * -(-50 // batch_size)
        given = [row for batch in first for row in batch]
        assert sorted(given[:50]) == list(range(50))
        rest = len(given) - 50
        filling = [row for n in range(0, rest, 50) for row in order.row_ids(0, min(50, rest - n)).tolist()]
        assert sorted(given[50:]) == sorted(filling)
        shares = [epoch_ids(ShuffledRows(source, **common, rank=rank, world=3)) for rank in range(3)]
        assert [[row for part in shares for row in part[t]] for t in range(len(first))] == first


def test_a_reused_buffer_and_element_types(tmp_path: Path) -> None:
    with opened(tmp_path, [40, 30]) as source:
        out = np.zeros((16, WIDTH), np.float32)
        with ShuffledRows(source, batch_size=16, dtype="float32") as rows:
            seen = []
            while (batch := rows.next_batch(out)) is not None:
                assert np.shares_memory(batch.rows, out)
                check_values(batch)
                seen += batch.row_ids.tolist()
            assert sorted(seen) == list(range(70))
            with pytest.raises(ValueError, match="out has 4 rows"):
                rows.next_batch(out[:4])
            with pytest.raises(ValueError, match="out must be"):
                rows.next_batch(np.zeros((16, WIDTH)))
            assert sorted(e for batch in epoch_ids(rows) for e in batch) == list(range(70)), (
                "nothing was skipped"
            )


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_stored_types_decode_alike_in_both_orders(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal((300, 8))
    with CorpusWriter(tmp_path / "c", 8, dtype=dtype, shard_bytes=1000) as writer:
        for start in range(0, 300, 50):
            writer.append(values[start : start + 50])
    for asked in ("float64", "float32", "stored"):
        with MmapShardSource.open_dir(tmp_path / "c", dtype=asked) as source:
            fixed = np.concatenate([batch.rows for batch in source])
            with ShuffledRows(source, batch_size=32, block_rows=7, window_blocks=4) as rows:
                for batch in rows:
                    assert batch.rows.dtype == fixed.dtype
                    np.testing.assert_array_equal(batch.rows, fixed[batch.row_ids.astype(np.int64)])


@pytest.mark.parametrize("block_rows", [None, 3])
def test_a_flipped_bit_is_found_whatever_the_order(tmp_path: Path, block_rows: int | None) -> None:
    with CorpusWriter(tmp_path / "c", 8, shard_bytes=4000) as writer:
        writer.append(np.ones((500, 8)))
    path = next((tmp_path / "c").glob("*.shard"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)
    with (
        MmapShardSource.open_dir(tmp_path / "c") as source,
        ShuffledRows(source, batch_size=25, block_rows=block_rows) as rows,
        pytest.raises(ChecksumError),
    ):
        list(rows)
    with MmapShardSource.open_dir(tmp_path / "c", verify=False) as source, ShuffledRows(source) as rows:
        assert sum(len(batch) for batch in rows) == 500


def test_a_failed_read_is_tried_again_with_the_same_batch(tmp_path: Path) -> None:
    (path,) = write_shards(tmp_path, [200])
    good = path.read_bytes()
    with MmapShardSource.open([path]) as source:
        wanted = epoch_ids(ShuffledRows(source, batch_size=16, block_rows=4, window_blocks=2))
        with ShuffledRows(source, batch_size=16, block_rows=4, window_blocks=2) as rows:
            found = [rows.next_batch().row_ids.tolist()]  # type: ignore[union-attr]
            path.write_bytes(good[:100])
            from warpdata.errors import TruncatedError

            with pytest.raises(TruncatedError):
                while (batch := rows.next_batch()) is not None:
                    found.append(batch.row_ids.tolist())
            path.write_bytes(good)
            found += epoch_ids(rows)
    assert found == wanted


def test_states_of_other_streams_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path, [50]) as source:
        rows = ShuffledRows(source, batch_size=16)
        state = rows.state_dict()
        for options, word in (
            ({"window_blocks": 3}, "plan"),
            ({"block_rows": 3}, "plan"),
            ({"seed": 5}, "seed is 0"),
        ):
            with pytest.raises(ValueError, match=f"another stream: its {word}"):
                ShuffledRows(source, batch_size=16, **options).load_state_dict(state)
        ShuffledRows(source, batch_size=10).load_state_dict(state)
        with pytest.raises(ValueError, match="position 51 of a state is beyond the 50 rows"):
            rows.load_state_dict({**state, "position": 51})
        for bad in (
            {"rank": 2, "world": 2},
            {"tail": "cut"},
            {"batch_size": 0},
            {"window_blocks": 0},
            {"seed": -1},
        ):
            with pytest.raises(ValueError):
                ShuffledRows(source, **bad)


def test_quality_is_reported(tmp_path: Path) -> None:
    with opened(tmp_path, [4000]) as source:
        small = ShuffledRows(source, batch_size=64, block_rows=10, window_blocks=4).shuffle_quality()
        large = ShuffledRows(source, batch_size=64, block_rows=10, window_blocks=400).shuffle_quality()
    assert (small.blocks_in_play, large.blocks_in_play) == (4, 400)
    assert small.score < large.score
    assert small.same_block_pairs > large.same_block_pairs
    assert rows_of(0, 1).shape == (1, WIDTH)


def test_aligned_corpora_share_one_order(tmp_path: Path) -> None:
    """Two layers harvested together: the same options give the same rows, and one state resumes both."""
    options = {"seed": 9, "batch_size": 32, "block_rows": 6, "window_blocks": 8}
    streams = []
    for name, width in (("layer3", 4), ("layer7", 11)):
        with CorpusWriter(tmp_path / name, width, shard_bytes=width * 4 * 50) as writer:
            for start in range(0, 200, 50):
                writer.append(np.repeat(np.arange(start, start + 50)[:, None], width, 1))
        streams.append(ShuffledRows(MmapShardSource.open_dir(tmp_path / name), **options))
    first, second = streams
    first.next_batch()
    second.load_state_dict(first.state_dict())
    for left, right in zip(first, second, strict=True):
        np.testing.assert_array_equal(left.row_ids, right.row_ids)
        np.testing.assert_array_equal(left.rows[:, 0], right.rows[:, 0])
    for stream in streams:
        stream.close()
        stream.source.close()


@pytest.mark.parametrize("options", [{"window_blocks": 10**9}, {"block_rows": 10**12}, {"block_rows": 1}])
def test_a_window_larger_than_the_corpus_is_a_full_shuffle(tmp_path: Path, options: dict[str, int]) -> None:
    """It takes the memory of the corpus, not of the window."""
    rows = np.arange(3000 * 4, dtype=np.float32).reshape(3000, 4)
    (tmp_path / "a.shard").write_bytes(encode_shard_bytes(rows))
    with (
        MmapShardSource.open_dir(tmp_path, dtype=np.float32) as source,
        ShuffledRows(source, batch_size=60, **options) as stream,
    ):
        batches = list(stream)
    ids = np.concatenate([batch.row_ids for batch in batches])
    assert sorted(ids.tolist()) == list(range(3000))
    assert np.array_equal(np.concatenate([batch.rows for batch in batches]), rows[ids.astype(np.int64)])


def test_options_as_numpy_has_them(tmp_path: Path) -> None:
    (tmp_path / "a.shard").write_bytes(encode_shard_bytes(np.ones((100, 4))))
    for dtype in (np.float32, np.dtype("float32"), "float32"):
        with MmapShardSource.open_dir(tmp_path, dtype=dtype, batch_rows=np.int64(7)) as source:
            source.seek(np.uint64(3))
            batch = source.next_batch()
            assert batch is not None
            assert (batch.rows.dtype, len(batch), type(source.position)) == (np.float32, 7, int)
            plain = ShuffledRows(source, seed=3, batch_size=8, dtype="float64")
            same = ShuffledRows(source, seed=np.int64(3), batch_size=np.int64(8), dtype=np.dtype("float64"))
            assert same.state_dict() == plain.state_dict()
            first = same.next_batch()
            assert first is not None
            assert first.rows.dtype == np.float64
            plain.close()
            same.close()
            for wrong in (2.5, "3", None):
                with pytest.raises(TypeError):
                    source.seek(wrong)  # type: ignore[arg-type]
            for target in (source, plain):
                with pytest.raises(TypeError, match="out must be an array"):
                    target.next_batch([[0.0] * 4])  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="at least 1"):
                ShuffledRows(source, block_rows=0)
    for wrong_options in ({"batch_rows": 7.0}, {"prefetch_bytes": 1.5}):
        with pytest.raises(TypeError):
            MmapShardSource.open_dir(tmp_path, **wrong_options)
    for dtype in ("float16", np.float16, None, np.int64):
        with pytest.raises(ValueError, match="rows come as"):
            MmapShardSource.open_dir(tmp_path, dtype=dtype)
