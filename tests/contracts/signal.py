"""The contract every Signal keeps, whatever is behind it; a test class inherits it and makes one."""

from __future__ import annotations

import pickle
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.keys import keys
from tests.sweeps import enough_examples
from warpdata.errors import TimeRangeError
from warpdata.timeline.meta import KINDS
from warpdata.timeline.signal import Signal


def same(left: Any, right: Any) -> bool:
    if isinstance(left, str | bytes):
        return bool(left == right)
    if isinstance(left, np.ndarray) and left.dtype == object:  # text, or arrays of varying length
        return len(left) == len(right) and all(map(same, left, right))
    return bool(np.array_equal(np.asarray(left), np.asarray(right)))


class SignalContract:
    """`make` gives a signal of at least 12 records with uneven times."""

    @abstractmethod
    def make(self, folder: Path) -> tuple[Signal, list[int], Any]:
        """A signal, its timestamps, and its values (None where storage is lossy)."""

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, tmp_path_factory: pytest.TempPathFactory) -> tuple[Signal, list[int], Any]:
        return cls().make(tmp_path_factory.mktemp("signal"))

    def test_is_a_sequence_of_records(self, made: Any) -> None:
        signal, stamps, values = made
        assert len(signal) == len(stamps) >= 12
        assert signal.timestamps.dtype == np.int64
        assert signal.timestamps.tolist() == stamps
        if values is not None:
            assert same(signal.values(), values)
        for i in (0, 5, len(stamps) - 1):
            value, ts_ns = signal[i]
            assert type(ts_ns) is int
            assert ts_ns == stamps[i]
            assert same(value, signal.values()[i])
        assert [ts for _, ts in signal] == stamps
        assert [ts for _, ts in reversed(signal)] == stamps[::-1]
        assert (signal.first_ts_ns, signal.last_ts_ns) == (stamps[0], stamps[-1])

    def test_knows_what_it_is(self, made: Any) -> None:
        signal, _, _ = made
        batch = signal.values()
        assert signal.meta.dtype == batch.dtype
        assert signal.meta.shape == batch.shape[1:]
        assert signal.meta.kind in KINDS
        assert (signal.meta.rows is not None) == (signal.meta.kind in ("ragged", "sound"))

    def test_integers_of_every_kind(self, made: Any) -> None:
        signal, stamps, _ = made
        for index in (3, np.int64(3), np.uint8(3), np.array(3), -len(stamps) + 3):
            assert signal[index][1] == stamps[3]
        for index in (len(stamps), -len(stamps) - 1, 2**70):
            with pytest.raises(IndexError):
                signal[index]

    @pytest.mark.parametrize(
        "key", [1.0, "1", True, np.float32(1), np.bool_(True), None, [0.5], [True, False], ["a"], [[0]]]
    )
    def test_what_is_no_index(self, made: Any, key: Any) -> None:
        signal, stamps, _ = made
        with pytest.raises(TypeError):
            signal[key]
        with pytest.raises(TypeError):
            signal[np.ones(len(stamps), bool)]
        with pytest.raises(TypeError):
            signal.time[key]
        for bad in (slice(key, None), slice(None, key), slice(0, 1, key)):
            if key is not None:
                with pytest.raises(TypeError):
                    signal[bad]
                with pytest.raises(TypeError):
                    signal.time[bad]

    def test_slices_are_views(self, made: Any) -> None:
        signal, stamps, _ = made
        batch = signal.values()
        for key in (slice(2, 9), slice(None, None, 3), slice(-4, None), slice(5, 2), slice(1, 10, 2)):
            view = signal[key]
            assert isinstance(view, Signal)
            assert view.timestamps.tolist() == stamps[key]
            assert same(view.values(), batch[key])
            assert view.meta == signal.meta
        again = signal[2:11][1:8:2]
        assert again.timestamps.tolist() == stamps[2:11][1:8:2]
        assert same(again.values(), batch[2:11][1:8:2])
        assert again[1][1] == stamps[5]
        for step in (0, -1):
            with pytest.raises(ValueError):
                signal[::step]

    def test_lists_in_any_order(self, made: Any) -> None:
        signal, stamps, _ = made
        batch = signal.values()
        for picks in ([4, 1, 1, -1], np.array([4, 1, 1, -1], np.int32)):
            view = signal[picks]
            assert view.timestamps.tolist() == [stamps[i] for i in (4, 1, 1, -1)]
            assert same(view.values(), batch[[4, 1, 1, -1]])
        assert len(signal[[]]) == 0
        assert signal[range(2, 5)].timestamps.tolist() == stamps[2:5]
        assert signal[[5, 2, 7]][1:][1][1] == stamps[7]
        for outside in (len(stamps), -len(stamps) - 1, 2**70):
            with pytest.raises(IndexError):
                signal[[0, outside]]
        for times in ([stamps[-1], 2**63], np.array([2**63], np.uint64)):
            with pytest.raises(ValueError):  # never answered as if another time had been asked for
                signal.time[times]
        with pytest.raises(ValueError, match="order of time"):
            signal[[4, 1]].time[stamps[4]]

    def test_keys_mean_what_they_mean_in_numpy(self, made: Any) -> None:
        signal, stamps, _ = made
        clock, batch = np.array(stamps), signal.values()

        @settings(max_examples=enough_examples(30))
        @given(keys((len(stamps),)))
        def check(key: Any) -> None:
            try:
                found = signal[key]
            except IndexError:
                return  # refused: a mask, a new axis, time backwards
            rows = np.arange(len(stamps))[key]
            if isinstance(found, tuple):
                assert found[1] == clock[rows]
                assert same(found[0], batch[rows])
            else:
                assert np.array_equal(found.timestamps, clock[rows])
                assert same(found.values(), batch[rows])

        check()
        for key in (..., (), (slice(2, 5),), ([3, 1],)):
            assert np.array_equal(signal[key].timestamps, clock[key])
        for key in (
            (1, 2),
            (4, 1, 1, -1),
            (slice(2), slice(2)),
            True,
            [True] * len(stamps),
            None,
            (..., 0),
            ([1], [2]),
        ):
            with pytest.raises(IndexError):
                signal[key]

    def test_floor_lookup(self, made: Any) -> None:
        signal, stamps, _ = made
        batch = signal.values()
        for i in (0, 3, len(stamps) - 1):
            for ask in (stamps[i], np.int64(stamps[i])):
                value, ts_ns = signal.time[ask]
                assert type(ts_ns) is int
                assert ts_ns == stamps[i]
                assert same(value, batch[i])
        assert signal.time[stamps[4] - 1][1] == stamps[3]
        assert signal.time[stamps[-1] + 10**15][1] == stamps[-1]
        assert signal.time[2**80][1] == stamps[-1]
        for ask in (stamps[0] - 1, -(2**80)):
            with pytest.raises(TimeRangeError) as caught:
                signal.time[ask]
            assert isinstance(caught.value, KeyError)

    def test_windows(self, made: Any) -> None:
        signal, stamps, _ = made
        for a, b in [
            (stamps[2], stamps[7]), (stamps[2] + 1, stamps[7] + 1), (None, stamps[3]), (stamps[3], None),
            (None, None), (stamps[7], stamps[2]), (stamps[-1] + 1, None), (-(2**90), 2**90),
            (stamps[0] - 5, 2**63),
        ]:  # fmt: skip
            low, high = (-(2**99) if a is None else a), (2**99 if b is None else b)
            view = signal.time[a:b]
            assert view.timestamps.tolist() == [t for t in stamps if low <= t < high]
        inner = signal.time[stamps[2] : stamps[9]].time[stamps[4] :]
        assert inner.timestamps.tolist() == stamps[4:9]
        with pytest.raises(TimeRangeError):
            signal.time[stamps[4] :].time[stamps[3]]

    def test_grids_return_requested_times(self, made: Any) -> None:
        signal, stamps, _ = made
        batch = signal.values()
        step = (stamps[-1] - stamps[0]) // 7
        view = signal.time[stamps[1] : stamps[-1] : step]
        asked = list(range(stamps[1], stamps[-1], step))
        assert view.timestamps.tolist() == asked
        floors = [max(i for i, t in enumerate(stamps) if t <= ask) for ask in asked]
        assert same(view.values(), batch[floors])
        assert view[1][1] == asked[1]
        whole = signal.time[::step]
        assert whole.timestamps.tolist() == list(range(stamps[0], stamps[-1] + 1, step))
        assert view.time[asked[2]][1] == asked[2]
        for bad in (0, -5):
            with pytest.raises(ValueError):
                signal.time[stamps[0] : stamps[3] : bad]
        with pytest.raises(TimeRangeError):
            signal.time[stamps[0] - 1 : stamps[3] : step]
        with pytest.raises(ValueError, match="too large"):
            signal.time[stamps[0] : stamps[0] + 2**62 : 1]

    def test_lists_of_times(self, made: Any) -> None:
        signal, stamps, _ = made
        asked = [stamps[5] + 1, stamps[2], stamps[2], stamps[-1] + 9]
        for times in (asked, np.array(asked)):
            view = signal.time[times]
            assert view.timestamps.tolist() == asked
            assert same(view.values(), signal.values()[[5, 2, 2, len(stamps) - 1]])
        assert len(signal.time[[]]) == 0
        with pytest.raises(TimeRangeError):
            signal.time[[stamps[3], stamps[0] - 1]]

    def test_nothing_handed_out_can_be_written(self, made: Any) -> None:
        signal, stamps, _ = made
        arrays = [signal.timestamps, signal.values(), signal[2:5].values(), signal[[3, 1]].values()]
        arrays += [signal[3][0], signal.time[stamps[3]][0], signal.time[[stamps[3]]].values()]
        for array in arrays:
            if isinstance(array, np.ndarray):
                assert not array.flags.writeable
                with pytest.raises(ValueError):
                    array[...] = 0

    def test_an_empty_view(self, made: Any) -> None:
        signal, stamps, _ = made
        empty = signal[5:5]
        assert len(empty) == 0
        assert len(empty.values()) == 0
        assert list(empty) == []
        assert len(empty.time[:]) == 0
        assert len(empty.time[::5]) == 0
        for ask in (stamps[3], [stamps[3]], slice(stamps[3], stamps[3] + 1, 1)):
            with pytest.raises(TimeRangeError):
                empty.time[ask]
        with pytest.raises(TimeRangeError):
            _ = empty.first_ts_ns

    def test_survives_pickling(self, made: Any) -> None:
        signal, stamps, _ = made
        for each in (signal, signal[3:9], signal[[4, 1]], signal.time[[stamps[4]]]):
            again = pickle.loads(pickle.dumps(each))
            assert again.timestamps.tolist() == each.timestamps.tolist()
            assert same(again.values(), each.values())

    def test_threads_may_share_it(self, made: Any) -> None:
        signal, _, _ = made
        batch = signal.values()
        wrong: list[int] = []

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for i in rng.integers(0, len(batch), 40):
                if not same(signal[int(i)][0], batch[i]):
                    wrong.append(int(i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong
