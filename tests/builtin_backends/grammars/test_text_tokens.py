from __future__ import annotations

from sglang_plug import Vocabulary
from sglang_plug_backends.grammars.text_tokens import mask_of, text_mask


def test_bits_stand_where_the_contract_says() -> None:
    assert mask_of([0, 31, 33, 64], 65).tolist() == [-(1 << 31) + 1, 2, 1]
    assert mask_of([0, 64, 99], 64).tolist() == [1, 0]
    assert mask_of([], 1).tolist() == [0]


def test_special_tokens_are_no_text() -> None:
    assert text_mask(Vocabulary([b"a", b"", b"b"])).tolist() == [5]
