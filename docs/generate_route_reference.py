"""Write the generated parts of ``docs/route-reference.md`` from the docstrings of the names that routes may import.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from contract_source import SourceTree
from generate_contracts import Function, class_section, function_section
from generate_hooks import ROOT
from generated_page import DOCS, with_blocks, write_or_check

PAGE = DOCS / "route-reference.md"
MODULE = "sglang_plug_api.plugin"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "engine": ("TextEngine", "SamplingDefaults"),
    "sequences": ("Job", "Sampling", "JobOutput", "Ending", "joined", "new_id"),
    "chats": (
        "ChatRequest",
        "prepare_chat",
        "ChatParsingOptions",
        "ChatOutput",
        "Tool",
        "Function",
        "FunctionReference",
        "NamedTool",
        "Effort",
        "RequestImage",
    ),
    "bodies": (
        "takes",
        "read_body",
        "read_query",
        "RequestBody",
        "ProcessorFieldsBody",
        "Integer",
        "Number",
        "TokenId",
        "Name",
    ),
    "responses": (
        "RouteGroup",
        "ApiError",
        "from_exception",
        "json_response",
        "respond",
        "EventStream",
        "JsonLines",
        "NamedEvent",
        "first_of",
        "merged",
        "cancel_on_disconnect",
        "response_unless_disconnected",
    ),
    "services": ("Service", "named_options", "engine_group", "EngineGroup"),
}
"""The names that each part of the page describes; names of types of fields are in its text."""
DEFAULTS = ("sglang_plug_api.text.sampling", "SamplingDefaults")
"""The class of ``TextEngine.defaults``, which routes use but do not import."""
RECEIVED = frozenset({"TextEngine", "SamplingDefaults", "ChatParsingOptions"})
"""Classes that routes receive and do not construct."""


def group(tree: SourceTree, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the sections of some names."""
    for name in names:
        node = copy.copy(_definition(tree, name))
        if isinstance(node, ast.ClassDef):
            node.name = name
            if name in RECEIVED:
                node.body = [statement for statement in node.body if getattr(statement, "name", "") != "__init__"]
            yield from class_section(node)
        elif isinstance(node, Function):
            yield function_section(node)
        elif name == "Effort":
            assert isinstance(node, ast.Assign)
            yield f"### {name}\n\n`{ast.unparse(node.value)}`\n"


def _definition(tree: SourceTree, name: str) -> ast.stmt:
    module, defaults = DEFAULTS
    if name != defaults:
        return tree.definitions[f"{MODULE}.{name}"].node
    nodes = (
        statement
        for statement in tree.module(module).body
        if isinstance(statement, ast.ClassDef) and statement.name == name
    )
    return next(nodes)


def page() -> str:
    """Return the content of the page."""
    tree = SourceTree(ROOT, (MODULE,))
    blocks: dict[str, Callable[[], Iterator[str]]] = {
        name: partial(group, tree, names) for name, names in GROUPS.items()
    }
    return with_blocks(PAGE, blocks)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
