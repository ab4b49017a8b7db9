"""Log-probabilities in the shapes that the APIs show them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_plug import Tokenizer, TokenLogprob

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def finite(value: float) -> float:
    """``value``, or the lowest number where it is minus infinity."""
    return value if value > LOWEST else LOWEST


def for_chat(found: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """``choices[].logprobs`` of chat completions."""

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": tokenizer.piece(token),
            "bytes": list(tokenizer.piece_bytes(token)),
            "logprob": None if logprob is None else finite(logprob),
        }

    content = [{**entry(one.token, one.logprob), "top_logprobs": [entry(*other) for other in one.top]} for one in found]
    return {"content": content, "refusal": None}


def for_completion(found: Sequence[TokenLogprob], tokenizer: Tokenizer, top: int, offset: int) -> dict[str, Any]:
    """``choices[].logprobs`` of completions; ``offset`` counts the characters before the first token."""
    pieces = [tokenizer.piece(one.token) for one in found]
    offsets = []
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    return {
        "tokens": pieces,
        "token_logprobs": [None if one.logprob is None else finite(one.logprob) for one in found],
        "top_logprobs": [
            None if one.logprob is None else {tokenizer.piece(token): finite(value) for token, value in one.top}
            for one in found
        ]
        if top
        else None,
        "text_offset": offsets,
    }


Triple = tuple[float | None, int, str | None]
"""Log-probability, token, and its text if that was asked for."""


def triples(found: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> list[Triple]:
    """The tokens' own, for ``/generate``; texts if there is a ``tokenizer``."""
    return [_triple(one.logprob, one.token, tokenizer) for one in found]


def alternatives(found: Sequence[TokenLogprob], tokenizer: Tokenizer | None, of: str) -> list[list[Triple] | None]:
    """The most likely tokens (``of="top"``) or the chosen ones (``of="ids"``) at each position, for ``/generate``."""
    return [
        None if one.logprob is None else [_triple(value, token, tokenizer) for token, value in getattr(one, of)]
        for one in found
    ]


def _triple(logprob: float | None, token: int, tokenizer: Tokenizer | None) -> Triple:
    return (None if logprob is None else finite(logprob), token, None if tokenizer is None else tokenizer.piece(token))
