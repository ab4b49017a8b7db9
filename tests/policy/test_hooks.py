"""Every hook is documented and tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.plugins import hookspecs
from sglang_plug.plugins.declaration import hook_names


@pytest.mark.parametrize("name", hook_names())
def test_a_hook_has_a_docstring_a_section_and_a_test(name: str, root: Path) -> None:
    assert len(getattr(hookspecs, name).__doc__ or "") > 20
    assert f"\n## `{name}" in (root / "docs" / "hooks.md").read_text()
    tests = [path for path in (root / "tests").rglob("test_*.py") if "policy" not in path.parts]
    assert any(name in path.read_text() for path in tests)
