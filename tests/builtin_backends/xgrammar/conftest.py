from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.fixture
def backend(grammar_backends: Callable[..., Any]) -> Any:
    """Return the backend with the default settings."""
    return grammar_backends("xgrammar")


@pytest.fixture
def backends(grammar_backends: Callable[..., Any]) -> Callable[..., Any]:
    """Return the factory ``backends(**settings)``."""
    return partial(grammar_backends, "xgrammar")
