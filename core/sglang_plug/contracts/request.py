"""``Request`` and ``Output``: the messages to and from an engine. Both are frozen.

The scheduler's own view of a request, ``engine.scheduling.sequence``, is not public; plugins read it as a
``SequenceView``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sglang_plug.contracts.text.grammar import Constraint, ReasoningPrefix
from sglang_plug.contracts.text.media import Media
from sglang_plug.contracts.text.parsers import ReasoningBlock

from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]
Task = Literal["generate", "embed", "classify", "rerank"]
"""The work that a model does for a request."""


RequestPart = Literal["", "constraint", "input_embeds", "processor_fields"]


class RequestError(ValueError):
    """The engine refuses a request.

    ``status`` is the HTTP status a server should answer with, ``about`` the part of the request that is wrong, if it is
    a single one: ``constraint``, ``input_embeds`` (the input embeddings that its prompt has instead of tokens), or
    ``processor_fields``. ``field`` is the path of the wrong field among the latter; empty if it is not known.
    """

    def __init__(self, message: str, status: int = 400, about: RequestPart = "", field: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.about = about
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobOptions:
    """The log-probabilities that a request wants. They are those of the model's own distribution, before
    temperature, penalties and truncation."""

    start: int = -1
    """First prompt position whose log-probability is wanted; -1: none, only those of output tokens."""
    top: int = 0
    """Number of most likely tokens to report at every position, besides the token itself."""
    ids: tuple[int, ...] = ()
    """Tokens to report at every position, besides the token itself."""
    ranks: bool = False
    """True if the rank of each token among all tokens is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransfer:
    """The transfer of a prompt's keys and values from the engine that computes them to the one that serves the request.

    Both use a KV store of the same name that can transfer, see ``KVTransferStore``.
    """

    id: str
    """Unique for ever: a request that is computed again has another transfer."""
    address: str = ""
    """The store that the engine sends the blocks of the prompt to while it computes it; empty: this engine waits for
    them instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to the engine. Crosses the process boundary."""

    id: str
    """Unique among the requests in flight."""
    tokens: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    media: tuple[Media, ...] = ()
    """Multimodal items that some of the tokens stand for, in the order of the prompt."""
    logprobs: LogprobOptions | None = None
    constraint: Constraint | None = None
    """Constraint of the output (structured outputs)."""
    reasoning_prefix: ReasoningPrefix | None = None
    """Reasoning that may come before the constrained part of the output."""
    reasoning: ReasoningBlock | None = None
    """Tokens around the reasoning, constrained or not; ``None``: reasoning is not separated from the answer."""
    task: Task = "generate"
    priority: int = 0
    """Higher is served first under the ``priority`` policy and retracted last."""
    salt: str = ""
    """Separates tenants: prefixes are shared only between requests of one salt."""
    adapter: str | None = None
    """Name of the adapter that it is computed with; ``None``: the model alone."""
    caller: str = ""
    """Id of the caller that it is served for, never a key itself; empty: callers are not distinguished."""
    deadline: float | None = None
    """``time.time()`` at which the output should be complete; ``None``: whenever it is."""
    arrived: float = 0.0
    """``time.time()`` at the API."""
    transfer: KVTransfer | None = None
    """The transfer of the prompt's keys and values that this engine is a part of."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token, and of its alternatives as ``(token, logprob)``, most likely first."""

    token: int
    logprob: float | None
    """``None`` for a prompt's first token, which nothing predicts."""
    top: tuple[tuple[int, float], ...] = ()
    ids: tuple[tuple[int, float], ...] = ()
    rank: int | None = None
    """Number of tokens that are at least as likely, itself included: 1 is the most likely one. ``None`` unless
    ``LogprobOptions.ranks`` asks for it."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The reason that an output ended."""

    reason: FinishReason
    """``stop``, ``length``, ``abort`` or ``error``."""
    matched: int | None = None
    """The stop token that ended it; it is the last of ``Output.tokens``."""
    message: str = ""
    status: int = 200
    about: RequestPart = ""
    """The part of the request that the error is about, see ``RequestError``."""
    field: str = ""
    """The path of the wrong request field, see ``RequestError``."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts of drafted and accepted tokens of an output so far."""

    drafted: int
    """Draft tokens that were computed."""
    accepted: int
    """Draft tokens that were accepted; each saved a decode step."""


@dataclass(slots=True, kw_only=True)
class Output:
    """The part of a request's output that is new since the last ``Output`` of the same id.

    Do not change it: ``dataclasses.replace`` returns a changed copy. It is not frozen because one is constructed for
    each sequence in each step, which would take four times as long.
    """

    id: str
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    """Prompt tokens that were taken from the prefix cache."""
    loaded_tokens: tuple[tuple[str, int], ...] = ()
    """Counts of the ``cached_tokens`` that were loaded for this request, by the name of the KV store."""
    retractions: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each of ``tokens``, if asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """For the prompt from ``LogprobOptions.start`` on; comes once, with the first output token."""
    values: tuple[float, ...] = ()
    """Embedding or scores of a pooling task."""
    drafts: DraftCounts | None = None
    """``None``: nothing was drafted."""
    sends_prompt: bool = False
    """True in the last output if the engine sends blocks of the prompt to the address of ``Request.transfer``."""
