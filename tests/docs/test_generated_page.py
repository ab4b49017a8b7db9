from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROGRAM = Path(__file__).parents[2] / "docs" / "generated_page.py"


@pytest.fixture
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_page", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_is_written_and_checked(module: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "structured-outputs.md"

    def run(text: str, *options: str) -> int:
        status: int = module.write_or_check(path, lambda: text, "What it does.", options)
        return status

    assert run("old", "--check") == 1 and not path.exists()
    assert run("old") == 0 and path.read_text() == "old"
    assert run("old", "--check") == 0
    capsys.readouterr()
    assert run("new", "--check") == 1 and path.read_text() == "old"
    assert capsys.readouterr().err == (
        "docs/structured-outputs.md is out of date; run: python docs/generate_structured_outputs.py\n"
    )


def test_cells_hold_bars(module: ModuleType) -> None:
    assert module.row("a|b", "c") == "| a\\|b | c |"
