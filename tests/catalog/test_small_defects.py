"""Errors of publishing that name their cause: full disks, odd names, reserved tags, secrets in generated code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import warpdata as wd
from tests.servers import run_http
from warpdata.catalog.access import parse_name
from warpdata.catalog.manage.reports import loader_code
from warpdata.cli.main import main
from warpdata.errors import CorruptLayoutError, OutOfSpaceError, SettingsError
from warpdata.settings import Settings


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a disk can only be mounted by root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _folder(folder: Path) -> Path:
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}").write_bytes(os.urandom(300_000))
    return folder


ADD: dict[str, Callable[[wd.DatasetBuilder, Path], Any]] = {
    "columns": lambda b, _: b.add_table("main", {"x": [os.urandom(8).hex() for _ in range(200_000)]}),
    "rows": lambda b, _: b.add_table("main", ({"x": os.urandom(500).hex()} for _ in range(5_000))),
    "folder": lambda b, path: b.add_artifact("raw", _folder(path / "raw")),
}


@pytest.mark.parametrize("what", list(ADD))
def test_a_full_disk_while_staging(what: str, small_disk: Path, local_catalog: str, tmp_path: Path) -> None:
    with (
        wd.DatasetBuilder("ws/x", catalog=local_catalog, staging=small_disk) as builder,
        pytest.raises(OutOfSpaceError, match="no space left on the disk"),
    ):
        ADD[what](builder, tmp_path)


@pytest.mark.parametrize("kind", ["tar_shards", "files"])
def test_a_file_name_that_is_not_unicode_is_named(kind: str, local_catalog: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with open(os.fsencode(tmp_path / "files") + b"/bad-\xff.txt", "w"):
        pass
    with (
        wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder,
        pytest.raises(CorruptLayoutError, match="unsafe file name 'bad-"),
    ):
        builder.add_artifact("raw", tmp_path / "files", kind=kind)


def test_a_message_that_is_not_unicode(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", {"x": [1]})
        with pytest.raises(ValueError, match="message is not valid Unicode"):
            builder.publish(message="\udcff")


def test_latest_is_the_pointer_and_no_tag(local_catalog: str) -> None:
    for value in (1, 2):
        with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
            builder.add_table("main", {"x": [value]})
            with pytest.raises(ValueError, match="reserved"):
                builder.publish(tags=["latest"])
            builder.publish()
    assert parse_name("ws/x@latest") == parse_name("ws/x")
    assert wd.dataset("ws/x@latest", catalog=local_catalog).table().arrow()["x"].to_pylist() == [2]
    assert main(["tags", "set", "ws/x", "latest", "--catalog", local_catalog]) == 2


def test_an_empty_tag_is_refused(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", {"x": [1]}).publish()
    assert main(["tags", "set", "ws/x", "", "--catalog", local_catalog]) == 2


def test_a_world_of_no_ranks() -> None:
    with pytest.raises(SettingsError, match="WORLD_SIZE is '0', but must be a whole number from 1"):
        Settings.from_env({"WORLD_SIZE": "0"})


def test_generated_code_holds_no_signature(local_catalog: str) -> None:
    with wd.DatasetBuilder("ws/x", catalog=local_catalog) as builder:
        builder.add_table("main", {"x": [1]}).publish()
    with run_http(Path(local_catalog)) as server:
        catalog = f"{server.url}?X-Amz-Signature=hidden"
        with wd.dataset("ws/x", catalog=catalog) as ds:
            code = loader_code(ds)
    assert "hidden" not in code
    assert f"CATALOG = {server.url!r}" in code
