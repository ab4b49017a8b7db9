"""A conversation with a model: its messages, its sampling parameters and the images of the next message."""

from __future__ import annotations

import base64
import json
import mimetypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

IMAGE_ADDRESSES = ("http://", "https://", "data:", "file://")
Message = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The state of a chat, which commands change."""

    system: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    """Fields of each request besides the messages."""
    messages: list[Message] = field(default_factory=list)
    """Messages of user and assistant in turn."""
    images: list[str] = field(default_factory=list)
    """Addresses of the images that the next message gets."""

    def ask(self, text: str) -> list[Message]:
        """Add the user's message with the waiting images; return all messages to send."""
        content: str | list[Message] = text
        if self.images:
            parts: list[Message] = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
            content = [*parts, {"type": "text", "text": text}]
            self.images = []
        self.messages.append({"role": "user", "content": content})
        return self.to_send()

    def to_send(self) -> list[Message]:
        """Return the system prompt, if there is one, and the messages."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]

    def answer(self, text: str) -> None:
        """Add the model's answer."""
        self.messages.append({"role": "assistant", "content": text})

    def withdraw(self) -> Message | None:
        """Remove the last message of the user and what follows it; return it, or ``None`` if there is none."""
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                removed = self.messages[index]
                del self.messages[index:]
                return removed
        return None

    def restore(self, message: Message) -> list[Message]:
        """Add a message that was withdrawn; return all messages to send."""
        self.messages.append(message)
        return self.to_send()

    def clear(self) -> None:
        """Forget all messages and images; the system prompt and the parameters stay."""
        self.messages, self.images = [], []

    def save(self, path: Path, model: str) -> None:
        """Write everything as JSON. Raises ``OSError``."""
        content = {"model": model, "messages": self.to_send(), **self.parameters}
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def image_address(source: str) -> str:
    """Return an address as it is, and a file as a ``data:`` address. Raises ``OSError`` and ``ValueError``."""
    if source.startswith(IMAGE_ADDRESSES):
        return source
    path = Path(source).expanduser()
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise ValueError(f"{source} is not an image: its name must end with .png, .jpg, .webp or .gif")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def parameter(text: str) -> Any:
    """Return a sampling parameter's value: JSON if ``text`` is that, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
