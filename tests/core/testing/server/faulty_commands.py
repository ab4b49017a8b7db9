"""Commands with planted faults; a plugin for ``--plugin``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

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


class Heavy(Correct):
    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        import torch

        parser.add_argument("--dtype", default=str(torch.float32))


class Raising(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        raise KeyError("lines")


class Failing(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        return 3


class TracebackOnBadInput(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        print("line" * int(options.lines**0.5))
        return 0


class AcceptsBadInput(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        return 0


class SilentOnBadInput(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        return 0 if options.lines >= 0 else 1


class IgnoresOptions(Correct):
    def arguments(self, parser: argparse.ArgumentParser, plugins: Plugins) -> None:
        parser.add_argument("--no-command-has-this-option", action="store_true")

    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        return 0


class Interactive(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        print(input("how many? "))
        return 0


class PrintsErrors(Correct):
    def run(self, options: argparse.Namespace, plugins: Plugins) -> int:
        try:
            print("line", flush=True)
        except BrokenPipeError:
            import traceback

            traceback.print_exc(file=sys.stderr)
        return 0


correct, heavy, raising, failing = Correct(), Heavy(), Raising(), Failing()
ignores_options, interactive, prints_errors, unnamed = IgnoresOptions(), Interactive(), PrintsErrors(), Correct()

traceback_on_bad_input, accepts_bad_input = TracebackOnBadInput(), AcceptsBadInput()
silent_on_bad_input = SilentOnBadInput()
NAMES = ("correct", "heavy", "raising", "failing", "ignores-options", "interactive", "prints-errors")
BAD_INPUT = ("traceback-on-bad-input", "accepts-bad-input", "silent-on-bad-input")


@hookimpl
def register_commands() -> Iterator[CommandSpec]:
    for name in (*NAMES, *BAD_INPUT):
        yield CommandSpec(name=name, target=f"{__name__}:{name.replace('-', '_')}", summary="prints lines")
    yield CommandSpec(name="unnamed", target=f"{__name__}:unnamed")
