"""What a manifest can make a reader do: no request, and no credential, reaches a server that it names."""

from __future__ import annotations

import http.server
import json
import urllib.parse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.published import rows
from tests.servers import run_http, serving
from warpdata.catalog.access import Access, AccessOptions
from warpdata.errors import DatasetError, ManifestCorruptedError, StoreError, WarpError
from warpdata.formats.manifest.model import BlobRef, check_uri
from warpdata.stores.address import StoreOptions
from warpdata.stores.blobstore import RetryPolicy

SECRETS: dict[str, dict[str, Any]] = {
    "s3": {"access_key_id": "AKEY", "secret_access_key": "SECRET", "session_token": "TOKEN"},
    "gs": {"credential_provider": lambda: {"token": "TOKEN", "expires_at": None}},
    "az": {"account_name": "acc", "account_key": "U0VDUkVU"},
    "az+sas": {"account_name": "acc", "sas_token": "sig=SECRET"},
    "http": {},
}
CREDENTIALS = ("authorization", "x-amz-security-token")


class _Recorder(http.server.BaseHTTPRequestHandler):
    """Records requests; redirects to `target` if there is one, else answers 404."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.received.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()})
        )
        target = self.server.target
        self.send_response(307 if target else 404)
        if target:
            self.send_header("Location", f"{target}/stolen")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_PUT = do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[tuple[Any, Any]]:
    """The server of a catalog, and another one; both record what they receive."""
    with serving(_Recorder) as own, serving(_Recorder) as other:
        for server in (own, other):
            server.received, server.target = [], None
        yield own, other


def kind_of(scheme: str) -> str:
    return scheme.partition("+")[0]


def open_access(scheme: str, own: Any, tmp_path: Path, **options: Any) -> Access:
    """Access to a catalog of this kind whose server is `own`."""
    address = (
        f"{own.url}/bucket/cat" if scheme == "http" else f"{kind_of(scheme)}://bucket/cat?endpoint={own.url}"
    )
    store = StoreOptions(secrets=SECRETS[scheme], timeout_s=5.0)
    base = AccessOptions((address,), cache_dir=str(tmp_path / "cache"), store=store)
    return Access(replace(base, **options), policy=RetryPolicy(attempts=1))


def read_blob(access: Access, uri: str) -> None:
    blob = BlobRef("0" * 64, 10, uri)
    access.reader(access.catalogs[0], blob, "blob").read(0, 10)


def received_anything(server: Any) -> list[str]:
    return [urllib.parse.unquote(path) for path, _ in server.received]


BAD_URIS = [
    "s3://bucket/?endpoint={other}/blob",
    "gs://bucket/?endpoint={other}/blob",
    "az://bucket/?endpoint={other}/blob",
    "s3://bucket/blob?region=x",
    "{own}/cat/blob?then=1",
    "{own}/cat/blob#part",
    "http://user:word@host/blob",
    "{own}\\@{other}/blob",
    "s3://bucket/a blob",
    "blobs/sha256/00?x",
]


@pytest.mark.parametrize("allow", [False, True])
@pytest.mark.parametrize("uri", BAD_URIS)
def test_a_manifest_with_settings_in_a_uri_is_refused(
    tmp_path: Path, local_catalog: str, servers: tuple[Any, Any], uri: str, allow: bool
) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        done = builder.add_table("main", rows(5)).publish()
    path = Path(local_catalog, f"datasets/ws/x/versions/{done.version}.json")
    raw = json.loads(path.read_text())
    other = servers[1]
    with run_http(Path(local_catalog)) as own:
        raw["tables"]["main"]["shards"][0]["uri"] = uri.format(own=own.url, other=other.url)
        path.write_text(json.dumps(raw))
        for catalog in (local_catalog, own.url):
            with pytest.raises(ManifestCorruptedError, match="invalid uri") as caught:
                wd.dataset("ws/x", catalog=catalog, allow_foreign_uris=allow)
            assert other.url not in str(caught.value)
    assert received_anything(other) == []


def test_publishing_refuses_the_same_uris() -> None:
    for uri in BAD_URIS:
        with pytest.raises(ManifestCorruptedError):
            check_uri(uri)
    for uri in ("blobs/sha256/00/00", "s3://bucket/a%20b/c", "https://host:8080/a/b%3Fc"):
        assert check_uri(uri) == uri


@pytest.mark.parametrize("scheme", list(SECRETS))
def test_a_uri_of_the_same_bucket_is_read_from_the_server_of_the_catalog(
    scheme: str, servers: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = servers
    monkeypatch.setenv("AWS_ENDPOINT_URL", other.url)
    access = open_access(scheme, own, tmp_path)
    place = f"{own.url}/bucket" if scheme == "http" else f"{kind_of(scheme)}://bucket"
    with pytest.raises(StoreError):
        read_blob(access, f"{place}/elsewhere/blob")
    assert any(path.startswith("/bucket/elsewhere/blob") for path in received_anything(own))
    assert received_anything(other) == []


@pytest.mark.parametrize("name", ["..%2f..%2fx", "%2e%2e", "a%5Cb", "a%00b", "a%0Ab"])
def test_an_encoded_name_that_is_not_safe_is_refused(
    name: str, servers: tuple[Any, Any], tmp_path: Path
) -> None:
    own, _ = servers
    access = open_access("http", own, tmp_path)
    with pytest.raises(ManifestCorruptedError, match="not a safe blob name"):
        read_blob(access, f"{own.url}/bucket/cat/{name}")
    assert received_anything(own) == []


@pytest.mark.parametrize("scheme", list(SECRETS))
def test_a_uri_outside_the_place_of_the_catalog_is_refused(
    scheme: str, servers: tuple[Any, Any], tmp_path: Path
) -> None:
    own, other = servers
    access = open_access(scheme, own, tmp_path)
    uris = [f"{other.url}/bucket/blob", f"{own.url.replace('127.0.0.1', 'localhost')}/blob", "https://host/b"]
    uris += [f"{kind}://another-bucket/blob" for kind in ("s3", "gs", "az")]
    for uri in uris:
        with pytest.raises(DatasetError, match="outside its catalog"):
            read_blob(access, uri)
    assert received_anything(own) == received_anything(other) == []


@pytest.mark.parametrize("scheme", list(SECRETS))
@pytest.mark.parametrize("where", ["blob area", "uri"])
def test_a_redirect_takes_no_credentials_along(
    scheme: str, where: str, servers: tuple[Any, Any], tmp_path: Path
) -> None:
    own, other = servers
    own.target = other.url
    access = open_access(scheme, own, tmp_path)
    place = f"{own.url}/bucket" if scheme == "http" else f"{kind_of(scheme)}://bucket"
    with pytest.raises(WarpError) as caught:
        read_blob(access, f"{place}/elsewhere/blob" if where == "uri" else "blobs/x")
    assert received_anything(own)
    for _, headers in other.received:
        assert not [name for name in CREDENTIALS if name in headers]
        assert not any("TOKEN" in value or "SECRET" in value for value in headers.values())
    if scheme in ("s3", "az+sas"):
        assert received_anything(other) == []
    if scheme == "http" and where == "uri":
        assert "redirects to another server" in str(caught.value)
        assert received_anything(other) == []
