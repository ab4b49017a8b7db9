"""Argument parsing that raises ``ConfigError`` instead of leaving the program, and names the nearest match."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from .config import ConfigError


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` without abbreviations, whose errors are ``ConfigError``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.explain: Callable[[str], str | None] = lambda flag: None
        """What to say of an unknown flag instead of naming the nearest one, if anything."""

    def error(self, message: str) -> NoReturn:
        """Raise ``ConfigError`` with ``message`` and where to find help."""
        raise ConfigError(f"{message}\nsee: {self.prog} --help")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As in ``argparse``; also called for every subparser, which here refuses what it does not know itself."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and not self.keeps_unknown:
            self._refuse(unknown[0])
        return found, unknown

    keeps_unknown = False
    """Whether ``parse_known_args`` hands back unknown arguments instead of refusing them."""

    def _refuse(self, argument: str) -> NoReturn:
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            self.error(f"unexpected argument {argument!r}")
        known = self.explain(flag)
        hint = did_you_mean(flag, self._option_string_actions) if known is None else f": {known}"
        self.error(f"unknown option {flag!r}{hint}")


class PartialParser(Parser):
    """A ``Parser`` that leaves what it does not know to another one."""

    keeps_unknown = True


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean …?"``, or nothing if no known name is near."""
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""
