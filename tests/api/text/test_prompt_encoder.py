"""Tests of the conversion of texts and chats to tokens."""

from __future__ import annotations

import pytest

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.request_context import DEFAULT, RequestContext
from sglang_plug_api.text.prompt_encoder import PromptEncoder
from tests.api.letters import LETTERS, Letters, Unused


def prompt_encoder(
    tokenizer: Letters | None = LETTERS, context_length: int = 100, late: list[RequestContext] | None = None
) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_length, ([] if late is None else late).append)


async def test_texts_are_tokenized() -> None:
    encoder = prompt_encoder()
    assert await encoder.encode("ab") == [97, 98]
    assert await encoder.encode("ab" * 3000) == [97, 98] * 3000
    assert await encoder.encode_each(["ab", [7], "c"]) == [[97, 98], [7], [99]]


async def test_chats_are_rendered_and_tokenized() -> None:
    encoder = prompt_encoder()
    assert await encoder.encode_chat([{"role": "user", "content": "x"}], DEFAULT) == list(map(ord, "user: x\n"))
    with pytest.raises(ApiError) as caught:
        await encoder.encode_chat([{"role": "tool", "content": "x"}], DEFAULT)
    assert (caught.value.message, caught.value.param) == ("no tools here", "messages")


async def test_a_chat_whose_deadline_has_passed_is_not_rendered() -> None:
    late, rendered = list[RequestContext](), list[str]()
    encoder = prompt_encoder(late=late)
    context = RequestContext(deadline_ms=500, received=10.0)
    with pytest.raises(RequestError, match="before the prompt was tokenized") as refused:
        await encoder.in_chat_thread(lambda: rendered.append("late"), context)
    assert refused.value.status == 504
    assert late == [context]
    await encoder.in_chat_thread(lambda: rendered.append("timely"), RequestContext(deadline_ms=500_000))
    assert rendered == ["timely"] and len(late) == 1


async def test_a_text_that_cannot_fit_is_not_tokenized() -> None:
    encoder = prompt_encoder(Unused())
    with pytest.raises(ApiError, match="2000000 characters; the maximum is 1048576"):
        await encoder.encode("a" * 2_000_000)
    with pytest.raises(ApiError, match="characters"):
        await encoder.encode_chat([{"role": "user", "content": "a" * 2_000_000}], DEFAULT)
    prompt_encoder(Unused(), context_length=20_000).check_text("a" * 2_000_000)


async def test_without_a_tokenizer_only_tokens_are_prompts() -> None:
    encoder = prompt_encoder(None)
    assert not encoder.has_tokenizer
    assert await encoder.encode_each([[7], [8]]) == [[7], [8]]
    with pytest.raises(ApiError, match="--skip-tokenizer-init"):
        await encoder.encode("x")
