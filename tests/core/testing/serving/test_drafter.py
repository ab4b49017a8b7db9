from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_plug import Drafter, PluginError, SequenceDrafter
from sglang_plug.testing import check_drafter


class Repeating(SequenceDrafter):
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return [tokens[-1]] * most


class TooMuch(SequenceDrafter):
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return [tokens[-1]] * (most + 1)


class NoToken(SequenceDrafter):
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return [tokens[-1] + 1]


class Taking(SequenceDrafter):
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        assert isinstance(tokens, list)
        tokens.pop()
        return []


class Failing(SequenceDrafter):
    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        return []

    def end(self, tokens: Sequence[int]) -> None:
        raise LookupError("no end")


def making(kind: type[SequenceDrafter]) -> type[Drafter]:
    class One(Drafter):
        def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
            return kind()

    return One


def test_one_that_keeps_its_contract_passes() -> None:
    check_drafter(making(Repeating))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (TooMuch, r"one token again and again, after 1 tokens of output: proposed \d+ tokens where at most \d+"),
        (NoToken, "proposed 300, which is no token of a vocabulary of 300"),
        (Taking, "the tokens that were given have been changed"),
        (Failing, r"end\(\) raised LookupError: no end"),
        (lambda: None, "begin.. gave NoneType, not a SequenceDrafter"),
    ],
)
def test_one_that_does_not_is_told_what_was_wrong(kind: type[SequenceDrafter], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_drafter(making(kind))


def test_a_name_that_nobody_declares_is_an_error() -> None:
    with pytest.raises(PluginError, match="no drafter named 'oracle'"):
        check_drafter("oracle")
