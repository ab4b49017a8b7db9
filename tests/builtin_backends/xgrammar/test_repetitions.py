"""Repetitions rewritten as right recursion accept the same language, and their masks can be precomputed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import xgrammar
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sglang_plug_backends.grammars.ebnf.to_text import rules_to_ebnf
from sglang_plug_backends.grammars.ebnf.tree import (
    Either,
    Name,
    Node,
    OneOf,
    Parts,
    Repeat,
    Rules,
    Text,
    children,
    read_ebnf,
)
from sglang_plug_backends.xgrammar.repetitions import MAX_AT_ONCE, MAX_LINKS, with_recursion

ALPHABET = "ab"
TEXTS = ["".join(letters) for length in range(6) for letters in product(ALPHABET, repeat=length)]
JSON_STRING = """
character ::= [^"\\\\] | "\\\\" escape
escape ::= ["\\\\/bfnrt]
root ::= "\\"" character* "\\""
"""


def ends(rules: Rules, node: Node, text: str, start: int) -> frozenset[int]:
    """Return the possible ends of a text of ``node`` that begins at ``start``."""
    match node:
        case Text():
            return frozenset({start + len(node.text)}) if text.startswith(node.text, start) else frozenset()
        case OneOf():
            inside = start < len(text) and any(low <= ord(text[start]) <= high for low, high in node.ranges)
            return frozenset({start + 1}) if start < len(text) and inside != node.negated else frozenset()
        case Name():
            return ends(rules, rules[node.name], text, start)
        case Either():
            return frozenset().union(*(ends(rules, branch, text, start) for branch in node.branches))
        case Parts():
            result = frozenset({start})
            for part in node.parts:
                result = frozenset().union(*(ends(rules, part, text, at) for at in result))
            return result
    return repeated(rules, node, text, start)


def repeated(rules: Rules, node: Repeat, text: str, start: int) -> frozenset[int]:
    maximum = len(text) + 1 + node.minimum if node.maximum is None else node.maximum
    positions, latest = set[int](), frozenset({start})
    for times in range(maximum + 1):
        if times >= node.minimum:
            positions |= latest
        latest = frozenset().union(*(ends(rules, node.body, text, at) for at in latest))
    return frozenset(positions)


def language(source: str) -> set[str]:
    rules = read_ebnf(source)
    return {text for text in TEXTS if len(text) in ends(rules, Name("root"), text, 0)}


def nodes(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    several = st.lists(inner, min_size=1, max_size=3).map(tuple)
    bounds = st.sampled_from([(0, None), (1, None), (2, None), (0, 1), (1, 3), (2, 2), (0, 20), (3, 18)])
    return st.one_of(
        several.map(Parts), several.map(Either), st.tuples(inner, bounds).map(lambda item: Repeat(item[0], *item[1]))
    )


LEAVES = st.sampled_from(
    [Text("a"), Text("b"), Text("ba"), OneOf(((97, 98),)), OneOf(((97, 97),), True), Name("other")]
)
TREES = st.recursive(LEAVES, nodes, max_leaves=8)


@settings(max_examples=300, deadline=None)
@given(root=TREES, other=st.sampled_from([Text("ab"), Either((Text("a"), Parts((Text("b"), Text("b")))))]))
def test_the_language_stays(root: Node, other: Node) -> None:
    source = rules_to_ebnf({"other": other, "root": root})
    assert language(with_recursion(source)) == language(source)


def test_recursive_rules() -> None:
    source = 'root ::= "a" ("b" root)* | other{2,}\nother ::= "b" ("a" other)?\n'
    assert language(with_recursion(source)) == language(source) >= {"a", "aba", "bb", "babb"}


@pytest.mark.parametrize(
    "source",
    [
        'root ::= ("a"){0,2} (("ba")* ("b")*)? "a"\n',
        'root ::= ("a"){0,2} (("ba")* ("b")*)* "a"\n',
        'root ::= ("ba"){1,3} ((("b" "a")* ("a")*){0,2} "b")?\n',
    ],
)
def test_copied_parts_may_contain_loops(source: str) -> None:
    assert language(with_recursion(source)) == language(source)


LONG = st.sampled_from([0, 1, 2, 20, 127, 128, 129, 130, 200, 257])


@settings(max_examples=60, deadline=None)
@given(
    minimum=LONG,
    more=st.one_of(st.none(), LONG),
    written=st.sampled_from(["[ab]", "[^c]", "one", '("b" | one)', '"a"']),
)
def test_long_repetitions_are_parts_and_the_language_stays(minimum: int, more: int | None, written: str) -> None:
    assume(minimum + (more or 1) > 0 and (more is None or minimum + more > 0))
    maximum = None if more is None else minimum + more
    source = (
        f'root ::= {written}{{{minimum},{"" if maximum is None else maximum}}} end\none ::= [ab]\nend ::= "" | "c"\n'
    )
    parts = with_recursion(source)
    assert all(max(repetition.minimum, repetition.maximum or 0) <= MAX_AT_ONCE for repetition in repetitions(parts))
    longest = minimum + 3 if maximum is None else maximum + 1
    whole = set(range(minimum, min(longest, maximum or longest) + 1))
    assert ends(read_ebnf(parts), Name("root"), "a" * longest, 0) == whole
    for length in (minimum - 1, minimum, longest - 1, longest):
        text = "a" * max(0, length) + "c"
        assert (len(text) in ends(read_ebnf(parts), Name("root"), text, 0)) == (max(0, length) in whole)


@settings(max_examples=300, deadline=None)
@given(root=TREES)
def test_rewritten_grammars_can_be_read_by_xgrammar(root: Node) -> None:
    """A repetition of a repetition is written in parentheses."""
    source = rules_to_ebnf({"other": Text("ab"), "root": root})
    for written in (source, with_recursion(source)):
        xgrammar.Grammar.from_ebnf(written)


@pytest.mark.parametrize("times", [100_000, 99_991])
def test_the_largest_repetition_is_not_too_many_rules(times: int) -> None:
    assert len(read_ebnf(with_recursion(f"root ::= [ab]{{1,{times}}}\n"))) < 2000


def test_more_long_repetitions_than_there_may_be_rules_stay() -> None:
    source = "root ::= " + " ".join(f'[ab]{{0,100000}} "{number}"' for number in range(40)) + "\n"
    assert len(read_ebnf(with_recursion(source))) < 2 * MAX_LINKS


def repetitions(source: str) -> Iterator[Repeat]:
    nodes = list(read_ebnf(source).values())
    while nodes:
        node = nodes.pop()
        nodes += children(node)
        if isinstance(node, Repeat):
            yield node


@pytest.mark.parametrize("source", [JSON_STRING, 'root ::= ([a-z]{1,12} " ")*\n', 'root ::= ("a" | "bc" [0-9]*)+\n'])
def test_only_single_characters_are_repeated(source: str) -> None:
    assert any(not isinstance(repetition.body, OneOf) for repetition in repetitions(source))
    assert all(isinstance(repetition.body, OneOf) for repetition in repetitions(with_recursion(source)))


def test_what_would_be_too_long_stays() -> None:
    source = 'root ::= ("ab" [a-z]{0,64}){0,64} [a-z]{0,65}\n'
    assert [(repetition.minimum, repetition.maximum) for repetition in repetitions(with_recursion(source))].count(
        (0, 64)
    ) >= 1
    assert (0, 65) in [(repetition.minimum, repetition.maximum) for repetition in repetitions(with_recursion(source))]


def test_at_least_some_of_a_class() -> None:
    assert [
        (repetition.minimum, repetition.maximum)
        for repetition in repetitions(with_recursion("root ::= [ab]{2,} [c]+\n"))
    ] == [(0, None)] * 2


def test_hundreds_of_repetitions_in_a_row_stay() -> None:
    source = "root ::= " + '("ab" | "c")* ' * 2000 + '"d"\n'
    assert with_recursion(source) is source


def test_a_repetition_of_nothing_stays() -> None:
    source = 'root ::= ("a"?)* "b"\n'
    assert language(with_recursion(source)) == language(source)


def test_names_that_the_grammar_has() -> None:
    source = 'loop0 ::= "b"\nroot ::= ("a" | "bb")* loop0\n'
    assert language(with_recursion(source)) == language(source) >= {"b", "ab", "bbb"}


def test_the_same_repetition_is_one_rule() -> None:
    text = '"\\"" ("a" | "bc")* "\\""'
    assert with_recursion(f"one ::= {text}\nroot ::= one {text}\n").count("loop1") == 0


@pytest.mark.parametrize("source", ['root ::= "a" (= "b")', 'root ::= ("a" | "b") "c"\n'])
def test_unchanged_and_unreadable_grammars_stay(source: str) -> None:
    assert with_recursion(source) is source
