"""Interrupted passes: any worlds, readers, batch sizes and moments, against what a list of all rows says."""

from __future__ import annotations

import contextlib
import itertools
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
from warpdata.catalog.read.rowgroups import ShardFile
from warpdata.catalog.table import StreamRequest
from warpdata.errors import StoreError
from warpdata.loading.tables.stream import TableStream

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


FORGED: dict[str, tuple[str, dict[str, Any]]] = {
    "past the rows": ("short", {"progress": [[0, 701, 10]]}),
    "far past the rows": ("pad", {"progress": [[0, 10**12, 10]]}),
    "more given than read": ("short", {"progress": [[0, 10, 11]]}),
    "one reader twice": ("short", {"progress": [[0, 10, 10], [0, 20, 20]]}),
    "no reader": ("short", {"progress": []}),
    "a reader too many": ("short", {"progress": [[1, 10, 10]]}),
    "rows for ever": ("pad", {"gives": 10**12}),
    "more than there are": ("drop", {"gives": 701}),
    "less than was given": ("drop", {"gives": 20}),
    "no rows at all": ("short", {"pieces": []}),
    "rows twice": ("short", {"pieces": [[0, 0, 200], [0, 100, 200]]}),
    "rows out of order": ("short", {"pieces": [[2, 0, 330], [0, 0, 200]]}),
    "rows of no shard": ("short", {"pieces": [[4, 0, 1]]}),
    "rows after the last": ("short", {"pieces": [[1, 0, 2]]}),
    "rows backwards": ("short", {"pieces": [[0, 9, 3]]}),
    "a rank too many": ("short", {"rank": 1}),
    "no world": ("short", {"world": 0}),
    "no tail": ("short", {"even": "round"}),
    "no count": ("short", {"gives": True}),
    "no format": ("short", {"format": 9}),
    "another table": ("short", {"table": "other"}),
    "another version": ("short", {"version": "0" * 64}),
    "another limit": ("short", {"limit": 5}),
}


@pytest.mark.parametrize("is_list", [False, True])
@pytest.mark.parametrize("name", FORGED)
def test_a_state_that_cannot_be_is_refused(table: wd.Table, name: str, is_list: bool) -> None:
    """Nothing of it is believed, neither a row too few nor one too many; the stream stays where it was."""
    tail, change = FORGED[name]
    stream = table.batches(30, tail=tail)
    first = next(stream)["id"].to_pylist()
    state = {**stream.state_dict(), **change}
    with pytest.raises(ValueError, match="state"):
        stream.load_state_dict([state] if is_list else state)
    with pytest.raises(ValueError, match="state"):
        table.batches(20, shard=(0, 2), tail=tail).load_state_dict([state])
    assert first + next(stream)["id"].to_pylist() == list(range(60))


def test_more_given_than_there_is_would_end_a_limit(table: wd.Table) -> None:
    stream = table.filter(KEPT).batches(30, limit=100)
    with pytest.raises(ValueError, match="contradicts"):
        stream.load_state_dict({**stream.state_dict(), "given_before": ROWS + 1})
    stream.load_state_dict({**stream.state_dict(), "given_before": 40})
    assert len(in_order(stream)) == 60


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"tail": "pad"}])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_stream_that_failed_goes_on_when_it_is_asked_again(
    table: wd.Table, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_filtered: bool
) -> None:
    """The end of the rows is told by an end alone: a failure is none, also where the next call comes after it."""
    view = table.filter(KEPT) if is_filtered else table
    expected = [batch["id"].to_pylist() for batch in view.batches(50, prefetch="off", **options)]
    failures = iter([False, True, True, False, True])
    read = ShardFile.read

    def failing(*arguments: Any) -> Any:
        if next(failures, False):
            raise StoreError("the line is dead")
        return read(*arguments)

    stream = view.batches(50, prefetch="off", **options)
    monkeypatch.setattr(ShardFile, "read", failing)
    found: list[list[int]] = []
    failed = 0
    while len(found) < len(expected):
        try:
            found.append(next(stream)["id"].to_pylist())
        except StoreError:
            failed += 1
    assert next(stream, None) is None
    assert found == expected
    assert failed


