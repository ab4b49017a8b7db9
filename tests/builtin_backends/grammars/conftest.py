from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.fixture(params=["xgrammar", "llguidance", "outlines"])
def backend(request: pytest.FixtureRequest, grammar_backends: Callable[..., Any]) -> Any:
    """Return each backend that converts expressions, with the default settings."""
    return grammar_backends(request.param)


@pytest.fixture
def converter(grammar_backends: Callable[..., Any]) -> Any:
    """Return one backend that converts schemas."""
    return grammar_backends("xgrammar")


@pytest.fixture
def converters(grammar_backends: Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory ``converters(**settings)``."""
    return partial(grammar_backends, "xgrammar")
