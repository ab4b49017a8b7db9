from __future__ import annotations

import pytest

from sglang_plug_api.contract.signatures import breaks_calls, breaks_implementations, differs_in_types

CALLS = [
    ("(self, a)", "(self, a)", ""),
    ("(self, a)", "(self, a, b=1)", ""),
    ("(self, a)", "(self, a, *, b=1)", ""),
    ("(self, *, a)", "(self, a)", ""),
    ("(self, a=1)", "(self, a=2)", ""),
    ("(a: int)", "(a: str)", ""),
    ("(self, a)", "(self, a, *rest, **more)", ""),
    ("(self, a)", "(self)", "no 'a'"),
    ("(self, a)", "(self, other)", "no 'a'"),
    ("(self, a)", "(self, a, b)", "new required 'b'"),
    ("(self, a)", "(self, a, *, b)", "new required 'b'"),
    ("(self, a)", "(self, *, a)", "'a' is passed by name only"),
    ("(self, a)", "(self, a, /)", "'a' is passed by position only"),
    ("(self, a=1)", "(self, a)", "'a' has no default"),
    ("(self, a, b)", "(self, b, a)", "'a' has another position"),
    ("(self, a)", "(self, new=1, a=2)", "'a' has another position"),
    ("(self, *rest)", "(self)", "no '*rest'"),
    ("(self, **more)", "(self)", "no '**more'"),
]
IMPLEMENTATIONS = [
    ("(self, a: int)", "(self, a: str=1)", ""),
    ("(self, a)", "(self, a, b=1)", "new 'b'"),
    ("(self, a, b)", "(self, a)", "no 'b'"),
    ("(self, a)", "(self, c)", "new 'c'; no 'a'"),
    ("(self, a, b)", "(self, b, a)", "parameters are passed in another way"),
    ("(self, a)", "(self, *, a)", "parameters are passed in another way"),
]


@pytest.mark.parametrize(("before", "after", "reason"), CALLS)
def test_calls_that_no_longer_work(before: str, after: str, reason: str) -> None:
    assert breaks_calls(before, after) == reason


@pytest.mark.parametrize(("before", "after", "reason"), IMPLEMENTATIONS)
def test_implementations_that_no_longer_work(before: str, after: str, reason: str) -> None:
    assert breaks_implementations(before, after) == reason


def test_types_are_compared_by_name() -> None:
    assert differs_in_types("(a: int)", "(a: str)")
    assert differs_in_types("(a) -> int", "(a) -> str")
    assert not differs_in_types("(a: int) -> int", "(b: str, a: int) -> int")
