"""The public names of a source tree as a contract describes them, found without importing anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from sglang_plug_api.contract.surface import HOOKS, Item, Member

FOLDERS = {"sglang_plug": "core", "sglang_plug_api": "api"}
EARLIER_NAMES = {"sglang_plug": "sglang_plug.renamed", "sglang_plug_api.plugin": "sglang_plug_api.plugin"}
"""The module with ``RENAMED``, the earlier names that still work, by public module."""
SPECIAL = ("__init__", "__call__", "__enter__", "__exit__", "__iter__", "__len__", "__getitem__")
"""Methods with underscores that are part of the contract."""
DEPRECATION = "warn_deprecated"
PROVIDED = frozenset(
    """AdapterRequest AttentionShape BuildEnv CheckpointRequest ChunkView EngineConfig ExtensionContext ExtensionRanks
    Facts ForwardBatch LaunchSpec LogitsRow MediaLimits MediaSource MultimodalInputs Plugins ProcessorRequest
    QuantizationRequest Request RequestEvent SequenceView StepPlan StepStats TextEngine TokenUsage TokenizerSource
    Waiting""".split()
)
"""Classes that plugins receive but neither define nor create, so that a new member breaks none of them."""

Form = Literal["class", "dataclass", "model", "protocol"]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A statement that defines a name, and its module."""

    module: str
    node: ast.stmt


def stub_exports(stub: ast.Module) -> dict[str, str]:
    """Return the names that a stub file exports, which are imported under a name, and the module of each."""
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {alias.asname: node.module or "" for node in imports for alias in node.names if alias.asname}


class SourceTree:
    """A checkout, whose public names are those that the modules ``public`` list.

    Args:
        root: folder of the checkout.
        public: modules with ``__all__`` or a stub file, in the order in which a name that several export is attributed.
    """

    def __init__(self, root: Path, public: Sequence[str]) -> None:
        self.root = root
        self.public = public
        self.module = cache(self._module)
        self.definitions = {
            f"{module}.{name}": definition
            for module in public
            for name in self._exported(module)
            if (definition := self._find(module, name)) is not None
        }
        self._names = {id(definition.node): name for name, definition in reversed(self.definitions.items())}
        """The public name of each definition."""

    def items(self) -> dict[str, Item]:
        """Return the description of every public name and hook."""
        items = {name: self._item(definition) for name, definition in self.definitions.items()}
        for node in self.module("sglang_plug.plugins.hookspecs").body:
            if isinstance(node, ast.FunctionDef) and "hookspec" in _decorators(node):
                items[f"{HOOKS}.{node.name}"] = Item("hook", _signature(node), deprecated=_deprecation(node))
        for package, module in EARLIER_NAMES.items():
            for earlier, now in _literal(self.module(module), "RENAMED").items():
                items[f"{package}.{earlier}"] = Item("renamed", f"{package}.{now}")
        return dict(sorted(items.items()))

    def _path(self, module: str) -> Path:
        path = self.root / FOLDERS[module.partition(".")[0]] / module.replace(".", "/")
        if not path.is_dir():
            return path.with_suffix(".py")
        stub = path / "__init__.pyi"
        return stub if stub.exists() else path / "__init__.py"

    def _module(self, module: str) -> ast.Module:
        return ast.parse(self._path(module).read_text(encoding="utf-8"))

    def _exported(self, module: str) -> list[str]:
        """Return the names in ``__all__``, or those that a stub file exports, which are imported under a name."""
        if self._path(module).suffix == ".py":
            return list(_literal(self.module(module), "__all__"))
        return sorted(stub_exports(self.module(module)))

    def _find(self, module: str, name: str) -> Definition | None:
        """Find the definition of a name that a module of ours defines or imports."""
        if module.partition(".")[0] not in FOLDERS:
            return None
        for node in ast.walk(self.module(module)):
            if isinstance(node, ast.ClassDef | Function) and node.name == name:
                return Definition(module, node)
            if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
                return Definition(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._find(self._source(module, node), alias.name)
        return None

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """Return the full name of the module that is imported from."""
        if not node.level:
            return node.module or ""
        is_package = self._path(module).stem == "__init__"
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + is_package]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _item(self, definition: Definition) -> Item:
        node = definition.node
        if isinstance(node, ast.ClassDef):
            return self._class(definition.module, node)
        if isinstance(node, Function):
            return Item("function", _signature(node), deprecated=_deprecation(node))
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        return Item("value", ast.unparse(node.value) if node.value is not None else "")

    def _class(self, module: str, node: ast.ClassDef) -> Item:
        form = self._form(module, node)
        bases: list[str] = []
        members: dict[str, Member] = {}
        for base in node.bases:
            definition = self._find(module, ast.unparse(base))
            public = self._names.get(id(definition.node)) if definition else None
            if public is not None:
                bases.append(public)
            elif definition is not None and isinstance(definition.node, ast.ClassDef):
                inner = self._class(definition.module, definition.node)
                bases += inner.bases
                members |= inner.members
            elif (name := ast.unparse(base)).partition("[")[0] not in ("ABC", "Protocol", "Generic"):
                bases.append(name)
        members |= dict(_members(node, form))
        return Item(
            "class",
            form=form,
            provided=node.name in PROVIDED,
            bases=tuple(dict.fromkeys(bases)),
            targets=tuple(self._targets_of(module, node)),
            members=dict(sorted(members.items())),
            deprecated=_deprecation(
                next((statement for statement in node.body if _is_method(statement, "__init__")), None)
            ),
        )

    def _form(self, module: str, node: ast.ClassDef) -> Form:
        if any(decorator.startswith("dataclass") for decorator in _decorators(node)):
            return "dataclass"
        for base in node.bases:
            name = ast.unparse(base)
            if name.partition("[")[0] == "Protocol":
                return "protocol"
            if name in ("BaseModel", "Struct", "msgspec.Struct"):
                return "model"
            definition = self._find(module, name)
            if definition is not None and isinstance(definition.node, ast.ClassDef):
                if (form := self._form(definition.module, definition.node)) == "model":
                    return form
        return "class"

    def _targets_of(self, module: str, node: ast.ClassDef) -> Iterator[str]:
        """Yield the public names in the sentence ``Target: ...`` of a spec's docstring."""
        _, _, text = " ".join((ast.get_docstring(node) or "").split()).partition("Target: ")
        for name in dict.fromkeys(re.findall(r"[A-Z]\w+", " ".join(re.findall(r"``([^`]+)``", text)))):
            yield from [f"{prefix}.{name}" for prefix in self.public if f"{prefix}.{name}" in self.definitions][:1]


