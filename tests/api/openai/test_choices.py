"""Tests of the code that chat and completions share: making and running jobs, usage, response objects."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sglang_plug import RequestError
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.streaming import merged
from sglang_plug_api.openai.choices import (
    ResponseBuilder,
    Usage,
    finish_reason,
    make_jobs,
    matched_stop,
    request_id,
)
from sglang_plug_api.protocol.openai import CompletionBody
from sglang_plug_api.service.gather import gather
from sglang_plug_api.text.job import Ending, Job, JobOutput


def body(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": "x", **fields})


def jobs_of(engine: Any, count: int = 1, **fields: Any) -> list[Any]:
    request = body(**fields)
    samplings = [engine.defaults.complete(request.sampling(), 2, 20) for _ in range(count)]
    return make_jobs(engine, request, [Job(tokens=[65, 66])] * count, samplings, None, "call")


def job_output(**fields: Any) -> JobOutput:
    blank: dict[str, Any] = {"text": "", "tokens": (), "logprobs": (), "prompt_logprobs": (), "ending": None}
    return JobOutput(**{**blank, "completion_tokens": 0, "cached_tokens": 0, "retractions": 0, **fields})


def test_jobs_have_ids_of_their_own(text_engine: Any) -> None:
    engine = text_engine()
    assert [job.id for job in jobs_of(engine)] == ["call"]
    assert [job.id for job in jobs_of(engine, 2)] == ["call-0", "call-1"]
    assert [job.id for job in jobs_of(engine, 2, n=2)] == ["call-0-0", "call-0-1", "call-1-0", "call-1-1"]
    (job,) = jobs_of(engine, priority=4, cache_salt="s")
    assert (job.priority, job.salt) == (4, "s")
    (job,) = jobs_of(engine, extra_key="k")
    assert job.salt == "k"


def test_request_ids() -> None:
    assert request_id(body(rid="r", request_id="q")) == "r"
    assert request_id(body(request_id="q")) == "q"
    assert len(request_id(body())) == 32


@pytest.mark.parametrize(
    ("id", "value"),
    [("plain-id_1", "plain-id_1"), ("a b", "a%20b"), ("x\r\ny: z", "x%0D%0Ay:%20z"), ("é", "%C3%A9"), ("\ud800", "?")],
)
def test_a_header_holds_any_id(id: str, value: str) -> None:
    assert id_header(id) == {"x-request-id": value}


async def test_all_are_completed_in_order(text_engine: Any) -> None:
    engine = text_engine()
    outputs = await gather(map(engine.complete, jobs_of(engine, 3, stop="o")))
    assert [output.text for output in outputs] == ["Hell"] * 3


async def test_one_failure_ends_the_others(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    jobs = jobs_of(engine, 3)
    submit = scripted.submit

    async def fail_second(request: Any) -> Any:
        if request.id == "call-1":
            raise RequestError("bad", 400)
        async for output in submit(request):
            yield output

    scripted.submit = fail_second
    with pytest.raises(RequestError, match="bad"):
        await gather(map(engine.complete, jobs))
    assert engine.in_flight == 0
    with pytest.raises(RequestError, match="bad"):
        async for _ in merged(list(map(engine.stream, jobs))):
            pass
    assert engine.in_flight == 0


async def test_a_stream_left_early_aborts_all(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    async with contextlib.aclosing(merged(list(map(engine.stream, jobs_of(engine, 3))))) as stream:
        await anext(stream)
    assert engine.in_flight == 0
    assert set(scripted.aborted) == {request.id for request in scripted.requests}


def test_usage_counts_a_prompt_once(text_engine: Any) -> None:
    usage = Usage(text_engine(enable_cache_report=True), [[1, 2, 3], [4]], 4)
    for index in range(4):
        usage.add(index, job_output(completion_tokens=1, cached_tokens=2))
        usage.add(index, job_output(completion_tokens=5, cached_tokens=2))
    assert usage.report() == {
        "prompt_tokens": 4,
        "completion_tokens": 20,
        "total_tokens": 24,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert Usage(text_engine(), [[1]], 1).report()["prompt_tokens_details"] is None


def test_envelope(text_engine: Any) -> None:
    envelope = ResponseBuilder(text_engine(), body(model="asked"), "id", "kind")
    answer = envelope([{"index": 0}])
    assert list(answer) == ["id", "object", "created", "model", "choices"]
    assert (answer["id"], answer["object"], answer["model"]) == ("id", "kind", "asked")
    assert envelope([], {"total_tokens": 1})["usage"] == {"total_tokens": 1}
    assert ResponseBuilder(text_engine(), body(), "id", "kind").model == "org/letters"


def test_endings() -> None:
    assert (finish_reason(job_output()), matched_stop(job_output())) == (None, None)
    ended = job_output(ending=Ending("stop", "x"))
    assert (finish_reason(ended), matched_stop(ended)) == ("stop", "x")
