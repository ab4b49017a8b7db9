"""``meta_info``: what SGLang's clients read about an output besides its text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sglang_plug import DraftCounts, LogprobOptions, Tokenizer, TokenLogprob

from .job import Job, JobOutput
from .logprobs import alternative_triples, token_triples
from .text_engine import TextEngine

HOST = "host"
"""Name of the KV store in the host's memory."""


class OutputSoFar:
    """Text, tokens and log-probabilities of one output so far."""

    def __init__(self, output: JobOutput) -> None:
        self.text = output.text
        self.tokens = list(output.tokens)
        self.logprobs = list(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs
        self.next_logprobs: tuple[TokenLogprob, ...] = ()
        """Those of the token after a prompt, of which no output was wanted."""

    def add(self, output: JobOutput) -> None:
        """Append the next part."""
        self.text += output.text
        self.tokens += output.tokens
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs


def meta_info(
    engine: TextEngine, job: Job, output: JobOutput, record: OutputSoFar, started: float, texts: Tokenizer | None
) -> dict[str, Any]:
    """Return the ``meta_info`` of an output.

    Args:
        engine: the engine that made it.
        job: the output's job.
        output: the last part of the output.
        record: all of it.
        started: ``time.time()`` at the request's arrival.
        texts: the tokenizer, if log-probabilities come with the texts of their tokens.
    """
    meta: dict[str, Any] = {
        "id": job.id,
        "finish_reason": _finish_reason(output),
        "prompt_tokens": len(job.tokens),
        "completion_tokens": output.completion_tokens,
        "cached_tokens": output.cached_tokens,
        "cached_tokens_details": cached_tokens_details(output),
        "num_retractions": output.retractions,
        "weight_version": engine.server.state.weight_version,
        "e2e_latency": time.time() - started,
    }
    if output.drafts is not None:
        meta.update(_draft_meta(output.drafts, output.completion_tokens))
    if job.logprobs is not None:
        meta.update(_logprob_meta(job.logprobs, record, texts))
    return meta


def cached_tokens_details(output: JobOutput) -> dict[str, int | str]:
    """Return where the cached tokens of an output's prompt were: in the KV pool, in the host's memory, or elsewhere.

    The store ``host`` has a name of its own; all others are ``storage``.
    """
    stored = {store: tokens for store, tokens in output.loaded_tokens if store != HOST}
    host = sum(tokens for store, tokens in output.loaded_tokens if store == HOST)
    elsewhere = sum(stored.values())
    details: dict[str, int | str] = {"device": max(0, output.cached_tokens - host - elsewhere), "host": host}
    return {**details, "storage": elsewhere, "storage_backend": ",".join(stored)} if stored else details


def _logprob_meta(options: LogprobOptions, record: OutputSoFar, tokenizer: Tokenizer | None) -> dict[str, Any]:
    sides: dict[str, Sequence[TokenLogprob]] = {"input": record.prompt_logprobs, "output": tuple(record.logprobs)}
    meta: dict[str, Any] = {}
    for side, logprobs in sides.items():
        meta[f"{side}_token_logprobs"] = token_triples(logprobs, tokenizer)
        if side == "output":
            logprobs = (*logprobs, *record.next_logprobs)
        if options.top:
            meta[f"{side}_top_logprobs"] = alternative_triples(logprobs, tokenizer, "top")
        if options.ids:
            meta[f"{side}_token_ids_logprobs"] = alternative_triples(logprobs, tokenizer, "ids")
    meta["output_token_logprobs_length"] = len(record.logprobs)
    return meta


def _draft_meta(drafts: DraftCounts, tokens: int) -> dict[str, Any]:
    """Return the counts of speculative decoding: steps, draft tokens, and tokens per step."""
    steps = max(1, tokens - drafts.accepted)  # a stop string may have removed some of the tokens
    return {
        "spec_verify_ct": steps,
        "spec_num_proposed_drafts": drafts.drafted,
        "spec_num_correct_drafts": drafts.accepted,
        "spec_accept_rate": drafts.accepted / drafts.drafted,
        "spec_accept_length": tokens / steps,
    }


def _finish_reason(output: JobOutput) -> dict[str, Any] | None:
    ending = output.ending
    if ending is None:
        return None
    match ending.reason:
        case "stop":
            return {"type": "stop", "matched": ending.matched}
        case "length":
            return {"type": "length", "length": output.completion_tokens}
        case reason:
            return {"type": reason, "message": "the request was aborted", "status_code": None, "err_type": None}
