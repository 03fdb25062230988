"""Sources of the documentation site: `python -m tools.docs_site` writes build/docs from docs/, code and SPEC.md files.

`make docs` builds the site from there. Hand-written pages are copied; the API reference, the command reference, the
format specifications and llms.txt are generated, so that they cannot differ from the code.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

import warpdata as wd
from warpdata.cli.main import GROUPS, build_parser, load_commands

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "docs"
FORMATS = ROOT / "src" / "warpdata" / "formats"
PROJECT_PAGES = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")

API = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
"""Hand-written pages of the API reference: a heading `## wd.NAME` (or several names) with an example."""

DESCRIPTIONS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("docs_site_api.toml").read_text())
"""The meaning of every parameter, and the usual errors of every call."""


def names_in(heading: str) -> list[str]:
    """The public names of a heading such as `## wd.pack_residual, wd.unpack_residual`."""
    return re.findall(r"wd\.([\w.]+)", heading)


def api_names() -> list[str]:
    """The names that have a heading on a page of the API reference."""
    headings = [line for page in API for line in re.findall(r"^## (wd\..*)$", page.read_text(), re.M)]
    return [name for line in headings for name in names_in(line)]


def public_names() -> list[str]:
    """Every public name: those of `wd`, those that only its packages list, and `read` and `write` of every format."""
    names = {*wd.__all__, *wd._ELSEWHERE} - {"__version__"}
    listed = {
        f"{package}.{name}"
        for package in (
            "catalog",
            "corpora",
            "episodes",
            "loading",
            "ordering",
            "search",
            "timeline",
            "viewer",
        )
        for name in set(dir(getattr(wd, package))) - names
    }
    calls = {f"convert.{name}.{verb}" for name in wd.convert.FORMATS for verb in ("read", "write")}
    calls -= {"convert.rosbag2.write", "convert.npz.write", "convert.parquet.write"}  # only read
    calls -= {"convert.rrd.read", "convert.wav.read"}  # only written
    ray = {f"ray.{name}" for name in {*wd.ray.__all__, "open"}}
    return sorted({*names, *listed, *calls, *ray, "formats.wshard.ShardReader"})


def find_public(name: str) -> Any:
    """The object of a public name such as `Loader` or `ray.publish`."""
    value: Any = wd
    for part in name.split("."):
        value = getattr(value, part)
    return value


def parameters_of(name: str) -> list[inspect.Parameter]:
    """The parameters to describe: none of errors and of classes that other calls return."""
    value = find_public(name)
    if name in DESCRIPTIONS["made"] or (inspect.isclass(value) and issubclass(value, Exception)):
        return []
    return list(inspect.signature(value).parameters.values())


def meaning_of(name: str, parameter: inspect.Parameter) -> str:
    """What a parameter means, "" if the descriptions lack it."""
    own = DESCRIPTIONS["calls"].get(name, {})
    return str(own.get(parameter.name) or DESCRIPTIONS["parameters"].get(parameter.name, ""))


def errors_of(name: str) -> list[tuple[str, str]]:
    """Errors of a call: class and cause."""
    listed = DESCRIPTIONS["calls"].get(name, {}).get("errors", ())
    return [(kind, cause.strip()) for kind, _, cause in (each.partition(":") for each in listed)]


def write_site_sources(target: Path = TARGET) -> list[Path]:
    """Write everything that mkdocs reads; returns the pages."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for page in target.rglob("*.md"):  # flags for the tests behind a fence are not for readers
        text = re.sub(r"^```(\w+)[^\n]*$", r"```\1", page.read_text(), flags=re.M)
        page.write_text(PICTURE.sub(both_schemes, text.replace(".ipynb)", ".md)")))
    generated = {
        **{f"project/{name.lower()}": project_page(name) for name in PROJECT_PAGES},
        **{
            f"reference/api/{page.name}": api_page((target / "reference" / "api" / page.name).read_text())
            for page in API
        },
        "reference/cli.md": cli_page(),
        "reference/errors.md": errors_page(),
        **{f"reference/formats/{spec.parent.name}.md": spec.read_text() for spec in specifications()},
    }
    for name, text in generated.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for notebook in target.rglob("*.ipynb"):
        write_notebook_page(notebook)
    pages = sorted(target.rglob("*.md"))
    (target / "llms.txt").write_text(index_of(pages, target))
    return pages


