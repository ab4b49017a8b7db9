"""Further commands with planted faults; a plugin for ``--plugin``."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from sglang_plug import CommandSpec, ConfigError, Plugins, hookimpl


class Correct:
    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        parser.add_argument("--lines", type=int, default=3, help="number of lines")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        if options.lines < 0:
            raise ConfigError(f"--lines is {options.lines}, but must be at least 0")
        for number in range(options.lines):
            print(f"line {number}")
        return 0


class MakesAFolder(Correct):
    """A command that creates a folder when its options are declared."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        super().arguments(parser, plugins)
        Path("cache").mkdir(exist_ok=True)


class NeedsAFile(Correct):
    """A command that reads a file of the working directory when its options are declared."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        super().arguments(parser, plugins)
        parser.add_argument("--name", default=Path("settings.toml").read_text())


class Percent(Correct):
    """A command whose help contains a percent sign that argparse cannot format."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        parser.add_argument("--share", type=int, default=3, help="100% of the lines")


class Colours(Correct):
    """A command that prints colours although its output is no terminal."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        if options.lines < 0:
            raise ConfigError("--lines must be at least 0")
        print("\x1b[32mline 0\x1b[0m")
        return 0


class ReturnsTrue(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        super().run(options, plugins)
        return True


class ReportsClosedOutput(Correct):
    """A command that reports an error when its output is closed."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        try:
            for number in range(1 << 16):
                print("line", number, flush=True)
        except OSError as error:
            print(f"cannot write: {error}", file=sys.stderr)
            return 1
        return 0


class ErrorsOnOutput(Correct):
    """A command that prints errors to standard output."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        if options.lines < 0:
            print(f"--lines is {options.lines}, but must be at least 0")
            return 2
        return super().run(options, plugins)


class SwallowsStatus(Correct):
    """A command that reports an error but exits with status 0."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        if options.lines < 0:
            print("--lines must be at least 0", file=sys.stderr)
        return 0


class LogsErrors(Correct):
    """A command that logs the traceback of a user's error."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        import logging

        try:
            return super().run(options, plugins)
        except ConfigError:
            logging.getLogger(__name__).exception("failed")
            return 1


class LeavesAThread(Correct):
    """A command that leaves a running thread behind."""

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        threading.Thread(target=threading.Event().wait).start()
        return super().run(options, plugins)


class PrintsAtStart(Correct):
    """A command that prints text before its options are parsed."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        super().arguments(parser, plugins)
        print("welcome")


class ReplacesHelp(Correct):
    """A command that prints a help text of its own."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        super().arguments(parser, plugins)
        parser.print_help = lambda file=None: print("see the manual")  # type: ignore[method-assign]


class TakesTheOptionOfAll(Correct):
    """A command that declares an option which the program has already."""

    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        super().arguments(parser, plugins)
        parser.add_argument("--help", action="store_true")


COMMANDS = {
    "makes-a-folder": MakesAFolder(),
    "needs-a-file": NeedsAFile(),
    "percent": Percent(),
    "colours": Colours(),
    "returns-true": ReturnsTrue(),
    "reports-closed-output": ReportsClosedOutput(),
    "errors-on-output": ErrorsOnOutput(),
    "swallows-status": SwallowsStatus(),
    "logs-errors": LogsErrors(),
    "leaves-a-thread": LeavesAThread(),
    "prints-at-start": PrintsAtStart(),
    "replaces-help": ReplacesHelp(),
    "takes-the-option-of-all": TakesTheOptionOfAll(),
}


class Named:
    def __getattr__(self, name: str) -> Correct:
        command = COMMANDS.get(name.replace("_", "-"))
        if command is None:
            raise AttributeError(name)
        return command


commands = Named()


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    for name in COMMANDS:
        target = f"{__name__}:commands.{name.replace('-', '_')}"
        yield CommandSpec(name=name, target=target, summary="prints lines")
