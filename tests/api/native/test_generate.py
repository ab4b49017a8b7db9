"""Tests of ``Generation``, which turns bodies of ``/generate`` into answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import DraftCounts
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.native.generate import Generation
from sglang_plug_api.protocol.native import GenerateBody
from tests.api.letters import Unused


async def prepared(engine: Any, **fields: Any) -> Generation:
    return await Generation.prepare(engine, GenerateBody.model_validate(fields))


async def answer(engine: Any, **fields: Any) -> Any:
    return await (await prepared(engine, **fields)).answer()


async def events(engine: Any, **fields: Any) -> list[Any]:
    generation = await prepared(engine, **{"stream": True, **fields})
    return [event async for event in generation.events()]


async def test_one_text(text_engine: Any) -> None:
    result = await answer(text_engine(weight_version="v2"), text="Hi", rid="mine")
    meta = result["meta_info"]
    assert (result["text"], result["output_ids"][-1]) == ("Hello, world", 1)
    assert meta.pop("e2e_latency") >= 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "stop", "matched": 1},
        "prompt_tokens": 2,
        "completion_tokens": 13,
        "cached_tokens": 2,
        "cached_tokens_details": {"device": 2, "host": 0},
        "num_retractions": 0,
        "weight_version": "v2",
    }


async def test_drafts_are_told_of_as_by_sglang(text_engine: Any, scripted: Any) -> None:
    scripted.drafts = DraftCounts(drafted=16, accepted=8)
    meta = (await answer(text_engine(), text="Hi"))["meta_info"]
    assert {name: value for name, value in meta.items() if name.startswith("spec_")} == {
        "spec_verify_ct": 5,
        "spec_num_proposed_drafts": 16,
        "spec_num_correct_drafts": 8,
        "spec_accept_rate": 0.5,
        "spec_accept_length": 13 / 5,
    }
    last = (await events(text_engine(), text="Hi"))[-1]
    assert last["meta_info"]["spec_verify_ct"] == 5


async def test_finish_reasons(text_engine: Any) -> None:
    engine = text_engine()
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"max_new_tokens": 3}, {"type": "length", "length": 3}),
        ({"stop": ","}, {"type": "stop", "matched": ","}),
        ({"stop_token_ids": [ord("e")]}, {"type": "stop", "matched": ord("e")}),
    ]
    for params, reason in cases:
        result = await answer(engine, text="Hi", sampling_params=params)
        assert result["meta_info"]["finish_reason"] == reason


async def test_shared_parameters_are_completed_once(
    text_engine: Any, scripted: Any, compiled_patterns: list[Sequence[str]]
) -> None:
    """Parameters that prompts share are completed once: patterns take long to compile, and schemas may be large."""
    schema = {"type": "object"}
    params = {"max_new_tokens": 2, "stop_regex": "x+", "json_schema": schema}
    await answer(text_engine(), text=["a", "bb", "c"], sampling_params=params)
    assert compiled_patterns == [("x+",)]
    constraints = [request.constraint for request in scripted.requests]
    assert len(constraints) == 3 and all(constraint is constraints[0] for constraint in constraints)
    await prepared(text_engine(), text=["a", "b"], sampling_params=[params, {**params, "stop_regex": "y"}])
    assert compiled_patterns[1:] == [("x+",), ("y",)]


async def test_other_requests_are_served_between_the_parameters_of_two_prompts(
    text_engine: Any, compiled_patterns: list[Sequence[str]]
) -> None:
    turns = [0]

    async def other_requests() -> None:
        while True:
            turns.append(len(compiled_patterns))
            await asyncio.sleep(0)

    others = asyncio.ensure_future(other_requests())
    await prepared(text_engine(), text=["a"] * 4, sampling_params=[{"stop_regex": f"x{i}"} for i in range(4)])
    others.cancel()
    assert {1, 2, 3, 4} <= set(turns)


async def test_lists_answer_lists(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    assert isinstance(await answer(engine, text="Hi"), dict)
    assert len(await answer(engine, text=["Hi"])) == 1
    assert len(await answer(engine, input_ids=[[5], [6, 7]])) == 2
    assert len(await answer(engine, text=["a", "b"], sampling_params={"n": 2})) == 4
    assert isinstance(await answer(engine, input_ids=[5, 6]), dict)
    assert scripted.requests[-1].tokens == (5, 6)


async def test_every_prompt_may_have_its_own_options(text_engine: Any, scripted: Any) -> None:
    options: dict[str, Any] = {
        "sampling_params": [{"max_new_tokens": 1}, {"max_new_tokens": 2}],
        "return_logprob": [True, False],
        "top_logprobs_num": [2, 0],
        "logprob_start_len": [0, -1],
        "rid": ["x", "y"],
    }
    first, second = await answer(text_engine(), text=["ab", "cd"], **options)
    assert (first["text"], second["text"]) == ("H", "He")
    assert len(first["meta_info"]["input_token_logprobs"]) == 2
    assert len(first["meta_info"]["output_top_logprobs"][0]) == 2
    assert "output_token_logprobs" not in second["meta_info"]
    assert [request.id for request in scripted.requests] == ["x", "y"]


@pytest.mark.parametrize(
    "fields",
    [
        {"text": ["a", "b"], "rid": ["x"]},
        {"text": ["a", "b"], "sampling_params": [{}]},
        {"text": "a", "return_logprob": [True, False]},
        {"text": "a", "return_logprob": True, "logprob_start_len": 2},
        {"text": "a", "return_logprob": True, "logprob_start_len": -2},
        {"text": "a", "sampling_params": {"regex": "x", "json_schema": "{}"}},
        {"text": "a", "sampling_params": {"stop_regex": "("}},
        {"text": "a", "return_hidden_states": True},
        {"text": "a", "image_data": "x"},
        {"text": "a", "sampling_params": {"n": 2000}},
    ],
    ids=str,
)
async def test_refusals_come_before_the_engine_is_asked(text_engine: Any, scripted: Any, fields: Any) -> None:
    with pytest.raises(ApiError) as caught:
        await prepared(text_engine(), **fields)
    assert caught.value.status == 400
    assert scripted.requests == []


async def test_cumulative_and_incremental_streams(text_engine: Any) -> None:
    engine = text_engine()
    chunks = await events(engine, text="Hi")
    assert [event["text"] for event in chunks[:3]] == ["H", "He", "Hel"]
    assert chunks[2]["output_ids"] == list(map(ord, "Hel"))
    chunks = await events(engine, text="Hi", incremental=True)
    assert [event["text"] for event in chunks] == [*"Hello, world", ""]
    assert [event["output_ids"] for event in chunks[-2:]] == [[ord("d")], [1]]
    assert "index" not in chunks[0]


async def test_streams_of_several_have_indices(text_engine: Any) -> None:
    chunks = await events(text_engine(), text=["a", "b"], sampling_params={"max_new_tokens": 2})
    assert sorted(event["index"] for event in chunks) == [0, 0, 1, 1]


async def test_log_probabilities(text_engine: Any) -> None:
    engine = text_engine()
    options: dict[str, Any] = {"return_logprob": True, "sampling_params": {"max_new_tokens": 2}}
    plain = (await answer(engine, text="ab", **options))["meta_info"]
    assert plain["input_token_logprobs"] == []
    assert plain["output_token_logprobs"] == [(-0.5, ord("H"), None), (-0.5, ord("e"), None)]
    full = (
        await answer(
            engine,
            text="ab",
            logprob_start_len=0,
            top_logprobs_num=1,
            token_ids_logprob=[9],
            return_text_in_logprobs=True,
            **options,
        )
    )["meta_info"]
    assert full["input_token_logprobs"] == [(None, ord("a"), "a"), (-0.5, ord("b"), "b")]
    assert full["input_top_logprobs"][0] is None
    assert full["output_top_logprobs"][1] == [(-0.5 - ord("e") / 1000, ord("e"), "e")]
    assert full["output_token_ids_logprobs"] == [[(-9999.0, 9, "\t")]] * 2
    at_the_end = await answer(engine, text="ab", logprob_start_len=2, **options)
    assert at_the_end["meta_info"]["input_token_logprobs"] == []


async def test_log_probabilities_accumulate(text_engine: Any) -> None:
    options: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 1, "sampling_params": {"max_new_tokens": 3}}
    chunks = await events(text_engine(), text="ab", **options)
    assert [len(event["meta_info"]["output_token_logprobs"]) for event in chunks] == [1, 2, 3]
    assert [len(event["meta_info"]["input_token_logprobs"]) for event in chunks] == [1, 1, 1]


async def test_without_a_tokenizer(text_engine: Any) -> None:
    result = await answer(text_engine(tokenizer=None), input_ids=[5], sampling_params={"max_new_tokens": 2})
    assert result.keys() == {"output_ids", "token_ids", "meta_info"}
    assert result["output_ids"] == result["token_ids"] == [ord("H"), ord("e")]


async def test_ids_and_salts(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    await answer(engine, text=["a", "b"], rid="r", extra_key="k", priority=2)
    assert [(request.id, request.salt, request.priority) for request in scripted.requests] == [
        ("r-0", "k", 2),
        ("r-1", "k", 2),
    ]
    await answer(engine, text="a", sampling_params={"n": 2})
    (first, second) = scripted.requests[-2:]
    assert first.id != second.id


async def test_each_prompt_may_have_its_own_salt(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    await answer(engine, text=["a", "b"], cache_salt=["s", "t"])
    await answer(engine, text=["a", "b"], extra_key=["k", None])
    assert [request.salt for request in scripted.requests] == ["s", "t", "k", ""]
    with pytest.raises(ApiError, match="cache_salt has 1 entries for 2 prompts") as caught:
        await prepared(engine, text=["a", "b"], cache_salt=["s"])
    assert caught.value.param == "cache_salt"


async def test_an_empty_id_is_none(text_engine: Any, scripted: Any) -> None:
    """A request with an empty id gets a new id, like one without an id."""
    engine = text_engine()
    assert len((await answer(engine, text="a", rid=""))["meta_info"]["id"]) == 32
    first, second = await answer(engine, text=["a", "b"], rid=["", "x"])
    assert (len(first["meta_info"]["id"]), second["meta_info"]["id"]) == (32, "x")
    assert all(request.id for request in scripted.requests)


async def test_the_prompts_of_a_request_without_an_id_share_a_new_one(text_engine: Any) -> None:
    generation = await prepared(text_engine(), text=["a", "b"], sampling_params={"n": 2})
    ids = [output["meta_info"]["id"] for output in await generation.answer()]
    assert ids == [f"{generation.id}-{prompt}-{output}" for prompt in range(2) for output in range(2)]
    assert len(generation.id) == 32


async def test_too_many_sequences_are_refused_before_any_is_tokenised(text_engine: Any) -> None:
    engine = text_engine(tokenizer=Unused(), max_sequences_per_request=3, preferred_sampling_params={"n": 2})
    for fields in (
        {"text": ["a"] * 4, "sampling_params": {"n": 1}},
        {"text": ["a", "b"]},
        {"text": ["a", "b"], "sampling_params": [{"n": 1}, {"n": 3}]},
        {"text": "a", "sampling_params": {"n": 10**9}},
    ):
        with pytest.raises(ApiError, match="sequences"):
            await prepared(engine, **fields)
