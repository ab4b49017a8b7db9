"""Write ``docs/hooks.md`` from the docstrings of ``sglang_plug.plugins.hookspecs`` and ``sglang_plug.plugins.specs``.

``--check`` writes nothing and fails if the page is not what would be written.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from textwrap import dedent

from generated_page import escape, write_or_check

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "sglang_plug"
PAGE = ROOT / "docs" / "hooks.md"

INTRODUCTION = """\
# Hooks and specs

<!-- Written by docs/generate_hooks.py from the docstrings of hookspecs.py and specs.py: edit those. -->

{questions}

The API version is **{version}**. It {version_note}

| hook | returns |
|---|---|
{rows}
"""
SPECS = """\
# Specs

{summary}

Every spec has these fields; all are given by keyword:

{fields}
"""


def parse(name: str) -> ast.Module:
    """Parse a module of ``sglang_plug``, named from there with dots, without importing it."""
    return ast.parse((CORE / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))


def parse_specs() -> ast.Module:
    """Parse the base class of specs and all specs as one module."""
    base, specs = parse("plugins.spec"), parse("plugins.specs")
    return ast.Module([*base.body, *specs.body], [])


def hooks(module: ast.Module) -> Iterator[ast.FunctionDef]:
    """Yield the hook specifications, in life-cycle order."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and any(
            "hookspec" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield node


def specs(module: ast.Module) -> Iterator[ast.ClassDef]:
    """Yield ``Spec`` and its subclasses."""
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("Spec"):
            yield node


def signature(hook: ast.FunctionDef) -> str:
    """Return the signature of a hook, as an implementation may write it: ``name(arguments)``."""
    return f"{hook.name}({', '.join(argument.arg for argument in hook.args.args)})"


def returns(hook: ast.FunctionDef) -> str:
    """Return the annotation of the return value of an implementation."""
    return ast.unparse(hook.returns) if hook.returns else "None"


def constant(module: ast.Module, name: str) -> tuple[str, str]:
    """Return value and docstring of a constant of a module."""
    for node, after in pairwise(module.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.unparse(node.value), text_of(after)
    raise LookupError(name)


def text_of(node: ast.AST) -> str:
    """Return the text of ``node`` if it is the docstring of a variable."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return " ".join(node.value.value.split())
    return ""


def fields(definition: ast.ClassDef) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield the annotated fields of a class, each with its docstring."""
    for node, after in pairwise([*definition.body, ast.Pass()]):
        if isinstance(node, ast.AnnAssign):
            yield node, text_of(after)


def field_table(spec: ast.ClassDef) -> str:
    """Return the table of the fields that a spec adds: name, type, default and meaning."""
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for node, text in fields(spec):
        if "ClassVar" not in (kind := ast.unparse(node.annotation)):
            default = f"`{ast.unparse(node.value)}`" if node.value is not None else "required"
            rows.append(f"| `{ast.unparse(node.target)}` | `{escape(kind)}` | {default} | {text} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def kind_of(spec: ast.ClassDef) -> str:
    """Return the ``kind`` of a spec's components, as in ``kind:name``."""
    for node in spec.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "kind" and node.value is not None:
            return str(ast.literal_eval(node.value))
    return ""


def sections(hook_module: ast.Module, spec_module: ast.Module) -> Iterator[str]:
    """Yield the parts of the page."""
    version, note = constant(hook_module, "API_VERSION")
    rows = [f"| [`{signature(hook)}`](#{anchor(hook)}) | `{escape(returns(hook))}` |" for hook in hooks(hook_module)]
    questions = ast.get_docstring(hook_module) or ""
    yield INTRODUCTION.format(
        questions=questions, version=version, version_note=note[:1].lower() + note[1:], rows="\n".join(rows)
    )
    for hook in hooks(hook_module):
        first = " The first answer that is not `None` counts." if "firstresult" in ast.dump(hook) else ""
        yield f"## `{signature(hook)}`\n\nReturns `{returns(hook)}`.{first}\n\n{docstring(hook)}\n"
    base, *kinds = specs(spec_module)
    yield SPECS.format(summary=docstring(base), fields=field_table(base))
    for spec in kinds:
        parts = [f"## {spec.name}", f"Kind `{kind_of(spec)}`. {docstring(spec)}", field_table(spec)]
        yield "\n\n".join(part for part in parts if part) + "\n"


def anchor(hook: ast.FunctionDef) -> str:
    """Return the identifier of the hook's heading in Markdown."""
    return re.sub(r"[^\w-]", "", signature(hook).replace(" ", "-"))


def docstring(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the docstring without indentation."""
    return dedent(ast.get_docstring(node) or "")


def page() -> str:
    """Return the content of the page."""
    return "\n".join(sections(parse("plugins.hookspecs"), parse_specs()))


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page, __doc__))
