"""Notations of values: JSON or Python literals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_plug_backends.grammars.ebnf.characters import JSON_PLAIN, Characters

QUOTE = '"\\""'
PARAMETER = re.compile(r"[\w.-]+")
"""Expression for a name that may precede ``=``."""


@dataclass(frozen=True, slots=True)
class Notation:
    """The differences between two notations of a schema's values."""

    true: str = "true"
    false: str = "false"
    null: str = "null"
    escapes: str = '"\\/bfnrt'
    """Characters that may follow a backslash, besides ``u``."""

    @property
    def rules(self) -> Mapping[str, str]:
        """Return the rules that every grammar may refer to. Half a surrogate pair is no character."""
        single = "".join(f"\\{escape}" if escape == "\\" else escape for escape in self.escapes)
        return {
            "character": f'{JSON_PLAIN.ebnf()} | "\\\\" escape',
            "escape": f'[{single}] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{{3}} | [dD] [0-7] [0-9a-fA-F]{{2}})',
            "string": '"\\"" character* "\\""',
            "filled": '"\\"" character character* "\\""',
        }

    def constant(self, value: object) -> str:
        """Write a number, ``true``, ``false`` or ``null`` as text."""
        for constant, text in ((True, self.true), (False, self.false), (None, self.null)):
            if value is constant:
                return text
        return json.dumps(value)


JSON = Notation()
PYTHON = Notation("True", "False", "None", '"\\bfnrt')


@dataclass(frozen=True, slots=True)
class Keys:
    """Notation of the names of an object's properties."""

    characters: Characters
    """Characters of names that the schema does not specify."""
    colon: str
    """Expression between a name and its value."""
    quoted: bool = True

    @property
    def opening(self) -> str:
        """Return an expression for the text before a name."""
        return QUOTE if self.quoted else '""'

    @property
    def closing(self) -> str:
        """Return an expression for the text between a name and its value."""
        return f"{QUOTE}{self.colon}" if self.quoted else self.colon
