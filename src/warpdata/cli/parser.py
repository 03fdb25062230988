"""The parser of `warp`: a misspelt command, choice or option names the one that was meant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from warpdata.cli.console import give_up
from warpdata.errors import nearest


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors name the nearest right word; its commands have parsers of the same class.

    `complete` adds the arguments when they are first needed, so that `warp` does not make those of all its commands to
    run one.
    """

    def __init__(self, *args: Any, complete: Callable[[Parser], None] | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._to_complete = complete

    def complete(self) -> None:
        """Add the arguments if they are not there yet."""
        to_complete, self._to_complete = self._to_complete, None
        if to_complete is not None:
            to_complete(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is not None and value not in choices:
            known = [str(each) for each in choices]
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
        """Parse; an option this command does not have is an error here, where its options are known."""
        self.complete()
        found, rest = super().parse_known_args(args, namespace)
        if rest and not self._subparsers:
            self._unknown(rest)
        return found, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print; help that cannot be written is an error (argparse says nothing), an error is one already."""
        try:
            file.write(message)
            file.flush()
        except OSError:
            if file is sys.stdout:
                raise
            give_up(file)

    def _unknown(self, rest: Sequence[str]) -> NoReturn:
        wrong = next((word for word in rest if word.startswith("-")), "")
        hint = nearest(wrong.partition("=")[0], self._option_string_actions) if wrong else ""
        self.error(
            f"unrecognized arguments: {' '.join(rest)}.{hint}"
            if hint
            else f"unrecognized arguments: {' '.join(rest)}"
        )
