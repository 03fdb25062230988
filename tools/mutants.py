"""A seeded sample of mutants over the package: `python -m tools.mutants --count 300 --seed 1 --out mutants.json`.

Each mutant is one small change of one module: another operator, constant or condition, or a dropped call. The
tests of its package run with `-x` in a copy of the tree; a mutant that no test notices has survived. The working tree
stays as it is.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/warpdata")
EXTRA_TESTS = {"_api": ["tests/test_addresses.py"], "(top)": ["tests/test_settings.py", "tests/architecture"]}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}


class Mutant(NamedTuple):
    """One change: a module, a line, a description, and the changed text."""

    module: str
    line: int
    change: str
    text: str


Edit = tuple[int, str, Callable[[], None]]
"""Line, description, and the function that changes the tree."""


def edits_of(tree: ast.Module) -> Iterator[Edit]:
    """Every possible change of a tree, outside of annotations and docstrings."""
    skipped = {id(node) for root in _unchecked(tree) for node in ast.walk(root)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        yield from _operator_edits(node)
        yield from _value_edits(node)
        yield from _statement_edits(node)


def _unchecked(tree: ast.Module) -> Iterator[ast.AST]:
    """Parts without behaviour: annotations, docstrings, blocks for type checkers."""
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(part := getattr(node, name, None), ast.AST):
                yield part
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield node


def _operator_edits(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
        other = SWAPS[type(node.op)]
        text = f"{type(node.op).__name__} -> {other.__name__}"
        yield node.lineno, text, lambda: setattr(node, "op", other())
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
        other = SWAPS[type(node.ops[0])]
        text = f"{type(node.ops[0]).__name__} -> {other.__name__}"
        yield node.lineno, text, lambda: setattr(node, "ops", [other()])


def _value_edits(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
        value = node.value
        changed: int = (not value) if isinstance(value, bool) else value + 1
        yield node.lineno, f"{value} -> {changed}", lambda: setattr(node, "value", changed)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield node.lineno, f"not ({ast.unparse(node.test)[:60]})", lambda: setattr(node, "test", negated)


def _statement_edits(node: ast.AST) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        text = f"dropped {ast.unparse(node.value)[:60]}"
        yield node.lineno, text, lambda: setattr(node, "value", ast.Constant(None))


def mutant_of(module: Path, rng: random.Random) -> Mutant | None:
    """One random mutant of a module; None if nothing in it can change."""
    tree = ast.parse((ROOT / module).read_text())
    edits = list(edits_of(tree))
    if not edits:
        return None
    number = rng.randrange(len(edits))
    changed = copy.deepcopy(tree)
    line, change, apply = list(edits_of(changed))[number]
    apply()
    return Mutant(module.as_posix(), line, change, ast.unparse(ast.fix_missing_locations(changed)))


def sample(count: int, seed: int, only: str | None = None) -> list[Mutant]:
    """Mutants of random modules, each chosen with a chance in proportion to its size."""
    modules = [path.relative_to(ROOT) for path in sorted((ROOT / SOURCE).rglob("*.py"))]
    modules = [path for path in modules if only is None or package_of(path) == only]
    sizes = [(ROOT / path).stat().st_size for path in modules]
    rng = random.Random(seed)
    mutants: list[Mutant] = []
    while len(mutants) < count:
        mutant = mutant_of(rng.choices(modules, sizes)[0], rng)
        if mutant is not None:
            mutants.append(mutant)
    return mutants


def package_of(module: Path) -> str:
    """The package of a module below src/warpdata, `(top)` for modules beside the packages."""
    parts = module.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "(top)"


def tests_of(module: Path) -> list[str]:
    """Test folders of a module: that of its package, and of its format."""
    parts = module.relative_to(SOURCE).parts
    wanted = [f"tests/{'/'.join(parts[:depth])}" for depth in (2, 1) if len(parts) > depth]
    existing = [folder for folder in wanted if (ROOT / folder).is_dir()][:1]
    return [*existing, *EXTRA_TESTS.get(package_of(module), [])] or ["tests/cli"]


def is_killed(mutant: Mutant, tree: Path, timeout_s: float) -> bool:
    """Whether the tests of a mutant's package fail, hang or crash with it."""
    path = tree / mutant.module
    original = path.read_text()
    path.write_text(mutant.text)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", *tests_of(Path(mutant.module))]
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=timeout_s)
        return done.returncode != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)


def main() -> None:
    """Run the sample and write one row per mutant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--package", help="only modules of this package, such as ordering")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds per mutant")
    parser.add_argument("--out", type=Path, help="write the report there instead of printing it")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(".git", ".venv", "node_modules", "__pycache__", ".*_cache", "build")
        shutil.copytree(ROOT, tree, ignore=ignored, symlinks=True)
        for mutant in sample(args.count, args.seed, args.package):
            began = time.monotonic()
            killed = is_killed(mutant, tree, args.timeout)
            took_s = round(time.monotonic() - began, 1)
            rows.append({**mutant._asdict(), "text": None, "killed": killed, "seconds": took_s})
            verdict = "killed" if killed else "SURVIVED"
            print(f"{verdict} {mutant.module}:{mutant.line} {mutant.change}", file=sys.stderr, flush=True)
    killed_count = sum(row["killed"] is True for row in rows)
    report = {"seed": args.seed, "mutants": len(rows), "killed": killed_count, "rows": rows}
    text = json.dumps(report, indent=1)
    print(text) if args.out is None else args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
