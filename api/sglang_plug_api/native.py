"""``/generate``: bodies to jobs, pieces to answers. The route and the offline engine share this."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from itertools import starmap
from typing import Any, cast

from sglang_plug import DraftCounts, LogprobOptions, Media, MediaArray, MediaPrompt, Tokenizer, TokenLogprob

from .choices import complete_all, stream_all
from .constraints import of_sampling
from .errors import ApiError, WrongField
from .images import GivenImage, of_prompts
from .job import MAX_ID_CHARACTERS, Job, Piece, new_id
from .logprobs import alternatives, triples
from .protocol.base import refuse
from .protocol.native import GenerateBody, PromptsBody, SamplingBody
from .sampling import DEFAULT_NEW_TOKENS
from .text import TextEngine
from .together import together


class Generation:
    """One call of ``/generate``: one prompt or a batch."""

    def __init__(self, engine: TextEngine, body: GenerateBody, jobs: Sequence[Job]) -> None:
        self._engine, self._body, self._jobs = engine, body, jobs
        self._started = time.time()
        self._is_list = body.is_batch or len(jobs) > 1
        self._texts = engine.tokenizer if body.return_text_in_logprobs else None

    @classmethod
    async def prepare(cls, engine: TextEngine, body: GenerateBody) -> Generation:
        """Tokenise and check. Raises ``ApiError``."""
        refuse(body, "audio_data", "video_data", "return_hidden_states")
        engine.check_sequences(body.size)
        if not engine.sees:
            refuse(body, "image_data")
        images = of_prompts(body.image_data, body.size, batch=body.is_batch)
        try:
            columns = {name: body.each(name) for name in EACH}
        except WrongField as error:
            raise ApiError(str(error), param=error.field) from None
        if body.input_embeds is not None:
            _check_beside_states(body, columns["logprob_start_len"])
        samplings: list[SamplingBody] = [one or SamplingBody.model_validate({}) for one in columns["sampling_params"]]
        for params in samplings:
            refuse(params, "stop_regex", remedy="use stop")
            refuse(params, "custom_params", remedy="there is no custom logits processor")
        engine.check_sequences(sum(engine.defaults.outputs(params.sampling()) for params in samplings))
        ids, adapters = prompt_ids(body), prompt_adapters(engine, body)
        prompts = await together(starmap(partial(_encode, engine), zip(body.inputs(), images, strict=True)))
        jobs = []
        for index, (prompt, params) in enumerate(zip(prompts, samplings, strict=True)):
            tokens = prompt.tokens
            jobs.append(
                Job(
                    id=ids[index],
                    request=body.rid if isinstance(body.rid, str) else ids[index],
                    tokens=tokens,
                    media=prompt.media,
                    sampling=engine.defaults.complete(params.sampling(), len(tokens), DEFAULT_NEW_TOKENS),
                    constraint=of_sampling(params),
                    logprobs=_logprobs({name: columns[name][index] for name in LOGPROB_FIELDS}, len(tokens)),
                    priority=body.priority or 0,
                    salt=body.salt,
                    adapter=adapters[index],
                )
            )
        return cls(engine, body, engine.expand(jobs))

    async def answer(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The whole answer: one object, or a list of them."""
        pieces = await complete_all(self._engine, self._jobs)
        found = [self._result(job, piece, _Record(piece)) for job, piece in zip(self._jobs, pieces, strict=True)]
        return found if self._is_list else found[0]

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """The answer as it grows; ``text`` has all of it so far unless ``incremental`` is set."""
        records: dict[int, _Record] = {}
        async with contextlib.aclosing(stream_all(self._engine, self._jobs)) as pieces:
            async for index, piece in pieces:
                record = records.get(index)
                if record is None:
                    record = records[index] = _Record(piece)
                else:
                    record.add(piece)
                event = self._result(self._jobs[index], piece, record)
                if self._is_list:
                    event["index"] = index
                yield event

    def _result(self, job: Job, piece: Piece, record: _Record) -> dict[str, Any]:
        incremental = self._body.incremental and self._body.stream
        text, tokens = (piece.text, piece.tokens) if incremental else (record.text, record.tokens)
        meta: dict[str, Any] = {
            "id": job.id,
            "finish_reason": _finish_reason(piece),
            "prompt_tokens": len(job.tokens),
            "completion_tokens": piece.completion_tokens,
            "cached_tokens": piece.cached_tokens,
            "num_retractions": piece.retractions,
            "weight_version": self._engine.weight_version,
            "e2e_latency": time.time() - self._started,
        }
        if piece.drafts is not None:
            meta.update(_draft_meta(piece.drafts, piece.completion_tokens))
        if job.logprobs is not None:
            meta.update(_logprob_meta(job.logprobs, record, self._texts))
        if self._engine.has_text:
            return {"text": text, "output_ids": list(tokens), "meta_info": meta}
        return {"output_ids": list(tokens), "token_ids": list(tokens), "meta_info": meta}


NO_TOKEN = 0
"""Stands where a prompt has a state."""
LOGPROB_FIELDS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")
EACH = ("sampling_params", *LOGPROB_FIELDS)