def _members(node: ast.ClassDef, form: Form) -> Iterator[tuple[str, Member]]:
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and not (name := ast.unparse(statement.target)).startswith("_"):
            text, default = (
                ast.unparse(statement.annotation),
                ast.unparse(statement.value) if statement.value is not None else None,
            )
            yield name, Member("field", text, default, required=form == "protocol" and default is None)
        elif isinstance(statement, ast.Assign):
            for name in _targets(statement):
                if not name.startswith("_"):
                    yield name, Member("field", default=ast.unparse(statement.value))
        elif isinstance(statement, Function) and (statement.name in SPECIAL or not statement.name.startswith("_")):
            yield statement.name, _method(statement, form)
            if statement.name == "__init__":
                yield from _attributes(statement)


def _method(node: Function, form: Form) -> Member:
    decorators = _decorators(node)
    required = "abstractmethod" in decorators or form == "protocol" and _is_stub(node)
    if "property" in decorators or "cached_property" in decorators:
        return Member("property", ast.unparse(node.returns) if node.returns else "", required=required)
    return Member("method", _signature(node), required=required, deprecated=_deprecation(node))


def _attributes(constructor: Function) -> Iterator[tuple[str, Member]]:
    """Yield the public attributes that a constructor sets."""
    types = {argument.arg: argument.annotation for argument in (*constructor.args.args, *constructor.args.kwonlyargs)}
    for node in ast.walk(constructor):
        for target, value in _assigned(node):
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and target.attr[0] != "_":
                annotation = node.annotation if isinstance(node, ast.AnnAssign) else None
                if annotation is None and isinstance(value, ast.Name):
                    annotation = types.get(value.id)
                yield target.attr, Member("field", ast.unparse(annotation) if annotation else "")


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Yield the targets of an assignment with what is assigned to each."""
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def _is_stub(node: Function) -> bool:
    """Report whether a function has no body besides its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return all(isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) for statement in body)


def _signature(node: Function) -> str:
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(node.args)}){returns}"


def _deprecation(node: ast.stmt | None) -> str:
    """Return the text of the warning that a function begins with, see ``sglang_plug.deprecation``."""
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and statement.value.args:
            if ast.unparse(statement.value.func).rpartition(".")[2] == DEPRECATION:
                return ast.unparse(statement.value.args[0]).strip("'\"")
    return ""


def _decorators(node: ast.ClassDef | Function) -> list[str]:
    return [ast.unparse(decorator).rpartition(".")[2].partition("(")[0] for decorator in node.decorator_list]


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_method(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _literal(module: ast.Module, name: str) -> dict[str, str]:
    for node in module.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node) and node.value is not None:
            value: dict[str, str] = ast.literal_eval(node.value)
            return value
    raise LookupError(name)
