"""Interface of the backends that run programs."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from sglang_plug_lang.choices import ChoicesMethod, Decision
from sglang_plug_lang.ir import GenerationOptions
from sglang_plug_lang.templates import ChatTemplate


@dataclass(frozen=True)
class Prompt:
    """A conversation up to the position where text is to be generated."""

    text: str
    """The whole conversation, rendered with the chat template."""
    messages: Sequence[Mapping[str, Any]] = ()
    """The finished messages."""
    role: str | None = None
    """The role of the unfinished message."""
    begun: str = ""
    """Text of the unfinished message so far."""
    images: tuple[str, ...] = ()
    """Images as base64 text or URLs, in the order of their placeholders in ``text``."""


@dataclass(frozen=True)
class Completion:
    """Text that a model generated, or the next piece of it."""

    text: str
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    """The second and further samples, if ``n`` requested several."""


@runtime_checkable
class Backend(Protocol):
    """A backend of programs. It is safe to use from several threads and raises ``BackendError`` for failures."""

    chat_template: ChatTemplate

    def generate(self, prompt: Prompt, options: GenerationOptions) -> Completion:
        """Return the whole continuation."""

    def stream(self, prompt: Prompt, options: GenerationOptions) -> Generator[Completion, None, None]:
        """Yield the continuation in pieces, each with the text since the last one."""

    def select(self, prompt: Prompt, choices: Sequence[str], method: ChoicesMethod, temperature: float) -> Decision:
        """Return the likeliest of ``choices`` after the prompt."""

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False if that is not possible now."""

    def get_server_info(self) -> dict[str, Any]:
        """Return the backend's description of itself."""
