"""One suite for three languages: the same values or the same refusal of every file; what one writes the others read."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import warpdata as wd
from tests.conformance.describe import describe, plain
from tests.conformance.languages import (
    GO,
    TYPESCRIPT,
    Language,
    Python,
    build_go,
    build_typescript,
    go_command,
    go_variables,
    npm_command,
    run,
)
from tests.conftest import OWN_GOLDEN, ROOT, shared_golden
from tests.sweeps import thinned
from warpdata.errors import ConflictError
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.verify import verify_shard

SUITE = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((SUITE / "expected.json").read_text())
FILES: dict[str, Any] = EXPECTED["files"]
LANGUAGES = ("python", "typescript", "go")

ODD_VALUES = {
    "done_u8_odd": ["flag_value"] * 2,
    "done_f32_odd": ["flag_value"],
    "times_fall": ["clock_order"] * 2,
}
"""What verifying says of values that no file of ours has when it is new, and that are kept when it is written again."""

# The first build of a compiler's standard library takes its time on a small machine.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="session")
def language(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A language by name, built once."""
    made: dict[str, Language] = {"python": Python()}

    def found(name: str) -> Language:
        if name not in made:
            build = {"typescript": build_typescript, "go": build_go}[name]
            made[name] = build(tmp_path_factory.mktemp(name))
        return made[name]

    return found


@pytest.mark.skipif(zstandard.ZSTD_VERSION < (1, 5, 7), reason="an older zstd compresses to other bytes")
def test_the_suite_is_what_the_tool_writes(tmp_path: Path) -> None:
    tool = importlib.import_module("tools.make_conformance")
    tool.write(tmp_path)
    names = sorted(path.relative_to(SUITE / "files") for path in (SUITE / "files").rglob("*.wshard"))
    assert names == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.wshard"))
    for name in names:
        assert (tmp_path / name).read_bytes() == (SUITE / "files" / name).read_bytes(), name
    assert tool.constants() == EXPECTED["layout"]


def test_the_suite_says_what_is_good_and_what_is_damaged() -> None:
    good = {name for name, said in FILES.items() if "error" not in said}
    assert {name for name in FILES if "/good/" in name} <= good
    assert not {name for name in FILES if "/bad/" in name} & good
    codes = {said["error"] for said in FILES.values() if "error" in said}
    assert codes == {
        "bad_magic",
        "unsupported_version",
        "truncated",
        "checksum",
        "corrupt_layout",
        "limit_exceeded",
        "not_found",
    }


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_file_is_read_or_refused_as_expected(name: str, language: Any) -> None:
    found = language(name).describe(ROOT / "tests" / each for each in FILES)
    differences = [
        (file, _difference(said, wanted))
        for (file, wanted), said in zip(FILES.items(), found, strict=True)
        if said != wanted
    ]
    assert not differences


@pytest.mark.parametrize("name", ["typescript", "go"])
def test_files_of_other_programs_are_read_alike(name: str, language: Any) -> None:
    files = sorted(shared_golden("wshard").rglob("*.wshard"))
    assert len(files) > 10
    for file, mine, other in zip(
        files, Python().describe(files), language(name).describe(files), strict=True
    ):
        assert "error" not in mine, file
        assert other == mine, file


def _difference(said: dict[str, Any], wanted: dict[str, Any]) -> Any:
    if "error" in said or "error" in wanted:
        return said.get("error"), wanted.get("error")
    return {
        key: (said.get(key), wanted.get(key)) for key in said | wanted if said.get(key) != wanted.get(key)
    }


def _large(path: Path) -> Path:
    """Blocks above the size from which they carry checksums of their pieces, raw and compressible."""
    episode = wd.WShardEpisode(id="large", env_id="E", length=700)
    noise = np.random.default_rng(3)
    episode.observations["noise"] = noise.integers(0, 256, (700, 16, 16, 9), dtype=np.uint8)
    episode.observations["ramp"] = np.repeat(np.arange(700, dtype=np.float32), 700).reshape(700, 700)
    wd.save_wshard(episode, path, {"ramp": "zstd-seekable"})
    return path


