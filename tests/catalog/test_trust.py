"""Whom a reader believes: signatures, what they cover, who is trusted, and catalogs that show the past."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.published import rows
from tests.servers import run_http
from warpdata.catalog.access import Access, access_options
from warpdata.catalog.manage.versions import list_datasets
from warpdata.catalog.read import resolve
from warpdata.errors import (
    ConflictError,
    DatasetNotFoundError,
    ManifestCorruptedError,
    OfflineError,
    RollbackError,
    StoreError,
    UntrustedError,
)
from warpdata.formats.manifest.codec import pack_pointer, unpack_pointer
from warpdata.settings import Settings


def new_key(path: Path) -> Path:
    command = ["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "key.pem")


def publish(catalog: str, count: int = 5, **options: Any):
    with wd.DatasetBuilder("ws/x", catalog=catalog) as builder:
        builder.add_table("main", rows(count)).describe(license="CC0-1.0")
        return builder.publish(**options)


def version_file(catalog: str, version: str, suffix: str) -> Path:
    return Path(catalog) / f"datasets/ws/x/versions/{version}{suffix}"


def require(*keys: str | None) -> dict[str, Any]:
    return {"verify": "require", "trusted_keys": tuple(keys)}


@pytest.mark.parametrize("note", ["license", "message", "description", "parent", "created_at"])
def test_notes_are_signed(local_catalog: str, key: Path, note: str) -> None:
    done = publish(local_catalog, sign_key=key, message="as it was")
    with wd.dataset("ws/x", catalog=local_catalog, **require(done.signed_by)) as ds:
        assert ds.signature.covers == "content and notes"
        assert ds.signature.public_key == done.signed_by
    path = version_file(local_catalog, done.version, ".json")
    raw = json.loads(path.read_text())
    (raw["stats"] if note == "created_at" else raw["metadata"])[note] = "forged"
    path.write_text(json.dumps(raw))
    assert wd.dataset("ws/x", catalog=local_catalog).version == done.version, "not part of the version"
    with pytest.raises(UntrustedError, match="wrong"):
        wd.dataset("ws/x", catalog=local_catalog, **require(done.signed_by))


def test_another_signer_and_other_notes_are_conflicts(local_catalog: str, key: Path, tmp_path: Path) -> None:
    publish(local_catalog, sign_key=key, message="one")
    assert publish(local_catalog, sign_key=key, message="one").is_new is False
    with pytest.raises(ConflictError, match="another message"):
        publish(local_catalog, sign_key=key, message="two")
    with pytest.raises(ConflictError, match="another key"):
        publish(local_catalog, sign_key=new_key(tmp_path / "other.pem"), message="one")


def test_to_require_means_to_know_whose(local_catalog: str, key: Path) -> None:
    done = publish(local_catalog, sign_key=key)
    with pytest.raises(UntrustedError, match="no key is trusted") as caught:
        wd.dataset("ws/x", catalog=local_catalog, verify="require")
    assert f"WARP_TRUSTED_KEYS={done.signed_by}" in caught.value.hint
    with pytest.raises(UntrustedError, match="unknown key") as caught:
        wd.dataset("ws/x", catalog=local_catalog, **require("AAAA"))
    assert str(done.signed_by) in caught.value.hint
    assert issubclass(UntrustedError, ManifestCorruptedError)


def test_a_cached_manifest_is_no_more_trusted_than_another(
    local_catalog: str, key: Path, tmp_path: Path
) -> None:
    """It came here without being asked for a signature: when one is required, it is."""
    done = publish(local_catalog)
    with run_http(Path(local_catalog)) as server:
        assert wd.dataset("ws/x", catalog=server.url).version == done.version
        with pytest.raises(UntrustedError, match="not signed"):
            wd.dataset("ws/x", catalog=server.url, **require("AAAA"))
        with pytest.raises(OfflineError, match="signature"):
            wd.dataset("ws/x", catalog=server.url, mode="local", **require("AAAA"))
        signed = publish(local_catalog, sign_key=key)
        trusted = require(signed.signed_by)
        assert wd.dataset("ws/x", catalog=server.url, **trusted).signature is not None
        server.requests.clear()
        assert wd.dataset("ws/x", catalog=server.url, **trusted).signature is not None
        assert len(server.requests) == 1, "manifest and signature are here; both are checked again"
        offline = wd.dataset("ws/x", catalog=server.url, mode="local", **trusted)
        assert offline.signature == wd.dataset("ws/x", catalog=server.url, **trusted).signature
        (cached,) = (tmp_path / "cache/manifests").rglob(f"{done.version}.json")
        cached.write_text(cached.read_text().replace("CC0-1.0", "mine"))
        with pytest.raises(UntrustedError, match="wrong"):
            wd.dataset("ws/x", catalog=server.url, mode="local", **trusted)
        healed = wd.dataset("ws/x", catalog=server.url, **trusted)
        assert healed.manifest.metadata["license"] == "CC0-1.0"


def test_an_older_latest_is_noticed(local_catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = Path(local_catalog) / "datasets/ws/x/latest.json"
    one = publish(local_catalog, 5)
    past = pointer.read_bytes()
    two = publish(local_catalog, 6)
    with run_http(Path(local_catalog)) as server:
        assert wd.dataset("ws/x", catalog=server.url).version == two.version
        pointer.write_bytes(past)
        for _ in range(2):
            with pytest.raises(RollbackError, match=r"move 1.*has seen.*move 2") as caught:
                wd.dataset("ws/x", catalog=server.url)
        assert "accept_rollback=True" in caught.value.hint
        assert wd.dataset(f"ws/x@{two.version}", catalog=server.url).version == two.version
        with pytest.raises(RollbackError, match="has seen"):
            wd.dataset("ws/x", catalog=server.url, mode="remote")
        taken = wd.dataset("ws/x", catalog=server.url, mode="remote", accept_rollback=True)
        assert taken.version == one.version
        with pytest.raises(RollbackError, match="has seen"):
            wd.dataset("ws/x", catalog=server.url)  # who writes nothing down accepts nothing for good
        monkeypatch.setenv("WARP_ACCEPT_ROLLBACK", "1")
        assert wd.dataset("ws/x", catalog=server.url).version == one.version
        monkeypatch.delenv("WARP_ACCEPT_ROLLBACK")
        assert wd.dataset("ws/x", catalog=server.url).version == one.version, "accepted once, for good"
        forged = json.loads(past) | {"version": two.version}
        pointer.write_text(json.dumps(forged))
        with pytest.raises(RollbackError):
            wd.dataset("ws/x", catalog=server.url)
        forged["sequence"] = 2
        pointer.write_text(json.dumps(forged))
        assert wd.dataset("ws/x", catalog=server.url).version == two.version


class TestListsOverHttp:
    """What `warp catalog list` shows of a catalog that cannot be listed."""

    @staticmethod
    def names(url: str, workspace: str = "") -> list[str]:
        catalog = Access(access_options(Settings.from_env(), catalogs=(url,))).catalogs[0]
        return [each.dataset_id for each in list_datasets(catalog, workspace)]

    def test_every_dataset_is_there(self, local_catalog: str) -> None:
        for name in ("ws/b", "ws/a", "other/c"):
            with wd.DatasetBuilder(name, catalog=local_catalog) as builder:
                builder.add_table("main", rows(3)).publish()
        with run_http(Path(local_catalog)) as server:
            assert self.names(server.url) == ["other/c", "ws/a", "ws/b"]
            assert self.names(server.url, "ws/") == ["ws/a", "ws/b"] == self.names(local_catalog, "ws")
            for each in (Path(local_catalog) / "datasets/ws/b").glob("latest.json"):
                each.unlink()
            assert self.names(server.url, "ws") == ["ws/a"], "a name without a version is none"

    def test_catalogs_of_older_releases_get_it_with_the_next_dataset(self, local_catalog: str) -> None:
        written = Path(local_catalog) / "datasets.json"
        with wd.DatasetBuilder("ws/a", catalog=local_catalog) as builder:
            builder.add_table("main", rows(3)).publish()
            written.unlink()
            with (
                run_http(Path(local_catalog)) as server,
                pytest.raises(StoreError, match="be listed") as caught,
            ):
                self.names(server.url)
            assert "store behind this address" in caught.value.hint
            builder.publish()
        assert not written.exists(), "only a dataset that is new costs anything"
        with wd.DatasetBuilder("ws/b", catalog=local_catalog) as builder:
            builder.add_table("main", rows(3)).publish()
        assert written.read_bytes() == b'{"datasets":["ws/a","ws/b"]}\n'

    @pytest.mark.parametrize("damage", [b"{", b"{}", b'{"datasets":[3]}', b'{"datasets":["ws/a@v1"]}', b""])
    def test_a_damaged_list(self, local_catalog: str, damage: bytes) -> None:
        with wd.DatasetBuilder("ws/a", catalog=local_catalog) as builder:
            builder.add_table("main", rows(3)).publish()
        (Path(local_catalog) / "datasets.json").write_bytes(damage)
        with run_http(Path(local_catalog)) as server, pytest.raises(ManifestCorruptedError, match="datasets"):
            self.names(server.url)
        assert self.names(local_catalog) == ["ws/a"], "where it can be listed the file is not read"


def test_short_hashes_and_tags_over_http(local_catalog: str, tmp_path: Path) -> None:
    one = publish(local_catalog, 5, tags=("v1",))
    two = publish(local_catalog, 6)
    three = publish(local_catalog, 7, set_latest=False)
    with run_http(Path(local_catalog)) as server:

        def resolve(name: str) -> str:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            with wd.dataset(name, catalog=server.url) as ds:
                return str(ds.version)

        for done in (one, two, three):
            assert resolve(f"ws/x@{done.version[:8]}") == done.version
        assert resolve("ws/x@v1") == one.version
        with wd.dataset("ws/x", catalog=server.url) as ds:
            assert ds.tags() == {"v1": one.version}
            assert {v.version for v in ds.versions()} == {one.version, two.version, three.version}
            assert {v.tags for v in ds.versions()} == {("v1",), ()}
        with pytest.raises(DatasetNotFoundError):
            resolve("ws/x@0123456789")
        (Path(local_catalog) / "datasets/ws/x/versions.json").unlink()  # as catalogs of older releases are
        assert resolve(f"ws/x@{one.version[:8]}") == one.version, "found along the line of parents"


HASHES = [None, 5, True, "", "ab", "AB" * 32, "ab" * 32, ["ab" * 32]]
NUMBERS = [None, True, False, -1, 0, 1, 2**53 - 1, 2**53, 10**400, 1.0, "1", [1]]


@pytest.mark.parametrize("sequence", NUMBERS, ids=lambda each: repr(each)[:20])
@pytest.mark.parametrize("version", HASHES)
@pytest.mark.parametrize("previous", HASHES)
def test_a_pointer_is_one_or_is_called_damaged(version: Any, sequence: Any, previous: Any) -> None:
    raw = {"version": version, "sequence": sequence, "previous": previous}
    is_one = version == "ab" * 32 and previous in (None, version) and type(sequence) is int
    if not is_one or not 0 <= sequence < 2**53:
        with pytest.raises(ManifestCorruptedError, match=r"latest\.json"):
            unpack_pointer(json.dumps(raw).encode(), "latest.json")
        return
    pointer = unpack_pointer(json.dumps(raw).encode(), "latest.json")
    assert (pointer.version, pointer.sequence, pointer.previous) == (version, sequence, previous)
    assert unpack_pointer(pack_pointer(pointer), "again") == pointer


def test_a_damaged_memory_that_cannot_be_written_is_passed_over(
    local_catalog: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache that is lent out to be read, what is damaged stays; the catalog has the word."""
    done = publish(local_catalog)

    def refused(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with run_http(Path(local_catalog)) as server:
        wd.dataset("ws/x", catalog=server.url).close()
        damaged = [p for p in (tmp_path / "cache").rglob("*.json") if p.is_file()]
        assert len(damaged) == 2
        for path in damaged:
            path.write_bytes(b"{")
        monkeypatch.setattr(Path, "unlink", refused)
        monkeypatch.setattr(resolve.commit, "write_file", refused)
        assert wd.dataset("ws/x", catalog=server.url).version == done.version


@pytest.mark.parametrize(
    "remembered", [{"sequence": True}, {"sequence": -1}, {"sequence": "NaN"}, {"version": 5}]
)
def test_what_a_damaged_cache_remembers_of_latest_is_forgotten(
    local_catalog: str, tmp_path: Path, remembered: dict[str, Any]
) -> None:
    done = publish(local_catalog)
    with run_http(Path(local_catalog)) as server:
        url, cache = f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "cache"
        assert wd.dataset("ws/x", catalog=url, cache_dir=str(cache)).version == done.version
        (kept,) = cache.glob("pointers/*/datasets/ws/x/latest.json")
        raw = json.loads(kept.read_text())
        kept.write_text(json.dumps({"etag": 7, "pointer": {**raw["pointer"], **remembered}}))
        assert wd.dataset("ws/x", catalog=url, cache_dir=str(cache)).version == done.version
        assert json.loads(kept.read_text()) == raw
