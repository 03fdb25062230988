"""Interrupted passes: any worlds, readers, batch sizes and moments, against what a list of all rows says."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import warpdata as wd
from tests.loading.conftest import ROWS
from tests.sweeps import enough_examples
from warpdata.catalog.table import StreamRequest
from warpdata.loading.stream import TableStream

KEPT = pc.field("keep")
QUIET = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=enough_examples(20),
    deadline=None,
)


@dataclass(frozen=True)
class Phase:
    """Part of a pass: who reads, in which batches, and when it stops."""

    world: int
    readers: int
    batch_size: int
    steps: int


PHASES = st.lists(
    st.builds(Phase, st.integers(1, 5), st.integers(1, 3), st.integers(3, 90), st.integers(0, 9)),
    min_size=1,
    max_size=3,
)


def opened(table: wd.Table, phase: Phase, rank: int, reader: int, **options: Any) -> TableStream:
    request = StreamRequest(phase.batch_size, (rank, phase.world), prefetch="off", **options)
    return TableStream(table, request, reader, phase.readers)


def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state of a rank from those of its readers, after a journey through JSON."""
    progress = [each for state in states for each in state["progress"]]
    return json.loads(json.dumps({**states[0], "progress": progress}))  # type: ignore[no-any-return]


class Run:
    """A pass in phases; keeps every batch, by rank."""

    def __init__(self, table: wd.Table, **options: Any) -> None:
        self.table, self.options = table, options
        self.states: list[dict[str, Any]] | None = None
        self.last: Phase | None = None
        self.batches: list[list[list[int]]] = []

    def go(self, phase: Phase, steps: int | None) -> None:
        """Let every rank take so many steps, its readers in turn as a DataLoader would; None is to the end."""
        self.batches = [[] for _ in range(phase.world)]
        states = []
        for rank in range(phase.world):
            streams = [opened(self.table, phase, rank, r, **self.options) for r in range(phase.readers)]
            for stream in streams:
                self._load(stream, phase, rank)
            waiting = list(streams)
            while waiting and len(self.batches[rank]) != steps:
                stream = waiting.pop(0)
                batch = next(stream, None)
                if batch is not None:
                    self.batches[rank].append(batch["id"].to_pylist())
                    waiting.append(stream)
            states.append(joined([stream.state_dict() for stream in streams]))
            for stream in streams:
                stream.close()
        self.states, self.last = states, phase

    def _load(self, stream: TableStream, phase: Phase, rank: int) -> None:
        if self.states is None or self.last is None:
            return
        stream.load_state_dict(self.states[rank] if self.last.world == phase.world else self.states)

    @property
    def rows(self) -> list[int]:
        return [row for rank in self.batches for batch in rank for row in batch]


@QUIET
@given(phases=PHASES)
def test_every_row_comes_exactly_once(table: wd.Table, phases: list[Phase]) -> None:
    run, seen = Run(table), []
    for phase in phases:
        run.go(phase, phase.steps)
        seen += run.rows
    run.go(phases[-1], None)
    assert sorted(seen + run.rows) == list(range(ROWS))


@QUIET
@given(phases=PHASES, tail=st.sampled_from(["drop", "pad"]))
def test_equal_steps_stay_equal(table: wd.Table, phases: list[Phase], tail: str) -> None:
    """Full batches on every rank, as many on each; dropped or repeated is less than a batch and a row of each rank."""
    run, seen, spare = Run(table, tail=tail), Counter[int](), 0
    for number, phase in enumerate([*phases, phases[-1]]):
        run.go(phase, phase.steps if number < len(phases) else None)
        assert len({len(batches) for batches in run.batches}) == 1
        assert {len(batch) for batches in run.batches for batch in batches} <= {phase.batch_size}
        seen.update(run.rows)
        spare += phase.world * (phase.batch_size + 1)
    last = phases[-1]
    if tail == "drop":
        assert max(seen.values(), default=1) == 1
        assert ROWS - len(seen) < last.world * (last.batch_size + 1), (
            "less than a batch and a row of each rank"
        )
    else:
        assert set(seen) == set(range(ROWS))
        assert sum(seen.values()) - ROWS < spare


