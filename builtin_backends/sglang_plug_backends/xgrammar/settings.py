"""Settings of the xgrammar backend."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug_backends.grammars.json_schema.whitespace import Whitespace


@dataclass(frozen=True, slots=True)
class XGrammarSettings:
    """Settings given as ``--set xgrammar.NAME=VALUE``."""

    any_whitespace: bool = False
    """Let the model choose blanks and line ends between the tokens of JSON; by default it writes as ``json.dumps``."""
    max_whitespace: int = 16
    """Maximum characters of white space in a row, with ``any_whitespace``."""
    threads: int = 4
    """Number of compiling threads."""

    @property
    def whitespace(self) -> Whitespace:
        """Return the setting in the form of the schema converters."""
        return Whitespace(self.any_whitespace, self.max_whitespace)
