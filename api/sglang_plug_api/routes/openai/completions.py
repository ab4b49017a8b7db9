"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug import TokenLogprob
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.middleware import id_header
from sglang_plug_api.http.request_body import read_body, takes
from sglang_plug_api.http.streaming import cancel_on_disconnect, merged, respond
from sglang_plug_api.openai.additions import ExtraResponseFields, logprob_options
from sglang_plug_api.openai.choices import (
    ResponseBuilder,
    Usage,
    client_ids,
    finish_reason,
    generation_truncation,
    make_jobs,
    matched_stop,
    request_id,
)
from sglang_plug_api.protocol.openai import CompletionBody
from sglang_plug_api.protocol.sampling import renamed_params
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.service.gather import gather
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.constraints import generation_constraint
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.logprobs import TextOffsets, completion_logprobs
from sglang_plug_api.text.reasoning import with_reasoning
from sglang_plug_api.text.text_engine import TextEngine

DEFAULT_TOKENS = 16
"""Default length of outputs, as in OpenAI's own API."""


def build(engine: TextEngine) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["OpenAI"])

    @takes(router, "/v1/completions", CompletionBody, summary="Text completion")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        with renamed_params(body.names()), engine.preparing(*client_ids(body)):
            call = await cancel_on_disconnect(request, _CompletionCall.prepare(engine, body))
        return await respond(request, body.stream, call.events, call.answer, id_header(call.id))

    return router


def _check_logprobs(engine: TextEngine, body: CompletionBody) -> None:
    """Raise ``ApiError`` for log-probabilities on a server without a tokenizer: they have the texts of the tokens."""
    for name in () if engine.encoder.has_tokenizer else ("logprobs", "prompt_logprobs"):
        if getattr(body, name) is not None:
            raise ApiError(
                f"the server runs with --skip-tokenizer-init, and {name} has the texts of tokens; use /generate with "
                "return_logprob",
                param=name,
            )


