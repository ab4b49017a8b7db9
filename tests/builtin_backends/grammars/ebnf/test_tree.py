from __future__ import annotations

import re

import pytest

from sglang_plug_backends.grammars.ebnf.tree import (
    EbnfError,
    Either,
    Name,
    OneOf,
    Parts,
    Repeat,
    Text,
    mapped,
    reachable,
    read_choices,
    read_ebnf,
)


def root(source: str) -> object:
    return read_ebnf(f"root ::= {source}")["root"]


def test_expressions_are_parsed() -> None:
    assert root('"a\\n\\u00e9\\x41\\U0001F642\\"\\\\"') == Text('a\néA🙂"\\')
    assert root("[a-c\\-\\]_-]") == OneOf(((97, 99), (45, 45), (93, 93), (95, 95), (45, 45)))
    assert root('[^"\\\\]') == OneOf(((34, 34), (92, 92)), negated=True)
    assert root('"a" | "b" "c"') == Either((Text("a"), Parts((Text("b"), Text("c")))))
    assert root('("a" | "b"){2,}') == Repeat(Either((Text("a"), Text("b"))), 2, None)
    assert root('"a"* "b"+ "c"? "d"{3} "e"{ 1 , 4 }') == Parts(
        tuple(Repeat(Text(item), *bounds) for item, bounds in zip("abcde", BOUNDS, strict=True))
    )


BOUNDS = ((0, None), (1, None), (0, 1), (3, 3), (1, 4))


def test_rules_span_lines_and_comments_are_passed_over() -> None:
    rules = read_ebnf('# first\nroot ::= "a" # "b"\n  other |\n  "#"\nother ::=\n "c"\n')
    assert rules == {"root": Either((Parts((Text("a"), Name("other"))), Text("#"))), "other": Text("c")}
    assert reachable(rules) == ["root", "other"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "no rule named root"),
        ('other ::= "a"', "no rule named root"),
        ('root ::= "a"\nroot ::= "b"', "rule root is defined twice at line 2"),
        ("root ::= other", "refers to other, which is not defined"),
        ("root ::= ", "nothing"),
        ('root ::= "a" | ', "nothing"),
        ('root ::= ("a"', "a missing '\\)'"),
        ('root ::= "a")', "an unexpected '\\)'"),
        ('root ::= * "a"', "nothing to repeat"),
        ('root ::= "a"{3,2}', "out of order"),
        ('root ::= "a"{200000}', "over 100000"),
        ("root ::= [b-a]", "a range out of order"),
        ("root ::= []", "an empty class"),
        ('root ::= "\\q"', "the escape"),
        ('root ::= "\\ud800"', "which is no character"),
        ('root ::= "a\nb"', "cannot be read"),
        ("root ::= (" * 70 + ")" * 70, "nothing|cannot be read|unexpected|stand"),
        ("root ::= " + "(" * 70 + '"a"' + ")" * 70, "more than 64 nested groups"),
        ("root ::= root", "the rule root has no text that ends"),
        ('root ::= "a" | other\nother ::= "b" other', "the rule other has no text that ends"),
        ('root ::= TagDispatch(("a", b))', "cannot be read|unexpected|which is not defined"),
    ],
)
def test_unreadable_grammars_are_refused_with_the_location(source: str, message: str) -> None:
    with pytest.raises(EbnfError, match=message):
        read_ebnf(source)


def test_choices() -> None:
    assert read_choices('["a", "b", "a"]') == Either((Text("a"), Text("b")))
    for source in ("", "[]", "[1]", '"a"', '["\\ud800"]', "[" * 100_000):
        with pytest.raises(EbnfError, match=re.escape("a choice")):
            read_choices(source)
    with pytest.raises(EbnfError, match="at most 4096"):
        read_choices(str([str(index) for index in range(5000)]).replace("'", '"'))


def test_every_part_can_be_changed() -> None:
    node = read_ebnf('root ::= ("a" | other{2} "a")\nother ::= "b"')["root"]
    changed = mapped(node, lambda item: Text("z") if item == Text("a") else item)
    assert changed == Either((Text("z"), Parts((Repeat(Name("other"), 2, 2), Text("z")))))
