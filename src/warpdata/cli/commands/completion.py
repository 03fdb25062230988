"""`warp completion`: a completion script for the user's shell, made from the parser itself."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from warpdata.cli import exits

if TYPE_CHECKING:
    from warpdata.cli.console import Console
    from warpdata.cli.parser import Parser

_BASH = """_warp() {{
  local cur="${{COMP_WORDS[COMP_CWORD]}}" words=""
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands} --help --version --debug"; fi
  case "$cur" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W "${{words//--[a-z-]*/}}" -- "$cur") $(compgen -f -- "$cur")) ;;
  esac
}}
complete -o filenames -F _warp warp
"""

_ZSH = "autoload -U +X bashcompinit && bashcompinit\n" + _BASH

_FISH_COMMAND = "complete -c warp -n __fish_use_subcommand -a {name} -d '{help}'"
_FISH_FLAG = "complete -c warp -n '__fish_seen_subcommand_from {name}' -l {flag}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `warp completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace, console: Console) -> int:
    """Print the script for the chosen shell."""
    from warpdata.cli.main import build_parser

    commands = _words_by_command(build_parser())
    console.print(_fish(commands) if args.shell == "fish" else _bash(commands, args.shell))
    return exits.OK


def _words_by_command(parser: Parser) -> dict[str, tuple[str, list[str]]]:
    """Command -> (help, its flags and sub-commands)."""
    actions = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    found: dict[str, tuple[str, list[str]]] = {}
    for action in actions:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, sub in action.choices.items():
            sub.complete()
            found[name] = (helps.get(name, ""), _words(sub))
    return found


def _words(parser: argparse.ArgumentParser) -> list[str]:
    words: list[str] = []
    for action in parser._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices:
            words += [str(choice) for choice in action.choices]
    return words


def _bash(commands: dict[str, tuple[str, list[str]]], shell: str) -> str:
    cases = "\n".join(f'    {name}) words="{" ".join(words)}" ;;' for name, (_, words) in commands.items())
    return (_ZSH if shell == "zsh" else _BASH).format(cases=cases, commands=" ".join(commands))


def _fish(commands: dict[str, tuple[str, list[str]]]) -> str:
    lines = []
    for name, (text, words) in commands.items():
        lines.append(_FISH_COMMAND.format(name=name, help=text.replace("'", "")))
        lines += [_FISH_FLAG.format(name=name, flag=word[2:]) for word in words if word.startswith("--")]
    return "\n".join(lines)