def _sources(folder: Path) -> list[Path]:
    """Episodes with everything the format has a place for."""
    golden = [OWN_GOLDEN / "wshard" / f"{name}.wshard" for name in ("lanes", "words", "dtypes", "compressed")]
    lists = [
        SUITE / "files" / "chunks" / name / f"golden_{name}_manifest.wshard" for name in ("lanes", "words")
    ]
    lists.append(SUITE / "files" / "chunks" / "residuals" / "residuals_manifest.wshard")
    packed = [OWN_GOLDEN / "packed" / f"{name}.wshard" for name in ("steps", "recording_0")]
    odd = (
        "more_keys",
        "odd_numbers",
        "clock",
        "json",
        "blocks",
        "lanes_unlisted",
        "range_last",
        "reward_i64",
        "exact_flags",
        "absent_flags",
        "empty_rows",
        "no_steps",
        "unicode",
        "done_f32",
        "done_f32_odd",
        "done_u8_odd",
        "times_fall",
    )
    return [
        *golden,
        *lists,
        *packed,
        *(SUITE / "files" / "good" / f"{name}.wshard" for name in odd),
        _large(folder / "large.wshard"),
    ]


def _written_again(said: dict[str, Any]) -> dict[str, Any]:
    """What a copy says: chunks joined into one shard are an episode like any other."""
    return {**said, "kind": "episode" if said["kind"] == "chunks" else said["kind"]}


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("writer", LANGUAGES)
def test_what_one_language_writes_the_others_read(
    writer: str, compression: str, language: Any, tmp_path: Path
) -> None:
    sources = _sources(tmp_path)
    folder = tmp_path / "copies"
    folder.mkdir()
    copies = [folder / source.name for source in sources]
    language(writer).copy(sources, folder, compression)
    wanted = [_written_again(plain(describe(source))) for source in sources]
    for reader in LANGUAGES:
        for source, said, want in zip(sources, language(reader).describe(copies), wanted, strict=True):
            assert said == want, (writer, reader, source.name, _difference(said, want))
    for source, copy in zip(sources, copies, strict=True):
        found = verify_shard(copy, full=True)
        assert not any(each.is_damage for each in found), source.name
        odd = [each.code for each in found if each.code in ("flag_value", "clock_order")]
        assert odd == ODD_VALUES.get(source.stem, []), source.name
    assert ShardReader.open(folder / "large.wshard").block("signal/ramp").codec == compression
    assert "aux/crc32c/signal/noise" in ShardReader.open(folder / "large.wshard")


@pytest.mark.parametrize("name", ["typescript", "go"])
def test_damage_is_refused_alike(name: str, language: Any, tmp_path: Path) -> None:
    """One changed byte anywhere: all three refuse the file, or all three read the same in it."""
    dice = random.Random(20)
    files = []
    for base in (
        "good/foreign",
        "good/base",
        "good/seekable",
        "good/zstd_checksum",
        "good/lz4",
        "good/text",
        "good/lanes_unlisted",
    ):
        whole = (SUITE / "files" / f"{base}.wshard").read_bytes()
        for number in range(60):
            damaged = bytearray(whole)
            # Most of it where structure is: header, table and metadata.
            at = dice.randrange(len(whole) if number % 3 == 0 else min(len(whole), 1200))
            if number % 10 == 9:
                del damaged[at:]
            else:
                damaged[at] ^= 1 << dice.randrange(8)
            files.append(tmp_path / f"{len(files)}.wshard")
            files[-1].write_bytes(damaged)
    files = thinned(files, 140)
    refusals = 0
    for file, mine, other in zip(
        files, Python().describe(files), language(name).describe(files), strict=True
    ):
        refusals += "error" in mine
        assert ("error" in other) == ("error" in mine), (file, mine.get("error"), other.get("error"))
        assert "error" in mine or other == mine, (file, _difference(other, mine))
    assert refusals > len(files) / 2


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_file_is_replaced_only_when_asked(name: str, language: Any, tmp_path: Path) -> None:
    source = SUITE / "files" / "good" / "base.wshard"
    (tmp_path / source.name).write_text("mine")
    copier = language(name)
    with pytest.raises((AssertionError, ConflictError), match="target exists"):
        copier.copy([source], tmp_path, "none")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(source.name, "mine")]
    copier.copy([source], tmp_path, "none", overwrite=True)
    assert wd.load_wshard(tmp_path / source.name) == wd.load_wshard(source)


def test_the_typescript_package() -> None:
    run([npm_command(), "test"], TYPESCRIPT)


def test_the_go_package() -> None:
    run([go_command(), "test", "./..."], GO, **go_variables())
    run([go_command(), "vet", "./..."], GO, **go_variables())
