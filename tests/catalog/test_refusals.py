"""Damage in a catalog, and what cannot be published: refused by name, before anything is believed or sent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from warpdata.bytekit.jsontext import dump_json
from warpdata.catalog import claims, roster, staging
from warpdata.catalog.names import parse_name
from warpdata.catalog.signing import private_key
from warpdata.errors import CorruptLayoutError, DatasetError, ManifestCorruptedError, StoreError
from warpdata.stores.memory import MemoryStore

NAME = parse_name("lab/x")
HASH = "0" * 64
ABOUT = ["2026-01-01T00:00:00+00:00", 3, 100, None, "first"]


@pytest.mark.parametrize(
    "said",
    [
        b"{", b"[]", {}, {"versions": [HASH]}, {"versions": ["x"], "tags": {}}, {"versions": {}, "tags": {}},
        {"versions": [HASH], "tags": {"a": "b"}}, {"versions": [HASH], "tags": {}, "older": ["x"]},
        {"versions": [HASH], "tags": {}, "about": []}, {"versions": [HASH], "tags": {}, "about": [[1, 2]]},
        {"versions": [HASH], "tags": {}, "about": [[*ABOUT[:3], "parent", ""]]},
    ],
)  # fmt: skip
def test_a_damaged_list_of_versions_is_not_believed(said: Any) -> None:
    store = MemoryStore()
    store.put_if_absent(NAME.roster_key, said if isinstance(said, bytes) else dump_json(said))
    with pytest.raises(ManifestCorruptedError, match="list of versions"):
        roster.read_roster(store, NAME)


def test_a_page_of_the_list_that_was_changed_is_not_believed() -> None:
    store = MemoryStore()
    store.put_if_absent(NAME.roster_key, dump_json({"versions": [HASH], "tags": {}, "older": [HASH]}))
    store.put_if_absent(NAME.page_key(HASH), dump_json({"versions": [HASH]}))
    with pytest.raises(ManifestCorruptedError, match="page of the list of versions is damaged"):
        roster.read_roster(store, NAME)


@pytest.mark.parametrize("said", [b"{", b"{}", b'{"keys": 3}'])
def test_nothing_is_removed_beside_a_claim_that_nobody_can_read(said: bytes) -> None:
    store = MemoryStore()
    store.put_if_absent(f"{claims.KEEP}someone", said)
    with (
        pytest.raises(ManifestCorruptedError, match="a claim") as raised,
        claims.dropping(store, {"blobs/a"}),
    ):
        pass
    assert "no publisher" in raised.value.hint


def _twice(folder: Path) -> list[Path]:
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "same.txt").write_text(name)
    return [folder / "a" / "same.txt", folder / "b" / "same.txt"]


def _link(folder: Path) -> Path:
    (folder / "to.txt").symlink_to("/etc/hostname")
    return folder


def _missing(folder: Path) -> list[Path]:
    return [folder / "gone.txt"]


def _empty(folder: Path) -> Path:
    return folder


def _odd_name(folder: Path) -> Path:
    (folder / "a\\..\\b").write_text("x")
    return folder


@pytest.mark.parametrize("kind", ["files", "tar_shards"])
@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_twice, "two files"),
        (_link, "links and devices"),
        (_missing, "does not exist"),
        (_empty, "no files"),
        (_odd_name, "unsafe file name"),
    ],
)
def test_files_that_cannot_be_published(
    tmp_path: Path, made: Callable[[Path], Any], message: str, kind: str
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    source = made(folder)
    with wd.DatasetBuilder("lab/x", catalog=tmp_path / "catalog") as builder:
        with pytest.raises((CorruptLayoutError, DatasetError), match=message):
            builder.add_artifact("raw", source, kind=kind).publish()
        assert not list((tmp_path / "catalog").rglob("latest.json"))


def test_a_key_of_another_kind_signs_nothing(tmp_path: Path) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    key = rsa.generate_private_key(rsa.SECP256R1())
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(*pem))
    with pytest.raises(StoreError, match="not an Ed25519 key"):
        private_key(tmp_path / "key.pem")
    (tmp_path / "key.pem").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="PEM key"):
        private_key(tmp_path / "key.pem")
    with pytest.raises(StoreError, match="cannot be read"):
        private_key(tmp_path / "gone.pem")


def test_a_staging_folder_that_lost_its_lock_goes_when_it_is_old(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("young", "old")]
    for folder in folders:
        folder.mkdir()
    os.utime(folders[1], (0, 0))
    assert [staging._swept(folder) for folder in folders] == [False, True]
    assert [folder.exists() for folder in folders] == [True, False]
