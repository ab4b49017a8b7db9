from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.fixture(params=["xgrammar", "llguidance", "outlines"])
def backend(request: pytest.FixtureRequest, grammar_backends: Callable[..., Any]) -> Any:
    """Each of the backends that read expressions as it is said here, with the default settings."""
    return grammar_backends(request.param)


@pytest.fixture
def converter(grammar_backends: Callable[..., Any]) -> Any:
    """One backend whose schemas are converted here."""
    return grammar_backends("xgrammar")


@pytest.fixture
def converters(grammar_backends: Callable[..., Any]) -> Callable[..., Any]:
    """``converters(**settings)``."""
    return partial(grammar_backends, "xgrammar")
