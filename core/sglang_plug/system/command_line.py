"""Argument parsing that raises ``ConfigError`` instead of leaving the program, and names the nearest match."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from sglang_plug.config import ConfigError
from sglang_plug.system.hints import did_you_mean


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` without abbreviations, whose errors are ``ConfigError``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.explain: Callable[[str], str | None] = lambda flag: None
        """Returns an explanation of an unknown flag that replaces the nearest match, or ``None``."""

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError`` with ``message`` and where to find help."""
        raise ConfigError(f"{message}\nsee: {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse like ``argparse``; also called for subparsers, which refuse arguments that they do not know."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and not self.keeps_unknown:
            self._refuse(unknown[0])
        return parsed, unknown

    keeps_unknown = False
    """True if ``parse_known_args`` returns unknown arguments instead of refusing them."""

    def _refuse(self, argument: str) -> NoReturn:
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            self.error(f"unexpected argument {argument!r}")
        known = self.explain(flag)
        hint = did_you_mean(flag, self._option_string_actions) if known is None else f": {known}"
        self.error(f"unknown option {flag!r}{hint}")


class PartialParser(Parser):
    """A ``Parser`` that leaves unknown arguments to another one."""

    keeps_unknown = True
