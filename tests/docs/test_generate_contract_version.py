"""The program that describes the contract reads source code as plugins see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sglang_plug_api.contract.surface import Surface, read_surface

ROOT = Path(__file__).parents[2]
FILES = {
    "core/sglang_plug/__init__.py": """\
from .inner import Base, Node, Policy
from .inner import helper as public_helper
__all__ = ["Base", "LIMIT", "Node", "Policy", "public_helper"]
LIMIT = 3
""",
    "core/sglang_plug/inner.py": """\
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol
class Hidden:
    def inherited(self) -> int: ...
class Base(Hidden, ABC):
    def __init__(self, size: int, other=None) -> None:
        self.size, self._private = size, other
        self.ready: bool = False
    @abstractmethod
    def must(self, x: int) -> None: ...
    @property
    def total(self) -> int: return 1
    def _private_method(self): ...
class Policy(Protocol):
    def rank(self, node: Node) -> int:
        \"\"\"Docstring only.\"\"\"
    def optional(self) -> int:
        return 1
@dataclass
class Node:
    tokens: int
    used: float = 0.0
def helper(a, *, b=1) -> int:
    warn_deprecated("helper is deprecated")
""",
    "core/sglang_plug/layers.py": "__all__ = ['Linear']\nfrom sglang_plug.inner import Base\nclass Linear(Base): ...\n",
    "core/sglang_plug/testing.py": "__all__ = []\n",
    "core/sglang_plug/renamed.py": "RENAMED = {'Former': 'Node'}\n",
    "core/sglang_plug/plugins/hookspecs.py": """\
API_VERSION = 3
API_MINOR_VERSION = 2
@hookspec
def register_things(config: int) -> None: ...
def other(): ...
""",
    "api/sglang_plug_api/plugin.py": "ROUTE_API_VERSION = 7\nRENAMED = {}\n__all__ = []\n",
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs" / "generate_contract_version.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, source in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    return root


@pytest.fixture(scope="module")
def surface(tree: Path) -> Surface:
    file = tree / "contract.json"
    done = run("--tree", str(tree), "--out", str(file))
    assert done.returncode == 0, done.stderr
    return read_surface(str(file))


def test_versions_and_names(surface: Surface) -> None:
    assert (surface.contract, surface.routes, surface.released) == ("3.2", 7, None)
    assert {name: item.kind for name, item in surface.items.items()} == {
        "hooks.register_things": "hook",
        "sglang_plug.Base": "class",
        "sglang_plug.Former": "renamed",
        "sglang_plug.LIMIT": "value",
        "sglang_plug.Node": "class",
        "sglang_plug.Policy": "class",
        "sglang_plug.layers.Linear": "class",
        "sglang_plug.public_helper": "function",
    }


def test_members_of_a_class(surface: Surface) -> None:
    members = surface.items["sglang_plug.Base"].members
    assert {name: (member.kind, member.text, member.required) for name, member in members.items()} == {
        "__init__": ("method", "(self, size: int, other=None) -> None", False),
        "inherited": ("method", "(self) -> int", False),
        "must": ("method", "(self, x: int) -> None", True),
        "ready": ("field", "bool", False),
        "size": ("field", "int", False),
        "total": ("property", "int", False),
    }
    assert surface.items["sglang_plug.layers.Linear"].bases == ("sglang_plug.Base",)


def test_what_an_implementation_must_have(surface: Surface) -> None:
    members = surface.items["sglang_plug.Policy"].members
    assert {name: member.required for name, member in members.items()} == {"optional": False, "rank": True}


def test_defaults_of_fields(surface: Surface) -> None:
    node = surface.items["sglang_plug.Node"]
    assert (node.form, node.members["tokens"].default, node.members["used"].default) == ("dataclass", None, "0.0")


def test_deprecations(surface: Surface) -> None:
    assert surface.items["sglang_plug.public_helper"].deprecated == "helper is deprecated"


def test_a_released_version_must_not_change(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "contract.json"
    assert run("--tree", str(tree), "--out", str(file), "--release", "0.1.0").returncode == 0
    assert run("--tree", str(tree), "--out", str(file)).returncode == 0
    before = file.read_text()
    file.write_text(before.replace('"text": "3"', '"text": "4"'))
    done = run("--tree", str(tree), "--out", str(file))
    assert done.returncode == 1 and "contract 3.2 was released with sglang-plug 0.1.0" in done.stderr
    done = run("--tree", str(tree), "--out", str(file), "--check")
    assert done.returncode == 1 and "out of date" in done.stderr
