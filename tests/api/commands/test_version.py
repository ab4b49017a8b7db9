"""Versions come from the metadata of the distributions."""

from __future__ import annotations

import importlib.metadata
import platform

import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.commands.version import installed_version


def test_versions_are_those_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    versions = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert list(versions) == ["sglang-plug", "contract", "python", "torch", "transformers", "pluggy"]
    assert versions["python"] == platform.python_version()
    assert versions["pluggy"] == importlib.metadata.version("pluggy")


def test_what_is_missing_is_said() -> None:
    assert installed_version("a-distribution-nobody-has") == "not installed"
