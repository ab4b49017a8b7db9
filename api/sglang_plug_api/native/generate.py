"""``/generate``: from bodies to jobs, from their outputs to responses. The route and the offline engine share it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import starmap
from typing import Any, TypeVar, cast

from sglang_plug import Constraint, LogprobOptions, Media, MediaArray, MediaPrompt
from sglang_plug_api.answers.errors import ApiError, WrongField
from sglang_plug_api.http.streaming import merged
from sglang_plug_api.multimodal.images import RequestImage, images_of_prompts
from sglang_plug_api.protocol.base import one_each, refuse, salts_of_prompts
from sglang_plug_api.protocol.native import GenerateBody, PromptsBody, SamplingBody
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.service.gather import gather
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.constraints import sampling_constraint
from sglang_plug_api.text.job import MAX_ID_CHARACTERS, Ending, Job, JobOutput, new_id
from sglang_plug_api.text.meta_info import OutputSoFar, meta_info
from sglang_plug_api.text.reasoning import with_reasoning
from sglang_plug_api.text.sampling import DEFAULT_NEW_TOKENS, RequestSampling
from sglang_plug_api.text.text_engine import TextEngine


class Generation:
    """One call of ``/generate``: one prompt or a batch."""

    def __init__(self, engine: TextEngine, body: GenerateBody, jobs: Sequence[Job]) -> None:
        self.id = jobs[0].request
        """The id of the request; the first prompt's if each has one of its own."""
        self._engine = engine
        self._body = body
        self._jobs = jobs
        self._started = time.time()
        self._is_list = body.is_batch or len(jobs) > 1
        self._texts = engine.tokenizer if body.return_text_in_logprobs else None

    @classmethod
    async def prepare(cls, engine: TextEngine, body: GenerateBody) -> Generation:
        """Tokenize and check the body. Raises ``ApiError``."""
        body = with_ids(body)
        refuse(body, "audio_data", "video_data", "return_hidden_states")
        engine.check_sequences(body.size)
        if not engine.supports_images:
            refuse(body, "image_data")
        images = images_of_prompts(body.image_data, body.size, batch=body.is_batch)
        try:
            columns = {name: body.each(name) for name in PER_PROMPT_FIELDS}
        except WrongField as error:
            raise ApiError(str(error), param=error.field) from None
        if body.input_embeds is not None:
            _check_fields_with_embeds(body, columns["logprob_start_len"])
        params_of_prompts = await _prompt_params(engine, body, columns["sampling_params"])
        ids, salts, adapters = prompt_ids(body), salts_of_prompts(body, body.size), prompt_adapters(engine, body)
        tokens_of_inputs = await engine.encoder.encode_each(body.inputs())
        prompts = await gather(starmap(partial(_media_prompt, engine), zip(tokens_of_inputs, images, strict=True)))
        caller, context = current_caller(), current_request_context()
        jobs = []
        for index, (prompt, params) in enumerate(zip(prompts, params_of_prompts, strict=True)):
            tokens = prompt.tokens
            logprobs = _logprobs({name: columns[name][index] for name in LOGPROB_FIELDS}, len(tokens))
            jobs.append(
                Job(
                    id=ids[index],
                    request=body.rid if isinstance(body.rid, str) else ids[index],
                    tokens=tokens,
                    media=prompt.media,
                    sampling=params.sampling.for_prompt(len(tokens), DEFAULT_NEW_TOKENS),
                    constraint=params.constraint,
                    constraint_field=params.constraint_field,
                    logprobs=logprobs,
                    priority=body.priority or 0,
                    salt=salts[index],
                    adapter=adapters[index],
                    caller=caller,
                    context=context,
                )
            )
        jobs = [_with_next_token(job) for job in engine.expand(jobs)]
        return cls(engine, body, with_reasoning(engine, jobs))

    async def answer(self) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the whole response: one object, or a list of them."""
        outputs = await gather(map(self._engine.complete, self._jobs))
        results = [self._result(job, *_record(job, output)) for job, output in zip(self._jobs, outputs, strict=True)]
        return results if self._is_list else results[0]

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the response as it grows; ``text`` has all of it so far unless ``incremental`` is set."""
        records: dict[int, OutputSoFar] = {}
        async with contextlib.aclosing(merged([self._engine.stream(job) for job in self._jobs])) as outputs:
            async for index, output in outputs:
                record = records.get(index)
                if record is None:
                    output, record = _record(self._jobs[index], output)
                    records[index] = record
                else:
                    record.add(output)
                event = self._result(self._jobs[index], output, record)
                if self._is_list:
                    event["index"] = index
                yield event

    def _result(self, job: Job, output: JobOutput, record: OutputSoFar) -> dict[str, Any]:
        incremental = self._body.incremental and self._body.stream
        text, tokens = (output.text, output.tokens) if incremental else (record.text, record.tokens)
        meta = meta_info(self._engine, job, output, record, self._started, self._texts)
        if self._body.return_prompt_token_ids:
            meta["prompt_token_ids"] = list(job.tokens)
        if self._engine.encoder.has_tokenizer:
            return {"text": text, "output_ids": list(tokens), "meta_info": meta}
        return {"output_ids": list(tokens), "token_ids": list(tokens), "meta_info": meta}


PLACEHOLDER_TOKEN = 0
"""Token at the positions of input embeddings."""
LOGPROB_FIELDS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")
PER_PROMPT_FIELDS = ("sampling_params", *LOGPROB_FIELDS)


@dataclass(frozen=True, slots=True)
class _PromptParams:
    """The part of ``sampling_params`` that concerns one prompt, or several that share them."""

    sampling: RequestSampling
    constraint: Constraint | None
    constraint_field: str


