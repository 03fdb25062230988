"""Where a browser is told to look for the blobs of a published set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from warpdata.catalog.access import Catalog
from warpdata.stores.address import plain_address
from warpdata.viewer.export import data_address


def published_at(address: str, endpoint: str | None, region: str | None) -> Any:
    """As much of a dataset as says where it lies."""
    store = SimpleNamespace(s3_endpoint=endpoint, s3_region=region)
    catalog = Catalog(plain_address(address), None, address)
    return SimpleNamespace(catalog=catalog, access=SimpleNamespace(options=SimpleNamespace(store=store)))


@pytest.mark.parametrize(
    ("address", "endpoint", "region", "found"),
    [
        ("/srv/cat a", None, None, "../cat%20a/"),
        ("file:///srv/cat/", None, None, "../cat/"),
        ("https://host/cat/", None, None, "https://host/cat/"),
        ("gs://bucket", None, None, "https://storage.googleapis.com/bucket/"),
        ("gs://bucket/a b", None, None, "https://storage.googleapis.com/bucket/a%20b/"),
        ("az://container/cat", None, None, None),
        ("s3://bucket/cat", None, None, "https://bucket.s3.us-east-1.amazonaws.com/cat/"),
        ("s3://bucket", None, "eu-west-1", "https://bucket.s3.eu-west-1.amazonaws.com/"),
        (
            "s3://bucket/cat/?region=eu-west-1", None, "us-west-2",
            "https://bucket.s3.eu-west-1.amazonaws.com/cat/",
        ),
        ("s3://bucket/cat", "http://host:9000/", "eu-west-1", "http://host:9000/bucket/cat/"),
        ("s3://bucket/cat?endpoint=http://other", "http://host:9000", None, "http://other/bucket/cat/"),
        ("s3://bucket/cat?endpoint=http%3A%2F%2Fother", None, None, "http://other/bucket/cat/"),
    ],
)  # fmt: skip
def test_where_the_blobs_are(
    address: str, endpoint: str | None, region: str | None, found: str | None
) -> None:
    assert data_address(published_at(address, endpoint, region), "/srv/site") == found
