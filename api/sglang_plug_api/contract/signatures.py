"""Comparison of signatures that are given as source text, such as ``(self, rows: int, *, copy=False) -> Tensor``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Passing(Enum):
    """The ways in which an argument may be passed."""

    POSITION = "by position only"
    EITHER = "by position or by name"
    NAME = "by name only"
    REST = "as one of any number"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a signature."""

    name: str
    passing: Passing
    type: str
    has_default: bool


def parse_signature(text: str) -> tuple[list[Parameter], str]:
    """Return the parameters of a signature without ``self`` and ``cls``, and its return type."""
    function = ast.parse(f"def function{text}: ...").body[0]
    assert isinstance(function, ast.FunctionDef)
    parameters = [one for one in _parameters(function.args) if one.name not in ("self", "cls")]
    return parameters, ast.unparse(function.returns) if function.returns else ""


def _parameters(arguments: ast.arguments) -> Iterator[Parameter]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    for index, node in enumerate(positional):
        passing = Passing.POSITION if index < len(arguments.posonlyargs) else Passing.EITHER
        yield Parameter(node.arg, passing, _type(node), index >= required)
    if arguments.vararg:
        yield Parameter(f"*{arguments.vararg.arg}", Passing.REST, _type(arguments.vararg), True)
    for node, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Parameter(node.arg, Passing.NAME, _type(node), default is not None)
    if arguments.kwarg:
        yield Parameter(f"**{arguments.kwarg.arg}", Passing.REST, _type(arguments.kwarg), True)


def _type(node: ast.arg) -> str:
    return ast.unparse(node.annotation) if node.annotation else ""


def breaks_calls(before: str, after: str) -> str:
    """Return why a call that suited ``before`` may not suit ``after``; empty if every such call does."""
    old, new = parse_signature(before)[0], parse_signature(after)[0]
    names = {one.name: one for one in new}
    for one in old:
        if one.name not in names:
            return f"no {one.name!r}"
        now = names[one.name]
        if one.has_default and not now.has_default:
            return f"{one.name!r} has no default"
        if now.passing not in (one.passing, Passing.EITHER):
            return f"{one.name!r} is passed {now.passing.value}"
    known = {one.name for one in old}
    for one in new:
        if one.name not in known and not one.has_default:
            return f"new required {one.name!r}"
    by_position = (Passing.POSITION, Passing.EITHER)
    places = [one.name for one in new if one.passing in by_position]
    for place, one in enumerate(one for one in old if one.passing in by_position):
        if places.index(one.name) != place:
            return f"{one.name!r} has another position"
    return ""


def breaks_implementations(before: str, after: str) -> str:
    """Return why an implementation with the signature ``before`` may not suit callers of ``after``."""
    old = [(one.name, one.passing) for one in parse_signature(before)[0]]
    new = [(one.name, one.passing) for one in parse_signature(after)[0]]
    if old == new:
        return ""
    added = [name for name, _ in new if name not in {name for name, _ in old}]
    removed = [name for name, _ in old if name not in {name for name, _ in new}]
    parts = [f"new {', '.join(map(repr, added))}"] if added else []
    parts += [f"no {', '.join(map(repr, removed))}"] if removed else []
    return "; ".join(parts) or "parameters are passed in another way"


def differs_in_types(before: str, after: str) -> bool:
    """Report whether the types of parameters, or of the result, differ."""
    (old, old_result), (new, new_result) = parse_signature(before), parse_signature(after)
    types = {one.name: one.type for one in new}
    return old_result != new_result or any(types.get(one.name, one.type) != one.type for one in old)
