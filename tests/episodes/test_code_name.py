"""The identity of a function covers its helpers, globals and closures, and is the same in every process."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from typing import Any

import pytest

from warpdata.episodes.collection.jobs import code_name

CODE = """
import numpy as np
import helpers
SCALE = {scale}
TABLE = np.array([1.0, {entry}])
WORDS = {{"a": [1, {word}]}}

def helper(x):
    return inner(x) * {factor}

def inner(x):
    return x + {shift} if x < 100 else helper(x - 1)

class Model:
    size = {size}
    def __init__(self):
        self.gain = {gain}
    def __call__(self, x):
        return helper(x) * self.gain

def embed(x):
    return helper(x) * SCALE + TABLE[0] + WORDS["a"][0] + np.sin(x) + helpers.outside(x)

def other(x):
    return x
"""
VALUES = {"scale": 2.0, "entry": 3.0, "word": 5, "factor": 7, "shift": 11, "size": 13, "gain": 17}


def loaded(monkeypatch: pytest.MonkeyPatch, outside: int = 1, **changed: Any) -> types.ModuleType:
    helpers = types.ModuleType("helpers")
    exec(f"def outside(x):\n    return x + {outside}", vars(helpers))
    monkeypatch.setitem(sys.modules, "helpers", helpers)
    module = types.ModuleType("user_module")
    exec(CODE.format(**{**VALUES, **changed}), vars(module))
    return module


@pytest.mark.parametrize("changed", ["scale", "entry", "word", "factor", "shift"])
def test_what_a_function_reads_is_part_of_it(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    one, again = loaded(monkeypatch), loaded(monkeypatch)
    edited = loaded(monkeypatch, **{changed: 99})
    assert code_name(one.embed) == code_name(again.embed) != code_name(edited.embed)
    assert code_name(one.other) == code_name(edited.other)


@pytest.mark.parametrize("changed", ["size", "gain", "factor"])
def test_what_an_object_holds_is_part_of_it(monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    one, edited = loaded(monkeypatch), loaded(monkeypatch, **{changed: 99})
    assert code_name(one.Model()) == code_name(loaded(monkeypatch).Model()) != code_name(edited.Model())
    assert code_name(one.Model) != code_name(edited.Model)


def test_helpers_of_other_modules_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    one, edited = loaded(monkeypatch), loaded(monkeypatch, outside=2)
    assert code_name(one.embed) != code_name(edited.embed)
    assert code_name(functools.partial(one.other, 1)) != code_name(functools.partial(one.other, 2))


def test_the_name_is_the_same_in_every_process() -> None:
    code = "from tests.episodes.test_code_name import *; print(code_name(here))"
    done = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in "ab"]
    assert {each.stdout for each in done} == {code_name(here) + "\n"}


WORDS = {"one", "two", "three"}
THING = object()


def here(x: Any) -> Any:
    return x in {"one", "two", "three"}, WORDS, THING, loaded
