"""The frame of `warp`: version, help, usage errors, completion, progress."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from warpdata import __version__
from warpdata.cli.console import Console, human_bytes, table
from warpdata.cli.main import COMMANDS, build_parser, command_module, main


def warp(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "warpdata", *arguments], capture_output=True, text=True)


def test_version() -> None:
    done = warp("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"warp {__version__}")


def test_stopping_while_a_command_is_loaded_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("warpdata.cli.main.command_module", stop)
    assert main(["import", "a", "b"]) == 130
    assert capsys.readouterr().err.strip() == "error[interrupted]: stopped by the user"


def test_help_lists_every_command() -> None:
    text = build_parser().format_help()
    for name, purpose in COMMANDS.items():
        assert name in text
        assert purpose.split()[0] in text
        assert command_module(name).run


def test_a_command_makes_the_arguments_of_no_other() -> None:
    script = (
        "import sys; from warpdata.cli.main import build_parser;"
        "build_parser().parse_args(['spec']);"
        "print([name for name in sys.modules if name.startswith('warpdata.cli.commands.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "spec" in done.stdout
    assert "publish" not in done.stdout


def test_usage_error_is_2() -> None:
    assert warp("nonsense").returncode == 2


def test_no_command_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "COMMAND" in capsys.readouterr().out


def test_completion_is_valid_bash_and_knows_the_commands() -> None:
    script = warp("completion", "bash").stdout
    probe = f"{script}\nCOMP_WORDS=(warp comp); COMP_CWORD=1; _warp; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", probe], capture_output=True, text=True, check=True)
    assert "completion" in done.stdout.split()
    assert "complete -c warp" in warp("completion", "fish").stdout
    assert "bashcompinit" in warp("completion", "zsh").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_only_on_a_terminal() -> None:
    for stream, visible in [(io.StringIO(), False), (Terminal(), True)]:
        with Console(err=stream).progress("work") as bar:
            bar(1, 2)
            bar(2, 2)
        assert bool(stream.getvalue()) is visible


def test_render() -> None:
    assert human_bytes(0) == "0 B"
    assert human_bytes(1024) == "1.0 KiB"
    assert human_bytes(5 * 1024**5) == "5120.0 TiB"
    lines = table([["a", "1"], ["bcd", "22"]], ["name", "n"], right=[1])
    assert lines == ["name   n", "────  ──", "a      1", "bcd   22"]


def in_shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell in which `warp` is the command, with output that Python collects before it writes."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f'warp() {{ "{sys.executable}" -m warpdata "$@"; }}; {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env={**env, **variables})


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("warp --help > /dev/full", 1, "No space left"),
        ("warp spec wshard > /dev/full", 1, "No space left"),
        ("warp spec wshard | head -1 > /dev/null; exit ${PIPESTATUS[0]}", 0, ""),
        ("warp --help | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("warp spec >&-", 0, ""),
        ("warp inspect nothing_there 2> /dev/full", 1, ""),
        ("warp nonsense 2> /dev/full", 2, ""),
    ],
)
def test_streams_that_take_nothing(command: str, code: int, said: str) -> None:
    done = in_shell(command)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


def test_a_terminal_of_few_letters_shows_what_it_has() -> None:
    for command in ("warp --help", "warp spec wshard"):
        done = in_shell(command, PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.isascii()
        assert "?" in done.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_json_of_any_name_is_json(encoding: str) -> None:
    said = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    value = {"path": os.fsdecode(b"caf\xc3\xa9-\xff.wshard"), "signals": ["é"]}
    Console(as_json=True, out=said).emit(value)
    said.flush()
    assert json.loads(said.buffer.getvalue().decode(encoding)) == value  # type: ignore[attr-defined]
