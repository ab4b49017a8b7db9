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
    parameters = [parameter for parameter in _parameters(function.args) if parameter.name not in ("self", "cls")]
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
    names = {parameter.name: parameter for parameter in new}
    for parameter in old:
        if parameter.name not in names:
            return f"no {parameter.name!r}"
        now = names[parameter.name]
        if parameter.has_default and not now.has_default:
            return f"{parameter.name!r} has no default"
        if now.passing not in (parameter.passing, Passing.EITHER):
            return f"{parameter.name!r} is passed {now.passing.value}"
    known = {parameter.name for parameter in old}
    for parameter in new:
        if parameter.name not in known and not parameter.has_default:
            return f"new required {parameter.name!r}"
    by_position = (Passing.POSITION, Passing.EITHER)
    names_by_position = [parameter.name for parameter in new if parameter.passing in by_position]
    for position, parameter in enumerate(parameter for parameter in old if parameter.passing in by_position):
        if names_by_position.index(parameter.name) != position:
            return f"{parameter.name!r} has another position"
    return ""


def breaks_implementations(before: str, after: str) -> str:
    """Return why an implementation with the signature ``before`` may not suit callers of ``after``."""
    old = [(parameter.name, parameter.passing) for parameter in parse_signature(before)[0]]
    new = [(parameter.name, parameter.passing) for parameter in parse_signature(after)[0]]
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
    types = {parameter.name: parameter.type for parameter in new}
    return old_result != new_result or any(
        types.get(parameter.name, parameter.type) != parameter.type for parameter in old
    )
