"""The public names of sglang-plug: what a plugin may import.

``__init__.pyi`` lists them, for type checkers and for this module. A name is imported when it is first used (PEP 562),
so that declaring a plugin or printing ``--help`` imports no torch.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

from .renamed import current_name


def _modules_of_names() -> dict[str, str]:
    """Return the module that defines each public name, from the imports in ``__init__.pyi``."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {alias.name: f".{node.module}" for node in imports for alias in node.names}


_MODULES = _modules_of_names()

__version__ = "0.1.0"
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    name = current_name(name)
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
