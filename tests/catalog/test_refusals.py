"""Damage in a catalog, and what cannot be published: refused by name, before anything is believed or sent."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.memory_store import MemoryStore
from warpdata.bytekit.jsontext import dump_json
from warpdata.catalog import access as staging
from warpdata.catalog.access import parse_name
from warpdata.catalog.publish import pointers as removals
from warpdata.catalog.publish.pointers import read_list
from warpdata.catalog.publish.signing import (
    check_signature,
    private_key,
    public_text,
    seeded_key,
    signature_file,
)
from warpdata.errors import (
    BlobNotFoundError,
    CorruptLayoutError,
    DatasetError,
    ManifestCorruptedError,
    StoreError,
    UntrustedError,
)

NAME = parse_name("lab/x")
HASH = "0" * 64
ABOUT = ["2026-01-01T00:00:00+00:00", 3, 100, None, "first"]


@pytest.mark.parametrize(
    "said",
    [
        b"{", b"[]", {}, {"versions": [HASH]}, {"versions": ["x"], "tags": {}}, {"versions": {}, "tags": {}},
        {"versions": [HASH], "tags": {"a": "b"}},
        {"versions": [HASH], "tags": {}, "about": []}, {"versions": [HASH], "tags": {}, "about": [[1, 2]]},
        {"versions": [HASH], "tags": {}, "about": [[*ABOUT[:3], "parent", ""]]},
    ],
)  # fmt: skip
def test_a_damaged_list_of_versions_is_not_believed(said: Any) -> None:
    store = MemoryStore()
    store.put_if_absent(NAME.list_key, said if isinstance(said, bytes) else dump_json(said))
    with pytest.raises(ManifestCorruptedError, match="list of versions"):
        read_list(store, NAME)


def test_a_damaged_tag_is_told_and_stops_no_publisher(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with wd.DatasetBuilder("lab/x", catalog=tmp_path) as builder:
        builder.add_table("main", {"a": [1]}).publish(tags=["good"])
        (tmp_path / "datasets/lab/x/tags/good.json").write_text("{}")
        (tmp_path / "datasets/lab/x/versions.json").unlink()
        published = builder.add_table("more", {"a": [1]}).publish()
    assert "versions.json was not written" in caplog.text
    assert "good.json" in caplog.text
    with wd.dataset("lab/x", catalog=tmp_path) as ds:
        assert ds.version == published.version
        with pytest.raises(ManifestCorruptedError, match=r"good\.json"):
            ds.tags()


@pytest.mark.parametrize("said", [b"{", b"{}", b'{"count": 3}', b'{"count": true, "running": true}'])
def test_nothing_is_removed_beside_a_damaged_lock(said: bytes) -> None:
    store = MemoryStore()
    store.put_if_absent(removals.REMOVALS_KEY, said)
    with (
        pytest.raises(ManifestCorruptedError, match="the removal lock is damaged") as raised,
        removals.removing(store),
    ):
        pass
    assert "no collector" in raised.value.hint


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


@pytest.mark.parametrize("at", range(12))
def test_a_damaged_key_is_a_typed_error_or_another_key(tmp_path: Path, at: int) -> None:
    """Each byte of what says which kind of key it is, whatever it became."""
    serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    der = bytearray(seeded_key(bytes(32)).private_bytes(serialization.Encoding.DER, *form))
    refused = 0
    for value in range(256):
        der[at] = value
        text = base64.encodebytes(der).decode()
        (tmp_path / "key.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{text}-----END PRIVATE KEY-----\n")
        try:
            private_key(tmp_path / "key.pem")
        except StoreError:
            refused += 1
    assert refused >= 200


@pytest.mark.parametrize(
    "changed",
    [
        {"payload": []}, {"payload": {}}, {"payload": 3}, {"payload": 2.0}, {"payload": True}, {"payload": None},
        {"algorithm": "rsa"}, {"algorithm": ["ed25519"]}, {"public_key": "?"}, {"public_key": 5}, {"public_key": ""},
        {"signature": "é"}, {"signature": None}, {"signature": []}, {"signature": ""},
    ],
)  # fmt: skip
def test_a_damaged_signature_is_no_signature(changed: dict[str, Any]) -> None:
    key = seeded_key(bytes(32))
    trusted = (public_text(key),)
    sound = signature_file(NAME, HASH, b"{}", key)
    assert check_signature(sound, b"{}", NAME, HASH, trusted).covers == "content and notes"
    said = dump_json({**json.loads(sound), **changed})
    with pytest.raises(UntrustedError):
        check_signature(said, b"{}", NAME, HASH, trusted)


def test_a_staging_folder_that_lost_its_lock_goes_when_it_is_old(tmp_path: Path) -> None:
    folders = [tmp_path / f"warpdata-staging-{name}" for name in ("young", "old")]
    for folder in folders:
        folder.mkdir()
    os.utime(folders[1], (0, 0))
    assert staging.sweep(tmp_path) == 1
    assert [folder.exists() for folder in folders] == [True, False]


def _nothing_more(builder: wd.DatasetBuilder, _: wd.Dataset) -> object:
    return builder.extend().publish()


def _bound_to(table: str, artifact: str) -> Callable[[wd.DatasetBuilder, wd.Dataset], object]:
    def ask(builder: wd.DatasetBuilder, _: wd.Dataset) -> object:
        return builder.extend().add_table("more", {"f": ["a"]}).bind(table, "f", artifact).publish()

    return ask


@pytest.mark.parametrize(
    ("ask", "kind", "words"),
    [
        (lambda _, there: there.ref("raw", "b").read_bytes(), BlobNotFoundError, "'raw' has no member 'b'"),
        (lambda _, there: there.ref("raw", "a").local_path(), DatasetError, "'a' has no file here, and mode='remote'"),
        (lambda _, there: wd.read_refs([there.ref("raw", "a"), "a"]), TypeError, "is a reference, not str"),
        (lambda new, there: new.revise(there, wd.Episodes.of([])), DatasetError, "ws/x has 0 artifacts of episodes"),
        (lambda new, _: new.revise("ws/x", wd.Episodes.of([])), TypeError, "a revised dataset is .*, not str"),
        (lambda new, there: new.keep(there).extend(), ValueError, "extend.. keeps the newest version by itself"),
        (_nothing_more, DatasetError, "there is nothing to publish"),
        (_bound_to("main", "rw"), DatasetError, "no part of this version: main -> rw. Did you mean 'raw'"),
        (_bound_to("mian", "raw"), DatasetError, "no part of this version: mian -> raw. Did you mean 'main'"),
        (
            lambda new, _: new.extend().add_table("main", {"f": ["c"]}).publish(),
            DatasetError, "1 values of main.f name no member of 'raw', the first is 'c'",
        ),
    ],
)  # fmt: skip
def test_what_a_published_version_refuses(
    tmp_path: Path, ask: Callable[[Any, Any], object], kind: type[Exception], words: str
) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/a").write_bytes(b"bytes")
    with wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as builder:
        builder.add_artifact("raw", tmp_path / "raw").add_table("main", {"f": ["a"]})
        builder.bind("main", "f", "raw").publish()
    with (
        wd.dataset("ws/x", catalog=tmp_path / "cat", mode="remote") as there,
        wd.DatasetBuilder("ws/x", catalog=tmp_path / "cat") as fresh,
    ):
        with pytest.raises(kind, match=words):
            ask(fresh, there)
        assert wd.dataset("ws/x", catalog=tmp_path / "cat").version == there.version
