"""The first line of a docstring is a sentence that stands alone."""

from __future__ import annotations

import pytest

from tests.policy.source_tree import Source, docstring_faults, first_line_fault


def test_the_first_line_of_a_docstring_stands_alone(
    sources: list[Source], plugin_sources: list[Source], scripts: list[Source]
) -> None:
    assert docstring_faults([*sources, *plugin_sources, *scripts]) == []


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("Return the number of tokens.", None),
        ("``None`` if there is no limit.", None),
        ("Somewhat long.\n\nWhat follows is free.", None),
        ("A sentence over\ntwo lines.", None),
        ("", "is empty"),
        ("What states fade by.", "starts with 'what'"),
        ("whose tokens these are.", "starts with 'whose'"),
        ("It ends.", "starts with 'it'"),
        ("With default options.", "starts with 'with'"),
        ("With default options, return the text.", None),
        ("Cosine.", "has one word"),
        ("``text``.", None),
        ("GPT-2.", None),
        ("All of it.", "does not name what it refers to"),
        ("Return the blocks, and what refers to them.", None),
        ("Return the number of tokens", "has no punctuation at its end"),
    ],
)
def test_a_line_that_does_not_stand_alone_is_found(docstring: str, fault: str | None) -> None:
    assert first_line_fault(docstring) == fault
