"""Checks of SQL text on the syntax tree of the engine's parser; nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from warpdata.errors import DatasetError, nearest

Tree = Mapping[str, Any]

VIEW = "t"
"""What a view is called in its own SQL."""

OWN_COLUMNS = "__warp_"
"""How columns begin that are put beside those of a table on the way; no published column does."""

_QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLE_FUNCTIONS = {
    "generate_series",
    "generate_subscripts",
    "json_each",
    "json_tree",
    "range",
    "repeat",
    "repeat_row",
    "unnest",
}
REFUSED_FUNCTIONS = {
    "current_setting",
    "currval",
    "getenv",
    "getvariable",
    "nextval",
    "pg_sleep",
    "setval",
    "sleep_ms",
    "write_log",
}
"""Functions that look at or change something other than the rows, or only pass the time."""

_CLAUSES = ("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample")
_SELECT_HINT = "Write one SELECT over the tables of the dataset."
_CONDITION_HINT = "Write what could stand after WHERE, such as `success and length > 50`."


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on rows, and what it looks at."""

    text: str
    names: frozenset[str]
    """Every name it mentions; a schema decides which of them are columns."""
    has_star: bool
    """Whether it has `*` or the number of a column, outside of subqueries."""
    names_view: bool
    """Whether it takes the view's name for a value: a whole row, unless a column is called so."""
    has_subquery: bool

    def takes_rows(self, schema_names: Iterable[str]) -> bool:
        """Whether it looks at rows as a whole: a column more would be another row."""
        return self.has_star or (self.names_view and VIEW not in map(folded, schema_names))

    def columns_of(self, schema_names: Iterable[str]) -> list[str]:
        """The columns among `schema_names` that it may look at: names mean the same in any case."""
        known = list(schema_names)
        if self.takes_rows(known):
            return [name for number, name in enumerate(known) if name not in known[:number]]
        found: dict[str, str] = {}
        mentioned = {folded(name) for name in self.names}
        for name in known:
            key = folded(name)
            if found.get(key, name) != name and {name, found[key]} <= self.names:
                fact = f"columns {found[key]!r} and {name!r} differ only in case"
                raise DatasetError(fact, hint="Name only one of them, or rename it.")
            if key in mentioned and (key not in found or name in self.names):
                found[key] = name
        return list(found.values())

    @property
    def clause(self) -> str:
        """The condition as it can stand after `where`, also if it ends with a comment."""
        return f"(\n{self.text}\n)"


def folded(name: str) -> str:
    """A name as the engine compares it: only the letters A to Z lose their case."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def quoted(name: str) -> str:
    """A name in SQL quotes."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | float) -> str:
    """A text or a number as SQL writes it."""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


def condition_query(text: str) -> str:
    """The query whose tree `condition_of` takes: the condition stands open, so that it cannot close a bracket."""
    return f"select 1 from {VIEW} where\n{text}\n"


def condition_of(text: str, tree: Tree) -> Condition:
    """A condition from the tree of its `condition_query`, or DatasetError if it is more than a condition."""
    node = _only_statement(tree, _CONDITION_HINT)["node"]
    extra = node.get("type") != "SELECT_NODE" or any(node.get(clause) for clause in _CLAUSES)
    if extra or node.get("where_clause") is None or node.get("aggregate_handling") != "STANDARD_HANDLING":
        raise DatasetError(f"a filter is one condition, not {text!r}", hint=_CONDITION_HINT)
    where = node["where_clause"]
    _check_functions(where)
    names: set[str] = set()
    names_view = has_subquery = False
    for each in _walk(where):
        kind = each.get("class")
        if kind == "COLUMN_REF":
            names.update(each["column_names"])
            names_view = names_view or [folded(part) for part in each["column_names"]] == [VIEW]
        has_subquery = has_subquery or kind == "SUBQUERY"
    own = _walk(where, without="subquery")
    has_star = any(each.get("class") in ("STAR", "POSITIONAL_REFERENCE") for each in own)
    return Condition(text, frozenset(names), has_star, names_view, has_subquery)


def tables_of(tree: Tree, known: Iterable[str]) -> dict[str, str]:
    """The tables a query reads, as the query calls them -> as they are called; anything but a query is refused."""
    statement = _only_statement(tree)
    _check_functions(statement)
    names = list(known)
    own = {folded(name) for each in _walk(statement) if "cte_map" in each for name in _ctes(each)}
    found: dict[str, str] = {}
    for each in _walk(statement):
        if each.get("type") == "SHOW_REF" and each.get("query") is None:
            # The engine knows only the tables that a query names.
            hint = f"The tables are: {', '.join(names) or 'none'}. DESCRIBE shows the columns of one."
            raise DatasetError("SHOW is no query over the tables of the dataset", hint=hint)
        if each.get("type") != "BASE_TABLE":
            continue
        called = str(each["table_name"])
        exact = called if called in names else None
        name = exact or next((n for n in names if folded(n) == folded(called)), None)
        is_elsewhere = each.get("schema_name") or each.get("catalog_name")
        if name is not None and not is_elsewhere:
            found[called] = name
        elif folded(called) not in own or is_elsewhere:
            hint = f"It has: {', '.join(names) or 'no tables'}."
            path = [str(each.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
            whole = ".".join(filter(None, path))
            fact = f"the query names no table of the dataset: {whole!r}.{nearest(called, names)}"
            raise DatasetError(fact, hint=hint)
    return found


def _ctes(node: Tree) -> Iterator[str]:
    for entry in (node["cte_map"] or {}).get("map", []):
        yield str(entry["key"])


def _only_statement(tree: Tree, hint: str = _SELECT_HINT) -> Tree:
    if tree.get("error"):
        fact = str(tree.get("error_message", "")).strip() or "it cannot be parsed"
        if "SELECT statements" in fact:  # its words are about what we do with the text
            fact = "it does more than look at rows"
        if "expression depth" in fact:  # its advice is a setting, which is locked
            fact, hint = "it is nested too deeply", "Write it in several steps."
        raise DatasetError(f"the SQL is refused: {fact}", hint=hint)
    statements = tree["statements"]
    if len(statements) != 1:
        raise DatasetError(f"the SQL has {len(statements)} statements, not one", hint=hint)
    statement: Tree = statements[0]
    for each in _walk(statement):
        kind = each.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERIES:
            raise DatasetError("the SQL would change something", hint=hint)
    return statement


def _check_functions(tree: Tree) -> None:
    for each in _walk(tree):
        if each.get("type") == "TABLE_FUNCTION":
            name = folded(str(each["function"].get("function_name", "")))
            if name not in _TABLE_FUNCTIONS:
                hint = f"SQL reads the tables of the dataset, and {', '.join(sorted(_TABLE_FUNCTIONS))}."
                raise DatasetError(f"the function {name!r} may not be used in FROM", hint=hint)
        elif "function_name" in each and folded(str(each["function_name"])) in REFUSED_FUNCTIONS:
            hint = "SQL may only look at rows."
            raise DatasetError(f"the function {each['function_name']!r} may not be used", hint=hint)


def _walk(tree: Any, *, without: str | None = None) -> Iterator[Tree]:
    """Every object of a tree, or all but those under a key; trees of strangers may be deep, so nothing recurses."""
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting.extend(value for key, value in each.items() if key != without)
        elif isinstance(each, list):
            waiting.extend(each)
