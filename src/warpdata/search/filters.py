"""Filter expressions over metadata: comparisons, sets, and / or / not; as text or as nested mappings."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warpdata.errors import require_word

Scalar = str | bytes | int | float | bool | None

OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "in")
_WORDS = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "lte": "<=", "gt": ">", "ge": ">=", "gte": ">=",
    "in": "in",
}  # fmt: skip
_AST_OPERATORS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
}  # fmt: skip
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MAX_DEPTH = 64
_HELP = "write it like: label == 'cat' and (score > 0.5 or tag in ['a', 'b'])"

ID_FIELD = "id"
"""A field of this name in a filter is the vector's id."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A field against a value, or a set of values."""

    field: str
    operator: str
    value: Any


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: Filter


Filter = Compare | All | AnyOf | Not


def parse_filter(value: str | Mapping[str, Any] | Filter) -> Filter:
    """A filter from text, from nested mappings, or as it is; anything else is a ValueError."""
    if isinstance(value, Compare | All | AnyOf | Not):
        return value
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, Mapping):
        return _parse_mapping(value, 0)
    raise TypeError(f"a filter is text or a mapping, not {type(value).__name__}")


def fields_of(expression: Filter) -> set[str]:
    """The fields a filter looks at."""
    if isinstance(expression, Compare):
        return {expression.field}
    if isinstance(expression, Not):
        return fields_of(expression.part)
    return set().union(*(fields_of(part) for part in expression.parts)) if expression.parts else set()


def _parse_mapping(value: Mapping[str, Any], depth: int) -> Filter:
    if depth > _MAX_DEPTH:
        raise ValueError("a filter is nested too deeply")
    parts: list[Filter] = []
    if not isinstance(value, Mapping):
        raise ValueError(f"a filter inside a filter is a mapping, not {value!r}")
    for key, body in value.items():
        word = str(key).removeprefix("$")
        if word in ("and", "or"):
            if not isinstance(body, Sequence) or isinstance(body, str):
                raise ValueError(f"{key!r} in a filter needs a list of filters")
            inner = tuple(_parse_mapping(each, depth + 1) for each in body)
            parts.append(All(inner) if word == "and" else AnyOf(inner))
        elif word == "not":
            parts.append(Not(_parse_mapping(body, depth + 1)))
        else:
            parts += _parse_field(str(key), body)
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _parse_field(name: str, body: Any) -> list[Filter]:
    if not isinstance(body, Mapping):
        return [_compare(name, "==", body)]
    return [_parse_operator(name, str(word).removeprefix("$"), value) for word, value in body.items()]


def _parse_operator(name: str, word: str, value: Any) -> Filter:
    if word in ("not in", "nin"):
        return Not(_compare(name, "in", value))
    found = _WORDS.get(word, word)
    require_word("an operator of a filter", found, [*OPERATORS, "not in"])
    return _compare(name, found, value)


def _compare(name: str, operator: str, value: Any) -> Compare:
    if operator == "in":
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(value, str | bytes) or not isinstance(value, Sequence | set | frozenset):
            raise ValueError(f"'in' on {name!r} needs a list of values")
        return Compare(name, operator, tuple(_scalar(name, each) for each in value))
    return Compare(name, operator, _scalar(name, value))


def _scalar(name: str, value: Any) -> Scalar:
    if hasattr(value, "item"):
        value = value.item()
    if value is not None and not isinstance(value, str | bytes | int | float | bool):
        raise ValueError(f"a filter compares {name!r} with text, numbers or booleans, not {value!r}")
    return value


def _parse_text(text: str) -> Filter:
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _from_ast(tree.body, 0)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"cannot read the filter {text!r} ({error}); {_HELP}") from None


def _from_ast(node: ast.expr, depth: int) -> Filter:
    if depth > _MAX_DEPTH:
        raise ValueError("a filter is nested too deeply")
    if isinstance(node, ast.BoolOp):
        parts = tuple(_from_ast(each, depth + 1) for each in node.values)
        return All(parts) if isinstance(node.op, ast.And) else AnyOf(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return Not(_from_ast(node.operand, depth + 1))
    if isinstance(node, ast.Compare):
        return _from_comparison(node)
    raise ValueError(f"not a filter: {ast.unparse(node)}; {_HELP}")


def _from_comparison(node: ast.Compare) -> Filter:
    """One comparison, or a chain such as 1 < x <= 5."""
    sides = [node.left, *node.comparators]
    parts: list[Filter] = []
    for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
        if isinstance(operator, ast.NotIn):
            parts.append(Not(_compare(_name(left), "in", _literal(right))))
            continue
        symbol = _AST_OPERATORS.get(type(operator))
        if symbol is None:
            raise ValueError(f"unknown operator in a filter; {_HELP}")
        if isinstance(left, ast.Name):
            parts.append(_compare(left.id, symbol, _literal(right)))
        elif symbol in _MIRRORED:
            parts.append(_compare(_name(right), _MIRRORED[symbol], _literal(left)))
        else:
            raise ValueError(f"'in' needs a field on its left; {_HELP}")
    return parts[0] if len(parts) == 1 else All(tuple(parts))


def _name(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise ValueError(f"a comparison needs a field: {ast.unparse(node)}; {_HELP}")
    return node.id


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        words = {"true": True, "false": False, "null": None}
        if node.id in words:
            return words[node.id]
        raise ValueError(f"{node.id} is compared with a field, not with a value; quote text; {_HELP}")
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_literal(each) for each in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"not a value: {ast.unparse(node)}; {_HELP}") from None
