"""Tests of ``TextEngine`` over a scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from sglang_plug import Constraint, EngineError, LogprobOptions, Observer, RequestError, RequestEvent
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.callers import Caller
from sglang_plug_api.service.request_context import RequestContext, set_request_context
from sglang_plug_api.text import job as job_limits
from sglang_plug_api.text.job import Job, JobOutput, new_id
from sglang_plug_api.text.sampling import Sampling
from sglang_plug_api.text.text_engine import TextEngine

END = 1


def job(engine: TextEngine, prompt: str = "Hi", logprobs: LogprobOptions | None = None, **fields: Any) -> Job:
    tokens = list(map(ord, prompt))
    return Job(tokens=tokens, sampling=engine.defaults.complete(fields, len(tokens), 50), logprobs=logprobs, id="one")


async def job_outputs(engine: TextEngine, job: Job) -> list[JobOutput]:
    return [job_output async for job_output in engine.stream(job)]


async def test_a_stream_ends_with_the_end_token_hidden(text_engine: Any) -> None:
    engine = text_engine()
    output = await job_outputs(engine, job(engine))
    assert "".join(job_output.text for job_output in output) == "Hello, world"
    assert [token for job_output in output for token in job_output.tokens] == [*map(ord, "Hello, world"), END]
    assert [job_output.ending for job_output in output[:-1]] == [None] * (len(output) - 1)
    last = output[-1]
    assert last.ending is not None and (last.ending.reason, last.ending.matched) == ("stop", END)
    assert (last.completion_tokens, last.cached_tokens) == (13, 2)


async def test_complete_joins_the_pieces(text_engine: Any) -> None:
    engine = text_engine()
    whole = await engine.complete(job(engine, logprobs=LogprobOptions(start=0, top=2)))
    assert (whole.text, whole.completion_tokens) == ("Hello, world", 13)
    assert [entry.token for entry in whole.logprobs] == [*map(ord, "Hello, world"), END]
    assert [entry.token for entry in whole.prompt_logprobs] == [ord("H"), ord("i")]


async def test_the_engine_gets_what_the_job_says(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    params = engine.defaults.complete({"temperature": 0.0}, 2, 5)
    await engine.complete(Job(tokens=[65, 66], sampling=params, id="x", priority=3, salt="tenant"))
    (request,) = scripted.requests
    assert (request.id, request.tokens, request.priority, request.salt) == ("x", (65, 66), 3, "tenant")
    assert (request.params.temperature, request.params.max_new_tokens) == (0.0, 5)
    assert request.params.stop_token_ids == (END,)
    assert request.arrived > 0


@pytest.mark.parametrize("burst", [1, 2, 5, 50])
@pytest.mark.parametrize(
    ("stop", "keep", "text", "tokens"),
    [
        ("lo,", False, "Hel", 6),
        ("lo,", True, "Hello,", 6),
        (["wor", "o"], False, "Hell", 5),
        ("xyz", False, "Hello, world", 13),
        ("d", False, "Hello, worl", 12),
        ("H", False, "", 1),
    ],
)
async def test_stop_strings(
    text_engine: Any, scripted: Any, burst: int, stop: Any, keep: bool, text: str, tokens: int
) -> None:
    scripted.burst = burst
    engine = text_engine()
    output = await job_outputs(engine, job(engine, stop=stop, no_stop_trim=keep))
    assert "".join(job_output.text for job_output in output) == text
    ending = output[-1].ending
    assert ending is not None and ending.reason == "stop"
    assert ending.matched in ([END] if tokens == 13 else [stop] if isinstance(stop, str) else stop)
    assert output[-1].completion_tokens == sum(len(job_output.tokens) for job_output in output) == tokens
    assert engine.in_flight == 0


async def test_a_stop_string_aborts_what_the_engine_still_does(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    await engine.complete(job(engine, stop="e"))
    assert scripted.aborted == ["one"]
    assert engine.in_flight == 0


async def test_log_probabilities_stop_with_the_tokens(text_engine: Any, scripted: Any) -> None:
    scripted.burst = 50
    engine = text_engine()
    whole = await engine.complete(job(engine, stop="lo", logprobs=LogprobOptions()))
    assert "".join(chr(entry.token) for entry in whole.logprobs) == "Hello"


async def test_min_tokens_hold_for_stop_strings(text_engine: Any) -> None:
    engine = text_engine()
    whole = await engine.complete(job(engine, stop="l", min_new_tokens=4))
    assert whole.text == "Hello, wor"
    assert whole.ending is not None and whole.ending.matched == "l"


@pytest.mark.parametrize(
    ("stops", "text"),
    [({"stop": "lo, w"}, "Hel"), ({"stop_regex": "lo, w"}, "Hello, w"), ({"stop_regex": "^o"}, "Hello, world")],
)
async def test_min_tokens_count_where_a_stop_string_ends(text_engine: Any, stops: dict[str, str], text: str) -> None:
    engine = text_engine()
    whole = await engine.complete(job(engine, min_new_tokens=4, no_stop_trim=False, **stops))
    assert whole.text == text


async def test_what_the_decoder_holds_back_comes_at_the_end(text_engine: Any, scripted: Any) -> None:
    scripted.reply = "a~b~"
    engine = text_engine()
    assert (await engine.complete(job(engine))).text == "a~b~"
    held = await engine.complete(job(engine, stop="~", min_new_tokens=4))
    assert (held.text, held.ending.matched) == ("a~b", "~")
    assert (await engine.complete(job(engine, max_new_tokens=2))).text == "a~"


async def test_special_tokens(text_engine: Any, scripted: Any) -> None:
    scripted.reply = "a\x05b"
    engine = text_engine()
    assert (await engine.complete(job(engine))).text == "ab"
    completed = await engine.complete(job(engine, skip_special_tokens=False, no_stop_trim=True))
    assert completed.text == "a\x05b\x01"


@pytest.mark.parametrize("stop", [None, "x"])
async def test_leaving_early_aborts(text_engine: Any, scripted: Any, stop: str | None) -> None:
    engine = text_engine()
    async with contextlib.aclosing(engine.stream(job(engine, stop=stop))) as stream:
        await anext(stream)
        assert engine.in_flight == 1
    assert (scripted.aborted, engine.in_flight) == (["one"], 0)


@pytest.mark.parametrize("is_batch_line", [False, True])
async def test_a_line_of_a_batch_is_refused_for_now_if_all_are_aborted(
    text_engine: Any, scripted: Any, is_batch_line: bool
) -> None:
    """Other requests end with the output so far; a batch line is refused, because nobody could send it again."""
    engine = text_engine()
    set_request_context(RequestContext(is_batch_line=is_batch_line))
    scripted.pause.clear()
    running = asyncio.create_task(engine.complete(job(engine)))
    while not scripted.requests:
        await asyncio.sleep(0)
    assert engine.abort(None) == 1
    if is_batch_line:
        with pytest.raises(RequestError, match="runs again") as caught:
            await running
        assert caught.value.status == 503
    else:
        ending = (await running).ending
        assert ending is not None and ending.reason == "abort"
    assert (scripted.aborted, engine.in_flight) == (["one"], 0)


async def test_a_line_of_a_batch_that_is_aborted_by_its_id_ends_with_what_there_is(
    text_engine: Any, scripted: Any
) -> None:
    engine = text_engine()
    set_request_context(RequestContext(is_batch_line=True))
    scripted.pause.clear()
    running = asyncio.create_task(engine.complete(job(engine)))
    while not scripted.requests:
        await asyncio.sleep(0)
    assert engine.abort("one") == 1
    ending = (await running).ending
    assert ending is not None and ending.reason == "abort"


async def test_abort_from_outside_ends_with_what_there_is(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    scripted.pause.clear()
    task = asyncio.create_task(engine.complete(job(engine)))
    while not scripted.requests:
        await asyncio.sleep(0)
    assert engine.abort("on") == 0  # not exactly this id
    assert engine.abort("one") == 1
    whole = await task
    assert whole.ending is not None and whole.ending.reason == "abort"
    assert (scripted.aborted, engine.in_flight) == (["one"], 0)


async def test_only_a_caller_that_may_use_a_request_aborts_it(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    scripted.pause.clear()
    running = asyncio.create_task(engine.complete(replace(job(engine), caller=Caller("a", can_access_all=False))))
    while not scripted.requests:
        await asyncio.sleep(0)
    assert engine.abort("one", Caller("b", can_access_all=False)) == 0
    assert engine.abort("one", Caller("a", can_access_all=False)) == 1
    await running


async def test_the_engine_ends_what_is_aborted_even_if_nobody_reads_its_output(text_engine: Any, scripted: Any) -> None:
    """A client that does not read its stream must not keep its KV slots, nor hold up an update of the weights."""
    engine = text_engine()
    async with contextlib.aclosing(engine.stream(job(engine))) as stream:
        await anext(stream)
        assert [engine.abort("one"), engine.abort("one")] == [1, 0]
        async with asyncio.timeout(1.0):
            while engine.in_flight:
                await asyncio.sleep(0)
        assert scripted.aborted == ["one"]
        ending = (await anext(stream)).ending  # what the client gets once it reads again
        assert ending is not None and ending.reason == "abort"
        assert [output async for output in stream] == []
    assert (scripted.aborted, engine.in_flight) == (["one"], 0)


@pytest.mark.parametrize("stops", [(), ("wor",)])
async def test_a_finished_stream_that_nobody_reads_is_not_in_flight(
    text_engine: Any, scripted: Any, stops: tuple[str, ...]
) -> None:
    """An update of the weights must not wait for the client."""
    engine = text_engine(drain_timeout=1.0)
    sampling = replace(job(engine).sampling, stops=stops)
    async with contextlib.aclosing(engine.stream(replace(job(engine), sampling=sampling))) as stream:
        while (await anext(stream)).ending is None:
            assert engine.in_flight == 1
        assert (engine.in_flight, scripted.aborted) == (0, ["one"] if stops else [])
        await engine.update_weights("org/other")
        assert engine.abort("one") == 0
        assert [output async for output in stream] == []


async def test_a_stream_that_is_left_while_it_is_aborted_ends_once(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    async with contextlib.aclosing(engine.stream(job(engine))) as stream:
        await anext(stream)
        assert engine.abort(None) == 1
    assert (scripted.aborted, engine.in_flight) == (["one"], 0)


async def test_an_update_that_aborts_ends_what_was_admitted_before_it_and_nothing_that_waits(
    text_engine: Any, scripted: Any
) -> None:
    engine = text_engine(drain_timeout=1.0)
    scripted.pause.clear()
    gate_is_held = engine.admission_gate.closed_and_idle(lambda: 0, 1.0)
    await gate_is_held.__aenter__()  # as during another update
    updating = asyncio.create_task(engine.update_weights("org/other", abort=True))
    admitted = asyncio.create_task(engine.complete(job(engine)))
    await asyncio.sleep(0.01)
    await gate_is_held.__aexit__(None, None, None)
    while not scripted.requests:
        await asyncio.sleep(0)
    waiting = asyncio.create_task(engine.complete(replace(job(engine), id="two")))
    await updating
    ending = (await admitted).ending
    assert ending is not None and ending.reason == "abort"
    scripted.pause.set()
    assert (await waiting).text == "Hello, world"


async def test_a_request_that_waits_for_an_update_of_the_weights_can_be_aborted(
    text_engine: Any, scripted: Any
) -> None:
    engine = text_engine()
    async with engine.admission_gate.closed_and_idle(lambda: engine.in_flight, 1.0):
        task = asyncio.create_task(engine.complete(job(engine)))
        await asyncio.sleep(0.01)
        assert engine.abort("on") == 0  # not exactly this id
        assert [engine.abort("one"), engine.abort("one")] == [1, 0]
        async with asyncio.timeout(1.0):
            whole = await task  # while the gate is still closed
    assert whole.ending is not None and whole.ending.reason == "abort"
    assert (scripted.requests, engine.in_flight, engine.abort(None)) == ([], 0, 0)


@pytest.mark.parametrize("error", [RequestError("full", 503), EngineError("gone")])
async def test_errors_of_the_engine_pass(text_engine: Any, scripted: Any, error: Exception) -> None:
    scripted.error = error
    engine = text_engine()
    with pytest.raises(type(error)):
        await engine.complete(job(engine))
    assert engine.in_flight == 0


class Watcher(Observer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.events: list[RequestEvent] = []

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        self.tokens.append(tokens)

    def on_request(self, event: RequestEvent) -> None:
        self.events.append(event)


async def test_observers_see_every_request_once(text_engine: Any, scripted: Any) -> None:
    watcher = Watcher()
    engine = text_engine(observers={"watcher": watcher})
    await engine.complete(job(engine))
    (event,) = watcher.events
    assert (event.id, event.reason, event.prompt_tokens, event.output_tokens) == ("one", "stop", 2, 13)
    assert event.first_token is not None and event.arrived <= event.first_token <= event.finished
    assert sum(watcher.tokens) == 13
    async with contextlib.aclosing(engine.stream(job(engine))) as stream:
        await anext(stream)
    scripted.error = RequestError("no")
    with pytest.raises(RequestError):
        await engine.complete(job(engine))
    assert [event.reason for event in watcher.events] == ["stop", "abort", "abort"]
    assert watcher.events[-1].first_token is None


async def test_a_whole_output_is_computed_again_if_its_replica_fails(text_engine: Any, scripted: Any) -> None:
    watcher = Watcher()
    engine = text_engine(observers={"watcher": watcher})
    scripted.interruptions = [EngineError("signal 9", replica=1)]
    whole = await engine.complete(job(engine, logprobs=LogprobOptions(), stop=["world"]))
    assert (whole.text, whole.completion_tokens) == ("Hello, ", 12)
    assert len(whole.logprobs) == 12
    assert [request.id for request in scripted.requests] == ["one", "one"]
    assert [(event.id, event.reason, event.output_tokens) for event in watcher.events] == [("one", "stop", 12)]
    assert sum(watcher.tokens) == 12  # what the failed replica computed is not counted again
    assert engine.in_flight == 0


async def test_a_stream_that_has_begun_is_not_computed_again(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    scripted.interruptions = [EngineError("signal 9", replica=1)]
    with pytest.raises(EngineError, match="signal 9"):
        await job_outputs(engine, job(engine))
    assert len(scripted.requests) == 1


@pytest.mark.parametrize(("replicas", "requests"), [([None], 1), ([1, 0], 2)])
async def test_a_whole_output_fails_where_no_other_replica_serves_or_two_have_failed(
    replicas: list[int | None], requests: int, text_engine: Any, scripted: Any
) -> None:
    engine = text_engine()
    scripted.interruptions = [EngineError("signal 9", replica=replica) for replica in replicas]
    with pytest.raises(EngineError, match="signal 9"):
        await engine.complete(job(engine))
    assert len(scripted.requests) == requests


async def test_several_outputs_get_ids_and_seeds_of_their_own(text_engine: Any) -> None:
    engine = text_engine()
    jobs = engine.expand([job(engine, n=3, seed=7), job(engine)])
    assert [job.id for job in jobs] == ["one-0", "one-1", "one-2", "one"]
    assert [job.sampling.params.seed for job in jobs] == [7, 8, 9, None]
    assert {job.sampling.n for job in jobs} == {1}


async def test_too_many_sequences_are_refused(text_engine: Any) -> None:
    engine = text_engine(max_sequences_per_request=3)
    assert len(engine.expand([job(engine, n=3)])) == 3
    with pytest.raises(ApiError, match="has 4 sequences"):
        engine.expand([job(engine, n=3), job(engine)])


def test_log_probabilities_of_prompts_are_limited(text_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without alternatives, the log-probabilities of the prompt's tokens themselves count."""
    monkeypatch.setattr(job_limits, "MAX_PROMPT_LOGPROBS", 12)
    engine = text_engine()
    for options in (LogprobOptions(start=0), LogprobOptions(start=0, top=1), LogprobOptions(start=1, ids=(5, 6))):
        assert len(engine.expand([job(engine, logprobs=options, n=6)])) == 6
        with pytest.raises(ApiError, match="asks for 14 .* at the positions of its prompts; the maximum is 12"):
            engine.expand([job(engine, logprobs=options, n=7)])
    assert len(engine.expand([job(engine, logprobs=LogprobOptions(top=5), n=7)])) == 7


