"""Write ``docs/contracts.md``: every public name of ``sglang_plug`` that a target meets, from its docstrings.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from inspect import cleandoc

from contract_source import stub_exports
from generate_hooks import CORE, ROOT, docstring, fields, kind_of, parse
from generated_page import escape, write_or_check

PAGE = ROOT / "docs" / "contracts.md"
INTRODUCTION = """\
# Contracts

<!-- Written by docs/generate_contracts.py from the docstrings of core/sglang_plug: edit those. -->

What the target of each spec implements, and what it receives. Everything here is imported from `sglang_plug` itself,
except [layers](#layers) for models and [conformance tests](#conformance-tests) for components.

| kind | spec | target |
|---|---|---|
{rows}
"""
SECTIONS = {
    "contracts.request": "Requests and outputs",
    "contracts.sampling_params": "Sampling parameters",
    "contracts.model.model": "Models",
    "contracts.model.batch": "The tensors of a step",
    "contracts.model.recurrent_state": "Recurrent states",
    "contracts.model.attention": "Attention",
    "contracts.model.kernels": "Kernels",
    "ops.sampling": "Sampling",
    "contracts.serving.logits_processor": "Logits processors",
    "contracts.serving.drafting": "Drafters",
    "contracts.extension.base": "Step extensions",
    "contracts.extension.memory_phases": "Step extensions: memory",
    "contracts.extension.request_phases": "Step extensions: the life of a request",
    "contracts.extension.sampling_phases": "Step extensions: sampling",
    "contracts.extension.queueing": "Step extensions: the waiting queue",
    "contracts.extension.preemption": "Step extensions: preemption of sequences",
    "contracts.extension.step_budget": "Step extensions: prompt tokens of a step",
    "contracts.extension.step_phases": "Step extensions: the computation of a step",
    "contracts.extension.execution": "Step extensions: the forward pass",
    "contracts.extension.views": "Step extensions: sequences, steps and ranks",
    "contracts.model.quantization": "Quantization",
    "ops.quantized_weight": "Quantized weights",
    "contracts.model.adapters": "Adapters",
    "ops.lora": "Low-rank adapters",
    "contracts.serving.executor": "Executors",
    "contracts.serving.engine_client": "Deployments and engine clients",
    "clients.remote_server": "Engines for clients on other machines",
    "clients.remote_client": "Clients of engines on other machines",
    "clients.remote_messages": "Launching engines on other machines",
    "contracts.serving.routing": "Routing policies",
    "contracts.serving.cache": "Prefix cache and eviction",
    "contracts.serving.kv_store": "KV stores",
    "contracts.storage.store": "Stores of files, batches and responses",
    "contracts.storage.wrapper": "Stores that add something to another one",
    "contracts.storage.responses": "Stores of responses",
    "contracts.storage.records": "Records of stores",
    "contracts.storage.errors": "Errors of stores",
    "contracts.serving.scheduling": "Schedule policies",
    "contracts.model.checkpoint": "Checkpoints and weights",
    "contracts.model.pooling": "Pooling",
    "contracts.serving.observer": "Observers",
    "contracts.serving.lifecycle": "Components that hold resources",
    "contracts.text.tokenizer": "Tokenizers",
    "contracts.text.vocabulary": "Vocabularies",
    "contracts.text.media": "Images in prompts",
    "contracts.text.grammar": "Grammars",
    "contracts.text.parsers": "Output parsers",
    "ops.host_device_copy": "Copies between host and device",
    "plugins.hookspecs": "Facts about plugins",
    "plugins.component": "Components and errors of plugins",
    "plugins.attribution": "Errors that name a component",
    "system.child_process": "Child processes",
    "system.host_memory": "The memory of the host",
    "system.memory_advice": "Advice about memory",
    "system.library_panics": "Panics of native libraries",
    "system.out_of_memory": "Lack of memory",
    "system.shared_secret": "Secrets of several servers",
    "plugins.registry": "All plugins",
    "config": "Configuration and errors",
}
"""The heading of each module on the page. Specs are described in ``docs/hooks.md``."""
DEFINITIONS = {
    "contracts.model.kernels": (
        "pack_linear",
        "rms_norm",
        "add_rms_norm",
        "silu_mul",
        "apply_rope",
        "rope_store",
        "moe",
    ),
    "ops.sampling": ("mask_logits", "sample_tokens"),
    "config": (
        "ModelOptions",
        "CacheOptions",
        "ScheduleOptions",
        "BackendOptions",
        "ParallelOptions",
        "SpeculativeOptions",
        "AdapterOptions",
    ),
}
"""Names that are described besides the public ones, by module: fields of ``Kernels``, and groups of options."""
LAYERS = """\
## Layers

Layers for models; imported from `sglang_plug.layers`. A layer is called with tensors, computes with the selected
kernels, and is loaded and quantized by its model.
"""
KITS = """\
## Conformance tests

For tests of components; imported from `sglang_plug.testing`. They need no server.
"""
Function = ast.FunctionDef | ast.AsyncFunctionDef
SPECIAL = ("__init__", "__call__")
"""Methods with underscores that are shown."""
UNDOCUMENTED = ("plugins.registry.Plugins",)
"""Public names for programs that start the engine, of which plugins receive instances only in commands."""


def public() -> dict[str, list[str]]:
    """Return the public names of ``sglang_plug`` by module."""
    names: dict[str, list[str]] = {}
    for name, module in stub_exports(ast.parse((CORE / "__init__.pyi").read_text(encoding="utf-8"))).items():
        names.setdefault(module, []).append(name)
    return names


def sections() -> Iterator[str]:
    """Yield the parts of the page."""
    specs = [node for node in parse("plugins.specs").body if isinstance(node, ast.ClassDef) and node.name != "Spec"]
    rows = [_spec_row(node) for node in specs]
    yield INTRODUCTION.format(rows="\n".join(rows))
    names = public()
    for module, title in SECTIONS.items():
        tree = parse(module)
        documented = [name for name in names[module] if f"{module}.{name}" not in UNDOCUMENTED]
        documented += DEFINITIONS.get(module, ())
        nodes = [
            node for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in documented
        ]
        if not nodes:
            continue
        yield f"## {title}\n\n{_about(tree)}\n"
        for node in nodes:
            yield from class_section(node) if isinstance(node, ast.ClassDef) else [function_section(node)]
    yield LAYERS
    for node in _exported("layers"):
        yield from _layer(node) if isinstance(node, ast.ClassDef) else [function_section(node)]
    yield KITS
    yield from (function_section(node) for node in _exported("testing") if isinstance(node, ast.FunctionDef))


def _exported(package: str) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield the classes and functions that a package of core imports from its own modules, in order."""
    for source in parse(f"{package}.__init__").body:
        if not isinstance(source, ast.ImportFrom) or not source.level:
            continue
        imported = {alias.name for alias in source.names}
        for node in parse(f"{package}.{source.module}").body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in imported:
                yield node


def _layer(node: ast.ClassDef) -> Iterator[str]:
    """Yield the docstring, constructor and call of a layer; other methods serve the loader of models."""
    yield f"### {node.name}\n\n{docstring(node)}\n"
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name in ("__init__", "forward"):
            yield function_section(statement)


def _spec_row(node: ast.ClassDef) -> str:
    kind = kind_of(node)
    _, _, target = " ".join(docstring(node).split()).partition("Target: ")
    return f"| `{kind}` | [`{node.name}`](hooks.md#{node.name.lower()}) | {escape(target)} |"


def class_section(node: ast.ClassDef) -> Iterator[str]:
    """Yield the heading, docstring, fields and public methods of a class."""
    bases = [ast.unparse(base) for base in node.bases if ast.unparse(base) not in ("ABC", "Protocol")]
    base = f"({', '.join(bases)})" if bases else ""
    yield f"### {node.name}\n\n`class {node.name}{base}`\n\n{docstring(node)}\n"
    if rows := list(_field_rows(node)):
        yield "\n".join(("| field | type | default | |", "|---|---|---|---|", *rows)) + "\n"
    for member in node.body:
        if isinstance(member, Function) and (member.name in SPECIAL or not member.name.startswith("_")):
            yield function_section(member)


def _field_rows(node: ast.ClassDef) -> Iterator[str]:
    for member, text in fields(node):
        name = ast.unparse(member.target)
        if not name.startswith("_"):
            default = f"`{escape(ast.unparse(member.value))}`" if member.value is not None else ""
            yield f"| `{name}` | `{escape(ast.unparse(member.annotation))}` | {default} | {escape(text)} |"


def function_section(node: Function) -> str:
    """Return the signature and docstring of a function."""
    marks = [ast.unparse(decorator) for decorator in node.decorator_list]
    words = [word for mark, word in (("classmethod", "classmethod"), ("property", "property")) if mark in marks]
    if isinstance(node, ast.AsyncFunctionDef):
        words.append("asynchronous generator" if _yields(node) else "awaitable")
    words += ["**to be implemented**"] if "abstractmethod" in marks else []
    about = cleandoc(ast.get_docstring(node) or "")
    head = f"`{node.name}({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}`" if node.returns else "`")
    lines = [f"**{head}**" + (f" ({', '.join(words)})" if words else ""), *([about] if about else [])]
    return "\n\n".join(lines) + "\n"


def _yields(function: ast.AsyncFunctionDef) -> bool:
    """Report whether a function is a generator; functions inside of it do not count."""
    pending: list[ast.AST] = list(function.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Yield):
            return True
        if not isinstance(node, Function | ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return False


def _about(tree: ast.Module) -> str:
    return cleandoc(ast.get_docstring(tree) or "")


def page() -> str:
    """Return the content of the page."""
    return "\n".join(sections())


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