def in_order(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch["id"].to_pylist()]


@QUIET
@given(
    phases=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 130), st.integers(0, 9)), min_size=1, max_size=3
    ),
    tail=st.sampled_from(["short", "drop", "pad"]),
    limit=st.none() | st.integers(1, 300),
    is_filtered=st.booleans(),
    shuffle=st.sampled_from([True, "full"]),
)
def test_an_epoch_in_phases_is_the_epoch(
    table: wd.Table,
    phases: list[tuple[int, int, int]],
    tail: str,
    limit: int | None,
    is_filtered: bool,
    shuffle: bool | str,
) -> None:
    """Whoever reads how much of it at a time, the order is one list; the states of all ranks are one place of it."""
    view = table.filter("keep") if is_filtered else table
    whole = in_order(view.batches(50, shuffle=shuffle, seed=5, limit=limit))
    matches = [row for row in range(ROWS) if not is_filtered or row % 3 != 1]
    assert sorted(whole) == sorted(matches[:limit])
    states, at = None, 0
    for number, (world, size, steps) in enumerate([*phases, (*phases[-1][:2], 700)]):
        ranks, ends = [], []
        for rank in range(world):
            stream = view.batches(
                size, rank=rank, world=world, shuffle=shuffle, seed=5, limit=limit, tail=tail, prefetch="off"
            )
            if states is not None:
                stream.load_state_dict(states)
            taken = iter(lambda s=stream: next(s, None), None)
            ranks.append([batch["id"].to_pylist() for _, batch in zip(range(steps), taken, strict=False)])
            ends.append(json.loads(json.dumps(stream.state_dict())))
            if steps == 700:
                assert next(stream, None) is None
                ends[-1] = stream.state_dict()
        found = [row for step in itertools.zip_longest(*ranks, fillvalue=[]) for rank in step for row in rank]
        left = whole[at:]
        global_size = world * size
        possible = len(left) // global_size if tail == "drop" else -(-len(left) // global_size)
        taken_steps = min(steps, possible)
        expected = left[: taken_steps * global_size]
        if tail == "pad" and taken_steps == possible and possible:
            expected += list(itertools.islice(itertools.cycle(whole), possible * global_size - len(left)))
        assert found == expected, (number, at)
        if tail != "short":
            assert {len(rank) for rank in ranks} == {taken_steps}
        at = min(len(whole), at + taken_steps * global_size)
        if not all(len(rank) == taken_steps for rank in ranks):
            return  # the last rows were too few for all: who has none is told by asking again
        states = ends
        assert {state["position"] for state in states} == {at}


def test_a_rank_without_rows_in_the_last_step_is_past_it_too(table: wd.Table) -> None:
    streams = [
        table.batches(50, rank=rank, world=3, shuffle=True, limit=301, prefetch="off") for rank in range(3)
    ]
    assert sorted(len(list(stream)) for stream in streams) == [2, 2, 3]
    again = table.batches(50, shuffle=True, limit=301)
    again.load_state_dict([stream.state_dict() for stream in streams])
    assert list(again) == []


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_long_list_is_part_of_a_filter(table: wd.Table, shuffle: bool) -> None:
    """Its text shows the first and the last values only."""
    chosen = table.filter(pc.field("id").isin(list(range(500))))
    stream = chosen.batches(30, shuffle=shuffle)
    first = next(stream)["id"].to_pylist()
    state = json.loads(json.dumps(stream.state_dict()))
    other = [*range(200), 600, *range(201, 500)]
    with pytest.raises(ValueError, match="another stream"):
        table.filter(pc.field("id").isin(other)).batches(30, shuffle=shuffle).load_state_dict(state)
    again = chosen.batches(30, shuffle=shuffle)
    again.load_state_dict(state)
    assert sorted(first + in_order(again)) == list(range(500))
