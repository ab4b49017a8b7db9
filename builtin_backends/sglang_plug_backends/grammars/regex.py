r"""Regular expressions in the syntax that Python and ECMAScript share, as expressions of an EBNF grammar.

Read here and not by xgrammar, whose own reader takes some expressions for others (an escaped ``^`` at the start of a
class, a dot, anchors in the middle). Where the two dialects disagree on ``\d``, ``\w``, ``\s`` or the dot, only what
both of them match is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .characters import (
    ALL,
    ANY_SPACES,
    ANY_WORD,
    DIGITS,
    JSON_PLAIN,
    LAST,
    LINE_ENDS,
    SPACES,
    WORD,
    Characters,
    any_digits,
    literal,
)
from .refusal import Refusal

MOST_CHARACTERS = 8192
MOST_DEPTH = 64
MOST_REPEATS = 100_000
CLASSES: Mapping[str, tuple[Characters, Callable[[], Characters]]] = {
    "d": (DIGITS, any_digits),
    "w": (WORD, lambda: ANY_WORD),
    "s": (SPACES, lambda: ANY_SPACES),
}
"""Characters that every dialect takes for such, and those that one of them does."""
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
REPEAT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
SHORTHAND = re.compile(r"\\([dDwWsS])|\\.", re.DOTALL)
GROUP = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>", re.ASCII)
EMPTY = '""'


@dataclass(frozen=True, slots=True)
class Alternative:
    """One branch of an expression, and whether it says where it starts and ends."""

    body: str
    starts: bool
    ends: bool


def regex_to_ebnf(pattern: str) -> str:
    """An EBNF expression for the texts that match ``pattern`` as a whole. Raises ``Refusal``."""
    return " | ".join(one.body for one in _Reader(pattern, ALL).read())


def pattern_to_ebnf(pattern: str) -> str:
    """An EBNF expression for the insides of JSON strings in which ``pattern`` is found.

    Characters that JSON has to escape are not written. Raises ``Refusal``.
    """
    anything = f"{JSON_PLAIN.ebnf()}*"
    return " | ".join(
        " ".join(([] if one.starts else [anything]) + [one.body] + ([] if one.ends else [anything]))
        for one in _Reader(pattern, JSON_PLAIN).read()
    )


class _Reader:
    def __init__(self, pattern: str, alphabet: Characters) -> None:
        if len(pattern) > MOST_CHARACTERS:
            raise Refusal(f"a regular expression has at most {MOST_CHARACTERS} characters, got {len(pattern)}")
        self._text, self._alphabet = pattern, alphabet
        self._at = 0
        self._depth = 0

    def read(self) -> list[Alternative]:
        found = self._alternatives()
        if self._at < len(self._text):
            raise self._refusal("unbalanced ')'")
        return found

    def _refusal(self, what: str) -> Refusal:
        return Refusal(f"the regular expression cannot be enforced: {what} at position {self._at}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> list[Alternative]:
        found = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            found.append(self._sequence())
        return found

    def _sequence(self) -> Alternative:
        """Up to ``|``, ``)`` or the end. Anchors are understood at both ends of the outermost alternatives."""
        starts = ends = False
        if self._next() == "^" and not self._depth:
            starts = True
            self._at += 1
        parts: list[str] = []
        while (one := self._next()) not in ("", "|", ")"):
            if one == "$" and not self._depth and self._text[self._at + 1 : self._at + 2] in ("", "|"):
                ends = True
                self._at += 1
                break
            parts.append(self._quantified(self._atom()))
        return Alternative(" ".join(parts) or EMPTY, starts, ends)

    def _atom(self) -> str:
        one = self._next()
        if one == "(":
            return self._group()
        if one == "[":
            return self._set(self._character_class())
        if one == ".":
            self._at += 1
            return self._set(~LINE_ENDS)
        if one == "\\":
            escaped = self._escape()
            return self._set(escaped) if isinstance(escaped, Characters) else self._literal(escaped)
        if one in ("^", "$"):
            raise self._refusal(f"an anchor ({one!r}) that is not at the end of the expression")
        if one in ("*", "+", "?"):
            raise self._refusal(f"nothing to repeat before {one!r}")
        if one == "{":
            raise self._refusal("a plain '{' (write \\{)")
        self._at += 1
        return self._literal(one)

    def _group(self) -> str:
        self._at += 1
        if self._next() == "?":
            kind = GROUP.match(self._text, self._at)
            if kind is None:
                raise self._refusal("a group that looks around or changes flags")
            self._at = kind.end()
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._refusal(f"more than {MOST_DEPTH} nested groups")
        body = " | ".join(one.body for one in self._alternatives())
        self._depth -= 1
        if self._next() != ")":
            raise self._refusal("a missing ')'")
        self._at += 1
        return f"({body})"

    def _quantified(self, atom: str) -> str:
        one = self._next()
        if one and one in "*+?":
            self._at += 1
            atom += one
        elif one == "{":
            atom += self._repeat()
        else:
            return atom
        if self._next() == "?":  # lazy or greedy: the same texts
            self._at += 1
        elif self._next() in ("*", "+", "{"):
            raise self._refusal("a quantifier after a quantifier")
        return atom

    def _repeat(self) -> str:
        found = REPEAT.match(self._text, self._at)
        if found is None:
            raise self._refusal("a plain '{' (write \\{)")
        least = int(found[1])
        most = least if found[2] is None else None if found[3] is None else int(found[3])
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise self._refusal(f"a repetition out of order or over {MOST_REPEATS}")
        self._at = found.end()
        return f"{{{least},}}" if most is None else f"{{{least},{most}}}"

    def _escape(self, *, wide: bool = False) -> str | Characters:
        """What follows a backslash: a set, or a character. ``wide``: whatever a dialect might put into the set."""
        self._at += 1
        one = self._next()
        if one and one.lower() in CLASSES:
            self._at += 1
            narrow, wider = CLASSES[one.lower()]
            if one.isupper():
                return ~narrow if wide else ~wider()
            return wider() if wide else narrow
        if found := HEXADECIMAL.match(self._text, self._at):
            self._at = found.end()
            return chr(int(found[1] or found[2], 16))
        if one in CONTROLS and one and not (one == "0" and self._text[self._at + 1 : self._at + 2].isdigit()):
            self._at += 1
            return CONTROLS[one]
        if not one or one.isalnum():
            raise self._refusal(f"the escape \\{one}")
        self._at += 1
        return one

    def _character_class(self) -> Characters:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        if self._next() == "]":
            raise self._refusal("a ']' at the start of a class (write \\])")
        found, start = Characters(), self._at
        while (one := self._next()) != "]":
            if not one:
                raise self._refusal("a missing ']'")
            if one == "[":
                raise self._refusal("a '[' in a class (write \\[)")
            first = self._member(negated)
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(negated)
                if isinstance(first, Characters) or isinstance(last, Characters) or first > last:
                    raise self._refusal("a range out of order")
                found |= Characters([(ord(first), ord(last))])
            else:
                found |= first if isinstance(first, Characters) else Characters.of(first)
        shorthands = set(SHORTHAND.findall(self._text[start : self._at]))
        if any(one.upper() in shorthands for one in shorthands if one.islower()):  # such as [\s\S]: everything
            found = ALL
        self._at += 1
        return ~found if negated else found

    def _member(self, negated: bool) -> str | Characters:
        if self._next() == "\\":
            return self._escape(wide=negated)
        self._at += 1
        return self._text[self._at - 1]

    def _set(self, characters: Characters) -> str:
        allowed = characters & self._alphabet
        if not allowed:
            raise self._refusal("a class of which nothing can be written")
        return allowed.ebnf()

    def _literal(self, character: str) -> str:
        if ord(character) > LAST or character not in ALL:
            raise self._refusal("half a surrogate pair")
        if character in self._alphabet:
            return literal(character)
        return literal(json_escape(character))


def json_escape(character: str) -> str:
    """How a JSON string writes a character that it cannot hold plainly."""
    if character in '"\\':
        return f"\\{character}"
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}
    return short.get(character, f"\\u{ord(character):04x}")
