"""Asking a chat model whether a document answers a query, as Qwen3-Reranker is asked."""

from __future__ import annotations

import asyncio

from sglang_plug import LogprobOptions, SamplingParams, TemplateError

from .errors import ApiError
from .job import Job, Piece
from .pooling import NOT_POOLING, check_lengths, sigmoid
from .protocol.embeddings import RerankBody
from .sampling import Sampling
from .text import TextEngine

INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
ANSWERS = ("yes", "no")
ONE_TOKEN = Sampling(params=SamplingParams(max_new_tokens=1, temperature=0.0))


async def judge_jobs(engine: TextEngine, body: RerankBody, id: str) -> list[Job]:
    """A job for each document, whose first token is the answer.

    Raises ``ApiError`` if the model cannot be asked: it has no chat template, or no single token for an answer.
    """
    texts = body.texts()
    most = engine.config.max_sequences_per_request
    if len(texts) > most:
        raise ApiError(f"documents has {len(texts)} entries; the most is {most}", param="documents")
    tokenizer = engine.tokenizer
    answers = [tokenizer.encode(answer, special=False) for answer in ANSWERS]
    if any(len(one) != 1 for one in answers):
        raise ApiError(NOT_POOLING)

    def work() -> list[list[int]]:
        return [
            tokenizer.encode(
                tokenizer.chat(_question(body, text), variables={"enable_thinking": False}),
                special=False,
            )
            for text in texts
        ]

    try:
        prompts = await asyncio.to_thread(work)
    except TemplateError:
        raise ApiError(NOT_POOLING) from None
    check_lengths(engine, prompts, "documents")
    wanted = LogprobOptions(ids=tuple(one[0] for one in answers))
    return [
        Job(
            id=f"{id}-{index}",
            request=id,
            tokens=tokens,
            sampling=ONE_TOKEN,
            logprobs=wanted,
            priority=body.priority or 0,
        )
        for index, tokens in enumerate(prompts)
    ]


def _question(body: RerankBody, document: str) -> list[dict[str, str]]:
    instruct = body.instruct or INSTRUCT
    content = f"<Instruct>: {instruct}\n<Query>: {body.query}\n<Document>: {document}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


def judgement(piece: Piece) -> float:
    """The probability of "yes" among the two answers. Raises ``ApiError`` if the request was aborted before."""
    if not piece.logprobs:
        raise ApiError("the request was aborted")
    (_, yes), (_, no) = piece.logprobs[0].ids
    return 0.5 if yes == no else sigmoid(yes - no)  # both may be minus infinity
