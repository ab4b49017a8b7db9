"""Items of ``/v1/responses``, in a request's input or of an earlier answer, and the messages that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, field_validator, model_validator

from .base import Many, RequestBody

TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text")
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

    _is_text = field_validator("content")(_text_only)

    @model_validator(mode="before")
    @classmethod
    def _is_a_message(cls, value: Any) -> Any:
        kind = value.get("type", "message") if isinstance(value, dict) else "message"
        if kind not in ("message", None):
            known = ", ".join(("message", *KINDS))
            raise ValueError(f"items of type {str(kind)[:SHOWN]!r} are not supported by this server; known: {known}")
        return value

    def add_to(self, messages: list[Message]) -> None:
        """Say this; what developers say is the system's word."""
        text = _joined(self.content)
        if self.role == "assistant":
            _turn(messages)["content"] += text
        else:
            messages.append({"role": "system" if self.role == "developer" else self.role, "content": text})


class CallItem(RequestBody):
    """A call of a function, as the model made it; ``arguments`` is JSON text."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str

    def add_to(self, messages: list[Message]) -> None:
        """Add the call to what the assistant said last, if nobody answered since."""
        call = {"id": self.call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}
        _turn(messages, also_plain=True).setdefault("tool_calls", []).append(call)


class CallOutputItem(RequestBody):
    """What a function answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts

    _is_text = field_validator("output")(_text_only)

    def add_to(self, messages: list[Message]) -> None:
        """Say it in the tool's name."""
        messages.append({"role": "tool", "tool_call_id": self.call_id, "content": _joined(self.output)})


class ReasoningItem(RequestBody):
    """What the model thought. Summaries and encrypted texts are not read."""

    type: Literal["reasoning"]
    content: Many[dict[str, Any]] | None = None

    _is_text = field_validator("content")(_text_only)

    def add_to(self, messages: list[Message]) -> None:
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
    """What ``items`` say, as chat templates want it.

    What an assistant thought, said and called without an answer in between is one message.
    """
    found: list[Message] = []
    for item in items:
        item.add_to(found)
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
