"""The three programs that read and write WShard behind the same two functions: describe files, copy episodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.describe import describe, plain
from tests.conftest import ROOT
from warpdata.formats.wshard import layout
from warpdata.formats.wshard.chunks import ChunkedEpisodeReader
from warpdata.formats.wshard.episode import load_wshard
from warpdata.formats.wshard.reader import ShardReader
from warpdata.formats.wshard.save import save_wshard

TYPESCRIPT, GO = ROOT / "packages" / "wshard", ROOT / "packages" / "wshard-go"
_AT_ONCE = 200


class Python:
    """The library itself."""

    def describe(self, files: Iterable[Path]) -> list[dict[str, Any]]:
        return [plain(describe(path)) for path in files]

    def copy(self, sources: list[Path], folder: Path, compression: str, *, overwrite: bool = False) -> None:
        for source in sources:
            is_list = ShardReader.open(source).role == layout.ROLE_CHUNK_LIST
            episode = ChunkedEpisodeReader(source).episode() if is_list else load_wshard(source)
            save_wshard(episode, folder / source.name, compression, overwrite=overwrite)


class Commands:
    """`wshard-dump` and `wshard-copy` of another language."""

    def __init__(self, dump: list[str], copy: list[str]) -> None:
        self._dump, self._copy = dump, copy

    def describe(self, files: Iterable[Path]) -> list[dict[str, Any]]:
        names = [str(path) for path in files]
        found: list[dict[str, Any]] = []
        for start in range(0, len(names), _AT_ONCE):
            text = run([*self._dump, "--full", "--lines", *names[start : start + _AT_ONCE]])
            found += [plain(json.loads(line)) for line in text.strip().split("\n")]
        assert len(found) == len(names)
        return found

    def copy(self, sources: list[Path], folder: Path, compression: str, *, overwrite: bool = False) -> None:
        how = ["--zstd"] * (compression == "zstd") + ["--overwrite"] * overwrite
        run([*self._copy, *how, *map(str, sources), str(folder)])


Language = Python | Commands


def run(command: list[str], folder: Path = ROOT, **variables: str) -> str:
    """The output of a command that must succeed."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"{command[:3]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def go_command() -> str:
    """The Go tool that `make test` installed; the test skips where there is none."""
    found = shutil.which("go") or shutil.which("go", path=str(ROOT / ".venv" / "bin"))
    if found is None:
        pytest.skip("Go is not here: packages/wshard-go/install.sh could not install it")
    return found


def go_variables() -> dict[str, str]:
    """What keeps Go off the network, where its one module was taken from Debian."""
    return {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=vendor" if (GO / "vendor").exists() else ""}


def npm_command() -> str:
    """npm, with the packages of the TypeScript reader beside it; the test skips where they are not."""
    found = shutil.which("npm")
    if found is None:
        pytest.skip("npm is not here")
    if not (TYPESCRIPT / "node_modules" / "fzstd").exists():
        pytest.skip("the packages of packages/wshard are not here: `npm ci` could not install them")
    return found


def build_typescript(folder: Path) -> Commands:
    """The commands of the TypeScript package, bundled into this folder."""
    npm_command()
    run(
        [str(TYPESCRIPT / "node_modules/.bin/esbuild"), "bin/dump.ts", "bin/copy.ts", "--bundle", "--platform=node",
         "--format=esm", "--out-extension:.js=.mjs", f"--outdir={folder}", "--log-level=error"], TYPESCRIPT,
    )  # fmt: skip
    return Commands(["node", str(folder / "dump.mjs")], ["node", str(folder / "copy.mjs")])


def build_go(folder: Path) -> Commands:
    """The commands of the Go package, built into this folder."""
    run([go_command(), "build", "-o", f"{folder}/", "./cmd/..."], GO, **go_variables())
    return Commands([str(folder / "wshard-dump")], [str(folder / "wshard-copy")])
