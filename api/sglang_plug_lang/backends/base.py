"""What the interpreter asks of a backend."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.ir import GenerationOptions
from sglang_plug_lang.templates import ChatTemplate


@dataclass(frozen=True)
class Prompt:
    """A conversation up to the place where text is wanted."""

    text: str
    """All of it, through the chat template."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The messages that have ended."""
    role: str | None = None
    """The role of the message that has begun."""
    begun: str = ""
    """That message so far."""
    images: tuple[str, ...] = ()
    """Base64 texts or addresses, in the order of their places in ``text``."""


@dataclass(frozen=True)
class Completion:
    """What a model said, or the next piece of it."""

    text: str
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """The second and further samples, if ``n`` asked for some."""


@runtime_checkable
class Backend(Protocol):
    """Safe to use from several threads. Failures are ``BackendError``."""

    chat_template: ChatTemplate

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """The whole continuation."""

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """The continuation in pieces, each with the text since the last."""

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """The likeliest of ``choices`` after the prompt."""

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False if that is not possible now."""

    def get_server_info(self) -> dict[str, Any]:
        """What the backend says about itself."""
