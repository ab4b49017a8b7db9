"""Tests of SGLang's and vLLM's additions to OpenAI's fields, with the ``openai`` client and a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."
ASK: dict[str, Any] = {"model": "demo", "messages": FRANCE, "temperature": 0}
PROMPT = "Once upon a time"
COMPLETE: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def tokens_of(server: Any, **body: Any) -> list[int]:
    return list(server.post("/tokenize", body).json()["tokens"])


def text_of(server: Any, tokens: list[int]) -> str:
    return str(server.post("/detokenize", {"tokens": tokens}).json()["text"])


def test_token_ids_of_a_chat(client: openai.OpenAI, server: Any) -> None:
    prompt = tokens_of(server, messages=FRANCE)
    answer: Any = client.chat.completions.create(**ASK, extra_body={"return_token_ids": True})
    choice = answer.choices[0]
    assert answer.prompt_token_ids == choice.prompt_token_ids == prompt
    assert text_of(server, choice.token_ids) == PARIS and len(choice.token_ids) == answer.usage.completion_tokens
    only_prompt: Any = client.chat.completions.create(**ASK, extra_body={"return_prompt_token_ids": True})
    assert only_prompt.choices[0].prompt_token_ids == prompt and not hasattr(only_prompt.choices[0], "token_ids")
    plain: Any = client.chat.completions.create(**ASK)
    assert not {"prompt_token_ids", "prompt_logprobs", "sglext"} & plain.model_dump().keys()
    assert plain.choices[0].model_dump().keys() == {"finish_reason", "index", "logprobs", "message", "matched_stop"}


def test_token_ids_in_a_stream_of_several_chats(client: openai.OpenAI) -> None:
    sample = {**ASK, "temperature": 1.0, "seed": 3, "max_tokens": 20, "n": 3}
    whole: Any = client.chat.completions.create(**sample, extra_body={"return_token_ids": True})
    tokens: dict[int, list[int]] = {}
    prompts: dict[int, list[int]] = {}
    for chunk in client.chat.completions.create(**sample, stream=True, extra_body={"return_token_ids": True}):
        (choice,) = [part.model_dump() for part in chunk.choices]
        tokens.setdefault(choice["index"], []).extend(choice.get("token_ids", ()))
        if "prompt_token_ids" in choice:
            assert choice["delta"]["role"] == "assistant"
            prompts[choice["index"]] = choice["prompt_token_ids"]
    assert tokens == {choice.index: choice.token_ids for choice in whole.choices}
    assert prompts == dict.fromkeys(range(3), whole.prompt_token_ids)


def test_token_ids_of_completions(client: openai.OpenAI, server: Any) -> None:
    more = {**COMPLETE, "prompt": [PROMPT, "The"], "extra_body": {"return_token_ids": True}}
    whole: Any = client.completions.create(**more)
    assert [choice.prompt_token_ids for choice in whole.choices] == tokens_of(server, prompt=more["prompt"])
    assert [text_of(server, choice.token_ids) for choice in whole.choices] == [choice.text for choice in whole.choices]
    streamed: dict[int, list[int]] = {0: [], 1: []}
    for chunk in client.completions.create(**more, stream=True):
        part: Any = chunk.choices[0]
        streamed[part.index] += part.token_ids
    assert [streamed[index] for index in (0, 1)] == [choice.token_ids for choice in whole.choices]


def test_meta_info(client: openai.OpenAI) -> None:
    extra = {"return_meta_info": True, "return_cached_tokens_details": True}
    answer: Any = client.chat.completions.create(**ASK, logprobs=True, top_logprobs=2, extra_body=extra)
    meta = answer.choices[0].meta_info
    assert meta["finish_reason"] == {"type": "stop", "matched": 4}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (15, 8)
    assert meta["output_token_logprobs_length"] == len(meta["output_token_logprobs"]) == 8
    logprobs = [entry.logprob for entry in answer.choices[0].logprobs.content]
    assert [triple[0] for triple in meta["output_token_logprobs"]] == logprobs
    assert "".join(triple[2] for triple in meta["output_token_logprobs"][:-1]) == PARIS
    assert answer.sglext["cached_tokens_details"] == {"device": meta["cached_tokens"], "host": 0}
    *_, last = client.chat.completions.create(**ASK, stream=True, extra_body=extra)
    streamed = last.model_dump()
    assert streamed["choices"][0]["meta_info"]["completion_tokens"] == 8
    assert streamed["sglext"]["cached_tokens_details"]["device"] >= 0
    completion: Any = client.completions.create(**COMPLETE, extra_body=extra)
    assert completion.choices[0].meta_info["finish_reason"] == {"type": "length", "length": 12}


@pytest.mark.parametrize("top", [0, 3])
def test_log_probabilities_of_a_prompt(client: openai.OpenAI, server: Any, top: int) -> None:
    native = server.generate(
        {"text": PROMPT, "return_logprob": True, "logprob_start_len": 0, "sampling_params": {"max_new_tokens": 1}}
    )["meta_info"]["input_token_logprobs"]
    completion: Any = client.completions.create(**COMPLETE, logprobs=1, extra_body={"prompt_logprobs": top})
    (choice,) = completion.choices
    first, *others = choice.prompt_logprobs
    assert first is None and len(others) == len(native) - 1
    for entry, (logprob, token, _) in zip(others, native[1:], strict=True):
        assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-5)
        assert max(top, 1) <= len(entry) <= top + 1
        ranks = sorted(alternative["rank"] for alternative in entry.values())
        assert ranks[:top] == list(range(1, top + 1)) and 1 <= ranks[-1] <= 512
        assert (entry[str(token)]["rank"] > top) == (len(entry) > top)
    assert len(choice.logprobs.tokens) == 12, "those of the prompt are told apart from those of the output"
    assert all(len(alternatives) == 1 for alternatives in choice.logprobs.top_logprobs)
    chat: Any = client.chat.completions.create(**ASK, extra_body={"prompt_logprobs": top})
    assert len(chat.prompt_logprobs) == 15 and chat.choices[0].logprobs is None
    for path, body in (("chat/completions", ASK), ("completions", COMPLETE)):
        refusal = server.post(f"/v1/{path}", {**body, "prompt_logprobs": 1, "stream": True})
        assert (refusal.status_code, refusal.json()["param"]) == (400, "prompt_logprobs")


def test_allowed_tokens(client: openai.OpenAI, server: Any) -> None:
    allowed = tokens_of(server, prompt=" a b c the", add_special_tokens=False)
    answer: Any = client.chat.completions.create(
        **{**ASK, "temperature": 1.0, "seed": 1, "n": 2, "max_tokens": 30},
        extra_body={"allowed_token_ids": allowed, "return_token_ids": True},
    )
    assert all(set(choice.token_ids) <= set(allowed) and len(choice.token_ids) == 30 for choice in answer.choices)
    completion: Any = client.completions.create(**COMPLETE, extra_body={"allowed_token_ids": allowed[:1] * 2})
    assert completion.choices[0].text == text_of(server, allowed[:1] * 12)
    params = {"max_new_tokens": 5, "allowed_token_ids": allowed, "logit_bias": {str(allowed[0]): 100}}
    generated = server.generate({"text": PROMPT, "sampling_params": params})
    assert generated["output_ids"] == allowed[:1] * 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"allowed_token_ids": []}, "must have at least 1 item"),
        ({"allowed_token_ids": [-1]}, "must be at least 0"),
        ({"allowed_token_ids": [1 << 30]}, "not in the vocabulary"),
        ({"allowed_token_ids": "a"}, "must be a list or null, not text"),
        ({"allowed_token_ids": [5], "regex": "a"}, "cannot be combined with a constraint"),
        ({"allowed_token_ids": [4], "min_tokens": 2}, "min_new_tokens needs a token"),
        ({"stop_regex": "("}, "is not a regular expression"),
        ({"stop_regex": "a*"}, "matches the empty text"),
        ({"stop_regex": "(?=a)b"}, "a look around"),
        ({"stop_regex": "x$"}, "an end or a border"),
        ({"stop_regex": "(a)\\1"}, "a reference"),
        ({"stop_regex": "(a{100}){100}"}, "is too large"),
        ({"stop_regex": "a" * 300}, "at most 256 characters"),
        ({"stop_regex": ["a"] * 40}, "at most 32 patterns"),
        ({"structured_outputs": {}}, "needs exactly one of"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "this has regex, json_object"),
        ({"structured_outputs": {"choice": []}}, "at least 1 item"),
        ({"structured_outputs": {"choice": [""]}}, "must not be empty"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "whitespace is bounded"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "Only one of"),
        ({"truncate_prompt_tokens": -2}, "greater than or equal to -1"),
        ({"truncation_side": "top"}, "'left' or 'right'"),
        ({"echo": True}, "use continue_final_message"),
        ({"mm_processor_kwargs": {"a": 1}}, "as the checkpoint says"),
        ({"return_routed_experts": True}, "record their distribution"),
    ],
    ids=lambda case: str(case)[:60],
)
def test_refusals_name_the_field(client: openai.OpenAI, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**ASK, max_tokens=8, extra_body=fields)
    assert message in str(error.value)
    assert re.split(r"[.\[]", error.value.param or "")[0] in fields


def test_regular_expressions_end_an_output(client: openai.OpenAI) -> None:
    more = {**ASK, "max_tokens": 30}
    answer: Any = client.chat.completions.create(**more, extra_body={"stop_regex": r"Fr\w+ce [a-z]"})
    choice = answer.choices[0]
    assert choice.message.content == "The capital of France i"
    assert (choice.finish_reason, choice.matched_stop) == ("stop", r"Fr\w+ce [a-z]")
    chunks = list(client.chat.completions.create(**more, stream=True, extra_body={"stop_regex": ["zzz", "p[i]ta"]}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "The capita"
    both: Any = client.chat.completions.create(**more, stop="capital", extra_body={"stop_regex": "capita"})
    assert both.choices[0].message.content == "The capita" and both.choices[0].matched_stop == "capita"
    first: Any = client.chat.completions.create(**more, stop="api", extra_body={"stop_regex": "capital"})
    assert first.choices[0].message.content == "The c" and first.choices[0].matched_stop == "api"
    none: Any = client.chat.completions.create(**more, extra_body={"stop_regex": "(?i)BERLIN"})
    assert none.choices[0].message.content == PARIS
    response = client.responses.create(model="demo", input=FRANCE[0]["content"], extra_body={"stop_regex": "cap.t"})
    assert response.output_text == "The capit"


@pytest.mark.parametrize(
    ("structure", "holds"),
    [
        ({"choice": ["yes", "no (maybe)", "a|b"]}, lambda text: text in ("yes", "no (maybe)", "a|b")),
        ({"regex": "[a-f]{3}"}, lambda text: len(text) == 3 and set(text) <= set("abcdef")),
        ({"grammar": 'root ::= "x" | "y"'}, lambda text: text in ("x", "y")),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 5}}, lambda text: json.loads(text) in (3, 4, 5)),
        ({"json": '{"enum": ["q"]}'}, lambda text: json.loads(text) == "q"),
        ({"json_object": True}, lambda text: text.startswith("{")),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_structured_outputs(client: openai.OpenAI, structure: dict[str, Any], holds: Any) -> None:
    extra = {"extra_body": {"structured_outputs": structure}}
    chat = client.chat.completions.create(**{**ASK, "temperature": 1.0, "seed": 1}, max_tokens=200, **extra)
    assert holds(chat.choices[0].message.content)
    completion = client.completions.create(**{**COMPLETE, "max_tokens": 200}, **extra)
    assert holds(completion.choices[0].text)
    response = client.responses.create(model="demo", input="Hi", max_output_tokens=200, **extra)
    assert holds(response.output_text)


def test_prompts_are_cut(client: openai.OpenAI, server: Any) -> None:
    tokens = tokens_of(server, prompt=PROMPT)

    def prompt_of(**extra: Any) -> list[int]:
        answer: Any = client.completions.create(**COMPLETE, extra_body={"return_token_ids": True, **extra})
        return list(answer.choices[0].prompt_token_ids)

    assert prompt_of(truncate_prompt_tokens=2) == tokens[-2:]
    assert prompt_of(truncate_prompt_tokens=2, truncation_side="right") == tokens[:2]
    assert prompt_of(truncate_prompt_tokens=-1) == prompt_of() == tokens
    long: Any = client.completions.create(
        **{**COMPLETE, "prompt": "word " * 9000}, extra_body={"truncate_prompt_tokens": -1}
    )
    assert long.usage.prompt_tokens == 4096 - 12, "as much as leaves room for the output"
    chat: Any = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "word " * 9000}], max_tokens=6,
        extra_body={"truncate_prompt_tokens": 50},
    )  # fmt: skip
    assert chat.usage.prompt_tokens == 50
    echoed = client.completions.create(**COMPLETE, echo=True, extra_body={"truncate_prompt_tokens": 1})
    assert echoed.choices[0].text.startswith(text_of(server, tokens[-1:]))


def test_the_server_tells_when_it_was_ready_and_what_it_takes(server: Any) -> None:
    info = server.info()
    assert 0 < info["startup_time"] < 1000
    usage = info["memory_usage"]
    assert usage.keys() == {"weight", "kvcache", "graph", "token_capacity"}
    assert usage["weight"] > 0 and usage["kvcache"] > 0 and usage["token_capacity"] == info["max_total_num_tokens"]
    assert server.get("/version").json() == {"version": info["version"]}


def test_a_text_without_special_tokens(client: openai.OpenAI, server: Any) -> None:
    extra = {"return_token_ids": True, "add_special_tokens": False}
    answer: Any = client.completions.create(**COMPLETE, extra_body=extra)
    assert answer.choices[0].prompt_token_ids == tokens_of(server, prompt=PROMPT, add_special_tokens=False)


def test_tokens_of_a_conversation_with_tools(client: openai.OpenAI, server: Any) -> None:
    function = {"name": "clock", "description": "Tell the time", "parameters": {"type": "object", "properties": {}}}
    tools: list[Any] = [{"type": "function", "function": function}]
    for more in ({"tools": tools}, {"tools": tools, "tool_choice": "none"}, {"continue_final_message": True}):
        turns = [*FRANCE, {"role": "assistant", "content": "The"}] if "continue_final_message" in more else FRANCE
        tokens = tokens_of(server, messages=turns, **more)
        chat = server.post("/v1/chat/completions", {"messages": turns, "max_tokens": 1, **more}).json()
        assert len(tokens) == chat["usage"]["prompt_tokens"]
    assert len(tokens_of(server, messages=FRANCE, tools=tools)) > len(tokens_of(server, messages=FRANCE))
    assert tokens_of(server, messages=FRANCE, chat_template_kwargs={"unused": 1}, reasoning_effort="high")
    for name, value in (("tools", tools), ("chat_template_kwargs", {"a": 1}), ("reasoning_effort", "low")):
        refusal = server.post("/tokenize", {"prompt": "x", name: value})
        assert (refusal.status_code, refusal.json()["param"]) == (400, name)
