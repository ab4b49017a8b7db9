"""``sglang-plug plugins diff`` says which changes of the contract affect a plugin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sglang_plug.__main__ import main
from sglang_plug_api.contract.surface import Member, read_surface, surface_text, version_numbers

ROOT = Path(__file__).parents[3]
PRESENT = version_numbers()[-1]
POLICY = "sglang_plug.EvictionPolicy"


@pytest.fixture
def next_version(tmp_path: Path) -> str:
    """A file with a contract version in which eviction policies receive a clock and ``upload`` is removed."""
    present = read_surface(PRESENT)
    items = {name: item for name, item in present.items.items() if name != "sglang_plug.upload"}
    method = Member("method", "(self, node: NodeStats, now: float) -> Any", required=True)
    items[POLICY] = replace(items[POLICY], members={"eviction_priority": method})
    file = tmp_path / "next.json"
    file.write_text(surface_text(replace(present, contract="99.0", items=items)))
    return str(file)


def test_equal_versions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", PRESENT, PRESENT]) == 0
    assert "0 changes" in capsys.readouterr().out


def test_all_changes(next_version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", PRESENT, next_version]) == 1
    printed = capsys.readouterr().out
    assert "breaking   sglang_plug.upload was removed" in printed
    assert (
        "breaking   sglang_plug.EvictionPolicy.eviction_priority has another signature (new required 'now')" in printed
    )
    assert "2 changes, 2 of them break plugins" in printed


def test_additions_break_nothing(next_version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", next_version, PRESENT, "--for", str(ROOT / "plugins/sglang-plug-recall")]) == 0
    assert "0 changes" in capsys.readouterr().out


def test_changes_for_a_folder_name_the_line(next_version: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "plugins" / "sglang-plug-slru"
    assert main(["plugins", "diff", PRESENT, next_version, "--for", str(folder)]) == 1
    printed = capsys.readouterr().out
    assert "EvictionPolicy.eviction_priority" in printed and "sglang_plug.upload" not in printed
    source = next(path for path in folder.rglob("*.py") if "def eviction_priority" in path.read_text())
    lines = source.read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "def eviction_priority" in line)
    assert f"{source.relative_to(folder)}:{number}\n" in printed


def test_changes_for_an_installed_plugin(next_version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", PRESENT, next_version, "--for", "sglang_plug"]) == 1
    printed = capsys.readouterr().out
    assert "sglang_plug.upload was removed" in printed and "and " in printed


def test_a_file_that_uses_nothing_of_it(next_version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quiet.py"
    file.write_text("from sglang_plug import hookimpl\n")
    assert main(["plugins", "diff", PRESENT, next_version, "--for", str(file)]) == 0
    assert "0 changes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0.1", PRESENT], "no version of the contract '0.1'; known versions"),
        ([PRESENT, "absent.json"], "no file or version of the contract 'absent.json'"),
        ([PRESENT, PRESENT, "--for", "absent"], "'absent' is neither an installed plugin or distribution"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "diff", PRESENT, PRESENT, "--for", str(tmp_path)]) == 2
    assert "has no Python files" in capsys.readouterr().err
