"""Text that others wrote never steers the terminal: one contract for every command and action of `warp`."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import COMMANDS, load_commands, main

EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J over\rwrite"

READING = {
    "show": ["show", "root"],
    "show one": ["show", "root#0"],
    "show shard": ["show", "evil.wshard"],
    "episodes": ["episodes", "root"],
    "inspect": ["inspect", "evil.wshard"],
    "inspect dataset": ["inspect", "ws/evil"],
    "inspect vectors": ["inspect", "evil.rvf"],
    "inspect corpus": ["inspect", "corpus"],
    "query": ["query", "ws/evil", "select * from main"],
    "query episodes": ["query", "root", "select * from episodes"],
    "check": ["check", "root"],
    "verify": ["verify", "root", "evil.wshard", "ws/evil", "evil.rvf", "corpus"],
    "edit": ["edit", "root", "log"],
    "versions list": ["versions", "list", "ws/evil"],
    "versions expire": ["versions", "expire", "ws/evil", "--keep", "1"],
    "tags list": ["tags", "list", "ws/evil"],
    "diff": ["diff", "ws/evil", "@v1"],
    "list-remote": ["list-remote"],
    "info": ["info", "ws/evil"],
    "schema": ["schema", "ws/evil"],
    "head": ["head", "ws/evil"],
    "cat": ["cat", "ws/evil", "--artifact", "raw"],
    "lanes list": ["lanes", "list", "ws/evil"],
    "why": ["why", "state.json", "0"],
    "replay": ["replay", "root#0", "--fast"],
    "vectors search": ["vectors", "search", "evil.rvf", "0.1,0.2"],
    "vectors get": ["vectors", "get", "evil.rvf", "0"],
    "vectors scroll": ["vectors", "scroll", "evil.rvf"],
    "similar": ["similar", "root#0", "--at", "0.1s"],
    "vectors info": ["vectors", "info", "evil.rvf"],
    "vectors verify": ["vectors", "verify", "evil.rvf"],
    "corpus info": ["corpus", "info", "corpus"],
    "corpus verify": ["corpus", "verify", "corpus"],
    "corpus stats": ["corpus", "stats", "corpus"],
    "corpus head": ["corpus", "head", "corpus"],
    "corpus sample": ["corpus", "sample", "corpus"],
    "cache": ["cache", "stats"],
    "doctor": ["doctor"],
    "repair": ["repair", "ws/evil"],
    "gc-remote": ["gc-remote"],
    "spec": ["spec", "wshard"],
    "completion": ["completion", "bash"],
    "salvage": ["salvage", "root"],
    "export": ["export", "mcap", "root", "exported"],
    "import": ["import", "nothing\x1b[31m", "target"],
    "warm": ["warm", "ws/evil"],
}
"""Commands over a world whose texts all hold control sequences; a second word after the name is an action."""

OTHERS = {
    "record": "prints what it recorded itself",
    "demo": "runs other commands",
    "view": "serves until it is stopped",
    "stream": "writes data for programs",
    "publish": "prints hashes and counts",
    "versions delete": "prints hashes",
    "tags set": "prints as `tags list`",
    "tags delete": "prints as `tags list`",
    "copy": "prints hashes and counts",
    "init": "prints a path",
    "lanes add": "prints counts",
    "convert": "prints as `export`",
    "pack": "prints a path",
    "unpack": "prints a path",
    "chunk": "prints a path",
    "join": "prints a path",
    "embed": "prints counts",
    "vectors create": "prints a path",
    "vectors add": "prints a path",
    "vectors export": "prints a path",
    "vectors index": "prints counts",
    "vectors compact": "prints counts",
    "vectors sign": "prints a key id",
    "vectors update": "prints counts",
    "vectors delete": "prints counts",
    "corpus convert": "prints a path",
}
"""Commands that print nothing of the data, through the same `Console` as the others."""


def test_every_command_is_in_one_of_the_tables() -> None:
    commands = {f"{name} {action}".strip() for name in COMMANDS for action in load_commands(name)}
    covered = {name for name in commands if any(f"{case} ".startswith(f"{name} ") for case in READING)}
    assert covered | set(OTHERS) == commands
    assert not covered & set(OTHERS)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for number in range(2):
            with wd.record("root", static={"task": EVIL, "note": {EVIL: EVIL}}, clock="simulated") as rec:
                for k in range(3):
                    rec.step(
                        {"joints": np.float32([k, number])}, {"go": np.float32([k])}, ts_ns=k * 50_000_000
                    )
                    rec.append("words", EVIL, k * 50_000_000 + 1)
        wd.open_recordings("root").edits.set_static("0", "note", EVIL)
        wd.pack_episode("root#0", "evil.wshard")
        (folder / "raw").mkdir()
        (folder / "raw" / "a.txt").write_bytes(b"x")
        for version in ("v1", "v2"):
            with wd.DatasetBuilder("ws/evil", catalog=folder / "catalog") as builder:
                builder.add_table("main", {"text": [EVIL, version], EVIL: [1, 2]})
                builder.add_episodes("demos", "root")
                builder.add_artifact("raw", "raw")
                builder.describe(description=EVIL, license=EVIL, **{EVIL: EVIL})
                builder.publish(message=EVIL, tags=(version,))
        with wd.VectorStore.create("evil.rvf", dim=2) as store:
            store.add(np.eye(2, dtype=np.float32), metadata=[{"label": EVIL}, {"label": "b"}])
        with wd.CorpusWriter("corpus", 4, provenance={"model": EVIL}) as corpus:
            corpus.append(np.ones((3, 4), np.float32))
        windows = wd.Windows(wd.open("root"), {"state": "joints"}, anchor="go")
        wd.Loader(windows, batch_size=2).save_state("state.json")
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("case", READING)
def test_control_sequences_of_others_do_not_reach_the_terminal(
    case: str, as_json: bool, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if as_json and case in ("spec", "completion"):
        pytest.skip("has no --json")
    monkeypatch.chdir(world)
    monkeypatch.setenv("WARP_CATALOG", str(world / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(world / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("WARP_NO_PROGRESS", "1")
    out, err = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    code = main([*READING[case], *(["--json"] if as_json else [])])
    assert code in (0, 1, 3), err.getvalue()
    text = re.sub(
        r"\x1b\[\d+A\x1b\[J", "", out.getvalue() + err.getvalue()
    )  # `replay` draws over its own table
    assert text
    assert not as_json or "\x1b" not in out.getvalue()
    assert [c for c in text if c != "\n" and not c.isprintable()] == []


def test_a_second_file_is_no_episode_of_the_first(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    assert main(["inspect", "evil.wshard", "evil.rvf"]) == 2
    assert "evil.rvf is a file, not an episode of evil.wshard" in capsys.readouterr().err
