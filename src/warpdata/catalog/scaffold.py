"""A loader of one's own for a dataset: code that runs as it is, with decoders for the bindings it finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpdata.catalog.access import access_options
from warpdata.errors import DatasetError
from warpdata.settings import Settings
from warpdata.stores.address import plain_address

if TYPE_CHECKING:
    from warpdata.catalog.dataset import Dataset

_DECODERS = {
    "image": "[None if ref is None else ref.as_numpy() for ref in batch[{column!r}]]",
    "audio": "[None if ref is None else ref.as_array() for ref in batch[{column!r}]]",
    "video": "[None if ref is None else ref.frame(0.0) for ref in batch[{column!r}]]",
    "episode": "[None if ref is None else ref.local_path() for ref in batch[{column!r}]]",
    "file": "[None if ref is None else ref.read_bytes() for ref in batch[{column!r}]]",
}

_TEMPLATE = '''"""Loader of {dataset_id}, made by `warp init`. Run it for a smoke test; import it to train."""

import warpdata as wd

VERSION = "{version}"
CATALOG = {catalog!r}  # None: what WARP_CATALOG says


def get_dataset(**options):
    """The version this loader was made for; `wd.dataset("{dataset_id}")` is the latest."""
    return wd.dataset(f"{dataset_id}@{{VERSION}}", **{{"catalog": CATALOG, **options}})


def decode(batch):
    """A batch with its references read and decoded."""
{decoders}
    return batch


def train_stream(batch_size=1000, shard="auto"):
    """Decoded batches, split over the ranks of a training run."""
    table = get_dataset().table("{table}")
    for batch in table.batch_dicts(batch_size, shard=shard):
        yield decode(batch)


if __name__ == "__main__":
    for i, batch in enumerate(train_stream(batch_size=10)):
        rows = len(next(iter(batch.values())))
        print(f"Batch {{i}}: {{rows}} rows of {{', '.join(batch)}}")
        if i >= 2:
            break
    print("Smoke test passed!")
'''


def loader_code(dataset: Dataset, table: str | None = None) -> str:
    """The source of a loader."""
    if not dataset.tables:
        raise DatasetError(
            f"{dataset.id} has no table to stream", hint="Read its artifacts: ds.artifact(name)."
        )
    name = table or ("main" if "main" in dataset.tables else dataset.tables[0])
    dataset.table(name)
    lines = [
        f"    batch[{b.column!r}] = {_DECODERS[b.ref_type].format(column=b.column)}"
        for b in dataset.manifest.bindings
        if b.table == name
    ]
    fields = {"dataset_id": dataset.id, "version": dataset.version, "table": name}
    given = dataset.access.options.catalogs
    catalog = (
        None if given == access_options(Settings.from_env()).catalogs else ",".join(map(plain_address, given))
    )
    decoders = "\n".join(lines) or "    # no bound columns"
    return _TEMPLATE.format(**fields, catalog=catalog, decoders=decoders)


def loader_name(dataset: Dataset) -> str:
    """The file name of a loader."""
    return dataset.id.replace("/", "_").replace("-", "_") + "_loader.py"