class _CompletionCall:
    """One request with one or several prompts, and its outputs."""

    def __init__(
        self,
        engine: TextEngine,
        body: CompletionBody,
        id: str,
        prompts: list[list[int]],
        echoes: Sequence[_Echo],
        jobs: list[Job],
    ) -> None:
        self.id = id
        self._engine = engine
        self._body = body
        self._echoes = echoes
        self._jobs = jobs
        self._offsets: dict[int, TextOffsets] = {}
        self._usage = Usage(engine, prompts, len(jobs))
        self._additions = ExtraResponseFields(engine, body, jobs)

    @classmethod
    async def prepare(cls, engine: TextEngine, body: CompletionBody) -> _CompletionCall:
        """Check and tokenize a request. Raises ``ApiError``."""
        engine.check_model(body.model)
        _check_logprobs(engine, body)
        id, params, inputs = request_id(body), body.sampling(), body.prompts()
        engine.check_sequences(len(inputs) * engine.defaults.outputs(params))
        prompts = await engine.encoder.encode_each(inputs, special=body.add_special_tokens)
        if (truncation := generation_truncation(engine, body)) is not None:
            prompts = [truncation.cut(tokens) for tokens in prompts]
        completed = engine.defaults.of_request(params)
        samplings = [completed.for_prompt(len(tokens), DEFAULT_TOKENS) for tokens in prompts]
        logprobs = logprob_options(body, body.logprobs, echo=bool(body.echo))
        constraint, field = generation_constraint(body)
        caller, context = current_caller(), current_request_context()
        inputs_of_jobs = [
            Job(tokens=tokens, constraint=constraint, constraint_field=field, caller=caller, context=context)
            for tokens in prompts
        ]
        jobs = make_jobs(engine, body, inputs_of_jobs, samplings, logprobs, id)
        echoes = (
            await asyncio.to_thread(_echoes, engine, inputs, prompts, body) if body.echo else [_NO_ECHO] * len(prompts)
        )
        return cls(engine, body, id, prompts, echoes, with_reasoning(engine, jobs))

    async def answer(self) -> dict[str, Any]:
        """Generate and return the whole response."""
        outputs = await gather(map(self._engine.complete, self._jobs))
        choices = []
        for index, output in enumerate(outputs):
            self._usage.add(index, output)
            self._additions.add(index, output)
            choice = self._choice(index, self._echo(index).text + output.text, output, is_first=True)
            begin = {**self._additions.for_start(index), **self._additions.prompt_logprobs(index, output)}
            choices.append({**choice, **begin})
            await asyncio.sleep(0)  # the offsets of a long output take a while
        envelope = ResponseBuilder(self._engine, self._body, self.id, "text_completion")
        return envelope(choices, self._usage.report(), **self._additions.for_answer(outputs[0]))

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield chunks with the text as it arrives."""
        envelope = ResponseBuilder(self._engine, self._body, self.id, "text_completion")
        begun = set[int]()
        async with contextlib.aclosing(merged([self._engine.stream(job) for job in self._jobs])) as outputs:
            async for index, output in outputs:
                self._usage.add(index, output)
                self._additions.add(index, output)
                text, begin = output.text, {}
                if is_first := index not in begun:
                    begun.add(index)
                    text, begin = self._echo(index).text + text, self._additions.for_start(index)
                has_logprobs = output.logprobs or (is_first and self._echoed_logprobs(output))
                if not (text or has_logprobs or output.ending or begin or (self._additions.tokens and output.tokens)):
                    continue
                usage = self._usage.report() if self._body.usage_in_chunks else None
                more = self._additions.for_answer(output) if output.ending else {}
                yield envelope([{**self._choice(index, text, output, is_first=is_first), **begin}], usage, **more)
        if self._body.usage_in_stream:
            yield envelope([], self._usage.report())

    def _choice(self, index: int, text: str, output: JobOutput, *, is_first: bool) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, output, is_first=is_first),
            "finish_reason": finish_reason(output),
            "matched_stop": matched_stop(output),
            **self._additions.for_output(index, output),
            **(self._additions.for_end(index, output) if output.ending is not None else {}),
        }

    def _logprobs(self, index: int, output: JobOutput, *, is_first: bool) -> dict[str, Any] | None:
        top = self._body.logprobs
        if top is None:
            return None
        prompt = self._echoed_logprobs(output) if is_first else ()
        offsets = self._offsets_of(index)
        text_offsets = [
            *self._echo(index).offsets[: len(prompt)],
            *offsets.of_output(item.token for item in output.logprobs),
        ]
        return completion_logprobs((*prompt, *output.logprobs), self._engine.tokenizer, top, text_offsets)

    def _offsets_of(self, index: int) -> TextOffsets:
        if index not in self._offsets:
            job = self._jobs[index]
            self._offsets[index] = TextOffsets(
                self._engine.tokenizer, job.tokens, self._echo(index).text, skip_special=job.sampling.skip_special
            )
        return self._offsets[index]

    def _echoed_logprobs(self, output: JobOutput) -> Sequence[TokenLogprob]:
        """Return the log-probabilities of the prompt, if the output is to begin with it."""
        return output.prompt_logprobs if self._body.echo else ()

    def _echo(self, index: int) -> _Echo:
        """Return the prompt as the output is to begin with it."""
        return self._echoes[index // (len(self._jobs) // len(self._echoes))]


@dataclass(frozen=True, slots=True)
class _Echo:
    """The text of a prompt, and where its tokens begin in it if log-probabilities are requested."""

    text: str
    offsets: Sequence[int] = ()


_NO_ECHO = _Echo("")
Prompts = Sequence[str | list[int]]


def _echoes(
    engine: TextEngine, prompts: Prompts, tokens_of_prompts: Sequence[list[int]], body: CompletionBody
) -> list[_Echo]:
    """Return each prompt as the model reads it."""
    is_whole, tokenizer = body.truncate_prompt_tokens is None, engine.tokenizer
    echoes = []
    for prompt, tokens in zip(prompts, tokens_of_prompts, strict=True):
        text = prompt if is_whole and isinstance(prompt, str) else tokenizer.decode(tokens)
        offsets = TextOffsets(tokenizer, tokens, text, skip_special=False)
        echoes.append(_Echo(text, offsets.of_prompt(tokens) if body.logprobs is not None else ()))
    return echoes
