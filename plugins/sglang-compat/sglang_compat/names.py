"""Names of ``sglang`` in the text of a program."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator

FRONTEND = "sglang_plug_lang"
MOVED = {"sglang.api": f"{FRONTEND}.lang.api"}
"""Modules whose counterpart has another path in the frontend language."""
OTHERS = {
    "sglang.Engine",
    "sglang.__version__",
    "sglang.api.Engine",
    "sglang.lang.api.Engine",
    "sglang.srt.hf_transformers_utils.get_tokenizer",
    "sglang.srt.utils.hf_transformers_utils.get_tokenizer",
}
"""Names that do not come from the frontend language."""
MISSING = object()


def missing_names(text: str, file: str = "<program>") -> list[tuple[int, str]]:
    """Return line and name of what a program takes from ``sglang`` without it being provided. It is not run."""
    tree = ast.parse(text, file)
    used = sorted({*_imported(tree), *_attributes(tree)})
    return [(line, name) for line, name in used if not _is_provided(name)]


def _imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if _is_sglang(alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level and _is_sglang(node.module or ""):
            for alias in node.names:
                yield node.lineno, f"{node.module}" if alias.name == "*" else f"{node.module}.{alias.name}"


def _attributes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield ``sgl.gen`` and the like, for each name that a module was imported under."""
    modules = {
        alias.asname or "sglang": alias.name if alias.asname else "sglang"
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if _is_sglang(alias.name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, _, attribute = ast.unparse(node).partition(".")
            if name in modules and attribute.replace(".", "").isidentifier():
                yield node.lineno, f"{modules[name]}.{attribute}"


def _is_sglang(module: str) -> bool:
    return module.partition(".")[0] == "sglang"


def _is_provided(name: str) -> bool:
    """Return True if the dotted name leads to a module or an object."""
    if name in OTHERS or any(name.startswith(f"{other}.") for other in OTHERS):
        return True
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        prefix = ".".join(parts[:end])
        try:
            target: object = importlib.import_module(MOVED.get(prefix, FRONTEND + prefix.removeprefix("sglang")))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            target = getattr(target, attribute, MISSING)
        if target is not MISSING:
            return True
    return False
