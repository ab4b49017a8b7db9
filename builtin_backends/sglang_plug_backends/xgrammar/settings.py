"""Settings of the xgrammar backend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class XGrammarSettings:
    """``--set xgrammar.NAME=VALUE``."""

    any_whitespace: bool = False
    """Let the model choose blanks and line ends between the tokens of JSON; by default it writes as ``json.dumps``."""
    most_whitespace: int = 16
    """Most characters of it at one place, with ``any_whitespace``."""
    threads: int = 4
    """Threads that compile."""
