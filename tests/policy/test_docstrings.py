"""The first line of a docstring is a sentence that stands alone."""

from __future__ import annotations

import pytest

from tests.policy.source_tree import Source, first_line_fault

RATCHET: dict[str, int] = {}
"""Docstrings of each folder whose first line does not stand alone yet; a number may only fall, others are zero."""


def test_the_first_line_of_a_docstring_stands_alone(sources: list[Source]) -> None:
    faults: dict[str, list[str]] = {}
    for source in sources:
        if source.package in ("core", "api"):
            for name, line, text in source.docstrings():
                if (fault := first_line_fault(text)) is not None:
                    folder = "/".join(source.path.parts[: min(3, len(source.path.parts) - 1)])
                    faults.setdefault(folder, []).append(f"{source.path}:{line} the docstring of {name} {fault}")
    risen = [line for folder, lines in sorted(faults.items()) if len(lines) > RATCHET.get(folder, 0) for line in lines]
    assert risen == []


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ("Return the number of tokens.", None),
        ("``None`` if there is no limit.", None),
        ("Somewhat long.\n\nWhat follows is free.", None),
        ("A sentence over\ntwo lines.", None),
        ("", "is empty"),
        ("What states fade by.", "starts with 'What'"),
        ("whose tokens these are.", "starts with 'whose'"),
        ("It ends.", "starts with 'It'"),
        ("Return the number of tokens", "has no punctuation at its end"),
    ],
)
def test_a_line_that_does_not_stand_alone_is_found(docstring: str, fault: str | None) -> None:
    assert first_line_fault(docstring) == fault
