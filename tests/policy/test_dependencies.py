"""Every dependency has a lower and an upper bound: a library's new release cannot break a new installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oldest import oldest_versions


def test_every_dependency_has_both_bounds() -> None:
    versions = list(oldest_versions())
    assert len(versions) == len(set(versions)) > 20


@pytest.mark.parametrize("requirement", ["uvicorn", "uvicorn>=0.38", "uvicorn<0.55", "uvicorn>=0.38,!=0.40"])
def test_a_dependency_without_both_bounds_is_reported(tmp_path: Path, requirement: str) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(f'[project]\ndependencies = ["{requirement}"]\n')
    with pytest.raises(ValueError, match="needs a lower bound"):
        list(oldest_versions(pyproject))
