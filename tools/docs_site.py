"""Sources of the documentation site: `python -m tools.docs_site` writes build/docs from docs/, code and SPEC.md files.

`make docs` builds the site from there. Hand-written pages are copied; the API reference, the command reference, the
format specifications and llms.txt are generated, so that they cannot differ from the code.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
"""Hand-written pages of the API reference: a heading `## wd.NAME` and an example per name."""


def api_names() -> list[str]:
    """The names that have a heading on a page of the API reference."""
    return [name for page in API for name in re.findall(r"^## wd\.(\w+)$", page.read_text(), re.M)]


def write_site_sources(target: Path = TARGET) -> list[Path]:
    """Write everything that mkdocs reads; returns the pages."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target)
    for page in target.rglob("*.md"):  # flags for the tests behind a fence are not for readers
        text = re.sub(r"^```(\w+)[^\n]*$", r"```\1", page.read_text(), flags=re.M)
        page.write_text(text.replace(".ipynb)", ".md)"))
    generated = {
        **{f"project/{name.lower()}": project_page(name) for name in PROJECT_PAGES},
        **{
            f"reference/api/{page.name}": api_page((target / "reference" / "api" / page.name).read_text())
            for page in API
        },
        "reference/api/more.md": more_page(),
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
    notebook.with_suffix(".md").write_text(text)
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
    """A page of the API reference: below each example the signature, the docstring and the methods of its name."""
    parts = re.split(r"^(?=## wd\.)", text, flags=re.M)
    return parts[0] + "\n".join(part.rstrip() + "\n\n" + entry_of(part) for part in parts[1:])


def entry_of(part: str) -> str:
    """The directive of mkdocstrings for the name in the heading of a part."""
    name = part.split(maxsplit=2)[1].removeprefix("wd.")
    options = f"heading: wd.{name}, heading_level: 3, show_root_toc_entry: false, summary: true"
    return f"::: {home_of(name)}.{name}\n    options: {{{options}}}\n"


def more_page() -> str:
    """Every other public name: documents and programs use them, a newcomer does not need them."""
    lines = ["# Further names", "", "| name | purpose |", "|---|---|"]
    for name in sorted(set(further_names()) - set(api_names())):
        summary = (inspect.getdoc(getattr(wd, name)) or "").partition("\n")[0].replace("|", "\\|")
        lines.append(f"| `wd.{name}` | {summary} |")
    return "\n".join(lines) + "\n"


def further_names() -> list[str]:
    return sorted({*wd.__all__, *wd._ELSEWHERE} - {"__version__"})


def home_of(name: str) -> str:
    """The module that defines a public name."""
    return str(getattr(wd, name).__module__)


def errors_page() -> str:
    """Troubleshooting by error code, from the error classes."""
    lines = ["# Errors by code", ""]
    lines += [
        "Every error has a `code`, a message with the path, and a `hint`. `warp` prints them as `error[code]`.",
        "",
    ]
    lines += ["| code | class | meaning | remedy |", "|---|---|---|---|"]
    for name, kind in sorted(vars(wd.errors).items()):
        if isinstance(kind, type) and issubclass(kind, wd.WarpError):
            meaning = (kind.__doc__ or "").partition("\n")[0]
            lines.append(f"| `{kind.code}` | `{name}` | {meaning} | {kind.default_hint} |")
    return "\n".join(lines) + "\n"


def cli_page() -> str:
    parser = build_parser()
    lines = ["# Commands of `warp`", ""]
    for group, commands in GROUPS.items():
        lines += [f"## {group}", ""]
        for name, (_, summary) in commands.items():
            examples = [command.example for command in load_commands(name).values()]
            lines += [f"### warp {name}", "", f"{summary.capitalize()}.", ""]
            lines += ["```bash", *examples, "```", ""]
            for title, text in help_texts(parser, name):
                lines += [
                    f'??? note "{title}"',
                    "",
                    *(f"        {line}".rstrip() for line in text.splitlines()),
                    "",
                ]
    return "\n".join(lines)


def help_texts(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """Help of a command, then of each of its verbs."""
    command = next(
        action.choices[name] for action in parser._actions if isinstance(action, argparse._SubParsersAction)
    )
    command.complete()
    yield f"warp {name} --help", command.format_help()
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, sub in action.choices.items():
                yield f"warp {name} {verb} --help", sub.format_help()


def index_of(pages: list[Path], target: Path) -> str:
    """llms.txt: the title and Markdown address of every page."""
    lines = ["# warpdata", "", "> One data system from the sensor to the training step.", ""]
    for page in pages:
        title = next((line[2:] for line in page.read_text().splitlines() if line.startswith("# ")), page.stem)
        lines.append(f"- [{title}]({page.relative_to(target).as_posix()})")
    return "\n".join(lines) + "\n"


def copy_markdown(source: Path, site: Path) -> None:
    """Put the Markdown of each page beside its HTML."""
    for page in source.rglob("*.md"):
        path = site / page.relative_to(source)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, path)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--copy-markdown", metavar="SITE", type=Path)
    chosen = options.parse_args()
    if chosen.copy_markdown:
        copy_markdown(TARGET, chosen.copy_markdown)
    else:
        print(f"{len(write_site_sources())} pages in {TARGET.relative_to(ROOT)}")
