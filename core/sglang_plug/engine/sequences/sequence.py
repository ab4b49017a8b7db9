"""A request while it is being served. Only the scheduler decides which tokens are computed, and where they lie."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_plug.contracts.extension.memory_phases import StatePhase
from sglang_plug.contracts.extension.views import PromptLayout
from sglang_plug.contracts.request import Finish, Request, TokenLogprob
from sglang_plug.contracts.serving.cache import Match

if TYPE_CHECKING:
    from sglang_plug.engine.sampling.processors import ProcessorUse

SEED_BITS = 63


@dataclass(slots=True)
class SamplingState:
    """State of the sampler for one sequence."""

    seed: int
    processors: tuple[ProcessorUse, ...] = ()
    """The logits processors that the request uses, in the order in which they run."""
    constrained: bool = False
    """True if a step extension decides which tokens follow and where the output ends."""
    rejections: int = 0
    """Sampled tokens that the extension rejected at the current position."""


@dataclass(slots=True)
class OutputProgress:
    """The part of an output that the caller has, and log-probabilities that it does not have yet."""

    emitted_len: int
    """Leading tokens that the caller has: at first the prompt. Forced ones wait for their log-probabilities."""
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt from ``logprobs.start`` on; grows with the prefill."""
    forced_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of forced tokens from token ``emitted_len`` on."""


@dataclass(slots=True)
class ServiceState:
    """Record of the service of a request, for statistics, deadlines and fair sharing."""

    cached: int | None = None
    """Prompt tokens taken from the cache at the first admission."""
    retractions: int = 0
    charged: int = 0
    """Leading prompt tokens that the caller was charged for, or that came from the prefix cache."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One request's tokens, and how many of them are computed.

    ``computed`` catches up with ``len(tokens)``: a chunked prompt, a cached prefix, a resumed sequence and a decode
    step differ only in how far apart the two are.
    """

    request: Request
    tokens: list[int]
    """The prompt and everything generated."""
    limit: int
    """Largest number of tokens that the sequence may grow to."""
    sampling: SamplingState
    output: OutputProgress
    salt: str = ""
    """The key of the prefix namespace: prefixes are shared only between sequences of one salt."""
    computed: int = 0
    """Tokens whose keys and values are in the pool."""
    slots: array[int] = field(default_factory=lambda: array("q"))
    """The KV slot of each token that has one. The first ``len(match.slots)`` belong to the prefix cache."""
    match: Match | None = None
    """The locked prefix in the cache, while the sequence is admitted."""
    slot_version: int = 0
    """Incremented when a token that had a slot gets a different one."""
    service: ServiceState = field(default_factory=ServiceState)
    layout: PromptLayout | None = None
    """The prompt's layout, from a step extension; ``None``: that of text."""
    last_step_len: int = 0
    """Number of tokens that the last sampling step added: the sampled one and the forced ones after it."""
    extras: dict[Any, Any] = field(default_factory=dict)
    """State of step extensions, by extension."""

    @classmethod
    def of(
        cls,
        request: Request,
        longest: int,
        *,
        constrained: bool = False,
        processors: tuple[ProcessorUse, ...] = (),
    ) -> Sequence:
        """Make a sequence for ``request`` that may grow to ``longest`` tokens, prompt included.

        ``constrained``: a step extension decides about its tokens. ``processors``: the logits processors that it uses.
        """
        new_tokens = request.params.max_new_tokens if request.task == "generate" else 0
        limit = min(len(request.tokens) + new_tokens, longest)
        seed = request.params.seed
        sampling = SamplingState(secrets.randbits(SEED_BITS) if seed is None else seed, processors, constrained)
        output = OutputProgress(len(request.tokens))
        # What extensions put in front begins with a number, so no caller's salt equals that of an adapter, not even in
        # a KV store that servers with other extensions share.
        salt = f"/{request.salt}" if request.salt else ""
        return cls(request, list(request.tokens), limit, sampling, output, salt=salt)

    def keys(self, start: int, stop: int) -> list[int]:
        """Return the prefix cache's keys of the tokens from ``start`` to ``stop``."""
        if self.layout is None:
            return self.tokens[start:stop]
        return [*self.layout.cache_tokens[start:stop], *self.tokens[max(start, self.prompt_len) : stop]]

    def count(self, start: int, max_tokens: int, states: Iterable[StatePhase] = (), tokens: int | None = None) -> int:
        """Return how many tokens from ``start`` on a step computes that has room for ``max_tokens``.

        ``tokens`` is the length of the sequence by then (``None``: the current one). A span that must not be
        split may raise the count above ``max_tokens``; ``states`` may lower it before that.
        """
        end = start + min((len(self.tokens) if tokens is None else tokens) - start, max_tokens)
        for state in states if end > start else ():
            end = state.chunk_end(self, start, end)
        return (end if self.layout is None else self.layout.chunk_end(end)) - start

    @property
    def constrained(self) -> bool:
        """True if a step extension decides which tokens follow and where the output ends."""
        return self.sampling.constrained

    @property
    def accepts_drafts(self) -> bool:
        """True if draft tokens can be verified: a token depends on those before it only through the model."""
        return not self.constrained and not any(use.needs_tokens for use in self.sampling.processors)

    @property
    def priority(self) -> int:
        """The request's priority; higher is more urgent."""
        return self.request.priority

    @property
    def arrived(self) -> float:
        """The time at which the request reached the server, from ``time.time()``."""
        return self.request.arrived

    @property
    def caller(self) -> str:
        """Id of the caller that the request is served for."""
        return self.request.caller

    @property
    def was_admitted(self) -> bool:
        """True once the sequence has run, even if it waits again."""
        return self.service.cached is not None

    @property
    def deadline(self) -> float | None:
        """The time at which the output should be complete, from ``time.time()``."""
        return self.request.deadline

    @property
    def prompt_len(self) -> int:
        """Number of tokens of the prompt."""
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        """Number of tokens generated so far."""
        return len(self.tokens) - len(self.request.tokens)

    @property
    def computes_prompt(self) -> bool:
        """True if more tokens are to be computed than a step has added: of a prompt, or again after a retraction."""
        return len(self.tokens) - self.computed > self.last_step_len

    @property
    def finish(self) -> Finish | None:
        """The reason why the output ends with its last token; ``None`` if it continues, or if an extension decides."""
        last = self.tokens[-1]
        stops = () if self.constrained else self.request.params.stop_token_ids
        if self.generated and last in stops:
            return Finish("stop", matched=last)
        return Finish("length") if len(self.tokens) >= self.limit else None

    @property
    def shared(self) -> int:
        """Number of ``slots`` that belong to the prefix cache."""
        return len(self.match.slots) if self.match is not None else 0

    @property
    def reusable(self) -> int:
        """Number of leading tokens that may come from the prefix cache.

        The last token is always computed, for its logits; so is every token that predicts a token of the prompt, or a
        forced one, whose log-probability was requested and is not known yet.
        """
        options = self.request.logprobs
        if options is None:
            return len(self.tokens) - 1
        known = options.start + len(self.output.prompt_logprobs)
        if options.start < 0 or known >= self.prompt_len:
            known = self.output.emitted_len + len(self.output.forced_logprobs)
        return max(0, min(len(self.tokens), known) - 1)