PICTURE = re.compile(r"(!\[[^]]*\]\(\S*viewer)-(?:light|dark)\.png\)")


def both_schemes(picture: re.Match[str]) -> str:
    """A picture of the viewer, light on a light page and dark on a dark one."""
    return "".join(f"{picture[1]}-{scheme}.png#only-{scheme})" for scheme in ("light", "dark"))


def write_notebook_page(notebook: Path) -> None:
    """Run a notebook in an empty folder and replace it by a Markdown page with its outputs and pictures."""
    content = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        client = NotebookClient(content, timeout=300, resources={"metadata": {"path": folder}})
        client.execute(env=environment)
    resources = {"unique_key": notebook.stem, "output_files_dir": f"{notebook.stem}_files"}
    text, resources = MarkdownExporter().from_notebook_node(content, resources=resources)
    for name, data in resources["outputs"].items():
        picture = notebook.parent / name
        picture.parent.mkdir(exist_ok=True)
        picture.write_bytes(data)
    notebook.with_suffix(".md").write_text(text.replace(f"{folder}/", ""))
    notebook.unlink()


def specifications() -> list[Path]:
    return sorted(FORMATS.rglob("SPEC.md"))


def project_page(name: str) -> str:
    """A page of the project's root, with links that lead into the site where the site has the page."""
    text = (ROOT / name).read_text()
    for other in PROJECT_PAGES:
        text = text.replace(f"({other})", f"({other.lower()})")
    return re.sub(r"\]\(docs/", "](../", text)


def api_page(text: str) -> str:
    """A page of the API reference: below each example what signature, docstring and descriptions hold."""
    parts = re.split(r"^(?=## wd\.)", text, flags=re.M)
    return parts[0] + "\n".join(part.rstrip() + "\n\n" + entries_of(part) for part in parts[1:])


def entries_of(part: str) -> str:
    """The parameters, errors and directives of mkdocstrings for the names in the heading of a part."""
    names = names_in(part.splitlines()[0])
    return "\n".join("\n".join([*tables_of(name), directive_of(name, len(names) > 1)]) for name in names)


def tables_of(name: str) -> Iterator[str]:
    if made := DESCRIPTIONS["made"].get(name):
        yield from (f"`wd.{name}`: {made}.", "")
    if parameters := parameters_of(name):
        yield from ("| parameter | type | default | meaning |", "|---|---|---|---|")
        for each in parameters:
            default = "" if each.default is each.empty else f"`{shown_default(each.default)}`"
            stars = {each.VAR_KEYWORD: "**", each.VAR_POSITIONAL: "*"}.get(each.kind, "")
            yield f"| `{stars}{each.name}` | `{each.annotation}` | {default} | {meaning_of(name, each)} |"
        yield ""
    if errors := errors_of(name):
        yield from ("| error | when |", "|---|---|")
        yield from (f"| `{kind}` | {cause} |" for kind, cause in errors)
        yield ""


def shown_default(value: Any) -> str:
    """A default as it is written; one that only the class knows is shown as `…`."""
    text = getattr(value, "__name__", None) or repr(value)
    return "…" if text.startswith("<") else text


def directive_of(name: str, has_heading: bool) -> str:
    """The directive of mkdocstrings: signature, docstring and methods."""
    value = find_public(name)
    heading = f"show_root_heading: {str(has_heading).lower()}, show_root_toc_entry: false"
    level = 3 if has_heading else 4  # methods are below what the table of contents lists
    options = f"heading: wd.{name}, heading_level: {level}, {heading}, summary: true"
    return f"::: {value.__module__}.{value.__name__}\n    options: {{{options}}}\n"


def plain_directives(text: str) -> str:
    """Markdown for readers without mkdocstrings: signatures and docstrings instead of the directives."""
    return re.sub(r"^::: (\S+)\n    options: .*\n", lambda match: plain_entry(match[1]), text, flags=re.M)


