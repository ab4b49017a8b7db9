"""The migration guide lists every renamed public name, and the new names exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import sglang_plug
from sglang_plug import Plugins
from sglang_plug.renamed import RENAMED

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
ROW = re.compile(r"^\| `([\w.]+)(?:\([^`]*\))?` \| `([\w.]+)(?:\([^`]*\))?` \|$", re.MULTILINE)


def rows() -> list[tuple[str, str]]:
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_every_renamed_name_of_the_package_is_listed() -> None:
    listed = {
        old.removeprefix("sglang_plug."): new.removeprefix("sglang_plug.")
        for old, new in rows()
        if re.fullmatch(r"sglang_plug\.[A-Z]\w+", old)
    }
    assert listed == RENAMED


@pytest.mark.parametrize("name", [new for _, new in rows()])
def test_the_new_name_exists(name: str) -> None:
    parts = name.split(".")
    if parts[0] in ("sglang_plug", "sglang_plug_api"):
        assert hasattr(importlib.import_module(".".join(parts[:-1])), parts[-1])
    else:
        owner = getattr(sglang_plug, parts[0])
        fields = getattr(owner, "__dataclass_fields__", {})
        assert hasattr(owner, parts[1]) or parts[1] in fields


@pytest.mark.parametrize("package", ["sglang_plug.engine", "sglang_plug.contracts", "sglang_plug_api"])
def test_every_package_is_listed(package: str) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## Modules")[2]
    (folder,) = importlib.import_module(package).__path__
    packages = sorted(path.parent.name for path in Path(folder).glob("*/__init__.py"))
    assert len(packages) > 3
    assert [name for name in packages if f"`{name}`" not in page and f"`{package}.{name}`" not in page] == []


def test_the_packages_of_step_extensions_are_listed() -> None:
    page = PAGE.read_text(encoding="utf-8")
    targets = {component.spec.target.split(".")[1] for component in Plugins.discover().all("step-extension")}
    assert len(targets) > 5
    assert [name for name in sorted(targets) if f"`{name}`" not in page and f".{name}`" not in page] == []
