"""Settings of the llguidance backend."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_plug_backends.grammars.json_schema.whitespace import Whitespace


@dataclass(frozen=True, slots=True)
class LLGuidanceSettings:
    """Settings given as ``--set llguidance.NAME=VALUE``."""

    any_whitespace: bool = False
    """Let the model choose blanks and line ends between the tokens of JSON; by default it writes as ``json.dumps``."""
    max_whitespace: int = 16
    """Maximum characters of white space in a row, with ``any_whitespace``."""

    @property
    def whitespace(self) -> Whitespace:
        """Return the setting in the form of the Python argument converter."""
        return Whitespace(self.any_whitespace, self.max_whitespace)
