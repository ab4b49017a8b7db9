"""A request while it is being served. Only the scheduler decides which tokens are computed, and where they lie."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_plug.contracts.request import Finish, Request, TokenLogprob
from sglang_plug.contracts.serving.cache import Match
from sglang_plug.contracts.text.grammar import Grammar
from sglang_plug.engine.lora.lora_batch import LoadedAdapter
from sglang_plug.engine.multimodal.multimodal_state import View, prompt_keys
from sglang_plug.engine.structured_outputs.forced_tokens import ForcedTokenizer
from sglang_plug.engine.structured_outputs.rejection import RemainingTokens

from .turns import Turn

if TYPE_CHECKING:
    from sglang_plug.engine.recurrent_state.state_rows import HeldState
    from sglang_plug.engine.sampling.processors import ProcessorUse

SEED_BITS = 63


@dataclass(slots=True, eq=False)
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
    seed: int
    computed: int = 0
    """Tokens whose keys and values are in the pool."""
    slots: array[int] = field(default_factory=lambda: array("q"))
    """The KV slot of each token that has one. The first ``len(match.slots)`` belong to the prefix cache."""
    match: Match | None = None
    """The locked prefix in the cache, while the sequence is admitted."""
    cached: int | None = None
    """Prompt tokens taken from the cache at the first admission."""
    slot_version: int = 0
    """Incremented when a token that had a slot gets a different one."""
    retractions: int = 0
    ended: bool = False
    """True once the request is over, whatever its reason."""
    charged: int = 0
    """Leading tokens that are in the accounts of the caller, or that came from the prefix cache."""
    turn: Turn = field(default_factory=Turn)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of the prompt from ``logprobs.start`` on; grows with the prefill."""
    processors: tuple[ProcessorUse, ...] = ()
    """The logits processors that the request uses, in the order in which they run."""
    view: View | None = None
    """Positions and image states of a prompt with images; ``None``: there are none."""
    prompt_keys: list[int] | None = None
    """The prompt's tokens, with content-based numbers in the places of images; ``None``: there are no images."""
    grammar: Grammar | None = None
    """The grammar, which has accepted every generated token; a retraction does not change it."""
    grammar_seconds: float = 0.0
    """Seconds spent in calls of the grammar."""
    grammar_quick: bool | None = None
    """True if the grammar has filled a mask and every call of it was quick; ``False`` for good after a slow call."""
    remaining_tokens: RemainingTokens | None = None
    """Tokens that may come next, once the grammar has rejected a token at this position that its mask had allowed."""
    forced_tokenizer: ForcedTokenizer | None = None
    """Splits the text that the grammar forces into tokens."""
    emitted_len: int = 0
    """Leading tokens that the caller has: at first the prompt. Forced ones wait for their log-probabilities."""
    forced_logprobs: list[TokenLogprob] = field(default_factory=list)
    """Log-probabilities of forced tokens from token ``emitted_len`` on."""
    last_step_len: int = 0
    """Number of tokens that the last sampling step added: the sampled one and the forced ones after it."""
    held: HeldState | None = None
    """The sequence's recurrent state while it is admitted, if the model has any."""
    adapter: LoadedAdapter | None = None
    """The adapter that the request names, kept until the request ends even if it is unloaded."""
    overtaken: int = 0
    """Number of steps planned without the sequence because its adapter had no place."""
    drafted: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that became tokens of the sequence."""
    extras: dict[Any, Any] = field(default_factory=dict)
    """State of step extensions, by extension."""

    @classmethod
    def of(cls, request: Request, longest: int) -> Sequence:
        """Make a sequence for ``request`` that may grow to ``longest`` tokens, prompt included."""
        wanted = request.params.max_new_tokens if request.task == "generate" else 0
        limit = min(len(request.tokens) + wanted, longest)
        seed = request.params.seed
        seed = secrets.randbits(SEED_BITS) if seed is None else seed
        keys = prompt_keys(request) if request.media else None
        return cls(request, list(request.tokens), limit, seed, emitted_len=len(request.tokens), prompt_keys=keys)

    def keys(self, start: int, stop: int) -> list[int]:
        """Return the prefix cache's keys of the tokens from ``start`` to ``stop``; images are keyed by content."""
        if self.prompt_keys is None:
            return self.tokens[start:stop]
        return self.prompt_keys[start:stop] + self.tokens[max(start, self.prompt_len) : stop]

    def count(self, start: int, most: int, tokens: int | None = None) -> int:
        """Return how many tokens from ``start`` on a step computes that has room for ``most``.

        ``tokens`` is the length of the sequence by then (``None``: the current one). An image that must not be split
        may raise the count above ``most``; a recurrent state that is to be kept may lower it.
        """
        end = start + min((len(self.tokens) if tokens is None else tokens) - start, most)
        end = end if self.held is None else self.held.stop(start, end)
        return (end if self.view is None else self.view.stop(end)) - start

    @property
    def accepts_drafts(self) -> bool:
        """True if draft tokens can be verified: a token depends on those before it only through the model."""
        return self.grammar is None and not any(use.needs_tokens for use in self.processors)

    @property
    def salt(self) -> str:
        """The key of the prefix namespace: prefixes are shared only between sequences of one salt."""
        return self.request.salt if self.adapter is None else self.request.salt + self.adapter.salt

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
    def finish(self) -> Finish | None:
        """The reason why the output ends with its last token; ``None`` if it continues, or if the grammar decides."""
        last = self.tokens[-1]
        stops = self.request.params.stop_token_ids if self.grammar is None else ()
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
        wanted = self.request.logprobs
        if wanted is None:
            return len(self.tokens) - 1
        known = wanted.start + len(self.prompt_logprobs)
        if wanted.start < 0 or known >= self.prompt_len:
            known = self.emitted_len + len(self.forced_logprobs)
        return max(0, min(len(self.tokens), known) - 1)
