"""Vectors of moments of episodes, kept where searches find them."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from warpdata._api import address_kind, address_text, is_published, runner_for
from warpdata._api import dataset as open_published
from warpdata._api.importing import any_episodes
from warpdata.errors import BadMagicError, suggests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from warpdata.catalog.dataset import Dataset
    from warpdata.catalog.publish.publish import PublishOptions
    from warpdata.convert.exporting import Progress as Counted
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.search.moments.embedders import Embedder
    from warpdata.search.moments.embedding import EmbedJob, EmbedReport, IndexChoice
    from warpdata.search.moments.moments import Per


@suggests
def embed(
    source: str | os.PathLike[str] | Dataset | Episodes,
    embedder: Embedder | str | Mapping[str, float] = "state",
    *,
    name: str | None = None,
    per: Per = "step",
    rate_hz: float | None = None,
    clock: str | None = None,
    max_steps: int | None = None,
    window: int = 32,
    stride: int = 16,
    window_s: float | None = None,
    stride_s: float | None = None,
    signals: str | Sequence[str] | None = None,
    batch_size: int | None = None,
    revision: str | None = None,
    metric: str | None = None,
    where: str | None = None,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    index: IndexChoice = "auto",
    catalog: str | os.PathLike[str] | None = None,
    jobs: int = 1,
    ray: str | bool | None = None,
    message: str = "",
    tags: str | Sequence[str] = (),
    sign_key: str | os.PathLike[str] | None = None,
    retries: int = 20,
    progress: Counted | None = None,
) -> EmbedReport:
    """Compute vectors of moments of episodes and keep them where searches find them: beside a root, or published.

    `embedder` turns an `Observation` (of a step, the mean of a window or of a whole episode, one frame) into a vector:
    a function, a class that is made once per process, or one that needs no model: "state" (every number that is no
    picture) and "image" (colours and edges of cameras). `per` chooses the moments that get one: the steps (at most
    `max_steps` per episode, or those of `rate_hz` or `clock`), windows of steps, frames of cameras (all, or those of
    `rate_hz`), or each episode as a whole. With `batch_size` the function gets that many moments at once, as arrays by
    channel, and gives a row for each.

    `window_s` and `stride_s` make windows of seconds, of which the embedder gets every step: arrays [T, D] by channel.
    Built in for those: "state" (scaled numbers), "motion" (how they move), "image" (colours and edges of cameras), or
    several with weights, {"motion": 1, "image": 0.5}. Numbers are scaled by their spread in the set, which is stored
    with the vectors; `wd.find_similar` searches them.

    The vectors of a root or a folder of shards are `<name>.rvf` in it; those of a published dataset become the artifact
    `vectors-<name>` of a new version; `output` names another file. Episodes that have not changed keep the vectors they
    have, as long as `revision` is the same: by default a hash of the code of the function. `jobs` and `ray` choose
    where it runs, as for `check_dataset`: the bytes are the same. Every vector leads back to `episode_id` and `ts_ns`.
    Further keywords are those of a published version: message, tags, sign_key, retries.
    `index` is the vector index over them: "hnsw", "ivf", "flat", "none", or by default a graph ("hnsw") from 20,000
    vectors on, where `warpdata[index]` is installed.
    """
    from warpdata.catalog.dataset import Dataset as Published
    from warpdata.catalog.publish.publish import PublishOptions
    from warpdata.episodes.collection.episodes import Episodes as Several
    from warpdata.search.moments.embedding import (
        EmbedJob,
        check_index_name,
        embed_into_file,
        held_file,
        name_of,
    )
    from warpdata.search.moments.moments import EmbedOptions
    from warpdata.settings import Settings

    chosen = (signals,) if isinstance(signals, str) else None if signals is None else tuple(signals)
    options = EmbedOptions(
        per, rate_hz, clock, max_steps, window, stride, chosen, window_s, stride_s, batch_size
    )
    called = name_of(embedder) if name is None else check_index_name(name)
    runner = runner_for(jobs, ray)
    opened = source if isinstance(source, Published) else None
    if opened is None and not isinstance(source, Published | Several) and is_published(address_text(source)):
        opened = open_published(address_text(source), catalog=catalog)
    episodes, label, place = _embedded_source(opened or source, called, output)
    job = EmbedJob(
        episodes if where is None else episodes.where(where),
        label,
        embedder,
        options,
        Settings.from_env().cache_dir,
        revision,
        metric,
        None if opened is None else opened.id,
        index,
    )
    try:
        given: dict[str, Any] = {"overwrite": overwrite, "runner": runner, "progress": progress}
        if place is not None:
            made = embed_into_file(job, place, held_file(place), **given)
        else:
            assert opened is not None
            version = PublishOptions(message=message, tags=tags, sign_key=sign_key, retries=retries)
            made = _embed_published(job, opened, called, given, version)
        job.finish()
        return made
    finally:
        if opened is not None and opened is not source:
            opened.close()


def _embed_published(
    job: EmbedJob, dataset: Dataset, name: str, given: Mapping[str, Any], options: PublishOptions
) -> EmbedReport:
    """Vectors of a version as an artifact of a new one, on top of the newest; the episodes are not touched."""
    import tempfile
    from dataclasses import replace
    from pathlib import Path

    from warpdata.catalog.build.parts import check_free, publish_files
    from warpdata.formats.manifest.model import VECTOR_KIND
    from warpdata.search.moments.embedding import SUFFIX, embed_into_file, part_name

    part = part_name(name)
    check_free(dataset, part, VECTOR_KIND)
    held = dataset.vectors(part) if part in dataset.artifacts else None
    with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
        path = Path(folder, f"{name}{SUFFIX}")
        made = embed_into_file(job, path, held, **given)
        if not path.exists():  # nothing is new
            return replace(made, path=f"{dataset.id}, artifact {part}", version=dataset.version)
        published = publish_files(dataset, part, VECTOR_KIND, {path.name: path}, options)
    return replace(made, path=f"{dataset.id}, artifact {part}", version=published.version)


def _embedded_source(
    source: Any, name: str, output: str | os.PathLike[str] | None
) -> tuple[Episodes, str, Path | None]:
    """The episodes, what they are called, and the file of their vectors; None where a new version gets it."""
    from pathlib import Path

    from warpdata.catalog.dataset import Dataset as Published
    from warpdata.episodes.collection.episodes import Episodes as Several
    from warpdata.episodes.collection.local import LocalDataset as Root
    from warpdata.search.moments.embedding import SUFFIX

    target = None if output is None else Path(os.path.abspath(output))
    if isinstance(source, Published):
        return source.episodes, source.id, target
    if isinstance(source, Several):
        place = str(source.root) if isinstance(source, Root) else None
        episodes, label = source, place or source.source.name
    else:
        label = address_text(source)
        label = label if "://" in label else os.path.abspath(label)
        episodes = any_episodes(label)
        place = None
        with contextlib.suppress(BadMagicError):  # a folder of another format
            if (
                "://" not in label
                and os.path.isdir(label)
                and address_kind(label) in ("recordings", "shards")
            ):
                place = label
    if target is None and (place is None or "://" in place):
        raise ValueError(
            f"no place for the vectors of {label}: name a file with output=, such as {name}{SUFFIX}"
        )
    return episodes, label, Path(str(place), f"{name}{SUFFIX}") if target is None else target
