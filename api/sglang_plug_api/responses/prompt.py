"""From a request and what was said before to the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sglang_plug import MediaPrompt
from sglang_plug_api.text import TextEngine

from .images import Message, Turn


async def render(
    engine: TextEngine,
    instructions: str | None,
    conversation: Sequence[Turn],
    *,
    tools: Sequence[Message] | None,
    room: int,
    shorten: bool,
    variables: Message | None = None,
) -> MediaPrompt:
    """The prompt.

    Args:
        engine: whose chat template is used.
        instructions: come first; not part of the conversation.
        conversation: what was said.
        tools: that the template shows.
        room: tokens to leave for the answer.
        shorten: leave out the oldest turns, as few as possible, if the prompt would not fit otherwise.
        variables: of the chat template.

    Raises ``ApiError`` if the template refuses the messages, or an image cannot be read.
    """
    system, turns = _split(instructions, await _fetched(engine, conversation) if shorten else conversation)

    async def from_turn(start: int) -> MediaPrompt:
        said = turns[start:]
        tokens = await engine.encode_chat([*system, *(turn.message for turn in said)], tools=tools, variables=variables)
        return await engine.with_images(tokens, [image for turn in said for image in turn.images])

    prompt = await from_turn(0)
    most = engine.defaults.longest - room
    if not shorten or len(prompt.tokens) <= most:
        return prompt
    starts = [index for index, turn in enumerate(turns) if index and turn.message["role"] == "user"]
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        shorter = await from_turn(starts[middle])
        if len(shorter.tokens) <= most:
            prompt, high = shorter, middle - 1
        else:
            low = middle + 1
    return prompt


async def _fetched(engine: TextEngine, conversation: Sequence[Turn]) -> list[Turn]:
    """The same, with images that are read once, however often the prompt is made."""
    images = iter(await engine.fetched([image for turn in conversation for image in turn.images]))
    return [replace(turn, images=[next(images) for _ in turn.images]) for turn in conversation]


def _split(instructions: str | None, conversation: Sequence[Turn]) -> tuple[list[Message], Sequence[Turn]]:
    """One system message of what stands at the beginning, as most templates know no second, and the rest."""
    texts = [instructions] if instructions else []
    turns = 0
    while turns < len(conversation) and conversation[turns].message["role"] == "system":
        texts.append(conversation[turns].message["content"])
        turns += 1
    return ([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), conversation[turns:]
