"""`wd.ray`: episodes and tables as Ray datasets, and Ray datasets as versions. Ray is loaded when a verb needs it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack

from warpdata.catalog.access import access_options, catalog_tuple, parse_size
from warpdata.catalog.build.builder import DatasetBuilder
from warpdata.catalog.build.episodes import CHUNK_BYTES, EpisodeStore
from warpdata.catalog.dataset import Dataset, open_recipe
from warpdata.catalog.publish.publish import Published, PublishKeywords, PublishOptions, Upload
from warpdata.catalog.table import Table
from warpdata.episodes.collection.jobs import Runner
from warpdata.errors import DatasetError, MissingExtraError, nearest
from warpdata.ordering.epochs import Tail
from warpdata.ray.planning import (
    KEY,
    Plan,
    TablePlan,
    WindowShape,
    changed_row,
    plan_episodes,
    plan_windows,
    store_rows,
)
from warpdata.settings import Settings
from warpdata.timeline.episode import Episode

Unit = Literal["episode", "window"]
UNITS: tuple[Unit, ...] = ("episode", "window")


def read_episodes(
    name: str | Dataset,
    *,
    where: str | None = None,
    unit: Unit = "episode",
    columns: Sequence[str] = (),
    window: int | None = None,
    stride: int | None = None,
    tail: Tail = "drop",
    signals: Sequence[str] | None = None,
    artifact: str | None = None,
    catalog: str | os.PathLike[str] | None = None,
    tasks: int | None = None,
) -> Any:
    """The episodes of a published dataset as a Ray dataset, pinned to the present version.

    `unit="episode"`: rows of `episode_id`, a reference `episode` that `wd.ray.open(row)` opens, and the facts that
    `columns` names. `unit="window"`: rows of `window` steps, every `stride` steps, with `episode_id`, `start`, `ts_ns`
    and for each signal its values and which of them are valid. `where` is a SQL condition on the facts of episodes;
    `tasks` is how many read tasks there are at least, instead of as many as make about a second of work each.
    """
    if unit not in UNITS:
        raise ValueError(f"unit is 'episode' or 'window', not {unit!r}.{nearest(unit, UNITS)}")
    windows = None
    if unit == "window":
        if window is None:
            raise ValueError("window= is missing: the number of steps of a window")
        if columns:
            raise ValueError("columns are facts of whole episodes; windows have signals=")
        chosen = None if signals is None else tuple(signals)
        windows = WindowShape(window, window if stride is None else stride, tail, chosen)
    elif window is not None or stride is not None or signals is not None:
        raise ValueError("window, stride and signals are for unit='window'")
    adapter = _adapter()
    with _opened(name, catalog) as dataset:
        plan: Plan
        if windows is None:
            plan = plan_episodes(dataset, where=where, columns=tuple(columns), artifact=artifact)
        else:
            plan = plan_windows(dataset, windows, where=where, artifact=artifact)
    return adapter.read(plan, tasks)


def read_table(table: Table) -> Any:
    """A view of a table of a published dataset as a Ray dataset; `ds.to_ray(...)` is the same."""
    return _adapter().read(TablePlan(table), None)


def map_episodes(
    source: Any,
    fn: Callable[[Episode], Any],
    *,
    where: str | None = None,
    artifact: str | None = None,
    catalog: str | os.PathLike[str] | None = None,
    tasks: int | None = None,
    replace: bool = False,
    **ray_options: Any,
) -> Any:
    """A Ray dataset of what `fn(episode)` makes of every episode, to be published.

    The source is the name of a published dataset, a Dataset, or a Ray dataset from `read_episodes`. `fn` gives an
    Episode, a recording (or its path), or a dict of arrays: signals with one row per step, which are added to
    the episode; a name that was recorded is refused unless `replace`. Its id stays. A class is made once per worker
    and then called. Further options are those of
    `ray.data.Dataset.map` (`concurrency`, `num_gpus`, …).
    """
    adapter = _adapter()
    if adapter.is_dataset(source):
        if where is not None or artifact is not None or catalog is not None or tasks is not None:
            raise ValueError("where, artifact, catalog and tasks are for names; a Ray dataset has its rows")
        rows = source
    else:
        rows = read_episodes(source, where=where, artifact=artifact, catalog=catalog, tasks=tasks)
    change = _changing(fn, replace) if isinstance(fn, type) else partial(changed_row, fn, replace=replace)
    return rows.map(change, **ray_options)


def _changing(kind: type, replace: bool) -> type:
    """A class for Ray's actors around the caller's class."""

    class Changing:
        def __init__(self, *given: Any, **options: Any) -> None:
            self._change = kind(*given, **options)

        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return changed_row(self._change, row, replace=replace)

    return Changing


def publish(
    dataset: Any,
    name: str,
    *,
    key: str = KEY,
    catalog: str | os.PathLike[str] | None = None,
    artifact: str = "episodes",
    expect: int | Collection[str] | None = None,
    extend: bool = False,
    chunk_bytes: str | int = CHUNK_BYTES,
    metadata: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    **keywords: Unpack[PublishKeywords],
) -> Published:
    """Publish the episodes of a Ray dataset as a version; what it is does not depend on the cluster or on retries.

    Workers store the episodes as blobs named by their content; this process then publishes once, in the order of the
    keys. A failure before that publishes nothing, and a second run uses what is stored. One key with two contents
    is a ConflictError. `expect`: how many episodes, or which keys, there must be; without it, Ray must not be allowed
    to drop blocks. `extend` adds to the newest version; the rest is as for `DatasetBuilder.publish`.
    """
    adapter = _adapter()
    if not adapter.is_dataset(dataset):
        hint = "rows come from wd.ray.read_episodes, wd.ray.map_episodes or wd.ray.row"
        raise TypeError(f"a {type(dataset).__name__} is no Ray dataset to publish: {hint}")
    PublishOptions(**keywords)  # a wrong option is an error before anything is stored
    with DatasetBuilder(name, catalog=catalog) as builder:
        EpisodeStore(builder.catalog, artifact).close()  # a catalog that cannot be written is found out now
        size = parse_size(chunk_bytes)
        store = partial(store_rows, key=key, catalog=builder.catalog, artifact=artifact, chunk_bytes=size)
        stored = adapter.stored_by(dataset, store, expect=expect, concurrency=concurrency)
        if not stored and expect != 0:
            hint = "Check the filter of the dataset, or pass expect=0 to publish a version without episodes."
            raise DatasetError("there are no episodes to publish", hint=hint)
        if extend:
            builder.extend()
        builder.add_stored_episodes(artifact, stored).describe(**(metadata or {}))
        published = builder.publish(**keywords)
    sizes = {blob.hash: blob.byte_size for episode in stored for blob in episode.blobs}
    sent = {sha256 for episode in stored for sha256 in episode.sent}
    return published.with_sent([Upload(sha256, sizes[sha256]) for sha256 in sent])


def runner(address: str | None = None) -> Runner:
    """Runs the work of `warp import` and `warp check` on a cluster: the one at an address, or a new one here."""
    ray_runner: Runner = _adapter().RayRunner(address)
    return ray_runner


def _opened(
    name: str | Dataset, catalog: str | os.PathLike[str] | None
) -> contextlib.AbstractContextManager[Dataset]:
    """A dataset by name, closed after use; one that is the caller's stays open."""
    if isinstance(name, Dataset):
        if catalog is not None:
            raise ValueError("a dataset that is open has its catalog already")
        return contextlib.nullcontext(name)
    if not isinstance(name, str):
        raise TypeError(f"a {type(name).__name__} is no published dataset: give its name, or a wd.Dataset")
    given = access_options(Settings.from_env(), catalogs=catalog_tuple(catalog))
    return open_recipe({"name": name, "catalogs": given.catalogs})


def _adapter() -> Any:
    try:
        from warpdata.ray import adapter
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise MissingExtraError.for_extra("ray", "ray") from None
    return adapter
