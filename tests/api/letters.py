"""A tokenizer for tests whose tokens are characters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug import TemplateError

END = 1
VOCABULARY = 1000


class Letters:
    """A tokenizer whose tokens are characters; those below 32, but for line ends, are special."""

    vocab_size = VOCABULARY
    eos_token_ids = (END,)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(map(ord, text))

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(chr(token) for token in tokens if not skip_special or token >= 32 or token == 10)

    def piece(self, token: int) -> str:
        return chr(token)

    def piece_bytes(self, token: int) -> bytes:
        return chr(token).encode()

    def chat_template(self, *, tools: bool = False) -> str | None:
        return None

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        if any(message["role"] == "tool" for message in messages):
            raise TemplateError("no tools here")
        return "".join(f"{message['role']}: {message['content']}\n" for message in messages)

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> LettersDecoder:
        return LettersDecoder(skip_special)


class LettersDecoder:
    """A decoder that returns each character at once, except for a tilde, which waits for the next character."""

    def __init__(self, skip_special: bool) -> None:
        self._skip_special, self._held = skip_special, ""

    def feed(self, tokens: Sequence[int]) -> str:
        text = self._held + Letters().decode(tokens, skip_special=self._skip_special)
        self._held = "~" if text.endswith("~") else ""
        return text.removesuffix(self._held)

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class Unused(Letters):
    """A tokenizer that must never be called."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        raise AssertionError("a text was tokenised")


LETTERS = Letters()