def plain_entry(address: str) -> str:
    home, _, name = address.rpartition(".")
    value = getattr(importlib.import_module(home), name)
    lines = ["```python", f"{name}{inspect.signature(value)}", "```", "", inspect.getdoc(value) or "", ""]
    for member, call in vars(value).items() if inspect.isclass(value) else ():
        if member.startswith("_") or not (inspect.isfunction(call) or isinstance(call, classmethod)):
            continue
        function = getattr(value, member)
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        lines.append(f"- `{member}{inspect.signature(function)}`: {summary}")
    return "\n".join(lines) + "\n"


ERRORS_ABOUT = """# Errors by code

Every error has a `code`, a message with the path, and a `hint`. `warp` prints them as `error[code]`:

```text
error[truncated]: the file has 806 bytes, its header states 1612: cut.wshard
  hint: The copy is incomplete; fetch it again, or run `warp salvage` on a recording.
```

`--debug` (or `WARP_DEBUG=1`) also prints the traceback. In Python, catch the class: `except wd.errors.TruncatedError`.
"""
FAMILIES = {
    "FormatError": "Files",
    "StoreError": "Stores and networks",
    "DatasetError": "Published datasets",
    "RecordingError": "Recording",
    "WarpError": "Everything else",
}
"""Base classes of the error tree, and what their errors are about."""


def errors_page() -> str:
    """Troubleshooting by error code, from the error classes."""
    lines = [ERRORS_ABOUT]
    listed: set[str] = set()
    for base, title in FAMILIES.items():
        family = {
            name: kind
            for name, kind in sorted(vars(wd.errors).items())
            if inspect.isclass(kind) and issubclass(kind, getattr(wd.errors, base)) and name not in listed
        }
        listed.update(family)
        lines += [f"## {title}", "", "| code | class | meaning | remedy |", "|---|---|---|---|"]
        for name, kind in family.items():
            meaning = (kind.__doc__ or "").partition("\n")[0]
            remedy = kind.default_hint or "The hint of the error has it: it depends on the case."
            lines.append(f"| `{kind.code}` | `{name}` | {meaning} | {remedy} |")
        lines.append("")
    return "\n".join(lines)


def cli_page() -> str:
    parser = build_parser()
    lines = ["# Commands of `warp`", ""]
    for group, commands in GROUPS.items():
        lines += [f"## {group}", ""]
        for name, (_, summary) in commands.items():
            examples = [command.example for command in load_commands(name).values()]
            lines += [f"### warp {name}", "", f"{summary.capitalize()}.", ""]
            lines += ["```bash", *examples, "```", ""]
            for words, command in parsers_of(parser, name):
                text = command.format_help().splitlines()
                lines += [
                    f'??? note "{words} --help"',
                    "",
                    *(f"        {line}".rstrip() for line in text),
                    "",
                ]
    return "\n".join(lines)


def parsers_of(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The parser of a command, then that of each of its verbs."""
    command = next(
        action.choices[name] for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    command.complete()
    yield f"warp {name}", command
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from ((f"warp {name} {verb}", each) for verb, each in action.choices.items())


KINDS = {
    "tutorial": "Tutorial",
    "notebooks": "Notebooks",
    "howto": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "decisions": "Decisions",
    "project": "Project",
}


def index_of(pages: list[Path], target: Path) -> str:
    """llms.txt: the title and Markdown address of every page, by kind."""
    lines = ["# warpdata", "", "> One data system from the sensor to the training step.", ""]
    places = {page: page.relative_to(target).as_posix() for page in pages}
    for folder, kind in {"index.md": "Start", **KINDS}.items():
        lines += [f"## {kind}", ""]
        for page, place in places.items():
            if place.partition("/")[0] == folder:
                titles = (line[2:] for line in page.read_text().splitlines() if line.startswith("# "))
                lines.append(f"- [{next(titles, page.stem)}]({place})")
        lines.append("")
    return "\n".join(lines)


def copy_markdown(source: Path, site: Path) -> None:
    """Put the Markdown of each page beside its HTML."""
    for page in source.rglob("*.md"):
        path = site / page.relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(plain_directives(page.read_text()))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--copy-markdown", metavar="SITE", type=Path)
    chosen = options.parse_args()
    if chosen.copy_markdown:
        copy_markdown(TARGET, chosen.copy_markdown)
    else:
        print(f"{len(write_site_sources())} pages in {TARGET.relative_to(ROOT)}")
