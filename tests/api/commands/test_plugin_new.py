"""``sglang-plug plugins new`` creates distributions whose components conform."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug.__main__ import main


def test_the_files_and_the_next_steps_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "schedule", "Nearest_First", "--into", str(tmp_path / "new" / "folder")]) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "new" / "folder" / "sglang-plug-nearest-first"
    assert {str(path) for path in folder.rglob("*") if path.is_file()} <= set(printed.splitlines())
    assert "schedule:nearest-first is ready" in printed


def test_a_new_plugin_works_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "new", "eviction", "fresh", "--into", str(tmp_path)]) == 0
    assert main(["--plugins-dir", str(tmp_path), "plugins", "check", "sglang-plug-fresh"]) == 0
    assert "ok       eviction 'fresh'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evction", "mine"], "did you mean 'eviction'?"),
        (["shared", "mine"], "no kind of components named 'shared'; known: adapter"),
        (["..", "mine"], "no kind of components named '..'"),
        (["eviction", "lru"], "there is eviction 'lru' from sglang-plug"),
        (["eviction", "../mine"], "cannot be the name of a plugin"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugins", "new", *arguments, "--into", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "sglang-plug-mine" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text("kept")
    assert main(["plugins", "new", "eviction", "mine", "--into", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in kept.parent.iterdir()] == ["kept.txt"]


def test_a_file_instead_of_the_folder_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["plugins", "new", "eviction", "mine", "--into", str(tmp_path / "file")]) == 2
    assert "sglang-plug: error" in capsys.readouterr().err
