"""The frame of `warp`: version, help, usage errors, completion, progress."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from warpdata import __version__
from warpdata.cli.console import Console, Output, human_bytes, table
from warpdata.cli.main import COMMANDS, GROUPS, build_parser, load_commands, main


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

    monkeypatch.setattr("warpdata.cli.main.load_commands", stop)
    assert main(["import", "a", "b"]) == 130
    assert capsys.readouterr().err.strip() == "error[interrupted]: stopped by the user"


def test_help_groups_every_command_by_job() -> None:
    text = build_parser().format_help()
    for title, group in GROUPS.items():
        lines = text.partition(f"\n{title}:\n")[2].split("\n\n")[0].splitlines()
        assert [line.split()[0] for line in lines] == list(group)
    assert max(map(len, text.splitlines())) <= 80


ACTIONS = [(name, action) for name in COMMANDS for action in load_commands(name)]


@pytest.mark.parametrize(("name", "action"), ACTIONS, ids=lambda word: word or "-")
def test_every_command_has_help_with_an_example_that_parses(
    name: str, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [name, action] if action else [name]
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    example = load_commands(name)[action].example
    assert example in capsys.readouterr().out
    given = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
    assert given[: len(words) + 1] == ["warp", *words]
    assert callable(build_parser().parse_args(given[1:]).run)


@pytest.mark.parametrize("text", ["\x1b[31mred", "a\x07bell", "\x9b2J", "over\rwrite"])
def test_text_of_others_does_not_steer_the_terminal(text: str) -> None:
    """Names, messages and metadata reach a terminal without control characters, however they are printed."""
    out, err = Terminal(), Terminal()
    console = Console(out=out, err=err)
    console.print(f"message {text}", {"message": "bold"})
    console.show(Output({}, [text], rows=[{"a": text}], columns={"a": "a"}, footer=[text]))
    console.error("code", text, text)
    for stream in (out, err):
        shown = re.sub(r"\x1b\[(1|31|0)m(?=message|error|:|\s|$)", "", stream.getvalue())
        assert all(c == "\n" or c.isprintable() for c in shown), shown


def test_a_command_makes_the_arguments_of_no_other() -> None:
    script = (
        "import sys; from warpdata.cli.main import build_parser;"
        "build_parser().parse_args(['spec']);"
        "print([name for name in sys.modules if name.startswith('warpdata.cli.commands.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "formats" in done.stdout
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
    Console(as_json=True, out=said).show(Output(value))
    said.flush()
    assert json.loads(said.buffer.getvalue().decode(encoding)) == value  # type: ignore[attr-defined]
