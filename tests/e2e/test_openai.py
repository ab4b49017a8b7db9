"""The official ``openai`` client against a real server: chat completions and models."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

STORY = [{"role": "user", "content": "Tell me a story."}]
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
COUNT = [{"role": "user", "content": "Count from 1 to 10."}]
COUNTED = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    """A client of the ``openai`` package, created as users create it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(server: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """An asynchronous client of the ``openai`` package."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, messages: Any = STORY, **options: Any) -> Any:
    return client.chat.completions.create(model="any name", messages=messages, **options)


def text_of(answer: Any) -> str:
    return answer.choices[0].message.content


def test_capital_of_france(client: openai.OpenAI) -> None:
    answer = chat(client, FRANCE, temperature=0)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", PARIS)
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert choice.matched_stop == 4
    assert choice.message.tool_calls is None
    assert (answer.object, answer.model) == ("chat.completion", "any name")
    assert len(answer.id) == 32 and int(answer.id, 16) >= 0
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (15, 8, 23)


def test_three_countries(client: openai.OpenAI) -> None:
    question = [{"role": "user", "content": "List 3 countries and their capitals."}]
    answer = chat(client, question, temperature=0, max_tokens=64)
    lines = text_of(answer).splitlines()
    assert lines[2:] == ["1. France - Paris", "2. Germany - Berlin", "3. Italy - Rome"]
    assert answer.choices[0].finish_reason == "stop"


def test_multi_turn_depends_on_what_was_said(client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "What is the capital of Japan?"}
    first = text_of(chat(client, [question], temperature=0))
    assert "Tokyo" in first
    turns = [
        {"role": "system", "content": "You are a helpful assistant."},
        question,
        {"role": "assistant", "content": first},
        *FRANCE,
    ]
    answer = chat(client, turns, temperature=0)
    assert "Paris" in text_of(answer)
    assert answer.usage.prompt_tokens > 35


def test_content_parts_are_joined(client: openai.OpenAI) -> None:
    parts = [{"type": "text", "text": "What is the capital of France?"}]
    assert text_of(chat(client, [{"role": "user", "content": parts}], temperature=0)) == PARIS


def test_continue_final_message(client: openai.OpenAI) -> None:
    turns = [*FRANCE, {"role": "assistant", "content": "The capital of France"}]
    answer = chat(client, turns, temperature=0, extra_body={"continue_final_message": True})
    assert text_of(answer) == " is Paris."


def test_stream_equals_the_whole_answer(client: openai.OpenAI) -> None:
    whole = text_of(chat(client, STORY, temperature=0, max_tokens=60))
    chunks = list(chat(client, STORY, temperature=0, max_tokens=60, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert all("reasoning_content" in delta.model_fields_set | (delta.model_extra or {}).keys() for delta in deltas)
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert all(delta.role is None for delta in deltas[1:])
    assert "".join(delta.content or "" for delta in deltas) == whole
    assert len(chunks) > 10
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    *chunks, last = list(chat(client, FRANCE, temperature=0, stream=True, stream_options=options))
    assert last.choices == []
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (15, 8, 23)
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage_in_every_chunk(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(chat(client, FRANCE, temperature=0, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0 and counts[1] >= 1 and counts[-1] == 8  # the role alone is no token
    assert {chunk.usage.prompt_tokens for chunk in chunks} == {15}


def test_several_choices(client: openai.OpenAI) -> None:
    answer = chat(client, STORY, n=4, temperature=1.0, top_p=1.0, seed=5, max_tokens=40)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert answer.usage.prompt_tokens == 13
    assert answer.usage.completion_tokens == 160


def test_several_choices_in_a_stream(client: openai.OpenAI) -> None:
    whole = chat(client, STORY, n=3, temperature=1.0, seed=5, max_tokens=20)
    texts, endings = ["", "", ""], [0, 0, 0]
    for chunk in chat(client, STORY, n=3, temperature=1.0, seed=5, max_tokens=20, stream=True):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        endings[choice.index] += choice.finish_reason is not None
    assert texts == [choice.message.content for choice in whole.choices]
    assert endings == [1, 1, 1]


async def test_seed_gives_one_text_alone_and_in_a_busy_batch(async_client: openai.AsyncOpenAI) -> None:
    async def ask(messages: Any, seed: int | None) -> str:
        answer = await async_client.chat.completions.create(
            model="demo", messages=messages, temperature=1.0, top_p=1.0, seed=seed, max_tokens=40
        )
        return answer.choices[0].message.content or ""

    alone = await ask(STORY, 17)
    crowd = [ask(COUNT if index % 2 else STORY, index if index % 3 else None) for index in range(14)]
    again, *_ = await asyncio.gather(ask(STORY, 17), *crowd)
    assert again == alone
    assert len({await ask(STORY, seed) for seed in (1, 2, 3)}) > 1


def test_negative_seed_and_no_seed(client: openai.OpenAI) -> None:
    texts = [text_of(chat(client, seed=-7, temperature=1.0, max_tokens=30)) for _ in range(2)]
    assert texts[0] == texts[1]
    free = {text_of(chat(client, temperature=1.5, top_p=1.0, max_tokens=40)) for _ in range(3)}
    assert len(free) > 1


@pytest.mark.parametrize(
    ("stop", "matched", "text"),
    [
        (", 5", ", 5", "1, 2, 3, 4"),
        ("3, 4, 5", "3, 4, 5", "1, 2, "),
        (["8", " 6,", "7"], " 6,", "1, 2, 3, 4, 5,"),
        (["never", ", 10, 11"], 4, COUNTED),
        ([", 9, 1", ", 9"], ", 9", "1, 2, 3, 4, 5, 6, 7, 8"),
        ([], 4, COUNTED),
        (None, 4, COUNTED),
    ],
)
def test_stop_strings(client: openai.OpenAI, stop: Any, matched: Any, text: str) -> None:
    answer = chat(client, COUNT, temperature=0, stop=stop)
    assert text_of(answer) == text
    assert (answer.choices[0].finish_reason, answer.choices[0].matched_stop) == ("stop", matched)
    chunks = list(chat(client, COUNT, temperature=0, stop=stop, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert (chunks[-1].choices[0].finish_reason, chunks[-1].choices[0].matched_stop) == ("stop", matched)


def test_stop_string_may_stay_in_the_text(client: openai.OpenAI) -> None:
    for name in ("no_stop_trim", "include_stop_str_in_output"):
        answer = chat(client, COUNT, temperature=0, stop=", 5", extra_body={name: True})
        assert text_of(answer) == "1, 2, 3, 4, 5", name


def test_stop_token_and_ignored_end(client: openai.OpenAI) -> None:
    comma = 27
    answer = chat(client, COUNT, temperature=0, extra_body={"stop_token_ids": [comma]})
    assert (text_of(answer), answer.choices[0].matched_stop) == ("1", comma)
    answer = chat(client, FRANCE, temperature=0, max_tokens=20, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 20
    assert text_of(answer).startswith(PARIS)
    answer = chat(client, FRANCE, temperature=0, max_tokens=20, extra_body={"min_tokens": 12})
    assert answer.usage.completion_tokens >= 12


def test_max_completion_tokens_wins(client: openai.OpenAI) -> None:
    answer = chat(client, STORY, temperature=0, max_completion_tokens=5, max_tokens=50)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")
    assert chat(client, STORY, temperature=0, max_tokens=7).usage.completion_tokens == 7


def test_logprobs(client: openai.OpenAI) -> None:
    answer = chat(client, FRANCE, temperature=0, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).startswith(PARIS)
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, values[0])  # greedy
        assert sum(map(math.exp, values)) <= 1.0 + 1e-5


def test_logprobs_without_alternatives_and_in_a_stream(client: openai.OpenAI) -> None:
    whole = chat(client, FRANCE, temperature=0, logprobs=True).choices[0].logprobs.content
    assert all(entry.top_logprobs == [] for entry in whole)
    streamed = []
    for chunk in chat(client, FRANCE, temperature=0, logprobs=True, stream=True):
        logprobs = chunk.choices[0].logprobs
        streamed += logprobs.content if logprobs else []
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in whole], abs=1e-4)


def test_logprobs_do_not_depend_on_temperature(client: openai.OpenAI) -> None:
    options = {"logprobs": True, "max_tokens": 1}
    cold = chat(client, FRANCE, temperature=0, **options).choices[0].logprobs.content[0]
    warm = chat(client, FRANCE, temperature=0.2, seed=1, **options).choices[0].logprobs.content[0]
    assert (cold.token, cold.logprob) == (warm.token, pytest.approx(warm.logprob, abs=1e-4))


def test_logit_bias(client: openai.OpenAI) -> None:
    paris = 844
    answer = chat(client, FRANCE, temperature=0, max_tokens=4, logit_bias={str(paris): 100})
    assert text_of(answer) == " Paris" * 4
    answer = chat(client, FRANCE, temperature=0, logit_bias={str(paris): -100})
    assert "Paris" not in text_of(answer)


def test_penalties_change_the_text(client: openai.OpenAI) -> None:
    plain = text_of(chat(client, STORY, temperature=0, max_tokens=40))
    for options in (
        {"frequency_penalty": 2.0},
        {"presence_penalty": 2.0},
        {"extra_body": {"repetition_penalty": 2.0}},
    ):
        assert text_of(chat(client, STORY, temperature=0, max_tokens=40, **options)) != plain, options


def test_truncation_to_the_most_likely_is_greedy(client: openai.OpenAI) -> None:
    greedy = text_of(chat(client, STORY, temperature=0, max_tokens=40))
    for extra in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert text_of(chat(client, STORY, temperature=1.3, max_tokens=40, extra_body=extra)) == greedy, extra


async def test_asynchronous_client(async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.chat.completions.create(
        model="demo",
        messages=FRANCE,
        temperature=0,
        stream=True,  # type: ignore[arg-type]
    )
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == PARIS
    answers = await asyncio.gather(
        *(
            async_client.chat.completions.create(model="demo", messages=FRANCE, temperature=0)  # type: ignore[arg-type]
            for _ in range(10)
        )
    )
    assert {text_of(answer) for answer in answers} == {PARIS}
    assert len({answer.id for answer in answers}) == 10


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == ("sglang-plug-demo", "model", "sglang-plug")
    assert model.max_model_len == 4096
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/no-such-model")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")
    assert "'org/no-such-model' does not exist" in caught.value.message


@pytest.mark.parametrize(
    ("options", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "(0, 1]"),
        ({"n": 0}, "n", "greater than or equal to 1"),
        ({"max_tokens": 5000}, "max_tokens", "maximum context length of 4096 tokens"),
        ({"messages": []}, "messages", "Messages cannot be empty."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"extra_body": {"top_k": -2}}, "top_k", "top_k must be"),
        ({"response_format": {"type": "poem"}}, "response_format", "poem"),
        ({"stop": [""]}, "stop", "must not be empty"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token ids"),
    ],
)
def test_refusals_are_bad_request_errors(client: openai.OpenAI, options: Any, param: str, message: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **{"messages": FRANCE, "stream": stream, **options})
        assert (caught.value.status_code, caught.value.param) == (400, param)
        assert message in caught.value.message


def test_refusals_of_the_engine_come_before_the_stream(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, logit_bias={"99999": 1}, stream=stream)
        assert "not in the vocabulary of 4096 tokens" in caught.value.message
