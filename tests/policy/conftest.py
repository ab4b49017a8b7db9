"""The source tree as the rules see it: every module, parsed, with its imports spelled out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHELVES = ("core", "builtin_models", "builtin_backends", "api")


@dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    path: Path
    """Relative to the root of the repository."""
    module: str
    tree: ast.Module

    @property
    def shelf(self) -> str:
        """``core``, ``api``, ... or ``plugins``."""
        return self.path.parts[0]

    def imports(self, *, typing: bool = True) -> set[str]:
        """Dotted names: ``from a.b import c`` is ``a.b.c``. ``typing=False`` leaves out ``if TYPE_CHECKING``."""
        return {name for node in _walk(self.tree, typing) for name in self._names(node)}

    def _names(self, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = self.module.split(".") if self.path.name == "__init__.py" else self.module.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (".".join([*above, *([node.module] if node.module else []), one.name]) for one in node.names)


def _walk(node: ast.AST, typing: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if typing or not (isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")):
            yield child
            yield from _walk(child, typing)


def _read(folder: Path) -> Iterator[Source]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Source(path.relative_to(ROOT), module, ast.parse(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every module of the installed packages; scripts that are not part of the runtime are left out."""
    return [one for shelf in SHELVES for one in _read(ROOT / shelf) if "train" not in one.path.parts]


@pytest.fixture(scope="session")
def plugin_sources() -> list[Source]:
    """Every module of the distributions under ``plugins/``, their tests included."""
    return [one for folder in sorted((ROOT / "plugins").glob("*/")) for one in _read(folder)]