class _Record:
    """All of one output so far."""

    def __init__(self, piece: Piece) -> None:
        self.text, self.tokens = piece.text, list(piece.tokens)
        self.logprobs, self.prompt_logprobs = list(piece.logprobs), piece.prompt_logprobs

    def add(self, piece: Piece) -> None:
        """Append the next piece."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.prompt_logprobs += piece.prompt_logprobs


async def _encode(
    engine: TextEngine, given: str | list[int] | Sequence[list[float]], images: Sequence[GivenImage]
) -> MediaPrompt:
    if isinstance(given, str):
        tokens = await engine.encode(given)
    elif isinstance(given[0], list):
        return await asyncio.to_thread(_of_states, given)
    else:
        tokens = cast(list[int], given)
    return await engine.with_images(tokens, images)


def _check_beside_states(body: GenerateBody, logprob_starts: Sequence[int | None]) -> None:
    """Raises ``ApiError`` for what only prompts of tokens can have."""
    refuse(body, "image_data", remedy="a prompt of input_embeds has no images")
    if any(start is not None and start >= 0 for start in logprob_starts):
        raise ApiError("a prompt of input_embeds has no tokens to be told of", param="logprob_start_len")


def _of_states(given: Any) -> MediaPrompt:
    """A prompt that has nothing but ``given`` states. Raises ``ApiError`` if they are not equally wide."""
    width = len(given[0])
    numbers = array("f")
    for index, state in enumerate(given):
        if len(state) != width:
            raise ApiError(
                f"input_embeds has states of {width} and of {len(state)} numbers (the one at {index})",
                param="input_embeds",
            )
        numbers.extend(state)
    if max(numbers) == math.inf or min(numbers) == -math.inf:
        raise ApiError("input_embeds has numbers beyond those of float32", param="input_embeds")
    states = MediaArray("float32", (len(given), width), numbers.tobytes())
    return MediaPrompt([NO_TOKEN] * len(given), (Media.given(0, states),))


def prompt_ids(body: PromptsBody) -> list[str]:
    """The caller's ids, one for each prompt, or new ones."""
    if body.rid is None:
        return [new_id() for _ in range(body.size)]
    if isinstance(body.rid, str):
        return [body.rid] if not body.is_batch else [f"{body.rid}-{index}" for index in range(body.size)]
    if len(body.rid) != body.size:
        raise ApiError(f"rid has {len(body.rid)} entries for {body.size} prompts", param="rid")
    return [one[:MAX_ID_CHARACTERS] for one in body.rid]


def prompt_adapters(engine: TextEngine, body: PromptsBody, model: str | None = None) -> list[str | None]:
    """The adapter of each prompt; ``model`` may name it, too. Raises ``ApiError``."""
    given = body.lora_path if isinstance(body.lora_path, list) else [body.lora_path] * body.size
    if len(given) != body.size:
        raise ApiError(f"lora_path has {len(given)} entries for {body.size} prompts", param="lora_path")
    return [engine.adapters.chosen(model, one) for one in given]


def _logprobs(given: dict[str, Any], prompt: int) -> LogprobOptions | None:
    """``logprob_start_len`` -1, as by default: only output tokens."""
    if not given["return_logprob"]:
        return None
    start = given["logprob_start_len"]
    start = -1 if start is None else start
    if start < -1 or start > prompt:
        raise ApiError(f"logprob_start_len must be between -1 and {prompt}, got {start}", param="logprob_start_len")
    ids = tuple(given["token_ids_logprob"] or ())
    return LogprobOptions(start=start if start < prompt else -1, top=given["top_logprobs_num"] or 0, ids=ids)


def _logprob_meta(options: LogprobOptions, record: _Record, tokenizer: Tokenizer | None) -> dict[str, Any]:
    sides: dict[str, Sequence[TokenLogprob]] = {"input": record.prompt_logprobs, "output": record.logprobs}
    meta: dict[str, Any] = {}
    for side, found in sides.items():
        meta[f"{side}_token_logprobs"] = triples(found, tokenizer)
        if options.top:
            meta[f"{side}_top_logprobs"] = alternatives(found, tokenizer, "top")
        if options.ids:
            meta[f"{side}_token_ids_logprobs"] = alternatives(found, tokenizer, "ids")
    return meta


def _draft_meta(drafts: DraftCounts, tokens: int) -> dict[str, Any]:
    """Of speculation: steps, drafts, and tokens of a step."""
    steps = max(1, tokens - drafts.accepted)  # fewer tokens than were found, where a stop string cut some off
    return {
        "spec_verify_ct": steps,
        "spec_num_proposed_drafts": drafts.drafted,
        "spec_num_correct_drafts": drafts.accepted,
        "spec_accept_rate": drafts.accepted / drafts.drafted,
        "spec_accept_length": tokens / steps,
    }


def _finish_reason(piece: Piece) -> dict[str, Any] | None:
    ending = piece.ending
    if ending is None:
        return None
    match ending.reason:
        case "stop":
            return {"type": "stop", "matched": ending.matched}
        case "length":
            return {"type": "length", "length": piece.completion_tokens}
        case reason:
            return {"type": reason, "message": "the request was aborted"}
