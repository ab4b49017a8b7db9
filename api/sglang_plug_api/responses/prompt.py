"""From a request and what was said before to the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug_api.text import TextEngine

Message = Mapping[str, Any]


async def render(
    engine: TextEngine,
    instructions: str | None,
    conversation: Sequence[Message],
    *,
    tools: Sequence[Message] | None,
    room: int,
    shorten: bool,
) -> list[int]:
    """Tokens of the prompt.

    Args:
        engine: whose chat template is used.
        instructions: come first; not part of the conversation.
        conversation: what was said.
        tools: that the template shows.
        room: tokens to leave for the answer.
        shorten: leave out the oldest turns, as few as possible, if the prompt would not fit otherwise.

    Raises ``ApiError`` if the template refuses the messages.
    """
    system, turns = _split(instructions, conversation)

    async def from_turn(start: int) -> list[int]:
        return await engine.encode_chat([*system, *turns[start:]], tools=tools)

    tokens = await from_turn(0)
    most = engine.defaults.longest - room
    if not shorten or len(tokens) <= most:
        return tokens
    starts = [index for index, turn in enumerate(turns) if index and turn["role"] == "user"]
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        shorter = await from_turn(starts[middle])
        if len(shorter) <= most:
            tokens, high = shorter, middle - 1
        else:
            low = middle + 1
    return tokens


def _split(instructions: str | None, conversation: Sequence[Message]) -> tuple[list[Message], Sequence[Message]]:
    """One system message of what stands at the beginning, as most templates know no second, and the rest."""
    texts = [instructions] if instructions else []
    turns = 0
    while turns < len(conversation) and conversation[turns]["role"] == "system":
        texts.append(conversation[turns]["content"])
        turns += 1
    return ([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), conversation[turns:]
