"""The command line discovers plugins once, runs a declared command, and never shows a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_plug.__main__ import main

COMMAND_PLUGIN = """
from __future__ import annotations

from sglang_plug import CommandSpec, ConfigError, hookimpl


class Command:
    def arguments(self, parser, plugins):
        parser.add_argument("--times", type=int, default=1)

    def run(self, options, plugins):
        if options.times < 0:
            raise ConfigError("cannot greet less than never")
        print("hello " * options.times)
        return options.times


command = Command()


@hookimpl
def register_commands():
    yield CommandSpec(name="greet", target=f"{__name__}:command", summary="say hello")
"""


@pytest.fixture
def greeter(tmp_path: Path) -> str:
    file = tmp_path / "greeter.py"
    file.write_text(COMMAND_PLUGIN)
    return str(file)


def test_a_plugin_adds_a_command(greeter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "--times", "3", "--plugin", greeter]) == 3
    assert capsys.readouterr().out == "hello hello hello \n"


def test_flags_may_stand_before_the_command(greeter: str) -> None:
    assert main(["--plugin", greeter, "--times", "4", "greet"]) == 4


def test_help_lists_commands_and_strange_owners(greeter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "--plugin", greeter]) == 0
    output = capsys.readouterr().out
    assert f"say hello ({greeter}" in output
    assert "serve a model over HTTP\n" in output
    assert "--strict-plugins" in output


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("sglang-plug ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["srve"], "no command named 'srve'; did you mean 'serve'?"),
        (["versoin", "--json"], "did you mean 'version'?"),
        (["zzz"], "known: "),
        (["version", "--strict-plugin"], "unknown option '--strict-plugin'; did you mean '--strict-plugins'?"),
        (["version", "twice"], "unexpected argument 'twice'"),
        (["--prot", "3"], "unknown option '--prot'"),
        (["version", "--block-plugin", "evictoin"], "did you mean 'eviction'?"),
        (["version", "--plugin", "nowhere.py"], "there is no file 'nowhere.py'"),
        (["version", "--config", "nowhere.yaml"], "cannot be read"),
    ],
)
def test_mistakes_are_one_message(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("sglang-plug: error: ")
    assert "Traceback" not in captured.err
    assert captured.out == ""


def test_an_error_of_the_command_is_one_message(greeter: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["greet", "--times", "-1", "--plugin", greeter]) == 2
    assert capsys.readouterr().err == "sglang-plug: error: cannot greet less than never\n"


def test_a_broken_plugin_does_not_break_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('out of order')")
    assert main(["version", "--plugin", str(broken)]) == 0
    assert main(["version", "--plugin", str(broken), "--strict-plugins"]) == 2
    assert "out of order (--strict-plugins)" in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_is_attributed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lost.py"
    file.write_text(COMMAND_PLUGIN.replace('f"{__name__}:command"', '"nowhere_at_all:command"'))
    assert main(["greet", "--plugin", str(file)]) == 2
    assert "nowhere_at_all" in (errors := capsys.readouterr().err)
    assert "plugin 'lost'" in errors
    assert main(["version", "--plugin", str(file)]) == 0


def test_plugins_are_discovered_once(tmp_path: Path) -> None:
    file = tmp_path / "noisy.py"
    file.write_text("import sys\nprint('imported', file=sys.stderr)")
    done = subprocess.run(
        [sys.executable, "-m", "sglang_plug", "plugins", "list", "--plugin", str(file)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "imported\n")


@pytest.mark.parametrize(
    "argv",
    [["--help"], ["serve", "--help"], ["version"], ["plugins", "list"], ["plugins", "show", "lru"]],
    ids=" ".join,
)
def test_torch_is_not_imported(argv: list[str]) -> None:
    program = (
        "import sys\n"
        "from sglang_plug.__main__ import main\n"
        f"status = main({argv!r})\n"
        "heavy = {'torch', 'transformers', 'fastapi', 'uvicorn'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else status)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_python_dash_m_is_the_same_program() -> None:
    done = subprocess.run([sys.executable, "-m", "sglang_plug", "version"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.startswith("sglang-plug ")


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as output:
        command = [sys.executable, "-m", "sglang_plug", "version"]
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


STREAMS_COMMAND = """
from __future__ import annotations

import os
import pathlib
import sys

from sglang_plug import CommandSpec, hookimpl


class Command:
    def arguments(self, parser, plugins):
        pass

    def run(self, options, plugins):
        files = [os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)]
        print(files, file=sys.stderr)
        pathlib.Path(__file__).with_suffix(".txt").write_text(f"{files} {sys.stdin.read()!r}")
        return 0


command = Command()


@hookimpl
def register_commands():
    yield CommandSpec(name="streams", target=f"{__name__}:command")
"""


def test_closed_standard_streams_are_connected_with_the_null_device(tmp_path: Path) -> None:
    """Cron jobs and daemons may start programs without them; sockets would then get their numbers."""
    plugin = tmp_path / "streams.py"
    plugin.write_text(STREAMS_COMMAND)
    command = [sys.executable, "-m", "sglang_plug", "--plugin", str(plugin), "streams"]
    done = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    assert done.returncode == 0
    assert plugin.with_suffix(".txt").read_text() == f"{['/dev/null'] * 3} ''"
