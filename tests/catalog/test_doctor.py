"""`warp doctor`: every fault of a machine and of a store is a check that says so, and none ends the report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.memory_store import MemoryStore
from warpdata.catalog.access import Catalog, access_options
from warpdata.catalog.manage import doctor
from warpdata.errors import MissingExtraError, PermissionError_, TruncatedError, UnavailableError
from warpdata.settings import Settings


class NoAnswer(MemoryStore):
    def folders(self, prefix: str) -> Any:
        raise UnavailableError("nobody answers", path=prefix)


class ReadOnly(MemoryStore):
    def put_if_absent(self, key: str, data: Any) -> Any:
        raise PermissionError_("it may not be written", path=key)


class NoRanges(MemoryStore):
    def get_ranges(self, *args: Any, **options: Any) -> Any:
        raise TruncatedError("the answer is short")


class Unconditional(MemoryStore):
    def compare_and_swap(self, key: str, data: Any, etag: str | None) -> Any:
        with self._lock:
            return self._put(key, bytes(data))


class Late(MemoryStore):
    def __init__(self) -> None:
        super().__init__(now_s=lambda: 0.0)


def examine(**changes: Any) -> dict[str, doctor.Check]:
    settings = Settings.from_env()
    return {check.name: check for check in doctor.examine(settings, access_options(settings, **changes))}


@pytest.mark.parametrize(
    ("kind", "failing", "found", "remedy"),
    [
        (MemoryStore, {}, "", ""),
        (NoAnswer, {"": True}, "nobody answers", ""),
        (ReadOnly, {": publish": False}, "may not be written", "write access"),
        (NoRanges, {": range read": True}, "the answer is short", "answers ranges"),
        (Unconditional, {": conditional put": False}, "ignores conditions", "conditional writes"),
        (Late, {": clock": False}, " s apart", "clock"),
    ],
)
def test_each_fault_of_a_store_is_a_check(
    kind: type[MemoryStore],
    failing: dict[str, bool],
    found: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = kind()
    access = SimpleNamespace(catalogs=[Catalog(store.address, store)], close=store.close)
    monkeypatch.setattr(doctor, "Access", lambda options: access)
    checks = {
        name.removeprefix(f"catalog {store.address}"): check
        for name, check in examine().items()
        if name.startswith("catalog")
    }
    assert {name: check.is_needed for name, check in checks.items() if not check.is_ok} == failing
    for name in failing:
        assert found in checks[name].found
        assert remedy in checks[name].remedy
        assert checks[name].remedy
    assert not list(store.list("probe/"))


def test_each_fault_of_a_machine_is_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise MissingExtraError("duckdb is too old")

    monkeypatch.setattr(doctor, "engine_check", broken)
    (tmp_path / "file").write_text("")
    checks = examine(
        catalogs=("s3://bucket/x", str(tmp_path / "misspelt" / "catalog")),
        mode="local",
        cache_dir=tmp_path / "file",
    )
    assert not checks["duckdb"].is_ok
    assert "pip install" in checks["duckdb"].remedy
    assert not checks["cache folder"].is_ok
    assert "WARP_CACHE_DIR" in checks["cache folder"].remedy
    assert checks["catalog s3://bucket/x"].found == "offline: not checked"
    assert "credentials for s3" in checks
    absent = checks[f"catalog {tmp_path / 'misspelt' / 'catalog'}"]
    assert absent.is_ok
    assert "publishing makes it" in absent.found
    assert checks[f"catalog {tmp_path / 'misspelt' / 'catalog'}: conditional put"].is_ok
    assert not (tmp_path / "misspelt").exists(), "who only looks leaves no folder"


def test_a_file_is_no_catalog(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checks = examine(catalogs=(str(tmp_path / "file"),))
    assert not checks[f"catalog {tmp_path / 'file'}: publish"].is_ok
