"""Conformance test of commands: their help, their options, and what an example prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from sglang_plug.plugins.registry import Plugins

SECONDS = 120.0
USAGE_ERROR = 2
NO_OPTION = "--no-command-has-this-option"


def check_command(
    name: str,
    examples: Sequence[Sequence[str]] = (),
    *,
    refused: Sequence[Sequence[str]] = (),
    options: Sequence[str] = (),
) -> None:
    """Run a command of ``sglang-plug`` as a user does: its help, a mistyped option, and examples, each in a process.

    The help names the command and says what it does, without importing torch; a mistyped option ends with status 2
    and an error message; examples succeed without a traceback, and print the same if their output is closed early;
    calls that cannot be served say why, without a traceback.

    Args:
        name: the name an installed plugin declared the command under.
        examples: arguments of calls that succeed.
        refused: arguments of calls that must fail, such as one with a folder that does not exist.
        options: options before the command's name, such as ``("--plugin", "my_plugin.py")``.

    Raises:
        AssertionError: names the call that fails, and how.
        PluginError: no plugin, or more than one, declares the name.
    """
    if not options:
        Plugins.discover().get("command", name)
    shown = _run(name, ["--help"], options)
    _check_status(shown, 0)
    assert name in shown.stdout.split("\n\n", 1)[0], f"the usage of {name} does not name it: {shown.stdout[:200]!r}"
    listed = _run("--help", [], options)
    line = next((text for text in listed.stdout.splitlines() if text.split()[:1] == [name]), "")
    summary = line.removeprefix(f"  {name}").partition("(")[0].strip()
    assert summary, f"sglang-plug --help does not say what {name} does; give its CommandSpec a summary"
    _check_light(name, options)
    mistyped = _run(name, [NO_OPTION], options)
    _check_status(mistyped, USAGE_ERROR)
    assert mistyped.stderr.strip(), f"{_shown(mistyped)}: standard error does not say what is wrong"
    for arguments in examples:
        done = _run(name, arguments, options)
        _check_status(done, 0)
        _check_closed(name, arguments, options)
    for arguments in refused:
        _check_refused(_run(name, arguments, options))


def _arguments(name: str, arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "sglang_plug", *options, name, *arguments]


def _run(name: str, arguments: Sequence[str], options: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            _arguments(name, arguments, options),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{name} {' '.join(arguments)} does not end; standard input was empty") from error


def _shown(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(["sglang-plug", *map(str, done.args[3:])])


def _check_status(done: subprocess.CompletedProcess[str], status: int) -> None:
    end = done.stderr[-400:]
    assert "Traceback (most recent call last)" not in done.stderr, f"{_shown(done)} fails with a traceback: {end}"
    assert done.returncode == status, f"{_shown(done)} ends with status {done.returncode}, not {status}: {end}"


def _check_refused(done: subprocess.CompletedProcess[str]) -> None:
    """A call that cannot be served ends with an error message."""
    assert done.returncode != 0, f"{_shown(done)} ends with status 0, and must be refused"
    _check_status(done, done.returncode)
    assert done.stderr.strip(), f"{_shown(done)}: standard error does not say what is wrong"


def _check_light(name: str, options: Sequence[str]) -> None:
    """The arguments of every command are needed for every ``--help``: they must not import heavy libraries."""
    program = [sys.executable, "-X", "importtime", "-m", "sglang_plug", *options, name, "--help"]
    done = subprocess.run(program, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "torch" not in imported, (
        f"{name}: arguments() imports torch, which delays every call of sglang-plug; import it in run()"
    )


def _check_closed(name: str, arguments: Sequence[str], options: Sequence[str]) -> None:
    """``sglang-plug ... | head -1`` must not print a traceback."""
    process = subprocess.Popen(
        _arguments(name, arguments, options),
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
    process.wait(SECONDS)
    assert "Traceback (most recent call last)" not in errors, (
        f"{name} {' '.join(arguments)}, with its output closed, fails with a traceback: {errors[-400:]}"
    )
