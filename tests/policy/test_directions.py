"""Tests of the import directions between packages, and of import cycles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.policy.directions import forbidden_imports
from tests.policy.source_tree import Source, import_cycles, import_graph, modules_per_folder, package_cycles

MODULES_PER_FOLDER = 15
CROWDED: dict[str, int] = {}
"""Folders that still have more modules than ``MODULES_PER_FOLDER``; a number may only fall."""

Draft = Callable[..., Source]


@pytest.fixture
def draft() -> Draft:
    """Return a function that makes a module that is not on disk: ``draft(path, text)``."""

    def make(path: str, text: str) -> Source:
        parts = Path(path).with_suffix("").parts[1:]
        return Source(Path(path), ".".join(parts[:-1] if parts[-1] == "__init__" else parts), text)

    return make


def test_packages_import_only_what_the_architecture_allows(sources: list[Source], root: Path) -> None:
    assert len(sources) > 500
    assert forbidden_imports(sources, root) == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/sglang_plug/contracts/request.py", "from sglang_plug.engine import loop"),
        ("core/sglang_plug/contracts/request.py", "from ..engine.loop import EngineLoop"),
        ("core/sglang_plug/contracts/request.py", "import sglang_plug.engine"),
        ("core/sglang_plug/contracts/request.py", "from sglang_plug_api import plugin"),
        ("core/sglang_plug/contracts/request.py", "import msgspec"),
        ("core/sglang_plug/engine/loop.py", "from sglang_plug_backends import ngram"),
        ("core/sglang_plug/engine/loop.py", "import sglang_plug_api.plugin"),
        ("core/sglang_plug/engine/loop.py", "import transformers"),
        ("core/sglang_plug/engine/loop.py", "def late():\n    import sglang_plug_models.llama"),
        ("builtin_models/sglang_plug_models/llama/model.py", "import sglang_plug.engine.loop"),
        ("builtin_models/sglang_plug_models/llama/model.py", "import sglang_plug_backends.ngram"),
        ("builtin_models/sglang_plug_models/llama/model.py", "import pytest"),
        ("builtin_backends/sglang_plug_backends/ngram/drafter.py", "from sglang_plug.engine import speculation"),
        ("builtin_backends/sglang_plug_backends/ngram/drafter.py", "import sglang_plug_api.plugin"),
        ("builtin_backends/sglang_plug_backends/ngram/drafter.py", "import httpx"),
        ("builtin_backends/sglang_plug_backends/ngram/drafter.py", "import llguidance"),
        ("api/sglang_plug_api/plugin.py", "import sglang_plug_models.llama"),
        ("api/sglang_plug_api/plugin.py", "import torch"),
        ("api/sglang_plug_lang/ir.py", "import sglang_plug"),
        ("api/sglang_plug_lang/ir.py", "import pydantic"),
    ],
)
def test_an_import_against_the_directions_is_reported(
    draft: Draft, sources: list[Source], root: Path, path: str, text: str
) -> None:
    (message,) = forbidden_imports([*sources, draft(path, text)], root)[:1]
    assert Path(path).parts[1] in message or "is imported by" in message


def test_nothing_is_imported_in_circles(sources: list[Source]) -> None:
    assert import_cycles(import_graph(sources)) == []


def test_a_circle_is_reported(draft: Draft) -> None:
    modules = [
        draft("core/a/one.py", "from a.two import X"),
        draft("core/a/two.py", "if True:\n    from . import three"),
        draft("core/a/three.py", "import a.one"),
        draft("core/a/four.py", "import a.one\nfrom a import five"),
        draft("core/a/five.py", "def late():\n    import a.four\nif TYPE_CHECKING:\n    import a.four"),
        draft("core/a/__init__.py", ""),
    ]
    assert import_cycles(import_graph(modules)) == [["a.one", "a.three", "a.two"]]


def test_the_packages_of_a_package_are_layers(sources: list[Source]) -> None:
    assert package_cycles(sources) == []


def test_packages_that_import_each_other_are_reported(draft: Draft) -> None:
    modules = [
        draft("core/a/__init__.py", ""),
        draft("core/a/low/__init__.py", ""),
        draft("core/a/low/one.py", "from a.high.one import X"),
        draft("core/a/low/two.py", ""),
        draft("core/a/high/__init__.py", ""),
        draft("core/a/high/one.py", ""),
        draft("core/a/high/two.py", "from a.low import two"),
        draft("core/a/top.py", "from a.high import two\nfrom a.low import one"),
    ]
    assert import_cycles(import_graph(modules)) == []
    assert package_cycles(modules) == [["a.high", "a.low"]]


def test_a_folder_has_few_modules(sources: list[Source]) -> None:
    counts = modules_per_folder(sources)
    assert len(counts) > 50
    assert {folder: n for folder, n in counts.items() if n > MODULES_PER_FOLDER} == CROWDED


def test_imports_are_spelled_out(draft: Draft) -> None:
    source = draft("core/a/b/c.py", "from .d import e\nfrom .. import f\nfrom . import g\nimport h.i")
    assert source.imports() == {"a.b.d.e", "a.f", "a.b.g", "h.i"}
