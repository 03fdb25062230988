"""The adapter of Ray: plans as its data sources, stored episodes as its sink, work on episodes as its tasks."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import ray
import ray.data
from ray import cloudpickle
from ray.data.block import BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask
from ray.exceptions import RayError

from warpdata.catalog.build.episodes import StoredEpisode
from warpdata.episodes.collection.jobs import Called
from warpdata.episodes.record.threads import interrupts_wait
from warpdata.errors import DatasetError, UnavailableError, WarpError
from warpdata.ray.planning import Plan, PlannedRead, WindowsPlan

R = TypeVar("R")

_AHEAD = 2
"""Tasks per processor that are handed out before their turn."""

_CONNECT_S = 10.0
"""Timeout for a connection to the cluster."""

_WORKER_S = 120.0
"""A cluster in which no process begins to work for so long cannot work; Ray itself would wait for ever."""


class PlannedDatasource(Datasource):  # type: ignore[misc]
    """A plan as a data source of Ray, with column and row filters pushed down."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._projection_map: dict[str, str] | None = None
        self._plan = plan
        self._tasks: dict[int, list[PlannedRead]] = {}

    def get_name(self) -> str:
        """The version that is read."""
        return f"({self._plan.name})"

    def supports_projection_pushdown(self) -> bool:
        """Unused columns are not read."""
        return True

    def supports_predicate_pushdown(self) -> bool:
        """Filtered rows are not read if the plan supports it."""
        return not isinstance(self._plan, WindowsPlan)

    def apply_projection(self, projection_map: dict[str, str] | None) -> PlannedDatasource:
        """The source with fewer columns."""
        source: PlannedDatasource = super().apply_projection(projection_map)
        if columns := source.get_projection_map():
            source._plan, source._tasks = self._plan.select(list(columns)), {}
        return source

    def apply_predicate(self, predicate_expr: Any) -> PlannedDatasource:
        """The source with fewer rows."""
        source: PlannedDatasource = super().apply_predicate(predicate_expr)
        assert not isinstance(self._plan, WindowsPlan)
        source._plan, source._tasks = self._plan.where(predicate_expr.to_pyarrow()), {}
        return source

    def estimate_inmemory_data_size(self) -> int:
        """The size in the manifest."""
        return self._plan.size_bytes

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """The tasks of the plan; Ray calls it several times and gets the same tasks."""
        del data_context
        if parallelism not in self._tasks:
            self._tasks[parallelism] = self._plan.tasks(parallelism)
        return [
            ReadTask(
                partial(_blocks, task.read),
                BlockMetadata(
                    num_rows=task.rows, size_bytes=task.size_bytes, input_files=None, exec_stats=None
                ),
                schema=self._plan.schema,
                per_task_row_limit=per_task_row_limit,
            )
            for task in self._tasks[parallelism]
        ]


