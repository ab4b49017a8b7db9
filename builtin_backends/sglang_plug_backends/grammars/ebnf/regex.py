r"""Regular expressions in the common syntax of Python and ECMAScript, converted to EBNF expressions.

They are parsed here and not by xgrammar, whose own parser misreads some expressions (an escaped ``^`` at the start of a
class, a dot, anchors in the middle). Where the two dialects disagree on ``\d``, ``\w``, ``\s`` or the dot, only
characters that both match are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sglang_plug_backends.grammars.refusal import Refusal

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

MAX_CHARACTERS = 8192
MAX_DEPTH = 64
MAX_REPEATS = 100_000
CLASSES: Mapping[str, tuple[Characters, Callable[[], Characters]]] = {
    "d": (DIGITS, any_digits),
    "w": (WORD, lambda: ANY_WORD),
    "s": (SPACES, lambda: ANY_SPACES),
}
"""Characters that every dialect includes in a class, and those that some dialect includes."""
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")
REPEAT = re.compile(r"\{(\d{1,9})(?:(,)(\d{1,9})?)?\}")
SHORTHAND = re.compile(r"\\([dDwWsS])|\\.", re.DOTALL)
GROUP = re.compile(r"\?:|\?P?<[A-Za-z_]\w*>", re.ASCII)
EMPTY = '""'


@dataclass(frozen=True, slots=True)
class Alternative:
    """One branch of an expression, and whether it is anchored at its start and end."""

    body: str
    starts: bool
    ends: bool


def regex_to_ebnf(pattern: str) -> str:
    """Convert ``pattern`` to an EBNF expression for texts that match as a whole. Raises ``Refusal``."""
    return " | ".join(item.body for item in _Reader(pattern, ALL).read())


def pattern_to_ebnf(pattern: str) -> str:
    """Convert ``pattern`` to an EBNF expression for the insides of JSON strings that contain a match.

    Characters that JSON has to escape are excluded. Raises ``Refusal``.
    """
    anything = f"{JSON_PLAIN.ebnf()}*"
    return " | ".join(
        " ".join(([] if item.starts else [anything]) + [item.body] + ([] if item.ends else [anything]))
        for item in _Reader(pattern, JSON_PLAIN).read()
    )


class _Reader:
    def __init__(self, pattern: str, alphabet: Characters) -> None:
        if len(pattern) > MAX_CHARACTERS:
            raise Refusal(f"a regular expression has at most {MAX_CHARACTERS} characters, got {len(pattern)}")
        self._text, self._alphabet = pattern, alphabet
        self._at = 0
        self._depth = 0

    def read(self) -> list[Alternative]:
        result = self._alternatives()
        if self._at < len(self._text):
            raise self._refusal("unbalanced ')'")
        return result

    def _refusal(self, problem: str) -> Refusal:
        return Refusal(f"the regular expression cannot be enforced: {problem} at position {self._at}")

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> list[Alternative]:
        alternatives = [self._sequence()]
        while self._next() == "|":
            self._at += 1
            alternatives.append(self._sequence())
        return alternatives

    def _sequence(self) -> Alternative:
        """Parse up to ``|``, ``)`` or the end. Anchors are supported at both ends of the outermost alternatives."""
        starts = ends = False
        if self._next() == "^" and not self._depth:
            starts = True
            self._at += 1
        parts: list[str] = []
        while (character := self._next()) not in ("", "|", ")"):
            if character == "$" and not self._depth and self._text[self._at + 1 : self._at + 2] in ("", "|"):
                ends = True
                self._at += 1
                break
            parts.append(self._quantified(self._atom()))
        return Alternative(" ".join(parts) or EMPTY, starts, ends)

    def _atom(self) -> str:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._set(self._character_class())
        if character == ".":
            self._at += 1
            return self._set(~LINE_ENDS)
        if character == "\\":
            escaped = self._escape()
            return self._set(escaped) if isinstance(escaped, Characters) else self._literal(escaped)
        if character in ("^", "$"):
            raise self._refusal(f"an anchor ({character!r}) that is not at the end of the expression")
        if character in ("*", "+", "?"):
            raise self._refusal(f"nothing to repeat before {character!r}")
        if character == "{":
            raise self._refusal("a plain '{' (write \\{)")
        self._at += 1
        return self._literal(character)

    def _group(self) -> str:
        self._at += 1
        if self._next() == "?":
            kind = GROUP.match(self._text, self._at)
            if kind is None:
                raise self._refusal("lookarounds and inline flags are not supported")
            self._at = kind.end()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refusal(f"more than {MAX_DEPTH} nested groups")
        body = " | ".join(alternative.body for alternative in self._alternatives())
        self._depth -= 1
        if self._next() != ")":
            raise self._refusal("a missing ')'")
        self._at += 1
        return f"({body})"

    def _quantified(self, atom: str) -> str:
        character = self._next()
        if character and character in "*+?":
            self._at += 1
            atom += character
        elif character == "{":
            atom += self._repeat()
        else:
            return atom
        if self._next() == "?":  # lazy or greedy: the same texts
            self._at += 1
        elif self._next() in ("*", "+", "{"):
            raise self._refusal("a quantifier after a quantifier")
        return atom

    def _repeat(self) -> str:
        result = REPEAT.match(self._text, self._at)
        if result is None:
            raise self._refusal("a plain '{' (write \\{)")
        minimum = int(result[1])
        maximum = minimum if result[2] is None else None if result[3] is None else int(result[3])
        if max(minimum, maximum or 0) > MAX_REPEATS or (maximum is not None and maximum < minimum):
            raise self._refusal(f"a repetition out of order or over {MAX_REPEATS}")
        self._at = result.end()
        return f"{{{minimum},}}" if maximum is None else f"{{{minimum},{maximum}}}"

    def _escape(self, *, wide: bool = False) -> str | Characters:
        """Parse an escape: a set or a character. ``wide``: the union over all dialects."""
        self._at += 1
        character = self._next()
        if character and character.lower() in CLASSES:
            self._at += 1
            narrow, wider = CLASSES[character.lower()]
            if character.isupper():
                return ~narrow if wide else ~wider()
            return wider() if wide else narrow
        if result := HEXADECIMAL.match(self._text, self._at):
            self._at = result.end()
            return chr(int(result[1] or result[2], 16))
        if (
            character in CONTROLS
            and character
            and not (character == "0" and self._text[self._at + 1 : self._at + 2].isdigit())
        ):
            self._at += 1
            return CONTROLS[character]
        if not character or character.isalnum():
            raise self._refusal(f"the escape \\{character}")
        self._at += 1
        return character

    def _character_class(self) -> Characters:
        self._at += 1
        negated = self._next() == "^"
        self._at += negated
        if self._next() == "]":
            raise self._refusal("a ']' at the start of a class (write \\])")
        result, start = Characters(), self._at
        while (character := self._next()) != "]":
            if not character:
                raise self._refusal("a missing ']'")
            if character == "[":
                raise self._refusal("a '[' in a class (write \\[)")
            first = self._member(negated)
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member(negated)
                if isinstance(first, Characters) or isinstance(last, Characters) or first > last:
                    raise self._refusal("a range out of order")
                result |= Characters([(ord(first), ord(last))])
            else:
                result |= first if isinstance(first, Characters) else Characters.of(first)
        shorthands = set(SHORTHAND.findall(self._text[start : self._at]))
        if any(
            shorthand.upper() in shorthands for shorthand in shorthands if shorthand.islower()
        ):  # such as [\s\S]: everything
            result = ALL
        self._at += 1
        return ~result if negated else result

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
    """Return the JSON escape sequence of a character that a JSON string cannot contain unescaped."""
    if character in '"\\':
        return f"\\{character}"
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}
    return short.get(character, f"\\u{ord(character):04x}")
