"""Additions to the answers of chats and completions that clients of SGLang and vLLM ask for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from sglang_plug import LogprobOptions, Tokenizer, TokenLogprob
from sglang_plug_api.answers.large_json import LargeList
from sglang_plug_api.protocol.openai import GenerationBody
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.logprobs import finite, logprob_list
from sglang_plug_api.text.meta_info import OutputSoFar, cached_tokens_details, meta_info
from sglang_plug_api.text.text_engine import TextEngine


class ExtraResponseFields:
    """The additions that one request asks for: token ids, ``meta_info``, log-probabilities of the prompt."""

    def __init__(self, engine: TextEngine, body: GenerationBody, jobs: Sequence[Job]) -> None:
        self._engine = engine
        self._body = body
        self._jobs = jobs
        self._records: dict[int, OutputSoFar] = {}
        self._prompt_logprobs: dict[int, LargeList] = {}
        self._started = time.time()
        self.tokens = bool(body.return_token_ids)
        """True if outputs come with their token ids."""
        self.prompt = self.tokens or bool(body.return_prompt_token_ids)
        """True if outputs come with the token ids of their prompts."""

    def for_output(self, index: int, output: JobOutput) -> dict[str, Any]:
        """Return the fields of a choice that every part of output ``index`` has."""
        return {"token_ids": list(output.tokens)} if self.tokens else {}

    def for_start(self, index: int) -> dict[str, Any]:
        """Return the fields of a choice that output ``index`` has once, first in a stream."""
        return {"prompt_token_ids": list(self._jobs[index].tokens)} if self.prompt else {}

    def for_end(self, index: int, output: JobOutput) -> dict[str, Any]:
        """Return the fields of a choice that output ``index`` has once, last in a stream."""
        if not self._body.return_meta_info:
            return {}
        job, record = self._jobs[index], self._records[index]
        texts = self._engine.tokenizer if self._engine.encoder.has_tokenizer else None
        return {"meta_info": meta_info(self._engine, job, output, record, self._started, texts)}

    def add(self, index: int, output: JobOutput) -> None:
        """Remember what the ends of outputs tell; call it with every part of them."""
        if not self._body.return_meta_info:
            return
        if index in self._records:
            self._records[index].add(output)
        else:
            self._records[index] = OutputSoFar(output)

    def for_answer(self, output: JobOutput) -> dict[str, Any]:
        """Return the fields next to ``choices``; ``output`` is the end of the first output, or of one in a stream."""
        if not self._body.return_cached_tokens_details:
            return {}
        return {"sglext": {"cached_tokens_details": cached_tokens_details(output)}}

    def prompt_logprobs(self, index: int, output: JobOutput) -> dict[str, Any]:
        """Return the log-probabilities of the prompt of output ``index``, as clients of vLLM read them.

        All outputs of a prompt have those of the first.
        """
        top = self._body.prompt_logprobs
        if top is None:
            return {}
        prompt = id(self._jobs[index].tokens)
        if not self._prompt_logprobs.get(prompt):
            entry = partial(_prompt_entry, top=top, tokenizer=self._engine.tokenizer)
            self._prompt_logprobs[prompt] = logprob_list(output.prompt_logprobs, entry)
        return {"prompt_logprobs": self._prompt_logprobs[prompt]}


def logprob_options(body: GenerationBody, top: int | None, *, echo: bool = False) -> LogprobOptions | None:
    """Return the log-probabilities that a request needs; ``top`` are those of its output, ``None`` for none."""
    prompt = body.prompt_logprobs
    if top is None and prompt is None:
        return None
    starts_at_prompt = prompt is not None or (echo and top is not None)
    return LogprobOptions(start=0 if starts_at_prompt else -1, top=max(top or 0, prompt or 0), ranks=prompt is not None)


def _prompt_entry(item: TokenLogprob, top: int, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the log-probabilities at one position of a prompt; ``None`` for the first, which nothing predicts.

    Of equally likely tokens, the listed ones have the ranks of their positions in the list, as in vLLM.
    """
    if item.logprob is None:
        return None
    likeliest = ((token, value, rank) for rank, (token, value) in enumerate(item.top[:top], 1))
    return {
        str(token): {"logprob": finite(value), "rank": rank, "decoded_token": tokenizer.piece(token)}
        for token, value, rank in ((item.token, item.logprob, item.rank), *likeliest)
    }
