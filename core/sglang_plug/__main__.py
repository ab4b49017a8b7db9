"""The command line: discovers the plugins once, then runs the command that one of them declares."""

from __future__ import annotations

from sglang_plug.system.import_path import leave_out_working_directory

if __name__ == "__main__":
    leave_out_working_directory()  # before anything else is imported

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.flags import plugin_flags, read_plugin_flags
from sglang_plug.plugins.installed.discovery import DISTRIBUTION
from sglang_plug.plugins.registry import Component, Plugins
from sglang_plug.system.command_line import Parser
from sglang_plug.system.hints import did_you_mean
from sglang_plug.system.process_exit import exit_process

from . import __version__
from .config import ConfigError

PROGRAM = "sglang-plug"
USAGE_ERROR = 2
INTERRUPTED = 130
NOBODY_READS = 141
LAST_STREAM = 2
"""The number of standard error, after standard input and standard output."""
HELP = ("-h", "--help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``sglang-plug ARGUMENTS`` and return the exit status. User errors are one message on stderr."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except ConfigError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except SystemExit as exiting:  # argparse, after --help
        return exiting.code if isinstance(exiting.code, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python flushes at exit
        return NOBODY_READS


def _run(argv: list[str]) -> int:
    options, flags, rest = read_plugin_flags(argv)
    plugins = Plugins.discover(options)
    name, arguments = _command_of(rest, plugins)
    if name is None:
        return _top_level(arguments, plugins)
    component = plugins.get("command", name)
    command: Any = component.load() if component.spec.settings is None else make_with_settings(component)
    parser = Parser(
        prog=f"{PROGRAM} {name}",
        description=component.spec.summary or None,
        parents=[plugin_flags()],
        conflict_handler="resolve",
    )
    command.arguments(parser, plugins)
    return int(command.run(parser.parse_args(arguments, flags), plugins))


def _command_of(arguments: list[str], plugins: Plugins) -> tuple[str | None, list[str]]:
    """Return the command and its arguments; options may precede the command's name."""
    known = plugins.names("command")
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-"):
        if first not in known:
            hint = did_you_mean(first, known) or f"; known: {', '.join(known) or 'none'}"
            failed = "".join(f"\n  {failure}" for failure in plugins.failures)
            raise ConfigError(f"no command named {first!r}{hint}{failed}")
        return first, arguments[1:]
    if first in (*HELP, "--version"):
        return None, arguments
    index = next((position for position, argument in enumerate(arguments) if argument in known), None)
    if index is None:
        return None, arguments
    return arguments[index], arguments[:index] + arguments[index + 1 :]


def _top_level(arguments: list[str], plugins: Plugins) -> int:
    commands = "\n".join(_line(component) for component in plugins.all("command"))
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        description=f"LLM serving in which everything is a plugin.\n\ncommands:\n{commands}",
        epilog=f"{PROGRAM} COMMAND --help lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[plugin_flags()],
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.parse_args(arguments)
    parser.print_help(sys.stderr)
    return USAGE_ERROR


def _line(component: Component) -> str:
    owner = "" if component.plugin.distribution == DISTRIBUTION else f" ({component.plugin.origin})"
    return f"  {component.spec.name:<16} {component.spec.summary}{owner}".rstrip()


def open_standard_streams() -> None:
    """Connect standard streams that the caller has closed with the null device.

    Otherwise the next files and sockets that are opened get their numbers, and child processes take them for streams.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))


def program(run: Callable[[], int] = main) -> NoReturn:
    """Run ``main``, or another function that returns the exit status, as a program, and end the process."""
    leave_out_working_directory()
    open_standard_streams()
    exit_process(run())


if __name__ == "__main__":
    program()
