"""Token masks on logits, from one step extension and from several."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import AllowedTokens, PendingMask, Request, RequestError
from sglang_plug.engine.sampling.masks import NOTHING_IN_COMMON, apply_mask, begin_masks
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.grammars.token_mask import word_and_bit

WIDTH = 70


def test_logits_beyond_the_mask_are_never_allowed() -> None:
    mask = torch.full((1, 1), -1, dtype=torch.int32)
    assert apply_mask(AllowedTokens([0], mask), torch.zeros(1, 40))[0].isfinite().sum() == 32
    logits = apply_mask(AllowedTokens([1], mask), torch.zeros(2, 40))
    assert logits.isfinite().sum(-1).tolist() == [40, 32]


class Filled:
    """A mask that is complete; ``tokens`` are those allowed in each row."""

    def __init__(self, tokens: dict[int, set[int]], errors: dict[int, str] | None = None, words: int = 3) -> None:
        mask = torch.zeros(len(tokens), words, dtype=torch.int32)
        for index, row in enumerate(sorted(tokens)):
            for token in tokens[row]:
                word, bit = word_and_bit(token)
                mask[index, word] |= bit
        refusals = {row: RequestError(text) for row, text in (errors or {}).items()}
        self.allowed = AllowedTokens(sorted(tokens), mask, refusals)

    def result(self) -> AllowedTokens:
        return self.allowed


def begun(*masks: Filled | None, rows: int = 4) -> PendingMask | None:
    def begin(mask: Filled | None) -> Any:
        def allowed(sequences: Ordered[Sequence], *, asynchronous: bool) -> PendingMask | None:
            assert len(sequences) == rows and asynchronous
            return mask

        return allowed

    sequences = [Sequence.of(Request(id=str(row), tokens=(1,)), 9) for row in range(rows)]
    return begin_masks([begin(mask) for mask in masks], sequences, asynchronous=True)


def test_steps_that_nobody_limits_have_no_mask() -> None:
    assert begun(None, None) is None and begun() is None


def test_the_mask_of_one_extension_is_used_as_it_is() -> None:
    mask = Filled({1: {5}})
    assert begun(None, mask) is mask


TOKENS = st.sets(st.integers(0, 63), min_size=1)


@given(st.dictionaries(st.integers(0, 3), TOKENS), st.dictionaries(st.integers(0, 3), TOKENS), st.integers(2, 3))
def test_several_extensions_allow_what_all_of_them_allow(
    first: dict[int, set[int]], second: dict[int, set[int]], words: int
) -> None:
    pending = begun(Filled(first), Filled(second, words=words))
    assert pending is not None
    mask = pending.result()
    logits = apply_mask(mask, torch.zeros(4, WIDTH))
    for row in range(4):
        allowed = set(logits[row].isfinite().nonzero()[:, 0].tolist())
        assert allowed == first.get(row, set(range(WIDTH))) & second.get(row, set(range(WIDTH)))
        assert (str(mask.errors.get(row, "")) == NOTHING_IN_COMMON) == (not allowed)


def test_errors_of_all_extensions_are_kept() -> None:
    pending = begun(Filled({0: set(), 1: {5}}, {0: "no"}), Filled({0: {5}, 2: set()}, {2: "neither"}))
    assert pending is not None
    assert {row: str(error) for row, error in pending.result().errors.items()} == {0: "no", 2: "neither"}
