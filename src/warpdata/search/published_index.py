"""Vectors of published episodes as a part of their dataset: an artifact of a new version, as lanes are."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from warpdata.catalog.adding import check_free, publish_files
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.publish import PublishOptions
from warpdata.episodes.jobs import Runner
from warpdata.errors import ConflictError
from warpdata.formats.manifest.model import VECTOR_KIND
from warpdata.search.embedding import SUFFIX, EmbedJob, EmbedReport, EmbedRun, Progress
from warpdata.search.store import VectorStore

PART_PREFIX = "vectors-"


def part_name(name: str) -> str:
    """The artifact of an index."""
    return f"{PART_PREFIX}{name}"


def embed_into_dataset(
    job: EmbedJob,
    dataset: Dataset,
    name: str,
    options: PublishOptions,
    *,
    overwrite: bool,
    runner: Runner | None,
    progress: Progress | None,
) -> EmbedReport:
    """Embed the episodes of a version, and publish the vectors on top of the newest one."""
    part = part_name(name)
    check_free(dataset, part, VECTOR_KIND)
    held = _held(dataset, part)
    if held is not None and held.notes != job.notes and not overwrite:
        held.close()
        hint = "Choose another name, or overwrite it."
        raise ConflictError(f"there is an index {name!r} already, and it holds other vectors", hint=hint)
    try:
        run = EmbedRun(job, held)
        run.compute(runner, progress)
        with tempfile.TemporaryDirectory(prefix="warpdata-") as folder:
            path = Path(folder, f"{name}{SUFFIX}")
            count, dim = run.write(path, overwrite=False)
            published = publish_files(dataset, part, VECTOR_KIND, {path.name: path}, options)
    finally:
        if held is not None:
            held.close()
    run.finish()
    return EmbedReport(
        f"{dataset.id}, artifact {part}", count, dim, run.computed, run.resumed, run.reused, run.without,
        published.version,
    )  # fmt: skip


def _held(dataset: Dataset, part: str) -> VectorStore | None:
    if part not in dataset.artifacts:
        return None
    found: Any = dataset.artifact(part).shard_reader(0)
    return VectorStore.open(found)
