"""Edits against a model: lists of records, changed as the words say; undo replays what is left."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import warpdata as wd
from tests.sweeps import enough_examples
from warpdata.errors import WarpError

RECORDINGS, RECORDS, PAUSE = 3, 6, 10
TIMES = st.one_of(st.none(), st.integers(-10, RECORDINGS * 100))
REFUSED = (KeyError, ValueError, WarpError)


@dataclass(frozen=True)
class Shown:
    """An episode as a reader should see it."""

    records: tuple[tuple[int, int], ...]
    static: dict[str, Any] = field(default_factory=dict)
    dropped: bool = False


class Impossible(Exception):
    """The edit must be refused."""


Model = dict[str, Shown]


def recorded() -> Model:
    return {
        f"{e:012d}": Shown(tuple((e * 100 + i * PAUSE, e * 100 + i) for i in range(RECORDS)), {"number": e})
        for e in range(RECORDINGS)
    }


def replayed(edits: list[tuple[str, tuple[Any, ...]] | None]) -> Model:
    model = recorded()
    for edit in edits:
        if edit is not None:
            model = CHANGES[edit[0]](model, *edit[1])
    return model


def of(model: Model, name: str) -> Shown:
    if name not in model:
        raise Impossible
    return model[name]


def trimmed(shown: Shown, start: int | None, end: int | None) -> Shown:
    kept = [r for r in shown.records if (start is None or r[0] >= start) and (end is None or r[0] < end)]
    if not kept and shown.records:
        raise Impossible  # a part without any record
    return replace(shown, records=tuple(kept))


def trim(model: Model, name: str, start: int | None, end: int | None) -> Model:
    if start is not None and end is not None and start >= end:
        raise Impossible
    return {**model, name: trimmed(of(model, name), start, end)}


def split(model: Model, name: str, at: int) -> Model:
    halves = {
        f"{name}-1": trimmed(of(model, name), None, at),
        f"{name}-2": trimmed(of(model, name), at, None),
    }
    out: Model = {}
    for each, shown in model.items():
        out.update(halves if each == name else {each: shown})
    return out


def concat(model: Model, names: tuple[str, ...], shifts: tuple[int, ...]) -> Model:
    parts = [of(model, name) for name in names]
    records = tuple((ts + s, v) for part, s in zip(parts, shifts, strict=True) for ts, v in part.records)
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise Impossible
    if any(later[0] <= earlier[0] for earlier, later in itertools.pairwise(records)):
        raise Impossible
    static = {k: v for part in reversed(parts) for k, v in part.static.items()}
    out: Model = {}
    for each, shown in model.items():
        if each == names[0]:
            out["+".join(names)] = Shown(records, static)
        elif each not in names:
            out[each] = shown
    return out


def shifts_of(model: Model, names: tuple[str, ...], gap: int | None) -> tuple[int, ...]:
    if gap is None:
        return (0,) * len(names)
    shifts: list[int] = [0]
    for before, name in itertools.pairwise(names):
        if not of(model, before).records or not of(model, name).records:
            raise Impossible
        shifts.append(of(model, before).records[-1][0] + shifts[-1] + gap - of(model, name).records[0][0])
    return tuple(shifts)


CHANGES: dict[str, Any] = {
    "drop": lambda model, name: {**model, name: replace(of(model, name), dropped=True)},
    "undrop": lambda model, name: {**model, name: replace(of(model, name), dropped=False)},
    "set_static": lambda model, name, key, value: {
        **model, name: replace(of(model, name), static={**of(model, name).static, key: value})
    },
    "trim": trim,
    "split": split,
    "concat": concat,
}  # fmt: skip


class EditMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        shutil.copytree(prepared(), self.root, dirs_exist_ok=True)
        self.edits: list[tuple[str, tuple[Any, ...]] | None] = []
        self.lines = 0
        self.seqs: list[int] = []

    def teardown(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def model(self) -> Model:
        return replayed(self.edits)

    def attempt(self, op: str, arguments: tuple[Any, ...], call: Any, *, dry: bool) -> None:
        """Make an edit; the model says whether it must be refused."""
        try:
            after = CHANGES[op](self.model, *arguments)
        except Impossible:
            with pytest.raises(REFUSED):
                call(dry_run=dry)
            return
        effect = call(dry_run=dry)
        assert (effect.seq is None) == dry
        shown = {entry.id for entry in effect.after}
        assert shown <= set(after)
        if not dry:
            self.lines += 1
            assert effect.seq == self.lines
            self.seqs.append(effect.seq)
            self.edits.append((op, arguments))

    def name(self, number: int) -> str:
        names = [*self.model, "000000000077"]
        return names[number % len(names)]

    @rule(number=st.integers(0, 9), dry=st.booleans(), op=st.sampled_from(["drop", "undrop"]))
    def drop_or_undrop(self, number: int, dry: bool, op: str) -> None:
        name = self.name(number)
        call = getattr(wd.LocalDataset(self.root).edits, op)
        self.attempt(op, (name,), lambda dry_run: call(name, dry_run=dry_run), dry=dry)

    @rule(
        number=st.integers(0, 9),
        key=st.sampled_from(["number", "note"]),
        value=st.integers(),
        dry=st.booleans(),
    )
    def set_static(self, number: int, key: str, value: int, dry: bool) -> None:
        name = self.name(number)
        call = wd.LocalDataset(self.root).edits.set_static
        self.attempt(
            "set_static", (name, key, value), lambda dry_run: call(name, key, value, dry_run=dry_run), dry=dry
        )

    @rule(number=st.integers(0, 9), start=TIMES, end=TIMES, dry=st.booleans())
    def trim(self, number: int, start: int | None, end: int | None, dry: bool) -> None:
        name = self.name(number)
        call = wd.LocalDataset(self.root).edits.trim
        self.attempt(
            "trim", (name, start, end), lambda dry_run: call(name, start, end, dry_run=dry_run), dry=dry
        )

    @rule(number=st.integers(0, 9), at=st.integers(-10, 310), dry=st.booleans())
    def split(self, number: int, at: int, dry: bool) -> None:
        name = self.name(number)
        call = wd.LocalDataset(self.root).edits.split
        self.attempt("split", (name, at), lambda dry_run: call(name, at, dry_run=dry_run), dry=dry)

    @rule(
        numbers=st.lists(st.integers(0, 9), min_size=1, max_size=3),
        gap=st.sampled_from([None, 5, 0]),
        dry=st.booleans(),
    )
    def concat(self, numbers: list[int], gap: int | None, dry: bool) -> None:
        names = tuple(self.name(number) for number in numbers)
        edits = wd.LocalDataset(self.root).edits
        try:
            shifts = shifts_of(self.model, names, gap)
        except Impossible:
            with pytest.raises(REFUSED):
                edits.concat(names, gap_ns=gap, dry_run=dry)
            return
        self.attempt(
            "concat",
            (names, shifts),
            lambda dry_run: edits.concat(names, gap_ns=gap, dry_run=dry_run),
            dry=dry,
        )

    @precondition(lambda self: self.seqs)
    @rule(which=st.one_of(st.none(), st.integers(0, 20)), dry=st.booleans())
    def undo(self, which: int | None, dry: bool) -> None:
        open_ones = [n for n, edit in enumerate(self.edits) if edit is not None]
        edits = wd.LocalDataset(self.root).edits
        if not open_ones:
            with pytest.raises(ValueError, match="no edit"):
                edits.undo()
            return
        taken = open_ones[-1] if which is None else open_ones[which % len(open_ones)]
        left = [None if n == taken else edit for n, edit in enumerate(self.edits)]
        seq = None if which is None else self.seqs[taken]
        try:
            replayed(left)
        except Impossible:
            with pytest.raises(REFUSED):
                edits.undo(seq, dry_run=dry)
            return
        edits.undo(seq, dry_run=dry)
        if not dry:
            self.lines += 1
            self.edits = left

    @invariant()
    def readers_see_the_model(self) -> None:
        dataset = wd.LocalDataset(self.root)
        expected = {name: shown for name, shown in self.model.items() if not shown.dropped}
        assert dataset.ids == list(expected)
        for episode, shown in zip(dataset, expected.values(), strict=True):
            signal = episode["x"]
            assert list(zip(signal.timestamps.tolist(), signal.values().tolist(), strict=True)) == list(
                shown.records
            )
            assert episode.static == shown.static
        assert len(dataset.edits.log) == self.lines
        assert len(wd.LocalDataset(self.root, edited=False)) == RECORDINGS


_PREPARED: list[Path] = []


def prepared() -> Path:
    """Three recordings, made once."""
    if not _PREPARED:
        root = Path(tempfile.mkdtemp())
        for shown in recorded().values():
            with wd.LocalDatasetWriter(root, durability="none").new_episode() as writer:
                writer.set_static("number", shown.static["number"])
                for ts_ns, value in shown.records:
                    writer.append("x", np.int64(value), ts_ns)
        _PREPARED.append(root)
    return _PREPARED[0]


TestEdits = EditMachine.TestCase
TestEdits.settings = settings(
    max_examples=enough_examples(30),
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.generate, Phase.target, Phase.shrink),
)
