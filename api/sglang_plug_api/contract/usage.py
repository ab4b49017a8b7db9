"""Use of the contract by a plugin, read from its source code without importing it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .changes import Change
from .surface import HOOKS, Surface

PACKAGES = ("sglang_plug", "sglang_plug_api")
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Location:
    """A line of a plugin."""

    file: str
    line: int

    def __str__(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a public class or function."""

    location: Location
    keywords: frozenset[str]


@dataclass(frozen=True, slots=True)
class DefinedClass:
    """A class that a plugin defines."""

    location: Location
    bases: tuple[str, ...]
    """Full names of public bases, and plain names of others."""
    methods: Mapping[str, Location]


@dataclass(slots=True)
class Usage:
    """Everything that the files of a plugin use, by full or plain name."""

    names: dict[str, list[Location]] = field(default_factory=dict)
    """Full name of what is imported, or of a hook that is implemented."""
    attributes: dict[str, list[Location]] = field(default_factory=dict)
    """Name of an attribute or keyword argument, whatever it belongs to."""
    calls: dict[str, list[Call]] = field(default_factory=dict)
    classes: dict[str, DefinedClass] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    """Files that are not Python, with the reason."""

    def mentions(self, name: str) -> bool:
        """Report whether a public name is used anywhere."""
        return name in self.names or f"{name.rpartition('.')[0]}.*" in self.names


def read_usage(files: Iterable[tuple[str, Path]]) -> Usage:
    """Read Python files, given by the name to show and the location."""
    usage = Usage()
    for name, path in files:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            usage.unreadable.append(f"{name}: {type(error).__name__}: {error}")
            continue
        _FileReader(name, usage).read(tree)
    return usage


class _FileReader:
    """Adds what one file uses."""

    def __init__(self, file: str, usage: Usage) -> None:
        self.file = file
        self.usage = usage
        self.aliases: dict[str, str] = {}
        """Name in this file -> full name of what was imported."""

    def read(self, tree: ast.Module) -> None:
        """Read the imports first: functions may use names that are imported further down."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in ast.walk(tree):
            self._visit(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] in PACKAGES:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.aliases[alias.asname or target] = target
            return
        if node.level or (node.module or "").partition(".")[0] not in PACKAGES:
            return
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            self.aliases[alias.asname or alias.name] = full
            self._add(self.usage.names, full, node)

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            self._add(self.usage.attributes, node.attr, node)
            if (full := self._full_name(node)) is not None:
                self._add(self.usage.names, full, node)
        elif isinstance(node, ast.Call):
            if (full := self._full_name(node.func)) is not None:
                keywords = frozenset(keyword.arg for keyword in node.keywords if keyword.arg is not None)
                self.usage.calls.setdefault(full, []).append(Call(self._location(node), keywords))
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.FunctionDef) and any(
            "hookimpl" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            self._add(self.usage.names, f"{HOOKS}.{node.name}", node)

    def _class(self, node: ast.ClassDef) -> None:
        methods = {
            statement.name: self._location(statement)
            for statement in node.body
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign | ast.Assign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                methods |= {target.id: self._location(statement) for target in targets if isinstance(target, ast.Name)}
        bases = tuple(self._full_name(base) or ast.unparse(base).rpartition(".")[2] for base in node.bases)
        self.usage.classes[node.name] = DefinedClass(self._location(node), bases, methods)

    def _full_name(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self._full_name(node.value)) is not None:
            return f"{owner}.{node.attr}"
        return None

    def _location(self, node: ast.AST) -> Location:
        return Location(self.file, getattr(node, "lineno", 1))

    def _add(self, table: dict[str, list[Location]], key: str, node: ast.AST) -> None:
        table.setdefault(key, []).append(self._location(node))


class AffectedLocations:
    """Finds the locations in a plugin that a change of the contract affects.

    Args:
        usage: what the plugin uses.
        surface: the version that the plugin was written for.
    """

    def __init__(self, usage: Usage, surface: Surface) -> None:
        self.usage = usage
        self.surface = surface
        self.reachable = frozenset(self._reachable())
        self.implementers: dict[str, list[DefinedClass]] = {}
        for defined in usage.classes.values():
            for name in self._implemented(defined):
                self.implementers.setdefault(name, []).append(defined)

    def of(self, change: Change) -> list[Location]:
        """Return the locations in order; none if the change does not concern the plugin."""
        if change.is_addition:
            return []
        locations = list(self._naming(change)) if change.member is None else list(self._using(change, change.member))
        return sorted(set(locations), key=lambda location: (location.file, location.line))

    def _naming(self, change: Change) -> Iterator[Location]:
        yield from self.usage.names.get(change.name, ())
        yield from self.usage.names.get(f"{change.name.rpartition('.')[0]}.*", ())

    def _using(self, change: Change, member: str) -> Iterator[Location]:
        if change.name not in self.reachable:
            return
        implementers = self.implementers.get(change.name, ())
        if change.is_new_member or "must" in change.text and "implementer" in change.breaks:
            if "implementer" in change.breaks:
                yield from (implementer.location for implementer in implementers if member not in implementer.methods)
            if "constructor" in change.breaks:
                yield from (call.location for call in self._constructions(change.name) if member not in call.keywords)
            return
        if not change.breaks or change.breaks & {"user"}:
            if member not in ("__init__", "__call__"):
                yield from self.usage.attributes.get(member, ())
        if not change.breaks or change.breaks & {"user", "implementer"}:
            yield from (implementer.methods[member] for implementer in implementers if member in implementer.methods)
        if "constructor" in change.breaks or not change.breaks:
            calls = self._constructions(change.name)
            if member == "__init__":
                yield from (call.location for call in calls)
            elif "was removed" in change.text:
                yield from (call.location for call in calls if member in call.keywords)
            elif change.breaks:
                yield from (call.location for call in calls if member not in call.keywords)

    def _constructions(self, name: str) -> list[Call]:
        return self.usage.calls.get(name, [])

    def _reachable(self) -> Iterator[str]:
        """Yield the public names that the plugin mentions, and those that it meets as types of what it mentions."""
        by_word: dict[str, list[str]] = {}
        for name in self.surface.items:
            by_word.setdefault(name.rpartition(".")[2], []).append(name)
        pending = [name for name in self.surface.items if self.usage.mentions(name)]
        known = set(pending)
        while pending:
            name = pending.pop()
            yield name
            item = self.surface.items[name]
            texts = [item.text, *item.bases, *item.targets, *(member.text for member in item.members.values())]
            for word in WORD.findall(" ".join(texts)):
                for other in by_word.get(word, ()):
                    if other not in known:
                        known.add(other)
                        pending.append(other)

    def _implemented(self, defined: DefinedClass) -> set[str]:
        """Return the public classes that a class derives from, or that it fulfils as the target of a spec."""
        bases, pending = set[str](), list(defined.bases)
        visited = set[str]()
        while pending:
            base = pending.pop()
            if base in self.surface.items:
                bases |= set(self.surface.ancestors(base))
            elif base in self.usage.classes and base not in visited:
                visited.add(base)
                pending += self.usage.classes[base].bases
        for name, item in self.surface.items.items():
            if name in self.usage.calls:
                bases |= {target for target in item.targets if self._fulfils(defined, target)}
        return bases

    def _fulfils(self, defined: DefinedClass, target: str) -> bool:
        """Report whether a class has a method that the target must have; it may lack others by now."""
        required = {name for name, member in self.surface.items[target].members.items() if member.required}
        return self.surface.is_implementable(target) and bool(required & defined.methods.keys())
