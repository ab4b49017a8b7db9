"""Errors name unmet requirements, with the installed version if it is too old."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.plugins.requirements import unmet


def test_modules() -> None:
    assert unmet(()) == unmet(("json", "importlib.metadata")) == ""
    assert unmet(("json", "a_library", "a_library.part", "..")) == "not installed: a_library, a_library.part, .."


@pytest.mark.parametrize(
    "installed, minimum, old",
    [
        ("1.2.3", "1.2.3", False),
        ("1.2.3", "1.2", False),
        ("1.10.0", "1.9", False),
        ("2.0+cpu", "1.9", False),
        ("1.2.0rc1", "1.2", False),
        ("1.2.dev0", "1.2", False),
        ("1.8.9", "1.9", True),
        ("1", "1.1", True),
        ("0.9+cpu", "1", True),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: str, minimum: str, old: bool) -> None:
    metadata = tmp_path / "json-0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: json\nVersion: {installed}\n")
    monkeypatch.syspath_prepend(tmp_path)
    expected = f"not installed: json>={minimum} (there is {installed})" if old else ""
    assert unmet((f"json>={minimum}",)) == expected


def test_a_module_without_a_distribution_is_as_new_as_need_be() -> None:
    assert unmet(("json>=9.9",)) == ""
    assert unmet(("a_library>=9.9",)) == "not installed: a_library>=9.9"
