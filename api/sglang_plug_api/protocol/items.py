"""Items of ``/v1/responses``, in a request's input or of an earlier answer, and the messages that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator, model_validator

from .base import Many, RequestBody

TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
IMAGE_PART = "input_image"
SHOWN = 40
"""Characters of a type that an error repeats."""

Parts = str | Many[dict[str, Any]]
Message = dict[str, Any]


def _text_of(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if not isinstance(text, str):
        raise ValueError(f"a content part has type {str(kind)[:SHOWN]!r}; this model takes text parts only")
    return text


def is_image(part: Mapping[str, Any]) -> bool:
    """True of a part of a message that stands for an image."""
    return part.get("type") == "image"


def _read(parts: Parts, where: str) -> str | list[dict[str, Any]]:
    """What a message has of ``parts``: a text, or a list if there are images, which say where they stand."""
    if isinstance(parts, str) or not any(part.get("type") == IMAGE_PART for part in parts):
        return _joined(parts)
    return [
        {"type": "image", "where": f"{where}.{place}", **{name: part.get(name) for name in ("image_url", "file_id")}}
        if part.get("type") == IMAGE_PART
        else {"type": "text", "text": _text_of(part)}
        for place, part in enumerate(parts)
    ]


def _checked(parts: Parts) -> Parts:
    """``parts``. Raises ``ValueError`` if there is another thing than text and images in them."""
    for part in parts if isinstance(parts, list) else ():
        if part.get("type") != IMAGE_PART:
            _text_of(part)
        elif isinstance(part.get("image_url"), str) == isinstance(part.get("file_id"), str):
            raise ValueError("an input_image has an image_url or a file_id")
    return parts


def _joined(parts: Parts | None) -> str:
    return "\n".join(map(_text_of, parts)) if isinstance(parts, list) else parts or ""


def _text_only(parts: Parts | None) -> Parts | None:
    """``parts``. Raises ``ValueError`` if there is another thing than text in them."""
    _joined(parts)
    return parts


class MessageItem(RequestBody):
    """A message. Items of a type that is not known come here too, to be refused."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts

    _is_read = field_validator("content")(_checked)

    @model_validator(mode="before")
    @classmethod
    def _is_a_message(cls, value: Any) -> Any:
        kind = value.get("type", "message") if isinstance(value, dict) else "message"
        if kind not in ("message", None):
            known = ", ".join(("message", *KINDS))
            raise ValueError(f"items of type {str(kind)[:SHOWN]!r} are not supported by this server; known: {known}")
        return value

    @model_validator(mode="after")
    def _only_users_show(self) -> MessageItem:
        if self.role != "user" and isinstance(_read(self.content, ""), list):
            raise ValueError(f"content has an {IMAGE_PART}, which messages of role {self.role!r} cannot have")
        return self

    def add_to(self, messages: list[Message], where: str) -> None:
        """Say this; what developers say is the system's word."""
        if self.role == "assistant":
            _turn(messages)["content"] += _joined(self.content)
            return
        role = "system" if self.role == "developer" else self.role
        messages.append({"role": role, "content": _read(self.content, f"{where}.content")})


class CallItem(RequestBody):
    """A call of a function, as the model made it; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def add_to(self, messages: list[Message], where: str) -> None:
        """Add the call to what the assistant said last, if nobody answered since."""
        call = {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        _turn(messages, also_plain=True).setdefault("tool_calls", []).append(call)


class CallOutputItem(RequestBody):
    """What a function answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts

    _is_read = field_validator("output")(_checked)

    def add_to(self, messages: list[Message], where: str) -> None:
        """Say it in the tool's name."""
        content = _read(self.output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": content})


class ReasoningItem(RequestBody):
    """What the model thought. Summaries and encrypted texts are not read."""

    type: Literal["reasoning"]
    content: Many[dict[str, Any]] | None = None

    _is_text = field_validator("content")(_text_only)

    def add_to(self, messages: list[Message], where: str) -> None:
        """Leave it to the template whether it is shown."""
        text = _joined(self.content)
        if text:
            turn = _turn(messages)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + text


KINDS: Mapping[str, str] = {
    "function_call": "Call",
    "function_call_output": "CallOutput",
    "reasoning": "Reasoning",
}
"""Type of an item that is no message -> its tag."""
EMPTY_TURN: Mapping[str, str] = {"role": "assistant", "content": ""}


def _kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return KINDS.get(kind, "Message") if isinstance(kind, str) else "Message"


Item = Annotated[
    Annotated[MessageItem, Tag("Message")]
    | Annotated[CallItem, Tag("Call")]
    | Annotated[CallOutputItem, Tag("CallOutput")]
    | Annotated[ReasoningItem, Tag("Reasoning")],
    Discriminator(_kind),
]


def messages_of(items: Iterable[Item]) -> list[Message]:
    """What ``items`` say, as chat templates want it, but for images, whose parts tell where they stand and come from.

    What an assistant thought, said and called without an answer in between is one message.
    """
    found: list[Message] = []
    for index, item in enumerate(items):
        item.add_to(found, f"input.{index}")
    return found


def check_outputs(messages: Iterable[Mapping[str, Any]]) -> None:
    """Raises ``ValueError`` if there is an output of a function that was not called before."""
    calls = set[str]()
    for message in messages:
        calls.update(call["id"] for call in message.get("tool_calls", ()))
        id = message.get("tool_call_id")
        if id is not None and id not in calls:
            raise ValueError(f"No tool call found for function call output with call_id {id[:SHOWN]!r}.")


def _turn(messages: list[Message], *, also_plain: bool = False) -> Message:
    """What the assistant said last, if nobody answered since; ``also_plain``: even if it is but a text."""
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and (also_plain or last.keys() != EMPTY_TURN.keys()):
        return last
    messages.append(dict(EMPTY_TURN))
    return messages[-1]
