"""One test for each component that the environment variable names; collected by ``sglang-plug plugins test``."""

from __future__ import annotations

import os
from typing import Any
from unittest import SkipTest

from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.installed.checks import MissingArgumentsError, run_checks

COMPONENTS = "SGLANG_PLUG_TESTED_COMPONENTS"
"""The environment variable: components as ``kind:name``, one per line."""


def pytest_generate_tests(metafunc: Any) -> None:
    """Make a test of each named component."""
    metafunc.parametrize("key", os.environ.get(COMPONENTS, "").split("\n"))


def test_component(key: str) -> None:
    """Run the conformance tests of one component."""
    kind, _, name = key.partition(":")
    component = Plugins.discover().get(kind, name)
    if reason := component.unavailable():
        raise SkipTest(f"unavailable: {reason}")
    try:
        run_checks(component)
    except MissingArgumentsError as error:
        raise SkipTest(str(error)) from None
