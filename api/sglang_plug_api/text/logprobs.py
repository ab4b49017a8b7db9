"""Log-probabilities in the formats of the HTTP APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_plug import Tokenizer, TokenLogprob

LOWEST = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


def finite(value: float) -> float:
    """Return ``value``, or ``LOWEST`` for minus infinity."""
    return value if value > LOWEST else LOWEST


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, top: int | None = None) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of chat completions, with the ``top`` likeliest tokens or all that are known."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": tokenizer.piece(token),
            "bytes": list(tokenizer.piece_bytes(token)),
            "logprob": None if logprob is None else finite(logprob),
        }

    content = [
        {**entry(item.token, item.logprob), "top_logprobs": [entry(*other) for other in item.top[:top]]}
        for item in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, top: int, offset: int
) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of completions; ``offset`` counts the characters before the first token."""
    pieces = [tokenizer.piece(item.token) for item in logprobs]
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": pieces,
        "token_logprobs": [None if item.logprob is None else finite(item.logprob) for item in logprobs],
        "top_logprobs": [
            None if item.logprob is None else {tokenizer.piece(token): finite(value) for token, value in item.top[:top]}
            for item in logprobs
        ]
        if top
        else None,
        "text_offset": offsets,
    }


Triple = tuple[float | None, int, str | None]
"""Log-probability, token, and the token's text if it was asked for."""


def token_triples(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> list[Triple]:
    """Return the triples of the tokens themselves, for ``/generate``; with texts if there is a ``tokenizer``."""
    return [_triple(item.logprob, item.token, tokenizer) for item in logprobs]


def alternative_triples(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None, field: str
) -> list[list[Triple] | None]:
    """Return the triples of the likeliest (``"top"``) or chosen (``"ids"``) tokens per position, for ``/generate``."""
    return [
        None if item.logprob is None else [_triple(value, token, tokenizer) for token, value in getattr(item, field)]
        for item in logprobs
    ]


def _triple(logprob: float | None, token: int, tokenizer: Tokenizer | None) -> Triple:
    return (None if logprob is None else finite(logprob), token, None if tokenizer is None else tokenizer.piece(token))
