"""No test judges time, rate or CPU: a busy machine would fail it. `make bench` judges those, on a quiet one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import every, mentions, parsed
from tests.conftest import ROOT
from tests.waiting import LIMIT_S

TESTS = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").glob("test_*.py")])
CLOCKS = {
    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "process_time_ns",
    "thread_time", "thread_time_ns", "clock_gettime", "clock_gettime_ns", "default_timer", "ru_utime", "ru_stime",
}  # fmt: skip
QUALIFIED = {"time.time", "time.time_ns", "os.times", "timeit.timeit", "measure.seconds", "measure.race"}
MAY_LOOK_AT_THE_CLOCK = {"tests/waiting.py", "tests/servers.py"}
"""Waiting for somebody else, and a link that is slow on purpose."""

POLLS = {"tests/clouds.py", "tests/servers.py"}
"""What did not answer in time is asked again there."""

MEASURED = re.compile(r"(^|_)(s|ms|us|ns|qps|p\d\d|rate|ratio|speed|cpu|seconds|elapsed|took|latency)$")
"""How the figures of a benchmark that depend on the machine are called."""


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def clocks(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a clock is looked at, by whatever name it was imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            whole = f"{node.value.id}.{node.attr}" if isinstance(node.value, ast.Name) else ""
            if node.attr in CLOCKS or whole in QUALIFIED:
                yield node.lineno, node.attr
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if alias.name in CLOCKS or f"{node.module}.{alias.name}" in QUALIFIED:
                    yield node.lineno, alias.name


def judged_figures(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Comparisons by size inside an assertion, of something that is called like a measured figure."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            for compare in ast.walk(node.test):
                if isinstance(compare, ast.Compare) and any(
                    isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in compare.ops
                ):
                    names = filter(None, map(_name, ast.walk(compare)))
                    yield from ((node.lineno, name) for name in names if MEASURED.search(name))


WAITS = ("wait", "join", "result", "communicate", "acquire")
LIMITED = re.compile(rf"timeout=\d|\.({'|'.join(WAITS)})\(\d")
"""How such a wait looks: most files have none, and their syntax need not be looked at."""


def impatient_waits(tree: ast.AST) -> Iterator[tuple[int, float]]:
    """Where something is given a few seconds to happen; less than one is for what shall not happen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            limits = [each.value for each in node.keywords if each.arg == "timeout"]
            limits += node.args[:1] if method in WAITS else []
            for limit in limits:
                if (
                    isinstance(limit, ast.Constant)
                    and isinstance(limit.value, int | float)
                    and 1 < limit.value < LIMIT_S
                ):
                    yield node.lineno, limit.value


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@every(TESTS)
def test_no_test_looks_at_the_clock(path: Path) -> None:
    words = {*CLOCKS, *(name.rpartition(".")[2] for name in QUALIFIED)}
    if relative(path) not in MAY_LOOK_AT_THE_CLOCK and mentions(path, words):
        found = list(clocks(parsed(path)))
        assert found == [], "wait with tests/waiting.py, measure in bench/versus"


@every(TESTS)
def test_what_is_waited_for_may_take_its_time(path: Path) -> None:
    if relative(path) not in POLLS and LIMITED.search(path.read_text()):
        assert list(impatient_waits(parsed(path))) == [], "wait for LIMIT_S of tests/waiting.py"


@every([p for p in TESTS if relative(p).startswith("bench/")])
def test_no_shrunk_benchmark_judges_a_figure_of_the_machine(path: Path) -> None:
    assert list(judged_figures(parsed(path))) == [], "this is judged by `make bench`"


@pytest.mark.parametrize(
    "code",
    [
        "import time\nassert time.perf_counter() - start < 1",
        "from time import monotonic as now\nassert now() < deadline",
        "from time import time\nassert time() < deadline",
        "assert time.time() - began < 5",
        "assert measure.seconds(work) < 1",
        "before = getrusage(0).ru_utime",
    ],
)
def test_the_rule_sees_a_clock(code: str) -> None:
    assert list(clocks(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "assert found['close_s'] < 0.5",
        "assert built.rate > 100_000",
        "assert found['time_us']['p50'] < 6",
        "assert all(row['qps'] >= 3 for row in rows)",
        "assert min(ratio) < 1.5",
    ],
)
def test_the_rule_sees_a_judged_figure(code: str) -> None:
    assert list(judged_figures(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    ["thread.join(60)", "subprocess.run(command, timeout=20)", "pool.submit(work).result(timeout=5.0)"],
)
def test_the_rule_sees_an_impatient_wait(code: str) -> None:
    assert list(impatient_waits(ast.parse(code)))
    assert not list(
        impatient_waits(ast.parse(code.replace("60", "LIMIT_S").replace("20", "0.2").replace("5.0", "600")))
    )
