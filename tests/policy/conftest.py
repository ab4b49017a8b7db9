"""Fixtures with the source files that the rules check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policy.source_tree import ROOT, Source, distribution_sources, package_sources, script_sources


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every module of the installed packages."""
    return list(package_sources())


@pytest.fixture(scope="session")
def plugin_sources() -> list[Source]:
    """Every module of the distributions under ``plugins/``, their tests included."""
    return list(distribution_sources())


@pytest.fixture(scope="session")
def scripts() -> list[Source]:
    """Every module of the tests, of the benchmarks and of the programs that write documentation."""
    return list(script_sources())
