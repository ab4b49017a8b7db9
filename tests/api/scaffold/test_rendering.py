"""Each kind of components has a template, whose output is complete and valid Python."""

from __future__ import annotations

import ast
import tomllib

import pytest

from sglang_plug.testing.installed.checks import CHECKS
from sglang_plug_api.scaffold.names import PluginNames
from sglang_plug_api.scaffold.rendering import compatible_versions, component_name, render_plugin, template_kinds

LONG = PluginNames("a-name-of-forty-characters-which-is-long")
KINDS = template_kinds()


def test_every_kind_has_a_template() -> None:
    assert KINDS == sorted(CHECKS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_distribution_is_complete(kind: str) -> None:
    files = render_plugin(kind, PluginNames("mine"))
    expected = {"LICENSE", "README.md", "pyproject.toml", ".gitignore", ".github/workflows/test.yml"}
    assert expected | {"sglang_plug_mine/__init__.py", "tests/test_mine.py"} <= files.keys()
    project = tomllib.loads(files["pyproject.toml"])
    assert project["project"]["entry-points"] == {"sglang_plug": {"mine": "sglang_plug_mine"}}
    has_samples = any("/sample/" in path for path in files)
    assert ("package-data" in project["tool"]["setuptools"]) == has_samples
    assert f"{CHECKS[kind][0]}(" in files["tests/test_mine.py"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_template_declares_typed_settings(kind: str) -> None:
    files = render_plugin(kind, PluginNames("mine"))
    assert 'settings=f"{__name__}.settings:Settings"' in files["sglang_plug_mine/__init__.py"]
    classes = [node for node in ast.parse(files["sglang_plug_mine/settings.py"]).body if isinstance(node, ast.ClassDef)]
    fields = [node for node in classes[0].body if isinstance(node, ast.AnnAssign)]
    assert classes[0].name == "Settings" and fields and all(field.value is not None for field in fields)


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_plain(kind: str) -> None:
    for path, text in render_plugin(kind, LONG).items():
        assert text.endswith("\n") and not text.endswith("\n\n"), path
        if path.endswith(".py"):
            assert max(map(len, text.splitlines())) <= 120, path
            tree = ast.parse(text)
            assert ast.get_docstring(tree) or "tests/" in path, path
            assert "..." not in {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Expr)}, path
        assert "TODO" not in text and "$" not in text, path


def test_a_model_is_declared_by_its_architecture() -> None:
    assert component_name("model", PluginNames("tiny-lm")) == "TinyLmForCausalLM"
    assert component_name("eviction", PluginNames("tiny-lm")) == "tiny-lm"


@pytest.mark.parametrize(
    ("version", "bounds"), [("0.1.0", ">=0.1,<0.2"), ("0.12.3", ">=0.12,<0.13"), ("1.4.0", ">=1.4,<2")]
)
def test_the_dependency_has_bounds(version: str, bounds: str) -> None:
    assert compatible_versions(version) == bounds
