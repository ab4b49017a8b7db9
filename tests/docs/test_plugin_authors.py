"""The table for plugin authors counts the planted bugs of the tests, nearly all of which are detected."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sglang_plug.testing.installed.checks import CHECKS

DOCS = Path(__file__).parents[2] / "docs"
MIN_SHARE = 0.95
MIN_PLANTED = 5


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(DOCS))
    yield importlib.import_module("generate_plugin_authors")


def test_the_page_is_what_would_be_written(program: ModuleType) -> None:
    assert program.page() == (DOCS / "plugin-authors.md").read_text(encoding="utf-8"), (
        "run: python docs/generate_plugin_authors.py"
    )


def test_faults_of_every_kind_are_found(program: ModuleType) -> None:
    bugs = program.planted_bugs()
    assert bugs.keys() == CHECKS.keys()
    assert {kind: bug.planted for kind, bug in bugs.items() if bug.planted < MIN_PLANTED} == {}
    assert sum(bug.caught for bug in bugs.values()) >= MIN_SHARE * sum(bug.planted for bug in bugs.values())


@pytest.mark.slow
def test_the_time_of_a_template_is_measured(program: ModuleType, tmp_path: Path) -> None:
    measuring = importlib.import_module("measure_templates")
    assert measuring.seconds_to_pass("eviction", tmp_path) > 0
    for file in (tmp_path / "sglang-plug-new-eviction").rglob("policy.py"):
        file.write_text("raise NotImplementedError\n")
    with pytest.raises(RuntimeError, match="plugins test --strict sglang-plug-new-eviction failed"):
        measuring.test(tmp_path / "venv" / "bin" / "python", "sglang-plug-new-eviction")


def test_every_template_was_measured(program: ModuleType) -> None:
    assert program.measured()["seconds"].keys() == CHECKS.keys()


def test_expected_failures_count_as_not_found(program: ModuleType) -> None:
    cases = pytest.mark.parametrize("one", [1, pytest.param(2, marks=pytest.mark.xfail), 3])
    assert program.count_cases([cases.mark]) == (2, 1)
    assert program.count_cases([cases.mark, pytest.mark.xfail.mark]) == (0, 3)
    assert program.count_cases([]) == (1, 0)


def test_blank_lines_comments_and_docstrings_do_not_count(program: ModuleType) -> None:
    assert program.code_lines('"""About."""\n\nx = 1  # one\n# two\ndef f():\n    """Three\n    lines."""\n') == 2