@QUIET
@given(phases=PHASES, limit=st.integers(15, 400))
def test_a_limit_of_filtered_rows_is_one_for_all(table: wd.Table, phases: list[Phase], limit: int) -> None:
    run, seen = Run(table.filter(KEPT), limit=limit), []
    for phase in phases:
        run.go(phase, phase.steps)
        seen += run.rows
    run.go(phases[-1], None)
    assert sorted(seen + run.rows) == [row for row in range(ROWS) if row % 3 != 1][:limit]


@QUIET
@given(
    size=st.integers(1, 90), stop=st.integers(0, 12), limit=st.none() | st.integers(1, 300), data=st.data()
)
def test_filtered_tails(
    table: wd.Table, size: int, stop: int, limit: int | None, data: st.DataObject
) -> None:
    """One reader of filtered rows: the last batch is short, dropped, or filled with the first rows."""
    tail = data.draw(st.sampled_from(["short", "drop", "pad"]))
    rows = [row for row in range(ROWS) if row % 3 != 1][:limit]
    expected = [rows[at : at + size] for at in range(0, len(rows), size)]
    if tail == "drop" and len(expected[-1]) < size:
        expected.pop()
    if tail == "pad":
        missing = size - len(expected[-1])
        expected[-1] += (rows * size)[:missing]
    phase = Phase(1, 1, size, stop)
    run = Run(table.filter(KEPT), tail=tail, limit=limit)
    run.go(phase, stop)
    first = run.batches[0]
    run.go(phase, None)
    assert first + run.batches[0] == expected


@pytest.mark.parametrize("tail", ["short", "drop", "pad"])
def test_an_end_is_an_end(table: wd.Table, tail: str) -> None:
    run = Run(table, tail=tail)
    phase = Phase(2, 2, 50, 0)
    run.go(phase, None)
    run.go(phase, None)
    assert run.rows == []


def test_ranks_share_equally_where_steps_are_equal(table: wd.Table) -> None:
    """Four files over three ranks: whole files would cost a third of the rows."""
    run = Run(table, tail="drop")
    run.go(Phase(3, 1, 10, 0), None)
    assert len(run.rows) == 690


def test_states_of_the_first_format_go_on(table: wd.Table) -> None:
    stream = table.batches(30)
    next(stream)
    new = stream.state_dict()
    kept = {
        key: new[key] for key in ("dataset", "version", "table", "filter", "limit", "rank", "world", "pieces")
    }
    old = {**kept, "format": 1, "rows": 30, "rows_out": 30}
    again = table.batches(30)
    again.load_state_dict(old)
    assert next(again)["id"][0].as_py() == 30
    with pytest.raises(ValueError, match="states of all"):
        table.batches(30, shard=(0, 2), tail="drop").load_state_dict({**old, "world": 2})


@QUIET
@given(data=st.data())
def test_a_damaged_state_is_refused_by_name(table: wd.Table, data: st.DataObject) -> None:
    stream = table.batches(30, shard=(1, 2))
    state = stream.state_dict()
    key = data.draw(st.sampled_from(sorted(state)))
    odd = data.draw(
        st.sampled_from(
            [None, -1, 2**70, "x", [], {}, [[0]], [[0, 0, 10**9]], [[9, 0, 1]], [[0, 5, 2]], True]
        )
    )
    with contextlib.suppress(ValueError):  # or it means the same
        stream.load_state_dict({**state, key: odd})
    if key not in ("filter", "limit", "even"):
        with pytest.raises(ValueError, match="state"):
            stream.load_state_dict({k: v for k, v in state.items() if k != key})


def test_states_of_two_passes_do_not_mix(table: wd.Table) -> None:
    whole, half = table.batches(30), table.batches(30, shard=(0, 2))
    states = [
        {**whole.state_dict(), "world": 2, "rank": 0}, table.batches(30, shard=(1, 2)).state_dict(),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="share rows"):
        table.batches(30).load_state_dict(states)
    with pytest.raises(ValueError, match="same rank"):
        table.batches(30).load_state_dict([half.state_dict(), half.state_dict()])
    with pytest.raises(ValueError, match="different sizes"):
        table.batches(30).load_state_dict([half.state_dict(), whole.state_dict()])
    with pytest.raises(ValueError, match="states of all"):
        table.batches(30).load_state_dict([])
