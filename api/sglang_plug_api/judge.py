"""Asking a chat model whether a document answers a query, as Qwen3-Reranker is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from sglang_plug import LogprobOptions, SamplingParams, TemplateError

from .errors import ApiError
from .job import Job, Piece
from .pooling import Pair, check_count, check_lengths, sigmoid
from .sampling import Sampling
from .text import TextEngine

INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
ANSWERS = ("yes", "no")
ONE_TOKEN = Sampling(params=SamplingParams(max_new_tokens=1, temperature=0.0))


class CannotJudge(ApiError):
    """The model cannot be asked: it has no chat template, or no single token for an answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this model cannot be asked which document fits a query: {reason}; serve a cross-encoder")


async def judge_jobs(
    engine: TextEngine,
    pairs: Sequence[Pair],
    param: str,
    *,
    id: str,
    priority: int = 0,
    adapter: str | None = None,
    instruct: str | None = None,
) -> list[Job]:
    """A job for each query with its document, whose first token is the answer.

    ``param`` is what the request ``id`` calls its documents. Raises ``CannotJudge``, and ``ApiError`` if there
    are too many pairs or one is too long.
    """
    check_count(engine, len(pairs), param)
    tokenizer = engine.tokenizer
    answers = [tokenizer.encode(answer, special=False) for answer in ANSWERS]
    if any(len(one) != 1 for one in answers):
        raise CannotJudge(f"its vocabulary has no single token for each of {' and '.join(map(repr, ANSWERS))}")

    for text in chain.from_iterable(pairs):
        engine.check_text(text)

    def work() -> list[list[int]]:
        return [
            tokenizer.encode(
                tokenizer.chat(_question(pair, instruct or INSTRUCT), variables={"enable_thinking": False}),
                special=False,
            )
            for pair in pairs
        ]

    try:
        prompts = await asyncio.to_thread(work)
    except TemplateError:
        raise CannotJudge("it has no chat template for a question") from None
    check_lengths(engine, prompts, param)
    wanted = LogprobOptions(ids=tuple(one[0] for one in answers))
    return [
        Job(
            id=f"{id}-{index}",
            request=id,
            tokens=tokens,
            sampling=ONE_TOKEN,
            logprobs=wanted,
            priority=priority,
            adapter=adapter,
        )
        for index, tokens in enumerate(prompts)
    ]


def _question(pair: Pair, instruct: str) -> list[dict[str, str]]:
    query, document = pair
    content = f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


def judgement(piece: Piece) -> float:
    """The probability of "yes" among the two answers. Raises ``ApiError`` if the request was aborted before."""
    if not piece.logprobs:
        raise ApiError("the request was aborted")
    (_, yes), (_, no) = piece.logprobs[0].ids
    return 0.5 if yes == no else sigmoid(yes - no)  # both may be minus infinity
