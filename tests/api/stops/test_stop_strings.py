"""Tests of stop strings: the output does not depend on how the text is split."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_api.stops.stop_strings import StopMatcher, overlap

SHORT_TEXT = st.text("ab ", max_size=12)
STOPS = st.lists(st.text("ab ", min_size=1, max_size=4), max_size=4)


def feed(matcher: StopMatcher, pieces: list[str]) -> str:
    """Feed ``pieces`` to the matcher, and return its output."""
    output = ""
    for piece in pieces:
        output += matcher.feed(piece)
        if matcher.matched is not None:
            return output
    return output + matcher.flush()


def expected(text: str, stops: list[str], keep: bool) -> tuple[str, str | None]:
    """Cut the text at the stop string that ends first; of several, at the one that begins first."""
    for end in range(1, len(text) + 1):
        matches = [(text[:end].find(stop), stop) for stop in stops if stop in text[:end]]
        if matches:
            offset, stop = min(matches, key=lambda match: (match[0], -len(match[1])))
            return text[: offset + len(stop) if keep else offset], stop
    return text, None


@given(text=SHORT_TEXT, stops=STOPS, keep=st.booleans())
def test_one_character_at_a_time(text: str, stops: list[str], keep: bool) -> None:
    matcher = StopMatcher(stops, keep=keep)
    assert (feed(matcher, list(text)), matcher.matched) == expected(text, stops, keep)


@given(text=SHORT_TEXT, stops=STOPS, cuts=st.lists(st.integers(0, 12)))
def test_nothing_is_lost_or_repeated_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    offsets = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(offsets)]
    matcher = StopMatcher(stops)
    output = feed(matcher, pieces)
    assert text.startswith(output)
    if matcher.matched is None:
        assert output == text
        assert not any(stop in text for stop in stops)
    else:
        assert text[len(output) :].startswith(matcher.matched)
        assert not any(stop in output for stop in stops)


def expected_after(text: str, stops: list[str], early: int) -> str:
    """Cut the text at the stop string that ends first after the first ``early`` characters."""
    for end in range(early + 1, len(text) + 1):
        if complete := [end - len(stop) for stop in stops if text[:end].endswith(stop)]:
            return text[: min(complete)]
    return text


@given(text=SHORT_TEXT, stops=STOPS, early=st.integers(0, 12))
def test_stop_strings_count_that_end_behind_what_is_too_early(text: str, stops: list[str], early: int) -> None:
    matcher, output = StopMatcher(stops), ""
    for index, character in enumerate(text):
        output += matcher.feed(character, too_early=index < early)
        if matcher.matched is not None:
            break
    else:
        output += matcher.flush()
    assert output == expected_after(text, stops, early)


def test_only_what_may_be_a_beginning_is_held_back() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.feed("an EN") == "an "
    assert matcher.feed("GLISH E") == "ENGLISH "
    assert matcher.feed("N") == ""
    assert matcher.flush() == "EN"
    assert matcher.matched is None


def test_the_first_match_wins_then_the_longest() -> None:
    matcher = StopMatcher(["b", "bc", "ab"])
    assert matcher.feed("xabc") == "x"
    assert matcher.matched == "ab"
    matcher = StopMatcher(["b", "bc"])
    assert matcher.feed("abcd") == "a"
    assert matcher.matched == "bc"


@pytest.mark.parametrize(("keep", "text"), [(False, "one"), (True, "one.")])
def test_keep(keep: bool, text: str) -> None:
    matcher = StopMatcher(["."], keep=keep)
    assert matcher.feed("one. two.") == text
    assert matcher.flush() == ""


def test_without_stops_everything_passes() -> None:
    matcher = StopMatcher([])
    assert matcher.feed("anything") == "anything"
    assert matcher.flush() == ""


@given(stop=st.text("ab", min_size=1, max_size=6), pieces=st.lists(st.text("ab", max_size=8)))
def test_the_overlap_is_the_longest_beginning_of_the_stop_string_at_the_end(stop: str, pieces: list[str]) -> None:
    text, length = "", 0
    for piece in pieces:
        text += piece
        if stop in text:
            return
        length = overlap(stop, piece, length)
        assert length == max(size for size in range(len(stop)) if text.endswith(stop[:size]))


class Compared(str):
    """A text that counts how many of its characters are read."""

    read = 0

    def __getitem__(self, key: Any) -> str:
        Compared.read += 1
        return str.__getitem__(self, key)


def test_each_character_is_compared_about_twice_however_the_stop_string_repeats_itself() -> None:
    stop = Compared("a" * 1000 + "b")
    length = 0
    for _ in range(2000):
        length = overlap(stop, "a", length)
    assert length == 1000 and Compared.read < 10_000
