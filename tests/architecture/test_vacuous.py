"""Every test can fail: it asserts something, or asks a helper of the tests that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.sources import parsed, statements
from tests.conftest import ROOT

TESTS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("test_*.py")])
CHECKS = {"raises", "warns", "fail", "suppress", "exec", "assert_allclose"}
"""Calls that fail a test. What suppresses an error of ours fails by any other, and so does code that runs."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in statements(tree) if isinstance(node, Function))


def called(node: ast.AST) -> set[str]:
    """The names of what is called, as functions or as methods."""
    calls = (each.func for each in ast.walk(node) if isinstance(each, ast.Call))
    return {each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in calls}


def is_certain(test: ast.expr) -> bool:
    """Whether it holds whatever the code does: a constant, or a name compared with itself."""
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        return all(isinstance(each, ast.Name) for each in sides) and len({*map(ast.dump, sides)}) == 1
    if isinstance(test, ast.BoolOp):
        return isinstance(test.op, ast.Or) and any(map(is_certain, test.values))
    return isinstance(test, ast.Constant | ast.Tuple) and bool(getattr(test, "value", True))


def checks(node: ast.AST) -> bool:
    """Whether it asserts something itself, or runs a program that may not fail."""
    for each in ast.walk(node):
        if isinstance(each, ast.Raise) or (isinstance(each, ast.Assert) and not is_certain(each.test)):
            return True
        if isinstance(each, ast.Try) and not any(map(_takes_all, each.handlers)):
            return True
        if isinstance(each, ast.keyword) and each.arg == "check":
            return True
    return bool(called(node) & CHECKS)


def _takes_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")


def vacuous(trees: list[ast.Module]) -> list[str]:
    """The tests that neither check nor call a function of these modules that does, however far away."""
    silent: list[tuple[str, set[str]]] = []
    checking: set[str] = set()
    for function in (each for tree in trees for each in functions(tree)):
        if checks(function):
            checking.add(function.name)
        else:
            silent.append((function.name, called(function)))
    while more := {name for name, calls in silent if calls & checking} - checking:
        checking |= more
    return [name for name, calls in silent if name.startswith("test") and not calls & checking]


def test_every_test_can_fail() -> None:
    assert vacuous([parsed(path) for path in TESTS]) == []


def test_no_assertion_is_certain() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in TESTS
        for node in statements(parsed(path))
        if isinstance(node, ast.Assert) and is_certain(node.test)
    ]
    assert found == []


@pytest.mark.parametrize(
    "body",
    [
        "work()", "assert True", "assert x == x", "assert done or True", "assert (x, 'told')",
        "try:\n  work()\n except Exception:\n  pass", "helper()",
    ],
)  # fmt: skip
def test_the_rule_sees_a_test_that_cannot_fail(body: str) -> None:
    code = f"def helper():\n work()\ndef test_it():\n {body}"
    assert vacuous([ast.parse(code)]) == ["test_it"]


@pytest.mark.parametrize("body", ["assert x", "helper()", "with pytest.raises(KeyError):\n  work()"])
def test_the_rule_lets_a_test_that_can_fail_be(body: str) -> None:
    code = f"def helper():\n assert done()\ndef test_it():\n {body}"
    assert vacuous([ast.parse(code)]) == []
