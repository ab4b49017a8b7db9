"""Tests of regular expressions as stop conditions: the end of the first match, in time linear in the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_plug_api.stops.automaton import MAX_STATES, automaton_of
from sglang_plug_api.stops.stop_regex import PatternMatcher, StopPatterns

PATTERNS = (
    r"abc", r"a|bc|d", r"a+b", r"a*?b", r"[a-c]{2,3}x", r"\d{3}-\d{4}", r"[^a]b", r"(?:ab)+c", r"(?i)hello", r"x.y",
    r"(?s)x.y", r"^ab", r"(?m)^ab", r"\w+\s\S", r"[\W\d]{2}", r"(a?){3}b", r"((a|b)*c){2}", r"é+ü", r"\Aab", r"a{0}b",
    r"(?i:AB)c", r"[^\n\d]z", r"(?P<name>q)u", r"(?:a|b|)c", r"\.\*\\", r"(?i)[a-c]D",
)  # fmt: skip


def first_end(pattern: str, text: str) -> int | None:
    """Return the offset at which the earliest match ends, found by trying every prefix."""
    return next((end for end in range(1, len(text) + 1) if re.search(pattern, text[:end])), None)


def matched(patterns: list[str], text: str, size: int = 1) -> tuple[int | None, str | None]:
    """Return the end of the first match if the text arrives in parts of ``size`` characters, and what matched."""
    matcher = PatternMatcher(StopPatterns(patterns))
    for start in range(0, len(text), size):
        if (end := matcher.feed(text[start : start + size])) is not None:
            return start + end, matcher.matched
    return None, matcher.matched


@given(
    pattern=st.sampled_from(PATTERNS),
    text=st.text(st.sampled_from("abcdxyzqu 0159-\nABChelo.*\\éü"), max_size=30),
    size=st.integers(1, 7),
)
@example(pattern=r"(?m)^ab", text="x\nab", size=1)
@example(pattern=r"\d{3}-\d{4}", text="call 555-0159 now", size=3)
def test_the_first_match_is_that_of_the_standard_library(pattern: str, text: str, size: int) -> None:
    end = first_end(pattern, text)
    assert matched([pattern], text, size) == (end, None if end is None else pattern)


def test_of_several_patterns_the_first_to_match_ends_the_text() -> None:
    assert matched(["world", "lo w"], "hello world") == (7, "lo w")
    assert matched(["b", "ab"], "ab") == (2, "b")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not a regular expression: missing"),
        ("a*", "matches the empty text"),
        ("^", "matches the empty text"),
        ("a$", "uses an end or a border"),
        (r"\bx", "uses an end or a border"),
        ("(?=a)b", "uses a look around"),
        ("(?<!a)b", "uses a look around"),
        (r"(a)\1", "uses a reference to a group"),
        ("(?>a+)b", "uses an atomic group"),
        ("a++b", "uses a possessive repetition"),
        ("a{513}", f"more than {MAX_STATES} states"),
        ("((a{9}){9}){9}b", f"more than {MAX_STATES} states"),
        ("a{4294967296}", "is not a regular expression"),
        ("(){99999999}a{600}", f"more than {MAX_STATES} states"),
        ("(" * 120 + "a", "is not a regular expression"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        StopPatterns([pattern])


def test_many_patterns_share_the_limit() -> None:
    with pytest.raises(ValueError, match="all patterns together"):
        automaton_of(["a" * 250] * 32)
    assert len(automaton_of(["a" * 15] * 32).states) <= MAX_STATES


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*x", "([ab]*a[ab]{90}){2}c", "(a?){60}a{60}b"]
)
def test_patterns_that_backtrack_for_ever_elsewhere_are_searched_once(pattern: str) -> None:
    """Patterns for which backtracking takes exponential time are searched in linear time."""
    assert matched([pattern], "ab"[0] * 3000, 5) == (None, None)
