"""Commands as typed functions: parameters are the arguments, one table has the meaning of every name.

    @command("warp sign FILE --key lab.pem")
    def run_sign(warp: Warp, file: str, *, key: str) -> Output:

Parameters before `*` are words, those behind it options; without a default they are required. Options of the fields of
a TypedDict (`**options: Unpack[…]`) are passed on only where they are given. `--json` is added to every command,
`--catalog` and `--mode` to those that name a dataset or an address.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict, Union

from warpdata.cli.console import Column, Console, Output, Progress
from warpdata.errors import nearest

if TYPE_CHECKING:
    from warpdata.catalog.access import Access
    from warpdata.catalog.dataset import Dataset
    from warpdata.episodes.collection.episodes import Episodes
    from warpdata.timeline.episode import Episode


def time_argument(text: str) -> int:
    """A duration in nanoseconds: `0.1s`, `250ms`, or a number of nanoseconds."""
    from warpdata.timeline.times import parse_time_ns

    try:
        return parse_time_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment_argument(text: str) -> Callable[[int], int]:
    """A moment of an episode: `0.1s` or `250ms` after its first record, or a recorded time in nanoseconds."""
    ts_ns = time_argument(text)
    is_recorded_time = text.strip().lstrip("+-").isdigit()
    return lambda first_ts_ns: ts_ns if is_recorded_time else first_ts_ns + ts_ns


class Arg(NamedTuple):
    """What the type of a parameter does not state: its help, and how it is written."""

    help: str
    metavar: str | None = None
    option: str = ""
    """Spelling of the option, if the parameter is called otherwise."""
    short: str = ""
    convert: Callable[[str], Any] | None = None
    nargs: str | None = None
    const: object = None


FORMS = "a path, a URL or ws/name[@version], with #ID inside"
Moment = Callable[[int], int]
Modes = Literal["auto", "remote", "hybrid", "local"]
_MOMENT = "0.1s or 250ms after the first record, or a recorded time in nanoseconds"
_RAY = "work on a Ray cluster: at ADDRESS, at RAY_ADDRESS, or a new one here"
_COMPRESSION = (
    "none, zstd, lz4 (every program reads these), zstd-seekable (rows can be read one by one, not by every "
    "program) or auto; a level behind a colon: zstd:19; default: none"
)

ARGUMENTS: dict[str, Arg] = {
    "address": Arg(f"episodes, or one: {FORMS}"),
    "align": Arg("value at a step; default: hold"),
    "allow_hosts": Arg("a host name of this server (may be repeated)", "NAME", "allow-host"),
    "all_findings": Arg("one line per finding, not per rule and signal", option="all"),
    "artifact": Arg("name of an artifact"),
    "at": Arg(_MOMENT, "TIME", convert=moment_argument),
    "batch_size": Arg("rows, or moments, at once"),
    "catalog": Arg("path or URL of the catalog (default: WARP_CATALOG)"),
    "clock": Arg("a step for every record of this signal", "SIGNAL"),
    "codec": Arg("encode raw frames as h264, h265 or av1; without it an import keeps every pixel"),
    "column": Arg("the parquet column with the vectors"),
    "columns": Arg("only these, names separated by commas", "NAMES"),
    "compat": Arg("strict: write nothing that one of the existing programs cannot read", "WORD"),
    "compression": Arg(_COMPRESSION, "NAME"),
    "dataset": Arg("workspace/name, optionally with @hash or @tag"),
    "demo": Arg("record the simulated robot of the tutorial: two arms, two cameras"),
    "draft": Arg("folder with edits of a published dataset", "FOLDER"),
    "drop_signatures": Arg("allow a signed file to become an unsigned one"),
    "dry_run": Arg("show the effect, change nothing"),
    "dtype": Arg("stored type of the rows"),
    "duration": Arg("a length of time, such as 5s", "TIME", convert=time_argument),
    "end": Arg(_MOMENT, "TIME", convert=moment_argument),
    "episode": Arg("the episode inside, the same as #ID", "ID"),
    "fast": Arg("as fast as possible, without waiting for the clock"),
    "file": Arg("the vector file (.rvf); actions that only read take URLs too"),
    "format": Arg("name of a format"),
    "ids": Arg("ids, or keys where the file declares them", "ID"),
    "index": Arg("index of vectors to use, if not the only one"),
    "jobs": Arg("processes that do the work"),
    "key": Arg("a key file", "FILE"),
    "kind": Arg("kind of the index (auto: a graph from 20,000 vectors on)"),
    "limit": Arg("at most this many", short="-n"),
    "message": Arg("message of the version"),
    "metric": Arg("how vectors are compared"),
    "mode": Arg("how published data is read (default: WARP_MODE)"),
    "older_than": Arg("only what is older than this, such as 30d or 12h", "AGE"),
    "on_error": Arg("skip: leave out damaged episodes, and count them"),
    "options": Arg("an option of the format, as wd.convert.<format> has it", "NAME=VALUE", "option"),
    "output": Arg("where to write; by default beside the source, or here", "OUTPUT", short="-o"),
    "overwrite": Arg("replace an existing target"),
    "paths": Arg("files or folders, or their URLs", "PATH"),
    "rate_hz": Arg("steps per second", "HZ", "rate"),
    "raw": Arg("ignore the edits: recordings as they were made"),
    "ray": Arg(_RAY, "ADDRESS", nargs="?", const=True),
    "revision": Arg("changes when the results do (default: a hash of the function's code)", "WORD"),
    "root": Arg("a local root of recordings; ROOT#ID names the episode too"),
    "seed": Arg("seed of the random choice"),
    "sign_key": Arg("sign what is written with this key", "KEY.pem", "sign"),
    "shell": Arg("the shell to complete in"),
    "signals": Arg("only this signal (may be repeated)", "NAME", "signal"),
    "source": Arg(f"a set of any format, or episodes: {FORMS}"),
    "source_format": Arg("the format of the source, if it is not recognised", "FORMAT", "from"),
    "source_options": Arg("an option of the source's format", "NAME=VALUE", "read"),
    "start": Arg(_MOMENT, "TIME", convert=moment_argument),
    "step": Arg("the step, counted from 0 within its epoch", "STEP"),
    "table": Arg("name of a table"),
    "tag": Arg("name of the tag"),
    "tags": Arg("tag of the version (may be repeated)", "TAG", "tag"),
    "target": Arg("a new folder or file"),
    "task": Arg("the task of episodes that have none"),
    "to": Arg("form of the target: root, shards, published, or a format", "FORM"),
    "version": Arg("of the format: v3.0, v2.1, …", "V"),
    "where": Arg("a SQL condition, such as: success and length > 50", "SQL"),
}
"""Name of a parameter -> its help and spelling: an option means the same in every command."""


class Work(TypedDict, total=False):
    """Options of work on many episodes."""

    jobs: int
    ray: str | bool


class Publishing(TypedDict, total=False):
    """Options of commands that publish a version."""

    message: str
    tags: Sequence[str]
    sign_key: str


class Storage(TypedDict, total=False):
    """Options of commands that write shards."""

    compression: str
    compat: str


@dataclass(frozen=True)
class Warp:
    """What every command can use: the console and the catalogs."""

    console: Console
    catalog: str | None = None
    mode: str | None = None

    def progress(self, label: str) -> Progress:
        """A bar for long work."""
        return self.console.progress(label)

    def open_dataset(self, name: str) -> Dataset:
        """The dataset of this name."""
        from warpdata._api import dataset

        return dataset(name, catalog=self.catalog, mode=self.mode)

    def open_episodes(self, address: str, *, edited: bool = True) -> Episodes:
        """The episodes at an address."""
        from warpdata._api import open_episodes

        return open_episodes(address, catalog=self.catalog, edited=edited)

    def open_episode(self, address: str) -> Episode:
        """The episode at an address."""
        from warpdata._api import open_episode

        return open_episode(address, catalog=self.catalog)

    @contextmanager
    def open_access(self, catalog: str | None = None, mode: str | None = None) -> Iterator[Access]:
        """The catalogs, or another one."""
        from warpdata.catalog.access import Access, access_options, catalog_tuple
        from warpdata.settings import Settings

        places = catalog_tuple(self.catalog if catalog is None else catalog)
        access = Access(access_options(Settings.from_env(), catalogs=places, mode=mode))
        try:
            yield access
        finally:
            access.close()


@dataclass(frozen=True)
class Command:
    """A command, or an action of one. Its docstring is the help; rows it returns are shown in `columns`."""

    function: Callable[..., Any]
    example: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    right: Sequence[str] = ()
    needs_catalog: bool = False
    has_json: bool = True
    when_stopped: str = ""
    """Hint after Ctrl-C."""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (self.function.__doc__ or "").partition("\n")[0].rstrip(".")

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Add the parameters to a parser."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        names = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                for option, hint in typing.get_type_hints(
                    typing.get_args(hints[name])[0], include_extras=True
                ).items():
                    names.append(option)
                    _add_argument(parser, option, hint, argparse.SUPPRESS, is_option=True)
            elif hints[name] is not Warp:
                names.append(name)
                is_option = parameter.kind is parameter.KEYWORD_ONLY
                _add_argument(parser, name, hints[name], parameter.default, is_option=is_option)
        if self.needs_catalog or not {"dataset", "address"}.isdisjoint(names):
            _add_argument(parser, "catalog", str, None, is_option=True)
        if "dataset" in names:
            _add_argument(parser, "mode", Modes, None, is_option=True)
        if self.has_json:
            parser.add_argument("--json", action="store_true", help="print the result as JSON")
        parser.set_defaults(run=self.run, parameters=names, when_stopped=self.when_stopped)

    def run(self, args: argparse.Namespace, console: Console) -> Output:
        """Call the function with parsed arguments."""
        warp = Warp(console, getattr(args, "catalog", None), getattr(args, "mode", None))
        given = {name: getattr(args, name) for name in args.parameters if name in args}
        result = self.function(warp, **given)
        if isinstance(result, Output):
            return result
        return Output(result, rows=result, columns=self.columns, right=self.right)


def command(example: str, **options: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function; the options are fields of Command."""
    return lambda function: Command(function, example, **options)


