"""Interface of the backends that run programs."""

from __future__ import annotations

import threading
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


class TokenUsage:
    """Tokens of a backend's requests; several threads may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.prompt_tokens = self.completion_tokens = 0

    def __repr__(self) -> str:
        return f"TokenUsage(prompt_tokens={self.prompt_tokens}, completion_tokens={self.completion_tokens})"

    def reset(self) -> None:
        """Count from zero."""
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0

    def add(self, usage: Mapping[str, Any]) -> None:
        """Add the tokens of one response; fields that are missing or ``None`` count as 0."""
        with self._lock:
            self.prompt_tokens += usage.get("prompt_tokens") or 0
            self.completion_tokens += usage.get("completion_tokens") or 0


@runtime_checkable
class CachesPrefixes(Protocol):
    """A backend with a prefix cache that can be filled."""

    def cache_prefix(self, prefix_str: str) -> None:
        """Fill the prefix cache with a text."""


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
