"""The tokenizer contract: converting text to tokens and back, in the API process.

The engine uses a tokenizer only for structured outputs: for the text of each token, and for the tokens of forced text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """The arguments that a tokenizer plugin is built from."""

    path: Path
    """A local folder that holds the tokenizer's files; the checkpoint's file, if it consists of one."""
    chat_template: str | None = None
    """A template's text, or the path of a file with one; ``None``: the folder's own template."""
    chats: bool = True
    """False if ``Tokenizer.chat`` will not be called, so that nothing has to be prepared for it."""


class TemplateError(ValueError):
    """The chat template is missing, or refuses these messages.

    ``about`` names the argument that the caller has to change: ``messages``, or ``variables`` (the template variables).
    """

    def __init__(self, message: str, about: str = "messages") -> None:
        super().__init__(message)
        self.about = about


class StreamDecoder(Protocol):
    """Converts the tokens of one output to text as they are generated."""

    def feed(self, tokens: Sequence[int]) -> str:
        """Return the text that is complete; never a part of a character."""

    def flush(self) -> str:
        """Return the text that was held back; incomplete characters become U+FFFD."""


class Tokenizer(Protocol):
    """Converts text to tokens and back. All methods may be called from several threads at once."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an output."""

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that control the model and are not text."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of ``text``; ``special`` adds tokens that the model expects around it (a start token)."""

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the tokens of two texts that are read together, with the special tokens around and between them."""

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of ``tokens``."""

    def piece(self, token: int) -> str:
        """Return the text of a single token, for log-probabilities; incomplete characters become U+FFFD."""

    def piece_bytes(self, token: int) -> bytes:
        """Return the bytes of a token."""

    def chat_template(self, *, tools: bool = False) -> str | None:
        """Return the text of the template that ``chat`` renders messages (with ``tools``) by; ``None`` if there is
        none.
        """

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render ``messages`` with the chat template and return the prompt. Raises ``TemplateError``."""

    def decoder(self, *, skip_special: bool = True, prompt: Sequence[int] = ()) -> StreamDecoder:
        """Return a decoder for one output; ``prompt`` is the context that spacing may depend on."""


class TokenizerLoader(Protocol):
    """The target of a ``TokenizerSpec``."""

    def __call__(self, source: TokenizerSource) -> Tokenizer:
        """Load the tokenizer of ``source``. Raises ``ConfigError`` if there is none."""
