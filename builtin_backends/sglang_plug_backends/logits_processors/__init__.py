"""Logits processors that every server has: allowed tokens, biases, penalties, and a minimum length of outputs."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import LogitsProcessorSpec, hookimpl


@hookimpl
def register_logits_processors() -> Iterator[LogitsProcessorSpec]:
    yield LogitsProcessorSpec(
        name="allowed-tokens",
        target=f"{__name__}.allowed_tokens:AllowedTokens",
        request_fields=f"{__name__}.fields:AllowedTokensFields",
        order=50,
        summary="forbids all tokens but those of allowed_token_ids",
    )
    yield LogitsProcessorSpec(
        name="logit-bias",
        target=f"{__name__}.bias:LogitBias",
        sampling_params=("logit_bias",),
        order=100,
        summary="adds biases to the logits of single tokens",
    )
    yield LogitsProcessorSpec(
        name="penalties",
        target=f"{__name__}.penalties:Penalties",
        sampling_params=("repetition_penalty", "frequency_penalty", "presence_penalty"),
        order=200,
        summary="frequency, presence and repetition penalties",
    )
    yield LogitsProcessorSpec(
        name="min-new-tokens",
        target=f"{__name__}.min_new_tokens:MinNewTokens",
        sampling_params=("min_new_tokens",),
        order=900,
        summary="forbids stop tokens until an output has min_new_tokens tokens",
    )
