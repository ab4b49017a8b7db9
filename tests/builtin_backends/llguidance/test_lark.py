from __future__ import annotations

import pytest

from sglang_plug_backends.grammars.ebnf.tree import EbnfError, read_ebnf
from sglang_plug_backends.llguidance.lark import rules_to_lark


def lark(source: str) -> list[str]:
    return rules_to_lark(read_ebnf(source)).splitlines()


def test_a_grammar_without_recursion_is_one_expression() -> None:
    result = lark('root ::= one "/" one\none ::= [ab]+\nunused ::= "a" unused | "b"\n')
    assert result == ["start: /(?:[ab]){1,}\\x{2f}(?:[ab]){1,}/"]


def test_tokens_are_as_long_as_none_is_the_beginning_of_another() -> None:
    result = lark('root ::= "(" root ")" | text\ntext ::= "<" [^>]* ">"\n')
    assert result == ["start: (/\\x{28}/ start /\\x{29}/ | /\\x{3c}(?:[^\\x{3e}]){0,}\\x{3e}/)"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('root ::= "a" root | "ab"', "start: (/a/ start | /a/ /b/)"),
        ('root ::= "(" root | [0-9]+', "start: (/\\x{28}/ start | (/[0-9]/){1,})"),
        ('root ::= "(" root | "x"?', "start: (/\\x{28}/ start | (/x/){0,1})"),
        ('root ::= "x" root | ""', 'start: (/x/ start | "")'),
        ('root ::= "if" root | "iffy" root | "."', "start: (/i/ /f/ start | /i/ /f/ /f/ /y/ start | /\\x{2e}/)"),
        ('root ::= [^a]"b" root | "cb" | "cbd"', "start: (/[^a]/ /b/ start | /c/ /b/ | /c/ /b/ /d/)"),
    ],
)
def test_tokens_that_are_beginnings_are_taken_apart(source: str, expected: str) -> None:
    assert lark(source) == [expected]


def test_rules_that_are_no_tokens_stay_rules() -> None:
    result = lark('root ::= pair root | "."\npair ::= word ":" word\nword ::= [a-z]+\n')
    assert result == ["start: (r1 start | /\\x{2e}/)", "r1: r2 /\\x{3a}/ r2", "r2: (/[a-z]/){1,}"]


def test_parts_too_large_to_compare_are_taken_apart() -> None:
    assert lark('root ::= "(" root | "a"{500}')[0] == "start: (/\\x{28}/ start | (/a/){500,500})"


def test_a_grammar_that_would_be_too_long_is_refused() -> None:
    text = '"' + "b" * 300_000 + '"'
    with pytest.raises(EbnfError, match="more than"):
        lark(f'root ::= other | "a" root\nother ::= {text}\n')
