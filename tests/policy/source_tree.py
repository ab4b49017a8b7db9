"""The source tree as the policy tests and the measurements see it: every module, parsed, with its imports resolved."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path

ROOT = Path(os.environ.get("MEASURED_TREE", Path(__file__).parents[2])).resolve()
"""The repository; ``python -m tests.policy.measure`` can be pointed at another one."""
PACKAGE_FOLDERS = ("core", "builtin_models", "builtin_backends", "api")
"""The folders with the installed packages."""
SCRIPT_FOLDERS = ("tests", "benchmarks", "docs")
"""The folders with tests and programs, which are not installed."""
DANGLING = frozenset(
    "what of as who whose which how those where whether why that it and or but so then also too is are has "
    "not neither both others its their there".split()
)
"""Words with which a docstring's first line does not stand alone."""
PREPOSITIONS = frozenset("by at in on for with without from until before after to".split())
"""Words with which a docstring's first line does not stand alone unless the clause that they begin ends in it."""
REFERRING = re.compile(r"(\S+ ){0,3}(it|them|one|this|that|these|those|others|same|here|there)[.:]|So far\.")
"""A first line of at most four words that ends with a reference to something that it does not name."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file of a package."""

    path: Path
    """Path relative to the root of the repository."""
    module: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Syntax tree of the file."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """``core``, ``api``, ... or ``plugins``."""
        return self.path.parts[0]

    @property
    def folder(self) -> str:
        """The folder of the file, with slashes."""
        return self.path.parent.as_posix()

    @property
    def is_package(self) -> bool:
        """True for ``__init__.py``."""
        return self.path.name == "__init__.py"

    def imports(self, *, typing: bool = True, functions: bool = True) -> set[str]:
        """Return dotted names: ``from a.b import c`` is ``a.b.c``.

        ``typing=False`` leaves out ``if TYPE_CHECKING``; ``functions=False`` leaves out imports in functions.
        """
        return set(_imports(self, typing, functions))

    def functions(self) -> Iterator[Function]:
        """Yield every function and method, nested ones included."""
        return (node for node in ast.walk(self.tree) if isinstance(node, Function))

    def docstrings(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, line and text of the docstrings of the module, its classes, functions and variables."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node)
                if text is not None:
                    yield getattr(node, "name", self.path.name), getattr(node, "lineno", 1), text
            if isinstance(node, ast.Module | ast.ClassDef):
                yield from _variable_docstrings(node)


def _variable_docstrings(body: ast.Module | ast.ClassDef) -> Iterator[tuple[str, int, str]]:
    for assigned, text in pairwise(body.body):
        if isinstance(assigned, ast.AnnAssign | ast.Assign) and isinstance(text, ast.Expr):
            target = assigned.target if isinstance(assigned, ast.AnnAssign) else assigned.targets[0]
            if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                yield ast.unparse(target), text.lineno, text.value.value


@cache
def _imports(source: Source, typing: bool, functions: bool) -> frozenset[str]:
    return frozenset(name for node in _walk(source.tree, typing, functions) for name in _names(source, node))


def _names(source: Source, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        package = source.module.split(".") if source.is_package else source.module.split(".")[:-1]
        above = package[: len(package) - node.level + 1] if node.level else []
        yield from (".".join([*above, *([node.module] if node.module else []), alias.name]) for alias in node.names)


def _walk(node: ast.AST, typing: bool, functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not functions and isinstance(child, Function | ast.Lambda):
            continue
        if not typing and isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield other
                yield from _walk(other, typing, functions)
            continue
        yield child
        yield from _walk(child, typing, functions)


def read_sources(folder: Path, root: Path = ROOT) -> Iterator[Source]:
    """Yield every module under ``folder``, which is on the import path."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield Source(path.relative_to(root), module, path.read_text(encoding="utf-8"))


