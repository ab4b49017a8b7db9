"""Settings of the outlines backend."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug_backends.grammars.json_schema.whitespace import Whitespace


@dataclass(frozen=True, slots=True)
class OutlinesSettings:
    """Settings given as ``--set outlines.NAME=VALUE``."""

    any_whitespace: bool = False
    """Let the model choose blanks and line ends between the tokens of JSON; by default it writes as ``json.dumps``."""
    max_whitespace: int = 4
    """Maximum characters of white space in a row, with ``any_whitespace``."""
    any_depth: int = 2
    """Levels of lists and objects in values that a schema says nothing about. Tables grow fourfold with each."""

    @property
    def whitespace(self) -> Whitespace:
        """Return the setting in the form of the schema converters."""
        return Whitespace(self.any_whitespace, self.max_whitespace)