def _blocks(read: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    for block in read():
        yield BlockAccessor.batch_to_block(block) if isinstance(block, dict) else block


def read(plan: Plan, tasks: int | None) -> Any:
    """A Ray dataset that reads a plan."""
    return ray.data.read_datasource(PlannedDatasource(plan), override_num_blocks=tasks)


def is_dataset(value: object) -> bool:
    """Whether something is a dataset of Ray."""
    return isinstance(value, ray.data.Dataset)


class StoringDatasink(Datasink[list[StoredEpisode]]):  # type: ignore[misc]
    """Workers store episodes; `stored` lists them for the caller."""

    def __init__(self, store: Callable[[Iterable[Mapping[str, Any]]], list[StoredEpisode]]) -> None:
        self._store = store
        self.stored: list[StoredEpisode] | None = None
        self.rows = 0

    def get_name(self) -> str:
        """The name of the tasks."""
        return "Store episodes"

    def write(self, blocks: Iterable[Any], ctx: Any) -> list[StoredEpisode]:
        """Store the episodes of some blocks; however often Ray does that, the blobs are the same."""
        del ctx
        return self._store(row for block in blocks for row in BlockAccessor.for_block(block).iter_rows(True))

    def on_write_complete(self, write_result: Any) -> None:
        """Everything that was stored, in any order."""
        self.rows = int(write_result.num_rows)
        self.stored = [episode for part in write_result.write_returns for episode in part]


def stored_by(
    dataset: Any,
    store: Callable[[Iterable[Mapping[str, Any]]], list[StoredEpisode]],
    *,
    expect: int | Collection[str] | None,
    concurrency: int | None,
) -> list[StoredEpisode]:
    """Store every row of a Ray dataset; unless all of them were, an error."""
    if dataset.context.max_errored_blocks != 0 and expect is None:
        fact = "Ray may drop blocks silently (DataContext.max_errored_blocks is not 0)"
        hint = "Set it to 0, or pass expect= with the number or the ids of the episodes."
        raise DatasetError(fact, hint=hint)
    sink, context = StoringDatasink(store), dataset.context
    is_wrapped = context.raise_original_map_exception
    context.raise_original_map_exception = True  # or what was wrong with an episode would not come back here
    try:
        with _quiet_console():
            dataset.write_datasink(sink, concurrency=concurrency)
    except RayError as error:
        raise own_error(error) or error from None
    finally:
        context.raise_original_map_exception = is_wrapped
    stored = sink.stored or []
    _check_counts(stored, sink.rows, expect)
    return stored


@contextlib.contextmanager
def _quiet_console() -> Iterator[None]:
    """Keep the tracebacks that Ray logs off the terminal: the error is raised, and Ray's log file has it whole."""
    handlers = logging.getLogger("ray.data").handlers
    consoles = [each for each in handlers if isinstance(each, logging.StreamHandler)]

    def is_shown(record: logging.LogRecord) -> bool:
        return record.levelno < logging.ERROR

    for console in consoles:
        console.addFilter(is_shown)
    try:
        yield
    finally:
        for console in consoles:
            console.removeFilter(is_shown)


def _check_counts(stored: Sequence[StoredEpisode], rows: int, expect: int | Collection[str] | None) -> None:
    ids = {episode.id for episode in stored}  # rows would count one that came twice for one that is missing
    fact = ""
    if len(stored) != rows:
        fact = f"{rows} rows were written, and {len(stored)} episodes stored"
    elif isinstance(expect, int):
        fact = (
            "" if len(ids) == expect else f"{len(ids)} episodes came to be stored, and {expect} were expected"
        )
    elif expect is not None and (odd := sorted(ids ^ set(map(str, expect)))):
        missing = sum(name not in ids for name in odd)
        some = ", ".join(odd[:5]) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
        fact = f"{missing} expected episodes are missing and {len(odd) - missing} are not expected: {some}"
    if fact:
        hint = "Nothing was published. Run it again: what is stored already is used again."
        raise DatasetError(fact, hint=hint)


def own_error(error: BaseException | None) -> Exception | None:
    """The error of ours, or the wrong argument or value, among those that Ray put around it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        inner = getattr(error, "cause", None)
        if type(error).__module__.startswith("warpdata.") and isinstance(error, WarpError):
            return error
        if isinstance(error, TypeError | ValueError) and type(error).__module__ == "builtins":
            return error
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return None


class RayRunner:
    """Runs work on a Ray cluster: the one at `address`, that of the environment, or a new one on this machine."""

    def __init__(self, address: str | None = None) -> None:
        self._address = address or None

    def run(self, work: Callable[[int], R], positions: Sequence[int]) -> Iterator[tuple[int, R]]:
        """The result of `work` for each position, as it comes in; lost workers are replaced by Ray."""
        was_running = ray.is_initialized()
        if not was_running:
            _connect(self._address)
        try:
            # A process of the cluster must begin to work; it needs no processor, which others may have taken.
            if not ray.wait([_nothing.remote()], timeout=_WORKER_S)[0]:
                fact = f"no process of the Ray cluster began to work within {_WORKER_S:.0f} s"
                hint = "Run it when the machine has less to do, with --jobs N instead, or on another cluster."
                raise UnavailableError(fact, hint=hint)
            with _carried(work):
                boxed = [ray.put(work)]
            yield from _run(boxed, positions)
        finally:
            if not was_running:
                with interrupts_wait():
                    ray.shutdown()


def _connect(address: str | None) -> None:
    """Join the cluster at an address, or start one here; Ray itself takes minutes to find out that none is there."""
    try:
        host, _, port = (address or "").removeprefix("ray://").rpartition(":")
        if host and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        with interrupts_wait():  # half a cluster would stay behind
            ray.init(address, log_to_driver=False, logging_level="warning")
    except KeyboardInterrupt:
        with interrupts_wait():
            ray.shutdown()
        raise
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        hint = "Start one there with `ray start --head`, or name no address to have one on this machine."
        where = "" if address is None else f" at {address}"
        raise WarpError(f"there is no Ray cluster to work on{where} ({error})", hint=hint) from None


@contextlib.contextmanager
def _carried(work: object) -> Iterator[None]:
    """Send the module of the caller's function along, unless it is installed; nodes need what it imports."""
    called = [value for value in getattr(work, "__dict__", {}).values() if isinstance(value, Called)]
    names = {str(getattr(c.given, "__module__", None) or type(c.given).__module__) for c in called}
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    own = [
        module
        for module in (sys.modules[name] for name in names if name in sys.modules and name != "__main__")
        if not module.__name__.startswith("warpdata.")
        and (place := getattr(module, "__file__", None))
        and not any(os.path.realpath(place).startswith(f"{folder}{os.sep}") for folder in installed)
    ]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def _run(boxed: list[Any], positions: Sequence[int]) -> Iterator[tuple[int, Any]]:
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
    rest, running = iter(positions), {}
    try:
        while True:
            for position in rest:
                running[_work.remote(boxed, position)] = position
                if len(running) >= _AHEAD * processors:
                    break
            if not running:
                return
            for done in ray.wait(list(running))[0]:
                position = running.pop(done)
                try:
                    result = ray.get(done)
                except RayError as error:
                    raise own_error(error) or error from None
                yield position, result
    finally:
        for task in running:
            ray.cancel(task)


_KEPT: dict[str, Callable[[int], Any]] = {}
"""The work of this process, unpacked once: it keeps its source open from one position to the next."""


def _at(boxed: list[Any], position: int) -> Any:
    name = boxed[0].hex()
    if name not in _KEPT:
        _KEPT.clear()
        _KEPT[name] = ray.get(boxed[0])
    return _KEPT[name](position)


_work = ray.remote(_at)
_nothing = ray.remote(num_cpus=0)(lambda: None)
