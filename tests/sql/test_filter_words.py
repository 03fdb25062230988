"""A filter that is wrong is told in the words of who wrote it: no column, hint or word of our own queries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import warpdata as wd
from warpdata.errors import WarpError
from warpdata.sql.engine import ROW_NUMBER, matching_rows


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("filters")
    for number in range(3):
        with wd.record(folder / "root", static={"task": "reach"}, clock="simulated") as rec:
            rec.append("x", float(number), number)
    with wd.DatasetBuilder("lab/rows", catalog=str(folder / "catalog")) as builder:
        builder.add_table("main", {"length": [1, 2, 3], "task": ["a", "b", "c"]}).publish()
    dataset = wd.dataset("lab/rows", catalog=str(folder / "catalog"), cache_dir=str(folder / "cache"))
    root, table = wd.open_recordings(folder / "root"), dataset.table()
    return {"episodes": lambda text: len(root.where(text)), "table": lambda text: table.filter(text).count()}


@pytest.mark.parametrize("kind", ["episodes", "table"])
@pytest.mark.parametrize(
    "text",
    ["lenght > 3", "length >", "nothing(length)", "length = 'x'", "select 1", "sum(length) > 1", "length; length",
     f"{ROW_NUMBER} > 1", f"{ROW_NUMBER.upper()} > 1", "lenght > 1 and tsk = 'a'", "length in (select y from z)"],
)  # fmt: skip
def test_a_wrong_filter_is_told_in_the_words_of_who_wrote_it(
    sources: dict[str, Any], kind: str, text: str
) -> None:
    with pytest.raises(WarpError) as refused:
        sources[kind](text)
    said = f"{refused.value} {refused.value.hint}"
    if ROW_NUMBER not in text.lower():
        assert "__" not in said
    assert "Write one SELECT" not in said
    if "lenght" in text:
        assert "'length'" in said


def test_our_own_column_is_none_of_theirs(sources: dict[str, Any]) -> None:
    for source in sources.values():
        with pytest.raises(WarpError, match="no column"):
            source(f"{ROW_NUMBER} >= 0")


def test_nor_in_a_subquery(sources: dict[str, Any]) -> None:
    for text in (f"1 in (select {ROW_NUMBER} from t)", f"exists (select 1 from main where {ROW_NUMBER} > 1)"):
        with pytest.raises(WarpError, match="no column"):
            sources["table"](text)


def test_columns_that_differ_in_case_are_not_mixed_up() -> None:
    """To the engine a name is the same in capitals: both would be the one that it was given."""
    table = pa.table({"task": ["a", "b", "a"], "Task": ["b", "a", "a"]})
    assert matching_rows(table, "Task = 'a'").tolist() == [1, 2]
    assert matching_rows(table, "task = 'a'").tolist() == [0, 2]
    for both in ("task <> Task", "task = 'a' and (Task = 'b' or true)"):
        with pytest.raises(WarpError, match="columns 'task' and 'Task' differ only in case"):
            matching_rows(table, both)
