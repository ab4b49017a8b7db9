"""Variables, parameters and lambda arguments are named after the things that they hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.policy.source_tree import Source

PACKAGES = ("core", "builtin_backends", "builtin_models", "api")
"""The folders whose names are checked."""
GENERIC = frozenset({"found", "one", "there", "given", "wanted", "what"})
"""Names that say nothing about a value."""


def generic_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of each generic name that a function, a lambda, a loop or a comprehension binds."""
    fields = {
        id(statement.target)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for statement in owner.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        name = _bound_name(node)
        if name in GENERIC and id(node) not in fields:
            yield getattr(node, "lineno", 0), name


def _bound_name(node: ast.AST) -> str | None:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
        case ast.MatchMapping(rest=name):
            return name
        case ast.alias():
            return node.asname
    return None


def test_names_say_what_they_hold(sources: list[Source]) -> None:
    generic = [
        f"{source.path}:{line} {name}"
        for source in sources
        if source.package in PACKAGES
        for line, name in sorted(generic_names(source.tree))
    ]
    assert generic == []


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "def f(a, *, given=None): ...",
        "def f(*given): ...",
        "async def f(**given): ...",
        "for one in []: ...",
        "a = [one for one in []]",
        "a = lambda what: 1",
        "a = f(wanted := 2)",
        "with open('a') as there: ...",
        "a, (found, *b) = c",
        "try: ...\nexcept ValueError as what: ...",
        "match a:\n    case [one, *_]: ...",
        "match a:\n    case {**given}: ...",
        "import a as one",
        "class A:\n    def other(self, wanted): ...",
    ],
)
def test_a_generic_name_is_reported(code: str) -> None:
    assert len(list(generic_names(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "names = prefix.found",
        "f(given=1)",
        "a.found = 1",
        "class A:\n    found: int",
    ],
)
def test_attributes_and_keywords_are_not_reported(code: str) -> None:
    assert list(generic_names(ast.parse(code))) == []
