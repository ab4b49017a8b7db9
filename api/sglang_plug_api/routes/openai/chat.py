"""``POST /v1/chat/completions``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import cancel_on_disconnect, merged, respond
from sglang_plug_api.multimodal.images import images_of_messages
from sglang_plug_api.openai.additions import ExtraResponseFields, logprob_options
from sglang_plug_api.openai.chat_request import ChatRequest, prepare_chat, truncated_chat
from sglang_plug_api.openai.choices import (
    ResponseBuilder,
    Usage,
    client_ids,
    make_jobs,
    matched_stop,
    request_id,
)
from sglang_plug_api.protocol.openai import ChatBody
from sglang_plug_api.protocol.sampling import renamed_params
from sglang_plug_api.service.gather import gather
from sglang_plug_api.text.chat_events import ChatOutput, ChatParsingOptions
from sglang_plug_api.text.constraints import generation_constraint
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.logprobs import chat_logprobs
from sglang_plug_api.text.reasoning import reasoning_tokens
from sglang_plug_api.text.text_engine import TextEngine


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["OpenAI"])

    @takes(router, "/v1/chat/completions", ChatBody, summary="Chat completion")
    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        with renamed_params(body.names()), engine.preparing(*client_ids(body)):
            call = await cancel_on_disconnect(request, _ChatCall.prepare(engine, body))
        return await respond(request, body.stream, call.events, call.answer, id_header(call.id))

    return router


class _ChatCall:
    """One chat request and its outputs."""

    def __init__(
        self, engine: TextEngine, body: ChatBody, id: str, jobs: list[Job], parsing: ChatParsingOptions
    ) -> None:
        self.id = id
        self._chat_outputs = [ChatOutput(parsing) for _ in jobs]
        self._engine = engine
        self._body = body
        self._jobs = jobs
        self._usage = Usage(engine, [jobs[0].tokens], len(jobs))
        self._additions = ExtraResponseFields(engine, body, jobs)

    @classmethod
    async def prepare(cls, engine: TextEngine, body: ChatBody) -> _ChatCall:
        """Check, render and tokenize a request. Raises ``ApiError``."""
        engine.check_model(body.model)
        id, (constraint, field) = request_id(body), generation_constraint(body)
        has_parts = any(message.has_parts for message in body.messages)
        chat_request = ChatRequest(
            messages=[message.plain() for message in body.messages],
            images=images_of_messages(body.messages, supports_images=engine.supports_images) if has_parts else (),
            tools=body.tools,
            tool_choice=body.tool_choice,
            parallel_tool_calls=body.parallel_tool_calls,
            constraint=constraint,
            constraint_field=field,
            grammar_backend=body.grammar_backend,
            reasoning_effort=body.reasoning_effort,
            separate_reasoning=body.separate_reasoning is not False,
            stream_reasoning=body.stream_reasoning is not False,
            include_reasoning=body.include_reasoning is not False,
            template_variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        job, parsing = await prepare_chat(engine, chat_request)
        job = truncated_chat(engine, body, job)
        sampling = engine.defaults.complete(parsing.sampling(body.sampling()), len(job.tokens), None)
        logprobs = logprob_options(body, (body.top_logprobs or 0) if body.logprobs else None)
        return cls(engine, body, id, make_jobs(engine, body, [job], [sampling], logprobs, id), parsing)

    async def answer(self) -> dict[str, Any]:
        """Generate and return the whole response."""
        outputs = await gather(map(self._engine.complete, self._jobs))
        choices = []
        for index, output in enumerate(outputs):
            self._usage.add(index, output)
            self._additions.add(index, output)
            message = self._chat_outputs[index].message(output)
            ending = {**self._ending(index, output), **self._additions.for_start(index)}
            tokens = self._additions.for_output(index, output)
            choices.append({"index": index, "message": message, **ending, **tokens})
        envelope = ResponseBuilder(self._engine, self._body, self.id, "chat.completion")
        await self._count_reasoning()
        more = {**self._additions.for_start(0), **self._additions.prompt_logprobs(0, outputs[0])}
        return envelope(choices, self._usage.report(), **more, **self._additions.for_answer(outputs[0]))

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield chunks: the role, text as it arrives, the ending, and the usage if requested."""
        envelope = ResponseBuilder(self._engine, self._body, self.id, "chat.completion.chunk")
        started = set[int]()
        async with contextlib.aclosing(merged([self._engine.stream(job) for job in self._jobs])) as outputs:
            async for index, output in outputs:
                if index not in started:
                    started.add(index)
                    self._usage.start(index, output)
                    begin = self._additions.for_start(index)
                    role = {**_chunk(index, {"role": "assistant", "content": ""}), **begin}
                    yield envelope([role], self._usage_so_far(), **begin)
                self._usage.add(index, output)
                self._additions.add(index, output)
                usage = self._usage_so_far()
                for chunk in self._chunks(index, output):
                    more = self._additions.for_answer(output) if chunk["finish_reason"] else {}
                    yield envelope([chunk], usage, **more)
        if self._body.usage_in_stream:
            await self._count_reasoning()
            yield envelope([], self._usage.report())

    async def _count_reasoning(self) -> None:
        """Add the reasoning tokens to the usage, if reasoning is separated from the answers."""
        texts = [output.reasoning for output in self._chat_outputs if output.reasoning is not None]
        if texts:
            self._usage.reasoning = await reasoning_tokens(self._engine, texts)

    def _usage_so_far(self) -> dict[str, Any] | None:
        return self._usage.report() if self._body.usage_in_chunks else None

    def _chunks(self, index: int, output: JobOutput) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an output, the first one with its log-probabilities and tokens, then the ending."""
        logprobs = self._logprobs(output) if output.logprobs else None
        deltas = list(self._chat_outputs[index].deltas(output))
        tokens = self._additions.for_output(index, output) if output.tokens else {}
        for position, delta in enumerate(deltas or ([{"content": ""}] if output.logprobs or tokens else [])):
            chunk = _chunk(index, delta, logprobs if position == 0 else None)
            yield {**chunk, **tokens} if position == 0 else chunk
        if output.ending is not None:
            yield {**_chunk(index, {}), **self._ending(index, output), "logprobs": None}

    def _ending(self, index: int, output: JobOutput) -> dict[str, Any]:
        return {
            "logprobs": self._logprobs(output),
            "finish_reason": self._chat_outputs[index].finish_reason(output),
            "matched_stop": matched_stop(output),
            **(self._additions.for_end(index, output) if output.ending is not None else {}),
        }

    def _logprobs(self, output: JobOutput) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(output.logprobs, self._engine.tokenizer, self._body.top_logprobs or 0)


def _chunk(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a choice of a chunk; clients of SGLang read ``reasoning_content`` of every delta, so each has one."""
    delta = {**delta, "reasoning_content": delta.get("reasoning_content")}
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None, "matched_stop": None}
