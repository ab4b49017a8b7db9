"""Limits of callers' EBNF (GBNF) grammars, checked before xgrammar parses them."""

from __future__ import annotations

import re

from sglang_plug_backends.grammars.ebnf.characters import Characters
from sglang_plug_backends.grammars.ebnf.tree import EbnfError, OneOf, read_ebnf
from sglang_plug_backends.grammars.refusal import Refusal

MAX_CHARACTERS = 128 << 10
MAX_DEPTH = 64
PART = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'  # a string
    r"|(?P<set>\[(?:[^\]\\\n]|\\.)*\])"
    r"|#[^\n]*"
    r"|(?P<macro>\b(?:Regex|TagDispatch|TokenTagDispatch|Token|ExcludeToken|Repeat|Capture))\s*\("
    r"|\{\s*(?P<minimum>\d+)\s*(?:,\s*(?P<maximum>\d*)\s*)?\}"
    r"|(?P<bracket>[()])"
    r"|[\w-]+|."
)
MAX_REPEATS = 100_000
FIRST_SURROGATE, SURROGATES = 0xD800, "\\ud800-\\udfff"


def checked_ebnf(source: str) -> str:
    """Return ``source`` with half surrogate pairs removed from classes, which no text has and xgrammar would write.

    Raises ``Refusal`` for grammars that are too large, nested too deeply, or use a macro of the parser.
    """
    if len(source) > MAX_CHARACTERS:
        raise Refusal(f"a grammar has at most {MAX_CHARACTERS} characters, got {len(source)}")
    depth = 0
    for part in PART.finditer(source):
        if part["macro"]:
            raise Refusal(f"the macro {part['macro']} at position {part.start()} cannot be enforced")
        if max(int(part["minimum"] or 0), int(part["maximum"] or 0)) > MAX_REPEATS:
            raise Refusal(f"a repetition over {MAX_REPEATS} at position {part.start()}")
        depth += {"(": 1, ")": -1}.get(part["bracket"] or "", 0)
        if depth > MAX_DEPTH:
            raise Refusal(f"more than {MAX_DEPTH} nested groups at position {part.start()}")
    return PART.sub(lambda part: _without_surrogates(part["set"]) if part["set"] else part[0], source)


def _without_surrogates(written: str) -> str:
    """Rewrite a character class; an unreadable one stays unchanged for the parser to refuse."""
    if written.startswith("[^"):
        return f"[^{SURROGATES}{written[2:]}"
    try:
        result = read_ebnf(f"root ::= {written}")["root"]
    except EbnfError:
        return written
    if isinstance(result, OneOf) and any(first < FIRST_SURROGATE <= last for first, last in result.ranges):
        return Characters(result.ranges).ebnf()
    return written
