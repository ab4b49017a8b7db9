"""How values are written: as JSON, or as Python literals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .characters import JSON_PLAIN, Characters

QUOTE = '"\\""'
PARAMETER = re.compile(r"[\w.-]+")
"""A name that may stand before ``=``."""


@dataclass(frozen=True, slots=True)
class Notation:
    """What differs between two ways of writing the values of a schema."""

    true: str = "true"
    false: str = "false"
    null: str = "null"
    escapes: str = '"\\/bfnrt'
    """What may stand after a backslash, besides ``u``."""

    @property
    def rules(self) -> Mapping[str, str]:
        """Rules that every grammar may refer to. Half a surrogate pair is no character."""
        single = "".join(f"\\{one}" if one == "\\" else one for one in self.escapes)
        return {
            "character": f'{JSON_PLAIN.ebnf()} | "\\\\" escape',
            "escape": f'[{single}] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{{3}} | [dD] [0-7] [0-9a-fA-F]{{2}})',
            "string": '"\\"" character* "\\""',
            "filled": '"\\"" character character* "\\""',
        }

    def constant(self, value: object) -> str:
        """A number, ``true``, ``false`` or ``null`` as text."""
        for constant, text in ((True, self.true), (False, self.false), (None, self.null)):
            if value is constant:
                return text
        return json.dumps(value)


JSON = Notation()
PYTHON = Notation("True", "False", "None", '"\\bfnrt')


@dataclass(frozen=True, slots=True)
class Keys:
    """How the names of an object's properties are written."""

    characters: Characters
    """Those of names that the schema does not say."""
    colon: str
    """An expression for what stands between a name and its value."""
    quoted: bool = True

    @property
    def opening(self) -> str:
        """An expression for what stands before a name."""
        return QUOTE if self.quoted else '""'

    @property
    def closing(self) -> str:
        """An expression for what stands after a name, before its value."""
        return f"{QUOTE}{self.colon}" if self.quoted else self.colon
