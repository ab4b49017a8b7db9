"""Rendering of a conversation into the prompt of a response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from sglang_plug import MediaPrompt
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.text_engine import TextEngine

from .message_images import ImageMessage, Message


async def render(
    engine: TextEngine,
    instructions: str | None,
    conversation: Sequence[ImageMessage],
    tools: Sequence[Message] | None,
    variables: Message,
    *,
    reserved: int,
    truncate: bool,
) -> MediaPrompt:
    """Render the prompt.

    Args:
        engine: tokenizes and has the chat template.
        instructions: text before the conversation.
        conversation: the messages.
        tools: tools for the template.
        variables: variables of the chat template.
        reserved: tokens to leave for the output.
        truncate: drop the oldest turns, as few as possible, if the prompt would not fit otherwise.

    Raises ``ApiError`` if the template refuses the messages, or an image cannot be read.
    """
    system, messages = _split(instructions, conversation)

    async def rendered(kept: Sequence[ImageMessage]) -> MediaPrompt:
        template_messages = [*system, *(item.message for item in kept)]
        tokens = await engine.encode_chat(
            template_messages, context=current_request_context(), tools=tools, variables=variables
        )
        return await engine.with_images(tokens, [image for item in kept for image in item.images])

    if not truncate:
        return await rendered(messages)
    async with engine.fetched_images([image for item in messages for image in item.images]) as fetched:
        images = iter(fetched)  # fetched once, even if several prompts are rendered
        messages = [replace(item, images=[next(images) for _ in item.images]) for item in messages]
        return await _fitting(messages, rendered, engine.defaults.longest - reserved)


async def _fitting(
    messages: Sequence[ImageMessage], rendered: Callable[[Sequence[ImageMessage]], Awaitable[MediaPrompt]], limit: int
) -> MediaPrompt:
    """Return the prompt without the oldest turns, as few as possible, that has at most ``limit`` tokens.

    If even the last turn alone has more, all turns are in the prompt.
    """
    prompt = await rendered(messages)
    if len(prompt.tokens) <= limit:
        return prompt
    starts = [index for index, item in enumerate(messages) if index and item.message["role"] == "user"]
    low, high = 0, len(starts) - 1
    while low <= high:
        middle = (low + high) // 2
        shorter = await rendered(messages[starts[middle] :])
        if len(shorter.tokens) <= limit:
            prompt, high = shorter, middle - 1
        else:
            low = middle + 1
    return prompt


def _split(
    instructions: str | None, conversation: Sequence[ImageMessage]
) -> tuple[list[Message], Sequence[ImageMessage]]:
    """Join the leading system messages, since most templates accept only one, and return it and the rest."""
    texts = [instructions] if instructions else []
    count = 0
    while count < len(conversation) and conversation[count].message["role"] == "system":
        texts.append(conversation[count].message["content"])
        count += 1
    return ([{"role": "system", "content": "\n\n".join(texts)}] if texts else []), conversation[count:]
