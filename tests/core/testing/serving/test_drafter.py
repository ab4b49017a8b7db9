from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from sglang_plug import Drafter, PluginError, SequenceDrafter
from sglang_plug.testing import check_drafter


class Repeating(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return [tokens[-1]] * max_draft_tokens


class TooMuch(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return [tokens[-1]] * (max_draft_tokens + 1)


class NoToken(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return [tokens[-1] + 1]


class Taking(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        assert isinstance(tokens, list)
        tokens.pop()
        return []


class Failing(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return []

    def end(self, tokens: Sequence[int]) -> None:
        raise LookupError("no end")


class Negative(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return [-1]


class Fraction(SequenceDrafter):
    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Any:
        return [sum(tokens) / 7]


class Short(SequenceDrafter):
    """Fails for outputs of fewer than three tokens."""

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        return [tokens[2]]


class Learned(SequenceDrafter):
    """Drafts from the tokens of all sequences, also those of other tenants."""

    def __init__(self, following: dict[int, int], last: int) -> None:
        self.following, self.last = following, last

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        for token in tokens:
            self.following[self.last], self.last = token, token
        proposed, token = list[int](), self.last
        while len(proposed) < max_draft_tokens and (token := self.following.get(token, -1)) >= 0:
            proposed.append(token)
        return proposed


class ForgetsSalts(Drafter):
    def __init__(self) -> None:
        self.following: dict[int, int] = {}

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Learned(self.following, prompt[-1] if prompt else -1)


class KeepsSalts(Drafter):
    def __init__(self) -> None:
        self.following: dict[str, dict[int, int]] = {}

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Learned(self.following.setdefault(salt, {}), prompt[-1] if prompt else -1)


class Following(SequenceDrafter):
    """Proposes the token that followed the last occurrence of the last token in the sequence."""

    def __init__(self, positions: dict[int, int]) -> None:
        self.tokens, self.positions = list[int](), positions

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        for token in tokens:
            if self.tokens:
                self.positions[self.tokens[-1]] = len(self.tokens)
            self.tokens.append(token)
        position = self.positions.get(self.tokens[-1])
        return [] if position is None else self.tokens[position : position + max_draft_tokens]


class Copying(Following):
    """Copies the whole sequence for each token, which takes quadratic time."""

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        self.tokens = [*self.tokens]
        return super().propose(tokens, max_draft_tokens)


class SharesPositions(Drafter):
    """Keeps the positions of tokens in a dictionary that all sequences share."""

    positions: ClassVar[dict[int, int]] = {}

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Following(self.positions)


class KeepsPositions(Drafter):
    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Following({})


class CopiesTheSequence(Drafter):
    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Copying({})


class NeedsAPrompt(Drafter):
    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        return Repeating() if prompt[0] >= 0 else Repeating()


def making(kind: type[SequenceDrafter]) -> type[Drafter]:
    class One(Drafter):
        def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
            return kind()

    return One


@pytest.mark.parametrize("drafter", [making(Repeating), KeepsSalts, KeepsPositions])
def test_one_that_keeps_its_contract_passes(drafter: type[Drafter]) -> None:
    check_drafter(drafter)


class ReadsEveryBeginning(Drafter):
    """Slices every prefix of a prompt, which takes quadratic time."""

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        self.longest = max((len(prompt[:end]) for end in range(len(prompt))), default=0)
        return Repeating()


@pytest.mark.planted_bug("drafter")
@pytest.mark.parametrize(
    ("drafter", "problem"),
    [
        (ForgetsSalts, "which only a sequence with the salt 'owner' has had"),
        (SharesPositions, "they share what belongs to one of them"),
        (CopiesTheSequence, r"propose\(\) of the tokens of an output of random tokens: time grows with the power"),
        (NeedsAPrompt, r"without a prompt: begin\(\) raised IndexError"),
        (ReadsEveryBeginning, r"begin\(\) of a prompt of random tokens: time grows with the power"),
    ],
)
def test_drafters_that_confuse_sequences_are_told(drafter: type[Drafter], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_drafter(drafter)


@pytest.mark.planted_bug("drafter")
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (TooMuch, r"one token again and again, after 1 tokens of output: proposed \d+ tokens where at most \d+"),
        (NoToken, "proposed 300, which is no token of a vocabulary of 300"),
        (Taking, "the tokens that were given have been changed"),
        (Failing, r"end\(\) raised LookupError: no end"),
        (lambda: None, "begin.. returned NoneType, not a SequenceDrafter"),
        (Negative, "proposed -1, which is no token"),
        (Fraction, "which is no token of a vocabulary of 300"),
        (Short, r"propose\(\) raised IndexError"),
    ],
)
def test_one_that_does_not_is_told_what_was_wrong(kind: type[SequenceDrafter], problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        check_drafter(making(kind))


def test_a_name_that_nobody_declares_is_an_error() -> None:
    with pytest.raises(PluginError, match="no drafter named 'oracle'"):
        check_drafter("oracle")
