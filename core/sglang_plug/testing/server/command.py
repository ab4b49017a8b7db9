"""Conformance test of commands: their help, their options, and what an example prints."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_plug.plugins.registry import Plugins

TIMEOUT_SECONDS = 120.0
USAGE_ERROR = 2
PROGRAM = (sys.executable, "-m", "sglang_plug")
ESCAPE = "\x1b"
NO_OPTION = "--no-command-has-this-option"


def check_command(
    name: str,
    examples: Sequence[Sequence[str]] = (),
    *,
    refused: Sequence[Sequence[str]] = (),
    options: Sequence[str] = (),
    timeout: float = TIMEOUT_SECONDS,
) -> None:
    """Run a command of ``sglang-plug`` as a user does: its help, a mistyped option, and examples, each in a process.

    The help names the command and says what it does, without importing torch or writing files; a mistyped option ends
    with status 2 and an error message; examples succeed without a traceback and without escape sequences for a
    terminal, and stop quietly if their output is closed early; calls that cannot be served say why, without a
    traceback.

    Args:
        name: the name an installed plugin declared the command under.
        examples: arguments of calls that succeed.
        refused: arguments of calls that must fail, such as one with a folder that does not exist.
        options: options before the command's name, such as ``("--plugin", "my_plugin.py")``.
        timeout: seconds that each call may take.

    Raises:
        AssertionError: names the call that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    if not options:
        Plugins.discover().get("command", name)
    command = _Command(name, tuple(options), timeout)
    _check_help(command)
    _check_light(command)
    mistyped = command.run(NO_OPTION)
    _check_status(mistyped, USAGE_ERROR)
    assert mistyped.stderr.strip(), f"{_command_line(mistyped)}: standard error does not say what is wrong"
    for arguments in examples:
        done = command.run(*arguments)
        _check_status(done, 0)
        assert ESCAPE not in done.stdout, (
            f"{_command_line(done)} prints escape sequences although standard output is no terminal: "
            f"{done.stdout[:200]!r}"
        )
        _check_closed(command, arguments, done.stderr)
    for arguments in refused:
        _check_refused(command.run(*arguments))


@dataclass(frozen=True, slots=True)
class _Command:
    name: str
    options: tuple[str, ...]
    timeout: float

    def arguments(self, *arguments: str) -> list[str]:
        return [*PROGRAM, *self.options, self.name, *arguments]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command as a user does."""
        return self.run_program(self.arguments(*arguments))

    def run_program(
        self, program: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                program,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout,
                cwd=folder,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"{_words(program)} does not end within {self.timeout:g} s; standard input was empty"
            ) from error


def _check_help(command: _Command) -> None:
    """The help is shown in any folder, and leaves nothing in it."""
    options = [str(Path(word).absolute()) if Path(word).exists() else word for word in command.options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
    with tempfile.TemporaryDirectory() as folder:
        program = [*PROGRAM, *options, command.name, "--help"]
        completed = command.run_program(program, Path(folder), environment)
        written = sorted(path.name for path in Path(folder).iterdir())
    _check_status(completed, 0)
    assert not written, (
        f"{_command_line(completed)} writes {', '.join(written)} into the current folder; do so in run()"
    )
    assert completed.stdout.startswith("usage:"), (
        f"{_command_line(completed)} prints something before the usage: {completed.stdout[:200]!r}; print in run() only"
    )
    assert command.name in completed.stdout.split("\n\n", 1)[0], (
        f"the usage of {command.name} does not name it: {completed.stdout[:200]!r}"
    )
    listed = command.run_program([*PROGRAM, *command.options, "--help"])
    line = next((text for text in listed.stdout.splitlines() if text.split()[:1] == [command.name]), "")
    summary = line.removeprefix(f"  {command.name}").partition("(")[0].strip()
    assert summary, f"sglang-plug --help does not say what {command.name} does; give its CommandSpec a summary"


def _command_line(done: subprocess.CompletedProcess[str]) -> str:
    return _words(done.args)


def _words(program: Sequence[str]) -> str:
    return " ".join(["sglang-plug", *program[len(PROGRAM) :]])


def _check_status(done: subprocess.CompletedProcess[str], status: int) -> None:
    end = done.stderr[-400:]
    assert "Traceback (most recent call last)" not in done.stderr, (
        f"{_command_line(done)} fails with a traceback: {end}"
    )
    assert done.returncode == status, f"{_command_line(done)} ends with status {done.returncode}, not {status}: {end}"


def _check_refused(done: subprocess.CompletedProcess[str]) -> None:
    """A call that cannot be served ends with an error message."""
    assert done.returncode != 0, f"{_command_line(done)} ends with status 0, and must be refused"
    _check_status(done, done.returncode)
    assert done.stderr.strip(), f"{_command_line(done)}: standard error does not say what is wrong"


def _check_light(command: _Command) -> None:
    """The arguments of every command are needed for every ``--help``: they must not import heavy libraries."""
    python, *program = command.arguments("--help")
    done = command.run_program([python, "-X", "importtime", *program])
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch" not in imported, (
        f"{command.name}: arguments() imports torch, which delays every call of sglang-plug; import it in run()"
    )


def _check_closed(command: _Command, arguments: Sequence[str], errors_before: str) -> None:
    """``sglang-plug ... | head -1`` must print no traceback, and no error."""
    process = subprocess.Popen(
        command.arguments(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    process.wait(command.timeout)
    where = f"{command.name} {' '.join(arguments)}, with its output closed,"
    assert "Traceback (most recent call last)" not in errors, f"{where} fails with a traceback: {errors[-400:]}"
    assert errors_before or not errors, f"{where} must stop quietly, but prints an error: {errors[-400:]}"
