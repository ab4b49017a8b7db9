"""The constraints of the conformance test of grammar backends, with texts that they allow and do not allow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from typing import Any

from sglang_plug.contracts.text.grammar import Constraint, ConstraintKind

from .json_schema import is_allowed
from .schema_cases import SCHEMAS, Raw

Writings = tuple[str, ...]
"""Equivalent texts, of which a backend may produce only one."""
SEPARATORS = ((", ", ": "), (",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarCase:
    """One constraint."""

    name: str
    constraint: Constraint
    good: tuple[Writings, ...] = ()
    """Groups of texts; one text of each group can be produced."""
    bad: tuple[Writings, ...] = ()
    """Groups of texts; none of these can be produced."""
    judge: Callable[[str], bool]
    """Returns True if a text satisfies the constraint, computed independently."""
    broken: bool = False
    """True if no text can satisfy the constraint, or it is malformed: it must be refused."""


def grammar_cases() -> Iterator[GrammarCase]:
    """Yield every case; names are unique."""
    yield from (_schema(f"json_schema: {name}", *arguments) for name, arguments in SCHEMAS.items())
    yield _json_object()
    yield from (_regex(f"regex: {name}", *arguments) for name, arguments in REGEXES.items())
    yield from (_ebnf(f"ebnf: {name}", *arguments) for name, arguments in GRAMMARS.items())
    yield from (_choice(f"choice: {name}", *arguments) for name, arguments in CHOICES.items())
    yield from _tags()
    yield from _broken()


def _written(value: Any) -> Writings:
    orders = [dict(pairs) for pairs in permutations(value.items())] if isinstance(value, dict) else [value]
    texts = [
        json.dumps(ordered, separators=separators, ensure_ascii=ascii)
        for ordered, separators, ascii in product(orders, SEPARATORS, (False, True))
    ]
    return tuple(dict.fromkeys(texts))


def _examples(values: list[Any]) -> tuple[Writings, ...]:
    return tuple((value.text,) if isinstance(value, Raw) else _written(value) for value in values)


def _schema(name: str, schema: Any, good: list[Any], bad: list[Any]) -> GrammarCase:
    return GrammarCase(
        name=name,
        constraint=Constraint("json_schema", json.dumps(schema)),
        good=_examples(good),
        bad=_examples(bad),
        judge=partial(is_allowed, schema=schema),
    )


def _json_object() -> GrammarCase:
    return GrammarCase(
        name="json_object: any object",
        constraint=Constraint("json_object"),
        good=_examples([{}, {"a": 1}, {"b": [1, -2.5, "x", None, True, {"c": {}}], "é": 'ü\n"\\'}]),
        bad=_examples(
            [[], "a", 1, None, Raw('{"a": 1'), Raw("{a: 1}"), Raw('{"a": 01}'), Raw('{"a": 1,}'), Raw("{}}")]
        ),
        judge=partial(is_allowed, schema={"type": "object"}),
    )


def _matches(pattern: str, text: str) -> bool:
    return any(re.fullmatch(pattern, text, flag) is not None for flag in (re.ASCII, re.UNICODE))


def _regex(name: str, pattern: str, good: list[str], bad: list[str]) -> GrammarCase:
    return GrammarCase(
        name=name,
        constraint=Constraint("regex", pattern),
        good=tuple((text,) for text in good),
        bad=tuple((text,) for text in bad),
        judge=partial(_matches, pattern),
    )


def _ebnf(name: str, grammar: str, judge: Callable[[str], bool], good: list[str], bad: list[str]) -> GrammarCase:
    return GrammarCase(
        name=name,
        constraint=Constraint("ebnf", grammar),
        good=tuple((text,) for text in good),
        bad=tuple((text,) for text in bad),
        judge=judge,
    )


def _choice(name: str, choices: list[str], bad: list[str]) -> GrammarCase:
    return GrammarCase(
        name=name,
        constraint=Constraint("choice", json.dumps(choices)),
        good=tuple((text,) for text in choices),
        bad=tuple((text,) for text in bad),
        judge=frozenset(choices).__contains__,
    )


def _is_tagged(schema: Any, text: str) -> bool:
    match = re.fullmatch(r"<call>(.*)</call>", text, re.DOTALL)
    return match is not None and is_allowed(match[1], schema)


def _tags() -> Iterator[GrammarCase]:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}
    yield GrammarCase(
        name="structural_tag: one call",
        constraint=Constraint("structural_tag", json.dumps({"type": "structural_tag", "format": tag})),
        good=(tuple(f"<call>{text}</call>" for text in _written({"x": -12})),),
        bad=(
            tuple(f"<call>{text}</call>" for text in _written({"x": "a"})),
            tuple(f"<call>{text}" for text in _written({"x": 1})),
            _written({"x": 1}),
        ),
        judge=partial(_is_tagged, schema),
    )


def _broken() -> Iterator[GrammarCase]:
    for kind, sources in BROKEN.items():
        for source in sources:
            yield GrammarCase(
                name=f"{kind}: broken, {source[:40]!r}",
                constraint=Constraint(kind, source),
                judge=lambda text: False,
                broken=True,
            )


REGEXES: Mapping[str, tuple[str, list[str], list[str]]] = {
    "plain text": ("abc", ["abc"], ["", "ab", "abcd", "xabc", "ABC"]),
    "alternatives": ("cat|dogs?|", ["cat", "dog", "dogs", ""], ["ca", "catdog", "dogss"]),
    "a class": (r"[a-c_0-3]+", ["a", "abc_0123"], ["", "d", "a4", "a-"]),
    "a negated class": (r"[^a-y\s]{2}", ["zz", "é1", "Z!"], ["az", "z", "z z"]),
    "class escapes": (r"[\d\-\]\\]+", ["1-]\\"], ["a", "", "[", "^"]),
    "escaped characters": (r"\(\d+\.\d\*\)\?", ["(12.5*)?"], ["(12x5*)?", "12.5", "(1.5)?"]),
    "digits and words": (r"\d{3}-\w+", ["123-ab_9"], ["12-ab", "1234-a", "123-", "123-a b"]),
    "repetitions": (
        r"(?:ab){2,3}c{1}d{2,}",
        ["ababcdd", "abababcdddd"],
        ["abcdd", "ababcd", "ababababcdd", "ababccdd"],
    ),
    "lazy quantifiers": (r"a+?b*?c??", ["a", "aabbc", "aab"], ["", "b", "abcc"]),
    "a dot": (r"a.c", ["abc", "aéc", "a.c", "a🙂c"], ["ac", "abbc", "a\nc"]),
    "anchors around it": (r"^ab?$", ["a", "ab"], ["", "abb", "b", "ab\n"]),
    "groups": (r"(?P<x>a(b|c(d|e))+)f", ["abf", "acdbf", "acebf"], ["af", "acf", "abg"]),
    "characters of many bytes": (r"[à-ö]+漢?🙂{1,2}", ["éàö🙂", "é漢🙂🙂"], ["e🙂", "é", "🙂", "é漢漢🙂"]),
    "line ends": ("a\\nb\\t?", ["a\nb", "a\nb\t"], ["anb", "a b", "a\n"]),
    "a date": (r"(19|20)\d{2}-(0[1-9]|1[0-2])", ["1999-12", "2024-01"], ["2024-13", "1899-01", "2024-1"]),
    "a look-ahead": (r"(?!ab)[a-c]{2}", ["ba", "cc"], ["ab", "a"]),
    "a back reference": (r"(a|b)\1", ["aa", "bb"], ["ab", "ba", "a"]),
    "a word boundary": (r"a\b.c", ["a c"], ["abc"]),
    "case ignored": (r"(?i)ab", ["ab", "AB", "aB"], ["ac", "a"]),
    "an anchor in the middle": (r"a(^b|c)", ["ac"], ["ab", "a"]),
    "nothing": ("", [""], ["a", " "]),
    "the text of a list of choices": ('["only"]', ["o", '"'], ["", "only", '"only"', "on"]),
    "a long repetition of any characters but one": (
        r'"[^"]{20,150}"',
        [f'"{"a" * 20}"', f'"{"é漢" * 75}"'],
        [f'"{"a" * 19}"', f'"{"漢" * 151}"', f'"{"a" * 30}', '""'],
    ),
    "a long repetition without end": (r"([\w ]{130,}\n?){1,2}", ["a b" * 50], ["a b" * 40, "", "a\n"]),
    "a long repetition of characters of many bytes": (
        r"[a-wà-ö漢]{1,200}x[^\n]{129}",
        ["éx" + "a" * 129, "漢" * 200 + "x" + "🙂" * 129],
        ["x" + "a" * 129, "é" * 201 + "x" + "a" * 129],
    ),
    "repetitions of repetitions": (
        r"((a)*)*(b{1,30}){1,30}((c+)?d){2,3}",
        ["bdd", "aaabbcddccd", "a" + "b" * 40 + "cdd"],
        ["dd", "abd", "bc", "aab"],
    ),
}


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, -len(text) - 1)
        if depth < 0:
            return False
    return depth == 0 and bool(text)


SUM = 'root ::= term (op term)*\nop ::= "+" | "-"  # a comment\nterm ::= [0-9]+ | "(" root ")"\n'
GRAMMARS: Mapping[str, tuple[str, Callable[[str], bool], list[str], list[str]]] = {
    "a literal": ('root ::= "abc"', frozenset({"abc"}).__contains__, ["abc"], ["ab", "abcd", "b"]),
    "rules": (
        'root ::= greeting " " name\ngreeting ::= "hi" | "hello"\nname ::= [A-Z] [a-z]*\n',
        partial(_matches, "(hi|hello) [A-Z][a-z]*"),
        ["hi A", "hello Bob"],
        ["hi", "hi a", "hey A", "hiA"],
    ),
    "repetitions": (
        'root ::= "a"{2} "b"{1,3} "c"{2,} "d"? "e"* ("f" "g")+',
        partial(_matches, "a{2}b{1,3}c{2,}d?e*(fg)+"),
        ["aabccfg", "aabbbcccdeefgfg"],
        ["abccfg", "aabbbbccfg", "aabcfg", "aabccf", "aabcc"],
    ),
    "balanced parentheses": (
        'root ::= pair+\npair ::= "(" pair* ")"\n',
        _is_balanced,
        ["()", "(()())", "()(())"],
        ["", "(", "())", ")("],
    ),
    "nesting that a regular expression cannot count": (
        'root ::= "a" root "b" | "ab"',
        lambda text: bool(text) and text == "a" * (len(text) // 2) + "b" * (len(text) // 2),
        ["ab", "aabb", "aaabbb"],
        ["a", "aab", "abb", "aabbb", "ba"],
    ),
    "recursion on the left": (
        'root ::= root "," item | item\nitem ::= [a-c]\n',
        partial(_matches, "[a-c](,[a-c])*"),
        ["a", "a,b,c"],
        ["", ",a", "a,", "ab"],
    ),
    "words that begin alike": (
        'root ::= item root | "."\nitem ::= "if" | "iffy" | [a-z] "1"*\n',
        partial(_matches, r"(if|iffy|[a-z]1*)*\."),
        [".", "ififfy.", "i1f.", "iffyif11.", "iff."],
        ["if", "1.", "if..", "I.", ""],
    ),
    "sums": (
        SUM,
        lambda text: re.fullmatch(r"[0-9+()-]+", text) is not None and _is_sum(text),
        ["1", "12+3-4", "(1+2)-(3)"],
        ["", "1+", "(1", "+1", "1+(2", "1 + 2"],
    ),
    "escapes and classes": (
        r'root ::= "\"" [^"\\\n]* "\"" "\n" [\]\-x\u00e9]',
        partial(_matches, r'"[^"\\\n]*"\n[\]\-xé]'),
        ['""\nx', '"aé漢"\n]', '"b"\né', '"]"\n-'],
        ['"\n"\nx', '"a"x', '"a"\ny', '"\\"\nx'],
    ),
    "repetitions of repetitions": (
        'root ::= ("a"*)* (("b"+)? "c"){2,3} ([d-f\\u00e9]{1,140}){1,2}',
        partial(_matches, "(a*)*((b+)?c){2,3}[d-fé]{1,280}"),
        ["ccd", "aabccbbcé", "cc" + "dé" * 70],
        ["cd", "accccd", "cc", "cc" + "d" * 281],
    ),
    "an empty branch": (
        'root ::= "a" rest\nrest ::= "" | "b"\n',
        frozenset({"a", "ab"}).__contains__,
        ["a", "ab"],
        ["", "b", "abb"],
    ),
}


def _is_sum(text: str) -> bool:
    while (shorter := re.sub(r"\([0-9]+([+-][0-9]+)*\)", "0", text)) != text:
        text = shorter
    return re.fullmatch(r"[0-9]+([+-][0-9]+)*", text) is not None


CHOICES: Mapping[str, tuple[list[str], list[str]]] = {
    "words": (["yes", "no", "maybe"], ["", "y", "yesno", "yess", "Yes", "may"]),
    "one inside another": (["a", "ab", "abc"], ["", "b", "abcd", "ac"]),
    "one only": (["only"], ["on", "onl", "onlyonly"]),
    "what expressions take for something else": (
        ["a.b", "(x|y)*", '"q"', "\\d", "[a]", "x^2$", "a\nb", "{1,2}", "#c", "/s/", "-", "\t "],
        ["aXb", "x", "q", "5", "a", "x2", "anb", "", "(x|y)", "c", "s"],
    ),
    "characters of many bytes": (["é", "漢字", "🙂🙂"], ["e", "漢", "🙂", "è", ""]),
}

BROKEN: Mapping[ConstraintKind, tuple[str, ...]] = {
    "json_schema": (
        "",
        "{",
        "[]",
        '"a"',
        '{"type": "text"}',
        '{"type": 1}',
        '{"$ref": "#/$defs/a"}',
        "false",
        '{"enum": []}',
        '{"properties": 1}',
        '{"required": "a"}',
        '{"$ref": "#"}',
        '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}',
    ),
    "regex": ("(", "a)", "[a", "*a", "a{2,1}", "[b-a]", "\\"),
    "ebnf": ("", "root", "root ::= ", 'start ::= "a"', 'root ::= "a', "root ::= other", 'root ::= ("a"', "root ::= [a"),
    "choice": ("", "[]", "{}", '"a"', "[1]", '["a", null]', "["),
    "structural_tag": (
        "",
        "{}",
        "[]",
        '{"type": "structural_tag"}',
        '{"type": "structural_tag", "format": {"type": "x"}}',
    ),
}
