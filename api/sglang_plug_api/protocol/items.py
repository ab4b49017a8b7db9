"""Items of ``/v1/responses``, from a request's input or an earlier output, and their conversion to messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator, model_validator

from .base import SHOWN, Many, RequestBody

TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
IMAGE_PART = "input_image"

Parts = str | Many[dict[str, Any]]
Message = dict[str, Any]


def _text_of(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if kind not in (*TEXT_PARTS, "refusal"):
        raise ValueError(
            f"a content part has type {str(kind)[:SHOWN]!r}; parts are of type 'input_text' or 'output_text', or "
            "'input_image' for vision-language models"
        )
    if not isinstance(text, str):
        raise ValueError(f"a content part of type {kind!r} has no text")
    return text


def is_image(part: Mapping[str, Any]) -> bool:
    """Return True for a part of a message that holds an image."""
    return part.get("type") == "image"


def _content(parts: Parts, where: str) -> str | list[dict[str, Any]]:
    """Return the content of a message: a text, or a list of parts if there are images, which name their field."""
    if isinstance(parts, str) or not any(part.get("type") == IMAGE_PART for part in parts):
        return _joined(parts)
    return [
        {"type": "image", "where": f"{where}.{index}", **{name: part.get(name) for name in ("image_url", "file_id")}}
        if part.get("type") == IMAGE_PART
        else {"type": "text", "text": _text_of(part)}
        for index, part in enumerate(parts)
    ]


def _check_parts(parts: Parts) -> Parts:
    """Return ``parts``. Raises ``ValueError`` if they hold anything but text and images."""
    for part in parts if isinstance(parts, list) else ():
        if part.get("type") != IMAGE_PART:
            _text_of(part)
        elif isinstance(part.get("image_url"), str) == isinstance(part.get("file_id"), str):
            raise ValueError("an input_image has an image_url or a file_id")
    return parts


def _joined(parts: Parts | None) -> str:
    return "\n".join(map(_text_of, parts)) if isinstance(parts, list) else parts or ""


def _text_only(parts: Parts | None) -> Parts | None:
    """Return ``parts``. Raises ``ValueError`` if they hold anything but text."""
    _joined(parts)
    return parts


class MessageItem(RequestBody):
    """A message. Items of a type that is not known come here too, to be refused."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts

    _check_content = field_validator("content")(_check_parts)

    @model_validator(mode="before")
    @classmethod
    def _check_type(cls, value: Any) -> Any:
        kind = value.get("type", "message") if isinstance(value, dict) else "message"
        if kind not in ("message", None):
            known = ", ".join(("message", *ITEM_TAGS))
            raise ValueError(f"items of type {str(kind)[:SHOWN]!r} are not supported by this server; known: {known}")
        return value

    @model_validator(mode="after")
    def _images_only_from_users(self) -> MessageItem:
        if self.role != "user" and isinstance(_content(self.content, ""), list):
            raise ValueError(f"content has an {IMAGE_PART}, which messages of role {self.role!r} cannot have")
        return self

    def add_to(self, messages: list[Message], where: str) -> None:
        """Append the message; developer messages count as system messages."""
        if self.role == "assistant":
            _assistant_message(messages)["content"].append(_joined(self.content))
            return
        role = "system" if self.role == "developer" else self.role
        messages.append({"role": role, "content": _content(self.content, f"{where}.content")})


class CallItem(RequestBody):
    """A call of a function, as the model made it; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def add_to(self, messages: list[Message], where: str) -> None:
        """Add the call to the last assistant message, if no other message follows it."""
        call = {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        _assistant_message(messages, also_plain=True).setdefault("tool_calls", []).append(call)


class CallOutputItem(RequestBody):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts

    _check_output = field_validator("output")(_check_parts)

    def add_to(self, messages: list[Message], where: str) -> None:
        """Append the result as a message of the tool."""
        content = _content(self.output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": content})


class ReasoningItem(RequestBody):
    """Reasoning of the model. Summaries and encrypted texts are not read."""

    type: Literal["reasoning"]
    content: Many[dict[str, Any]] | None = None

    _check_content = field_validator("content")(_text_only)

    def add_to(self, messages: list[Message], where: str) -> None:
        """Add the reasoning to the assistant message; the chat template decides whether it is shown."""
        text = _joined(self.content)
        if text:
            _assistant_message(messages).setdefault("reasoning_content", []).append(text)


ITEM_TAGS: Mapping[str, str] = {
    "function_call": "Call",
    "function_call_output": "CallOutput",
    "reasoning": "Reasoning",
}
"""Maps the type of an item that is not a message to its tag."""
TEXT_FIELDS: Sequence[str] = ("content", "reasoning_content")
"""Fields of an assistant message that are texts."""
PLAIN_FIELDS = {"role", "content"}
"""Fields of an assistant message with nothing but text."""


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return ITEM_TAGS.get(kind, "Message") if isinstance(kind, str) else "Message"


Item = Annotated[
    Annotated[MessageItem, Tag("Message")]
    | Annotated[CallItem, Tag("Call")]
    | Annotated[CallOutputItem, Tag("CallOutput")]
    | Annotated[ReasoningItem, Tag("Reasoning")],
    Discriminator(_tag),
]


def messages_of(items: Iterable[Item]) -> list[Message]:
    """Convert ``items`` to messages for chat templates, except that image parts name their field and source.

    Reasoning, text and calls of the assistant without another message in between become one message.
    """
    messages: list[Message] = []
    for index, item in enumerate(items):
        item.add_to(messages, f"input.{index}")
    for message in messages:
        if message["role"] == "assistant":  # its texts were collected: joining them one by one would be quadratic
            message.update({name: "".join(message[name]) for name in TEXT_FIELDS if name in message})
    return messages


def check_outputs(messages: Iterable[Mapping[str, Any]]) -> None:
    """Raise ``ValueError`` for the output of a function that was not called before."""
    calls = set[str]()
    for message in messages:
        calls.update(call["id"] for call in message.get("tool_calls", ()))
        id = message.get("tool_call_id")
        if id is not None and id not in calls:
            raise ValueError(f"No tool call found for function call output with call_id {id[:SHOWN]!r}.")


def _assistant_message(messages: list[Message], *, also_plain: bool = False) -> Message:
    """Return the assistant message at the end, or append one; ``also_plain``: use one with nothing but text, too.

    Its texts are lists of parts, which ``messages_of`` joins.
    """
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and (also_plain or last.keys() != PLAIN_FIELDS):
        return last
    messages.append({"role": "assistant", "content": []})
    return messages[-1]
