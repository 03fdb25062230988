"""A version with one artifact more, or another one in its place; everything else of the newest version stays."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from warpdata.catalog.access import Access
from warpdata.catalog.build.growing import grown_notes, publish_grown
from warpdata.catalog.dataset import Dataset
from warpdata.catalog.names import DatasetName
from warpdata.catalog.publish.publish import Published, PublishOptions
from warpdata.catalog.publish.transfer import Upload, upload_bytes, upload_file
from warpdata.errors import DatasetError
from warpdata.formats.manifest.fields import blob_of
from warpdata.formats.manifest.model import ArtifactPart, BlobRef, Manifest
from warpdata.formats.manifest.parts import packed_shards
from warpdata.stores.blobstore import digest_file


def publish_part(
    dataset: Dataset,
    name: str,
    kind: str,
    shards_for: Callable[[Dataset], Sequence[BlobRef]],
    early: Sequence[Upload],
    options: PublishOptions,
) -> Published:
    """Publish the newest version of a dataset with these shards as one artifact.

    `shards_for` says which, given that version; `early` are the blobs of those that are new.
    """
    check_free(dataset, name, kind)

    def build(base: Dataset | None) -> tuple[Manifest, list[Upload]]:
        if base is None:
            raise DatasetError("the dataset is gone", path=dataset.id)
        check_free(base, name, kind)
        shards = sorted(shards_for(base), key=lambda shard: str(shard.name))
        packed = packed_shards(tuple(shards), blob_of)
        manifest = Manifest(
            dataset_id=base.id,
            tables=base.manifest.tables,
            artifacts={**base.manifest.artifacts, name: ArtifactPart(kind, packed.shards)},
            bindings=base.manifest.bindings,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            metadata=grown_notes(base, {}),
        )
        return manifest, [*early, *(upload_bytes(data) for data in packed.blobs.values())]

    with contextlib.closing(_access(dataset)) as access:
        return publish_grown(access, DatasetName(dataset.id), build, early, options)


def publish_files(
    dataset: Dataset, name: str, kind: str, files: Mapping[str, Path], options: PublishOptions
) -> Published:
    """Publish the newest version of a dataset with these files, by their names, as one artifact."""
    digests = {member: digest_file(path) for member, path in files.items()}
    shards = [BlobRef(each.sha256, each.size, name=member) for member, each in digests.items()]
    early = [upload_file(path, digests[member], is_staged=False) for member, path in files.items()]
    return publish_part(dataset, name, kind, lambda _: shards, early, options)


def check_free(dataset: Dataset, name: str, kind: str) -> None:
    """Raise if something else than such an artifact has the name."""
    held = dataset.manifest.artifacts.get(name)
    if (held is not None and held.kind != kind) or name in dataset.manifest.tables:
        raise DatasetError(f"there is a part called {name!r} that is no {kind}", hint="Choose another name.")


def _access(dataset: Dataset) -> Access:
    """Stores of the catalog the dataset came from, for writing."""
    return Access(replace(dataset.access.options, catalogs=(dataset.catalog.given,)))
