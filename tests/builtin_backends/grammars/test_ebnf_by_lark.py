"""Grammars match the same texts as an independent parser (lark, Earley) with its own notation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import lark
import pytest

GRAMMARS: dict[str, tuple[str, str, str]] = {  # EBNF, the same for lark, an alphabet to try
    "parentheses": ('root ::= "(" root ")" root | ""', 'start: ("(" start ")" start)?', "()x"),
    "as many": ('root ::= "a" root "b" | "c"', 'start: "a" start "b" | "c"', "abc"),
    "palindromes": ('root ::= "a" root "a" | "b" root "b" | "a"?', 'start: "a" start "a" | "b" start "b" | "a"?', "ab"),
    "sums": (
        'root ::= term (("+" | "-") term)*\nterm ::= factor ("*" factor)*\nfactor ::= [0-9]+ | "(" root ")"',
        'start: term (("+" | "-") term)*\nterm: factor ("*" factor)*\nfactor: /[0-9]/+ | "(" start ")"',
        "12+*()",
    ),
    "left recursion": (
        'root ::= root "," item | item\nitem ::= [a-c]',
        'start: start "," item | item\nitem: /[a-c]/',
        "ad,",
    ),
    "repetitions": (
        'root ::= "a"{2} "b"{1,3} "c"{0,} [^a-c]{0,1}',
        'start: "a"~2 "b"~1..3 "c"* /[^a-c]/?',
        "abcd",
    ),
    "shared beginnings": (
        'root ::= "ab" | "abc" | "a" tail\ntail ::= "b"* "d"',
        'start: "ab" | "abc" | "a" tail\ntail: "b"* "d"',
        "abcd",
    ),
    "names": (
        'root ::= pair (";" pair)*  # a comment\npair ::= key "=" value\nkey ::= [a-b]+\n'
        'value ::= key | "\\"" [^"]* "\\""',
        'start: pair (";" pair)*\npair: key "=" value\nkey: /[a-b]/+\nvalue: key | "\\"" /[^"]/* "\\""',
        'a=";',
    ),
    "beyond ASCII": ('root ::= ("é" | [à-å] | "漢字")+ "\\u00fc"?', 'start: ("é" | /[à-å]/ | "漢字")+ "ü"?', "éàü漢字"),
}  # fmt: skip
LONGEST = 5


@pytest.fixture(params=["xgrammar", "llguidance"])
def backend(request: pytest.FixtureRequest, grammar_backends: Callable[..., Any]) -> Any:
    return grammar_backends(request.param)


def reads(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def texts(alphabet: str) -> Iterator[str]:
    for length in range(LONGEST + 1):
        yield from map("".join, product(alphabet, repeat=length))


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_allow_what_lark_reads(backend: Any, name: str) -> None:
    ebnf, notation, alphabet = GRAMMARS[name]
    parser = lark.Lark(notation, parser="earley", lexer="dynamic_complete")
    compiled = backend("ebnf", ebnf)
    results = {text: reads(parser, text) for text in texts(alphabet[:4])}
    assert set(results.values()) == {True, False}
    assert {text for text, good in results.items() if compiled.accepts(text) != good} == set()
    outputs = [text.decode() for text in compiled.random_outputs(25)]
    assert len(set(outputs)) > 2
    for text in outputs:
        assert reads(parser, text), text