def test_constraints_of_all_sequences_are_limited_together(text_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_limits, "MAX_CONSTRAINT_CHARACTERS", 60)
    engine, constraint = text_engine(), Constraint("regex", "x" * 10)
    one, three = (replace(job(engine, n=n), constraint=constraint) for n in (1, 3))
    assert len(engine.expand([three, three])) == 6
    for constraint_field, field in (("", "regex"), ("sampling_params.regex", "sampling_params.regex")):
        last = replace(one, constraint_field=constraint_field)
        with pytest.raises(ApiError, match=f"^{field} has more than 60 characters, the maximum, in all") as caught:
            engine.expand([three, three, last])
        assert caught.value.param == field
    assert len(engine.expand([job(engine, n=3)] * 9)) == 27


def test_log_probabilities_of_outputs_are_limited(text_engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_limits, "MAX_OUTPUT_LOGPROBS", 48)
    engine, options = text_engine(), LogprobOptions(top=2, ids=(5,))
    assert len(engine.expand([job(engine, logprobs=options, n=2, max_new_tokens=8)])) == 2
    with pytest.raises(ApiError, match="asks for 54 .* at the positions of its outputs .* maximum is 48") as caught:
        engine.expand([job(engine, logprobs=options, n=2, max_new_tokens=9)])
    assert caught.value.param == "max_tokens"
    with pytest.raises(ApiError, match="asks for 51"):
        engine.expand([job(engine, logprobs=options, max_new_tokens=0)] * 17)
    assert len(engine.expand([job(engine, logprobs=LogprobOptions(), max_new_tokens=49)])) == 1


