"""Relevance scores by a chat model, which is asked whether a document answers a query, as for Qwen3-Reranker."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from sglang_plug import LogprobOptions, TemplateError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.job import Job, JobOutput
from sglang_plug_api.text.text_engine import TextEngine
from sglang_plug_api.text.truncation import Truncation

from .pooling import ONE_TOKEN, Pair, PoolingRequest, check_count, fitting, fitting_pair, sigmoid

INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"
SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
ANSWERS = ("yes", "no")


class ScoringUnsupported(ApiError):
    """The model cannot score: it has no chat template, or no single token for an answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this model cannot be asked which document fits a query: {reason}; serve a cross-encoder")


async def scoring_jobs(
    engine: TextEngine,
    request: PoolingRequest,
    pairs: Sequence[Pair],
    param: str,
    *,
    instruct: str | None = None,
    truncation: Truncation | None = None,
) -> list[Job]:
    """Return a job for each pair of query and document; its first output token is the answer.

    ``param`` is the field of the documents in the request; ``truncation`` cuts the documents. Raises
    ``ScoringUnsupported``, and ``ApiError`` if there are too many pairs or one is too long.
    """
    check_count(engine, len(pairs), param)
    tokenizer = engine.tokenizer
    answers = [tokenizer.encode(answer, special=False) for answer in ANSWERS]
    if any(len(answer) != 1 for answer in answers):
        names = " and ".join(map(repr, ANSWERS))
        raise ScoringUnsupported(f"its vocabulary has no single token for each of {names}")

    for text in chain.from_iterable(pairs):
        engine.encoder.check_text(text)

    def encode(*pair: str) -> list[int]:
        question = _question(pair[0], pair[1], instruct or INSTRUCT)
        return tokenizer.encode(tokenizer.chat(question, variables={"enable_thinking": False}), special=False)

    def length(first: str, second: str) -> int:
        return len(encode(first, second))

    def work() -> list[list[int]]:
        prompts = (encode(*fitting_pair(engine, pair, length, truncation)) for pair in pairs)
        return fitting(engine, prompts, len(pairs), param)

    try:
        prompts = await engine.encoder.in_chat_thread(work, current_request_context())
    except TemplateError:
        raise ScoringUnsupported("it has no chat template for a question") from None
    options = LogprobOptions(ids=tuple(answer[0] for answer in answers))
    return request.jobs(prompts, sampling=ONE_TOKEN, logprobs=options)


def _question(query: str, document: str, instruct: str) -> list[dict[str, str]]:
    content = f"<Instruct>: {instruct}\n<Query>: {query}\n<Document>: {document}"
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}]


def read_score(output: JobOutput) -> float:
    """Return the probability of "yes" among the two answers. Raises ``ApiError`` if the request was aborted."""
    if not output.logprobs:
        raise ApiError("the request was aborted")
    (_, yes), (_, no) = output.logprobs[0].ids
    return 0.5 if yes == no else sigmoid(yes - no)  # both may be minus infinity
