"""The parser of `warp`: errors about a misspelt command, choice or option suggest the nearest one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from warpdata.cli.console import give_up
from warpdata.errors import nearest


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with suggestions; its commands have parsers of the same class.

    `complete` adds the arguments of a command when they are first needed.
    """

    def __init__(self, *args: Any, complete: Callable[[Parser], None] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._to_complete = complete

    def complete(self) -> None:
        """Add the arguments if they are missing."""
        to_complete, self._to_complete = self._to_complete, None
        if to_complete is not None:
            to_complete(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            known = [str(choice) for choice in choices]
            text = f"invalid choice: {value!r} (choose from {', '.join(known)}).{nearest(str(value), known)}"
            raise argparse.ArgumentError(action, text)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if arg_strings == ["--"] and action.option_strings and action.nargs is None:
            # Older Pythons take it for an empty list.
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse; unknown options are reported by the command that lacks them."""
        self.complete()
        parsed, rest = super().parse_known_args(args, namespace)
        if rest and not self._subparsers:
            self._report_unknown(rest)
        return parsed, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; unlike argparse, raise if help cannot be written."""
        try:
            file.write(message)
            file.flush()
        except OSError:
            if file is sys.stdout:
                raise
            give_up(file)

    def _report_unknown(self, rest: Sequence[str]) -> NoReturn:
        option = next((word for word in rest if word.startswith("-")), "")
        hint = nearest(option.partition("=")[0], self._option_string_actions) if option else ""
        self.error(f"unrecognized arguments: {' '.join(rest)}{'.' + hint if hint else ''}")
