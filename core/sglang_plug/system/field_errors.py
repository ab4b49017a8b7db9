"""Errors of msgspec about values of fields, in the words of the other error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

MESSAGE = re.compile(r"(?P<text>.*?)(?: - at `(?:key in |key` in `)?\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
"""An error of msgspec: a text, and at the end the path of the wrong value."""
RANGE = re.compile(r"Expected `(?P<type>\w+)` (?P<relation>>=|<=|>|<) (?P<bound>\S+)")
LENGTH = re.compile(r"Expected `(?P<type>\w+)` of length (?P<relation>>=|<=|==|>|<) (?P<bound>\d+)")
TYPE = re.compile(r"Expected `(?P<type>[^`]+)`, got `(?P<actual>[^`]+)`")
PATTERN = re.compile(r"Expected `str` matching regex (?P<pattern>.+)", re.DOTALL)
ENUM = re.compile(r"Invalid enum value (?P<value>.+)", re.DOTALL)
MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")
NOUNS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
RELATIONS = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than", "==": "exactly"}
UNITS = {"array": "items", "str": "characters", "object": "entries"}


@dataclass(frozen=True, slots=True)
class FieldError:
    """The problem of a value, and the path of the value."""

    path: str
    """The path of the field, such as ``steer.token`` or ``paths[1]``; empty: the whole."""
    problem: str
    """The rest of a sentence that begins with the field: ``must be an integer, not text``."""
    is_clause: bool = True
    """False if ``problem`` is a text of its own, such as that of a class that checks itself."""

    def __str__(self) -> str:
        if not self.path or self.problem.startswith(self.path):
            return self.problem
        return f"{self.path} {self.problem}" if self.is_clause else f"{self.path}: {self.problem}"


def field_error(error: Exception, default_path: str = "") -> FieldError:
    """Return what an error of ``msgspec.convert`` says; its path is ``default_path`` if it names none."""
    match = MESSAGE.fullmatch(str(error))
    assert match is not None  # the expression matches every text
    text, path = match["text"], match["path"] or ""
    if missing := MISSING.fullmatch(text):
        return FieldError(f"{path}.{missing['name']}".removeprefix("."), "is missing")
    clause = _clause(text)
    return FieldError(path or default_path, clause or text, is_clause=bool(clause))


def _clause(text: str) -> str:
    """Return what must be true of the field; empty for a text that is not one of msgspec's."""
    if match := TYPE.fullmatch(text):
        return f"must be {_nouns(match['type'])}, not {_nouns(match['actual'])}"
    if match := RANGE.fullmatch(text):
        return f"must be {RELATIONS[match['relation']]} {match['bound'].removesuffix('.0')}"
    if match := LENGTH.fullmatch(text):
        unit = UNITS.get(match["type"], "items")
        return f"must have {RELATIONS[match['relation']]} {match['bound']} {_counted(unit, match['bound'])}"
    if match := PATTERN.fullmatch(text):
        return f"must be text that matches the regular expression {match['pattern']}"
    if match := ENUM.fullmatch(text):
        return f"cannot be {match['value']}"
    return ""


def _counted(unit: str, count: str) -> str:
    if count != "1":
        return unit
    return "entry" if unit == "entries" else unit.removesuffix("s")


def _nouns(types: str) -> str:
    return " or ".join(NOUNS.get(name, name) for name in types.split(" | "))
