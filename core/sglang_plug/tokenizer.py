"""Types of the tokenizer plugin, with which the API process turns text into tokens and back.

The engine asks a tokenizer for structured outputs alone: what each token stands for, and the tokens of forced text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """What a tokenizer plugin is built from."""

    path: Path
    """A local folder that holds the tokenizer's files."""
    chat_template: str | None = None
    """A template's text or the path of a file that holds it; ``None``: the folder's own."""


class TemplateError(ValueError):
    """The chat template is missing, or refuses these messages."""


class StreamDecoder(Protocol):
    """Turns one output's tokens into text as they come."""

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that has become certain; never half a character."""

    def flush(self) -> str:
        """What was held back; incomplete characters become U+FFFD."""


class Tokenizer(Protocol):
    """Text to tokens and back. All methods may be called from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an output."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that control the model and are no text."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Tokens of ``text``; ``special`` adds what the model expects around it (a start token)."""

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Tokens of two texts that are read together, with what the model expects around and between them."""

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of ``tokens``."""

    def piece(self, token: int) -> str:
        """Text of one token on its own, for log-probabilities; half characters become U+FFFD."""

    def piece_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for."""

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Text of the template that ``chat`` renders messages (with ``tools``) with; ``None`` if there is none."""

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the chat template makes of ``messages``. Raises ``TemplateError``."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for one output; ``prompt`` gives it the context that spacing may depend on."""


class TokenizerLoader(Protocol):
    """The target of a ``TokenizerSpec``."""

    def __call__(self, source: TokenizerSource) -> Tokenizer:
        """Load the tokenizer of ``source``. Raises ``ConfigError`` if there is none."""
