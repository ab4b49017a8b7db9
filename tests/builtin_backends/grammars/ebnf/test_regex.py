"""Regular expressions match like ``re.fullmatch``, and are refused where dialects disagree."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from sglang_plug_backends.grammars.ebnf.regex import pattern_to_ebnf, regex_to_ebnf
from sglang_plug_backends.grammars.refusal import Refusal

POINTS = [chr(index) for index in [*range(0x180), 0x2028, 0x3000, 0xFEFF, 0xD7FF, 0xE000, 0x1F600]]
UNWRITTEN = {"outlines": "\0"}
"""Characters that a backend never generates."""
ONE_CHARACTER = [
    "a", ".", "[abc]", "[^abc]", r"[\^a]", "[a^]", "[a-]", "[-a]", r"[a\-z]", r"[a\]]", r"\.", r"\\", r"[\\]", r"\/",
    r"\-",
    r"\d", r"\D", r"\w", r"\W", r"[\d_]", r"[^\w]", r"\x41", r"\u00e9", "[à-é]", r"[\x41-\x43]", r"\n", r"\t", r"\0",
    r"[\s\S]", "a|b", "(a|b)", "(?:a)", "(?P<x>a)", "(?<x>a)", "^a$", "^a|b$", "a{1}", "a{1,1}", "é", "]", "}",
    '"', "#",
]  # fmt: skip


def points(backend: Any) -> list[str]:
    return [point for point in POINTS if point not in UNWRITTEN.get(backend.name, "")]


@pytest.mark.parametrize("pattern", ONE_CHARACTER)
def test_every_character_is_judged_as_by_python(backend: Any, pattern: str) -> None:
    if pattern == r"\0" and backend.name in UNWRITTEN:
        pytest.skip("never written")
    compiled = backend("regex", pattern)
    meant = [re.compile(pattern.replace("(?<x>", "(?P<x>"), flags) for flags in (re.ASCII, re.NOFLAG)]
    disputed = "\r\u2028\u2029" if pattern == "." else ""  # the dot of ECMAScript stops at these too
    for point in points(backend):
        matches = {expression.fullmatch(point) is not None for expression in meant}
        if compiled.accepts(point):
            assert matches == {True} and point not in disputed
        elif point.isascii() and point not in disputed:
            assert False in matches, point


def test_white_space_is_what_both_dialects_take_for_it(backend: Any) -> None:
    blank, other, none = (backend("regex", item) for item in (r"\s", r"\S", r"[^\s]"))
    for point in points(backend):
        assert blank.accepts(point) == (point in "\t\n\v\f\r \u00a0\u2028\u3000")
        assert (
            other.accepts(point)
            == none.accepts(point)
            == (not blank.accepts(point) and not point.isspace() and point != "\ufeff")
        )


@pytest.mark.parametrize(
    "pattern",
    ["", "|a", "(ab|c)*d+", "a{2,3}", "a{2,}b", "(a{0,2}b?){2}", "a*?b+?c??", "(?:x(y(z)?)?)?", "[0-9]{3}-[0-9]{4}",
     "(a|ab)(c|bcd)"],
)  # fmt: skip
def test_sampled_texts_match(backend: Any, pattern: str) -> None:
    texts = list(backend("regex", pattern).random_outputs(30))
    assert texts
    for text in texts:
        assert re.fullmatch(pattern, text.decode(), re.ASCII)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("a(?=b)", "lookarounds"),
        ("(?i)a", "lookarounds and inline flags"),
        (r"\bfoo", r"escape \b"),
        (r"\p{L}", r"escape \p"),
        (r"(a)\1", r"escape \1"),
        (r"\07", "escape"),
        (r"\A", "escape"),
        ("a\\", "escape"),
        ("a^b", "anchor"),
        ("a$b", "anchor"),
        ("(^a)", "anchor"),
        ("*a", "nothing to repeat"),
        ("a**", "quantifier after"),
        ("a{2}{3}", "quantifier after"),
        ("a{,3}", "plain '{'"),
        ("{", "plain '{'"),
        ("a{3,1}", "out of order"),
        ("a{1000000}", "out of order or over"),
        ("(", "missing ')'"),
        (")", "unbalanced"),
        ("[a", "missing ']'"),
        ("[]a]", "a ']' at the start"),
        ("[^]", "a ']' at the start"),
        ("[[:alpha:]]", "'[' in a class"),
        ("[z-a]", "out of order"),
        (r"[\d-a]", "out of order"),
        (r"[^\s\S]", "nothing can be written"),
        (r"\ud800", "surrogate"),
        ("(" * 65 + "a" + ")" * 65, "64 nested"),
        ("(" * 30_000 + "a" + ")" * 30_000, "at most 8192 characters"),
    ],
)
def test_unsupported_expressions_are_refused(backend: Any, pattern: str, words: str) -> None:
    assert words in backend.refusal("regex", pattern)


def test_patterns_of_json_strings_are_searched_for() -> None:
    anything = "*"
    assert pattern_to_ebnf("^ab$") == '"a" "b"'
    assert pattern_to_ebnf("ab").startswith("[") and pattern_to_ebnf("ab").endswith(anything)
    assert pattern_to_ebnf("^a").startswith('"a" [') and not pattern_to_ebnf("a$").endswith(anything)
    assert pattern_to_ebnf('^"$') == '"\\u005c\\u0022"'
    with pytest.raises(Refusal, match="nothing can be written"):
        pattern_to_ebnf(r"^[\x00-\x1f]$")


PARTS = st.sampled_from(
    ["a", "b", "ab", "[ab]", "[^a]", "(a|b)", "(a|)", r"\d", "a?", "b*", "a{1,2}", "(ab)+", "|", ".", "c"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, max_size=5).map("".join), st.lists(st.text("abc1\n", max_size=5), min_size=1, max_size=8))
def test_any_text_is_judged_as_by_python(backend: Any, pattern: str, texts: list[str]) -> None:
    assume("\r" not in pattern)
    regex_to_ebnf(pattern)
    compiled = backend("regex", pattern)
    for text in texts:
        assert compiled.accepts(text) == (re.fullmatch(pattern, text, re.ASCII) is not None), text
