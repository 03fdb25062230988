"""Tables for people: they fit the terminal, whatever is in them, and are whole where programs read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warpdata as wd
from warpdata.cli.console import cut, printable, table, text_width
from warpdata.cli.main import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wide")
    columns = {f"column_number_{i}": [f"value {i} " * 10, "\x1b[31mred\n界" * 5] for i in range(30)}
    with wd.DatasetBuilder("ws/wide", catalog=str(folder / "catalog")) as builder:
        builder.add_table("main", columns).publish()
    episode = wd.WShardEpisode(id="an_episode_with_a_long_name" * 4, env_id="Arm-v0", length=3)
    episode.observations["joint_positions_of_the_left_arm" * 3] = np.zeros((3, 7), np.float32)
    wd.save_wshard(episode, folder / "an_episode.wshard")
    with wd.CorpusWriter(folder / "corpus", 32) as corpus:
        corpus.append(np.full((3, 32), np.pi))
    return folder


@pytest.fixture
def wide(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    monkeypatch.setenv("WARP_CATALOG", str(made / "catalog"))
    monkeypatch.setenv("WARP_CACHE_DIR", str(made / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    return made


COMMANDS = [
    ["head", "ws/wide"],
    ["head", "ws/wide", "--columns", "column_number_3"],
    ["query", "ws/wide", "select * from main"],
    ["schema", "ws/wide"],
    ["inspect", "ws/wide"],
    ["inspect", "an_episode.wshard"],
    ["show", "an_episode.wshard"],
    ["show", "."],
    ["episodes", "an_episode.wshard"],
    ["catalog", "list"],
    ["corpus", "head", "corpus"],
    ["corpus", "stats", "corpus"],
]


def shown(monkeypatch: pytest.MonkeyPatch, arguments: list[str], out: io.StringIO) -> list[str]:
    monkeypatch.setattr("sys.stdout", out)
    assert main(arguments) == 0
    return out.getvalue().splitlines()


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_line_is_wider_than_the_terminal(
    wide: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = shown(monkeypatch, arguments, Terminal())
    plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in lines]
    assert max(map(text_width, plain)) <= columns
    assert "\x1b" not in "".join(plain)
    assert max(map(text_width, plain)) > min(columns, 90) // 3, "the room is used"


def test_what_has_no_room_is_counted(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert "more columns: column_number_" in "\n".join(shown(monkeypatch, ["head", "ws/wide"], Terminal()))


def test_programs_get_every_column(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    header = shown(monkeypatch, ["head", "ws/wide"], io.StringIO())[0].split()
    assert header == [f"column_number_{i}" for i in range(30)]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(st.lists(TEXTS, min_size=3, max_size=3), max_size=4),
    st.lists(TEXTS, min_size=3, max_size=3),
    st.integers(5, 80),
)
def test_any_table_fits(rows: list[list[str]], header: list[str], width: int) -> None:
    lines = table(rows, header, right=[1], fit_width=width)
    assert all(text_width(line) <= width for line in lines)
    assert all(line.isprintable() for line in lines)
    assert table(rows, header, fit_width=10_000) == table(rows, header)


@given(TEXTS, st.integers(1, 30))
def test_cutting_keeps_the_beginning(text: str, width: int) -> None:
    clean = printable(text)
    found = cut(clean, width)
    assert text_width(found) <= width
    assert found == clean or (found.endswith("…") and clean.startswith(found[:-1]))
