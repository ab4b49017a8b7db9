"""Log-probabilities in the formats of the HTTP APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sglang_plug import Tokenizer, TokenLogprob
from sglang_plug_api.answers.large_json import LargeList

LOWEST = -9999.0
"""Replaces minus infinity, which JSON cannot express."""


def finite(value: float) -> float:
    """Return ``value``, or ``LOWEST`` for minus infinity."""
    return value if value > LOWEST else LOWEST


def chat_logprobs(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, top: int | None = None) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of chat completions, with the ``top`` likeliest tokens or all that are known."""
    return {"content": logprob_list(logprobs, chat_logprob_entry(tokenizer, top)), "refusal": None}


def chat_logprob_entry(tokenizer: Tokenizer, top: int | None = None) -> Callable[[TokenLogprob], dict[str, Any]]:
    """Return a function that returns the entry of one position in ``chat_logprobs``."""
    texts: dict[int, tuple[str, list[int]]] = {}

    def entry(token: int, logprob: float | None) -> dict[str, Any]:
        if token not in texts:
            texts[token] = tokenizer.piece(token), list(tokenizer.piece_bytes(token))
        text, characters = texts[token]
        return {"token": text, "bytes": characters, "logprob": None if logprob is None else finite(logprob)}

    def position(item: TokenLogprob) -> dict[str, Any]:
        return {**entry(item.token, item.logprob), "top_logprobs": [entry(*other) for other in item.top[:top]]}

    return position


def logprob_list(logprobs: Sequence[TokenLogprob], entry: Callable[[TokenLogprob], Any]) -> LargeList:
    """Return a list with an entry for each position, which is long where there are many alternatives."""
    alternatives = len(logprobs[-1].top) + len(logprobs[-1].ids) if logprobs else 0
    return LargeList(logprobs, entry, 1 + alternatives)


class TextOffsets:
    """The offset in a completion's text at which each of its tokens begins.

    It does not depend on how the text is divided into pieces. Special tokens that are left out have no characters, and
    the parts of a character begin where it does.

    Args:
        tokenizer: decodes the tokens.
        prompt: tokens before the output.
        echo: text of the prompt, if the completion begins with it.
        skip_special: special tokens of the output are left out.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], echo: str = "", *, skip_special: bool) -> None:
        self._echo = echo
        self._echoed = 0
        self._length = len(echo)
        self._echo_decoder = tokenizer.decoder(skip_special=True)
        self._special_decoder = tokenizer.decoder(skip_special=False)
        self._decoder = tokenizer.decoder(skip_special=skip_special, prompt=prompt)

    def of_prompt(self, tokens: Iterable[int]) -> list[int]:
        """Return the offsets of the next tokens of the prompt."""
        offsets = []
        for token in tokens:
            offsets.append(min(self._echoed, len(self._echo)))
            text, special = self._echo_decoder.feed((token,)), self._special_decoder.feed((token,))
            if not text and self._echo.startswith(special, self._echoed):
                text = special  # a special token that the client has written
            self._echoed += len(text)
        return offsets

    def of_output(self, tokens: Iterable[int]) -> list[int]:
        """Return the offsets of the next tokens of the output."""
        offsets = []
        for token in tokens:
            offsets.append(self._length)
            self._length += len(self._decoder.feed((token,)))
        return offsets


def completion_logprobs(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer, top: int, offsets: Sequence[int]
) -> dict[str, Any]:
    """Return ``choices[].logprobs`` of completions; ``offsets`` are those of the tokens in the text."""

    def alternatives(item: TokenLogprob) -> dict[str, float] | None:
        if item.logprob is None:
            return None
        return {tokenizer.piece(token): finite(value) for token, value in item.top[:top]}

    return {
        "tokens": LargeList(logprobs, lambda item: tokenizer.piece(item.token)),
        "token_logprobs": LargeList(logprobs, lambda item: None if item.logprob is None else finite(item.logprob)),
        "top_logprobs": logprob_list(logprobs, alternatives) if top else None,
        "text_offset": list(offsets),
    }


Triple = tuple[float | None, int, str | None]
"""Log-probability, token, and the token's text if it was asked for."""


def token_triples(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> Sequence[Triple]:
    """Return the triples of the tokens themselves, for ``/generate``; with texts if there is a ``tokenizer``."""
    return LargeList(logprobs, lambda item: _triple(item.logprob, item.token, tokenizer))


def alternative_triples(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None, field: str
) -> Sequence[list[Triple] | None]:
    """Return the triples of the likeliest (``"top"``) or chosen (``"ids"``) tokens per position, for ``/generate``."""

    def triples(item: TokenLogprob) -> list[Triple] | None:
        if item.logprob is None:
            return None
        return [_triple(value, token, tokenizer) for token, value in getattr(item, field)]

    return logprob_list(logprobs, triples)


def _triple(logprob: float | None, token: int, tokenizer: Tokenizer | None) -> Triple:
    return (None if logprob is None else finite(logprob), token, None if tokenizer is None else tokenizer.piece(token))
