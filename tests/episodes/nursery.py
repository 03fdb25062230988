"""A small process that forks children for tests that kill them: forks of the big test process are slow and unclean."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tests.conftest import ROOT

LIMIT_S = 240


def run_small(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of the tests as a program of its own; what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Nursery:
    """A process that has loaded everything and does nothing but fork children, one at a time, so forks stay clean.

    `shared` is memory that parent and child both see: `slots` numbers of 64 bits. When a child begins they are zero,
    but for the last ones, which hold what it was told.
    """

    def __init__(self, slots: int, work: Callable[[mmap.mmap], object]) -> None:
        self.shared = mmap.mmap(-1, 8 * slots)
        asked, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._serve(work, asked, answer)
        os.close(asked)
        os.close(answer)

    def child(self, *told: int) -> int:
        """The process id of a new child, which is reaped when it ends."""
        numbers = b"".join(each.to_bytes(8, "little") for each in told)
        self.shared[:] = bytes(len(self.shared) - len(numbers)) + numbers
        os.write(self._ask, b"x")
        return int.from_bytes(os.read(self._answers, 4), "little")

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._ask)
        os.close(self._answers)
        os.waitpid(self._pid, 0)

    def _serve(self, work: Callable[[mmap.mmap], object], asked: int, answer: int) -> None:
        os.close(self._ask)
        os.close(self._answers)
        while os.read(asked, 1):
            child = os.fork()
            if child == 0:
                try:
                    work(self.shared)
                except BaseException:  # noqa: BLE001 - a child never returns into the program of its parent
                    traceback.print_exc()
                finally:
                    os._exit(1)
            os.write(answer, child.to_bytes(4, "little"))
            os.waitpid(child, 0)
        os._exit(0)


def is_alive(pid: int) -> bool:
    """Whether a child has not been reaped yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
