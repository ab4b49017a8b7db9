"""Conversion of texts and chats into tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sglang_plug import RequestError, TemplateError, Tokenizer
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.request_context import DEADLINE_STATUS, RequestContext

Result = TypeVar("Result")
Encoded = TypeVar("Encoded", bound=Sequence[Any])
"""A prompt that is not a text."""

MAX_INLINE_CHARACTERS = 2048
"""Longest text that is tokenized on the event loop; longer ones are tokenized in a thread."""
CHARACTERS_PER_TOKEN = 128
"""Length of the longest tokens of common vocabularies, runs of blanks; other tokens average four characters."""
CHAT_THREADS = 4
"""Chat requests whose prompts are rendered at the same time."""
MIN_TEXT_LIMIT = 1 << 20
"""Characters that are tokenized whatever the model's context length is."""


class PromptEncoder:
    """Converts texts and chats into tokens, in threads where that takes long.

    Args:
        tokenizer: ``None`` with ``--skip-tokenizer-init``.
        context_length: that of the model, which limits the length of texts.
        report_late: is called with the context of a request whose deadline passed before its chat was rendered.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, context_length: int, report_late: Callable[[RequestContext], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._max_characters = max(MIN_TEXT_LIMIT, CHARACTERS_PER_TOKEN * context_length)
        self._report_late = report_late
        self._chat_threads = ThreadPoolExecutor(CHAT_THREADS, "chat-template")

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises ``ApiError`` if the server runs with ``--skip-tokenizer-init``."""
        if self._tokenizer is None:
            raise ApiError("the server runs with --skip-tokenizer-init: send input_ids, and decode output_ids yourself")
        return self._tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """False with ``--skip-tokenizer-init``."""
        return self._tokenizer is not None

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of ``text``. Raises ``ApiError`` if it is too long to be tokenized."""
        tokens: list[list[int]] = await self.encode_each([text], special=special)
        return tokens[0]

    async def encode_each(self, prompts: Sequence[str | Encoded], *, special: bool = True) -> list[list[int] | Encoded]:
        """Return the tokens of each text, and other prompts as they are. Raises ``ApiError`` if a text is too long."""
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if not texts:
            return [prompt for prompt in prompts if not isinstance(prompt, str)]
        tokenizer = self.tokenizer
        for text in texts:
            self.check_text(text)

        def work() -> list[list[int] | Encoded]:
            return [
                tokenizer.encode(prompt, special=special) if isinstance(prompt, str) else prompt for prompt in prompts
            ]

        return work() if sum(map(len, texts)) <= MAX_INLINE_CHARACTERS else await asyncio.to_thread(work)

    async def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], context: RequestContext, **options: Any
    ) -> list[int]:
        """Return the tokens of the prompt that the chat template renders; ``options`` as in ``Tokenizer.chat``.

        ``context`` is that of the request, with its deadline.
        """
        tokenizer = self.tokenizer

        def render() -> list[int]:
            text = tokenizer.chat(messages, **options)
            self.check_text(text)
            return tokenizer.encode(text, special=False)

        try:
            return await self.in_chat_thread(render, context)
        except TemplateError as error:
            param = "chat_template_kwargs" if error.about == "variables" else "messages"
            raise ApiError(str(error), param=param) from None

    async def in_chat_thread(self, work: Callable[[], Result], context: RequestContext) -> Result:
        """Run ``work``, which renders chat templates, and return its result.

        Slow templates delay only each other, since they have threads of their own. Raises ``RequestError`` if the
        deadline of ``context`` passed before a thread was free.
        """

        def render() -> Result:
            context.check_deadline()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._chat_threads, render)
        except RequestError as error:
            if error.status == DEADLINE_STATUS:
                self._report_late(context)
            raise

    def check_text(self, text: str) -> None:
        """Raise ``ApiError`` for a text that is longer than any that fits the model, before tokenizing it."""
        if len(text) > self._max_characters:
            raise ApiError(f"a text has {len(text)} characters; the maximum is {self._max_characters}")
