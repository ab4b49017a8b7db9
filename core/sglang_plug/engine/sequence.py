"""A request while it is being served. The scheduler alone says what is computed of it, and where that lies."""

from __future__ import annotations

import secrets
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_plug.cache import Match
from sglang_plug.grammar import Grammar
from sglang_plug.request import Finish, Request, TokenLogprob

from .adapted import LoadedAdapter
from .cutting import Cutter
from .view import View, prompt_keys

if TYPE_CHECKING:
    from .speculation import Drafting
    from .states import HeldState

SEED_BITS = 63


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens and what of them is computed.

    ``computed`` chases ``len(tokens)``: a chunked prompt, a cached prefix, a resumed sequence and a decode step
    differ only in how far apart the two are.
    """

    request: Request
    tokens: list[int]
    """The prompt and everything generated."""
    limit: int
    """Most tokens the sequence may grow to."""
    seed: int
    computed: int = 0
    """Tokens whose keys and values are in the pool."""
    slots: array[int] = field(default_factory=lambda: array("q"))
    """KV slot of each token that has one. The first ``len(match.slots)`` belong to the prefix cache."""
    match: Match | None = None
    """The locked prefix, while admitted."""
    cached: int | None = None
    """Prompt tokens taken from the cache at the first admission."""
    placement: int = 0
    """Another number as soon as a token that had a slot has another."""
    retractions: int = 0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    """From ``logprobs.start`` on; grows with the prefill."""
    counts: Any = None
    """The sampler's: how often each token occurs, if a penalty asks."""
    view: View | None = None
    """How the model sees a prompt with images; ``None``: there are none."""
    prompt_keys: list[int] | None = None
    """The prompt's tokens, with other numbers where images are; ``None``: there are none."""
    grammar: Grammar | None = None
    """Has accepted every generated token; a retraction leaves it as it is."""
    grammar_seconds: float = 0.0
    """What asking it has cost."""
    grammar_quick: bool | None = None
    """It has filled a mask and was quick whenever it was asked; ``False`` for good once it was not."""
    cutter: Cutter | None = None
    """Cuts what the grammar forces into tokens."""
    told: int = 0
    """Leading tokens that the caller has: at first the prompt. Forced ones wait for their log-probabilities."""
    forced_logprobs: list[TokenLogprob] = field(default_factory=list)
    """From token ``told`` on."""
    latest: int = 0
    """Tokens that the last sampled one came with, itself included."""
    held: HeldState | None = None
    """Its recurrent state, while admitted, if the model has any."""
    adapter: LoadedAdapter | None = None
    """What the request names, kept to its end even if it is unloaded."""
    overtaken: int = 0
    """Steps that were planned without it because its adapter had no place."""
    drafting: Drafting | None = None
    """Speculation's; ``None`` until it is first asked for a draft."""
    drafted: int = 0
    """Guesses that were computed."""
    accepted: int = 0
    """Those that came true."""

    @classmethod
    def of(cls, request: Request, longest: int) -> Sequence:
        """A sequence that may grow to ``longest`` tokens, prompt included."""
        wanted = request.params.max_new_tokens if request.task == "generate" else 0
        limit = min(len(request.tokens) + wanted, longest)
        seed = request.params.seed
        seed = secrets.randbits(SEED_BITS) if seed is None else seed
        keys = prompt_keys(request) if request.media else None
        return cls(request, list(request.tokens), limit, seed, told=len(request.tokens), prompt_keys=keys)

    def keys(self, start: int, stop: int) -> list[int]:
        """What the prefix cache knows the tokens from ``start`` to ``stop`` by: images by their content."""
        if self.prompt_keys is None:
            return self.tokens[start:stop]
        return self.prompt_keys[start:stop] + self.tokens[max(start, self.prompt_len) : stop]

    def count(self, start: int, most: int, tokens: int | None = None) -> int:
        """How many tokens from place ``start`` on a step computes that has room for ``most``, when the sequence has
        ``tokens`` (``None``: as many as now); an image that must not be cut may make it more than ``most``, a state
        that is to be remembered less."""
        end = start + min((len(self.tokens) if tokens is None else tokens) - start, most)
        end = end if self.held is None else self.held.stop(start, end)
        return (end if self.view is None else self.view.stop(end)) - start

    @property
    def salt(self) -> str:
        """Prefixes are shared only between sequences of one salt."""
        return self.request.salt if self.adapter is None else self.request.salt + self.adapter.salt

    @property
    def priority(self) -> int:
        """As in the request; higher is more urgent."""
        return self.request.priority

    @property
    def arrived(self) -> float:
        """``time.time()`` when the request reached the server."""
        return self.request.arrived

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.tokens)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - len(self.request.tokens)

    @property
    def finish(self) -> Finish | None:
        """Why the output ends with its last token; ``None`` if it goes on, or if that is the grammar's business."""
        last = self.tokens[-1]
        stops = self.request.params.stop_token_ids if self.grammar is None else ()
        if self.generated and last in stops:
            return Finish("stop", matched=last)
        return Finish("length") if len(self.tokens) >= self.limit else None

    @property
    def shared(self) -> int:
        """How many of ``slots`` belong to the prefix cache."""
        return len(self.match.slots) if self.match is not None else 0

    @property
    def reusable(self) -> int:
        """How many leading tokens may come from the prefix cache.

        The last token is always computed, for its logits; so is every token that predicts a token of the prompt, or a
        forced one, whose log-probability is wanted and not yet known.
        """
        wanted = self.request.logprobs
        if wanted is None:
            return len(self.tokens) - 1
        known = wanted.start + len(self.prompt_logprobs)
        if wanted.start < 0 or known >= self.prompt_len:
            known = self.told + len(self.forced_logprobs)
        return max(0, min(len(self.tokens), known) - 1)