async def _prompt_params(
    engine: TextEngine, body: GenerateBody, params_of_prompts: Sequence[SamplingBody | None]
) -> list[_PromptParams]:
    """Return the parameters of each prompt, completed once if all share them. Raises ``ApiError``.

    Between those of two prompts, other requests are served.
    """
    is_list = isinstance(body.sampling_params, list)
    distinct = params_of_prompts if is_list else params_of_prompts[:1]
    entries = [params or SamplingBody.model_validate({}) for params in distinct]
    for params in entries:
        refuse(params, "custom_params", remedy="there is no custom logits processor")
    fields, repeats = [params.sampling() for params in entries], 1 if is_list else body.size
    engine.check_sequences(repeats * sum(map(engine.defaults.outputs, fields)))
    completed = []
    for index, params in enumerate(entries):
        constraint, field = sampling_constraint(params, f"sampling_params[{index}]" if is_list else "sampling_params")
        completed.append(_PromptParams(engine.defaults.of_request(fields[index]), constraint, field))
        await asyncio.sleep(0)
    return completed * repeats


Input = list[int] | Sequence[list[float]]
"""A prompt of tokens, or of input embeddings."""


async def _media_prompt(engine: TextEngine, prompt: Input, images: Sequence[RequestImage]) -> MediaPrompt:
    if isinstance(prompt[0], list):
        return await asyncio.to_thread(_embeds_prompt, prompt)
    return await engine.with_images(cast(list[int], prompt), images)


def _check_fields_with_embeds(body: GenerateBody, logprob_starts: Sequence[int | None]) -> None:
    """Raise ``ApiError`` for fields that only prompts of tokens can have."""
    refuse(body, "image_data", remedy="a prompt of input_embeds has no images")
    if any(start is not None and start >= 0 for start in logprob_starts):
        raise ApiError(
            "a prompt of input_embeds has no tokens, and so no log-probabilities of them", param="logprob_start_len"
        )


def _embeds_prompt(embeds: Any) -> MediaPrompt:
    """Return a prompt of input embeddings. Raises ``ApiError`` if they are not equally wide."""
    width = len(embeds[0])
    numbers = array("f")
    for index, embedding in enumerate(embeds):
        if len(embedding) != width:
            raise ApiError(
                f"input_embeds must all have one width; entry {index} has {len(embedding)}, the first has {width}",
                param="input_embeds",
            )
        numbers.extend(embedding)
    if max(numbers) == math.inf or min(numbers) == -math.inf:
        raise ApiError("input_embeds has numbers beyond those of float32", param="input_embeds")
    embeddings = MediaArray("float32", (len(embeds), width), numbers.tobytes())
    return MediaPrompt([PLACEHOLDER_TOKEN] * len(embeds), (Media.of_input_embeds(0, embeddings),))


Prompted = TypeVar("Prompted", bound=PromptsBody)


def with_ids(body: Prompted) -> Prompted:
    """Return ``body`` with a new id instead of each that is missing or empty."""
    ids = [id or new_id() for id in body.rid] if isinstance(body.rid, list) else body.rid or new_id()
    return body.model_copy(update={"rid": ids})


def prompt_ids(body: PromptsBody) -> list[str]:
    """Return an id for each prompt of a body of ``with_ids``. Raises ``ApiError``."""
    if not isinstance(body.rid, list):
        return [f"{body.rid}-{index}" for index in range(body.size)] if body.is_batch else [f"{body.rid}"]
    return [(id or new_id())[:MAX_ID_CHARACTERS] for id in one_each(body, "rid", body.size)]


def prompt_adapters(engine: TextEngine, body: PromptsBody, model: str | None = None) -> list[str | None]:
    """Return the adapter of each prompt; ``model`` may name it, too. Raises ``ApiError``."""
    return [engine.adapters.resolve(model, name) for name in one_each(body, "lora_path", body.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _NextTokenJob(Job):
    """A job that generates one token for the log-probabilities at its position; the token is no output."""


def _with_next_token(job: Job) -> Job:
    """Return ``job``, or one that computes what follows a prompt if alternatives at its end are asked for.

    Without new tokens the engine samples nothing, and would have no log-probabilities of the next token.
    """
    needs_next_token = job.logprobs is not None and (job.logprobs.top or job.logprobs.ids)
    if not needs_next_token or job.sampling.params.max_new_tokens > 0:
        return job
    params = replace(job.sampling.params, max_new_tokens=1, min_new_tokens=0)
    known = {field.name: getattr(job, field.name) for field in fields(job)}
    return _NextTokenJob(**{**known, "sampling": replace(job.sampling, params=params), "constraint": None})


def _record(job: Job, output: JobOutput) -> tuple[JobOutput, OutputSoFar]:
    """Return the first part of an output as it is shown, and its record."""
    if not isinstance(job, _NextTokenJob):
        return output, OutputSoFar(output)
    ending = output.ending
    if ending is not None and ending.reason == "stop":
        ending = Ending("length")
    visible = replace(output, text="", tokens=(), logprobs=(), completion_tokens=0, ending=ending, drafts=None)
    record = OutputSoFar(visible)
    record.next_logprobs = output.logprobs
    return visible, record


def _logprobs(options: dict[str, Any], prompt: int) -> LogprobOptions | None:
    """Return the options of a prompt of ``prompt`` tokens. By default log-probabilities start at the output."""
    if not options["return_logprob"]:
        return None
    start = options["logprob_start_len"]
    start = -1 if start is None else start
    if start < -1 or start > prompt:
        raise ApiError(f"logprob_start_len must be between -1 and {prompt}, got {start}", param="logprob_start_len")
    ids = tuple(options["token_ids_logprob"] or ())
    return LogprobOptions(start=start if start < prompt else -1, top=options["top_logprobs_num"] or 0, ids=ids)