def test_outputs_of_open_length_end_where_their_log_probabilities_are_too_many(
    text_engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_limits, "MAX_OUTPUT_LOGPROBS", 48)
    engine, options = text_engine(), LogprobOptions(top=3)

    def lengths(logprobs: LogprobOptions | None, **fields: Any) -> set[int]:
        sampling = engine.defaults.complete(fields, 2, None)
        jobs = engine.expand([Job(tokens=[1, 2], sampling=sampling, logprobs=logprobs)])
        return {job.sampling.params.max_new_tokens for job in jobs}

    room = engine.defaults.longest - 2
    assert lengths(None, n=2) == lengths(LogprobOptions(), n=2) == {room}
    assert lengths(options, n=2) == {8}
    assert lengths(options, max_new_tokens=4) == {4}
    with pytest.raises(ApiError, match="asks for 51"):
        lengths(options, min_new_tokens=17)


async def test_observers_are_told_of_a_chat_that_came_too_late(text_engine: Any) -> None:
    watcher = Watcher()
    engine = text_engine(observers={"watcher": watcher})
    set_request_context(RequestContext(deadline_ms=500, received=10.0))
    with pytest.raises(RequestError, match="before the prompt was tokenized"):
        await engine.encode_chat([{"role": "user", "content": "x"}])
    assert [(event.arrived, event.deadline) for event in watcher.events] == [(10.0, "refused")]