def _add_argument(
    parser: argparse.ArgumentParser, name: str, hint: Any, default: Any, *, is_option: bool
) -> None:
    about, kind = ARGUMENTS.get(name, Arg("")), hint
    while typing.get_origin(kind) in (Annotated, Union, UnionType):
        if typing.get_origin(kind) is Annotated:
            kind, note = kind.__origin__, kind.__metadata__[0]
            about = note if isinstance(note, Arg) else about._replace(help=note)
        else:
            kind = next(option for option in typing.get_args(kind) if option is not NoneType)
    is_list, is_required = typing.get_origin(kind) is Sequence, default is inspect.Parameter.empty
    while is_list and typing.get_args(kind):  # one word, or several at once
        kind = typing.get_args(kind)[0]
    shown = (
        "" if default in (None, False, "", (), argparse.SUPPRESS) or is_required else f" (default: {default})"
    )
    options: dict[str, Any] = {"help": (about.help + shown).strip() or None}
    if kind is bool:
        plain = is_required or default in (False, argparse.SUPPRESS)
        options["action"] = "store_true" if plain else argparse.BooleanOptionalAction
    else:
        is_choice = typing.get_origin(kind) is Literal
        options |= {"choices": typing.get_args(kind)} if is_choice else {"type": about.convert or kind}
        word = "N" if kind is int and is_option else (about.option or name).upper()
        options |= {"metavar": about.metavar or (None if is_choice else word), "nargs": about.nargs}
        options |= {"const": about.const} if about.nargs == "?" else {}
    if not is_option:
        options["nargs"] = ("+" if is_required else "*") if is_list else None if is_required else "?"
        parser.add_argument(name, **options, **({} if is_required else {"default": default}))
        return
    if is_list:
        options["action"] = "append"
        default = list(default) if default == () else default
    options |= {"required": True} if is_required else {"default": default}
    spelling = "--" + (about.option or name.rstrip("_").replace("_", "-"))
    parser.add_argument(*([about.short] if about.short else []), spelling, dest=name, **options)


def join_address(address: str, episode: str | None) -> str:
    """The address of an episode inside of another address."""
    return address if episode is None else f"{address}#{episode}"


def split_names(text: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if text is None else [name.strip() for name in text.split(",")]


def named_values(words: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE words; a value is JSON or plain text."""
    values: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def import_function(address: str) -> Callable[..., Any]:
    """Import a function by `module:name`, from the current folder or the installed packages."""
    module_name, colon, name = address.partition(":")
    if not colon or not module_name or not name:
        raise ValueError(f"{address!r} is not MODULE:FUNCTION, such as my_model:predict")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        text = f"no module {module_name!r} in this folder or among the installed packages"
        raise ValueError(text) from None
    for part in name.split("."):
        if not hasattr(value, part):
            raise ValueError(f"{module_name} has no {name!r}.{nearest(part, dir(value))}")
        value = getattr(value, part)
    if not callable(value):
        raise ValueError(f"{address} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]
