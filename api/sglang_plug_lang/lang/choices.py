"""Replacement for ``sglang.lang.choices``."""

from __future__ import annotations

from sglang_plug_lang.choices import ChoicesMethod as ChoicesSamplingMethod
from sglang_plug_lang.choices import Decision as ChoicesDecision
from sglang_plug_lang.choices import (
    GreedyTokenSelection,
    TokenLengthNormalized,
    UnconditionalLikelihoodNormalized,
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)

__all__ = [
    "ChoicesDecision",
    "ChoicesSamplingMethod",
    "GreedyTokenSelection",
    "TokenLengthNormalized",
    "UnconditionalLikelihoodNormalized",
    "greedy_token_selection",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
]
