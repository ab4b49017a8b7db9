"""The official ``openai`` client against a real server: plain completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

FRANCE = "The capital of France is"
SPAIN = "The capital of Spain is"
FRANCE_IDS = [321, 310, 304, 995, 300]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, prompt: Any = FRANCE, **options: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, **{"temperature": 0, "max_tokens": 6, **options})


def texts(answer: Any) -> list[str]:
    return [choice.text for choice in answer.choices]


def test_one_text(client: openai.OpenAI) -> None:
    answer = complete(client)
    (choice,) = answer.choices
    assert choice.text.startswith(" Paris.")
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (answer.object, answer.model) == ("text_completion", "demo")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 6)


def test_the_default_is_16_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt=FRANCE, temperature=0, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_every_kind_of_prompt(client: openai.OpenAI) -> None:
    (alone,) = texts(complete(client))
    (spain,) = texts(complete(client, SPAIN))
    assert spain != alone
    assert texts(complete(client, FRANCE_IDS)) == [alone]
    assert texts(complete(client, [FRANCE, SPAIN, FRANCE])) == [alone, spain, alone]
    several = complete(client, [FRANCE_IDS, FRANCE_IDS[:2]])
    assert texts(several)[0] == alone
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.usage.prompt_tokens == 7


def test_several_outputs_of_several_prompts(client: openai.OpenAI) -> None:
    options = {"n": 2, "temperature": 1.5, "seed": 3, "max_tokens": 20, "top_p": 1}
    answer = complete(client, [FRANCE, SPAIN], **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 10
    streamed = ["", "", "", ""]
    for chunk in complete(client, [FRANCE, SPAIN], stream=True, **options):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts(answer)
    assert len(set(streamed)) > 2


@pytest.mark.parametrize("stream", [False, True])
def test_echo(client: openai.OpenAI, stream: bool) -> None:
    for prompt in (FRANCE, FRANCE_IDS):
        answer = complete(client, prompt, echo=True, stream=stream)
        text = "".join(chunk.choices[0].text for chunk in answer) if stream else texts(answer)[0]
        assert text.startswith(f"{FRANCE} Paris."), prompt
    pair = complete(client, [SPAIN, FRANCE], echo=True)
    assert [text.startswith(prompt) for text, prompt in zip(texts(pair), [SPAIN, FRANCE], strict=True)] == [True, True]


def test_logprobs(client: openai.OpenAI) -> None:
    logprobs = complete(client, logprobs=2).choices[0].logprobs
    assert logprobs.tokens[:2] == [" Paris", "."]
    assert (
        len(logprobs.tokens)
        == len(logprobs.token_logprobs)
        == len(logprobs.top_logprobs)
        == len(logprobs.text_offset)
        == 6
    )
    for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(top) == 2
        assert value == max(top.values()) == top[token]
    assert logprobs.text_offset[:3] == [0, 6, 7]


def test_logprobs_of_the_prompt(client: openai.OpenAI) -> None:
    answer = complete(client, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == answer.choices[0].text
    assert len(logprobs.tokens) == 11
    assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    for at, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert answer.choices[0].text[at:].startswith(token)


def test_logprobs_in_a_stream(client: openai.OpenAI) -> None:
    for echo in (False, True):
        whole = complete(client, logprobs=1, echo=echo).choices[0].logprobs
        tokens, offsets = [], []
        for chunk in complete(client, logprobs=1, echo=echo, stream=True):
            if (logprobs := chunk.choices[0].logprobs) is not None:
                tokens += logprobs.tokens
                offsets += logprobs.text_offset
        assert (tokens, offsets) == (whole.tokens, whole.text_offset), echo


def test_prompt_logprobs_equal_those_of_generating_them(client: openai.OpenAI) -> None:
    generated = complete(client, logprobs=0, max_tokens=8).choices[0]
    scored = complete(client, FRANCE + generated.text, logprobs=0, echo=True, max_tokens=1).choices[0].logprobs
    assert scored.token_logprobs[5:13] == pytest.approx(generated.logprobs.token_logprobs, abs=1e-4)


def test_no_new_tokens_scores_the_prompt_only(client: openai.OpenAI) -> None:
    answer = complete(client, echo=True, logprobs=0, max_tokens=0)
    assert answer.choices[0].text == FRANCE
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (0, "length")
    assert answer.choices[0].logprobs.tokens == ["The", " capital", " of", " France", " is"]


def test_stop_and_usage_in_a_stream(client: openai.OpenAI) -> None:
    chunks = list(complete(client, stop=["."], stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == " Paris"
    assert (chunks[-2].choices[0].finish_reason, chunks[-2].choices[0].matched_stop) == ("stop", ".")
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 2)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"n": 5000}, "n"),
    ],
)
def test_refusals(client: openai.OpenAI, options: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, **options)
    assert param in str(caught.value.param or caught.value.message)
