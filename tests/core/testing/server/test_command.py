from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import PluginError, Plugins
from sglang_plug.testing import check_command

MORE = ("--plugin", str(Path(__file__).with_name("more_faulty_commands.py")))
OPTIONS = ("--plugin", str(Path(__file__).with_name("faulty_commands.py")))
EXAMPLES = {
    "version": [[]],
    "plugins": [["list"], ["show", "command:version"], ["doctor"]],
    "env": [[], ["--json"]],
    "completion": [["bash"], ["words", "--", "serve"]],
}


@pytest.mark.parametrize("name", Plugins.discover().names("command"))
def test_built_in_commands_pass(name: str) -> None:
    check_command(name, EXAMPLES.get(name, []))


def test_a_correct_command_passes() -> None:
    check_command("correct", [[], ["--lines", "20000"]], refused=[["--lines", "-1"]], options=OPTIONS)


@pytest.mark.planted_bug("command")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("heavy", r"heavy: arguments\(\) imports torch"),
        ("raising", "raising fails with a traceback"),
        ("failing", "failing ends with status 3, not 0"),
        ("ignores-options", "ends with status 0, not 2"),
        ("interactive", "interactive fails with a traceback"),
        ("prints-errors", "with its output closed, fails with a traceback"),
        ("traceback-on-bad-input", "--lines -1 fails with a traceback"),
        ("accepts-bad-input", "--lines -1 ends with status 0, and must be refused"),
        ("silent-on-bad-input", "--lines -1: standard error does not say what is wrong"),
        ("unnamed", "give its CommandSpec a summary"),
    ],
)
def test_planted_bugs_are_named(name: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_command(name, [[]], refused=[["--lines", "-1"]], options=OPTIONS)


@pytest.mark.planted_bug("command")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("makes-a-folder", "writes cache into the current folder"),
        ("needs-a-file", "--help fails with a traceback"),
        ("percent", "--help fails with a traceback"),
        ("colours", "prints escape sequences"),
        ("returns-true", "ends with status 1, not 0"),
        ("reports-closed-output", "must stop quietly, but prints an error: cannot write"),
        ("errors-on-output", "--lines -1: standard error does not say what is wrong"),
        ("swallows-status", "--lines -1 ends with status 0, and must be refused"),
        ("logs-errors", "--lines -1 fails with a traceback"),
        ("prints-at-start", "prints something before the usage: 'welcome"),
        ("replaces-help", "prints something before the usage: 'see the manual"),
        ("takes-the-option-of-all", "prints something before the usage: 'line 0"),
    ],
)
def test_further_planted_bugs_are_named(name: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_command(name, [[]], refused=[["--lines", "-1"]], options=MORE)


@pytest.mark.planted_bug("command")
def test_a_command_that_does_not_end_is_named() -> None:
    with pytest.raises(AssertionError, match="leaves-a-thread ends with status 1|leaves-a-thread does not end"):
        check_command("leaves-a-thread", [[]], options=MORE, timeout=60)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="no command named 'nobody'"):
        check_command("nobody")
