from __future__ import annotations

import pytest

from sglang_plug_backends.ebnf import EbnfError, Repeat, Text, read_ebnf
from sglang_plug_backends.llguidance.lark import rules_to_lark


def test_a_grammar_without_recursion_is_one_expression() -> None:
    assert (
        rules_to_lark(read_ebnf('root ::= one "/" one\none ::= [ab]+\n'))
        == "start: /(?:[ab]){1,}\\x{2f}(?:[ab]){1,}/\n"
    )


def test_recursion_makes_each_character_a_token() -> None:
    found = rules_to_lark(read_ebnf('root ::= pair | ""\npair ::= "((" root{2} "))" | [^x]? root\nunused ::= "a"\n'))
    assert found == (
        'start: (r1 | "")\nr1: (/\\x{28}/ /\\x{28}/ (start){2,2} /\\x{29}/ /\\x{29}/ | (/[^x]/){0,1} start)\n'
    )


def test_a_grammar_that_would_be_too_long_is_refused() -> None:
    rules = read_ebnf('root ::= other | "a" root\nother ::= "b"\n')
    with pytest.raises(EbnfError, match="more than"):
        rules_to_lark({**rules, "other": Repeat(Text("b" * 300_000), 1, 1)})