async def test_without_a_tokenizer(text_engine: Any) -> None:
    engine = text_engine(tokenizer=None)
    whole = await engine.complete(Job(tokens=[5], sampling=engine.defaults.complete({}, 1, 4)))
    assert (whole.text, whole.tokens) == ("", tuple(map(ord, "Hell")))
    with pytest.raises(ApiError, match="stop_token_ids"):
        await engine.complete(Job(tokens=[5], sampling=engine.defaults.complete({"stop": "x"}, 1, 4)))


def test_names(text_engine: Any) -> None:
    assert text_engine().model_name == "org/letters"
    assert text_engine(served_model_name="mine").model_name == "mine"
    strict = text_engine(strict_model_name=True)
    strict.check_model(None)
    strict.check_model("org/letters")
    with pytest.raises(ApiError) as caught:
        strict.check_model("x" * 5000)
    assert (caught.value.status, caught.value.code, len(caught.value.message) < 500) == (404, "model_not_found", True)
    text_engine().check_model("anything")


def test_ids_are_32_hexadecimal_digits() -> None:
    ids = {new_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(len(id) == 32 and int(id, 16) >= 0 for id in ids)


def test_sampling_defaults_know_the_end_tokens(text_engine: Any) -> None:
    sampling: Sampling = text_engine().defaults.complete({}, 1, 5)
    assert (sampling.params.stop_token_ids, sampling.params.temperature) == ((END,), 0.5)


@pytest.mark.parametrize(("isolated", "salt"), [(False, "tenant"), (True, "key:tenant")])
async def test_what_the_engine_is_told_of_a_caller(text_engine: Any, scripted: Any, isolated: bool, salt: str) -> None:
    engine = text_engine(tenant_isolation=isolated)
    await job_outputs(engine, replace(job(engine), salt="tenant", caller=Caller("key", can_access_all=False)))
    assert [(request.id, request.salt) for request in scripted.requests] == [("key/one", salt)]


async def test_salts_of_two_callers_are_never_the_same(text_engine: Any, scripted: Any) -> None:
    engine = text_engine(tenant_isolation=True)
    for owner, salt in (("", "a:b"), ("a", "b"), ("a", ":b"), ("", ":a"), ("", "")):
        await job_outputs(engine, replace(job(engine), salt=salt, caller=Caller(owner)))
    assert len({request.salt for request in scripted.requests}) == 5


async def test_a_refusal_names_the_field_that_the_engine_names(text_engine: Any, scripted: Any) -> None:
    """The field of a refusal is that of the engine's error, whatever the message begins with."""
    scripted.error = RequestError("No token is left", about="processor_fields", field="allowed_token_ids")
    engine = text_engine()
    with pytest.raises(ApiError, match="^No token is left$") as refused:
        await engine.complete(job(engine))
    assert refused.value.param == "allowed_token_ids"


async def test_an_error_names_the_id_that_the_caller_chose(text_engine: Any, scripted: Any) -> None:
    engine = text_engine()
    scripted.error = RequestError("Duplicate request ID: 'key/one' is still being served", 409)
    with pytest.raises(RequestError, match="ID: 'one' is") as refused:
        await job_outputs(engine, replace(job(engine), caller=Caller("key")))
    assert refused.value.status == 409
