from __future__ import annotations

import re

import pytest

from sglang_plug_backends.grammars.ebnf.to_regex import rules_to_regex
from sglang_plug_backends.grammars.ebnf.tree import EbnfError, Repeat, Text, read_ebnf


def expression(source: str) -> str:
    return rules_to_regex(read_ebnf(source))


def as_python(expression: str) -> str:
    """Convert to Python's notation, which differs only in characters written by number."""
    return re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\U{int(code[1], 16):08x}", expression)


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        ('root ::= "a.b" [^x\\n]? | "é" {2}', ["a.b", "a.bé", "éé"], ["aXb", "a.bx", "a.b\n", "é"]),
        ('root ::= one{1,2} "-" one\none ::= "a" | "b" "c"', ["a-a", "bca-bc"], ["-a", "aaa-a", "b-a", "a-"]),
        ('root ::= ("" | "x") "y"', ["y", "xy"], ["", "x", "xxy"]),
        ('root ::= "a" "c" | "b" "c" | "c"', ["ac", "bc", "c"], ["a", "b", "cc", "abc"]),
        ("root ::= [^]", ["a", "\n", "🙂"], ["", "ab"]),
    ],
)
def test_expressions_match_what_the_grammar_says(source: str, good: list[str], bad: list[str]) -> None:
    pattern = re.compile(as_python(expression(source)))
    assert [text for text in good if not pattern.fullmatch(text)] == []
    assert [text for text in bad if pattern.fullmatch(text)] == []


def test_recursion_is_refused() -> None:
    with pytest.raises(EbnfError, match="the rule pair refers to itself"):
        expression('root ::= pair\npair ::= "(" pair? ")"')


def test_common_suffixes_of_branches_are_written_once() -> None:
    rules = ['rule0 ::= "end"']
    rules += [f'rule{index} ::= "x{index}" rule{index - 1} | rule{index - 1}' for index in range(1, 40)]
    assert len(expression("root ::= rule39\n" + "\n".join(rules))) < 1000


def test_an_expression_that_would_be_too_long_is_refused() -> None:
    rules = {"root": Text("abcdefgh" * 200_000)}
    with pytest.raises(EbnfError, match="more than 1048576 characters"):
        rules_to_regex(rules)
    with pytest.raises(EbnfError, match="more than 1048576 characters"):
        rules_to_regex({"root": Repeat(Text("a" * (1 << 20)), 1, 2)})
