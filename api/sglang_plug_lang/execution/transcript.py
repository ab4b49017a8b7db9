"""Transcript of a conversation as text and as messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_plug_lang.backends.base import Prompt
from sglang_plug_lang.errors import LanguageError
from sglang_plug_lang.templates import SYSTEM, ChatTemplate

Part = str | tuple[str]
"""Text of a message, or a one-element tuple with an image."""


class Transcript:
    """A conversation that grows at its end. Methods return text, which the caller adds to ``pieces``."""

    def __init__(self, template: ChatTemplate) -> None:
        self.pieces: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self._template = template
        self._images: list[str] = []
        self._role: str | None = None
        self._parts: list[Part] = []

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.pieces)

    def copy(self) -> Transcript:
        """Return an independent copy."""
        other = Transcript(self._template)
        other.pieces, other.messages, other._images = self.pieces.copy(), self.messages.copy(), self._images.copy()
        other._role, other._parts = self._role, self._parts.copy()
        return other

    def prompt(self) -> Prompt:
        """Return the prompt for a backend."""
        return Prompt(
            text=self.text,
            messages=tuple(self.messages),
            role=self._role,
            begun="".join(part for part in self._parts if isinstance(part, str)),
            images=tuple(self._images),
        )

    def begin_role(self, role: str) -> list[str]:
        """Begin a message; if it is the first, the template's system message comes before it."""
        if self._role is not None:
            raise LanguageError(f"a message of {role!r} begins inside one of {self._role!r}: end that first")
        texts = []
        default = self._template.default_system_prompt
        if not self.messages and role != SYSTEM and default is not None:
            texts.append(self._before(SYSTEM) + default + self._template.after(SYSTEM))
            self.messages.append({"role": SYSTEM, "content": default})
        texts.append(self._before(role))
        self._role, self._parts = role, []
        return texts

    def end_role(self, role: str) -> str:
        """End the message."""
        if self._role != role:
            raise LanguageError(
                f"a message of {role!r} ends, but " + (f"{self._role!r}'s began" if self._role else "none began")
            )
        self.messages.append({"role": role, "content": _content(self._parts)})
        self._role, self._parts = None, []
        return self._template.after(role)

    def add_text(self, text: str) -> str:
        """Add text to the current message, or between messages."""
        self._parts.append(text)
        return text

    def add_image(self, data: str) -> str:
        """Add an image; its text is the placeholder."""
        self._images.append(data)
        self._parts.append((data,))
        return self._template.image_token

    def _before(self, role: str) -> str:
        previous = self.messages[-1]["role"] if self.messages else None
        return self._template.before(role, previous)


def _content(parts: Sequence[Part]) -> str | list[dict[str, Any]]:
    """Return a message's content: text, or a list of parts if it has images."""
    if all(isinstance(part, str) for part in parts):
        return "".join(part for part in parts if isinstance(part, str))
    content: list[dict[str, Any]] = []
    for part in parts:
        if not isinstance(part, str):
            content.append({"type": "image_url", "image_url": {"url": _address(part[0])}})
        elif content and content[-1]["type"] == "text":
            content[-1]["text"] += part
        else:
            content.append({"type": "text", "text": part})
    return content


def _address(image: str) -> str:
    return image if "://" in image or image.startswith("data:") else f"data:image/png;base64,{image}"
