from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor
from transformers import MptConfig, MptModel
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from sglang_plug.testing import check_model


def mpt(*, attention: dict[str, Any] | None = None, **changes: Any) -> tuple[str, MptConfig]:
    fields: dict[str, Any] = {
        "vocab_size": 96,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "max_seq_len": 128,
        "attn_config": attention or {},
    }
    return "MptForCausalLM", MptConfig(**fields | changes)


CASES = {
    "mpt 7b": mpt(),
    "mpt, number of heads not a power of two": mpt(n_heads=6, d_model=48),
    "mpt, clip_qkv": mpt(attention={"clip_qkv": 0.5}),
    "mpt, softmax_scale=0.2": mpt(attention={"softmax_scale": 0.2}),
    "mpt, untied": mpt(tie_word_embeddings=False),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def test_alibi_bias_max_of_the_checkpoint_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers reads ``alibi_bias_max`` from the configuration, but does not use it."""

    def steep(self: Any, heads: int, length: int, alibi_bias_max: int = 8, device: Any = None) -> Tensor:
        return build_mpt_alibi_tensor(heads, length, 4, device)

    steeper = mpt(attention={"alibi_bias_max": 4})
    with pytest.raises(AssertionError, match="Mpt fails"):
        check_model(*steeper)
    monkeypatch.setattr(MptModel, "build_mpt_alibi_tensor", steep)
    check_model(*steeper)
