"""Text that others wrote never steers the terminal: one contract that runs every command and action of `warp`."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import warpdata as wd
from warpdata.cli.main import COMMANDS, load_commands, main

EVIL = "\x1b[31mred\x1b]0;title\x07 \x9b2J over\rwrite"
ODD = "odd\x1b[31m\x9b"
"""Part of a file name."""

CASES = f"""
record new --demo --duration 0.1s --fast
salvage root
salvage unfinished
replay root#0 --fast
show root
show root#0
show evil.wshard
list root
inspect evil.wshard
inspect ws/evil
inspect evil.rvf
inspect corpus
query ws/evil 'select * from main'
query root 'select * from episodes'
view root --no-open
view root --export site
check root
edits list root
edits drop root#0
edits undrop root#0
edits set root#0 'note={EVIL}'
edits trim root#0 --start 10ms
edits split root#0 --at 50ms
edits concat root 0 1 --gap 10ms
edits undo root
verify root evil.wshard ws/evil evil.rvf corpus
publish ws/evil root --message '{EVIL}'
versions list ws/evil
versions delete ws/evil 00000000
versions expire ws/evil --keep 1
tags list ws/evil
tags set ws/evil other
tags delete ws/evil v1
diff ws/evil @v1
copy ws/evil --to elsewhere
catalog list
info ws/evil
schema ws/evil
head ws/evil
stream ws/evil --format ndjson
cat ws/evil --artifact raw
warm ws/evil
init ws/evil --output '{ODD}.py'
why state.json 0
lanes list ws/evil
lanes add ws/evil '{ODD}' embedders:predict --of joints
import mcap exported imported
import 'nothing{ODD}' target
export mcap root more
convert exported converted.zarr
pack root#0 -o '{ODD}.wshard'
unpack evil.wshard -o '{ODD}'
chunk evil.wshard --steps 2 -o chunks
join cut/000000000000_manifest.wshard -o '{ODD}.wshard'
spec wshard
embed root state
embed root embedders:fail
similar root#0 --at 0.1s
vectors create '{ODD}.rvf' --dim 3
vectors add evil.rvf vectors.npy
vectors search evil.rvf 0.1,0.2
vectors get evil.rvf 0
vectors scroll evil.rvf
vectors update evil.rvf 0 --set 'label={EVIL}'
vectors delete evil.rvf 0
vectors show evil.rvf
vectors verify evil.rvf
vectors export evil.rvf '{ODD}.parquet'
vectors index evil.rvf
vectors compact evil.rvf
vectors sign evil.rvf --key '{ODD}.pem'
corpus show corpus
corpus verify corpus
corpus measure corpus
corpus head corpus
corpus sample corpus
corpus convert vectors.npy '{ODD}'
cache show
cache gc
cache clear
doctor
repair ws/evil
catalog gc
completion bash
"""
LINES = [line for line in re.split(r"\n", CASES) if line]
BYTES = {"demo"}
"""`demo` runs other commands; it has a test of its own."""


def test_every_command_is_run() -> None:
    commands = {f"{name} {action}".strip() for name in COMMANDS for action in load_commands(name)}
    covered = {name for name in commands if any(f"{line} ".startswith(f"{name} ") for line in LINES)}
    assert covered | BYTES == commands


class Terminal(io.TextIOWrapper):
    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every text holds control sequences."""
    folder = tmp_path_factory.mktemp("world")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for number in range(2):
            with wd.record("root", static={"task": EVIL, "note": {EVIL: EVIL}}, clock="simulated") as rec:
                for k in range(3):
                    row = {"joints": np.float32([k, number])}
                    rec.step(row, {"go": np.float32([k])}, ts_ns=k * 50_000_000)
                    rec.append("words", EVIL, k * 50_000_000 + 1)
        wd.open_recordings("root").edits.set_static("0", "note", EVIL)
        wd.pack_episode("root#0", "evil.wshard")
        wd.chunk_episode("evil.wshard", "cut", 2)
        wd.export_episodes("root", "exported", "mcap")
        (folder / "unfinished.wshard.partial").write_bytes(b"nothing")
        (folder / "raw").mkdir()
        (folder / "raw" / "a.txt").write_bytes(b"x")
        for version in ("v1", "v2"):
            with wd.DatasetBuilder("ws/evil", catalog="catalog") as builder:
                builder.add_table("main", {"text": [EVIL, version], EVIL: [1, 2]})
                builder.add_episodes("demos", "root")
                builder.add_artifact("raw", "raw")
                builder.describe(description=EVIL, license=EVIL, **{EVIL: EVIL})
                builder.publish(message=EVIL, tags=(version,))
        with wd.VectorStore.create("evil.rvf", dim=2) as store:
            store.add(np.eye(2, dtype=np.float32), metadata=[{"label": EVIL}, {"label": "b"}])
        np.save("vectors.npy", np.ones((3, 2), np.float32))
        with wd.CorpusWriter("corpus", 4, provenance={"model": EVIL}) as corpus:
            corpus.append(np.ones((3, 4), np.float32))
        windows = wd.Windows(wd.open("root"), {"state": "joints"}, anchor="go")
        wd.Loader(windows, batch_size=2).save_state("state.json")
        (folder / "embedders.py").write_text(
            f"def predict(episode): return episode['joints'].values()\ndef fail(step): raise ValueError({EVIL!r})\n"
        )
    finally:
        os.chdir(before)
    return folder


@pytest.mark.parametrize("line", LINES)
def test_control_sequences_of_others_do_not_reach_the_terminal(
    line: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(world, tmp_path / "w")
    monkeypatch.chdir(tmp_path / "w")
    monkeypatch.setenv("WARP_CATALOG", str(tmp_path / "w" / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("WARP_NO_PROGRESS", "1")
    monkeypatch.setattr("warpdata.viewer.server.Viewer.wait", lambda _: None)
    has_json = line.split()[0] != "completion"
    for words in [shlex.split(line), *([[*shlex.split(line), "--json"]] if has_json else [])]:
        out, err = Terminal(), Terminal()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        assert main(words) in (0, 1, 2, 3)
        text = re.sub(r"\x1b\[\d+A\x1b\[J", "", out.text() + err.text())  # `replay` draws over its own table
        assert text
        assert [c for c in text if c != "\n" and not c.isprintable()] == []


def test_a_second_file_is_no_episode_of_the_first(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    assert main(["inspect", "evil.wshard", "evil.rvf"]) == 2
    assert "evil.rvf is a file, not an episode of evil.wshard" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["doctor", EVIL], [EVIL], ["edits", EVIL], ["show", f"--{EVIL}"]])
def test_wrong_words_of_a_command_are_shown_without_control_codes(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell puts the names of files there."""
    with contextlib.suppress(SystemExit):
        main(words)
    text = capsys.readouterr().err
    assert "error" in text
    assert [c for c in text if c != "\n" and not c.isprintable()] == []
