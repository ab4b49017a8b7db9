"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from sglang_plug import LogprobOptions, TokenLogprob
from sglang_plug_api.bodies import read_body, takes
from sglang_plug_api.choices import (
    Envelope,
    Usage,
    complete_all,
    finish_reason,
    id_header,
    make_jobs,
    matched_stop,
    request_id,
    stream_all,
)
from sglang_plug_api.job import Job, Piece
from sglang_plug_api.logprobs import for_completion
from sglang_plug_api.protocol.openai import CompletionBody
from sglang_plug_api.streaming import respond, while_connected
from sglang_plug_api.text import TextEngine

DEFAULT_TOKENS = 16
"""As in OpenAI's own API."""


def build(engine: TextEngine) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @takes(router, "/v1/completions", CompletionBody, summary="Text completion")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        call = await while_connected(request, _Call.prepare(engine, body))
        return await respond(request, body.stream, call.events, call.answer, id_header(call.id))

    return router


class _Call:
    """One request with one or several prompts."""

    def __init__(
        self, engine: TextEngine, body: CompletionBody, id: str, prompts: list[list[int]], jobs: list[Job]
    ) -> None:
        self.id = id
        self._engine, self._body, self._prompts, self._jobs = engine, body, prompts, jobs
        self._usage = Usage(engine, prompts, len(jobs))

    @classmethod
    async def prepare(cls, engine: TextEngine, body: CompletionBody) -> _Call:
        """Tokenise and check. Raises ``ApiError``."""
        engine.check_model(body.model)
        id, given, asked = request_id(body), body.sampling(), body.prompts()
        engine.check_sequences(len(asked) * engine.defaults.outputs(given))
        prompts = await asyncio.gather(*(_encode(engine, one) for one in asked))
        samplings = [engine.defaults.complete(given, len(tokens), DEFAULT_TOKENS) for tokens in prompts]
        logprobs = None
        if body.logprobs is not None:
            logprobs = LogprobOptions(start=0 if body.echo else -1, top=body.logprobs)
        return cls(engine, body, id, prompts, make_jobs(engine, body, prompts, samplings, logprobs, id))

    async def answer(self) -> dict[str, Any]:
        """The whole answer."""
        pieces = await complete_all(self._engine, self._jobs)
        choices = []
        for index, piece in enumerate(pieces):
            self._usage.add(index, piece)
            echo = self._echo(index)
            found = (*piece.prompt_logprobs, *piece.logprobs)
            choices.append(self._choice(index, echo + piece.text, found, piece, 0))
        envelope = Envelope(self._engine, self._body, self.id, "text_completion")
        return envelope(choices, self._usage.report())

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Chunks with the text as it comes."""
        envelope = Envelope(self._engine, self._body, self.id, "text_completion")
        shown: dict[int, int] = {}
        async with contextlib.aclosing(stream_all(self._engine, self._jobs)) as pieces:
            async for index, piece in pieces:
                self._usage.add(index, piece)
                text, found = piece.text, piece.logprobs
                offset = shown.get(index, 0)
                if index not in shown:
                    text, found = self._echo(index) + text, (*piece.prompt_logprobs, *found)
                shown[index] = offset + len(text)
                if not (text or found or piece.ending):
                    continue
                usage = self._usage.report() if self._body.usage_in_chunks else None
                yield envelope([self._choice(index, text, found, piece, offset)], usage)
        if self._body.usage_in_stream:
            yield envelope([], self._usage.report())

    def _choice(
        self, index: int, text: str, found: Sequence[TokenLogprob], piece: Piece, offset: int
    ) -> dict[str, Any]:
        wanted = self._body.logprobs
        logprobs = None if wanted is None else for_completion(found, self._engine.tokenizer, wanted, offset)
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason(piece),
            "matched_stop": matched_stop(piece),
        }

    def _echo(self, index: int) -> str:
        """The prompt's text, if the answer is to begin with it."""
        if not self._body.echo:
            return ""
        which = index // (len(self._jobs) // len(self._prompts))
        given = self._body.prompts()[which]
        return given if isinstance(given, str) else self._engine.tokenizer.decode(given)


async def _encode(engine: TextEngine, given: str | list[int]) -> list[int]:
    return given if isinstance(given, list) else await engine.encode(given)