@cache
def package_sources() -> tuple[Source, ...]:
    """Return every module of the installed packages; scripts that are not part of the runtime are left out."""
    return tuple(
        source
        for package in PACKAGE_FOLDERS
        for source in read_sources(ROOT / package)
        if "train" not in source.path.parts
    )


@cache
def distribution_sources() -> tuple[Source, ...]:
    """Return every module of the distributions under ``plugins/``, their tests included."""
    return tuple(source for folder in sorted((ROOT / "plugins").glob("*/")) for source in read_sources(folder))


@cache
def script_sources() -> tuple[Source, ...]:
    """Return every module of the tests, of the benchmarks and of the programs that write documentation."""
    return tuple(source for folder in SCRIPT_FOLDERS for source in read_sources(ROOT / folder))


def modules_per_folder(sources: Sequence[Source]) -> dict[str, int]:
    """Count the modules that lie side by side in each folder; ``__init__.py`` does not count."""
    counts: dict[str, int] = {}
    for source in sources:
        counts[source.folder] = counts.get(source.folder, 0) + (not source.is_package)
    return counts


def import_graph(sources: Sequence[Source]) -> dict[str, set[str]]:
    """Map each module to the modules it imports while it is imported itself."""
    modules = {source.module for source in sources}

    def resolve(name: str) -> str | None:
        parts = name.split(".")
        return next(
            (known for end in (len(parts), len(parts) - 1) if (known := ".".join(parts[:end])) in modules), None
        )

    graph: dict[str, set[str]] = {}
    for source in sources:
        imported = {resolve(name) for name in source.imports(typing=False, functions=False)}
        graph[source.module] = {name for name in imported if name is not None} - {source.module}
    return graph


def import_cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other (Tarjan's strongly connected components)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        numbers[module] = lowest[module] = len(numbers)
        path.append(module)
        for other in sorted(graph[module]):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in path:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            group = path[path.index(module) :]
            del path[path.index(module) :]
            if len(group) > 1:
                cycles.append(sorted(group))

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return sorted(cycles)


def package_graph(graph: Mapping[str, set[str]], package: str) -> dict[str, set[str]]:
    """Reduce a graph of modules to the direct children of ``package``, its modules and subpackages."""

    def child(module: str) -> str | None:
        name = module.removeprefix(f"{package}.")
        return None if name == module else f"{package}.{name.partition('.')[0]}"

    children: dict[str, set[str]] = {}
    for module, imported in graph.items():
        if (importer := child(module)) is not None:
            children.setdefault(importer, set()).update(filter(None, map(child, imported)))
    return {importer: imported - {importer} for importer, imported in children.items()}


def package_cycles(sources: Sequence[Source]) -> list[list[str]]:
    """Return the groups of modules and subpackages of one package that import each other, for every package."""
    graph = import_graph(sources)
    packages = sorted({source.module for source in sources if source.is_package})
    return [group for package in packages for group in import_cycles(package_graph(graph, package))]


def docstring_faults(sources: Iterable[Source]) -> list[str]:
    """Return a line for each docstring whose first paragraph does not stand alone."""
    return [
        f"{source.path}:{line} the docstring of {name} {fault}"
        for source in sources
        for name, line, text in source.docstrings()
        if (fault := first_line_fault(text)) is not None
    ]


def first_line_fault(docstring: str) -> str | None:
    """Say why a docstring's first paragraph does not stand alone; ``None`` if it does."""
    paragraph = docstring.strip().partition("\n\n")[0]
    if not paragraph:
        return "is empty"
    first = re.match(r"[A-Za-z]+", paragraph)
    word = first[0].lower() if first is not None else ""
    if word in DANGLING or (word in PREPOSITIONS and not re.search("[,:]", paragraph)):
        return f"starts with {word!r}"
    if re.fullmatch(r"[A-Z]?[a-z]+\.", paragraph):
        return "has one word"
    if REFERRING.fullmatch(paragraph):
        return "does not name what it refers to"
    if paragraph[-1] not in ".!?:…":
        return "has no punctuation at its end"
    return None
